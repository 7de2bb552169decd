/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Counting claims, per scope, without writing a row.
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

#endif							/* IDEMQ_STATS_H */
