/*-------------------------------------------------------------------------
 *
 * advance.h
 *	  Moving consumers along that have nothing to read.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_ADVANCE_H
#define IDEMQ_ADVANCE_H

#include "idemq.h"

/* One round, over several transactions. */
typedef struct AdvanceRound
{
	int32		consumer;		/* the shard that was looked at last; 0: none */
	int32		shard;
	int			ncalls;			/* in a row that moved it on */
} AdvanceRound;

extern bool advance_step(AdvanceRound *round);

#endif							/* IDEMQ_ADVANCE_H */
