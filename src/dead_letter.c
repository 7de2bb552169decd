/*-------------------------------------------------------------------------
 *
 * dead_letter.c
 *	  Sending dead letters again, or throwing them away.
 *
 * A replay parks a reference to the dead letter with its consumer, behind
 * whatever of its key is parked there.  It counts attempts anew; the dead letter
 * stays, as its history.
 *
 *-------------------------------------------------------------------------
 */
#include "idemq.h"

#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "consumer.h"
#include "event.h"
#include "grants.h"
#include "ledger.h"
#include "parked.h"
#include "retry.h"
#include "spi_plan.h"
#include "xactstate.h"

PG_FUNCTION_INFO_V1(dead_letter_replay);
PG_FUNCTION_INFO_V1(dead_letter_discard);

#define NFILTERS	6

#define FILTER \
	" ($1 IS NULL OR consumer = $1) AND ($2 IS NULL OR aggregatetype = $2) AND ($3 IS NULL OR type = $3)" \
	" AND ($4 IS NULL OR error LIKE $4) AND ($5 IS NULL OR died_at < $5) AND ($6 IS NULL OR dead_id = ANY ($6))" \
	" AND replayed_at IS NULL"

#define FILTER_TYPES	TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT8ARRAYOID, INT8OID

/* The filters and the limit, as arguments of a statement. */
static void
get_filter(FunctionCallInfo fcinfo, const char *function, Datum *args, char *nulls)
{
	bool		any = false;

	consumer_require_fresh_snapshot(function);
	grants_require_admin(function, fcinfo->flinfo->fn_oid);
	for (int i = 0; i < NFILTERS; i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		args[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
		any = any || !PG_ARGISNULL(i);
	}
	if (!any)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s needs a filter", function),
				 errhint("For example consumer => 'billing', or ids => '{42}'.")));
	if (PG_ARGISNULL(NFILTERS) || PG_GETARG_INT32(NFILTERS) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_events must be at least 1")));
	args[NFILTERS] = Int64GetDatum(PG_GETARG_INT32(NFILTERS));
	nulls[NFILTERS] = ' ';
}

/* One dead letter to be replayed. */
typedef struct Letter
{
	int64		dead_id;
	int64		seq;
	Event		event;
	Consumer   *consumer;
	int32		shard;
} Letter;

/* In the order of the shard locks, and then of death. */
static int
compare_letters(const void *a, const void *b)
{
	const Letter *x = a;
	const Letter *y = b;

	if (x->consumer->number != y->consumer->number)
		return x->consumer->number < y->consumer->number ? -1 : 1;
	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return (x->dead_id > y->dead_id) - (x->dead_id < y->dead_id);
}

/* Park what is to be replayed in one shard; the lock is held. */
static void
replay_in_shard(Letter *letters, int n)
{
	Consumer   *consumer = letters[0].consumer;
	TimestampTz now = clock_wall();
	int64		rank = moment_last_number();
	ShardState	state;

	if (!ledger_read(consumer->number, letters[0].shard, &state))
		consumer_find_position(consumer, letters[0].shard, &state);
	for (int i = 0; i < n; i++)
	{
		Event	   *event = &letters[i].event;
		int64		last_rank;
		bool		behind = consumer->ordered && event->keyed &&
			parked_has_key(&state, event->key, &last_rank);

		event->ref = palloc0(sizeof(ParkedRef));
		event->ref->key = event->key;
		event->ref->seq = letters[i].seq;
		event->ref->rank = rank;
		event->ref->dead_id = letters[i].dead_id;
		retry_park(&state, NULL, event, behind ? PARKED_BLOCKED : PARKED_DELAYED,
				   behind ? DT_NOEND : now);
	}
	parked_find_next_due(&state);
	ledger_append(&state, NULL);
}

/* dead_letter_replay(consumer, aggregatetype, type, error_like, died_before, ids, max_events) */
Datum
dead_letter_replay(PG_FUNCTION_ARGS)
{
	static SpiPlan plan = SPI_PLAN("UPDATE idemq.dead_letters AS l SET replayed_at = clock_timestamp()"
								   " WHERE l.dead_id IN (SELECT dead_id FROM idemq.dead_letters WHERE" FILTER
								   " AND consumer IN (SELECT s.consumer FROM idemq.subscriptions AS s)"
								   " ORDER BY dead_id LIMIT $7 FOR UPDATE)"
								   " RETURNING l.dead_id, l.seq, l.consumer, l.aggregatetype, l.aggregateid",
								   7, FILTER_TYPES);
	Datum		args[NFILTERS + 1];
	char		nulls[NFILTERS + 2] = {0};
	SpiOwner	owner;
	Letter	   *letters;
	int			n;

	get_filter(fcinfo, "dead_letter_replay()", args, nulls);
	spi_plan_enter(&owner);
	if (!PG_ARGISNULL(0))
		(void) consumer_find(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	n = spi_plan_run(&plan, args, nulls, SPI_OK_UPDATE_RETURNING);
	letters = palloc0(sizeof(Letter) * Max(n, 1));
	{
		SPITupleTable *table = SPI_tuptable;

		for (int i = 0; i < n; i++)
		{
			Letter	   *letter = &letters[i];
			HeapTuple	tuple = table->vals[i];
			bool		isnull;
			bool		no_id;
			Datum		type = SPI_getbinval(tuple, table->tupdesc, 4, &isnull);
			Datum		id = SPI_getbinval(tuple, table->tupdesc, 5, &no_id);

			letter->dead_id = DatumGetInt64(SPI_getbinval(tuple, table->tupdesc, 1, &isnull));
			letter->seq = DatumGetInt64(SPI_getbinval(tuple, table->tupdesc, 2, &isnull));
			event_set_key(&letter->event, letter->seq, type, id, no_id);
			letter->consumer = consumer_find(SPI_getvalue(tuple, table->tupdesc, 3));
			letter->shard = event_shard(&letter->event, letter->consumer->shards);
		}
	}
	qsort(letters, n, sizeof(Letter), compare_letters);
	for (int i = 0, next; i < n; i = next)
	{
		Consumer   *consumer = letters[i].consumer;
		Consumer   *again;

		for (next = i; next < n; next++)
		{
			if (letters[next].consumer->number != consumer->number ||
				letters[next].shard != letters[i].shard)
				break;
		}
		(void) ledger_lock(consumer->number, letters[i].shard, true);
		again = consumer_find(consumer->name);
		if (again->number != consumer->number || again->shards != consumer->shards)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("consumer \"%s\" has just been changed", consumer->name),
					 errhint("Try again.")));
		replay_in_shard(&letters[i], next - i);
	}
	xactstate_tell();
	spi_plan_leave(&owner);
	PG_RETURN_INT32(n);
}

/* dead_letter_discard(...): the same arguments */
Datum
dead_letter_discard(PG_FUNCTION_ARGS)
{
	static SpiPlan plan = SPI_PLAN("DELETE FROM idemq.dead_letters WHERE dead_id IN"
								   " (SELECT dead_id FROM idemq.dead_letters WHERE" FILTER
								   " ORDER BY dead_id LIMIT $7 FOR UPDATE)",
								   7, FILTER_TYPES);
	Datum		args[NFILTERS + 1];
	char		nulls[NFILTERS + 2] = {0};
	SpiOwner	owner;
	int			n;

	get_filter(fcinfo, "dead_letter_discard()", args, nulls);
	spi_plan_enter(&owner);
	n = spi_plan_run(&plan, args, nulls, SPI_OK_DELETE);
	spi_plan_leave(&owner);
	PG_RETURN_INT32(n);
}
