/*-------------------------------------------------------------------------
 *
 * consumer.c
 *	  The consumers of the outbox, and what they want.
 *
 *-------------------------------------------------------------------------
 */
#include "consumer.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "guc.h"
#include "outbox.h"
#include "direct.h"
#include "spi_plan.h"

/* The columns of idemq.subscriptions. */
enum
{
	COL_CONSUMER,
	COL_NUMBER,
	COL_AGGREGATETYPES,
	COL_SHARDS,
	COL_NEXT_SHARDS,
	COL_BARRIER,
	COL_BARRIER_NEXT,
	COL_BARRIER_SEQ,
	COL_ORDERED,
	COL_MAX_ATTEMPTS,
	COL_RETRY_LADDER,
	NCOLUMNS,
};

/* The aggregatetypes that a consumer wants. */
static void
read_types(const DirectScan *row, Consumer *consumer)
{
	Datum	   *elements;
	bool	   *nulls;

	consumer->ntypes = -1;
	if (direct_is_null(row, COL_AGGREGATETYPES))
		return;
	deconstruct_array(DatumGetArrayTypePCopy(direct_value(row, COL_AGGREGATETYPES)),
					  TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &consumer->ntypes);
	consumer->types = palloc(sizeof(text *) * Max(consumer->ntypes, 1));
	for (int i = 0; i < consumer->ntypes; i++)
		consumer->types[i] = DatumGetTextPP(elements[i]);
}

/* A row, as a consumer. */
static Consumer *
read_consumer(const DirectScan *row)
{
	Consumer   *consumer = palloc0(sizeof(Consumer));

	consumer->name = TextDatumGetCString(direct_value(row, COL_CONSUMER));
	consumer->number = DatumGetInt32(direct_value(row, COL_NUMBER));
	read_types(row, consumer);
	consumer->shards = DatumGetInt32(direct_value(row, COL_SHARDS));
	consumer->next_shards = DatumGetInt32(direct_value(row, COL_NEXT_SHARDS));
	if (!direct_is_null(row, COL_BARRIER))
	{
		consumer->barrier.snapshot = (StoredSnapshot *) PG_DETOAST_DATUM_COPY(direct_value(row, COL_BARRIER));
		consumer->barrier.next = DatumGetInt64(direct_value(row, COL_BARRIER_NEXT));
		consumer->barrier.seq = DatumGetInt64(direct_value(row, COL_BARRIER_SEQ));
		consumer->barrier.top = PG_INT64_MAX;
		consumer->barrier.lsn = GetXLogInsertRecPtr();
	}
	consumer->ordered = DatumGetBool(direct_value(row, COL_ORDERED));
	consumer->max_attempts = DatumGetInt32(direct_value(row, COL_MAX_ATTEMPTS));
	consumer->nladder = guc_parse_ladder(TextDatumGetCString(direct_value(row, COL_RETRY_LADDER)),
										 &consumer->ladder);
	return consumer;
}

/* The consumer whose row an index has under a key, or NULL. */
static Consumer *
find_by(const char *index, DirectKey key)
{
	Consumer   *consumer = NULL;
	DirectScan	row;

	direct_open(&row, "subscriptions", NCOLUMNS, index, 1, &key);
	if (direct_next(&row, ForwardScanDirection))
		consumer = read_consumer(&row);
	direct_close(&row);
	return consumer;
}

/* The consumer of a name. */
Consumer *
consumer_find(const char *name)
{
	DirectKey	key = DIRECT_EQUAL(F_TEXTEQ, CStringGetTextDatum(name));
	Consumer   *consumer = find_by("subscriptions_pkey", key);

	if (consumer == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("consumer \"%s\" does not exist", name),
				 errhint("Create it with outbox_subscribe().")));
	return consumer;
}

/* The consumer of a number, or NULL. */
Consumer *
consumer_by_number(int32 number)
{
	DirectKey	key = DIRECT_EQUAL(F_INT4EQ, Int32GetDatum(number));

	return find_by("subscriptions_number_key", key);
}

/* Is a position one of this database? */
bool
consumer_is_home(const ShardState *state)
{
	return state->norigins > 0 && state->origins[state->norigins - 1] == outbox_origin();
}

/* See that it is. */
void
consumer_require_home(const Consumer *consumer, const ShardState *state)
{
	if (consumer_is_home(state))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the position of consumer \"%s\" is that of another database", consumer->name),
			 errdetail("This is a copy, or it was restored, or upgraded."),
			 errhint("Decide with outbox_adopt(): 'continue' after pg_upgrade, 'replay' to deliver what was not delivered there, 'skip' not to.")));
}

/* From now on the xids of this database alone can be judged. */
void
consumer_go_home(ShardState *state)
{
	state->norigins = 1;
	state->origins = palloc(sizeof(int64));
	state->origins[0] = outbox_origin();
	state->replaying = false;
}

/* Go to a moment; what was handed out or parked is forgotten. */
void
consumer_set_position(ShardState *state, const Moment *moment)
{
	ledger_clear(state);
	state->start = *moment;
}

/* A column of the row that was read. */
static Datum
column(int number)
{
	bool		isnull;

	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, number, &isnull);
}

/*
 * The position of a shard that has none: the oldest checkpoint, so that nothing is
 * missed.
 */
void
consumer_find_position(const Consumer *consumer, int32 shard, ShardState *state)
{
	static SpiPlan plan = SPI_PLAN_NO_ARGS("SELECT origin, snapshot, next_xid, last_seq FROM idemq.checkpoints ORDER BY taken_at LIMIT 1");

	memset(state, 0, sizeof(ShardState));
	state->turn = ledger_turn();
	state->consumer = consumer->number;
	state->shard = shard;
	state->norigins = 1;
	state->origins = palloc(sizeof(int64));
	state->next_place = 1;
	state->next_due = DT_NOEND;
	if (spi_plan_run(&plan, NULL, NULL, SPI_OK_SELECT) == 0)
	{
		state->origins[0] = outbox_origin();
		moment_of_nothing(&state->start);
		return;
	}
	state->origins[0] = DatumGetInt64(column(1));
	state->start.snapshot = (StoredSnapshot *) PG_DETOAST_DATUM_COPY(column(2));
	state->start.next = DatumGetInt64(column(3));
	state->start.seq = DatumGetInt64(column(4));
	state->start.top = state->start.seq;
}

/* Is an event for this consumer? */
bool
consumer_wants(const Consumer *consumer, const Event *event)
{
	Datum		value = event->values[LOG_AGGREGATETYPE];
	bool		wants = false;
	text	   *type;

	if (consumer->ntypes < 0)
		return true;
	type = DatumGetTextPP(value);
	for (int i = 0; i < consumer->ntypes && !wants; i++)
	{
		text	   *wanted = consumer->types[i];

		wants = VARSIZE_ANY_EXHDR(wanted) == VARSIZE_ANY_EXHDR(type) &&
			memcmp(VARDATA_ANY(wanted), VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type)) == 0;
	}
	if (PointerGetDatum(type) != value)
		pfree(type);
	return wants;
}

/* Positions are read and written with snapshots that are newer than a lock. */
void
consumer_require_fresh_snapshot(const char *function)
{
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s needs the isolation level READ COMMITTED", function),
				 errhint("BEGIN ISOLATION LEVEL READ COMMITTED: with an older snapshot it would read yesterday's position.")));
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}
