/*-------------------------------------------------------------------------
 *
 * ledger.c
 *	  Where each shard of each consumer is.
 *
 * Three tables that are appended to, in turns (turn.c).  What counts is in that
 * of the present turn and that of the one before.  The row with the highest entry of
 * a shard says where it is.  A row is also about one batch, as
 * a rule; of the rows about a batch the latest counts.
 *
 * Locking: whoever reads a shard's state in order to change it holds the shard
 * lock, until the end of the transaction.  It takes the lock first and reads
 * with a snapshot that is newer, so it sees what its predecessor has
 * committed; therefore READ COMMITTED only.  Shard locks come before
 * locks on tables.  Who holds several of them, by acknowledging leases of several
 * shards in one transaction, may meet somebody who does so in another order: then the
 * deadlock detector decides.
 *
 *-------------------------------------------------------------------------
 */
#include "ledger.h"

#include "catalog/pg_type_d.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "lock.h"
#include "shmem.h"
#include "spi_plan.h"
#include "testpoint.h"

/* The columns of a ledger. */
enum
{
	COL_CONSUMER,
	COL_SHARD,
	COL_ENTRY,
	COL_TURN,
	COL_WRITTEN_AT,
	COL_ORIGINS,
	COL_REPLAYING,
	COL_START_AT,
	COL_START_NEXT,
	COL_START_SEQ,
	COL_END_AT,
	COL_END_NEXT,
	COL_END_SEQ,
	COL_END_TOP,
	COL_END_LSN,
	COL_LAST_SEQ,
	COL_BATCH,
	COL_FIRST_EVENT,
	COL_STEPS,
	COL_PARKED,
	COL_TOKEN,
	COL_ROLE,
	COL_GRANTED_AT,
	COL_UNTIL,
	COL_DELIVERIES,
	COL_EXPIRIES,
	COL_OPEN_BATCHES,
	COL_OPEN_FROM,
	COL_PARKED_FROM,
	COL_NEXT_PLACE,
	COL_PARKED_EVENTS,
	COL_NEXT_DUE,
	NCOLUMNS,
};

#define COLUMNS \
	"consumer, shard, entry, turn, written_at, origins, replaying, start_at, start_next, start_seq, " \
	"end_at, end_next, end_seq, end_top, end_lsn, last_seq, batch, first_event, steps, parked, token, role, " \
	"granted_at, until, deliveries, expiries, open_batches, open_from, parked_from, next_place, " \
	"parked_events, next_due"

#define COLUMN_TYPES \
	INT4OID, INT4OID, INT8OID, INT8OID, TIMESTAMPTZOID, INT8ARRAYOID, BOOLOID, PG_SNAPSHOTOID, XID8OID, INT8OID, \
	PG_SNAPSHOTOID, XID8OID, INT8OID, INT8OID, LSNOID, INT8OID, INT8OID, INT8OID, INT4ARRAYOID, BOOLOID, INT8OID, TEXTOID, \
	TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INT4OID, INT4OID, INT8OID, INT8OID, INT8OID, \
	INT8OID, TIMESTAMPTZOID

#define PARAMETERS \
	"$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, " \
	"$21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32"

static SpiPlan insert_plan = SPI_PLAN("INSERT INTO idemq.ledger_@ (" COLUMNS ") VALUES (" PARAMETERS ")",
									  NCOLUMNS, COLUMN_TYPES);

/* Get the right to change a shard; without wait, false if somebody has it. */
bool
ledger_lock(int32 consumer, int32 shard, bool wait)
{
	LOCKTAG		tag;

	if (TEST_WITHOUT("shard_lock"))
		return true;
	lock_tag(&tag, IDEMQ_LOCK_SHARD, lock_shard_id(consumer, shard));
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* Get the right to change all shards of a consumer. */
void
ledger_lock_all(int32 consumer, int32 shards)
{
	for (int32 shard = 0; shard < shards; shard++)
		(void) ledger_lock(consumer, shard, true);
}

/* Has another transaction that right? */
bool
ledger_is_locked(int32 consumer, int32 shard)
{
	LOCKTAG		tag;
	int			n;

	lock_tag(&tag, IDEMQ_LOCK_SHARD, lock_shard_id(consumer, shard));
	(void) GetLockConflicts(&tag, ExclusiveLock, &n);
	return n > 0;
}

/* Give it up, because nothing was changed. */
void
ledger_unlock(int32 consumer, int32 shard)
{
	LOCKTAG		tag;

	if (TEST_WITHOUT("shard_lock"))
		return;
	lock_tag(&tag, IDEMQ_LOCK_SHARD, lock_shard_id(consumer, shard));
	LockRelease(&tag, ExclusiveLock, false);
}

/* Which turn is it? */
int64
ledger_turn(void)
{
	static SpiPlan plan = SPI_PLAN_NO_ARGS("SELECT coalesce(max(turn), 0) FROM idemq.turn");
	bool		isnull;

	spi_plan_run(&plan, NULL, NULL, SPI_OK_SELECT);
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

/* A column of a row; 0 for null. */
static Datum
column(HeapTuple tuple, int number)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, SPI_tuptable->tupdesc, number + 1, &isnull);

	return isnull ? (Datum) 0 : value;
}

/* Is it null? */
static bool
is_null(HeapTuple tuple, int number)
{
	bool		isnull;

	(void) SPI_getbinval(tuple, SPI_tuptable->tupdesc, number + 1, &isnull);
	return isnull;
}

/* A moment, from the columns that hold it; the first is its snapshot. */
static void
read_moment(HeapTuple tuple, int snapshot, Moment *moment)
{
	bool		end = snapshot == COL_END_AT;

	moment->snapshot = (StoredSnapshot *) PG_DETOAST_DATUM_COPY(column(tuple, snapshot));
	moment->next = DatumGetInt64(column(tuple, snapshot + 1));
	moment->seq = DatumGetInt64(column(tuple, snapshot + 2));
	moment->top = end ? DatumGetInt64(column(tuple, COL_END_TOP)) : moment->seq;
	moment->lsn = end ? DatumGetLSN(column(tuple, COL_END_LSN)) : InvalidXLogRecPtr;
}

/* The events of a batch. */
static void
read_events(HeapTuple tuple, Batch *batch)
{
	ArrayType  *array;
	int			nsteps;
	int32	   *steps;

	batch->nevents = 0;
	batch->events = NULL;
	if (is_null(tuple, COL_FIRST_EVENT))
		return;
	array = DatumGetArrayTypePCopy(column(tuple, COL_STEPS));
	nsteps = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	steps = (int32 *) ARR_DATA_PTR(array);
	batch->nevents = nsteps + 1;
	batch->events = palloc(sizeof(int64) * batch->nevents);
	batch->events[0] = DatumGetInt64(column(tuple, COL_FIRST_EVENT));
	for (int i = 0; i < nsteps; i++)
		batch->events[i + 1] = batch->events[i] + steps[i];
}

/* The batch that a row is about. */
static void
read_batch(HeapTuple tuple, Batch *batch)
{
	batch->number = DatumGetInt64(column(tuple, COL_BATCH));
	read_events(tuple, batch);
	batch->parked = DatumGetBool(column(tuple, COL_PARKED));
	batch->token = DatumGetInt64(column(tuple, COL_TOKEN));
	batch->role = is_null(tuple, COL_ROLE) ? NULL : TextDatumGetCString(column(tuple, COL_ROLE));
	batch->granted_at = DatumGetTimestampTz(column(tuple, COL_GRANTED_AT));
	batch->until = DatumGetTimestampTz(column(tuple, COL_UNTIL));
	batch->deliveries = DatumGetInt32(column(tuple, COL_DELIVERIES));
	batch->expiries = DatumGetInt32(column(tuple, COL_EXPIRIES));
}

/* Read where a shard is; false if it has no row. */
bool
ledger_read(int32 consumer, int32 shard, ShardState *state)
{
	static SpiPlan plan = SPI_PLAN("SELECT " COLUMNS " FROM idemq._ledger_@ WHERE consumer = $1 AND shard = $2 ORDER BY entry DESC LIMIT 1", 2,
								   INT4OID, INT4OID);
	Datum		args[] = {Int32GetDatum(consumer), Int32GetDatum(shard)};
	HeapTuple	tuple;
	ArrayType  *origins;

	memset(state, 0, sizeof(ShardState));
	state->turn = ledger_turn();
	if (spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT) == 0)
		return false;
	tuple = SPI_tuptable->vals[0];
	state->consumer = consumer;
	state->shard = shard;
	state->entry = DatumGetInt64(column(tuple, COL_ENTRY));
	state->written_at = DatumGetTimestampTz(column(tuple, COL_WRITTEN_AT));
	origins = DatumGetArrayTypePCopy(column(tuple, COL_ORIGINS));
	state->norigins = ArrayGetNItems(ARR_NDIM(origins), ARR_DIMS(origins));
	state->origins = (int64 *) ARR_DATA_PTR(origins);
	state->replaying = DatumGetBool(column(tuple, COL_REPLAYING));
	read_moment(tuple, COL_START_AT, &state->start);
	state->open = !is_null(tuple, COL_END_AT);
	if (state->open)
		read_moment(tuple, COL_END_AT, &state->end);
	state->last_seq = DatumGetInt64(column(tuple, COL_LAST_SEQ));
	state->open_batches = DatumGetInt32(column(tuple, COL_OPEN_BATCHES));
	state->open_from = DatumGetInt64(column(tuple, COL_OPEN_FROM));
	state->parked_from = DatumGetInt64(column(tuple, COL_PARKED_FROM));
	state->next_place = DatumGetInt64(column(tuple, COL_NEXT_PLACE));
	state->parked_events = DatumGetInt64(column(tuple, COL_PARKED_EVENTS));
	state->next_due = is_null(tuple, COL_NEXT_DUE)
		? DT_NOEND : DatumGetTimestampTz(column(tuple, COL_NEXT_DUE));
	read_batch(tuple, &state->batch);
	return true;
}

/*
 * A shard begins that may have been in use before: go on counting where its rows
 * stopped, in whichever table they are.
 */
void
ledger_count_on(ShardState *state)
{
	static SpiPlan plan = SPI_PLAN("SELECT max(entry), max(next_place) FROM idemq._ledger WHERE consumer = $1 AND shard = $2",
								   2, INT4OID, INT4OID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard)};
	HeapTuple	tuple;

	spi_plan_run(&plan, args, NULL, SPI_OK_SELECT);
	tuple = SPI_tuptable->vals[0];
	state->entry = Max(state->entry, DatumGetInt64(column(tuple, 0)));
	state->next_place = Max(state->next_place, DatumGetInt64(column(tuple, 1)));
}

/* The batches of a shard that are not done, the earliest events first. */
List *
ledger_open_batches(const ShardState *state)
{
	static SpiPlan plan = SPI_PLAN("SELECT * FROM (SELECT DISTINCT ON (batch) " COLUMNS " FROM idemq._ledger_@"
								   " WHERE consumer = $1 AND shard = $2 AND entry >= $3 AND batch >= $3 ORDER BY batch, entry DESC) AS b"
								   " WHERE first_event IS NOT NULL ORDER BY parked DESC, first_event", 3,
								   INT4OID, INT4OID, INT8OID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard),
	Int64GetDatum(state->open_from)};
	List	   *batches = NIL;
	uint64		n;

	if (state->open_batches == 0)
		return NIL;
	if (state->open_batches == 1 && state->batch.nevents > 0)
	{
		Batch	   *batch = palloc(sizeof(Batch));

		*batch = state->batch;
		return list_make1(batch);
	}
	n = spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < n; i++)
	{
		Batch	   *batch = palloc(sizeof(Batch));

		read_batch(SPI_tuptable->vals[i], batch);
		batches = lappend(batches, batch);
	}
	return batches;
}

/* Whose lease is this?  False if there is none of that token in the ledgers. */
bool
ledger_find_token(int64 token, int32 *consumer, int32 *shard, Batch *batch)
{
	static SpiPlan plan = SPI_PLAN("SELECT " COLUMNS " FROM idemq._ledger_@ WHERE token = $1 ORDER BY entry DESC LIMIT 1", 1,
								   INT8OID);
	Datum		args[] = {Int64GetDatum(token)};
	HeapTuple	tuple;

	if (spi_plan_run_in_turn(&plan, ledger_turn(), args, NULL, SPI_OK_SELECT) == 0)
		return false;
	tuple = SPI_tuptable->vals[0];
	*consumer = DatumGetInt32(column(tuple, COL_CONSUMER));
	*shard = DatumGetInt32(column(tuple, COL_SHARD));
	read_batch(tuple, batch);
	return true;
}

/* Forget leases, what came back, and what is parked. */
void
ledger_clear(ShardState *state)
{
	state->open = false;
	state->last_seq = 0;
	state->open_batches = 0;
	state->open_from = state->entry + 1;
	state->parked_from = state->next_place;
	state->parked_events = 0;
	state->next_due = DT_NOEND;
}

/* The steps between events. */
static Datum
form_steps(const Batch *batch)
{
	int			nsteps = batch->nevents - 1;
	Datum	   *steps = palloc(sizeof(Datum) * Max(nsteps, 1));

	for (int i = 0; i < nsteps; i++)
	{
		int64		step = batch->events[i + 1] - batch->events[i];

		if (step == 0 || step > PG_INT32_MAX || step < PG_INT32_MIN)
			elog(ERROR, "events " INT64_FORMAT " and " INT64_FORMAT " cannot be in one batch",
				 batch->events[i], batch->events[i + 1]);
		steps[i] = Int32GetDatum((int32) step);
	}
	return PointerGetDatum(construct_array(steps, nsteps, INT4OID, sizeof(int32), true,
										   TYPALIGN_INT));
}

/* Set columns to null. */
static void
set_nulls(char *nulls, int from, int to)
{
	for (int i = from; i <= to; i++)
		nulls[i] = 'n';
}

/* Write a row: see the two below. */
static void
write_row(ShardState *state, Batch *batch)
{
	Datum		values[NCOLUMNS] = {0};
	char		nulls[NCOLUMNS];
	Datum	   *origins = palloc(sizeof(Datum) * state->norigins);

	memset(nulls, ' ', sizeof(nulls));
	state->entry++;
	for (int i = 0; i < state->norigins; i++)
		origins[i] = Int64GetDatum(state->origins[i]);

	values[COL_CONSUMER] = Int32GetDatum(state->consumer);
	values[COL_SHARD] = Int32GetDatum(state->shard);
	values[COL_ENTRY] = Int64GetDatum(state->entry);
	values[COL_TURN] = Int64GetDatum(state->turn);
	values[COL_WRITTEN_AT] = TimestampTzGetDatum(state->written_at);
	values[COL_ORIGINS] = PointerGetDatum(construct_array(origins, state->norigins, INT8OID,
														  sizeof(int64), FLOAT8PASSBYVAL,
														  TYPALIGN_DOUBLE));
	values[COL_REPLAYING] = BoolGetDatum(state->replaying);
	values[COL_START_AT] = PointerGetDatum(state->start.snapshot);
	values[COL_START_NEXT] = Int64GetDatum(state->start.next);
	values[COL_START_SEQ] = Int64GetDatum(state->start.seq);
	if (state->open)
	{
		values[COL_END_AT] = PointerGetDatum(state->end.snapshot);
		values[COL_END_NEXT] = Int64GetDatum(state->end.next);
		values[COL_END_SEQ] = Int64GetDatum(state->end.seq);
		values[COL_END_TOP] = Int64GetDatum(state->end.top);
		values[COL_END_LSN] = LSNGetDatum(state->end.lsn);
	}
	else
		set_nulls(nulls, COL_END_AT, COL_END_LSN);
	values[COL_LAST_SEQ] = Int64GetDatum(state->last_seq);

	memset(&state->batch, 0, sizeof(Batch));
	if (batch != NULL)
	{
		if (batch->number == 0)
			batch->number = state->entry;
		state->batch = *batch;
		values[COL_BATCH] = Int64GetDatum(batch->number);
		if (batch->nevents > 0)
		{
			values[COL_FIRST_EVENT] = Int64GetDatum(batch->events[0]);
			values[COL_STEPS] = form_steps(batch);
		}
		else
			set_nulls(nulls, COL_FIRST_EVENT, COL_STEPS);
		values[COL_PARKED] = BoolGetDatum(batch->parked);
		if (batch->token != 0)
			values[COL_TOKEN] = Int64GetDatum(batch->token);
		else
			set_nulls(nulls, COL_TOKEN, COL_TOKEN);
		if (batch->role != NULL)
			values[COL_ROLE] = CStringGetTextDatum(batch->role);
		else
			set_nulls(nulls, COL_ROLE, COL_ROLE);
		values[COL_GRANTED_AT] = TimestampTzGetDatum(batch->granted_at);
		values[COL_UNTIL] = TimestampTzGetDatum(batch->until);
		values[COL_DELIVERIES] = Int32GetDatum(batch->deliveries);
		values[COL_EXPIRIES] = Int32GetDatum(batch->expiries);
	}
	else
	{
		set_nulls(nulls, COL_BATCH, COL_STEPS);
		set_nulls(nulls, COL_TOKEN, COL_UNTIL);
	}
	values[COL_OPEN_BATCHES] = Int32GetDatum(state->open_batches);
	values[COL_OPEN_FROM] = Int64GetDatum(state->open_from);
	values[COL_PARKED_FROM] = Int64GetDatum(state->parked_from);
	values[COL_NEXT_PLACE] = Int64GetDatum(state->next_place);
	values[COL_PARKED_EVENTS] = Int64GetDatum(state->parked_events);
	if (TIMESTAMP_IS_NOEND(state->next_due))
		set_nulls(nulls, COL_NEXT_DUE, COL_NEXT_DUE);
	else
		values[COL_NEXT_DUE] = TimestampTzGetDatum(state->next_due);
	spi_plan_run_in_turn(&insert_plan, state->turn, values, nulls, SPI_OK_INSERT);

	/* ledgers are looked after like the log */
	shmem_note_emit(catalog_relation(IDEMQ_OUTBOX), false);
}

/*
 * Write down where a shard is, and what has become of a batch (NULL: of none).
 * A batch without a number gets one.
 */
void
ledger_append(ShardState *state, Batch *batch)
{
	state->written_at = clock_wall();
	write_row(state, batch);
}

/* Write once more what was written before, in the present turn. */
void
ledger_copy(ShardState *state, Batch *batch)
{
	write_row(state, batch);
}
