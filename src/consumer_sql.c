/*-------------------------------------------------------------------------
 *
 * consumer_sql.c
 *	  Administration of consumers.
 *
 * Locking: who makes a position takes the lock of the log, shared, so that no
 * partition that the position needs is taken away meanwhile (retention.c); then
 * the locks of all shards, in their order.
 *
 *-------------------------------------------------------------------------
 */
#include "idemq.h"

#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "consumer.h"
#include "grants.h"
#include "guc.h"
#include "lease.h"
#include "lock.h"
#include "outbox.h"
#include "parked.h"
#include "shmem.h"
#include "spi_plan.h"
#include "xactstate.h"

PG_FUNCTION_INFO_V1(outbox_subscribe);
PG_FUNCTION_INFO_V1(outbox_alter);
PG_FUNCTION_INFO_V1(outbox_unsubscribe);
PG_FUNCTION_INFO_V1(outbox_seek);
PG_FUNCTION_INFO_V1(outbox_adopt);

/* More workers than that share no consumer. */
#define MAX_SHARDS		1024
#define MAX_NAME		255

/* Keep the partitions of the log. */
static void
keep_log(void)
{
	LOCKTAG		tag;

	lock_tag(&tag, IDEMQ_LOCK_LOG, 0);
	(void) lock_take(&tag, ShareLock, true);
}

/* What every function here begins with; returns the consumer's name. */
static char *
begin(FunctionCallInfo fcinfo, const char *function, SpiOwner *owner)
{
	char	   *name;

	consumer_require_fresh_snapshot(function);
	grants_require_admin(function, fcinfo->flinfo->fn_oid);
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("consumer must not be null")));
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("consumer must not be empty"),
				 errhint("Name it after what it does, for example 'billing'.")));
	if (strlen(name) > MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("name of a consumer is longer than %d bytes", MAX_NAME)));
	spi_plan_enter(owner);
	return name;
}

/* Check aggregatetypes; true if they stand for all. */
static bool
check_types(ArrayType *types)
{
	if (types == NULL || ArrayGetNItems(ARR_NDIM(types), ARR_DIMS(types)) == 0)
		return true;
	if (array_contains_nulls(types))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("aggregatetypes must not contain nulls"),
				 errhint("NULL instead of the array stands for all types.")));
	if (ARR_NDIM(types) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("aggregatetypes must be an array of one dimension")));
	return false;
}

/* Check how many shards are wanted. */
static void
check_shards(int32 shards)
{
	if (shards < 1 || shards > MAX_SHARDS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("shards must be between 1 and %d", MAX_SHARDS)));
}

/* Check a number of attempts. */
static void
check_attempts(int32 attempts)
{
	if (attempts < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_attempts must be at least 1")));
}

/* What was written before this was another database is older: it is read first. */
static void
add_older_origins(ShardState *state)
{
	static SpiPlan plan = SPI_PLAN("SELECT DISTINCT origin FROM idemq.checkpoints WHERE origin <> $1", 1, INT8OID);
	int64		own = outbox_origin();
	Datum		args[] = {Int64GetDatum(own)};
	uint64		n = spi_plan_run(&plan, args, NULL, SPI_OK_SELECT);

	state->norigins = n + 1;
	state->origins = palloc(sizeof(int64) * state->norigins);
	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;

		state->origins[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i],
														SPI_tuptable->tupdesc, 1, &isnull));
	}
	state->origins[n] = own;
	state->replaying = n > 0;
}

/* outbox_subscribe(consumer, aggregatetypes, start_at, shards, ordered, max_attempts, retry_ladder) */
Datum
outbox_subscribe(PG_FUNCTION_ARGS)
{
	static SpiPlan plan = SPI_PLAN("INSERT INTO idemq.subscriptions (consumer, number, aggregatetypes, shards, ordered,"
								   " max_attempts, retry_ladder, created_at)"
								   " VALUES ($1, nextval('idemq.subscription_number'), $2, $3, $4, $5, $6, $7)"
								   " ON CONFLICT (consumer) DO NOTHING",
								   7, TEXTOID, TEXTARRAYOID, INT4OID, BOOLOID, INT4OID, TEXTOID, TIMESTAMPTZOID);
	ArrayType  *types = PG_ARGISNULL(1) ? NULL : PG_GETARG_ARRAYTYPE_P(1);
	char	   *start_at = PG_ARGISNULL(2) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(2));
	int32		shards = PG_ARGISNULL(3) ? 0 : PG_GETARG_INT32(3);
	int32		attempts = PG_ARGISNULL(5) ? idemq_max_attempts : PG_GETARG_INT32(5);
	char	   *ladder = PG_ARGISNULL(6) ? idemq_retry_ladder : text_to_cstring(PG_GETARG_TEXT_PP(6));
	int64	   *steps;
	SpiOwner	owner;
	char	   *name = begin(fcinfo, "outbox_subscribe()", &owner);
	bool		earliest = strcmp(start_at, "earliest") == 0;
	Datum		args[7];
	char		nulls[8] = "       ";
	Consumer   *consumer;
	Moment		now;

	if (!earliest && strcmp(start_at, "now") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown start \"%s\"", start_at),
				 errhint("A consumer starts at 'now' or at the 'earliest' event that is kept.")));
	check_shards(shards);
	check_attempts(attempts);
	if (PG_ARGISNULL(4))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ordered must not be null")));
	(void) guc_parse_ladder(ladder, &steps);

	args[0] = CStringGetTextDatum(name);
	args[1] = PointerGetDatum(types);
	if (check_types(types))
		nulls[1] = 'n';
	args[2] = Int32GetDatum(shards);
	args[3] = PG_GETARG_DATUM(4);
	args[4] = Int32GetDatum(attempts);
	args[5] = CStringGetTextDatum(ladder);
	args[6] = TimestampTzGetDatum(clock_wall());
	keep_log();
	if (spi_plan_run(&plan, args, nulls, SPI_OK_INSERT) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("consumer \"%s\" exists already", name),
				 errhint("Change it with outbox_alter(), or move it with outbox_seek().")));

	consumer = consumer_find(name);
	ledger_lock_all(consumer->number, shards);
	if (earliest)
		moment_of_nothing(&now);
	else
		moment_take(&now);
	for (int32 shard = 0; shard < shards; shard++)
	{
		ShardState	state;

		consumer_find_position(consumer, shard, &state);
		consumer_go_home(&state);
		if (earliest)
			add_older_origins(&state);
		consumer_set_position(&state, &now);
		ledger_append(&state, NULL);
	}
	spi_plan_leave(&owner);
	PG_RETURN_VOID();
}

/* Open the shards of a consumer for changes. */
static Consumer *
hold_shards(char *name, ShardState **states)
{
	Consumer   *consumer = consumer_find(name);

	keep_log();
	for (;;)
	{
		Consumer   *again;

		ledger_lock_all(consumer->number, consumer->shards);
		again = consumer_find(name);
		if (again->number == consumer->number && again->shards <= consumer->shards)
			break;

		/* it was altered, or made anew, while we waited */
		consumer = again;
	}
	consumer = consumer_find(name);
	*states = palloc(sizeof(ShardState) * consumer->shards);
	for (int32 shard = 0; shard < consumer->shards; shard++)
	{
		if (!ledger_read(consumer->number, shard, &(*states)[shard]))
			consumer_find_position(consumer, shard, &(*states)[shard]);
	}
	return consumer;
}

/* Refuse to change what a worker relies on. */
static void
require_no_lease(const Consumer *consumer, const ShardState *states)
{
	for (int32 shard = 0; shard < consumer->shards; shard++)
	{
		ListCell   *cell;

		foreach(cell, ledger_open_batches(&states[shard]))
		{
			if (lease_is_valid(lfirst(cell), clock_wall()))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_IN_USE),
						 errmsg("consumer \"%s\" has a lease out", consumer->name),
						 errhint("Stop its workers, or wait until their leases are over.")));
		}
	}
}

/* outbox_alter(consumer, aggregatetypes, shards, ordered, max_attempts, retry_ladder) */
Datum
outbox_alter(PG_FUNCTION_ARGS)
{
	static SpiPlan plan = SPI_PLAN("UPDATE idemq.subscriptions SET aggregatetypes = $2, ordered = $3, max_attempts = $4,"
								   " retry_ladder = coalesce($5, retry_ladder), next_shards = $6, barrier = $7,"
								   " barrier_next = $8, barrier_seq = $9 WHERE number = $1",
								   9, INT4OID, TEXTARRAYOID, BOOLOID, INT4OID, TEXTOID, INT4OID, PG_SNAPSHOTOID,
								   XID8OID, INT8OID);
	SpiOwner	owner;
	char	   *name = begin(fcinfo, "outbox_alter()", &owner);
	ShardState *states;
	Consumer   *consumer = hold_shards(name, &states);
	bool		ordered = PG_ARGISNULL(3) ? consumer->ordered : PG_GETARG_BOOL(3);
	Datum		args[9] = {0};
	char		nulls[10] = "         ";
	int64	   *steps;

	args[0] = Int32GetDatum(consumer->number);
	if (PG_ARGISNULL(1))
	{
		if (consumer->ntypes < 0)
			nulls[1] = 'n';
		else
			args[1] = PointerGetDatum(construct_array((Datum *) consumer->types, consumer->ntypes,
													  TEXTOID, -1, false, TYPALIGN_INT));
	}
	else
	{
		args[1] = PG_GETARG_DATUM(1);
		if (check_types(PG_GETARG_ARRAYTYPE_P(1)))
			nulls[1] = 'n';
	}
	args[2] = BoolGetDatum(ordered);
	args[3] = PG_ARGISNULL(4) ? Int32GetDatum(consumer->max_attempts) : PG_GETARG_DATUM(4);
	check_attempts(DatumGetInt32(args[3]));
	if (PG_ARGISNULL(5))
		nulls[4] = 'n';
	else
	{
		args[4] = PG_GETARG_DATUM(5);
		(void) guc_parse_ladder(text_to_cstring(PG_GETARG_TEXT_PP(5)), &steps);
	}

	if (!PG_ARGISNULL(2) && PG_GETARG_INT32(2) != consumer->shards)
	{
		check_shards(PG_GETARG_INT32(2));
		require_no_lease(consumer, states);
		consumer->next_shards = PG_GETARG_INT32(2);
		moment_take(&consumer->barrier);
	}
	else if (!PG_ARGISNULL(2) && consumer->next_shards != 0)
		consumer->next_shards = 0;	/* back to what it was */
	if (consumer->next_shards != 0)
	{
		args[5] = Int32GetDatum(consumer->next_shards);
		args[6] = PointerGetDatum(consumer->barrier.snapshot);
		args[7] = Int64GetDatum(consumer->barrier.next);
		args[8] = Int64GetDatum(consumer->barrier.seq);
	}
	else
		memset(nulls + 5, 'n', 4);

	if (ordered != consumer->ordered)
	{
		require_no_lease(consumer, states);
		for (int32 shard = 0; shard < consumer->shards && !ordered; shard++)
		{
			if (states[shard].parked_events == 0)
				continue;
			parked_unblock_all(&states[shard]);
			parked_find_next_due(&states[shard]);
			ledger_append(&states[shard], NULL);
		}
	}
	spi_plan_run(&plan, args, nulls, SPI_OK_UPDATE);
	xactstate_tell();
	spi_plan_leave(&owner);
	PG_RETURN_VOID();
}

/* outbox_unsubscribe(consumer) */
Datum
outbox_unsubscribe(PG_FUNCTION_ARGS)
{
	static SpiPlan plan = SPI_PLAN("DELETE FROM idemq.subscriptions WHERE number = $1", 1, INT4OID);
	SpiOwner	owner;
	char	   *name = begin(fcinfo, "outbox_unsubscribe()", &owner);
	ShardState *states;
	Consumer   *consumer = hold_shards(name, &states);
	Datum		args[] = {Int32GetDatum(consumer->number)};

	spi_plan_run(&plan, args, NULL, SPI_OK_DELETE);
	shmem_forget_consumer(consumer->number);
	xactstate_tell();
	spi_plan_leave(&owner);
	PG_RETURN_VOID();
}

/*
 * The position was set, so the barrier that the present number of shards counts up
 * to, if there is one, may be behind it, or another database's: it is taken anew.
 */
static void
renew_barrier(const Consumer *consumer)
{
	static SpiPlan plan = SPI_PLAN("UPDATE idemq.subscriptions SET barrier = $2, barrier_next = $3, barrier_seq = $4"
								   " WHERE number = $1",
								   4, INT4OID, PG_SNAPSHOTOID, XID8OID, INT8OID);
	Moment		barrier;
	Datum		args[4];

	if (consumer->next_shards == 0)
		return;
	moment_take(&barrier);
	args[0] = Int32GetDatum(consumer->number);
	args[1] = PointerGetDatum(barrier.snapshot);
	args[2] = Int64GetDatum(barrier.next);
	args[3] = Int64GetDatum(barrier.seq);
	spi_plan_run(&plan, args, NULL, SPI_OK_UPDATE);
}

/* The last checkpoint before a time; false if there is none. */
static bool
find_checkpoint(const ShardState *state, TimestampTz time, Moment *moment)
{
	static SpiPlan plan = SPI_PLAN("SELECT snapshot, next_xid, last_seq FROM idemq.checkpoints"
								   " WHERE taken_at <= $1 AND origin = ANY ($2) ORDER BY taken_at DESC LIMIT 1",
								   2, TIMESTAMPTZOID, INT8ARRAYOID);
	Datum	   *origins = palloc(sizeof(Datum) * state->norigins);
	Datum		args[2];
	HeapTuple	tuple;
	TupleDesc	desc;
	bool		isnull;

	for (int i = 0; i < state->norigins; i++)
		origins[i] = Int64GetDatum(state->origins[i]);
	args[0] = TimestampTzGetDatum(time);
	args[1] = PointerGetDatum(construct_array(origins, state->norigins, INT8OID, sizeof(int64),
											  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	if (spi_plan_run(&plan, args, NULL, SPI_OK_SELECT) == 0)
		return false;
	tuple = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	moment->snapshot = (StoredSnapshot *) PG_DETOAST_DATUM_COPY(SPI_getbinval(tuple, desc, 1, &isnull));
	moment->next = DatumGetInt64(SPI_getbinval(tuple, desc, 2, &isnull));
	moment->seq = DatumGetInt64(SPI_getbinval(tuple, desc, 3, &isnull));
	moment->top = moment->seq;
	return true;
}

/* outbox_seek(consumer, to_time) */
Datum
outbox_seek(PG_FUNCTION_ARGS)
{
	SpiOwner	owner;
	char	   *name = begin(fcinfo, "outbox_seek()", &owner);
	ShardState *states;
	Consumer   *consumer;
	TimestampTz time;
	Moment		moment;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("to_time must not be null"),
				 errhint("now() passes over everything that waits.")));
	time = PG_GETARG_TIMESTAMPTZ(1);
	consumer = hold_shards(name, &states);

	/* a position that can judge what was written before pg_upgrade still can */
	for (int32 shard = 0; shard < consumer->shards; shard++)
	{
		ShardState *state = &states[shard];

		consumer_require_home(consumer, state);
		if (state->replaying)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("consumer \"%s\" is still given what was not delivered elsewhere", consumer->name),
					 errhint("Fetch until that is over, or pass over it with outbox_adopt(%s, 'skip').",
							 quote_literal_cstr(consumer->name))));
	}
	if (time >= GetCurrentTransactionStartTimestamp())
		moment_take(&moment);
	else if (!find_checkpoint(&states[0], time, &moment))
		moment_of_nothing(&moment);
	for (int32 shard = 0; shard < consumer->shards; shard++)
	{
		consumer_set_position(&states[shard], &moment);
		ledger_append(&states[shard], NULL);
	}
	renew_barrier(consumer);
	xactstate_tell();
	spi_plan_leave(&owner);
	PG_RETURN_VOID();
}

/* outbox_adopt(consumer, mode) */
Datum
outbox_adopt(PG_FUNCTION_ARGS)
{
	char	   *mode = PG_ARGISNULL(1) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(1));
	int64		origin = outbox_origin();
	SpiOwner	owner;
	char	   *name = begin(fcinfo, "outbox_adopt()", &owner);
	ShardState *states;
	Consumer   *consumer = hold_shards(name, &states);
	bool		skip = strcmp(mode, "skip") == 0;
	bool		replay = strcmp(mode, "replay") == 0;
	int			nadopted = 0;

	if (!skip && !replay && strcmp(mode, "continue") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown mode \"%s\"", mode),
				 errhint("Modes are 'continue' (after pg_upgrade), 'replay' (after a restore) and 'skip'.")));
	for (int32 shard = 0; shard < consumer->shards; shard++)
	{
		ShardState *state = &states[shard];

		if (state->origins[state->norigins - 1] == origin && !(skip && state->replaying))
			continue;
		nadopted++;
		if (skip)
		{
			Moment		moment;

			moment_of_nothing(&moment);
			consumer_go_home(state);
			consumer_set_position(state, &moment);
		}
		else
		{
			int64	   *origins = palloc(sizeof(int64) * (state->norigins + 1));

			memcpy(origins, state->origins, sizeof(int64) * state->norigins);
			origins[state->norigins++] = origin;
			state->origins = origins;
			state->replaying = state->replaying || replay;
		}
		ledger_append(state, NULL);
	}
	if (nadopted > 0)
		renew_barrier(consumer);
	else
		ereport(NOTICE,
				(errmsg("consumer \"%s\" is at home in this database", name)));
	xactstate_tell();
	spi_plan_leave(&owner);
	PG_RETURN_VOID();
}
