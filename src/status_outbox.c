/*-------------------------------------------------------------------------
 *
 * status_outbox.c
 *	  The checks of idem_status() that are about the outbox: consumers, dead_letters.
 *
 *-------------------------------------------------------------------------
 */
#include "status_outbox.h"

#include "catalog/pg_type_d.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "consumer_info.h"
#include "guc.h"
#include "parent.h"
#include "shmem.h"
#include "spi_plan.h"

/* a consumer that has something to do and did nothing for that long has stopped */
#define STOPPED_AFTER	(5 * 60 * USECS_PER_SEC)

/* leases of one batch that ran out in a row */
#define MANY_EXPIRIES	2

/* details name that many of them */
#define MAX_NAMED		10

/* What is wrong with the consumers: one text for each, and how many. */
typedef struct Findings
{
	StringInfoData text;
	int			n;
	const Consumer *last;		/* it has been named */
} Findings;

/* A value of the only row; 0 for null. */
static Datum
column(int number, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, number, isnull);
}

/* Seconds between two times. */
static double
seconds(TimestampTz from, TimestampTz to)
{
	return Max(to - from, 0) / (double) USECS_PER_SEC;
}

/* Name a consumer. */
static void
add_finding(Findings *findings, const char *text)
{
	if (findings->n++ == 0)
		initStringInfo(&findings->text);
	if (findings->n <= MAX_NAMED)
		appendStringInfo(&findings->text, "%s%s", findings->n == 1 ? "" : "; ", text);
	else if (findings->n == MAX_NAMED + 1)
		appendStringInfoString(&findings->text, "; and others");
}

/* The bytes of the partitions from one on, which whoever is there holds. */
static int64
bytes_from(Oid leaf)
{
	static SpiPlan plan = SPI_PLAN("SELECT coalesce(sum(pg_total_relation_size(l)), 0)::int8 FROM unnest($1) AS l",
								   1, OIDARRAYOID);
	Spans		spans;
	TimestampTz from = DT_NOBEGIN;
	Datum	   *elements;
	Datum		args[1];
	bool		isnull;
	int			n = 0;

	(void) parent_spans(&parent_outbox, true, &spans);
	for (int i = 0; i < spans.n; i++)
	{
		if (spans.span[i].oid == leaf)
			from = spans.span[i].lower;
	}
	elements = palloc(sizeof(Datum) * Max(spans.n, 1));
	for (int i = 0; i < spans.n; i++)
	{
		if (spans.span[i].lower >= from)
			elements[n++] = ObjectIdGetDatum(spans.span[i].oid);
	}
	args[0] = PointerGetDatum(construct_array(elements, n, OIDOID, sizeof(Oid), true, TYPALIGN_INT));
	spi_plan_run(&plan, args, NULL, SPI_OK_SELECT);
	return DatumGetInt64(column(1, &isnull));
}

/* Is there any event? */
static bool
has_events(void)
{
	static SpiPlan plan = SPI_PLAN_NO_ARGS("SELECT 1 FROM idemq.outbox LIMIT 1");

	return spi_plan_run(&plan, NULL, NULL, SPI_OK_SELECT) > 0;
}

/* Has a consumer stopped? */
static void
find_stopped(Findings *findings, const ConsumerInfo *info, TimestampTz now)
{
	if (TIMESTAMP_IS_NOEND(info->oldest) || now - info->oldest < STOPPED_AFTER ||
		now - info->state.written_at < STOPPED_AFTER || info->lease != NULL)
		return;
	add_finding(findings, psprintf("consumer \"%s\", shard %d, has stopped: no progress for %.0f s, its lag is %.0f s and about " INT64_FORMAT " events, it holds " INT64_FORMAT " kB of the log",
								   info->consumer->name, info->state.shard,
								   seconds(info->state.written_at, now), seconds(info->oldest, now),
								   info->lag_events, (bytes_from(info->leaf) + 1023) / 1024));
}

/* Is somebody reading what is written? */
static void
check_consumers(FunctionCallInfo fcinfo, StatusPut put)
{
	TimestampTz now = clock_wall();
	List	   *infos = consumer_info_collect();
	Findings	strangers = {0};
	Findings	stopped = {0};
	Findings	expiring = {0};
	double		lag = 0;
	ListCell   *cell;

	foreach(cell, infos)
	{
		ConsumerInfo *info = lfirst(cell);

		if (!info->at_home)
		{
			if (strangers.last != info->consumer)
				add_finding(&strangers, psprintf("the position of consumer \"%s\" is that of another database",
												 info->consumer->name));
			strangers.last = info->consumer;
			continue;
		}
		find_stopped(&stopped, info, now);
		if (info->expiries >= MANY_EXPIRIES)
			add_finding(&expiring, psprintf("consumer \"%s\", shard %d: leases of the same events have run out %d times in a row",
											info->consumer->name, info->state.shard, info->expiries));
		if (info->suspects > 0)
			add_finding(&expiring, psprintf("consumer \"%s\", shard %d: " INT64_FORMAT " events have let too many leases run out, see idemq.parked",
											info->consumer->name, info->state.shard, info->suspects));
		if (!TIMESTAMP_IS_NOEND(info->oldest))
			lag = Max(lag, seconds(info->oldest, now));
	}

	if (strangers.n > 0)
		put(fcinfo, "consumers", "problem",
			"Decide with outbox_adopt(): 'continue' after pg_upgrade, 'replay' to deliver what was not delivered there, 'skip' not to.",
			strangers.text.data);
	else if (stopped.n > 0)
		put(fcinfo, "consumers", "warning",
			"Start its workers, look at held_by in idemq.consumers, or remove it with outbox_unsubscribe().",
			stopped.text.data);
	else if (expiring.n > 0)
		put(fcinfo, "consumers", "warning",
			"If workers die, see their logs; if the work takes longer than the lease, ask for a longer one or call outbox_extend() in between.",
			expiring.text.data);
	else if (infos == NIL && has_events())
		put(fcinfo, "consumers", "warning",
			"Create one with outbox_subscribe(), unless something else reads the table.",
			psprintf("there are events and no consumer; they go after idemq.outbox_retention, %d s",
					 idemq_outbox_retention));
	else if (infos == NIL)
		put(fcinfo, "consumers", "ok", NULL, "there is no consumer, and no event");
	else
		put(fcinfo, "consumers", "ok", NULL,
			psprintf("%d shards of consumers, the largest lag is %.0f s", list_length(infos), lag));
}

/* Are there events that nobody could deliver? */
static void
check_dead_letters(FunctionCallInfo fcinfo, StatusPut put)
{
	static SpiPlan plan = SPI_PLAN_NO_ARGS("SELECT count(*), min(died_at) FROM idemq.dead_letters WHERE replayed_at IS NULL");
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	int64		n;
	int64		aged_out = 0;
	TimestampTz oldest;
	bool		isnull;
	StringInfoData text;

	spi_plan_run(&plan, NULL, NULL, SPI_OK_SELECT);
	n = DatumGetInt64(column(1, &isnull));
	oldest = DatumGetTimestampTz(column(2, &isnull));
	if (entry != NULL)
		aged_out = pg_atomic_read_u64(&entry->dead_aged_out);
	if (n == 0 && aged_out == 0)
	{
		put(fcinfo, "dead_letters", "ok", NULL, "there are none");
		return;
	}
	initStringInfo(&text);
	if (n == 0)
		appendStringInfoString(&text, "there are none");
	else
		appendStringInfo(&text, INT64_FORMAT " dead letters, the oldest died %.0f s ago",
						 n, seconds(oldest, clock_wall()));
	if (aged_out > 0)
		appendStringInfo(&text, "; " INT64_FORMAT " went by idemq.dead_retention since the server started", aged_out);
	put(fcinfo, "dead_letters", "warning",
		"See idemq.dead_letters; send them again with dead_letter_replay(), or throw them away with dead_letter_discard().",
		text.data);
}

/* The checks that are about the outbox. */
void
status_outbox(FunctionCallInfo fcinfo, StatusPut put)
{
	SpiOwner	owner;

	spi_plan_enter(&owner);
	check_consumers(fcinfo, put);
	check_dead_letters(fcinfo, put);
	spi_plan_leave(&owner);
}
