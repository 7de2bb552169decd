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
 * The open batches are read from the end, as far back as the first of them began.
 * A lease that stays out for long, while others come and go, would make that long: so it
 * begins anew when that has become several rows for each open batch.  That
 * bounds what a call reads, for one more row now and then.  Rejected: the numbers of the
 * open batches in each row (as long as there are leases), an index on them (another
 * insertion for each row).
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
#include "nodes/bitmapset.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "lock.h"
#include "direct.h"
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

/* What was written since the first of some open batches began may be that many rows. */
#define MOST_ROWS(batches)	(4 * (int64) (batches) + 16)

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
	return lock_take(&tag, ExclusiveLock, wait);
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
	lock_give_up(&tag, ExclusiveLock);
}

/* Which turn is it? */
int64
ledger_turn(void)
{
	DirectScan	rows;
	int64		turn = 0;

	direct_open(&rows, "turn", 1, NULL, 0, NULL);
	while (direct_next(&rows, ForwardScanDirection))
		turn = Max(turn, DatumGetInt64(direct_value(&rows, 0)));
	direct_close(&rows);
	return turn;
}

/* Look into the ledger of a turn, or the one before it. */
static void
open_ledger(DirectScan *row, int64 turn, bool before, const char *index, int nkeys,
			const DirectKey *keys)
{
	int			table = (turn + (before ? 2 : 0)) % 3;

	direct_open(row, psprintf("ledger_%d", table), NCOLUMNS,
				psprintf("ledger_%d_%s", table, index), nkeys, keys);
}

/*
 * Find the last row, in the order of an index, of a turn's ledger, or else of the one
 * before.  If the turn's own has a row of a shard, what counts is there: the rows of
 * a shard are in the order of their turns.
 */
static bool
find_last(DirectScan *row, int64 turn, const char *index, int nkeys, const DirectKey *keys)
{
	for (int before = 0; before <= 1; before++)
	{
		open_ledger(row, turn, before, index, nkeys, keys);
		if (direct_next(row, BackwardScanDirection))
			return true;
		direct_close(row);
	}
	return false;
}

/* A moment, from the columns that hold it; the first is its snapshot. */
static void
read_moment(const DirectScan *row, int snapshot, Moment *moment)
{
	bool		end = snapshot == COL_END_AT;

	moment->snapshot = (StoredSnapshot *) PG_DETOAST_DATUM_COPY(direct_value(row, snapshot));
	moment->next = DatumGetInt64(direct_value(row, snapshot + 1));
	moment->seq = DatumGetInt64(direct_value(row, snapshot + 2));
	moment->top = end ? DatumGetInt64(direct_value(row, COL_END_TOP)) : moment->seq;
	moment->lsn = end ? DatumGetLSN(direct_value(row, COL_END_LSN)) : InvalidXLogRecPtr;
}

/* The events of a batch. */
static void
read_events(const DirectScan *row, Batch *batch)
{
	ArrayType  *array;
	int			nsteps;
	int32	   *steps;

	batch->nevents = 0;
	batch->events = NULL;
	if (direct_is_null(row, COL_FIRST_EVENT))
		return;
	array = DatumGetArrayTypeP(direct_value(row, COL_STEPS));
	nsteps = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	steps = (int32 *) ARR_DATA_PTR(array);
	batch->nevents = nsteps + 1;
	batch->events = palloc(sizeof(int64) * batch->nevents);
	batch->events[0] = DatumGetInt64(direct_value(row, COL_FIRST_EVENT));
	for (int i = 0; i < nsteps; i++)
		batch->events[i + 1] = batch->events[i] + steps[i];
	if ((Pointer) array != DatumGetPointer(direct_value(row, COL_STEPS)))
		pfree(array);
}

/* The batch that a row is about. */
static void
read_batch(const DirectScan *row, Batch *batch)
{
	batch->number = DatumGetInt64(direct_value(row, COL_BATCH));
	read_events(row, batch);
	batch->parked = DatumGetBool(direct_value(row, COL_PARKED));
	batch->token = DatumGetInt64(direct_value(row, COL_TOKEN));
	batch->role = direct_is_null(row, COL_ROLE)
		? NULL : TextDatumGetCString(direct_value(row, COL_ROLE));
	batch->granted_at = DatumGetTimestampTz(direct_value(row, COL_GRANTED_AT));
	batch->until = DatumGetTimestampTz(direct_value(row, COL_UNTIL));
	batch->deliveries = DatumGetInt32(direct_value(row, COL_DELIVERIES));
	batch->expiries = DatumGetInt32(direct_value(row, COL_EXPIRIES));
}

/* Read where a shard is; false if it has no row. */
bool
ledger_read(int32 consumer, int32 shard, ShardState *state)
{
	const DirectKey keys[] = {
		DIRECT_EQUAL(F_INT4EQ, Int32GetDatum(consumer)),
		DIRECT_EQUAL(F_INT4EQ, Int32GetDatum(shard)),
	};
	DirectScan	row;
	ArrayType  *origins;

	memset(state, 0, sizeof(ShardState));
	state->turn = ledger_turn();
	if (!find_last(&row, state->turn, "pkey", lengthof(keys), keys))
		return false;
	state->consumer = consumer;
	state->shard = shard;
	state->entry = DatumGetInt64(direct_value(&row, COL_ENTRY));
	state->written_at = DatumGetTimestampTz(direct_value(&row, COL_WRITTEN_AT));
	origins = DatumGetArrayTypePCopy(direct_value(&row, COL_ORIGINS));
	state->norigins = ArrayGetNItems(ARR_NDIM(origins), ARR_DIMS(origins));
	state->origins = (int64 *) ARR_DATA_PTR(origins);
	state->replaying = DatumGetBool(direct_value(&row, COL_REPLAYING));
	read_moment(&row, COL_START_AT, &state->start);
	state->open = !direct_is_null(&row, COL_END_AT);
	if (state->open)
		read_moment(&row, COL_END_AT, &state->end);
	state->last_seq = DatumGetInt64(direct_value(&row, COL_LAST_SEQ));
	state->open_batches = DatumGetInt32(direct_value(&row, COL_OPEN_BATCHES));
	state->open_from = DatumGetInt64(direct_value(&row, COL_OPEN_FROM));
	state->parked_from = DatumGetInt64(direct_value(&row, COL_PARKED_FROM));
	state->next_place = DatumGetInt64(direct_value(&row, COL_NEXT_PLACE));
	state->parked_events = DatumGetInt64(direct_value(&row, COL_PARKED_EVENTS));
	state->next_due = direct_is_null(&row, COL_NEXT_DUE)
		? DT_NOEND : DatumGetTimestampTz(direct_value(&row, COL_NEXT_DUE));
	read_batch(&row, &state->batch);
	direct_close(&row);
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
	int64		counts[2];

	spi_plan_run(&plan, args, NULL, SPI_OK_SELECT);
	for (int i = 0; i < lengthof(counts); i++)
	{
		bool		isnull;

		/* 0 if there are no rows */
		counts[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
												i + 1, &isnull));
	}
	state->entry = Max(state->entry, counts[0]);
	state->next_place = Max(state->next_place, counts[1]);
}

/* What was parked first, then the earliest events. */
static int
compare_batches(const ListCell *a, const ListCell *b)
{
	const Batch *x = lfirst(a);
	const Batch *y = lfirst(b);

	if (x->parked != y->parked)
		return x->parked ? -1 : 1;
	return (x->events[0] > y->events[0]) - (x->events[0] < y->events[0]);
}

/*
 * Add the open batches that one ledger has rows about.  Of the rows about a batch the
 * last counts, so they are read from the end: *seen has the numbers that have been met.
 */
static List *
add_open_batches(const ShardState *state, bool before, List *batches, Bitmapset **seen)
{
	const DirectKey keys[] = {
		DIRECT_EQUAL(F_INT4EQ, Int32GetDatum(state->consumer)),
		DIRECT_EQUAL(F_INT4EQ, Int32GetDatum(state->shard)),
		DIRECT_FROM(F_INT8GE, Int64GetDatum(state->open_from)),
	};
	DirectScan	row;

	open_ledger(&row, state->turn, before, "pkey", lengthof(keys), keys);
	while (list_length(batches) < state->open_batches && direct_next(&row, BackwardScanDirection))
	{
		int64		number = DatumGetInt64(direct_value(&row, COL_BATCH)) - state->open_from;
		Batch	   *batch;

		if (number < 0 || bms_is_member(number, *seen))
			continue;
		*seen = bms_add_member(*seen, number);
		if (direct_is_null(&row, COL_FIRST_EVENT))
			continue;
		batch = palloc(sizeof(Batch));
		read_batch(&row, batch);
		batches = lappend(batches, batch);
	}
	direct_close(&row);
	return batches;
}

/* The batches of a shard that are not done, in the order of their events. */
List *
ledger_open_batches(const ShardState *state)
{
	List	   *batches = NIL;
	Bitmapset  *seen = NULL;

	if (state->open_batches == 0)
		return NIL;
	if (state->open_batches == 1 && state->batch.nevents > 0)
	{
		Batch	   *batch = palloc(sizeof(Batch));

		*batch = state->batch;
		return list_make1(batch);
	}
	for (int before = 0; before <= 1; before++)
		batches = add_open_batches(state, before, batches, &seen);
	bms_free(seen);
	list_sort(batches, compare_batches);
	return batches;
}

/* Whose lease is this?  False if there is none of that token in the ledgers. */
bool
ledger_find_token(int64 token, int32 *consumer, int32 *shard, char **role)
{
	const DirectKey keys[] = {DIRECT_EQUAL(F_INT8EQ, Int64GetDatum(token))};
	DirectScan	row;

	/* any row will do: these never change */
	if (!find_last(&row, ledger_turn(), "token", lengthof(keys), keys))
		return false;
	*consumer = DatumGetInt32(direct_value(&row, COL_CONSUMER));
	*shard = DatumGetInt32(direct_value(&row, COL_SHARD));
	*role = direct_is_null(&row, COL_ROLE)
		? NULL : TextDatumGetCString(direct_value(&row, COL_ROLE));
	direct_close(&row);
	return true;
}

/* Have all events of a lease been dealt with, under its token? */
bool
ledger_is_done(const ShardState *state, int64 token)
{
	const DirectKey keys[] = {DIRECT_EQUAL(F_INT8EQ, Int64GetDatum(token))};
	bool		done = false;

	for (int before = 0; before <= 1 && !done; before++)
	{
		DirectScan	row;

		open_ledger(&row, state->turn, before, "token", lengthof(keys), keys);
		while (!done && direct_next(&row, BackwardScanDirection))
			done = direct_is_null(&row, COL_FIRST_EVENT);
		direct_close(&row);
	}
	return done;
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
	Size		size = ARR_OVERHEAD_NONULLS(1) + sizeof(int32) * nsteps;
	ArrayType  *array;
	int32	   *steps;

	if (nsteps == 0)
		return PointerGetDatum(construct_empty_array(INT4OID));
	array = palloc0(size);
	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->elemtype = INT4OID;
	ARR_DIMS(array)[0] = nsteps;
	ARR_LBOUND(array)[0] = 1;
	steps = (int32 *) ARR_DATA_PTR(array);
	for (int i = 0; i < nsteps; i++)
	{
		int64		step = batch->events[i + 1] - batch->events[i];

		if (step == 0 || step > PG_INT32_MAX || step < PG_INT32_MIN)
			elog(ERROR, "events " INT64_FORMAT " and " INT64_FORMAT " cannot be in one batch",
				 batch->events[i], batch->events[i + 1]);
		steps[i] = (int32) step;
	}
	return PointerGetDatum(array);
}

/* Set columns to null. */
static void
set_nulls(bool *nulls, int from, int to)
{
	for (int i = from; i <= to; i++)
		nulls[i] = true;
}

/* Append a row to the ledger of a turn. */
static void
insert_row(int64 turn, Datum *values, bool *nulls)
{
	char		marks[NCOLUMNS];

	if (direct_insert(psprintf("ledger_%d", (int) (turn % 3)), NCOLUMNS, values, nulls))
		return;
	for (int i = 0; i < NCOLUMNS; i++)
		marks[i] = nulls[i] ? 'n' : ' ';
	spi_plan_run_in_turn(&insert_plan, turn, values, marks, SPI_OK_INSERT);
}

/* Write a row: see the two below. */
static void
write_row(ShardState *state, Batch *batch)
{
	Datum		values[NCOLUMNS] = {0};
	bool		nulls[NCOLUMNS] = {false};
	Datum	   *origins = palloc(sizeof(Datum) * state->norigins);

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
	insert_row(state->turn, values, nulls);

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

/* Of some batches, the open one that has the lowest number; or NULL. */
static Batch *
first_open(List *batches)
{
	Batch	   *first = NULL;
	ListCell   *cell;

	foreach(cell, batches)
	{
		Batch	   *batch = lfirst(cell);

		if (batch->nevents > 0 && (first == NULL || batch->number < first->number))
			first = batch;
	}
	return first;
}

/* A batch begins: one that is open more. */
void
ledger_open_batch(ShardState *state, Batch *batch)
{
	batch->number = state->entry + 1;
	if (state->open_batches++ == 0)
		state->open_from = batch->number;
}

/* A batch is done: one that is open less.  The list has all that are open. */
void
ledger_close_batch(ShardState *state, List *batches, Batch *batch)
{
	Batch	   *first;

	batch->nevents = 0;
	state->open_batches--;
	first = first_open(batches);
	state->open_from = first != NULL ? first->number : state->entry + 1;
}

/*
 * Before a row is appended: when much more was written since the first open batch
 * began than batches are open, that one begins anew, with the number of the row that
 * says so.  The list has all that are open, but for one that is new.
 */
void
ledger_renew(ShardState *state, List *batches, const Batch *next)
{
	Batch	   *first;

	if (state->entry - state->open_from < MOST_ROWS(state->open_batches) ||
		(first = first_open(batches)) == NULL)
		return;
	first->number = state->entry + 1;
	state->open_from = first_open(batches)->number;
	if (first != next)
		ledger_copy(state, first);
}
