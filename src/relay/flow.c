/*-------------------------------------------------------------------------
 *
 * flow.c
 *	  What is sent next.
 *
 * Events that are ready are sent in their order, a limited number at a time.  Those that went
 * down with others go first, one by one, while nothing else is sent: the one
 * that was at fault shall be alone with its failure.
 *
 *-------------------------------------------------------------------------
 */
#include "flow.h"

#include <stddef.h>

#include "clock.h"
#include "log.h"
#include "publisher.h"

/* In order of batch and number. */
typedef struct Queue
{
	Event	   *first;
	Event	   *last;
	int			n;
} Queue;

static Queue ready;
static Queue again;
static Queue unfit;				/* were not handed over, and will not be */
static const Event *put_last;	/* what comes back comes back in order */
static int	nout;
static const Event *alone;		/* the only one that the publisher has */
static bool aborting;

/* Does one come before another? */
static bool
is_before(const Event *a, const Event *b)
{
	if (a->batch != b->batch)
		return a->batch->serial < b->batch->serial;
	return a->number < b->number;
}

/* Put an event behind another one, or first. */
static void
put_behind(Queue *queue, Event *event, Event *before)
{
	event->prev = before;
	event->next = before != NULL ? before->next : queue->first;
	if (before != NULL)
		before->next = event;
	else
		queue->first = event;
	if (event->next != NULL)
		event->next->prev = event;
	else
		queue->last = event;
	queue->n++;
}

/* Take an event out. */
static void
take_out(Queue *queue, Event *event)
{
	if (event->prev != NULL)
		event->prev->next = event->next;
	else
		queue->first = event->next;
	if (event->next != NULL)
		event->next->prev = event->prev;
	else
		queue->last = event->prev;
	event->next = event->prev = NULL;
	queue->n--;
}

/* See flow.h. */
void
flow_put(Event *event)
{
	Queue	   *queue = event->state == EVENT_AGAIN ? &again : &ready;
	Event	   *before = queue->last;

	if (before != NULL && is_before(event, before))
	{
		if (is_before(event, queue->first))
			before = NULL;
		else if (put_last != NULL && put_last->state == event->state && is_before(put_last, event))
			before = (Event *) put_last;
		while (before != NULL && is_before(event, before))
			before = before->prev;
		while (before != NULL && before->next != NULL && is_before(before->next, event))
			before = before->next;
	}
	put_last = event;
	put_behind(queue, event, before);
}

/* See flow.h. */
void
flow_remove(Event *event)
{
	if (put_last == event)
		put_last = NULL;
	take_out(event->state == EVENT_AGAIN ? &again : &ready, event);
}

/* See flow.h. */
int
flow_ready(void)
{
	return ready.n;
}

/* See flow.h. */
int
flow_out(void)
{
	return nout;
}

/* Hand over one. */
static void
send(Event *event)
{
	event_set(event, EVENT_SENT);
	event->out = true;
	event->batch->nout++;
	nout++;
	event->message.outcome = OUTCOME_NONE;
	event->message.retry_after = 0;
	event->message.sent_at = clock_now();
	if (event->unfit == NULL)
		publisher_send(&event->message);
	else
	{
		/* the later ones of its key must not overtake it before that is told */
		event_hold_later(event);
		event->message.outcome = OUTCOME_REJECTED;
		event->message.why = format("%s", event->unfit);
		put_behind(&unfit, event, unfit.last);
	}
}

/* See flow.h. */
void
flow_send(int window)
{
	if (nout == 0)
		aborting = false;
	if (aborting || alone != NULL)
		return;
	if (again.first != NULL)
	{
		if (nout == 0)
		{
			alone = again.first;
			send(again.first);
		}
		return;
	}
	while (ready.first != NULL && nout < window)
		send(ready.first);
}

/* See flow.h. */
Event *
flow_take(bool *was_alone)
{
	Event	   *event = unfit.first;

	if (event != NULL)
		take_out(&unfit, event);
	else
	{
		Message    *message = publisher_take();

		if (message == NULL)
			return NULL;
		event = message->owner;
	}
	*was_alone = alone == event;
	if (*was_alone)
		alone = NULL;
	event->out = false;
	event->batch->nout--;
	nout--;
	return event;
}

/* See flow.h. */
bool
flow_has_unfit(void)
{
	return unfit.first != NULL;
}

/* See flow.h. */
void
flow_abort(void)
{
	if (nout == 0 || aborting)
		return;
	aborting = true;
	publisher_abort();
}

/* See flow.h. */
bool
flow_is_aborting(void)
{
	return aborting;
}
