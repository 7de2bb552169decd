/*-------------------------------------------------------------------------
 *
 * consume.c
 *	  Fetching events, and saying what has become of them.
 *
 * Nothing lives in the connection: a lease is known by its token, so each call may
 * come from another one.
 *
 *-------------------------------------------------------------------------
 */
#include "consume.h"

#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "clock.h"
#include "consumer.h"
#include "grants.h"
#include "lease.h"
#include "parked.h"
#include "reshard.h"
#include "retry.h"
#include "rowform.h"
#include "spi_plan.h"
#include "stats.h"
#include "xactstate.h"

PG_FUNCTION_INFO_V1(outbox_fetch);
PG_FUNCTION_INFO_V1(outbox_ack);
PG_FUNCTION_INFO_V1(outbox_nack);
PG_FUNCTION_INFO_V1(outbox_release);
PG_FUNCTION_INFO_V1(outbox_extend);

#define FETCH_COLUMNS	13

/* More events are not handed out at a time. */
#define MOST_EVENTS		100000

/* A hundred years, in microseconds. */
#define LONGEST_INTERVAL	(36525 * USECS_PER_DAY)

/* A lease that somebody holds, open for changes. */
typedef struct Held
{
	SpiOwner	owner;
	Consumer   *consumer;
	ShardState	state;
	List	   *batches;
	Batch	   *batch;			/* its events may all be done */
	Event	   *events;			/* NULL: not read */
} Held;

/* An interval, in microseconds; one that is longer than anybody waits is cut. */
int64
consume_interval(const Interval *interval)
{
	double		rough = (double) interval->time + (double) interval->day * USECS_PER_DAY +
		(double) interval->month * (DAYS_PER_MONTH * USECS_PER_DAY);

	if (rough > LONGEST_INTERVAL)
		return LONGEST_INTERVAL;
	if (rough < -LONGEST_INTERVAL)
		return -LONGEST_INTERVAL;
	return interval->time + interval->day * USECS_PER_DAY +
		interval->month * (DAYS_PER_MONTH * USECS_PER_DAY);
}

/* An interval that must be longer than nothing. */
static int64
get_positive_interval(FunctionCallInfo fcinfo, int argno, const char *what)
{
	int64		value = PG_ARGISNULL(argno) ? 0 : consume_interval(PG_GETARG_INTERVAL_P(argno));

	if (value <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be longer than nothing", what),
				 errhint("For example interval '1 minute'.")));
	return value;
}

/* An interval that may be missing, which is -1. */
static int64
get_optional_interval(FunctionCallInfo fcinfo, int argno, const char *what)
{
	int64		value;

	if (PG_ARGISNULL(argno))
		return -1;
	value = consume_interval(PG_GETARG_INTERVAL_P(argno));
	if (value < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", what)));
	return value;
}

/* Refuse a null where a value is needed. */
static void
require_argument(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be null", what)));
}

/* Put an event into the result of a fetch. */
static void
put_event(LeaseRequest *request, const Event *event, const Batch *batch)
{
	static const LogColumn columns[] = {
		LOG_ID, LOG_SEQ, LOG_AGGREGATETYPE, LOG_AGGREGATEID, LOG_TYPE, LOG_PAYLOAD, LOG_BODY,
		LOG_HEADERS, LOG_CAUSE
	};
	Datum		values[FETCH_COLUMNS];
	bool		nulls[FETCH_COLUMNS] = {false};
	int			n = 1;

	values[0] = Int64GetDatum(batch->token);
	for (int i = 0; i < lengthof(columns); i++, n++)
	{
		values[n] = event->values[columns[i]];
		nulls[n] = event->nulls[columns[i]];

		/* its partition may be gone when the result is read */
		if (!nulls[n] && columns[i] >= LOG_AGGREGATETYPE &&
			VARATT_IS_EXTERNAL(DatumGetPointer(values[n])))
			values[n] = PointerGetDatum(PG_DETOAST_DATUM(values[n]));
	}
	values[n++] = Int32GetDatum(event->ref != NULL ? event->ref->attempts + 1 : 1);
	values[n++] = Int32GetDatum(batch->deliveries +
								(event->ref != NULL ? event->ref->deliveries : 0));
	values[n] = event->values[LOG_CREATED_AT];
	nulls[n] = event->nulls[LOG_CREATED_AT];
	rowform_put(request->arg, values, nulls);
	for (int i = 0; i < lengthof(columns); i++)
	{
		if (!nulls[i + 1] && values[i + 1] != event->values[columns[i]])
			pfree(DatumGetPointer(values[i + 1]));
	}
}

/* outbox_fetch(consumer, max_events, lease) */
Datum
outbox_fetch(PG_FUNCTION_ARGS)
{
	LeaseRequest request = {0};
	RowForm		rows;
	SpiOwner	owner;
	Consumer   *consumer;
	char	   *name;
	int32		nshards;
	int32		first;

	rowform_begin(&rows, fcinfo);
	consumer_require_fresh_snapshot("outbox_fetch()");
	require_argument(fcinfo, 0, "consumer");
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_events must be at least 1")));
	request.max_events = Min(PG_GETARG_INT32(1), MOST_EVENTS);
	request.duration = get_positive_interval(fcinfo, 2, "lease");
	request.role = GetUserNameFromId(GetUserId(), false);
	request.hand_out = put_event;
	request.arg = &rows;

	spi_plan_enter(&owner);
	consumer = consumer_find(name);
	grants_require_consumer(owner.user, consumer->name, fcinfo->flinfo->fn_oid);
	nshards = consumer->shards;
	first = (int32) pg_prng_uint64_range(&pg_global_prng_state, 0, nshards - 1);
	for (int32 i = 0; i < nshards; i++)
	{
		int32		shard = (first + i) % nshards;
		LeaseResult got;
		Consumer   *again;

		CHECK_FOR_INTERRUPTS();
		if (!ledger_lock(consumer->number, shard, false))
			continue;

		/* it can be altered only by who has all these locks */
		again = consumer_find(name);
		if (again->number != consumer->number || again->shards != nshards)
		{
			ledger_unlock(consumer->number, shard);
			break;
		}
		consumer = again;
		got = lease_take(consumer, shard, &request);
		if (got == LEASE_NONE)
			ledger_unlock(consumer->number, shard);
		else
			xactstate_tell();
		if (got == LEASE_GOT)
		{
			stats_count_consumer(consumer->number, shard, CONSUMER_STAT_DELIVERED,
								 tuplestore_tuple_count(rows.store));
			break;
		}
	}
	rowform_end(&rows);
	if (tuplestore_tuple_count(rows.store) == 0 && consumer->next_shards != 0)
		(void) reshard_try(consumer);
	spi_plan_leave(&owner);
	return (Datum) 0;
}

/* Refuse a token that is no lease any more. */
static void
refuse_token(int64 token)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the lease of token " INT64_FORMAT " is over", token),
			 errdetail("It has run out, was taken over, or there never was one."),
			 errhint("Fetch again. If the work takes longer than the lease, call outbox_extend() in between.")));
}

/* Find the lease of a token among the open ones. */
static Batch *
find_batch(Held *held, int64 token)
{
	ListCell   *cell;

	foreach(cell, held->batches)
	{
		Batch	   *batch = lfirst(cell);

		if (batch->token == token)
			return batch;
	}
	return NULL;
}

/* Open the lease of a token for changes. */
static void
hold_lease(FunctionCallInfo fcinfo, const char *function, Held *held)
{
	int64		token;
	int32		number;
	int32		shard;
	char	   *role;

	consumer_require_fresh_snapshot(function);
	require_argument(fcinfo, 0, "token");
	token = PG_GETARG_INT64(0);

	memset(held, 0, sizeof(Held));
	spi_plan_enter(&held->owner);
	if (!ledger_find_token(token, &number, &shard, &role))
		refuse_token(token);
	held->consumer = consumer_by_number(number);
	if (held->consumer == NULL)
		refuse_token(token);
	grants_require_consumer(held->owner.user, held->consumer->name, fcinfo->flinfo->fn_oid);
	if (role == NULL || strcmp(role, GetUserNameFromId(held->owner.user, false)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("the lease of token " INT64_FORMAT " is another role's", token)));

	(void) ledger_lock(number, shard, true);
	held->consumer = consumer_by_number(number);
	if (held->consumer == NULL || !ledger_read(number, shard, &held->state))
		refuse_token(token);
	held->batches = ledger_open_batches(&held->state);
	held->batch = find_batch(held, token);
	if (held->batch == NULL)
	{
		/* all its events may have been dealt with, one by one */
		if (!ledger_is_done(&held->state, token))
			refuse_token(token);
		held->batch = palloc0(sizeof(Batch));
		held->batch->token = token;
	}
	else if (!lease_is_valid(held->batch, clock_wall()))
		refuse_token(token);
}

/* Write down what has become of it. */
static void
keep_lease(Held *held, int nleft)
{
	held->batch->nevents = nleft;
	if (nleft == 0)
		ledger_close_batch(&held->state, held->batches, held->batch);
	parked_find_next_due(&held->state);
	ledger_renew(&held->state, held->batches, held->batch);
	ledger_append(&held->state, held->batch);
	xactstate_tell();
}

/* In some order. */
static int
compare_ids(const void *a, const void *b)
{
	return memcmp(a, b, UUID_LEN);
}

/* Read the events of the lease, and choose those with these ids; all if it is NULL. */
static int
choose_events(Held *held, ArrayType *ids)
{
	Datum	   *elements;
	bool	   *nulls;
	pg_uuid_t  *wanted;
	int			nids;
	int			nwanted = 0;
	int			nchosen = 0;

	held->events = event_read_batch(&held->state, held->batch);
	if (ids == NULL)
	{
		for (int i = 0; i < held->batch->nevents; i++)
			held->events[i].chosen = true;
		return held->batch->nevents;
	}
	deconstruct_array(ids, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &elements, &nulls, &nids);
	wanted = palloc(sizeof(pg_uuid_t) * Max(nids, 1));
	for (int i = 0; i < nids; i++)
	{
		if (!nulls[i])
			wanted[nwanted++] = *DatumGetUUIDP(elements[i]);
	}
	qsort(wanted, nwanted, sizeof(pg_uuid_t), compare_ids);
	for (int i = 0; i < held->batch->nevents; i++)
	{
		Event	   *event = &held->events[i];

		event->chosen = !event->gone &&
			bsearch(DatumGetUUIDP(event->values[LOG_ID]), wanted, nwanted, sizeof(pg_uuid_t),
					compare_ids) != NULL;
		nchosen += event->chosen;
	}
	return nchosen;
}

/* Take the events that were chosen out of the batch; returns how many are left. */
static int
remove_chosen(Held *held)
{
	int			n = 0;

	for (int i = 0; i < held->batch->nevents; i++)
	{
		if (!held->events[i].chosen)
			held->batch->events[n++] = held->batch->events[i];
	}
	return n;
}

/* Of one key: where in the batch the first event is that stays, and the last that is chosen. */
typedef struct KeyPlaces
{
	int64		key;
	int			first_left;
	int			last_chosen;
} KeyPlaces;

/* Find that out for each key of the batch. */
static HTAB *
find_places(const Held *held)
{
	HASHCTL		control = {.keysize = sizeof(int64),.entrysize = sizeof(KeyPlaces),.hcxt = CurrentMemoryContext};
	HTAB	   *places = hash_create("idemq keys", 256, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	for (int i = 0; i < held->batch->nevents; i++)
	{
		const Event *event = &held->events[i];
		bool		found;
		KeyPlaces  *entry = hash_search(places, &event->key, HASH_ENTER, &found);

		if (!found)
		{
			entry->first_left = INT_MAX;
			entry->last_chosen = -1;
		}
		if (event->chosen)
			entry->last_chosen = i;
		else
			entry->first_left = Min(entry->first_left, i);
	}
	return places;
}

/*
 * The parked events that were chosen are done.  Of each key the last lets the next
 * go, unless one before it stays in the batch.
 */
static void
finish_chosen(Held *held)
{
	HTAB	   *places = find_places(held);

	for (int i = 0; i < held->batch->nevents; i++)
	{
		Event	   *event = &held->events[i];
		const KeyPlaces *entry;

		if (!event->chosen || event->ref == NULL)
			continue;
		entry = hash_search(places, &event->key, HASH_FIND, NULL);
		parked_done(&held->state, event->ref, held->consumer->ordered &&
					entry->last_chosen == i && entry->first_left > i);
	}
}

/* outbox_ack(token, ids) */
Datum
outbox_ack(PG_FUNCTION_ARGS)
{
	ArrayType  *ids = PG_ARGISNULL(1) ? NULL : PG_GETARG_ARRAYTYPE_P(1);
	Held		held;
	int			n = 0;

	hold_lease(fcinfo, "outbox_ack()", &held);
	if (held.batch->nevents > 0)
	{
		int			left = 0;

		/* what was not parked leaves no trace, so it need not be read */
		n = held.batch->nevents;
		if (ids != NULL || held.batch->parked)
		{
			n = choose_events(&held, ids);
			if (held.batch->parked)
				finish_chosen(&held);
			left = remove_chosen(&held);
		}
		if (n > 0)
			keep_lease(&held, left);
		stats_count_consumer(held.consumer->number, held.state.shard, CONSUMER_STAT_ACKED, n);
	}
	spi_plan_leave(&held.owner);
	PG_RETURN_INT32(n);
}

/*
 * In an ordered batch the later events of a key whose event is parked are parked
 * behind it; returns their ids.
 */
static List *
withdraw_later(Held *held, int at)
{
	const Event *head = &held->events[at];
	List	   *ids = NIL;

	if (!held->consumer->ordered || !head->keyed)
		return NIL;
	for (int i = at + 1; i < held->batch->nevents; i++)
	{
		Event	   *event = &held->events[i];

		if (event->chosen || event->gone || event->key != head->key)
			continue;
		event->chosen = true;
		retry_park(&held->state, held->batch, event, PARKED_BLOCKED, DT_NOEND);
		ids = lappend(ids, DatumGetUUIDP(event->values[LOG_ID]));
	}
	return ids;
}

/* Ids, as an array. */
static Datum
form_ids(const List *ids)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(list_length(ids), 1));
	int			n = 0;
	ListCell   *cell;

	foreach(cell, ids)
		elements[n++] = UUIDPGetDatum((pg_uuid_t *) lfirst(cell));
	return PointerGetDatum(construct_array(elements, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}

/* outbox_nack(token, id, error, retry_in) */
Datum
outbox_nack(PG_FUNCTION_ARGS)
{
	int64		retry_in = get_optional_interval(fcinfo, 3, "retry_in");
	char	   *error = PG_ARGISNULL(2) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(2));
	pg_uuid_t  *id;
	MemoryContext caller = CurrentMemoryContext;
	TupleDesc	desc;
	Held		held;
	RetryOutcome outcome;
	List	   *withdrawn = NIL;
	int			at;
	Datum		values[4];
	bool		nulls[4] = {false};
	MemoryContext old;

	require_argument(fcinfo, 1, "id");
	id = PG_GETARG_UUID_P(1);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(desc);

	hold_lease(fcinfo, "outbox_nack()", &held);
	held.events = event_read_batch(&held.state, held.batch);
	for (at = 0; at < held.batch->nevents; at++)
	{
		if (!held.events[at].gone &&
			memcmp(id, DatumGetUUIDP(held.events[at].values[LOG_ID]), UUID_LEN) == 0)
			break;
	}
	if (at == held.batch->nevents)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("event %s is not in the lease",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id)))),
				 errhint("It was acknowledged, withdrawn or given back already, or never was.")));

	held.events[at].chosen = true;
	retry_fail(&held.state, held.consumer, held.batch, &held.events[at], error, retry_in, false,
			   &outcome);
	if (!outcome.dead)
		withdrawn = withdraw_later(&held, at);
	keep_lease(&held, remove_chosen(&held));

	old = MemoryContextSwitchTo(caller);
	values[0] = CStringGetTextDatum(outcome.dead ? "dead" : "retry");
	values[1] = Int32GetDatum(outcome.attempt);
	values[2] = TimestampTzGetDatum(outcome.retry_at);
	nulls[2] = outcome.dead;
	values[3] = form_ids(withdrawn);
	MemoryContextSwitchTo(old);
	spi_plan_leave(&held.owner);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/* outbox_release(token, ids, retry_in) */
Datum
outbox_release(PG_FUNCTION_ARGS)
{
	ArrayType  *ids = PG_ARGISNULL(1) ? NULL : PG_GETARG_ARRAYTYPE_P(1);
	int64		retry_in = get_optional_interval(fcinfo, 2, "retry_in");
	TimestampTz now = clock_wall();
	TimestampTz due = now + Max(retry_in, 0);
	Held		held;
	int			n = 0;

	hold_lease(fcinfo, "outbox_release()", &held);
	if (held.batch->nevents > 0 && ids == NULL)
	{
		/* as it is: it is handed out again before anything else */
		n = held.batch->nevents;
		held.batch->token = 0;
		held.batch->granted_at = now;
		held.batch->until = due;
		held.batch->expiries = 0;
		keep_lease(&held, n);
	}
	else if (held.batch->nevents > 0)
	{
		int			before = choose_events(&held, ids);

		for (int i = 0; i < held.batch->nevents && before > 0; i++)
		{
			Event	   *event = &held.events[i];

			/* one that was withdrawn has its reference by now */
			if (!event->chosen || (event->ref != NULL && event->ref->state == PARKED_BLOCKED))
				continue;
			retry_park(&held.state, held.batch, event, PARKED_DELAYED, due);
			for (int k = i + 1; k < held.batch->nevents; k++)
			{
				if (held.consumer->ordered && event->keyed && held.events[k].key == event->key)
					held.events[k].chosen = false;
			}
			(void) withdraw_later(&held, i);
		}
		for (int i = 0; i < held.batch->nevents; i++)
			n += held.events[i].chosen;
		if (n > 0)
			keep_lease(&held, remove_chosen(&held));
	}
	spi_plan_leave(&held.owner);
	PG_RETURN_INT32(n);
}

/* outbox_extend(token, lease) */
Datum
outbox_extend(PG_FUNCTION_ARGS)
{
	int64		duration = get_positive_interval(fcinfo, 1, "lease");
	TimestampTz now = clock_wall();
	Held		held;

	hold_lease(fcinfo, "outbox_extend()", &held);
	if (held.batch->nevents == 0)
		refuse_token(held.batch->token);
	held.batch->granted_at = now;
	held.batch->until = now + duration;
	ledger_renew(&held.state, held.batches, held.batch);
	ledger_append(&held.state, held.batch);
	spi_plan_leave(&held.owner);
	PG_RETURN_TIMESTAMPTZ(now + duration);
}
