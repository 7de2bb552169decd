/*-------------------------------------------------------------------------
 *
 * publisher_test.c
 *	  src/relay/publisher.c between a main thread and a destination that both
 *	  do as they please: publisher_test SEED ROUNDS pipelined|single
 *
 * Keys have numbered messages.  Whatever happens, each message comes back once from each
 * handing over, and the destination gets the messages of a key in order, without a gap.
 * Compiled with -fsanitize=thread by 002_publisher.pl.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "destination.h"
#include "log.h"
#include "publisher.h"

#define NKEYS	16
#define OUT_MOST	5			/* of a key, when it is pipelined */

#define CHECK(condition) \
	((condition) ? (void) 0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), abort()))

/* ---- the destination ---- */

static unsigned fake_seed;
static int	interrupt_fd;
static bool is_open;
static bool broken;
static atomic_bool interrupted;
static atomic_bool closing;
static atomic_int opens,
			closes,
			interrupts,
			blocked;
static int64_t arrived[NKEYS];	/* the last number of each */
static atomic_int arrivals;

/* One in n times. */
static bool
fake_chance(int n)
{
	return rand_r(&fake_seed) % n == 0;
}

/* Hangs until it is interrupted. */
static void
hang(void)
{
	struct pollfd ready = {.fd = interrupt_fd,.events = POLLIN};

	atomic_fetch_add(&blocked, 1);
	CHECK(poll(&ready, 1, 20000) == 1);
	atomic_fetch_sub(&blocked, 1);
}

static Opened
fake_open(char **why)
{
	CHECK(!is_open);
	atomic_fetch_add(&opens, 1);
	if (fake_chance(20))
		hang();
	if (atomic_load(&interrupted))
	{
		*why = format("interrupted");
		return OPEN_TROUBLE;
	}
	if (fake_chance(5))
	{
		*why = format("no luck");
		return fake_chance(2) ? OPEN_TROUBLE : OPEN_REFUSED;
	}
	is_open = true;
	broken = false;
	return OPEN_OK;
}

/* Takes it. */
static void
arrive(Message *message)
{
	int			key = message->aggregateid[0] - 'a';

	/* what comes again has been there */
	CHECK(message->seq <= arrived[key] + 1);
	if (message->seq > arrived[key])
		arrived[key] = message->seq;
	atomic_fetch_add(&arrivals, 1);
	publisher_done(message, OUTCOME_DELIVERED, NULL, 0);
}

static void
fake_send(Message *message)
{
	CHECK(is_open);
	CHECK(clock_now() < atomic_load(message->stop_at) + MILLISECONDS(200));
	if (fake_chance(500))
		hang();
	if (fake_chance(100))
		publisher_done(message, fake_chance(2) ? OUTCOME_REJECTED : OUTCOME_DEFERRED, format("not this one"), 0);
	else if (fake_chance(10) && publisher_in_flight() == message)
		arrive(message);
}

static bool
fake_wait(int wake_fd, int timeout, char **why)
{
	struct pollfd ready[2] = {{.fd = wake_fd,.events = POLLIN}, {.fd = interrupt_fd,.events = POLLIN}};
	Message    *message;
	int			count = 0;

	CHECK(is_open);
	CHECK(!broken);
	if (fake_chance(200))
		hang();
	if (publisher_in_flight() != NULL && timeout != 0)
		timeout = fake_chance(2) ? 0 : 1;
	poll(ready, 2, timeout);
	if (fake_chance(100))
	{
		broken = true;
		*why = fake_chance(2) ? format("gone") : NULL;
		return false;
	}
	for (message = publisher_in_flight(); message != NULL; message = message->next)
		count++;
	CHECK(count == publisher_in_flight_count());
	while ((message = publisher_in_flight()) != NULL && !fake_chance(4))
	{
		if (!fake_chance(100))
			arrive(message);
		else if (fake_chance(2))
		{
			/* all that came with it as well, or there would be a gap */
			publisher_done(message, OUTCOME_REJECTED, format("too large"), 0);
			publisher_all_done(OUTCOME_AGAIN, "one failed");
		}
		else
			publisher_all_done(OUTCOME_TROUBLE, "no room");
	}
	return true;
}

static void
fake_close(bool gently)
{
	uint64_t	count;

	atomic_store(&closing, true);
	is_open = false;
	usleep(fake_chance(4) ? 2000 : 0);
	atomic_fetch_add(&closes, 1);
	atomic_store(&interrupted, false);
	while (read(interrupt_fd, &count, sizeof(count)) > 0)
		;
	atomic_store(&closing, false);
}

static void
fake_interrupt(void)
{
	uint64_t	one = 1;

	CHECK(!atomic_load(&closing));
	atomic_store(&interrupted, true);
	atomic_fetch_add(&interrupts, 1);
	CHECK(write(interrupt_fd, &one, sizeof(one)) == sizeof(one));
}

static const char *
fake_describe(void)
{
	return "nowhere";
}

static Destination fake = {
	.name = "fake",.describe = fake_describe,.open = fake_open,.send = fake_send,.wait = fake_wait,
	.close = fake_close,.interrupt = fake_interrupt
};

/* ---- the main thread ---- */

typedef struct Key
{
	char		name[2];
	Message		messages[OUT_MOST];
	bool		used[OUT_MOST];
	int			out;
	bool		failed;			/* some came back undelivered: wait for all */
	int64_t		next;			/* to be handed over */
	int64_t		delivered;		/* without a gap */
} Key;

static Key	keys[NKEYS];
static _Atomic int64_t stop_at;
static int	outcomes[OUTCOME_RETURNED + 1];

static void
hand_over(Key *key, int most)
{
	if (key->failed)
	{
		if (key->out > 0)
			return;
		key->failed = false;
		key->next = key->delivered + 1;
	}
	while (key->out < most)
	{
		int			i = 0;

		while (key->used[i])
			i++;
		key->used[i] = true;
		key->out++;
		memset(&key->messages[i], 0, sizeof(Message));
		key->messages[i].aggregateid = key->name;
		key->messages[i].seq = key->next++;
		key->messages[i].length = 10;
		key->messages[i].data = malloc(10);
		key->messages[i].stop_at = &stop_at;
		key->messages[i].owner = key;
		publisher_send(&key->messages[i]);
	}
}

static void
take_back(Message *message)
{
	Key		   *key = message->owner;
	int			i = message - key->messages;

	CHECK(i >= 0 && i < OUT_MOST && key->used[i]);
	CHECK(message->outcome != OUTCOME_NONE);
	outcomes[message->outcome]++;
	key->used[i] = false;
	key->out--;
	if (message->outcome != OUTCOME_DELIVERED)
		key->failed = true;
	else if (message->seq > key->delivered)
	{
		CHECK(message->seq == key->delivered + 1);
		key->delivered = message->seq;
	}
	free((void *) message->data);
	free(message->why);
}

static void
take_all(void)
{
	Message    *message;

	while ((message = publisher_take()) != NULL)
		take_back(message);
}

int
main(int argc, char **argv)
{
	unsigned	seed = atoi(argv[1]);
	int			rounds = atoi(argv[2]);
	int			most;
	int			opened = 0,
				asked = 0;

	fake_seed = seed * 7919 + 1;
	fake.pipelines_keys = strcmp(argv[3], "pipelined") == 0;
	most = fake.pipelines_keys ? OUT_MOST : 1;
	interrupt_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	log_start(LOG_LEVEL_WARNING, false);
	for (int i = 0; i < NKEYS; i++)
	{
		keys[i].name[0] = 'a' + i;
		keys[i].next = 1;
	}
	atomic_store(&stop_at, clock_now() + SECONDS(10));
	publisher_start(&fake);
	for (int round = 0; round < rounds; round++)
	{
		struct pollfd ready = {.fd = publisher_fd(),.events = POLLIN};
		Opened		how;
		char	   *why;

		poll(&ready, 1, rand_r(&seed) % 3);
		take_all();
		if (publisher_opened(&how, &why))
		{
			opened++;
			free(why);
		}
		if (rand_r(&seed) % 50 == 0)
			atomic_store(&stop_at, clock_now() - 1);
		else if (rand_r(&seed) % 5 == 0)
			atomic_store(&stop_at, clock_now() + SECONDS(10));
		if (rand_r(&seed) % 30 == 0 || atomic_load(&blocked) > 0)
			publisher_abort();
		if (rand_r(&seed) % 30 == 0)
		{
			asked++;
			publisher_open();
		}
		for (int i = 0; i < NKEYS; i++)
			if (rand_r(&seed) % 4 != 0)
				hand_over(&keys[i], most);
	}

	/* all of them come back at the end, however it comes */
	CHECK(publisher_end(rand_r(&seed) % 2 == 0));
	take_all();
	for (int i = 0; i < NKEYS; i++)
		CHECK(keys[i].out == 0);
	CHECK(publisher_take() == NULL);
	CHECK(!is_open);
	printf("%d opens, %d closes, %d interrupts, %d asked, %d told; delivered %d, rejected %d, deferred %d, trouble %d, again %d, returned %d\n",
		   atomic_load(&opens), atomic_load(&closes), atomic_load(&interrupts), asked, opened,
		   outcomes[OUTCOME_DELIVERED], outcomes[OUTCOME_REJECTED], outcomes[OUTCOME_DEFERRED],
		   outcomes[OUTCOME_TROUBLE], outcomes[OUTCOME_AGAIN], outcomes[OUTCOME_RETURNED]);
	CHECK(outcomes[OUTCOME_DELIVERED] > rounds / 10);
	return 0;
}
