/*-------------------------------------------------------------------------
 *
 * consumer_info.h
 *	  How far the consumers are, for those who watch them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CONSUMER_INFO_H
#define IDEMQ_CONSUMER_INFO_H

#include "idemq.h"

#include "consumer.h"
#include "ledger.h"

/* One shard of a consumer. */
typedef struct ConsumerInfo
{
	Consumer   *consumer;
	ShardState	state;
	bool		at_home;		/* the position is one of this database */
	TimestampTz oldest;			/* of what is not dealt with; infinity: all is */
	Oid			leaf;			/* where that is */
	int64		lag_events;		/* estimate of what is to be handed out */
	int64		in_flight;
	int64		retrying;
	int64		blocked;
	const Batch *lease;			/* that ends last; NULL: none is out */
	int			expiries;		/* leases that a batch has let run out */
	int64		suspects;		/* parked events that let too many run out */
} ConsumerInfo;

extern List *consumer_info_collect(void);

#endif							/* IDEMQ_CONSUMER_INFO_H */
