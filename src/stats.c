/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counting claims, per scope: what SQL sees.
 *
 *-------------------------------------------------------------------------
 */
#include "stats.h"

#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idemq_stats);

#define STATS_COLUMNS	7

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

/* idemq._stats(): the counters of this database. */
Datum
idemq_stats(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	shmem_each_scope(put_scope, fcinfo->resultinfo);
	return (Datum) 0;
}
