/*-------------------------------------------------------------------------
 *
 * settle.c
 *	  What became of the events, and telling the database.
 *
 * A batch ends with one outbox_ack() without ids, if all that is left in its lease
 * was delivered.  Without ids it takes whatever is left, so that must be known: what
 * failed, was withdrawn or given back is out of the lease when the database has said so.  If
 * something was not delivered, or an answer was lost and with it the knowledge, what was delivered is
 * acknowledged by its ids, and what is left is given back, whole: that is one row, and it is handed
 * out again before anything else.
 *
 * A lease that is long in use is extended at a third of its time, and what was
 * delivered until then is acknowledged, so that a crash repeats less.  Up to five
 * sixths of it events are sent (stop_at), counted from before the database was
 * asked, so the database's end is later than ours whatever the network does.
 *
 *-------------------------------------------------------------------------
 */
#include "settle.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "flow.h"
#include "log.h"
#include "metrics.h"
#include "suspect.h"
#include "text.h"

/* Of the destination's words, so many bytes are kept. */
#define LONGEST_ERROR 2000

/* A command about some events of a batch. */
typedef struct Ask
{
	Batch	   *batch;
	int			n;
	Event	   *events[];
} Ask;

static Db  *db;
static int64_t lease;
static int64_t backoff_most;
static bool pipelines;
static const SettleWatch *watch;

/* See settle.h. */
void
settle_start(Db *work, int64_t lease_time, int64_t most, bool destination_pipelines,
			 const SettleWatch *relay)
{
	db = work;
	lease = lease_time;
	backoff_most = most;
	pipelines = destination_pipelines;
	watch = relay;
	batch_start(pipelines);
}

/* See settle.h. */
int64_t
settle_patience(void)
{
	return lease / 3 > SECONDS(5) ? lease / 3 : SECONDS(5);
}

/* See settle.h. */
char *
settle_interval(int64_t time)
{
	return format("%lld microseconds", (long long) time);
}

/* The lease counts from then. */
static void
set_lease(Batch *batch, int64_t from)
{
	batch->leased_at = from;
	batch->extend_at = from + lease / 3;
	atomic_store(&batch->stop_at, from + lease / 6 * 5);
}

/* Its lease has ended: whatever is left of it is somebody else's. */
static void
set_over(Batch *batch, const char *why)
{
	char		undelivered[16];
	int			n = batch->ndropped;

	if (batch->over)
		return;
	for (int state = 0; state < NEVENT_STATES; state++)
	{
		if (state != EVENT_ACKED && state != EVENT_GONE)
			n += batch->count[state];
	}
	snprintf(undelivered, sizeof(undelivered), "%d", n);
	batch->over = true;
	atomic_store(&batch->stop_at, 0);
	metrics_add(METRIC_LEASES_LOST, 1);
	log_line(batch->late ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING, "a lease has ended too early, its events will be delivered again",
			 "events", undelivered, "reason", why, NULL);
	batch_give_back(batch);
	if (batch->nout > 0)
		flow_abort();
}

/* A command about a batch was refused. */
static void
take_refusal(Batch *batch, const DbAnswer *answer)
{
	if (strcmp(answer->sqlstate, "55000") == 0)
		set_over(batch, answer->message);
	else
		watch->refused(answer);
}

/* A command about a batch, with its token. */
static DbCommand *
make_command(Batch *batch, const char *sql, void (*done) (DbCommand *, const DbAnswer *), void *arg)
{
	DbCommand  *command = db_command(sql, settle_patience(), done, arg);

	db_param(command, format("%s", batch->token));
	return command;
}

/* One about all events of a state, which are put into the other one if that is another. */
static Ask *
make_ask(Batch *batch, EventState state, EventState then)
{
	Ask		   *ask = malloc(sizeof(Ask) + sizeof(Event *) * batch->count[state]);

	if (ask == NULL)
		text_no_memory();
	ask->batch = batch;
	ask->n = 0;
	for (int i = 0; i < batch->nevents; i++)
	{
		Event	   *event = batch->events[i];

		if (event->state != state)
			continue;
		ask->events[ask->n++] = event;
		event_set(event, then);
	}
	return ask;
}

/* Their ids, as an array. */
static char *
form_ids(const Ask *ask)
{
	Text		text = {0};

	text_add_char(&text, '{');
	for (int i = 0; i < ask->n; i++)
	{
		if (i > 0)
			text_add_char(&text, ',');
		text_add_bytes(&text, ask->events[i]->message.id, 36);
	}
	text_add_char(&text, '}');
	return text.data;
}

/* The number that a command has returned. */
static int
number_of(const DbAnswer *answer)
{
	return atoi(PQgetvalue(answer->result, 0, 0));
}

/* A batch is done with. */
static void
end_batch(Batch *batch)
{
	bool		delivered = batch->count[EVENT_DELIVERED] + batch->count[EVENT_ACKED] > 0;

	batch_free(batch);
	watch->ended(delivered);
}

/* outbox_extend() */
static void
take_extension(DbCommand *command, const DbAnswer *answer)
{
	Batch	   *batch = command->arg;

	batch->extending = false;
	if (answer->fate == DB_DONE)
	{
		metrics_add(METRIC_EXTENSIONS, 1);
		if (!batch->over)
			set_lease(batch, command->sent_at);
	}
	else
		take_refusal(batch, answer);
}

/* Ask for a longer lease, before anything else. */
static void
ask_extension(Batch *batch)
{
	DbCommand  *command = make_command(batch, "SELECT @.outbox_extend($1::bigint, $2::interval)",
									   take_extension, batch);

	db_param(command, settle_interval(lease));
	batch->extending = true;
	db_ask_first(db, command);
}

/* outbox_ack() with ids */
static void
take_part_ack(DbCommand *command, const DbAnswer *answer)
{
	Ask		   *ask = command->arg;
	Batch	   *batch = ask->batch;

	batch->nasked--;
	if (answer->fate == DB_DONE)
	{
		for (int i = 0; i < ask->n; i++)
			event_set(ask->events[i], EVENT_ACKED);
		metrics_add(METRIC_ACKED, ask->n);
	}
	else
		take_refusal(batch, answer);
}

/* Acknowledge what was delivered so far. */
static void
ask_part_ack(Batch *batch)
{
	Ask		   *ask = make_ask(batch, EVENT_DELIVERED, EVENT_DELIVERED);
	DbCommand  *command = make_command(batch, "SELECT @.outbox_ack($1::bigint, $2::uuid[])",
									   take_part_ack, ask);

	db_param(command, form_ids(ask));
	command->owns_arg = true;
	batch->nasked++;
	db_ask(db, command);
}

/* outbox_ack() without ids */
static void
take_ack(DbCommand *command, const DbAnswer *answer)
{
	Batch	   *batch = command->arg;

	batch->nasked--;
	if (answer->fate == DB_DONE)
		metrics_add(METRIC_ACKED, batch->count[EVENT_DELIVERED]);
	else
		take_refusal(batch, answer);
}

/* outbox_release() without ids */
static void
take_release(DbCommand *command, const DbAnswer *answer)
{
	Batch	   *batch = command->arg;

	batch->nasked--;
	if (answer->fate == DB_DONE)
		metrics_add(METRIC_RELEASED, number_of(answer));
	else if (batch->uncertain && strcmp(answer->sqlstate, "55000") == 0)
		batch->over = true;		/* there was nothing in it after all */
	else
		take_refusal(batch, answer);
}

/* Ask for the end of a batch whose events are settled; it is over when all is answered. */
static void
ask_end(Batch *batch)
{
	bool		left = batch->count[EVENT_LEFT] + batch->ndropped > 0 || batch->uncertain;

	batch->ending = true;
	if (batch->over)
		return;
	if (!left && batch->count[EVENT_DELIVERED] > 0)
	{
		batch->nasked++;
		db_ask(db, make_command(batch, "SELECT @.outbox_ack($1::bigint)", take_ack, batch));
	}
	else if (left && batch->count[EVENT_DELIVERED] > 0)
	{
		/*
		 * one after the other: a command that meets an error is put behind
		 * others
		 */
		batch->ending = false;
		ask_part_ack(batch);
	}
	else if (left)
	{
		batch->nasked++;
		db_ask(db, make_command(batch, "SELECT @.outbox_release($1::bigint)", take_release, batch));
	}
}

/* How many bytes of UTF-8 begin here, 0 if it is something else. */
static int
utf8_length(const char *text)
{
	const unsigned char *s = (const unsigned char *) text;
	int			length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

	for (int i = 1; i < length; i++)
	{
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	}
	if ((length == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))) ||
		(length == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))))
		return 0;
	return length;
}

/* The destination's words, as the database can store them. */
static char *
clean(const char *why)
{
	Text		text = {0};

	if (why == NULL)
		return format("rejected");
	while (*why != '\0' && text.length < LONGEST_ERROR)
	{
		int			length = utf8_length(why);

		if (length == 0)
			text_add_char(&text, '?');
		else
			text_add_bytes(&text, why, length);
		why += length > 0 ? length : 1;
	}
	if (text.data == NULL)
		return format("rejected");
	return text.data;
}

/* An event is not in the lease any more, and later ones of its key may not be either. */
static void
set_lost(Event *event)
{
	event->batch->uncertain = true;
	event_set(event, EVENT_GONE);
	event_set_held(event, EVENT_LEFT);
}

/* Events that were withdrawn: an array of uuid as text, in the order of the batch. */
static int
take_withdrawn(Event *event, const char *ids)
{
	Batch	   *batch = event->batch;
	int			at = event->number;
	int			n = 0;

	for (ids++; *ids != '}' && *ids != '\0'; ids += 37)
	{
		int			looked;

		for (looked = 0; looked < batch->nevents; looked++)
		{
			at = at + 1 < batch->nevents ? at + 1 : 0;
			if (memcmp(batch->events[at]->message.id, ids, 36) == 0)
				break;
		}
		if (looked < batch->nevents)
			event_set(batch->events[at], EVENT_GONE);
		n++;
	}
	return n;
}

/* How often something was said of late. */
typedef struct Told
{
	int64_t		period;
	int			n;
	int			passed_over;
} Told;

/* Say it of one more?  When it is so with all of them, ten in ten seconds are enough to see why. */
static bool
should_tell(Told *told, const char *more, bool always)
{
	int64_t		now = clock_now();
	char		number[16];

	if (now - told->period >= SECONDS(10))
	{
		snprintf(number, sizeof(number), "%d", told->passed_over);
		if (told->passed_over > 0)
			log_line(LOG_LEVEL_WARNING, more, "events", number, NULL);
		told->period = now;
		told->n = told->passed_over = 0;
	}
	if (told->n++ < 10 || always)
		return true;
	told->passed_over++;
	return false;
}

/* Say that an event was rejected. */
static void
tell_rejection(const Event *event, const char *why, const char *action, const char *attempt)
{
	static Told told;

	if (!should_tell(&told, "more events were rejected", strcmp(action, "dead") == 0))
		return;
	log_line(LOG_LEVEL_WARNING, "an event was rejected", "id", event->message.id, "attempt", attempt,
			 "then", action, "reason", why, NULL);
}

/* outbox_nack() */
static void
take_nack(DbCommand *command, const DbAnswer *answer)
{
	Event	   *event = command->arg;
	Batch	   *batch = event->batch;

	batch->nasked--;
	if (answer->fate == DB_DONE)
	{
		bool		dead = strcmp(PQgetvalue(answer->result, 0, 0), "dead") == 0;
		int			withdrawn = take_withdrawn(event, PQgetvalue(answer->result, 0, 2));

		metrics_add(dead ? METRIC_DEAD : METRIC_RETRIED, 1);
		tell_rejection(event, command->params[2], PQgetvalue(answer->result, 0, 0),
					   PQgetvalue(answer->result, 0, 1));
		event_set(event, EVENT_GONE);

		/* nothing was withdrawn if it is dead, or the consumer is not ordered */
		if (withdrawn == 0)
			event_let_go(event);
		else if (event_hold_later(event) > 0)
			set_lost(event);
		return;
	}
	if (strcmp(answer->sqlstate, "22023") == 0)
		set_lost(event);
	else
	{
		event_set(event, EVENT_LEFT);
		event_set_held(event, EVENT_LEFT);
		take_refusal(batch, answer);
	}
}

/* An event is at fault. */
static void
ask_nack(Event *event)
{
	Batch	   *batch = event->batch;
	DbCommand  *command = make_command(batch, "SELECT action, attempt, withdrawn FROM @.outbox_nack($1::bigint, $2::uuid, $3, $4::interval)",
									   take_nack, event);
	char	   *why = clean(event->message.why);

	db_param(command, format("%s", event->message.id));
	db_param(command, why);
	db_param(command, event->message.retry_after > 0 ? settle_interval(event->message.retry_after) : NULL);
	event_set(event, EVENT_TOLD);
	event_hold_later(event);
	batch->nasked++;
	db_ask(db, command);
}

/* outbox_release() with ids */
static void
take_part_release(DbCommand *command, const DbAnswer *answer)
{
	Ask		   *ask = command->arg;
	Batch	   *batch = ask->batch;

	batch->nasked--;
	if (answer->fate == DB_DONE)
	{
		int			n = number_of(answer);
		int			held = 0;

		metrics_add(METRIC_RELEASED, n);
		for (int i = 0; i < ask->n; i++)
		{
			held += event_hold_later(ask->events[i]);
			event_set(ask->events[i], EVENT_GONE);
		}

		/* if no later ones went with them, the consumer is not ordered */
		for (int i = 0; i < ask->n; i++)
		{
			if (n == ask->n)
				event_let_go(ask->events[i]);
			else
				event_set_held(ask->events[i], EVENT_GONE);
		}
		if (n != ask->n && n != ask->n + held)
			batch->uncertain = true;
	}
	else
	{
		for (int i = 0; i < ask->n; i++)
		{
			event_set(ask->events[i], EVENT_LEFT);
			event_set_held(ask->events[i], EVENT_LEFT);
		}
		take_refusal(batch, answer);
	}
}

/* Give back those that the destination does not take now. */
static void
ask_part_release(Batch *batch)
{
	Ask		   *ask = make_ask(batch, EVENT_DEFERRED, EVENT_TOLD);
	DbCommand  *command = make_command(batch, "SELECT @.outbox_release($1::bigint, $2::uuid[], $3::interval)",
									   take_part_release, ask);

	db_param(command, form_ids(ask));
	command->owns_arg = true;
	db_param(command, settle_interval(batch->deferred_for));
	batch->deferred_for = 0;
	batch->nasked++;
	db_ask(db, command);
}

/* Give one back for so long, with the later ones of its key. */
static void
defer_for(Event *event, int64_t wait)
{
	static Told told;
	Batch	   *batch = event->batch;
	char	   *shown = format("%.1fs", wait / 1e6);
	char	   *why = clean(event->message.why);

	/* what opens the breaker has been told */
	if (!batch->giving_back && should_tell(&told, "more events were not taken", false))
		log_line(LOG_LEVEL_WARNING, "an event was not taken, others go on", "id", event->message.id,
				 "retry_in", shown, "reason", why, NULL);
	free(shown);
	free(why);
	if (batch->deferred_for < wait)
		batch->deferred_for = wait;
	event_set(event, EVENT_DEFERRED);
	event_hold_later(event);
}

/*
 * One is not taken now.  If none is, that is trouble.  Only the one that tells us so is set aside, so that
 * another one is tried next; setting aside each would cost a row for all there are.
 */
static void
defer(Event *event)
{
	const Message *message = &event->message;
	int			times = message->deliveries - 1;
	int64_t		wait = SECONDS(1) << (times < 0 ? 0 : times < 20 ? times : 20);
	int64_t		longer;

	if (message->retry_after > 0)
	{
		defer_for(event, message->retry_after);
		return;
	}
	if (event->batch->giving_back)
	{
		event_set(event, EVENT_LEFT);
		return;
	}
	wait = clock_jitter(wait < backoff_most ? wait : backoff_most);
	suspect_put_off(message, &longer);
	if (suspect_none_gets_through())
		wait = longer + watch->trouble(message->why, 0);
	defer_for(event, wait);
}

/* The destination is in trouble, as far as that can be told from one event. */
static void
take_trouble(Event *event)
{
	const Message *message = &event->message;
	int64_t		wait;

	if (!message->answered)
	{
		event_set(event, EVENT_LEFT);
		watch->trouble(message->why, message->retry_after);
	}
	else if (suspect_failed(message, &wait))
		ask_nack(event);
	else if (suspect_none_gets_through())
		defer_for(event, watch->trouble(message->why, message->retry_after) + wait);
	else
		defer_for(event, wait > message->retry_after ? wait : message->retry_after);
}

/* It was not delivered, and is nothing to worry about. */
static void
put_back(Event *event, EventState state)
{
	if (event->batch->giving_back)
	{
		event_set(event, EVENT_LEFT);
		if (event->unfit != NULL)
			event_set_held(event, EVENT_LEFT);
	}
	else if (pipelines && event_is_held(event))
		event_set(event, EVENT_HELD);
	else
		event_set(event, state);
}

/* One has come back. */
static void
take_event(Event *event, bool was_alone)
{
	Outcome		outcome = event->message.outcome;

	/* it was withdrawn meanwhile */
	if (event->state != EVENT_SENT)
		return;

	/* alone it has nobody else to blame */
	if (outcome == OUTCOME_AGAIN && was_alone)
		outcome = OUTCOME_REJECTED;
	if (event->batch->over && outcome != OUTCOME_DELIVERED)
		outcome = OUTCOME_RETURNED;
	switch (outcome)
	{
		case OUTCOME_DELIVERED:
			event_set(event, EVENT_DELIVERED);
			suspect_delivered(&event->message);
			if (!pipelines)
				event_let_go(event);
			watch->delivered();
			break;
		case OUTCOME_REJECTED:
			ask_nack(event);
			break;
		case OUTCOME_DEFERRED:
			defer(event);
			break;
		case OUTCOME_TROUBLE:

			/*
			 * what we have dropped ourselves says nothing about the
			 * destination
			 */
			if (!flow_is_aborting())
				take_trouble(event);
			else
				put_back(event, EVENT_READY);
			break;
		case OUTCOME_AGAIN:
			put_back(event, EVENT_AGAIN);
			break;
		case OUTCOME_NONE:
		case OUTCOME_RETURNED:
			put_back(event, EVENT_READY);
			break;
	}
}

/* See settle.h. */
bool
settle_take(void)
{
	Event	   *event;
	bool		was_alone;
	bool		any = false;

	while ((event = flow_take(&was_alone)) != NULL)
	{
		take_event(event, was_alone);
		free(event->message.why);
		event->message.why = NULL;
		any = true;
	}
	return any;
}

/* See settle.h. */
void
settle_begin(Batch *batch, int64_t sent_at)
{
	set_lease(batch, sent_at);
	batch_begin(batch);
	if (batch->giving_back)
		batch_give_back(batch);
}

/* What is due for one batch. */
static void
turn(Batch *batch, int64_t now)
{
	if (!batch->over && now >= atomic_load(&batch->stop_at))
	{
		if (!batch->giving_back)
		{
			log_line(LOG_LEVEL_WARNING, "a lease could not be extended in time, its events are not sent",
					 "reason", db_trouble(db) != NULL ? db_trouble(db) : "the database is slow", NULL);
			batch->late = true;
			batch_give_back(batch);
		}
		if (batch->nout > 0)
			flow_abort();
	}
	if (!batch->over && !batch->ending && !batch->extending && now >= batch->extend_at &&
		!(batch_is_settled(batch) && batch->nasked == 0))
	{
		ask_extension(batch);
		if (batch->count[EVENT_DELIVERED] > 0 && batch->nasked == 0)
			ask_part_ack(batch);
	}
	if (batch->count[EVENT_DEFERRED] > 0)
		ask_part_release(batch);
	if (!batch_is_settled(batch) || batch->nasked > 0)
		return;
	if (!batch->ending)
		ask_end(batch);
	if (batch->ending && batch->nasked == 0 && !batch->extending)
		end_batch(batch);
}

/* See settle.h. */
void
settle_turn(void)
{
	int64_t		now = clock_now();
	Batch	   *next;

	for (Batch *batch = batch_first(); batch != NULL; batch = next)
	{
		next = batch->next;
		if (batch->begun)
			turn(batch, now);
	}
}

/* See settle.h. */
int64_t
settle_next(void)
{
	int64_t		next = INT64_MAX;

	for (Batch *batch = batch_first(); batch != NULL; batch = batch->next)
	{
		int64_t		stop_at = atomic_load(&batch->stop_at);

		if (!batch->begun || batch->over || batch->ending)
			continue;
		if (!batch->extending && batch->extend_at < next)
			next = batch->extend_at;
		if (!(batch->giving_back && batch->nout == 0) && stop_at < next && !flow_is_aborting())
			next = stop_at;
	}
	return next;
}

/* See settle.h. */
void
settle_give_back_all(void)
{
	for (Batch *batch = batch_first(); batch != NULL; batch = batch->next)
		batch_give_back(batch);
}
