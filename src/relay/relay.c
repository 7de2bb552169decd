/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  From a consumer of the outbox to a destination.
 *
 * One thread and one poll() for two connections to the database, for the publisher's answers
 * and for signals.  Each turn does all that can be done and sleeps until something
 * comes or is due.
 *
 * Fetching.  After a batch has ended a shard is free, so we fetch; after a fetch that
 * brought events there may be another shard, unless there was none within the last second.  When there is
 * nothing more to be had, outbox_wait() tells us, on a connection of its own.  While batches
 * come and go their fetches look at all shards anyway, so we wait only when the last one is
 * some time ago.
 *
 * Ending.  What was sent is waited for, acknowledged, and the rest given back.
 *
 *-------------------------------------------------------------------------
 */
#include "relay.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "breaker.h"
#include "check.h"
#include "clock.h"
#include "db.h"
#include "dial.h"
#include "fetch.h"
#include "flow.h"
#include "log.h"
#include "metrics.h"
#include "publisher.h"
#include "settle.h"
#include "suspect.h"

#define WAIT_TIMEOUT		SECONDS(60)

/* --drain looks again that often, and at the end so long. */
#define DRAIN_TIMEOUT		SECONDS(1)
#define DRAIN_LAST_TIMEOUT	MILLISECONDS(100)

/* While batches are being sent, others are looked for when the last fetch is that old. */
#define QUIET_TIME			MILLISECONDS(20)

#define MOST_BATCHES		64

/* When told to stop: for what is asked of the database last. */
#define LAST_WORDS			SECONDS(5)

typedef enum Drained
{
	DRAINED_UNKNOWN,
	DRAINED_ASKED,
	DRAINED_NO,
	DRAINED_YES					/* as far as the tables say */
} Drained;

static const RelayOptions *options;
static Destination *destination;
static Db  *work;				/* fetches, acknowledges, ... */
static Db  *waiter;				/* sleeps in outbox_wait() */
static int	signal_fd;

/* fetching */
static bool want_fetch;
static bool was_woken;			/* outbox_wait() says there is something */
static int64_t more_not_before; /* until then other shards are not expected to
								 * have something */
static int	disappointments;	/* it said so, and there was nothing, in a row */
static int	failures;			/* of fetches, in a row */
static int64_t fetch_not_before;
static int64_t fetched_at;

/* waiting */
static bool waiting;
static int64_t wait_timeout;
static int64_t wait_not_before;
static bool may_consume;		/* the consumer is there, and ours to use */
static bool may_monitor;		/* and --drain can see what is left */

/* ending */
static bool last_round;
static Drained drained;
static bool stopping;
static int64_t stop_by;
static int64_t trouble_by;		/* what is out when trouble comes is waited
								 * for until then */
static int64_t answered_at;		/* the destination has last answered, or been
								 * given something to answer */
static bool ended;
static int	exit_code;

/* That is that. */
static void
end(int code)
{
	if (!ended)
		exit_code = code;
	ended = true;
}

/* The database will not have us. */
static void
take_refusal(const DbAnswer *answer)
{
	char	   *hint = check_hint(answer->sqlstate, answer->hint, db_user(waiter), options->consumer);

	if (!ended)
		log_line(LOG_LEVEL_ERROR, "the database refuses", "reason", answer->message,
				 "sqlstate", answer->sqlstate, hint != NULL ? "hint" : NULL, hint, NULL);
	free(hint);
	end(EXIT_DATABASE);
}

/* ---- what settle.c tells ---- */

/* A message was delivered. */
static void
hear_delivered(void)
{
	breaker_delivered();
}

/* The destination takes nothing: nothing more is sent. */
static int64_t
hear_trouble(const char *why, int64_t retry_after)
{
	if (trouble_by == 0)
		trouble_by = clock_now() + options->timeout;
	breaker_trouble(why, retry_after);
	settle_give_back_all();
	return breaker_wait();
}

/* A batch has ended, so a shard is free. */
static void
hear_ended(bool delivered)
{
	if (delivered)
		breaker_batch_done();
	want_fetch = true;
}

static const SettleWatch watch = {hear_delivered, hear_trouble, hear_ended, take_refusal};

/* ---- fetching and waiting ---- */

/* Were all of these written after the first connection was made? */
static bool
is_all_new(const Batch *batch)
{
	for (int i = 0; i < batch->nevents; i++)
	{
		if (batch->events[i]->message.created_at < db_server_time(work))
			return false;
	}
	return true;
}

/* A fetch has ended. */
static void
hear_fetched(FetchResult result, const DbAnswer *answer, Batch *batch)
{
	bool		woken = was_woken;
	int64_t		wait;

	fetched_at = clock_now();
	was_woken = false;
	switch (result)
	{
		case FETCH_GOT:
			failures = disappointments = 0;
			if (batch_count() > 1)
				more_not_before = 0;
			want_fetch = fetched_at >= more_not_before;
			drained = DRAINED_UNKNOWN;
			if (options->mode == RELAY_ONCE && is_all_new(batch))
				last_round = true;
			if (stopping || breaker_state() == BREAKER_OPEN)
				batch_give_back(batch);
			break;
		case FETCH_NOTHING:
			failures = 0;
			want_fetch = false;
			if (batch_count() > 0)
				more_not_before = fetched_at + SECONDS(1);

			/* what is to be had and cannot be got must not keep us busy */
			if (woken && disappointments++ > 2)
				fetch_not_before = fetched_at +
					MILLISECONDS(1) * (1 << (disappointments < 10 ? disappointments : 10));
			if (options->mode == RELAY_ONCE && batch_count() == 0)
			{
				/* what was set aside for a while is still there */
				last_round = breaker_state() == BREAKER_CLOSED || !suspect_is_last();
				want_fetch = !last_round;
				fetch_not_before = fetched_at + MILLISECONDS(100);
			}
			break;
		case FETCH_LOST:
			wait = MILLISECONDS(100) << (failures < 6 ? failures : 6);
			if (failures++ == 0 && answer->sqlstate[0] != '\0')
				log_line(LOG_LEVEL_WARNING, "events cannot be fetched, trying again",
						 "reason", answer->message, "sqlstate", answer->sqlstate, NULL);
			want_fetch = true;
			fetch_not_before = fetched_at + clock_jitter(wait < SECONDS(5) ? wait : SECONDS(5));
			break;
		case FETCH_REFUSED:
			take_refusal(answer);
			break;
	}
}

/* May we fetch now? */
static bool
should_fetch(void)
{
	bool		recovering = breaker_pace() < options->batch;

	return want_fetch && may_consume && (may_monitor || options->mode != RELAY_DRAIN) && !stopping && !last_round && !fetch_is_asked() &&
		db_health(work) == DB_UP && breaker_state() != BREAKER_OPEN &&
		clock_now() >= fetch_not_before && flow_ready() < options->in_flight &&
		batch_count() < (recovering ? 1 : MOST_BATCHES) && fetch_has_room();
}

/* outbox_wait() has come back. */
static void
take_wait(DbCommand *command, const DbAnswer *answer)
{
	int64_t		now = clock_now();

	waiting = false;
	if (answer->fate == DB_REFUSED)
	{
		take_refusal(answer);
		return;
	}
	if (answer->fate == DB_DONE && !may_consume)
	{
		may_consume = true;
		want_fetch = true;
		return;
	}
	if (answer->fate == DB_LOST)
	{
		/* statement_timeout, as a rule */
		if (answer->sqlstate[0] != '\0')
			wait_not_before = now + clock_jitter(SECONDS(1));
		return;
	}
	if (now - command->sent_at < wait_timeout)
	{
		drained = DRAINED_UNKNOWN;
		want_fetch = true;
		was_woken = true;
	}
	else if (drained == DRAINED_YES && batch_count() == 0)
		end(EXIT_DONE);
	else if (drained == DRAINED_NO)
		drained = DRAINED_UNKNOWN;
}

/* Sleep in the server. */
static void
ask_wait(int64_t timeout)
{
	DbCommand  *command = db_command("CALL @.outbox_wait($1, $2::interval)",
									 timeout + settle_patience(), take_wait, NULL);

	db_param(command, format("%s", options->consumer));
	db_param(command, settle_interval(timeout));
	command->once = true;
	waiting = true;
	wait_timeout = timeout;
	db_ask(waiter, command);
}

/* What --drain has found. */
static void
take_drained(DbCommand *command, const DbAnswer *answer)
{
	if (answer->fate == DB_REFUSED)
	{
		char	   *hint = check_hint(answer->sqlstate, answer->hint, db_user(work), NULL);

		log_line(LOG_LEVEL_ERROR, "the database does not show what is left, which --drain needs to know",
				 "reason", answer->message, "sqlstate", answer->sqlstate,
				 hint != NULL ? "hint" : NULL, hint, NULL);
		free(hint);
		end(EXIT_DATABASE);
	}
	else if (answer->fate == DB_LOST)
		drained = DRAINED_UNKNOWN;
	else
	{
		may_monitor = true;
		drained = PQgetvalue(answer->result, 0, 0)[0] == 't' ? DRAINED_YES : DRAINED_NO;
	}
}

/* Is anything left of the consumer? */
static void
ask_drained(void)
{
	DbCommand  *command = db_command("SELECT coalesce(sum(c.in_flight) = 0 AND sum(c.lag_events) = 0, true)"
									 " AND NOT EXISTS (SELECT FROM idemq.parked AS p WHERE p.consumer = $1)"
									 " FROM idemq.consumers AS c WHERE c.consumer = $1",
									 settle_patience(), take_drained, NULL);

	db_param(command, format("%s", options->consumer));
	command->once = true;
	drained = DRAINED_ASKED;
	db_ask(work, command);
}

/* Wait, if there is nothing better to do. */
static void
see_to_waiting(void)
{
	int64_t		now = clock_now();
	bool		up = db_health(waiter) == DB_UP;

	if (waiting || stopping || now < wait_not_before)
		return;
	if (!may_consume)
	{
		/*
		 * are we to consume at all?  That can be told whatever the
		 * destination does.
		 */
		if (up)
			ask_wait(1);
		return;
	}
	if (options->mode == RELAY_DRAIN && !may_monitor)
	{
		if (drained == DRAINED_UNKNOWN && db_health(work) == DB_UP)
			ask_drained();
		return;
	}
	if (want_fetch || fetch_is_asked() || options->mode == RELAY_ONCE ||
		breaker_state() == BREAKER_OPEN ||
		(batch_count() > 0 && now - fetched_at < QUIET_TIME))
		return;
	if (options->mode == RELAY_DRAIN && batch_count() == 0 && drained <= DRAINED_ASKED)
	{
		if (drained == DRAINED_UNKNOWN && db_health(work) == DB_UP)
			ask_drained();
		return;
	}
	if (up)
		ask_wait(options->mode != RELAY_DRAIN ? WAIT_TIMEOUT :
				 drained == DRAINED_YES ? DRAIN_LAST_TIMEOUT : DRAIN_TIMEOUT);
}

/* ---- ending ---- */

/* Told to stop. */
static void
stop(const char *signal_name)
{
	if (stopping)
	{
		log_line(LOG_LEVEL_WARNING, "told to stop a second time, leaving at once", "signal", signal_name, NULL);
		end(EXIT_UNFINISHED);
		return;
	}
	log_line(LOG_LEVEL_INFO, "told to stop, finishing what is under way", "signal", signal_name, NULL);
	stopping = true;
	stop_by = clock_now() + options->timeout;
	settle_give_back_all();
	if (waiting)
		db_cancel(waiter);
}

/* Signals that have come. */
static void
take_signals(void)
{
	struct signalfd_siginfo info;

	while (read(signal_fd, &info, sizeof(info)) == sizeof(info))
	{
		if (info.ssi_signo != SIGHUP)
			stop(info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
	}
}

/* One of the ends has been away for too long for who wants to see an end. */
static void
see_to_patience(int64_t now)
{
	const char *end_name = "the destination";
	const char *why = breaker_why();
	int64_t		since = breaker_since();

	if (options->mode == RELAY_RUN)
		return;
	if (since == 0 || now - since < options->timeout)
	{
		end_name = "the database";
		since = db_trouble_since(work);
		why = db_trouble(work);
	}
	if (since == 0 || now - since < options->timeout)
		return;
	log_line(LOG_LEVEL_ERROR, "gave up waiting, work is left", "for", end_name,
			 "reason", why != NULL ? why : "no answer", NULL);
	end(EXIT_UNFINISHED);
}

/*
 * A destination has a time-out for each answer.  If one does not keep to it, it hangs,
 * and must not hold leases for ever.
 */
static void
see_to_silence(int64_t now)
{
	if (flow_out() > 0 && now - answered_at >= 2 * options->timeout && !flow_is_aborting())
	{
		hear_trouble("the destination has not answered for a long time", 0);
		flow_abort();
	}
	if (trouble_by == 0)
		return;
	if (flow_out() == 0)
		trouble_by = 0;
	else if (now >= trouble_by)
		flow_abort();
}

/* --once has done what it could: that is nothing, if all that there was is set aside for a while. */
static void
end_round(void)
{
	bool		in_vain = metrics_get(METRIC_DELIVERED) == 0 && suspect_is_last();

	if (in_vain)
		log_line(LOG_LEVEL_ERROR, "nothing was delivered, what is there was set aside for a while", NULL);
	end(in_vain ? EXIT_UNFINISHED : EXIT_DONE);
}

/* Is it time to end? */
static void
see_to_end(void)
{
	int64_t		now = clock_now();
	bool		idle = batch_count() == 0 && !(fetch_is_asked() && db_health(work) == DB_UP);

	see_to_silence(now);
	if (stopping)
	{
		if (idle && (!waiting || db_health(waiter) != DB_UP || now >= stop_by))
			end(EXIT_DONE);
		else if (now >= stop_by + LAST_WORDS)
		{
			log_line(LOG_LEVEL_WARNING, "the database has not been told all, what it does not know will be delivered again", NULL);
			end(batch_count() == 0 ? EXIT_DONE : EXIT_UNFINISHED);
		}
		else if (now >= stop_by)
			flow_abort();
		return;
	}
	if (last_round && idle)
		end_round();
	see_to_patience(now);
}

/* ---- the loop ---- */

/* Notice connections that have come and gone. */
static void
see_to_connections(void)
{
	static int	generation;
	static bool was_up;
	static bool waiter_was_up;
	static const char *shown;
	Db		   *const both[] = {work, waiter};

	for (int i = 0; i < 2; i++)
	{
		if (db_health(both[i]) != DB_REFUSES || ended)
			continue;
		log_line(LOG_LEVEL_ERROR, "the database refuses", "reason", db_trouble(both[i]), NULL);
		end(EXIT_DATABASE);
	}

	/*
	 * who was on the old server waits there for what is written on the new
	 * one
	 */
	if (db_generation(work) != generation)
	{
		if (generation > 0)
			db_drop(waiter, "the other connection had been lost");
		generation = db_generation(work);
	}

	/* and when it is the other one that is lost, see whether ours is */
	if (waiter_was_up && db_health(waiter) != DB_UP && db_health(work) == DB_UP && db_is_idle(work))
		db_probe(work);
	waiter_was_up = db_health(waiter) == DB_UP;

	if ((db_health(work) == DB_UP) != was_up || db_trouble(work) != shown)
	{
		was_up = db_health(work) == DB_UP;
		shown = db_trouble(work);
		metrics_health(HEALTH_DATABASE, was_up ? NULL : shown != NULL ? shown : "not connected yet");
	}
}

/* All that can be done now. */
static void
do_turn(bool signalled, short work_events, short waiter_events)
{
	const char *why;

	if (signalled)
		take_signals();
	if (settle_take())
		answered_at = clock_now();
	db_turn(work, work_events);
	db_turn(waiter, waiter_events);
	see_to_connections();

	/* an abort would swallow the answer */
	if (flow_out() == 0 && !stopping && !breaker_turn(&why) && !ended)
	{
		log_line(LOG_LEVEL_ERROR, "the destination refuses", "destination", destination->describe(),
				 "reason", why, NULL);
		end(EXIT_DESTINATION);
	}
	settle_turn();
	if (flow_out() == 0)
		answered_at = clock_now();
	flow_send(options->in_flight);
	if (should_fetch())
		fetch_ask(work, options->batch < breaker_pace() ? options->batch : breaker_pace());
	see_to_waiting();
	see_to_end();
}

/* The earlier of two times, but none that is not ahead. */
static int64_t
sooner(int64_t a, int64_t b, int64_t now)
{
	return b > now && b < a ? b : a;
}

/* When there is something to do although nothing has come. */
static int64_t
next_turn(int64_t now)
{
	int64_t		next = INT64_MAX;
	int64_t		due[] = {db_next(work), db_next(waiter), settle_next(), flow_out() == 0 && !stopping ? breaker_next() : INT64_MAX};

	/* of these each is seen to when it is due, so none is behind us for long */
	for (int i = 0; i < 4; i++)
		next = due[i] < next ? due[i] : next;
	next = sooner(next, fetch_not_before, now);
	next = sooner(next, wait_not_before, now);
	next = sooner(next, trouble_by, now);
	if (flow_has_unfit())
		next = now;
	if (flow_out() > 0)
		next = sooner(next, answered_at + 2 * options->timeout, now);
	if (batch_count() > 0 && !waiting)
		next = sooner(next, fetched_at + QUIET_TIME, now);
	if (stopping)
	{
		next = sooner(next, stop_by, now);
		next = sooner(next, stop_by + LAST_WORDS, now);
	}
	else if (options->mode != RELAY_RUN)
		next = sooner(next, now + SECONDS(1), now);
	return next;
}

/* Sleep until something comes or is due. */
static void
sleep_until(int64_t next, struct pollfd *fds, int n)
{
	int64_t		left = next == INT64_MAX ? -1 : next - clock_now();
	struct timespec time = {.tv_sec = left / 1000000,.tv_nsec = left % 1000000 * 1000};

	if (left < 0)
		time.tv_sec = time.tv_nsec = 0;
	if (ppoll(fds, n, next == INT64_MAX ? NULL : &time, NULL) < 0)
	{
		for (int i = 0; i < n; i++)
			fds[i].revents = 0;
	}
}

/* Until the end. */
static void
loop(void)
{
	bool		signalled = true;
	short		work_events = 0;
	short		waiter_events = 0;

	for (;;)
	{
		struct pollfd fds[4] = {{.fd = signal_fd,.events = POLLIN}, {.fd = publisher_fd(),.events = POLLIN}};
		int			n = 2;
		int			work_at;
		int			waiter_at;

		do_turn(signalled, work_events, waiter_events);
		if (ended)
			return;
		work_at = n;
		n += db_poll(work, &fds[n]);
		waiter_at = n;
		n += db_poll(waiter, &fds[n]);
		sleep_until(next_turn(clock_now()), fds, n);
		signalled = fds[0].revents != 0;
		work_events = waiter_at > work_at ? fds[work_at].revents : 0;
		waiter_events = n > waiter_at ? fds[waiter_at].revents : 0;
	}
}

/* Signals come to be read, in this thread and those that it starts. */
static void
take_over_signals(void)
{
	sigset_t	set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Free what there is; messages that the publisher has are its own for ever if it hangs. */
static void
clean_up(void)
{
	if (publisher_end(exit_code == EXIT_DONE))
	{
		bool		was_alone;

		while (flow_take(&was_alone) != NULL)
			;
		while (batch_first() != NULL)
			batch_free(batch_first());
	}
	db_close(work);
	db_close(waiter);
	close(signal_fd);
}

/* See relay.h. */
bool
relay_hangs(void)
{
	return dial_is_busy();
}

/* See relay.h. */
int
relay_run(const RelayOptions *given, Destination *to)
{
	RelayOptions mine = *given;
	char		number[32];

	if (mine.in_flight <= 0)
		mine.in_flight = to->in_flight > 0 ? to->in_flight : 1;
	options = &mine;
	destination = to;
	take_over_signals();
	if (mine.mode == RELAY_CHECK || mine.mode == RELAY_DRY_RUN)
		return check_run(&mine, destination, signal_fd);

	work = db_open("work", mine.dbname, false);
	waiter = db_open("wait", mine.dbname, true);
	publisher_start(destination);
	breaker_start(mine.batch, mine.backoff_most);
	settle_start(work, mine.lease, mine.backoff_most, destination->pipelines_keys, &watch);
	fetch_start(mine.consumer, mine.lease, mine.memory, hear_fetched);
	log_line(LOG_LEVEL_INFO, "started", "consumer", mine.consumer, "destination", destination->describe(), NULL);
	loop();
	clean_up();
	snprintf(number, sizeof(number), "%lld", (long long) metrics_get(METRIC_DELIVERED));
	log_line(LOG_LEVEL_INFO, "ended", "consumer", mine.consumer, "delivered", number, NULL);
	return exit_code;
}
