/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  On a terminal: a line that tells how it goes, once a second.
 *
 * A thread of its own, which only looks at the counters.
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "log.h"
#include "metrics.h"

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool running;
static bool ending;

/* Draws it. */
static void
draw(int64_t rate)
{
	static const char *const breakers[] = {"", ", trying the destination", ", the destination takes nothing"};
	int			breaker = metrics_get(METRIC_BREAKER);
	char	   *line = format("%" PRId64 " delivered, %" PRId64 "/s, %" PRId64 " in flight, %" PRId64 " rejected%s",
							  metrics_get(METRIC_DELIVERED), rate, metrics_get(METRIC_IN_FLIGHT),
							  metrics_get(METRIC_REJECTED), breakers[breaker >= 0 && breaker <= 2 ? breaker : 0]);

	log_status(line);
	free(line);
}

/* The thread. */
static void *
run(void *unused)
{
	int64_t		before = metrics_get(METRIC_DELIVERED);
	int64_t		since = clock_now();

	pthread_mutex_lock(&lock);
	while (!ending)
	{
		struct timespec until;
		int64_t		now,
					delivered;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		pthread_cond_timedwait(&wake, &lock, &until);
		now = clock_now();
		delivered = metrics_get(METRIC_DELIVERED);
		if (ending || now <= since)
			continue;
		draw((delivered - before) * SECONDS(1) / (now - since));
		before = delivered;
		since = now;
	}
	pthread_mutex_unlock(&lock);
	log_status(NULL);
	return NULL;
}

/* See metrics.h. */
void
progress_start(void)
{
	sigset_t	all,
				before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	running = pthread_create(&thread, NULL, run, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* See metrics.h. */
void
progress_stop(void)
{
	if (!running)
		return;
	pthread_mutex_lock(&lock);
	ending = true;
	pthread_cond_signal(&wake);
	pthread_mutex_unlock(&lock);
	pthread_join(thread, NULL);
	running = false;
}
