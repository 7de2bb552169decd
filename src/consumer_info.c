/*-------------------------------------------------------------------------
 *
 * consumer_info.c
 *	  How far the consumers are: what idemq.consumers shows.
 *
 * Takes no lock of ours and writes nothing, so it works on a standby, and while
 * a shard is being changed: then it shows what is committed.  How much
 * waits is estimated from the numbers that were drawn.  How old the first of that is,
 * is looked up: a probe into each leaf, and some rows on for a consumer that
 * wants few of them.
 *
 *-------------------------------------------------------------------------
 */
#include "consumer_info.h"

#include "catalog/pg_type_d.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "event.h"
#include "lease.h"
#include "outbox.h"
#include "spi_plan.h"
#include "stats.h"
#include "window.h"

PG_FUNCTION_INFO_V1(idemq_consumers);

#define INFO_COLUMNS	16

/* A look at what waits goes that many rows far. */
#define ROWS_TO_LOOK_AT	1000

/* A count of the only row of a result. */
static int64
count_of(int number)
{
	bool		isnull;

	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, number,
									   &isnull));
}

/* Something that is not dealt with. */
static void
note_oldest(ConsumerInfo *info, const LogRow *row)
{
	bool		isnull;
	TimestampTz created_at = DatumGetTimestampTz(logleaf_value(row, LOG_CREATED_AT, &isnull));

	if (created_at >= info->oldest)
		return;
	info->oldest = created_at;
	info->leaf = RelationGetRelid(row->leaf->rel);
}

/* What was handed out, or has come back; the first of the log's events, or 0. */
static int64
look_at_batches(ConsumerInfo *info, TimestampTz now)
{
	int64		first = 0;
	ListCell   *cell;

	foreach(cell, ledger_open_batches(&info->state))
	{
		Batch	   *batch = lfirst(cell);

		if (lease_is_valid(batch, now))
		{
			info->expiries = Max(info->expiries, batch->expiries);
			info->in_flight += batch->nevents;
			if (info->lease == NULL || info->lease->until < batch->until)
				info->lease = batch;
		}
		else
		{
			info->expiries = Max(info->expiries, batch->expiries + (batch->token != 0 ? 1 : 0));
			info->lag_events += batch->nevents;
		}
		if (!batch->parked && (first == 0 || batch->events[0] < first))
			first = batch->events[0];
	}
	return first;
}

/* What lies behind the position. */
static void
look_behind(ConsumerInfo *info, int64 first_event, int64 last_number)
{
	const ShardState *state = &info->state;
	Moment		end;
	Window	   *window;
	WindowResult result;
	LogRow		row;
	int64		after = state->open ? state->last_seq : 0;
	int64		from = Max(after, state->start.seq);

	/* whatever a snapshot of now shows */
	moment_of_everything(&end);
	window = window_open(&state->start, &end, after,
						 state->norigins - (state->replaying ? 1 : 0), state->origins,
						 ROWS_TO_LOOK_AT);
	while ((result = window_next(window, &row)) == WINDOW_ROW)
	{
		Event		event;

		event_from_row(&row, &event);
		if (consumer_wants(info->consumer, &event) &&
			event_shard(&event, info->consumer->shards) == state->shard)
		{
			note_oldest(info, &row);
			from = Max(from, event.number - 1);
			break;
		}
	}
	if (result != WINDOW_EMPTY || state->replaying)
		info->lag_events += Max((last_number - from + info->consumer->shards - 1) /
								info->consumer->shards, 1);
	if (result == WINDOW_PAUSE &&
		logleaf_find(window_leaves(window), window_snapshot(window), window_position(window), &row))
	{
		note_oldest(info, &row);
		ExecDropSingleTupleTableSlot(row.slot);
	}
	if (first_event != 0 &&
		logleaf_find(window_leaves(window), window_snapshot(window), first_event, &row))
	{
		note_oldest(info, &row);
		ExecDropSingleTupleTableSlot(row.slot);
	}
	window_close(window);
}

/* What is parked. */
static void
look_at_parked(ConsumerInfo *info)
{
	static SpiPlan plan = SPI_PLAN("SELECT count(DISTINCT p.place) FILTER (WHERE p.state = 'retry'), count(DISTINCT p.place) FILTER (WHERE p.state = 'blocked' AND p.due IS NULL),"
								   " count(DISTINCT p.place) FILTER (WHERE p.alone)"
								   " FROM idemq._parked AS p WHERE p.consumer = $1 AND p.shard = $2 AND p.place >= $3"
								   " AND p.state <> 'done'"
								   " AND p.entry = (SELECT max(d.entry) FROM idemq._parked AS d WHERE d.consumer = $1 AND d.shard = $2"
								   " AND d.place = p.place)",
								   3, INT4OID, INT4OID, INT8OID);
	Datum		args[] = {Int32GetDatum(info->consumer->number), Int32GetDatum(info->state.shard),
	Int64GetDatum(info->state.parked_from)};

	if (info->state.parked_events == 0)
		return;
	spi_plan_run(&plan, args, NULL, SPI_OK_SELECT);
	info->retrying = count_of(1);
	info->blocked = count_of(2);
	info->suspects = count_of(3);
}

/* One shard. */
static ConsumerInfo *
look_at_shard(Consumer *consumer, int32 shard, int64 last_number)
{
	ConsumerInfo *info = palloc0(sizeof(ConsumerInfo));
	ShardState *state = &info->state;
	int64		first;

	info->consumer = consumer;
	info->oldest = DT_NOEND;
	if (!ledger_read(consumer->number, shard, state))
		consumer_find_position(consumer, shard, state);
	info->at_home = state->origins[state->norigins - 1] == outbox_origin();
	first = look_at_batches(info, clock_wall());
	look_behind(info, first, last_number);
	look_at_parked(info);
	return info;
}

/* All shards of all consumers, as ConsumerInfo; the caller has called spi_plan_enter(). */
List *
consumer_info_collect(void)
{
	static SpiPlan plan = SPI_PLAN_NO_ARGS("SELECT number FROM idemq.subscriptions ORDER BY consumer");
	List	   *infos = NIL;
	SPITupleTable *table;
	int64		last_number;
	int			n;

	last_number = moment_last_number();
	n = spi_plan_run(&plan, NULL, NULL, SPI_OK_SELECT);
	table = SPI_tuptable;
	for (int i = 0; i < n; i++)
	{
		bool		isnull;
		Datum		number = SPI_getbinval(table->vals[i], table->tupdesc, 1, &isnull);
		Consumer   *consumer = consumer_by_number(DatumGetInt32(number));

		for (int32 shard = 0; consumer != NULL && shard < consumer->shards; shard++)
			infos = lappend(infos, look_at_shard(consumer, shard, last_number));
	}
	return infos;
}

/* idemq._consumers(): what the view shows, but for who holds a lock */
Datum
idemq_consumers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TimestampTz now = clock_wall();
	SpiOwner	owner;
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	spi_plan_enter(&owner);
	foreach(cell, consumer_info_collect())
	{
		ConsumerInfo *info = lfirst(cell);
		const ShardState *state = &info->state;
		int32		number = info->consumer->number;
		Datum		values[INFO_COLUMNS];
		bool		isnull[INFO_COLUMNS] = {0};
		static const ConsumerStat stats[] = {
			CONSUMER_STAT_DELIVERED, CONSUMER_STAT_ACKED, CONSUMER_STAT_RETRIED, CONSUMER_STAT_DEAD
		};

		values[0] = CStringGetTextDatum(info->consumer->name);
		values[1] = Int32GetDatum(number);
		values[2] = Int32GetDatum(state->shard);
		values[3] = BoolGetDatum(info->consumer->ordered);
		values[4] = Int64GetDatum(state->open ? state->last_seq : state->start.seq);
		values[5] = Int64GetDatum(info->lag_events);
		values[6] = DirectFunctionCall2(timestamp_mi, TimestampTzGetDatum(now),
										TimestampTzGetDatum(Min(info->oldest, now)));
		for (int i = 0; i < lengthof(stats); i++)
		{
			values[7 + i] = Int64GetDatum(stats_of_consumer(number, state->shard, stats[i]));
			isnull[7 + i] = !shmem_is_attached();
		}
		values[11] = Int64GetDatum(info->in_flight);
		values[12] = Int64GetDatum(info->retrying);
		values[13] = Int64GetDatum(info->blocked);
		values[14] = TimestampTzGetDatum(state->written_at);
		isnull[14] = state->written_at == 0;
		isnull[15] = info->lease == NULL;
		if (!isnull[15])
			values[15] = CStringGetTextDatum(psprintf("%s until %s", info->lease->role,
													  timestamptz_to_str(info->lease->until)));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	spi_plan_leave(&owner);
	return (Datum) 0;
}
