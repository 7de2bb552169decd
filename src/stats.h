/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Counting claims and events, without writing a row.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_STATS_H
#define IDEMQ_STATS_H

#include "idemq.h"

#include "shmem.h"

typedef enum ClaimStat
{
	CLAIM_STAT_CLAIMED,
	CLAIM_STAT_DUPLICATE,
	CLAIM_STAT_BUSY,
} ClaimStat;

/* Count an answer; stats is NULL without preload. */
static inline void
stats_count(ScopeStats *stats, ClaimStat what)
{
	if (stats == NULL)
		return;
	switch (what)
	{
		case CLAIM_STAT_CLAIMED:
			pg_atomic_fetch_add_u64(&stats->claims, 1);
			break;
		case CLAIM_STAT_DUPLICATE:
			pg_atomic_fetch_add_u64(&stats->duplicates, 1);
			break;
		case CLAIM_STAT_BUSY:
			pg_atomic_fetch_add_u64(&stats->busy, 1);
			break;
	}
}

/* Count a wait for another transaction. */
static inline void
stats_count_wait(ScopeStats *stats, uint64 wait_us)
{
	if (stats == NULL)
		return;
	pg_atomic_fetch_add_u64(&stats->waits, 1);
	pg_atomic_fetch_add_u64(&stats->wait_us, wait_us);
}

/* Count an event that is being written, under its aggregatetype. */
static inline void
stats_count_event(const char *aggregatetype, int len)
{
	pg_atomic_uint64 *emitted = shmem_type(aggregatetype, len);

	if (emitted != NULL)
		pg_atomic_fetch_add_u64(emitted, 1);
}

typedef enum ConsumerStat
{
	CONSUMER_STAT_DELIVERED,
	CONSUMER_STAT_ACKED,
	CONSUMER_STAT_RETRIED,
	CONSUMER_STAT_DEAD,
} ConsumerStat;

extern void stats_count_other_event(void);
extern void stats_count_consumer(int32 consumer, int32 shard, ConsumerStat what, uint64 events);
extern uint64 stats_of_consumer(int32 consumer, int32 shard, ConsumerStat what);

#endif							/* IDEMQ_STATS_H */
