/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  Handing out events.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_LEASE_H
#define IDEMQ_LEASE_H

#include "idemq.h"

#include "consumer.h"
#include "ledger.h"

/* Who wants what. */
typedef struct LeaseRequest
{
	int			max_events;		/* 0: just move on */
	int64		duration;
	const char *role;
	void		(*hand_out) (struct LeaseRequest *request, const Event *event,
							 const Batch *batch);
	void	   *arg;
} LeaseRequest;

/* What became of it. */
typedef enum LeaseResult
{
	LEASE_NONE,					/* nothing can be handed out now, nothing
								 * changed */
	LEASE_MOVED_ON,				/* the same, but the position has changed */
	LEASE_GOT,
} LeaseResult;

/* How far a sleeper has looked for events of a shard. */
typedef struct LeaseLook
{
	int64		entry;			/* of the shard's state then; 0: not at all */
	Moment		upto;
} LeaseLook;

extern bool lease_is_valid(const Batch *batch, TimestampTz now);
extern bool lease_is_to_be_had(const Consumer *consumer, int32 shard, LeaseLook *look,
							   MemoryContext context, TimestampTz *next);
extern LeaseResult lease_take(const Consumer *consumer, int32 shard, LeaseRequest *request);

#endif							/* IDEMQ_LEASE_H */
