/*-------------------------------------------------------------------------
 *
 * turn.h
 *	  Keeping the ledgers short.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_TURN_H
#define IDEMQ_TURN_H

#include "idemq.h"

/* One round, over several transactions. */
typedef struct TurnRound
{
	int32		consumer;		/* the shard that was copied last; 0: none */
	int32		shard;
	bool		copied;			/* something had to be, or somebody was at it */
	int			tries;			/* to begin the next turn */
} TurnRound;

extern bool turn_step(TurnRound *round);

#endif							/* IDEMQ_TURN_H */
