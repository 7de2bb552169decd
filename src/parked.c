/*-------------------------------------------------------------------------
 *
 * parked.c
 *	  Events that cannot be delivered now.
 *
 * What is parked is a reference; the event stays in the log, and its partition
 * with it.  References are kept like the ledgers: rows are appended, the latest of a
 * place counts, and "done" is for ever.  The caller appends to the ledger afterwards.
 *
 * In an ordered shard the events of a key queue up in the order of their ranks,
 * which are their numbers; a replay comes behind everything that was written
 * until then.  The first of them has a time when it is due; those behind it have none,
 * until it is done.  One that is parked later may come before one that is due:
 * then that one waits, whatever its time was.
 *
 * What is due after a time counts from when it was written down: if the clock is
 * before that, it was set, and the event is due at once.
 *
 *-------------------------------------------------------------------------
 */
#include "parked.h"

#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "spi_plan.h"

#define COLUMNS \
	"place, key, seq, dead_id, state, attempts, deliveries, alone, due, first_failed_at, error, rank"

/* Clocks of one machine may differ by that much; beyond, the clock was set. */
#define CLOCK_SLACK		(10 * USECS_PER_SEC)

static SpiPlan insert_plan = SPI_PLAN("INSERT INTO idemq.parked_@ (consumer, shard, entry, " COLUMNS ", parked_at)"
									  " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)", 16,
									  INT4OID, INT4OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, TEXTOID, INT4OID,
									  INT4OID, BOOLOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, INT8OID, TIMESTAMPTZOID);

static const char *const state_names[] = {"retry", "delayed", "blocked", "leased", "done"};

/* Write down what has become of an event; a new one gets the next place. */
void
parked_put(ShardState *state, ParkedRef *ref)
{
	Datum		values[16] = {0};
	char		nulls[17] = "                ";
	int64		entry = state->next_place++;

	if (ref->place == 0)
	{
		ref->place = entry;
		state->parked_events++;
	}
	if (ref->state == PARKED_DONE)
	{
		ref->due = DT_NOEND;
		state->parked_events--;
	}
	values[0] = Int32GetDatum(state->consumer);
	values[1] = Int32GetDatum(state->shard);
	values[2] = Int64GetDatum(entry);
	values[3] = Int64GetDatum(ref->place);
	values[4] = Int64GetDatum(ref->key);
	values[5] = Int64GetDatum(ref->seq);
	values[6] = Int64GetDatum(ref->dead_id);
	if (ref->dead_id == 0)
		nulls[6] = 'n';
	values[7] = CStringGetTextDatum(state_names[ref->state]);
	values[8] = Int32GetDatum(ref->attempts);
	values[9] = Int32GetDatum(ref->deliveries);
	values[10] = BoolGetDatum(ref->alone);
	values[11] = TimestampTzGetDatum(ref->due);
	if (TIMESTAMP_IS_NOEND(ref->due))
		nulls[11] = 'n';
	values[12] = TimestampTzGetDatum(ref->first_failed_at);
	if (ref->first_failed_at == 0)
		nulls[12] = 'n';
	if (ref->error != NULL)
		values[13] = CStringGetTextDatum(ref->error);
	else
		nulls[13] = 'n';
	values[14] = Int64GetDatum(ref->rank);
	values[15] = TimestampTzGetDatum(clock_wall());
	spi_plan_run_in_turn(&insert_plan, state->turn, values, nulls, SPI_OK_INSERT);
}

/* The references of a result. */
static ParkedRef *
read_refs(uint64 n)
{
	ParkedRef  *refs = palloc0(sizeof(ParkedRef) * Max(n, 1));
	TupleDesc	desc = SPI_tuptable->tupdesc;

	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[i];
		ParkedRef  *ref = &refs[i];
		char	   *name = SPI_getvalue(tuple, desc, 5);
		bool		isnull;

		ref->place = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
		ref->key = DatumGetInt64(SPI_getbinval(tuple, desc, 2, &isnull));
		ref->seq = DatumGetInt64(SPI_getbinval(tuple, desc, 3, &isnull));
		ref->dead_id = DatumGetInt64(SPI_getbinval(tuple, desc, 4, &isnull));
		if (isnull)
			ref->dead_id = 0;
		for (ref->state = PARKED_RETRY; ref->state < PARKED_DONE; ref->state++)
		{
			if (strcmp(name, state_names[ref->state]) == 0)
				break;
		}
		ref->attempts = DatumGetInt32(SPI_getbinval(tuple, desc, 6, &isnull));
		ref->deliveries = DatumGetInt32(SPI_getbinval(tuple, desc, 7, &isnull));
		ref->alone = DatumGetBool(SPI_getbinval(tuple, desc, 8, &isnull));
		ref->due = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 9, &isnull));
		if (isnull)
			ref->due = DT_NOEND;
		ref->first_failed_at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 10, &isnull));
		if (isnull)
			ref->first_failed_at = 0;
		ref->error = SPI_getvalue(tuple, desc, 11);
		ref->rank = DatumGetInt64(SPI_getbinval(tuple, desc, 12, &isnull));
	}
	return refs;
}

/* In the order of a queue. */
int
parked_compare(const ParkedRef *a, const ParkedRef *b)
{
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return (a->place > b->place) - (a->place < b->place);
}

/* Is any event of a key parked?  If so, *last_rank is that of the last. */
bool
parked_has_key(const ShardState *state, int64 key, int64 *last_rank)
{
	/* from the end: in a long queue the last one is not done */
	static SpiPlan plan = SPI_PLAN("SELECT p.rank FROM idemq._parked_@ AS p"
								   " WHERE p.consumer = $1 AND p.shard = $2 AND p.key = $3 AND p.place >= $4"
								   " AND p.state <> 'done' AND p.entry = (SELECT max(d.entry) FROM idemq._parked_@ AS d WHERE d.consumer = $1 AND d.shard = $2"
								   " AND d.place = p.place)"
								   " ORDER BY p.rank DESC LIMIT 1",
								   4, INT4OID, INT4OID, INT8OID, INT8OID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard),
	Int64GetDatum(key), Int64GetDatum(state->parked_from)};

	bool		isnull;

	*last_rank = 0;
	if (state->parked_events == 0 ||
		spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT) == 0)
		return false;
	*last_rank = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1,
											 &isnull));
	return true;
}

/* The first event of the queue of a key, or NULL. */
ParkedRef *
parked_first_of_key(const ShardState *state, int64 key)
{
	static SpiPlan plan = SPI_PLAN("SELECT * FROM (SELECT DISTINCT ON (rank, place) " COLUMNS " FROM idemq._parked_@"
								   " WHERE consumer = $1 AND shard = $2 AND key = $3 AND place >= $4"
								   " ORDER BY rank, place, entry DESC) AS q"
								   " WHERE state <> 'done' ORDER BY rank, place LIMIT 1",
								   4, INT4OID, INT4OID, INT8OID, INT8OID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard),
	Int64GetDatum(key), Int64GetDatum(state->parked_from)};

	if (state->parked_events == 0 || spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT) == 0)
		return NULL;
	return read_refs(1);
}

/* An event is done; the first that waits behind it is due. */
void
parked_done(ShardState *state, ParkedRef *ref, bool ordered)
{
	ref->state = PARKED_DONE;
	parked_put(state, ref);
	if (ordered)
	{
		ParkedRef  *first = parked_first_of_key(state, ref->key);

		if (first != NULL && first->state == PARKED_BLOCKED && TIMESTAMP_IS_NOEND(first->due))
		{
			first->due = clock_wall();
			parked_put(state, first);
		}
	}
}

/* By place. */
static int
compare_places(const void *a, const void *b)
{
	int64		x = ((const ParkedRef *) a)->place;
	int64		y = ((const ParkedRef *) b)->place;

	return (x > y) - (x < y);
}

/* The references at some places, in the order of these. */
ParkedRef *
parked_get(const ShardState *state, int n, const int64 *places)
{
	static SpiPlan plan = SPI_PLAN("SELECT DISTINCT ON (place) " COLUMNS " FROM idemq._parked_@"
								   " WHERE consumer = $1 AND shard = $2 AND place = ANY ($3) ORDER BY place, entry DESC",
								   3, INT4OID, INT4OID, INT8ARRAYOID);
	Datum	   *elements = palloc(sizeof(Datum) * n);
	ParkedRef  *refs = palloc(sizeof(ParkedRef) * n);
	ParkedRef  *found;
	Datum		args[3];

	for (int i = 0; i < n; i++)
		elements[i] = Int64GetDatum(places[i]);
	args[0] = Int32GetDatum(state->consumer);
	args[1] = Int32GetDatum(state->shard);
	args[2] = PointerGetDatum(construct_array(elements, n, INT8OID, sizeof(int64),
											  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	if (spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT) != n)
		elog(ERROR, "parked events of consumer %d, shard %d are missing",
			 state->consumer, state->shard);
	found = read_refs(n);
	for (int i = 0; i < n; i++)
	{
		ParkedRef	key = {.place = places[i]};

		refs[i] = *(ParkedRef *) bsearch(&key, found, n, sizeof(ParkedRef), compare_places);
	}
	return refs;
}

/* Is anything due, as far as the state of the shard says? */
bool
parked_is_due(const ShardState *state, TimestampTz now)
{
	return !TIMESTAMP_IS_NOEND(state->next_due) &&
		(state->next_due <= now || state->written_at > now + CLOCK_SLACK);
}

/*
 * Add the events that wait behind one, up to the first that is not to be had now.
 */
static List *
add_queue(const ShardState *state, List *refs, const ParkedRef *head, TimestampTz now, int max)
{
	static SpiPlan plan = SPI_PLAN("SELECT * FROM (SELECT DISTINCT ON (rank, place) " COLUMNS " FROM idemq._parked_@"
								   " WHERE consumer = $1 AND shard = $2 AND key = $3 AND (rank, place) > ($4, $5)"
								   " AND place >= $6 ORDER BY rank, place, entry DESC) AS q"
								   " WHERE state <> 'done' ORDER BY rank, place LIMIT $7",
								   7, INT4OID, INT4OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard),
		Int64GetDatum(head->key), Int64GetDatum(head->rank), Int64GetDatum(head->place),
		Int64GetDatum(state->parked_from), Int64GetDatum(max - list_length(refs)),
	};
	uint64		n = spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT);
	ParkedRef  *behind = read_refs(n);

	for (uint64 i = 0; i < n; i++)
	{
		if (behind[i].state == PARKED_LEASED || behind[i].alone ||
			(!TIMESTAMP_IS_NOEND(behind[i].due) && behind[i].due > now))
			break;
		refs = lappend(refs, &behind[i]);
	}
	return refs;
}

/* Is the reference of a place in the list? */
static bool
has_place(const List *refs, int64 place)
{
	ListCell   *cell;

	foreach(cell, refs)
	{
		if (((const ParkedRef *) lfirst(cell))->place == place)
			return true;
	}
	return false;
}

/*
 * Events that are due, with those behind them; one that is to be alone, alone.
 * May write: one that is due, but not the first of its queue, has to wait.
 */
List *
parked_due(ShardState *state, TimestampTz now, int max, bool ordered)
{
	static SpiPlan plan = SPI_PLAN("SELECT DISTINCT ON (place) " COLUMNS " FROM idemq._parked_@ AS p"
								   " WHERE p.consumer = $1 AND p.shard = $2 AND (p.due <= $3 OR p.due IS NOT NULL AND p.parked_at > $6)"
								   " AND p.place >= $4"
								   " AND p.entry = (SELECT max(d.entry) FROM idemq._parked_@ AS d WHERE d.consumer = $1 AND d.shard = $2"
								   " AND d.place = p.place)"
								   " ORDER BY place LIMIT $5",
								   6, INT4OID, INT4OID, TIMESTAMPTZOID, INT8OID, INT8OID, TIMESTAMPTZOID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard),
		TimestampTzGetDatum(now), Int64GetDatum(state->parked_from), Int64GetDatum(max),
		TimestampTzGetDatum(now + CLOCK_SLACK),
	};
	int			ndue = spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT);
	ParkedRef  *due = read_refs(ndue);
	List	   *refs = NIL;
	List	   *waiting = NIL;
	ListCell   *cell;

	for (int i = 0; i < ndue && list_length(refs) < max; i++)
	{
		ParkedRef  *ref = &due[i];

		if (ordered)
		{
			ParkedRef  *first = parked_first_of_key(state, ref->key);

			if (first != NULL && first->place != ref->place)
			{
				waiting = lappend(waiting, ref);
				continue;
			}
		}
		if (ref->alone && refs != NIL)
			continue;
		refs = lappend(refs, ref);
		if (ref->alone)
			break;

		if (ordered)
			refs = add_queue(state, refs, ref, now, max);
	}
	foreach(cell, waiting)
	{
		ParkedRef  *ref = lfirst(cell);

		if (has_place(refs, ref->place))
			continue;
		ref->state = PARKED_BLOCKED;
		ref->due = DT_NOEND;
		parked_put(state, ref);
	}
	return refs;
}

/* All that are not done, in the order of their places. */
List *
parked_live(const ShardState *state)
{
	static SpiPlan plan = SPI_PLAN("SELECT DISTINCT ON (place) " COLUMNS " FROM idemq._parked_@ AS p"
								   " WHERE p.consumer = $1 AND p.shard = $2 AND p.place >= $3 AND p.state <> 'done'"
								   " AND p.entry = (SELECT max(d.entry) FROM idemq._parked_@ AS d WHERE d.consumer = $1 AND d.shard = $2"
								   " AND d.place = p.place)"
								   " ORDER BY place",
								   3, INT4OID, INT4OID, INT8OID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard),
	Int64GetDatum(state->parked_from)};
	uint64		n = spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT);
	ParkedRef  *refs = read_refs(n);
	List	   *list = NIL;

	for (uint64 i = 0; i < n; i++)
		list = lappend(list, &refs[i]);
	return list;
}

/* Nobody waits behind another one any more. */
void
parked_unblock_all(ShardState *state)
{
	TimestampTz now = clock_wall();
	ListCell   *cell;

	foreach(cell, parked_live(state))
	{
		ParkedRef  *ref = lfirst(cell);

		if (ref->state != PARKED_BLOCKED || !TIMESTAMP_IS_NOEND(ref->due))
			continue;
		CHECK_FOR_INTERRUPTS();
		ref->due = now;
		parked_put(state, ref);
	}
}

/* When is the first of the parked events due? */
void
parked_find_next_due(ShardState *state)
{
	static SpiPlan plan = SPI_PLAN("SELECT due FROM idemq._parked_@ AS p"
								   " WHERE p.consumer = $1 AND p.shard = $2 AND p.due IS NOT NULL AND p.place >= $3"
								   " AND p.entry = (SELECT max(d.entry) FROM idemq._parked_@ AS d WHERE d.consumer = $1 AND d.shard = $2"
								   " AND d.place = p.place)"
								   " ORDER BY due LIMIT 1", 3,
								   INT4OID, INT4OID, INT8OID);
	Datum		args[] = {Int32GetDatum(state->consumer), Int32GetDatum(state->shard),
	Int64GetDatum(state->parked_from)};
	bool		isnull;

	state->next_due = DT_NOEND;
	if (state->parked_events > 0 &&
		spi_plan_run_in_turn(&plan, state->turn, args, NULL, SPI_OK_SELECT) > 0)
		state->next_due = DatumGetTimestampTz(SPI_getbinval(SPI_tuptable->vals[0],
															SPI_tuptable->tupdesc, 1, &isnull));
}
