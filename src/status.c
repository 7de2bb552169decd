/*-------------------------------------------------------------------------
 *
 * status.c
 *	  idem_status() and idemq.partitions: is all well?
 *
 *-------------------------------------------------------------------------
 */
#include "idemq.h"

#include <math.h>

#include "commands/extension.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "filter.h"
#include "guc.h"
#include "expire.h"
#include "parent.h"
#include "retention.h"
#include "shmem.h"
#include "status_outbox.h"

PG_FUNCTION_INFO_V1(idem_status);
PG_FUNCTION_INFO_V1(idemq_partitions);

#define STATUS_COLUMNS		4
#define PARTITIONS_COLUMNS	6

/* a step of the wall clock that is worth a warning */
#define CLOCK_LAG			(60 * USECS_PER_SEC)

/* Put one check into the result. */
static void
put_check(FunctionCallInfo fcinfo, const char *name, const char *status,
		  const char *hint, const char *detail)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[STATUS_COLUMNS];
	bool		isnull[STATUS_COLUMNS] = {0};

	values[0] = CStringGetTextDatum(name);
	values[1] = CStringGetTextDatum(status);
	values[2] = CStringGetTextDatum(detail);
	values[3] = hint ? CStringGetTextDatum(hint) : (Datum) 0;
	isnull[3] = hint == NULL;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/* How long ago, in seconds, for a detail. */
static double
seconds_since(int64 monotonic)
{
	return (clock_monotonic() - monotonic) / (double) USECS_PER_SEC;
}

/* Is the library where it should be? */
static void
check_preload(FunctionCallInfo fcinfo)
{
	if (shmem_is_attached())
		put_check(fcinfo, "preload", "ok", NULL,
				  "idemq is in shared_preload_libraries");
	else
		put_check(fcinfo, "preload", "warning",
				  "Add idemq to shared_preload_libraries and restart, or call idem_maintain() regularly.",
				  "idemq is not in shared_preload_libraries: claims are exact, but there is no worker and nothing is counted");
}

/* Is somebody looking after the partitions? */
static void
check_worker(FunctionCallInfo fcinfo)
{
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	int64		beat;
	bool		running;

	if (entry == NULL)
	{
		put_check(fcinfo, "worker", "warning",
				  "Call idem_maintain() regularly, from pg_cron say.",
				  "there is no worker without shared_preload_libraries");
		return;
	}
	SpinLockAcquire(&shmem_state->latch_lock);
	running = shmem_state->launcher != NULL;
	SpinLockRelease(&shmem_state->latch_lock);
	beat = shmem_state->launcher_beat;

	if (!running)
		put_check(fcinfo, "worker", "problem",
				  "See the server's log; raise max_worker_processes if it says that there are too many background workers.",
				  beat == 0 ? "the launcher has not started"
				  : psprintf("the launcher ended %.0f s ago", seconds_since(beat)));
	else if (shmem_state->starved_since != 0)
		put_check(fcinfo, "worker", "problem", "Raise max_worker_processes.",
				  psprintf("no slot for a worker for %.0f s",
						   seconds_since(shmem_state->starved_since)));
	else if (seconds_since(beat) > 3 * idemq_naptime + 10)
		put_check(fcinfo, "worker", "problem",
				  "See pg_stat_activity for what the idemq worker is doing.",
				  psprintf("the launcher has been waiting for a worker for %.0f s",
						   seconds_since(beat)));
	else if (entry->error[0] != '\0')
		put_check(fcinfo, "worker", "problem", "See the server's log.",
				  psprintf("last round failed: %s", entry->error));
	else if (entry->round_ended == 0)
		put_check(fcinfo, "worker", "ok", NULL,
				  pg_atomic_read_u32(&entry->in_use) == InvalidOid
				  ? "nothing was claimed in this database since the server started"
				  : "the first round is about to begin");
	else
		put_check(fcinfo, "worker", "ok", NULL,
				  psprintf("last round %.0f s ago, took %.0f ms",
						   seconds_since(entry->round_ended),
						   (entry->round_ended - entry->round_started) / 1000.0));
}

/* Are there partitions for the time to come? */
static void
check_runway(FunctionCallInfo fcinfo, const LeafSet *set, TimestampTz trusted)
{
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	TimestampTz end = DT_NOBEGIN;
	double		left;

	for (int i = 0; i < set->nleaves; i++)
	{
		const Leaf *leaf = &set->leaves[i];

		if (leaf->writable && !leaf->permanent)
			end = Max(end, leaf->upper);
	}
	if (TIMESTAMP_IS_NOEND(end))
	{
		put_check(fcinfo, "runway", "ok", NULL, "the newest partition has no end");
		return;
	}
	left = TIMESTAMP_IS_NOBEGIN(end) ? -1 : (end - trusted) / (double) USECS_PER_SEC;
	if (left > 0)
		put_check(fcinfo, "runway", left < idemq_naptime ? "warning" : "ok",
				  left < idemq_naptime ? "Look at the check worker, or call idem_maintain()." : NULL,
				  psprintf("partitions for the next %.0f s", left));
	else if (entry != NULL && pg_atomic_read_u32(&entry->in_use) != set->parent)
		put_check(fcinfo, "runway", "ok", NULL,
				  "partitions are made as soon as something is claimed");
	else
		put_check(fcinfo, "runway", "problem",
				  "Look at the check worker, or call idem_maintain().",
				  TIMESTAMP_IS_NOBEGIN(end)
				  ? "there is only the permanent partition; claims are exact, but nothing expires"
				  : psprintf("the newest partition ended %.0f s ago; it takes the claims", -left));
}

/* Does what is past its retention go? */
static void
check_expiry(FunctionCallInfo fcinfo, const LeafSet *set, TimestampTz trusted)
{
	TimestampTz overdue = trusted - Max(10 * idemq_naptime, 60) * USECS_PER_SEC;
	int			due = 0;
	int			late = 0;

	for (int i = 0; i < set->nleaves; i++)
	{
		const Leaf *leaf = &set->leaves[i];

		if (leaf->permanent || !expire_is_due(set, leaf, trusted))
			continue;
		due++;
		if (expire_is_due(set, leaf, overdue))
			late++;
	}
	if (!idemq_expiry)
		put_check(fcinfo, "expiry", "warning", "Set idemq.expiry = on to let them go.",
				  psprintf("idemq.expiry is off: every key is kept; %d partitions are past their retention", due));
	else if (late > 0)
		put_check(fcinfo, "expiry", "warning",
				  "Look for old transactions (pg_stat_activity, pg_prepared_xacts) that have claimed in them or read them, and at the check worker.",
				  psprintf("%d partitions are past their retention and still there", late));
	else
		put_check(fcinfo, "expiry", "ok", NULL,
				  psprintf("%d partitions are past their retention", due));
}

/* A size, as one would write it in postgresql.conf. */
static char *
megabytes(double bytes)
{
	return psprintf("%.0fMB", ceil(bytes / (1024 * 1024)));
}

/* Do claims look into few partitions only? */
static void
check_filter(FunctionCallInfo fcinfo, const LeafSet *set)
{
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	FilterInfo	info;
	int			building = 0;
	int			uncovered = 0;
	int			leaves;
	double		leaves_a_day = 86400.0 / idemq_partition_interval;
	char	   *serves;

	filter_info(&info);
	if (info.bytes == 0)
	{
		put_check(fcinfo, "filter", "warning",
				  shmem_is_attached() ? "Set idemq.filter_memory and restart."
				  : "Add idemq to shared_preload_libraries and restart.",
				  "there is no filter: every claim looks into every partition");
		return;
	}
	for (int i = 0; i < set->nleaves; i++)
	{
		switch (filter_state(&set->leaves[i]))
		{
			case FILTER_NONE:
				uncovered++;
				break;
			case FILTER_BUILDING:
				building++;
				break;
			case FILTER_READY:
				break;
		}
	}

	/* as many leaves as there will be, once the retention has passed */
	leaves = Max(set->nleaves,
				 idemq_retention / idemq_partition_interval + idemq_premake + 2);
	serves = psprintf("%s serve %.3g keys a day at the present retention, the fullest partition holds about %.3g keys, a new key costs %.2g looks in vain",
					  megabytes(info.bytes),
					  filter_capacity(info.bytes, leaves) * leaves_a_day,
					  info.fullest, info.false_looks);
	if (uncovered > 0 && info.full)
		put_check(fcinfo, "filter", "warning",
				  psprintf("The filter covers %d partitions, of all databases together; set a longer idemq.partition_interval.",
						   FILTER_LEAVES),
				  psprintf("%d of %d partitions, the oldest, are not covered and looked into by every claim; %s",
						   uncovered, set->nleaves, serves));
	else if (filter_bytes_for(info.fullest, leaves) > info.bytes)
		put_check(fcinfo, "filter", "warning",
				  psprintf("Set idemq.filter_memory = %s and restart.",
						   megabytes(filter_bytes_for(info.fullest, leaves))),
				  psprintf("the filter is too small for the present rate: %s", serves));
	else if (uncovered > 0 && building == 0 && entry != NULL &&
			 pg_atomic_read_u32(&entry->in_use) == InvalidOid)
		put_check(fcinfo, "filter", "ok", NULL,
				  psprintf("to be built once something is claimed in this database; %s", serves));
	else if (uncovered > 0 && building == 0)
		put_check(fcinfo, "filter", "warning",
				  "It is built by the worker, or by idem_maintain(); if it stays so, see idemq.partitions, and that each partition has its trigger filter_row, ENABLE ALWAYS.",
				  psprintf("%d of %d partitions are not covered and looked into by every claim; %s",
						   uncovered, set->nleaves, serves));
	else if (building > 0)
		put_check(fcinfo, "filter", "ok", NULL,
				  psprintf("being built for %d of %d partitions; %s",
						   building + uncovered, set->nleaves, serves));
	else
		put_check(fcinfo, "filter", "ok", NULL, serves);
}

/* Can the clock be believed? */
static void
check_clock(FunctionCallInfo fcinfo, const LeafSet *set, TimestampTz trusted)
{
	TimestampTz wall = clock_wall();
	double		lag = (wall - trusted) / (double) USECS_PER_SEC;

	if (!set->base.known)
		put_check(fcinfo, "clock", "ok", NULL, "no maintenance round has noted the time yet");
	else if (wall - trusted > CLOCK_LAG)
		put_check(fcinfo, "clock", "problem",
				  "If the clock is right now, run SELECT idemq.accept_clock().",
				  psprintf("the clock went %.0f s further than the time that passed; partitions are made and dropped by the time that passed", lag));
	else if (trusted - wall > CLOCK_LAG)
		put_check(fcinfo, "clock", "warning",
				  "If the clock is right now, run SELECT idemq.accept_clock().",
				  psprintf("the clock went back by %.0f s; keys are stamped with the time that passed", -lag));
	else
		put_check(fcinfo, "clock", "ok", NULL,
				  psprintf("the clock agrees with the time that passed to %.1f s", fabs(lag)));
}

/* Is the one that makes the partitions there? */
static void
check_partition_manager(FunctionCallInfo fcinfo)
{
	if (idemq_partition_manager == MANAGER_BUILTIN)
		put_check(fcinfo, "partition_manager", "ok", NULL, "builtin");
	else if (!OidIsValid(get_extension_oid("pg_partman", true)))
		put_check(fcinfo, "partition_manager", "problem",
				  "Run CREATE EXTENSION pg_partman, or set idemq.partition_manager = builtin.",
				  "idemq.partition_manager is pg_partman, which is not installed in this database");
	else
		put_check(fcinfo, "partition_manager", "ok", NULL, "pg_partman");
}

/* idem_status() */
Datum
idem_status(PG_FUNCTION_ARGS)
{
	LeafSet    *set;
	TimestampTz trusted;

	InitMaterializedSRF(fcinfo, 0);
	set = catalog_leaves();
	trusted = clock_trusted(&set->base, guc_retention());
	check_preload(fcinfo);
	check_worker(fcinfo);
	check_runway(fcinfo, set, trusted);
	check_expiry(fcinfo, set, trusted);
	check_filter(fcinfo, set);
	status_outbox(fcinfo, put_check);
	check_clock(fcinfo, set, trusted);
	check_partition_manager(fcinfo);
	return (Datum) 0;
}

/* Put one partition into the result. */
static void
put_partition(FunctionCallInfo fcinfo, Oid parent, Oid leaf, TimestampTz lower,
			  TimestampTz upper, const char *state, const char *filter)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[PARTITIONS_COLUMNS];
	bool		isnull[PARTITIONS_COLUMNS] = {0};

	values[0] = ObjectIdGetDatum(parent);
	values[1] = ObjectIdGetDatum(leaf);
	values[2] = TimestampTzGetDatum(lower);
	values[3] = TimestampTzGetDatum(upper);
	values[4] = CStringGetTextDatum(state);
	values[5] = CStringGetTextDatum(filter);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/* Those of idemq.processed. */
static void
put_processed(FunctionCallInfo fcinfo, const LeafSet *set, TimestampTz trusted, TimestampTz stamp)
{
	static const char *const filter_names[] = {
		[FILTER_NONE] = "none",
		[FILTER_BUILDING] = "building",
		[FILTER_READY] = "ready",
	};

	for (int i = 0; i < set->nleaves; i++)
	{
		const Leaf *leaf = &set->leaves[i];
		const char *state = "closed";

		if (leaf->permanent)
			state = "permanent";
		else if (catalog_leaf_for(set, stamp) == leaf)
			state = "current";
		else if (leaf->lower > stamp)
			state = "ahead";
		else if (expire_is_due(set, leaf, trusted))
			state = "expired";
		put_partition(fcinfo, set->parent, leaf->oid, leaf->lower, leaf->upper,
					  state, filter_names[filter_state(leaf)]);
	}
}

/* Those of idemq.outbox. */
static void
put_outbox(FunctionCallInfo fcinfo, TimestampTz trusted, TimestampTz stamp)
{
	Spans		spans;

	(void) parent_spans(&parent_outbox, true, &spans);
	for (int i = 0; i < spans.n; i++)
	{
		const Span *span = &spans.span[i];
		const char *state = "closed";

		if (span->permanent)
			state = "permanent";
		else if (parent_span_for(&spans, stamp) == span)
			state = "current";
		else if (span->lower > stamp)
			state = "ahead";
		else if (retention_is_due(&spans, span, trusted, stamp))
			state = "expired";
		put_partition(fcinfo, spans.parent, span->oid, span->lower, span->upper, state, "none");
	}
}

/* idemq._partitions(): parent, leaf, lower, upper, state, filter */
Datum
idemq_partitions(PG_FUNCTION_ARGS)
{
	LeafSet    *set;
	TimestampTz trusted;
	TimestampTz stamp;

	InitMaterializedSRF(fcinfo, 0);
	set = catalog_leaves();
	trusted = clock_trusted(&set->base, guc_retention());
	stamp = Max(clock_wall(), clock_floor(&set->base));
	put_processed(fcinfo, set, trusted, stamp);
	put_outbox(fcinfo, trusted, stamp);
	return (Datum) 0;
}
