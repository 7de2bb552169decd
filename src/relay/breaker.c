/*-------------------------------------------------------------------------
 *
 * breaker.c
 *	  Leaving a destination that is in trouble alone for a while.
 *
 * Trouble opens it.  When the back-off is over, the destination is connected to; then
 * one event is tried, and the first that is delivered closes it.  Batches then grow
 * from one event to their size, each twice the one before, so that a destination
 * that has just come up is not overrun.  The back-off grows while it is of no use, and begins
 * anew when the breaker has been closed for longer than it, or some tens of events were
 * delivered: one that goes down again at once is left alone longer and longer, one that
 * stumbles now and then is not.  When the destination says itself how long it wants to be left
 * alone, that is how long.
 *
 *-------------------------------------------------------------------------
 */
#include "breaker.h"

#include <stdio.h>
#include <stdlib.h>

#include "clock.h"
#include "log.h"
#include "metrics.h"
#include "publisher.h"

#define SHORTEST_BACKOFF	SECONDS(1)

/* It is well when so many were delivered. */
#define DELIVERED_IS_WELL	32

/* Nobody means that. */
#define LONGEST_RETRY_AFTER SECONDS(24 * 3600)

static BreakerState state;
static int	full;
static int64_t backoff_most;
static int64_t backoff;
static int64_t closed_at;
static int	delivered;			/* since then */
static int	pace;
static int64_t try_at;
static int64_t since;
static bool announced;
static bool connecting;
static bool was_there;			/* the destination, once */
static char *why_open;

/* Note the state where others see it. */
static void
set_state(BreakerState new)
{
	static const int shown[] = {
		[BREAKER_CLOSED] = BREAKER_IS_CLOSED,
		[BREAKER_OPEN] = BREAKER_IS_OPEN,
		[BREAKER_HALF_OPEN] = BREAKER_IS_HALF_OPEN
	};

	state = new;
	metrics_set(METRIC_BREAKER, new == BREAKER_OPEN && !announced ? BREAKER_IS_HALF_OPEN : shown[new]);
}

/* See breaker.h. */
void
breaker_start(int batch, int64_t most)
{
	full = batch;
	backoff_most = most;
	pace = batch;
	since = clock_now();
	set_state(BREAKER_OPEN);
}

/* See breaker.h. */
BreakerState
breaker_state(void)
{
	return state;
}

/* A time for people. */
static char *
seconds(int64_t time)
{
	return format("%.1fs", time / 1e6);
}

/* Leave it alone for a while; says so the first time. */
static void
open_breaker(const char *why, int64_t retry_after)
{
	int64_t		now = clock_now();
	int64_t		wait;
	char	   *shown;

	if (state == BREAKER_CLOSED && now - closed_at > backoff)
		backoff = 0;
	if (retry_after > 0)
		wait = retry_after;
	else
	{
		backoff = backoff == 0 ? SHORTEST_BACKOFF : backoff * 2;
		if (backoff > backoff_most)
			backoff = backoff_most;
		wait = clock_jitter(backoff);
	}
	try_at = now + wait;
	if (since == 0)
		since = now;
	pace = 1;
	free(why_open);
	why_open = format("%s", why != NULL ? why : "no reason was given");

	shown = seconds(wait);
	log_line(announced ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING,
			 announced ? "the destination still takes nothing"
			 : "the destination takes nothing, waiting until it does",
			 "reason", why_open, "retry_in", shown, NULL);
	free(shown);
	if (!announced)
		metrics_add(METRIC_BREAKER_OPENED, 1);
	announced = true;
	set_state(BREAKER_OPEN);
	metrics_health(HEALTH_DESTINATION, why_open);
}

/* See breaker.h. */
void
breaker_trouble(const char *why, int64_t retry_after)
{
	int64_t		at;

	if (retry_after > LONGEST_RETRY_AFTER)
		retry_after = LONGEST_RETRY_AFTER;
	if (state != BREAKER_OPEN)
	{
		open_breaker(why, retry_after);
		return;
	}

	/* another event says the same, but perhaps that it takes longer */
	at = clock_now() + retry_after;
	if (try_at < at)
		try_at = at;
}

/* All goes well again, or for the first time. */
static void
close_breaker(void)
{
	char	   *after = seconds(clock_now() - since);

	if (announced)
		log_line(LOG_LEVEL_INFO, "the destination takes events again", "after", after, NULL);
	free(after);
	free(why_open);
	why_open = NULL;
	announced = false;
	since = 0;
	closed_at = clock_now();
	delivered = 0;
	set_state(BREAKER_CLOSED);
	metrics_health(HEALTH_DESTINATION, NULL);
}

/* See breaker.h. */
void
breaker_delivered(void)
{
	if (state == BREAKER_HALF_OPEN)
		close_breaker();
	if (state == BREAKER_CLOSED && backoff > 0 && ++delivered >= DELIVERED_IS_WELL)
		backoff = 0;
}

/* See breaker.h. */
void
breaker_batch_done(void)
{
	if (state == BREAKER_CLOSED && pace < full)
		pace = pace * 2 < full ? pace * 2 : full;
}

/* See breaker.h. */
int64_t
breaker_wait(void)
{
	int64_t		now = clock_now();

	return state == BREAKER_OPEN && try_at > now ? try_at - now : 0;
}

/* See breaker.h. */
int
breaker_pace(void)
{
	return pace;
}

/* See breaker.h. */
bool
breaker_turn(const char **why)
{
	Opened		how;
	char	   *said = NULL;

	if (state == BREAKER_OPEN && !connecting && clock_now() >= try_at)
	{
		connecting = true;
		publisher_open();
	}
	if (!connecting || !publisher_opened(&how, &said))
		return true;
	connecting = false;
	if (how == OPEN_OK)
	{
		free(said);
		if (announced)
			set_state(BREAKER_HALF_OPEN);
		else
			close_breaker();
		was_there = true;
		return true;
	}
	if (how == OPEN_ENDED || (how == OPEN_REFUSED && !was_there))
	{
		free(why_open);
		why_open = said;
		*why = why_open;
		return false;
	}
	open_breaker(said, 0);
	free(said);
	return true;
}

/* See breaker.h. */
int64_t
breaker_next(void)
{
	return state == BREAKER_OPEN && !connecting ? try_at : INT64_MAX;
}

/* See breaker.h. */
int64_t
breaker_since(void)
{
	return since;
}

/* See breaker.h. */
const char *
breaker_why(void)
{
	return why_open;
}
