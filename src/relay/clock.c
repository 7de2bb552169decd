/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Microseconds that only go forward, and waiting times.
 *
 * A lease goes on while this machine is suspended, so the clock must as well, where
 * there is one that does.
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"

#include <sys/random.h>
#include <time.h>

#ifdef CLOCK_BOOTTIME
#define RELAY_CLOCK CLOCK_BOOTTIME
#else
#define RELAY_CLOCK CLOCK_MONOTONIC
#endif

/* Microseconds since some time in the past. */
int64_t
clock_now(void)
{
	struct timespec ts;

	clock_gettime(RELAY_CLOCK, &ts);
	return SECONDS(ts.tv_sec) + ts.tv_nsec / 1000;
}

/* A time between 0.8 and 1.2 times as long, so that many relays do not all come at once. */
int64_t
clock_jitter(int64_t time)
{
	uint32_t	random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
		random = (uint32_t) clock_now() * 2654435761u;
	return time / 5 * 4 + (int64_t) ((double) time * 0.4 * random / UINT32_MAX);
}
