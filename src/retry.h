/*-------------------------------------------------------------------------
 *
 * retry.h
 *	  What becomes of an event that has failed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_RETRY_H
#define IDEMQ_RETRY_H

#include "idemq.h"

#include "consumer.h"

typedef struct RetryOutcome
{
	bool		dead;
	int			attempt;		/* which has failed */
	TimestampTz retry_at;		/* if it is not dead */
} RetryOutcome;

extern void retry_fail(ShardState *state, const Consumer *consumer, const Batch *batch,
					   Event *event, const char *error, int64 retry_in, bool alone,
					   RetryOutcome *outcome);
extern void retry_park(ShardState *state, const Batch *batch, Event *event,
					   ParkedState as, TimestampTz due);

#endif							/* IDEMQ_RETRY_H */
