/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counting claims and events: what SQL sees.
 *
 *-------------------------------------------------------------------------
 */
#include "stats.h"

#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idemq_stats);
PG_FUNCTION_INFO_V1(idemq_stats_outbox);

#define STATS_COLUMNS	7
#define EVENTS_COLUMNS	3

/* One row of idemq._stats(). */
static void
put_scope(const char *name, int len, const ScopeStats *stats, TimestampTz since,
		  void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	ScopeStats	copy = *stats;
	Datum		values[STATS_COLUMNS];
	bool		isnull[STATS_COLUMNS] = {0};
	uint64		counts[5];

	counts[0] = pg_atomic_read_u64(&copy.claims);
	counts[1] = pg_atomic_read_u64(&copy.duplicates);
	counts[2] = pg_atomic_read_u64(&copy.busy);
	counts[3] = pg_atomic_read_u64(&copy.waits);
	counts[4] = pg_atomic_read_u64(&copy.wait_us);

	/* scopes that did not fit are a row only if there were any */
	if (name == NULL && counts[0] + counts[1] + counts[2] + counts[3] == 0)
		return;

	values[0] = PointerGetDatum(name ? cstring_to_text_with_len(name, len)
								: cstring_to_text("(others)"));
	for (int i = 0; i < 5; i++)
		values[i + 1] = Int64GetDatum((int64) counts[i]);
	values[6] = TimestampTzGetDatum(since);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/* Count an event of which only that is known. */
void
stats_count_other_event(void)
{
	pg_atomic_uint64 *emitted = shmem_other_events();

	if (emitted != NULL)
		pg_atomic_fetch_add_u64(emitted, 1);
}

/* One counter of a shard. */
static const pg_atomic_uint64 *
shard_counter(const ShardStats *stats, ConsumerStat what)
{
	switch (what)
	{
		case CONSUMER_STAT_DELIVERED:
			return &stats->delivered;
		case CONSUMER_STAT_ACKED:
			return &stats->acked;
		case CONSUMER_STAT_RETRIED:
			return &stats->retried;
		case CONSUMER_STAT_DEAD:
			return &stats->dead;
	}
	pg_unreachable();
}

/* Count what became of events of a consumer. */
void
stats_count_consumer(int32 consumer, int32 shard, ConsumerStat what, uint64 events)
{
	ShardStats *stats = events > 0 ? shmem_shard(consumer, shard) : NULL;

	if (stats != NULL)
		pg_atomic_fetch_add_u64(unconstify(pg_atomic_uint64 *, shard_counter(stats, what)),
								(int64) events);
}

/* What was counted so far; 0 without preload. */
uint64
stats_of_consumer(int32 consumer, int32 shard, ConsumerStat what)
{
	const ShardStats *stats = shmem_find_shard(consumer, shard);

	return stats == NULL ? 0 :
		pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, shard_counter(stats, what)));
}

/* One row of idemq._stats_outbox(). */
static void
put_type(const char *name, int len, uint64 emitted, TimestampTz since, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[EVENTS_COLUMNS];
	bool		isnull[EVENTS_COLUMNS] = {0};

	/* others are a row only if there were any */
	if (name == NULL && emitted == 0)
		return;
	values[0] = PointerGetDatum(name ? cstring_to_text_with_len(name, len)
								: cstring_to_text("(others)"));
	values[1] = Int64GetDatum((int64) emitted);
	values[2] = TimestampTzGetDatum(since);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/* idemq._stats(): the counters of this database. */
Datum
idemq_stats(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	shmem_each_scope(put_scope, fcinfo->resultinfo);
	return (Datum) 0;
}

/* idemq._stats_outbox(): the events of this database, by aggregatetype. */
Datum
idemq_stats_outbox(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	shmem_each_type(put_type, fcinfo->resultinfo);
	return (Datum) 0;
}
