/*-------------------------------------------------------------------------
 *
 * suspect.c
 *	  Events for whose sake the destination may only seem to be in trouble.
 *
 * An answer like 500 may mean that the receiver is down, or that it stumbles over this event
 * alone.  The answer does not tell; what becomes of others does.  So an event that got
 * such an answer is remembered with the time.  If it gets one again, and one that
 * was sent between the two was delivered, the event is at fault.  What had been sent before the first of them
 * proves nothing: the destination may have gone down in between.
 *
 * Until then it must not be what the destination is tried with each time.  It comes later than the next try,
 * and waits as long again as it has been failing: so however many there are of its kind, others get their turn, and
 * after an outage nothing is late by more than that took.
 *
 * One alone says nothing about the destination while others get through.  When some have failed in a row,
 * and none came back delivered in between, the destination is in trouble.  For that it does not matter when those
 * were sent: it spends no attempt.
 *
 * It is a hint, kept in memory, for so many events: what is forgotten with the process, or pushed out by
 * others, takes a failure more to be found out.
 *
 *-------------------------------------------------------------------------
 */
#include "suspect.h"

#include <string.h>

#include "clock.h"

#define MOST_SUSPECTS 1024

/* So many in a row are not by chance. */
#define IN_A_ROW		3

#define SHORTEST_WAIT	SECONDS(1)
#define LONGEST_WAIT	SECONDS(600)

typedef struct Suspect
{
	char		id[37];			/* "": free */
	int64_t		since;			/* failing, or an attempt was spent */
	int64_t		failed_at;
} Suspect;

static Suspect suspects[MOST_SUSPECTS];
static int	nsuspects;			/* entries that were ever used */
static int	oldest;				/* where the next one goes when all are used */
static int	in_a_row;			/* failed since one was delivered */
static int64_t last_failed_at;
static int64_t delivered_sent_at;	/* when the youngest that was delivered
									 * was sent */

/* It, or NULL. */
static Suspect *
find(const char *id)
{
	for (int i = 0; i < nsuspects; i++)
	{
		if (strcmp(suspects[i].id, id) == 0)
			return &suspects[i];
	}
	return NULL;
}

/* Remember that it failed.  Returns whether another one has got through since the last time. */
static bool
note(const Message *message, int64_t *wait)
{
	int64_t		now = clock_now();
	Suspect    *suspect = find(message->id);
	bool		at_fault = suspect != NULL && delivered_sent_at > suspect->failed_at;

	if (suspect == NULL)
	{
		suspect = &suspects[oldest];
		oldest = (oldest + 1) % MOST_SUSPECTS;
		if (nsuspects < MOST_SUSPECTS)
			nsuspects++;
		strcpy(suspect->id, message->id);
		suspect->since = now;
	}
	if (at_fault)
		suspect->since = now;
	suspect->failed_at = last_failed_at = now;
	*wait = now - suspect->since;
	if (*wait < SHORTEST_WAIT)
		*wait = SHORTEST_WAIT;
	if (*wait > LONGEST_WAIT)
		*wait = LONGEST_WAIT;
	return at_fault;
}

/* See suspect.h. */
bool
suspect_failed(const Message *message, int64_t *wait)
{
	bool		at_fault = note(message, wait);

	if (!at_fault)
		in_a_row++;
	return at_fault;
}

/* See suspect.h. */
void
suspect_put_off(const Message *message, int64_t *wait)
{
	note(message, wait);
	in_a_row++;
}

/* See suspect.h. */
bool
suspect_none_gets_through(void)
{
	return in_a_row >= IN_A_ROW;
}

/* See suspect.h. */
void
suspect_delivered(const Message *message)
{
	Suspect    *suspect = NULL;

	in_a_row = 0;
	if (delivered_sent_at < message->sent_at)
		delivered_sent_at = message->sent_at;

	/* it has been handed out before, or it is none */
	if (message->deliveries > 1)
		suspect = find(message->id);
	if (suspect != NULL)
		suspect->id[0] = '\0';
}

/* See suspect.h. */
bool
suspect_is_last(void)
{
	return last_failed_at > delivered_sent_at;
}
