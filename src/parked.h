/*-------------------------------------------------------------------------
 *
 * parked.h
 *	  Events that cannot be delivered now.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_PARKED_H
#define IDEMQ_PARKED_H

#include "idemq.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

#include "ledger.h"

typedef enum ParkedState
{
	PARKED_RETRY,				/* it has failed */
	PARKED_DELAYED,				/* it is not due yet, or was given back */
	PARKED_BLOCKED,				/* it waits behind one of its key */
	PARKED_LEASED,				/* it was handed out */
	PARKED_DONE,
} ParkedState;

/* A reference to an event. */
typedef struct ParkedRef
{
	int64		place;			/* 0: it gets the next */
	int64		key;			/* hash of the event's key */
	int64		seq;
	int64		rank;			/* its order in the queue of its key */
	int64		dead_id;		/* of the dead letter that is replayed; 0:
								 * none */
	ParkedState state;
	int			attempts;		/* how often it has failed */
	int			deliveries;
	bool		alone;			/* is to be handed out alone */
	TimestampTz due;			/* infinity: when those before it are done */
	TimestampTz first_failed_at;	/* 0: never */
	char	   *error;
} ParkedRef;

extern void parked_put(ShardState *state, ParkedRef *ref);
extern void parked_done(ShardState *state, ParkedRef *ref, bool ordered);
extern bool parked_has_key(const ShardState *state, int64 key, int64 *last_rank);
extern ParkedRef *parked_first_of_key(const ShardState *state, int64 key);
extern bool parked_is_due(const ShardState *state, TimestampTz now);
extern int	parked_compare(const ParkedRef *a, const ParkedRef *b);
extern ParkedRef *parked_get(const ShardState *state, int n, const int64 *places);
extern List *parked_due(ShardState *state, TimestampTz now, int max, bool ordered);
extern void parked_unblock_all(ShardState *state);
extern List *parked_live(const ShardState *state);
extern void parked_find_next_due(ShardState *state);

#endif							/* IDEMQ_PARKED_H */
