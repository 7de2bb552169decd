/*-------------------------------------------------------------------------
 *
 * publisher.c
 *	  The thread that talks to the destination.
 *
 * The main thread hands messages over and takes them back with an outcome.  A message
 * belongs to the side that has it: the strings, and all of the struct, are the publisher's alone from
 * publisher_send() until publisher_take(), but for *stop_at, which the main thread moves meanwhile.
 *
 * Promised
 *
 * Each message that was handed over comes back, once, with an outcome.  They are sent in the order in which they were handed
 * over.  None is sent after its stop_at, nor after an abort that was called later than it was handed over.
 * When what was in flight has come back after publisher_abort(), nothing of it is left in this
 * process that could still leave: the destination's close(false) has returned.  (What the kernel of the other
 * side has already got may be delivered nevertheless.)
 *
 * A destination that pipelines keys may hold several messages of one.  If the first of them comes back undelivered, the
 * second must not be sent, not even if it is in the queue already, or the main thread hands it over
 * before it has heard of the first.  So an undelivered one takes all with it that have not been sent, and as long as the main
 * thread has not taken back all undelivered ones, what it hands over comes back at once.
 *
 * Locking
 *
 * One lock, over everything that both sides see (struct below), held for a few instructions and never during a
 * call of the destination but interrupt(), which does not block.  Two eventfds: one wakes the publisher
 * from the destination's wait(), one the main thread from its poll().  Each is written once for each sleep,
 * not for each message.  The lock is taken once for each message on each side.
 *
 * interrupt() is called with the lock held and only while the publisher is within open(), send() or wait(), which it
 * enters and leaves with the lock held.  So it never meets close(), and is never forgotten until then: whoever calls it has
 * set "aborted" or "ending" first, which the publisher looks at before each call, and answers
 * by close(false).
 *
 * Rejected
 *
 * A lock-free queue: the lock costs 20 ns and nobody waits for it.  A connection per shard: order and
 * memory would have to be shared out.  Cancelling the thread: no client library survives it.
 *
 *-------------------------------------------------------------------------
 */
#include "publisher.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "metrics.h"
#include "text.h"

/* How long the thread may take to end. */
#define END_TIMEOUT	SECONDS(5)

typedef struct Queue
{
	Message    *first;
	Message    *last;
} Queue;

/* What the thread is doing, as far as interrupt() and the eventfd are concerned. */
typedef enum Doing
{
	DOING_ITS_OWN,				/* nothing that blocks, or close() */
	DOING_CALL,					/* in open() or send() */
	DOING_WAIT,					/* in wait(), from which the eventfd wakes it */
	DOING_SLEEP					/* in poll(), from which the eventfd wakes it */
} Doing;

static Destination *destination;
static pthread_t thread;

/* Both sides', under the lock. */
static struct
{
	pthread_mutex_t lock;
	Queue		todo;			/* to be sent */
	Queue		done;			/* to be taken back */
	int			undelivered;	/* how many were not delivered and have not been taken back */
	Doing		doing;
	bool		rung;			/* wake_fd was written since the publisher read it */
	bool		told;			/* done_fd was written since the main thread read it */
	bool		aborted;
	bool		ending;
	bool		gently;
	bool		open_wanted;
	bool		open_known;
	Opened		opened;
	char	   *open_why;
}			shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int	wake_fd = -1;		/* wakes the publisher */
static int	done_fd = -1;		/* wakes the main thread */

/* The main thread's. */
static Queue taken;
static bool running;
static bool hangs;

/* The publisher's. */
static Queue flight;			/* sent, without an outcome, oldest first; doubly linked */
static int	flight_count;
static bool connected;

/* ---- both sides ---- */

static void
push(Queue *queue, Message *message)
{
	message->next = NULL;
	if (queue->last != NULL)
		queue->last->next = message;
	else
		queue->first = message;
	queue->last = message;
}

static Message *
pop(Queue *queue)
{
	Message    *message = queue->first;

	if (message != NULL)
	{
		queue->first = message->next;
		if (queue->first == NULL)
			queue->last = NULL;
		message->next = NULL;
	}
	return message;
}

/* Make an eventfd readable; it is written once and so never full. */
static void
ring(int fd)
{
	uint64_t	one = 1;

	while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* Make it quiet. */
static void
hush(int fd)
{
	uint64_t	count;

	while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

/* There is something for the main thread; the lock is held. */
static void
tell_main(void)
{
	if (!shared.told)
	{
		shared.told = true;
		ring(done_fd);
	}
}

/* There is something for the publisher, which looks before it sleeps; the lock is held. */
static void
wake_publisher(void)
{
	if (!shared.rung && (shared.doing == DOING_WAIT || shared.doing == DOING_SLEEP))
	{
		shared.rung = true;
		ring(wake_fd);
	}
}

/* Count it. */
static void
count_outcome(const Message *message)
{
	switch (message->outcome)
	{
		case OUTCOME_NONE:
			break;
		case OUTCOME_DELIVERED:
			metrics_add(METRIC_DELIVERED, 1);
			metrics_add(METRIC_BYTES, message->length);
			metrics_lag(message->created_at);
			break;
		case OUTCOME_REJECTED:
			metrics_add(METRIC_REJECTED, 1);
			break;
		case OUTCOME_DEFERRED:
			metrics_add(METRIC_DEFERRED, 1);
			break;
		case OUTCOME_TROUBLE:
			metrics_add(METRIC_TROUBLE, 1);
			break;
		case OUTCOME_AGAIN:
			metrics_add(METRIC_AGAIN, 1);
			break;
		case OUTCOME_RETURNED:
			metrics_add(METRIC_RETURNED, 1);
			break;
	}
}

/* Put a message where the main thread takes it back; the lock is held. */
static void
push_done(Message *message, Outcome outcome, char *why, int64_t retry_after)
{
	message->outcome = outcome;
	message->why = why;
	message->retry_after = retry_after;
	if (outcome != OUTCOME_DELIVERED)
		shared.undelivered++;
	push(&shared.done, message);
	tell_main();
}

/* Give back what was not sent; the lock is held. */
static void
return_todo(void)
{
	Message    *message;

	while ((message = pop(&shared.todo)) != NULL)
		push_done(message, OUTCOME_RETURNED, NULL, 0);
}

/* Give a message back, and those that must not be sent for its sake; the lock is held. */
static void
give_back(Message *message, Outcome outcome, char *why, int64_t retry_after)
{
	push_done(message, outcome, why, retry_after);
	if (outcome != OUTCOME_DELIVERED && destination->pipelines_keys)
		return_todo();
}

/* ---- for destinations, in the publisher's thread ---- */

/* See publisher.h. */
void
publisher_done(Message *message, Outcome outcome, char *why, int64_t retry_after)
{
	if (message->prev != NULL)
		message->prev->next = message->next;
	else
		flight.first = message->next;
	if (message->next != NULL)
		message->next->prev = message->prev;
	else
		flight.last = message->prev;
	message->prev = NULL;
	flight_count--;
	metrics_set(METRIC_IN_FLIGHT, flight_count);

	pthread_mutex_lock(&shared.lock);
	give_back(message, outcome, why, retry_after);
	pthread_mutex_unlock(&shared.lock);
}

/* See publisher.h. */
Message *
publisher_in_flight(void)
{
	return flight.first;
}

/* See publisher.h. */
int
publisher_in_flight_count(void)
{
	return flight_count;
}

/* See publisher.h. */
void
publisher_all_done(Outcome outcome, const char *why)
{
	while (flight.first != NULL)
		publisher_done(flight.first, outcome, why == NULL ? NULL : format("%s", why), 0);
}

/* ---- the publisher's thread ---- */

/* Before a call that may block.  False: it must not be made, see to the abort or the end. */
static bool
begin_call(Doing doing)
{
	bool		may;

	pthread_mutex_lock(&shared.lock);
	may = !shared.aborted && !shared.ending;
	if (may)
		shared.doing = doing;
	pthread_mutex_unlock(&shared.lock);
	return may;
}

/* After it. */
static void
end_call(void)
{
	pthread_mutex_lock(&shared.lock);
	shared.doing = DOING_ITS_OWN;
	pthread_mutex_unlock(&shared.lock);
}

/* The connection is of no use: what was sent may have been delivered, or not. */
static void
disconnect(bool gently, const char *why)
{
	connected = false;
	destination->close(gently);
	publisher_all_done(OUTCOME_TROUBLE, why);
}

/* Tell the main thread, if it wanted to know, how open() went. */
static void
report_open(Opened opened, const char *why)
{
	pthread_mutex_lock(&shared.lock);
	if (shared.open_wanted && !shared.aborted)
	{
		shared.open_wanted = false;
		shared.open_known = true;
		shared.opened = opened;
		free(shared.open_why);
		shared.open_why = opened == OPEN_OK ? NULL : format("%s", why);
		tell_main();
	}
	pthread_mutex_unlock(&shared.lock);
}

/* Connect, if need be.  If that does not go the first message that waits tells why, and the others are not sent. */
static void
connect_to_destination(void)
{
	Opened		opened = OPEN_OK;
	char	   *why = NULL;

	if (!connected)
	{
		if (!begin_call(DOING_CALL))
			return;
		opened = destination->open(&why);
		end_call();
		connected = opened == OPEN_OK;
		metrics_add(connected ? METRIC_CONNECTS : METRIC_CONNECTS_FAILED, 1);
		if (!connected && why == NULL)
			why = format("no connection could be made");
		metrics_health(HEALTH_DESTINATION, connected ? NULL : why);
	}
	report_open(opened, why);
	if (!connected)
	{
		Message    *message;

		destination->close(false);
		pthread_mutex_lock(&shared.lock);
		message = pop(&shared.todo);
		if (message != NULL)
		{
			push_done(message, OUTCOME_TROUBLE, why, 0);
			why = NULL;
		}
		return_todo();
		pthread_mutex_unlock(&shared.lock);
	}
	free(why);
}

/* The next one to be sent, within a call that may block; NULL: none now, the call is over. */
static Message *
next_message(void)
{
	Message    *message = NULL;

	pthread_mutex_lock(&shared.lock);
	if (!shared.aborted && !shared.ending)
		message = pop(&shared.todo);
	shared.doing = message != NULL ? DOING_CALL : DOING_ITS_OWN;
	pthread_mutex_unlock(&shared.lock);
	return message;
}

/* Put it behind those that are in flight, and send it. */
static void
send_message(Message *message)
{
	message->next = NULL;
	message->prev = flight.last;
	if (flight.last != NULL)
		flight.last->next = message;
	else
		flight.first = message;
	flight.last = message;
	flight_count++;
	metrics_set(METRIC_IN_FLIGHT, flight_count);
	destination->send(message);
}

/* Send what was handed over. */
static void
send_all(void)
{
	Message    *message;

	while ((message = next_message()) != NULL)
	{
		if (message->stop_at == NULL || clock_now() < atomic_load(message->stop_at))
			send_message(message);
		else
		{
			pthread_mutex_lock(&shared.lock);
			give_back(message, OUTCOME_RETURNED, NULL, 0);
			pthread_mutex_unlock(&shared.lock);
		}
	}
}

/* The destination has ended the connection.  With nothing in flight that is no trouble yet. */
static void
see_loss(const char *why)
{
	bool		idle = flight_count == 0;

	if (why == NULL)
		why = "the connection was lost";
	disconnect(false, why);
	pthread_mutex_lock(&shared.lock);
	if (shared.aborted || shared.ending)
		idle = false;
	else if (!idle)
		return_todo();
	pthread_mutex_unlock(&shared.lock);
	if (idle)
		log_line(LOG_LEVEL_INFO, "the destination ended an idle connection", "destination", destination->describe(), "reason", why, NULL);
	else
		metrics_health(HEALTH_DESTINATION, why);
}

/* Wait for answers, if there is a connection, and for the main thread. */
static void
wait_for_something(void)
{
	Doing		doing = connected ? DOING_WAIT : DOING_SLEEP;
	bool		busy;

	/* with something to do: fetch the answers that are there */
	pthread_mutex_lock(&shared.lock);
	busy = shared.todo.first != NULL || shared.open_wanted || shared.aborted || shared.ending;
	if (shared.aborted || shared.ending || (busy && !connected))
		doing = DOING_ITS_OWN;
	shared.doing = doing;
	pthread_mutex_unlock(&shared.lock);

	if (doing == DOING_WAIT)
	{
		char	   *why = NULL;
		bool		alive = destination->wait(wake_fd, busy ? 0 : -1, &why);

		end_call();
		if (!alive)
			see_loss(why);
		free(why);
	}
	else if (doing == DOING_SLEEP)
	{
		struct pollfd ready = {.fd = wake_fd,.events = POLLIN};

		poll(&ready, 1, -1);
		end_call();
	}
}

/* The thread: see to an abort, then send, then wait. */
static void *
run(void *unused)
{
	for (;;)
	{
		bool		aborted,
					gently,
					work,
					ending;

		pthread_mutex_lock(&shared.lock);
		if (shared.rung)
		{
			shared.rung = false;
			hush(wake_fd);
		}
		aborted = shared.aborted;
		shared.aborted = false;
		ending = shared.ending;
		gently = shared.gently && !aborted;
		if (ending)
			return_todo();
		work = shared.todo.first != NULL || shared.open_wanted;
		pthread_mutex_unlock(&shared.lock);

		if (ending)
		{
			disconnect(gently, "the relay ends");
			return NULL;
		}
		if (aborted)
			disconnect(false, "publishing was stopped");
		if (work)
			connect_to_destination();
		if (connected)
			send_all();
		wait_for_something();
	}
}

/* ---- for the main thread ---- */

/* See publisher.h. */
void
publisher_start(Destination *to)
{
	sigset_t	all,
				before;
	int			error;

	destination = to;
	wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (wake_fd < 0 || done_fd < 0)
		error = errno;
	else
	{
		/* signals are the main thread's */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = pthread_create(&thread, NULL, run, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (error != 0)
	{
		log_line(LOG_LEVEL_ERROR, "the thread that publishes cannot be started", "reason", strerror(error), NULL);
		exit(1);
	}
	running = true;
}

/* See publisher.h. */
void
publisher_send(Message *message)
{
	message->outcome = OUTCOME_NONE;
	message->why = NULL;
	message->retry_after = 0;
	message->answered = false;
	message->prev = NULL;
	pthread_mutex_lock(&shared.lock);
	if (shared.undelivered > 0 && destination->pipelines_keys)
		push_done(message, OUTCOME_RETURNED, NULL, 0);
	else
	{
		push(&shared.todo, message);
		wake_publisher();
	}
	pthread_mutex_unlock(&shared.lock);
}

/* See publisher.h. */
int
publisher_fd(void)
{
	return done_fd;
}

/* See publisher.h. */
Message *
publisher_take(void)
{
	Message    *message = pop(&taken);

	if (message == NULL)
	{
		pthread_mutex_lock(&shared.lock);
		taken = shared.done;
		shared.done = (Queue)
		{
			0
		};
		if (shared.told)
		{
			shared.told = false;
			hush(done_fd);
		}
		pthread_mutex_unlock(&shared.lock);
		message = pop(&taken);
	}
	if (message == NULL)
		return NULL;
	if (message->outcome != OUTCOME_DELIVERED)
	{
		pthread_mutex_lock(&shared.lock);
		shared.undelivered--;
		pthread_mutex_unlock(&shared.lock);
	}
	count_outcome(message);
	return message;
}

/* See publisher.h. */
void
publisher_open(void)
{
	pthread_mutex_lock(&shared.lock);
	shared.open_wanted = true;
	shared.open_known = false;
	wake_publisher();
	pthread_mutex_unlock(&shared.lock);
}

/* See publisher.h. */
bool
publisher_opened(Opened *how, char **why)
{
	bool		known;

	pthread_mutex_lock(&shared.lock);
	known = shared.open_known;
	if (known)
	{
		*how = shared.opened;
		*why = shared.open_why;
		shared.open_why = NULL;
		shared.open_known = false;
	}
	pthread_mutex_unlock(&shared.lock);
	return known;
}

/* See publisher.h. */
void
publisher_abort(void)
{
	pthread_mutex_lock(&shared.lock);
	return_todo();
	shared.open_wanted = false;
	shared.aborted = true;
	wake_publisher();
	if (shared.doing == DOING_CALL || shared.doing == DOING_WAIT)
		destination->interrupt();
	pthread_mutex_unlock(&shared.lock);
}

/* See publisher.h. */
bool
publisher_end(bool gently)
{
	struct timespec deadline;

	if (!running)
		return true;
	pthread_mutex_lock(&shared.lock);
	shared.ending = true;
	shared.gently = gently;
	wake_publisher();
	/* a wait() comes back by itself; what hangs in another call is not gentle */
	if (shared.doing == DOING_CALL || (shared.doing == DOING_WAIT && !gently))
	{
		shared.gently = false;
		destination->interrupt();
	}
	pthread_mutex_unlock(&shared.lock);

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += END_TIMEOUT / SECONDS(1);
	hangs = pthread_timedjoin_np(thread, NULL, &deadline) != 0;
	running = hangs;
	return !hangs;
}

/* See publisher.h. */
bool
publisher_hangs(void)
{
	return hangs;
}
