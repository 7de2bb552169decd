/*-------------------------------------------------------------------------
 *
 * metrics.h
 *	  What the relay counts, and the port where it can be read.
 *
 * Any thread may count.  Outcomes, bytes, lag, what is in flight and connections to
 * the destination are counted by publisher.c; the rest is the main thread's to count.
 *
 *-------------------------------------------------------------------------
 */
#ifndef METRICS_H
#define METRICS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum Metric
{
	/* counted by publisher.c */
	METRIC_DELIVERED,
	METRIC_REJECTED,
	METRIC_DEFERRED,
	METRIC_TROUBLE,
	METRIC_AGAIN,
	METRIC_RETURNED,
	METRIC_BYTES,				/* of what was delivered */
	METRIC_CONNECTS,			/* to the destination */
	METRIC_CONNECTS_FAILED,
	METRIC_IN_FLIGHT,			/* now */

	/* counted by the main thread */
	METRIC_DEAD,				/* outbox_nack said so */
	METRIC_RETRIED,				/* outbox_nack said so */
	METRIC_RELEASED,			/* events given back by outbox_release */
	METRIC_FETCHES,
	METRIC_FETCHED,				/* events */
	METRIC_BATCHES,				/* fetches that brought events */
	METRIC_ACKED,				/* events */
	METRIC_EXTENSIONS,			/* of leases */
	METRIC_LEASES_LOST,			/* ended, or were refused, before their batch did */
	METRIC_DB_CONNECTS,
	METRIC_DB_LOST,				/* connections that went */
	METRIC_BREAKER_OPENED,
	METRIC_BREAKER,				/* now: a BreakerState */
	METRIC_MEMORY,				/* now: bytes of the events held */
	METRIC_HELD,				/* now: events of batches that have not ended */
	NMETRICS
} Metric;

/* Values of METRIC_BREAKER. */
enum
{
	BREAKER_IS_CLOSED,			/* all goes well */
	BREAKER_IS_HALF_OPEN,		/* trying */
	BREAKER_IS_OPEN				/* waiting */
};

typedef enum HealthEnd
{
	HEALTH_DATABASE,
	HEALTH_DESTINATION,
	NHEALTH_ENDS
} HealthEnd;

/* To a counter, or up and down. */
extern void metrics_add(Metric metric, int64_t n);
extern void metrics_set(Metric metric, int64_t value);
extern int64_t metrics_get(Metric metric);

/* An event was confirmed that was written then (microseconds since 1970). */
extern void metrics_lag(int64_t created_at);

/* What is wrong with one end, for /healthz and "up"; NULL: nothing.  At first both are "not connected yet". */
extern void metrics_health(HealthEnd end, const char *trouble);

/* Serves /metrics and /healthz at ADDR:PORT.  False: *why, malloc'd. */
extern bool metrics_listen(const char *address, const char *consumer, const char *destination, char **why);
extern void metrics_stop(void);

/* The library that serves them and its version, or NULL: not built in. */
extern const char *metrics_version(void);

/* On a terminal: a line that tells how it goes, once a second. */
extern void progress_start(void);
extern void progress_stop(void);

#endif
