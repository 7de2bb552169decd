/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  The events of a lease.
 *
 * Events of a key are chained in their order.  The first that is neither delivered
 * nor dead is the only one that may be sent, unless the destination keeps the order
 * of a key by itself.
 *
 *-------------------------------------------------------------------------
 */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

#include "flow.h"
#include "metrics.h"
#include "text.h"

/* A key of a batch. */
typedef struct Key
{
	uint64_t	hash;
	Event	   *last;			/* NULL: the entry is free */
} Key;

static bool pipelines;
static Batch *first;
static Batch *last;
static int	nbatches;
static int64_t memory;
static int64_t serial;

/* See batch.h. */
void
batch_start(bool destination_pipelines)
{
	pipelines = destination_pipelines;
#ifdef IDEMQ_TEST
	/* so that a test can show what goes wrong without the chains */
	if (getenv("RELAY_TEST_WITHOUT") != NULL && strcmp(getenv("RELAY_TEST_WITHOUT"), "chain") == 0)
		pipelines = true;
#endif
}

/* See batch.h. */
Batch *
batch_first(void)
{
	return first;
}

/* See batch.h. */
int
batch_count(void)
{
	return nbatches;
}

/* See batch.h. */
int64_t
batch_memory(void)
{
	return memory;
}

/* Memory, or the end. */
static void *
must(void *p)
{
	if (p == NULL)
		text_no_memory();
	return p;
}

/* See batch.h. */
Batch *
batch_make(const char *token)
{
	Batch	   *batch = must(calloc(1, sizeof(Batch)));

	strncpy(batch->token, token, sizeof(batch->token) - 1);
	batch->serial = ++serial;
	batch->prev = last;
	if (last != NULL)
		last->next = batch;
	else
		first = batch;
	last = batch;
	nbatches++;
	return batch;
}

/* FNV-1a, on top of another hash. */
static uint64_t
hash_text(uint64_t hash, const char *text)
{
	for (; *text != '\0'; text++)
		hash = (hash ^ (unsigned char) *text) * UINT64_C(0x100000001b3);
	return (hash ^ 0xff) * UINT64_C(0x100000001b3);
}

/* Are they of one key? */
static bool
same_key(const Event *a, const Event *b)
{
	return strcmp(a->message.aggregateid, b->message.aggregateid) == 0 &&
		strcmp(a->message.aggregatetype, b->message.aggregatetype) == 0;
}

/* Twice as many entries. */
static void
grow_keys(Batch *batch)
{
	Key		   *old = batch->keys;
	int			room = batch->key_room;

	batch->key_room = room > 0 ? room * 2 : 64;
	batch->keys = must(calloc(batch->key_room, sizeof(Key)));
	for (int i = 0; i < room; i++)
	{
		uint64_t	at = old[i].hash;

		if (old[i].last == NULL)
			continue;
		while (batch->keys[at & (batch->key_room - 1)].last != NULL)
			at++;
		batch->keys[at & (batch->key_room - 1)] = old[i];
	}
	free(old);
}

/* Put an event behind the last of its key. */
static void
chain(Batch *batch, Event *event)
{
	uint64_t	hash = UINT64_C(0xcbf29ce484222325);
	Key		   *key;

	if (event->message.aggregateid == NULL)
		return;
	hash = hash_text(hash_text(hash, event->message.aggregatetype), event->message.aggregateid);
	if (batch->nkeys * 2 >= batch->key_room)
		grow_keys(batch);
	for (uint64_t at = hash;; at++)
	{
		key = &batch->keys[at & (batch->key_room - 1)];
		if (key->last == NULL)
			break;
		if (key->hash == hash && same_key(key->last, event))
		{
			key->last->later = event;
			event->earlier = key->last;
			key->last = event;
			batch->count[event->state]--;
			event->state = EVENT_WAITING;
			batch->count[event->state]++;
			return;
		}
	}
	key->hash = hash;
	key->last = event;
	batch->nkeys++;
}

/* See batch.h. */
void
batch_add(Batch *batch, Event *event)
{
	if (batch->nevents == batch->room)
	{
		batch->room = batch->room > 0 ? batch->room * 2 : 16;
		batch->events = must(realloc(batch->events, sizeof(Event *) * batch->room));
	}
	event->batch = batch;
	event->number = batch->nevents;
	event->message.stop_at = &batch->stop_at;
	event->message.owner = event;
	event->state = EVENT_HELD;
	batch->count[event->state]++;
	batch->events[batch->nevents++] = event;
	chain(batch, event);
	memory += event->size;
}

/* See batch.h. */
void
batch_begin(Batch *batch)
{
	batch->begun = true;
	free(batch->keys);
	batch->keys = NULL;
	for (int i = 0; i < batch->nevents; i++)
	{
		Event	   *event = batch->events[i];

		/* heads of chains are held so far */
		if (event->state == EVENT_HELD || pipelines)
			event_set(event, EVENT_READY);
	}
	metrics_add(METRIC_HELD, batch->nevents);
	metrics_set(METRIC_MEMORY, memory);
}

/* See batch.h. */
void
batch_free(Batch *batch)
{
	if (batch->prev != NULL)
		batch->prev->next = batch->next;
	else
		first = batch->next;
	if (batch->next != NULL)
		batch->next->prev = batch->prev;
	else
		last = batch->prev;
	nbatches--;
	for (int i = 0; i < batch->nevents; i++)
	{
		Event	   *event = batch->events[i];

		if (event->state == EVENT_READY || event->state == EVENT_AGAIN)
			flow_remove(event);
		memory -= event->size;
		free(event->message.why);
		free(event);
	}
	if (batch->begun)
		metrics_add(METRIC_HELD, -batch->nevents);
	metrics_set(METRIC_MEMORY, memory);
	free(batch->keys);
	free(batch->events);
	free(batch);
}

/* See batch.h. */
bool
batch_is_settled(const Batch *batch)
{
	for (int state = 0; state <= EVENT_LAST_OPEN; state++)
	{
		if (batch->count[state] > 0)
			return false;
	}
	return batch->nout == 0;
}

/* See batch.h. */
void
event_set(Event *event, EventState state)
{
	if (event->state == state)
		return;
	if (event->state == EVENT_READY || event->state == EVENT_AGAIN)
		flow_remove(event);
	event->batch->count[event->state]--;
	event->state = state;
	event->batch->count[state]++;
	if (state == EVENT_READY || state == EVENT_AGAIN)
		flow_put(event);
}

/* See batch.h. */
void
batch_give_back(Batch *batch)
{
	batch->giving_back = true;
	for (int i = 0; i < batch->nevents; i++)
	{
		Event	   *event = batch->events[i];

		if (event->state == EVENT_WAITING || event->state == EVENT_READY ||
			event->state == EVENT_AGAIN)
			event_set(event, EVENT_LEFT);
	}
}

/* See batch.h. */
bool
event_is_held(const Event *event)
{
	for (const Event *earlier = event->earlier; earlier != NULL; earlier = earlier->earlier)
	{
		if (earlier->state == EVENT_TOLD || earlier->state == EVENT_DEFERRED)
			return true;
	}
	return false;
}

/* See batch.h. */
void
event_let_go(Event *event)
{
	bool		giving_back = event->batch->giving_back;
	bool		one = false;

	if (pipelines && event_is_held(event))
		return;
	for (Event *later = event->later; later != NULL; later = later->later)
	{
		bool		waiting = later->state == EVENT_WAITING;

		if (later->state == EVENT_TOLD || later->state == EVENT_DEFERRED)
			break;
		if (!waiting && later->state != EVENT_HELD)
			continue;
		if (giving_back)
			event_set(later, EVENT_LEFT);
		else if (pipelines || !one)
			event_set(later, EVENT_READY);
		else
			event_set(later, EVENT_WAITING);
		one = true;

		/* as a rule the others wait already */
		if (waiting && !giving_back && !pipelines)
			break;
	}
}

/* See batch.h. */
int
event_hold_later(Event *event)
{
	int			n = 0;

	for (Event *later = event->later; later != NULL; later = later->later)
	{
		if (later->state == EVENT_WAITING || later->state == EVENT_READY ||
			later->state == EVENT_AGAIN || (later->state == EVENT_LEFT && !later->out))
			event_set(later, EVENT_HELD);
		if (later->state == EVENT_HELD)
			n++;
	}
	return n;
}

/* See batch.h. */
void
event_set_held(Event *event, EventState state)
{
	for (Event *later = event->later; later != NULL; later = later->later)
	{
		if (later->state == EVENT_HELD)
			event_set(later, state);
	}
}
