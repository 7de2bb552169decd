/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Handing out events.
 *
 * A shard hands out, in this order: what was handed out before and has come back
 * (the lease ran out, or it was released), what was parked and is due, and what
 * the log holds; the last two take turns, so that neither starves.  An ordered shard
 * hands out nothing while a lease is out, and reads on only when all that came
 * back is dealt with.
 *
 * A lease that runs out says that the worker died, and spends no attempt of its
 * events.  After three, the batch is halved at each further one, until an event
 * is alone.  If that lets three leases run out, it is the event that kills
 * workers: it fails, with the error "lease expired", and is alone from then on.
 *
 * Everything that is written here is written under the shard lock, by one
 * transaction that commits or not; see ledger.c.
 *
 *-------------------------------------------------------------------------
 */
#include "lease.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "durable.h"
#include "outbox.h"
#include "parked.h"
#include "retry.h"
#include "window.h"

/* How many leases may run out before we suspect the events. */
#define MAX_EXPIRIES	3

/* A call reads that many rows for each event that is wanted. */
#define ROWS_PER_EVENT	10
#define ROWS_TO_MOVE_ON	10000
#define ROWS_TO_LOOK_AT	1000

/* Clocks of one machine may differ by that much; beyond, a lease is void. */
#define CLOCK_SLACK		(10 * USECS_PER_SEC)

/* A key that was looked up among the parked ones. */
typedef struct KeyEntry
{
	int64		key;
	bool		parked;
	int64		last_rank;		/* of those that are parked */
} KeyEntry;

/* The first parked event of a key. */
typedef struct KeyFirst
{
	int64		key;
	ParkedRef  *first;
} KeyFirst;

/* Is a lease out?  One that was granted in the future is void: the clock was set. */
bool
lease_is_valid(const Batch *batch, TimestampTz now)
{
	return batch->nevents > 0 && batch->token != 0 &&
		now < batch->until && now >= batch->granted_at - CLOCK_SLACK;
}

/* Was it given back for a time that is not over? */
static bool
is_waiting(const Batch *batch, TimestampTz now)
{
	return batch->nevents > 0 && batch->token == 0 &&
		now < batch->until && now >= batch->granted_at - CLOCK_SLACK;
}

/* Write down what has become of a batch, or of none; the list has all that are open. */
static void
append(ShardState *state, List *batches, Batch *batch)
{
	ledger_renew(state, batches, batch);
	ledger_append(state, batch);
}

/* Likewise, of one that begins. */
static void
append_new(ShardState *state, List *batches, Batch *batch)
{
	ledger_renew(state, batches, NULL);
	ledger_open_batch(state, batch);
	ledger_append(state, batch);
}

/* A token: 63 random bits. */
static int64
make_token(void)
{
	int64		token;

	do
	{
		if (!pg_strong_random(&token, sizeof(token)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random token")));
		token &= PG_INT64_MAX;
	} while (token == 0);
	return token;
}

/* Lease a batch. */
static void
grant(Batch *batch, const LeaseRequest *request, TimestampTz now)
{
	batch->token = make_token();
	batch->role = pstrdup(request->role);
	batch->granted_at = now;
	batch->until = now + request->duration;
	batch->deliveries++;
}

/* Take the first n events out of a batch that has more; the others wait for their turn. */
static void
split(ShardState *state, List **batches, Batch *batch, int n, TimestampTz now)
{
	Batch	   *rest = palloc(sizeof(Batch));

	*rest = *batch;
	rest->events += n;
	rest->nevents -= n;
	rest->token = 0;
	rest->role = NULL;
	rest->granted_at = now;
	rest->until = now;
	if (rest->nevents == 1)
		rest->expiries = 0;
	batch->nevents = n;
	if (n == 1)
		batch->expiries = 0;
	ledger_open_batch(state, rest);
	ledger_append(state, rest);
	*batches = lappend(*batches, rest);
}

/* The only event of a batch has let too many leases run out. */
static void
fail_expired(ShardState *state, const Consumer *consumer, List *batches, Batch *batch,
			 Event *event)
{
	RetryOutcome outcome;

	retry_fail(state, consumer, batch, event, "lease expired", -1, true, &outcome);
	parked_find_next_due(state);
	batch->token = 0;
	ledger_close_batch(state, batches, batch);
	append(state, batches, batch);
}

/* The first parked event of the key of an event of a batch; the last answers are kept. */
static const ParkedRef *
first_of_key(const ShardState *state, List **firsts, const Event *event)
{
	ListCell   *cell;
	KeyFirst   *answer;

	foreach(cell, *firsts)
	{
		answer = lfirst(cell);
		if (answer->key == event->key)
			return answer->first;
	}
	answer = palloc(sizeof(KeyFirst));
	answer->key = event->key;
	answer->first = parked_first_of_key(state, event->key);
	*firsts = lappend(*firsts, answer);
	return answer->first;
}

/* Has an event of the same key been parked that comes before this one of a batch? */
static bool
is_behind(const ShardState *state, const Batch *batch, const Event *event, List **firsts)
{
	const ParkedRef *first;

	if (!event->keyed || state->parked_events == 0)
		return false;
	first = first_of_key(state, firsts, event);
	if (first == NULL)
		return false;
	if (!batch->parked)
		return first->rank < event->number;
	for (int i = 0; i < batch->nevents; i++)
	{
		if (batch->events[i] == first->place)
			return false;
	}
	return parked_compare(first, event->ref) < 0;
}

/*
 * The events of a batch that are still to be handed out.  What is gone is left out;
 * so is what has to wait, since one before it has failed meanwhile.
 */
static Event *
read_what_is_left(ShardState *state, const Consumer *consumer, Batch *batch)
{
	Event	   *events = event_read_batch(state, batch);
	List	   *gone = NIL;
	List	   *firsts = NIL;
	ListCell   *cell;
	int			n = 0;

	for (int i = 0; i < batch->nevents; i++)
		events[i].chosen = !events[i].gone && consumer->ordered &&
			is_behind(state, batch, &events[i], &firsts);
	for (int i = 0; i < batch->nevents; i++)
	{
		Event	   *event = &events[i];

		if (event->gone)
		{
			if (event->ref != NULL)
				gone = lappend(gone, event->ref);
			continue;
		}
		if (event->chosen)
		{
			retry_park(state, batch, event, PARKED_BLOCKED, DT_NOEND);
			continue;
		}
		batch->events[n] = batch->events[i];
		events[n++] = *event;
	}
	batch->nevents = n;
	foreach(cell, gone)
		parked_done(state, lfirst(cell), consumer->ordered);
	return events;
}

/* Hand out a batch that has come back. */
static LeaseResult
hand_out_again(ShardState *state, const Consumer *consumer, List **batches, Batch *batch,
			   LeaseRequest *request, TimestampTz now)
{
	Event	   *events;

	if (batch->token != 0)
	{
		batch->expiries++;
		if (batch->nevents > 1 && batch->expiries >= MAX_EXPIRIES)
			split(state, batches, batch, (batch->nevents + 1) / 2, now);
	}
	if (batch->nevents > request->max_events)
		split(state, batches, batch, request->max_events, now);

	events = read_what_is_left(state, consumer, batch);
	if (batch->nevents == 0)
	{
		batch->token = 0;
		ledger_close_batch(state, *batches, batch);
		append(state, *batches, batch);
		return LEASE_MOVED_ON;
	}
	if (batch->nevents == 1 && batch->token != 0 &&
		(batch->expiries >= MAX_EXPIRIES || (events[0].ref != NULL && events[0].ref->alone)))
	{
		fail_expired(state, consumer, *batches, batch, &events[0]);
		return LEASE_MOVED_ON;
	}
	grant(batch, request, now);
	append(state, *batches, batch);
	for (int i = 0; i < batch->nevents; i++)
		request->hand_out(request, &events[i], batch);
	return LEASE_GOT;
}

/* In the order of the queues. */
static int
compare_refs(const ListCell *a, const ListCell *b)
{
	return parked_compare(lfirst(a), lfirst(b));
}

/* Hand out parked events that are due. */
static LeaseResult
hand_out_parked(ShardState *state, const Consumer *consumer, List *batches,
				LeaseRequest *request, TimestampTz now)
{
	List	   *refs = parked_due(state, now, request->max_events, consumer->ordered);
	Batch		batch = {0};
	Event	   *events;
	List	   *gone = NIL;
	int64	   *early;			/* keys of those that are not due after all */
	int			nearly = 0;
	int			n = 0;
	ListCell   *cell;

	list_sort(refs, compare_refs);
	batch.parked = true;
	batch.events = palloc(sizeof(int64) * list_length(refs));
	foreach(cell, refs)
		batch.events[batch.nevents++] = ((ParkedRef *) lfirst(cell))->place;

	early = palloc(sizeof(int64) * Max(batch.nevents, 1));
	events = event_read_batch(state, &batch);
	for (int i = 0; i < batch.nevents; i++)
	{
		Event	   *event = &events[i];
		bool		behind = false;

		if (event->gone)
		{
			gone = lappend(gone, event->ref);
			continue;
		}

		/* it was blocked, so nobody has looked at this yet */
		if (event->ref->attempts == 0 && !event->nulls[LOG_NOT_BEFORE] &&
			DatumGetTimestampTz(event->values[LOG_NOT_BEFORE]) > now)
		{
			early[nearly++] = event->key;
			retry_park(state, NULL, event, PARKED_DELAYED,
					   DatumGetTimestampTz(event->values[LOG_NOT_BEFORE]));
			continue;
		}
		for (int k = 0; k < nearly && consumer->ordered && !behind; k++)
			behind = early[k] == event->key;
		if (behind)
			continue;
		retry_park(state, NULL, event, PARKED_LEASED, DT_NOEND);
		batch.events[n] = batch.events[i];
		events[n++] = *event;
	}
	batch.nevents = n;
	foreach(cell, gone)
		parked_done(state, lfirst(cell), consumer->ordered);
	parked_find_next_due(state);
	if (n == 0)
	{
		append(state, batches, NULL);
		return LEASE_MOVED_ON;
	}
	grant(&batch, request, now);
	append_new(state, batches, &batch);

	/* nobody has been told of them, as a rule */
	durable_wait(XactLastRecEnd);
	for (int i = 0; i < n; i++)
		request->hand_out(request, &events[i], &batch);
	return LEASE_GOT;
}

/* Is an event to wait with others of its key?  Late: it comes before one of them. */
static bool
must_wait(const ShardState *state, HTAB **keys, const Event *event, bool just_parked,
		  bool *late)
{
	KeyEntry   *entry;
	bool		found;

	*late = false;
	if (!event->keyed || (state->parked_events == 0 && !just_parked))
		return false;
	if (*keys == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(int64),.entrysize = sizeof(KeyEntry),.hcxt = CurrentMemoryContext};

		*keys = hash_create("idemq keys", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(*keys, &event->key, HASH_ENTER, &found);
	if (!found)
		entry->last_rank = 0;
	if (just_parked)
	{
		entry->parked = true;
		entry->last_rank = Max(entry->last_rank, event->number);
	}
	else if (!found)
		entry->parked = parked_has_key(state, event->key, &entry->last_rank);
	*late = entry->parked && event->number < entry->last_rank;
	return entry->parked;
}

/* Open a window up to the present moment; false if none is to be opened. */
static bool
open_window(ShardState *state, const Consumer *consumer)
{
	if (state->replaying)
		moment_of_everything(&state->end);
	else if (consumer->next_shards == 0)
		moment_take(&state->end);
	else if (moment_equal(&state->start, &consumer->barrier))
		return false;
	else
		moment_copy(&state->end, &consumer->barrier);
	state->open = true;
	state->last_seq = 0;
	return true;
}

/* All of a window was read. */
static void
close_window(ShardState *state)
{
	state->open = false;
	state->last_seq = 0;
	if (state->replaying && state->end.next == PG_INT64_MAX)
	{
		/* now for what was written here */
		state->replaying = false;
		state->origins += state->norigins - 1;
		state->norigins = 1;
		moment_of_nothing(&state->start);
	}
	else
		state->start = state->end;
}

/* One event of the log: hand it out, or park it; true if it is in the batch. */
static bool
take_event(ShardState *state, const Consumer *consumer, Event *event, HTAB **keys,
		   TimestampTz now)
{
	bool		early = !event->nulls[LOG_NOT_BEFORE] &&
		DatumGetTimestampTz(event->values[LOG_NOT_BEFORE]) > now;
	bool		late;

	if (consumer->ordered && must_wait(state, keys, event, false, &late))
	{
		/* one that was committed late may be the first of them */
		if (late && parked_first_of_key(state, event->key)->rank > event->number)
		{
			retry_park(state, NULL, event, PARKED_DELAYED, now);
			state->next_due = Min(state->next_due, now);
		}
		else
			retry_park(state, NULL, event, PARKED_BLOCKED, DT_NOEND);
		return false;
	}
	if (early)
	{
		TimestampTz due = DatumGetTimestampTz(event->values[LOG_NOT_BEFORE]);

		retry_park(state, NULL, event, PARKED_DELAYED, due);
		state->next_due = Min(state->next_due, due);
		(void) must_wait(state, keys, event, true, &late);
		return false;
	}
	return true;
}

/* Hand out what the log holds. */
static LeaseResult
hand_out_log(ShardState *state, const Consumer *consumer, List *batches,
			 LeaseRequest *request, TimestampTz now)
{
	Batch		batch = {0};
	HTAB	   *keys = NULL;
	XLogRecPtr	safe = InvalidXLogRecPtr;	/* what must be, before it is told */
	bool		changed = false;
	int64		parked_before = state->next_place;
	uint64		limit = request->max_events > 0
		? (uint64) request->max_events * ROWS_PER_EVENT : ROWS_TO_MOVE_ON;

	batch.events = palloc(sizeof(int64) * Max(request->max_events, 1));
	grant(&batch, request, now);
	for (;;)
	{
		bool		fresh = !state->open;
		int64		before;
		WindowResult result;
		Window	   *window;
		LogRow		row;

		if (fresh && !open_window(state, consumer))
			break;
		before = state->last_seq;
		window = window_open(&state->start, &state->end, state->last_seq,
							 state->norigins - (state->replaying ? 1 : 0), state->origins, limit);
		while ((result = window_next(window, &row)) == WINDOW_ROW)
		{
			Event		event;

			state->last_seq = window_position(window);
			event_from_row(&row, &event);
			if (consumer_wants(consumer, &event) &&
				event_shard(&event, consumer->shards) == state->shard)
			{
				if (batch.nevents == request->max_events ||
					(batch.nevents > 0 &&
					 event.number - batch.events[batch.nevents - 1] > PG_INT32_MAX))
					break;
				if (take_event(state, consumer, &event, &keys, now))
				{
					batch.events[batch.nevents++] = event.number;
					safe = state->end.lsn;
					request->hand_out(request, &event, &batch);
				}
			}
			state->last_seq = event.number;
		}
		if (result != WINDOW_ROW)
			state->last_seq = window_position(window);
		changed = changed || state->last_seq != before || state->next_place != parked_before;
		window_close(window);
		if (result != WINDOW_EMPTY)
			break;

		/*
		 * an old window that is done leaves room for a new one; who resharded
		 * waits for it
		 */
		if (!fresh || state->replaying || consumer->next_shards != 0)
			changed = true;
		else if (batch.nevents == 0)
		{
			close_window(state);
			break;
		}
		close_window(state);
		if (batch.nevents > 0)
			break;
	}

	if (batch.nevents == 0 && !changed)
		return LEASE_NONE;
	if (batch.nevents > 0)
	{
		append_new(state, batches, &batch);
		durable_wait(Min(safe, XactLastRecEnd));
		return LEASE_GOT;
	}
	append(state, batches, NULL);
	return LEASE_MOVED_ON;
}

/*
 * Lease events of a shard whose lock we hold.
 *
 * With max_events 0 nothing is handed out: the position moves on up to what it
 * would be.
 */
LeaseResult
lease_take(const Consumer *consumer, int32 shard, LeaseRequest *request)
{
	TimestampTz now = clock_wall();
	ShardState	state;
	LeaseResult result = LEASE_NONE;
	LeaseResult one;
	List	   *batches;
	ListCell   *cell;
	bool		parked_first;

	if (!ledger_read(consumer->number, shard, &state))
		consumer_find_position(consumer, shard, &state);
	consumer_require_home(consumer, &state);
	parked_first = !state.batch.parked;
	batches = ledger_open_batches(&state);

	/* what has come back */
	if (consumer->ordered)
	{
		foreach(cell, batches)
		{
			if (lease_is_valid(lfirst(cell), now) || is_waiting(lfirst(cell), now))
				return LEASE_NONE;
		}
	}
	if (request->max_events == 0 && batches != NIL)
		return LEASE_NONE;
	foreach(cell, batches)
	{
		Batch	   *batch = lfirst(cell);

		if (lease_is_valid(batch, now) || is_waiting(batch, now))
			continue;
		one = hand_out_again(&state, consumer, &batches, batch, request, now);
		if (one == LEASE_GOT)
			return LEASE_GOT;
		result = Max(result, one);
	}

	/* what is due, and what is new */
	for (int i = 0; i < 2; i++)
	{
		if ((i == 0) == parked_first)
		{
			if (!parked_is_due(&state, now) || request->max_events == 0)
				continue;
			one = hand_out_parked(&state, consumer, batches, request, now);
		}
		else
			one = hand_out_log(&state, consumer, batches, request, now);
		if (one == LEASE_GOT)
			return LEASE_GOT;
		result = Max(result, one);
	}
	return result;
}

/* Is there anything for a shard between two moments? */
static bool
has_event(const ShardState *state, const Consumer *consumer, const Moment *start,
		  const Moment *end, int64 after)
{
	Window	   *window = window_open(start, end, after,
									 state->norigins - (state->replaying ? 1 : 0),
									 state->origins, ROWS_TO_LOOK_AT);
	WindowResult result;
	LogRow		row;

	while ((result = window_next(window, &row)) == WINDOW_ROW)
	{
		Event		event;

		event_from_row(&row, &event);
		if (consumer_wants(consumer, &event) &&
			event_shard(&event, consumer->shards) == state->shard)
			break;
	}
	window_close(window);

	/* if that was too much to look through, let a fetch move on */
	return result != WINDOW_EMPTY;
}

/*
 * Would a fetch find anything in a shard?  Takes no lock and writes nothing.  If
 * not, *next is when it will, as far as that is known now, if it is earlier.
 */
bool
lease_is_to_be_had(const Consumer *consumer, int32 shard, LeaseLook *look,
				   MemoryContext context, TimestampTz *next)
{
	TimestampTz now = clock_wall();
	ShardState	state;
	Moment		present;
	const Moment *from;
	bool		held = false;
	bool		found = false;
	ListCell   *cell;
	MemoryContext old;

	/* who has the lock will wake us */
	if (ledger_is_locked(consumer->number, shard))
		return false;
	if (!ledger_read(consumer->number, shard, &state) ||
		!consumer_is_home(&state))
		return true;
	foreach(cell, ledger_open_batches(&state))
	{
		Batch	   *batch = lfirst(cell);

		if (lease_is_valid(batch, now) || is_waiting(batch, now))
		{
			*next = Min(*next, batch->until);
			held = true;
		}
		else
			found = true;
	}
	if (held && consumer->ordered)
		return false;
	if (found)
		return true;
	if (parked_is_due(&state, now))
		return true;
	*next = Min(*next, state.next_due);
	if (state.replaying)
		return true;

	/* what we have looked at before need not be looked at again */
	from = &state.start;
	if (look->entry == state.entry)
		from = &look->upto;
	else if (state.open)
	{
		if (has_event(&state, consumer, &state.start, &state.end, state.last_seq))
			return true;
		from = &state.end;
	}
	if (consumer->next_shards != 0)
		return !moment_equal(&state.start, &consumer->barrier);
	moment_take(&present);
	if (has_event(&state, consumer, from, &present, 0))
		return true;
	if (look->entry != 0)
		pfree(look->upto.snapshot);
	old = MemoryContextSwitchTo(context);
	moment_copy(&look->upto, &present);
	MemoryContextSwitchTo(old);
	look->entry = state.entry;
	return false;
}
