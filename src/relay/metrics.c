/*-------------------------------------------------------------------------
 *
 * metrics.c
 *	  What the relay counts.
 *
 * Each count is an atomic of its own: who reads them while they change gets numbers that were
 * right a moment ago, each for itself.
 *
 *-------------------------------------------------------------------------
 */
#include "metrics.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "log.h"
#include "metrics_text.h"

/* How each is told; those of the same name follow each other. */
static const struct
{
	const char *name;
	const char *label;
	const char *help;
	bool		gauge;
}			about[NMETRICS] = {
	[METRIC_DELIVERED] = {"events_total", "outcome=\"delivered\"", "What became of events at the destination"},
	[METRIC_REJECTED] = {"events_total", "outcome=\"rejected\""},
	[METRIC_DEFERRED] = {"events_total", "outcome=\"deferred\""},
	[METRIC_TROUBLE] = {"events_total", "outcome=\"trouble\""},
	[METRIC_AGAIN] = {"events_total", "outcome=\"again\""},
	[METRIC_RETURNED] = {"events_total", "outcome=\"returned\""},
	[METRIC_BYTES] = {"delivered_bytes_total", NULL, "Payload bytes of the events that were delivered"},
	[METRIC_CONNECTS] = {"destination_connects_total", "result=\"connected\"", "Connections to the destination"},
	[METRIC_CONNECTS_FAILED] = {"destination_connects_total", "result=\"failed\""},
	[METRIC_IN_FLIGHT] = {"in_flight", NULL, "Events that were sent and have no answer yet", true},
	[METRIC_DEAD] = {"rejected_total", "action=\"dead\"", "What the outbox did with events that the destination rejected"},
	[METRIC_RETRIED] = {"rejected_total", "action=\"retry\""},
	[METRIC_RELEASED] = {"released_total", NULL, "Events given back to the outbox without spending an attempt"},
	[METRIC_FETCHES] = {"fetches_total", NULL, "Calls of outbox_fetch"},
	[METRIC_FETCHED] = {"fetched_total", NULL, "Events that the outbox handed out"},
	[METRIC_BATCHES] = {"batches_total", NULL, "Fetches that brought events"},
	[METRIC_ACKED] = {"acked_total", NULL, "Events acknowledged to the outbox"},
	[METRIC_EXTENSIONS] = {"lease_extensions_total", NULL, "Leases extended"},
	[METRIC_LEASES_LOST] = {"leases_lost_total", NULL, "Leases that ended before their events were dealt with"},
	[METRIC_DB_CONNECTS] = {"database_connects_total", NULL, "Connections made to the database"},
	[METRIC_DB_LOST] = {"database_connections_lost_total", NULL, "Connections to the database that were lost"},
	[METRIC_BREAKER_OPENED] = {"breaker_opened_total", NULL, "How often the destination took nothing any more"},
	[METRIC_BREAKER] = {"breaker_state", NULL, "0: closed, all goes well; 1: trying; 2: open, waiting", true},
	[METRIC_MEMORY] = {"held_bytes", NULL, "Memory of the events held", true},
	[METRIC_HELD] = {"held_events", NULL, "Events held, whether sent or not", true},
};

static _Atomic int64_t values[NMETRICS];

/* From the commit of an event, nearly, to its confirm; upper bounds in microseconds. */
static const int64_t lag_bounds[] = {
	1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000,
	5000000, 10000000, 30000000, 60000000, 300000000, 3600000000
};

#define NLAGS	((int) (sizeof(lag_bounds) / sizeof(lag_bounds[0])))

static _Atomic int64_t lags[NLAGS + 1];
static _Atomic int64_t lag_sum;

static pthread_mutex_t health_lock = PTHREAD_MUTEX_INITIALIZER;
static char *troubles[NHEALTH_ENDS];
static bool known[NHEALTH_ENDS];
static const char *const end_names[NHEALTH_ENDS] = {"database", "destination"};

/* See metrics.h. */
void
metrics_add(Metric metric, int64_t n)
{
	atomic_fetch_add_explicit(&values[metric], n, memory_order_relaxed);
}

/* See metrics.h. */
void
metrics_set(Metric metric, int64_t value)
{
	atomic_store_explicit(&values[metric], value, memory_order_relaxed);
}

/* See metrics.h. */
int64_t
metrics_get(Metric metric)
{
	return atomic_load_explicit(&values[metric], memory_order_relaxed);
}

/* See metrics.h. */
void
metrics_lag(int64_t created_at)
{
	struct timeval now;
	int64_t		lag;
	int			i = 0;

	gettimeofday(&now, NULL);
	lag = (int64_t) now.tv_sec * 1000000 + now.tv_usec - created_at;
	/* clocks of two machines */
	if (lag < 0)
		lag = 0;
	while (i < NLAGS && lag > lag_bounds[i])
		i++;
	atomic_fetch_add_explicit(&lags[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&lag_sum, lag, memory_order_relaxed);
}

/* See metrics.h. */
void
metrics_health(HealthEnd end, const char *trouble)
{
	char	   *copy = trouble == NULL ? NULL : format("%s", trouble);

	pthread_mutex_lock(&health_lock);
	free(troubles[end]);
	troubles[end] = copy;
	known[end] = true;
	pthread_mutex_unlock(&health_lock);
}

/* See metrics_text.h. */
bool
metrics_text_health(Text *text)
{
	bool		well = true;

	pthread_mutex_lock(&health_lock);
	for (int end = 0; end < NHEALTH_ENDS; end++)
	{
		const char *trouble = known[end] ? troubles[end] : "not connected yet";

		text_add(text, "%s\"%s\":", end == 0 ? "{" : ",", end_names[end]);
		text_add_json(text, trouble == NULL ? "ok" : trouble);
		well = well && trouble == NULL;
	}
	pthread_mutex_unlock(&health_lock);
	text_add(text, ",\"status\":\"%s\"}\n", well ? "ok" : "unavailable");
	return well;
}

/* Is this end well? */
static bool
is_well(HealthEnd end)
{
	bool		well;

	pthread_mutex_lock(&health_lock);
	well = known[end] && troubles[end] == NULL;
	pthread_mutex_unlock(&health_lock);
	return well;
}

/* The histogram. */
static void
add_lags(Text *text)
{
	int64_t		count = 0;

	text_add(text, "# HELP idemq_relay_lag_seconds From the writing of an event to the destination's confirmation\n"
			 "# TYPE idemq_relay_lag_seconds histogram\n");
	for (int i = 0; i < NLAGS; i++)
	{
		count += atomic_load_explicit(&lags[i], memory_order_relaxed);
		text_add(text, "idemq_relay_lag_seconds_bucket{le=\"%g\"} %" PRId64 "\n", lag_bounds[i] / 1e6, count);
	}
	count += atomic_load_explicit(&lags[NLAGS], memory_order_relaxed);
	text_add(text, "idemq_relay_lag_seconds_bucket{le=\"+Inf\"} %" PRId64 "\n", count);
	text_add(text, "idemq_relay_lag_seconds_sum %.6f\n", atomic_load_explicit(&lag_sum, memory_order_relaxed) / 1e6);
	text_add(text, "idemq_relay_lag_seconds_count %" PRId64 "\n", count);
}

/* See metrics_text.h. */
void
metrics_text(Text *text, const char *consumer, const char *destination)
{
	text_add(text, "# HELP idemq_relay_info What this relay does\n# TYPE idemq_relay_info gauge\n"
			 "idemq_relay_info{version=\"" IDEMQ_VERSION "\",consumer=");
	text_add_json(text, consumer);
	text_add(text, ",destination=");
	text_add_json(text, destination);
	text_add(text, "} 1\n# HELP idemq_relay_connected Is this end connected, and well\n# TYPE idemq_relay_connected gauge\n");
	for (int end = 0; end < NHEALTH_ENDS; end++)
		text_add(text, "idemq_relay_connected{end=\"%s\"} %d\n", end_names[end], is_well(end));
	text_add(text, "# HELP idemq_relay_up Are both ends connected, and well\n# TYPE idemq_relay_up gauge\nidemq_relay_up %d\n",
			 is_well(HEALTH_DATABASE) && is_well(HEALTH_DESTINATION));
	for (int i = 0; i < NMETRICS; i++)
	{
		if (i == 0 || strcmp(about[i].name, about[i - 1].name) != 0)
			text_add(text, "# HELP idemq_relay_%s %s\n# TYPE idemq_relay_%s %s\n", about[i].name, about[i].help,
					 about[i].name, about[i].gauge ? "gauge" : "counter");
		text_add(text, "idemq_relay_%s%s%s%s %" PRId64 "\n", about[i].name, about[i].label ? "{" : "",
				 about[i].label ? about[i].label : "", about[i].label ? "}" : "", metrics_get(i));
	}
	add_lags(text);
}
