/*-------------------------------------------------------------------------
 *
 * kafka.c
 *	  Kafka as a destination.
 *
 * The promise: an event is delivered when all in-sync replicas have it.  Events of a
 * key come out in order, with many of them in flight: librdkafka's idempotent producer keeps the order of a
 * partition over retries, and stops for good where an event would be missing
 * (enable.gapless.guarantee).  That holds as long as a key keeps to one topic, so keys are only
 * pipelined if the topic comes from nothing but {aggregatetype} and {aggregateid}.
 *
 * Reports.  A message belongs to librdkafka from send() until its report; payloads are not copied.  So no message
 * is given back before its report, or before the producer is destroyed, after which there
 * are no reports.
 *
 * Failures.  Events are sent in sets, and if a broker does not take a set it does not say for which of them.
 * The producer is then of no more use.  What still is on its way gets a moment for its reports, the
 * producer is destroyed, a new one made, and what has no outcome goes back to be sent one by one;
 * an event that failed in a set of its own is known to be at fault.  A topic that does not exist or may not be
 * written to is the cluster's trouble if all events go there, else the event's.
 *
 * librdkafka tries again for ever.  How long that may take, --timeout says: the oldest event
 * that has no report makes the connection count as gone.
 *
 * Closing.  In a hurry the queue and what is in flight are purged, and sockets are closed without
 * what the kernel has not sent yet (close_socket()).
 *
 *-------------------------------------------------------------------------
 */
#include "destination.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <librdkafka/rdkafka.h>

#include "clock.h"
#include "kafka_failure.h"
#include "kafka_settings.h"
#include "kafka_topic.h"
#include "log.h"
#include "publisher.h"
#include "template.h"
#include "text.h"

/* How long what is on its way is waited for, each time. */
#define REPORTS_PATIENCE MILLISECONDS(400)

/* How long a topic that is not there yet may take to be made by the brokers. */
#define TOPIC_PATIENCE SECONDS(5)

static const char *const schemes[] = {"kafka", NULL};

enum
{
	TOPIC,
	KAFKA
};

static Setting settings[] = {
	[TOPIC] = {
		.name = "topic",.kind = SETTING_TEXT,.initial = "outbox.event.{aggregatetype}",.value_name = "TEMPLATE",
		.help = "topic to publish to; fields as {aggregatetype} are filled in for each event"
	},
	[KAFKA] = {
		.name = "kafka",.kind = SETTING_PAIRS,.value_name = "KEY=VALUE",
		.help = "any setting of librdkafka: security.protocol=SASL_SSL, compression.type=lz4, ..."
	},
	{NULL}
};

static char *brokers;
static char *description;
static Template *topic;
static char *constant_topic;	/* NULL: it depends on the event */

/* Can be read when there are reports, or after interrupt(). */
static int	report_fd = -1;
static _Atomic bool interrupted;

/* The producer.  Of these librdkafka's own threads see only "dropping". */
static rd_kafka_t *producer;
static _Atomic bool dropping;	/* what is closed now shall send nothing any more */
static bool stopped;			/* it takes nothing any more */
static char *trouble;			/* what is wrong with all */
static char *refusal;			/* what no waiting would mend */
static char *last_error;
static char *blamed_topic;		/* keeps librdkafka waiting for this error */
static rd_kafka_resp_err_t blamed_error;

/* Outcomes told since wait() began. */
static int	told;

/* The library. */
static const char *
kafka_version(void)
{
	static char *version;

	if (version == NULL)
		version = format("librdkafka %s", rd_kafka_version_str());
	return version;
}

/* See destination.h. */
static const char *
kafka_describe(void)
{
	return description;
}

/* librdkafka has something to log; what matters comes by take_error() as well. */
static void
log_something(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
	log_line(LOG_LEVEL_DEBUG, "librdkafka says", "facility", facility, "text", text, NULL);
}

/* Closes a connection; with what was to be sent, if it is dropped. */
static int
close_socket(int fd, void *unused)
{
	struct linger none = {.l_onoff = 1,.l_linger = 0};

	if (dropping)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	return close(fd);
}

/* Something is wrong with a connection, within rd_kafka_poll(). */
static void
take_error(rd_kafka_t *rk, int error, const char *reason, void *unused)
{
	char		fatal[512];
	char	  **where = &last_error;

	switch (error)
	{
		case RD_KAFKA_RESP_ERR__FATAL:
			rd_kafka_fatal_error(rk, fatal, sizeof(fatal));
			stopped = true;
			reason = fatal;
			break;
		case RD_KAFKA_RESP_ERR__AUTHENTICATION:
		case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
			where = &refusal;
			break;
		case RD_KAFKA_RESP_ERR__SSL:
			if (strstr(reason, "verif") != NULL)
				where = &refusal;
			break;
		case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
			/* says less than what came before it */
			if (last_error != NULL)
				return;
			break;
	}
	free(*where);
	*where = format("%s", reason);
}

/* What happened to a message. */
static void
tell(Message *message, Outcome outcome, char *why)
{
	told++;
	publisher_done(message, outcome, why, 0);
}

/* Remembers a failure until wait() sees to it. */
static void
add_failure(Message *message, rd_kafka_resp_err_t error, const char *name)
{
	KafkaFault	fault = kafka_failure_fault(error);
	char	   *why = kafka_failure_text(error, name);

	if (fault == KAFKA_FAULT_TOPIC && constant_topic != NULL)
		fault = KAFKA_FAULT_CLUSTER;
	if (fault != KAFKA_FAULT_TOPIC)
		stopped = true;
	if (fault == KAFKA_FAULT_MESSAGE || fault == KAFKA_FAULT_TOPIC)
		kafka_failure_add(message, fault, why);
	else if (fault == KAFKA_FAULT_CLUSTER && trouble == NULL)
		trouble = why;
	else
		free(why);
}

/* The report of a message, within rd_kafka_poll(). */
static void
take_report(rd_kafka_t *rk, const rd_kafka_message_t *report, void *unused)
{
	Message    *message = report->_private;

	if (report->err == RD_KAFKA_RESP_ERR_NO_ERROR)
		tell(message, OUTCOME_DELIVERED, NULL);
	else
		add_failure(message, report->err, rd_kafka_topic_name(report->rkt));
}

/* A new producer; false: *why says what is wrong with the settings.  to: the brokers; NULL: just to see. */
static bool
make_producer(const char *to, char **why)
{
	static const uint64_t one = 1;
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_queue_t *queue;
	char		error[512];

	*why = kafka_settings_make(conf, to, settings[KAFKA].pairs);
	if (*why == NULL)
	{
		rd_kafka_conf_set_dr_msg_cb(conf, take_report);
		rd_kafka_conf_set_error_cb(conf, take_error);
		rd_kafka_conf_set_log_cb(conf, log_something);
		rd_kafka_conf_set_closesocket_cb(conf, close_socket);
		producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof(error));
		if (producer == NULL)
			*why = format("--kafka: %s", error);
	}
	if (producer == NULL)
	{
		rd_kafka_conf_destroy(conf);
		return false;
	}
	queue = rd_kafka_queue_get_main(producer);
	rd_kafka_queue_io_event_enable(queue, report_fd, &one, sizeof(one));
	rd_kafka_queue_destroy(queue);
	return true;
}

/* Takes reports for a moment, or until there are no more to come. */
static void
await_reports(void)
{
	int64_t		end = clock_now() + REPORTS_PATIENCE;

	while (rd_kafka_outq_len(producer) > 0 && clock_now() < end)
		rd_kafka_poll(producer, 20);
}

/* Ends the producer; what it has not sent is thrown away. */
static void
destroy_producer(void)
{
	if (rd_kafka_outq_len(producer) > 0)
	{
		dropping = true;
		rd_kafka_purge(producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
		await_reports();
	}
	rd_kafka_destroy(producer);
	producer = NULL;
	kafka_topic_forget();
	dropping = false;
	stopped = false;
}

/* Forgets what is known of failures. */
static void
forget_failures(void)
{
	kafka_failure_forget();
	free(trouble);
	free(refusal);
	free(last_error);
	free(blamed_topic);
	trouble = refusal = last_error = blamed_topic = NULL;
}

/* See destination.h. */
static char *
kafka_configure(const char *to)
{
	static const Message nothing;
	char	   *why;
	size_t		length;

	brokers = strdup(to + strlen("kafka://"));
	if (brokers == NULL)
		text_no_memory();
	length = strlen(brokers);
	if (length > 0 && brokers[length - 1] == '/')
		brokers[length - 1] = '\0';
	if (brokers[0] == '\0' || strpbrk(brokers, "/@?") != NULL)
		return format("--to: write kafka://HOST:PORT,HOST:PORT; user and password are settings: "
					  "--kafka sasl.username=USER, and kafka.sasl.password = PASSWORD in the settings file");
	description = format("kafka://%s", brokers);

	topic = template_parse(settings[TOPIC].text, &why);
	if (topic == NULL)
	{
		char	   *what = why;

		why = format("--topic: %s", what);
		free(what);
		return why;
	}
	if (template_is_constant(topic))
	{
		constant_topic = template_fill(topic, &nothing, false);
		why = kafka_topic_look(constant_topic);
		if (why != NULL)
		{
			char	   *what = why;

			why = format("--topic: %s", what);
			free(what);
			return why;
		}
	}
	destination_kafka.pipelines_keys = kafka_topic_keeps_keys(settings[TOPIC].text);
	report_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (report_fd < 0)
		return format("no file descriptor is left");

	/* some settings are only looked at together */
	if (!make_producer(NULL, &why))
		return why;
	destroy_producer();
	forget_failures();
	return NULL;
}

/* See destination.h. */
static char *
kafka_show(const Message *message)
{
	char	   *name = template_fill(topic, message, false);
	char	   *why = kafka_topic_look(name);
	Text		line = {0};

	text_add(&line, "id=%s topic=", message->id);
	text_add_json(&line, name);
	text_add(&line, " key=");
	text_add_json(&line, message->aggregateid);
	text_add(&line, " eventType=");
	text_add_json(&line, message->type);
	text_add(&line, " bytes=%zu", message->data != NULL ? message->length : 0);
	if (why != NULL)
	{
		text_add(&line, " rejected=");
		text_add_json(&line, why);
	}
	free(name);
	free(why);
	return line.data;
}

/* Waits for the cluster, and the topic if it is known. */
static Opened
wait_for_cluster(char **why)
{
	int64_t		start = clock_now();

	for (;;)
	{
		rd_kafka_resp_err_t error = kafka_topic_ask(producer, constant_topic);
		struct pollfd polled = {report_fd, POLLIN, 0};
		bool		is_missing = kafka_failure_fault(error) == KAFKA_FAULT_TOPIC;

		if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
			return OPEN_OK;
		rd_kafka_poll(producer, 0);
		if (refusal != NULL)
		{
			*why = format("%s; see --kafka security.protocol, sasl.username, sasl.password, ssl.ca.location", refusal);
			return OPEN_REFUSED;
		}
		if (error == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
		{
			*why = format("topic \"%s\": no right to write to it", constant_topic);
			return OPEN_REFUSED;
		}
		if (is_missing && clock_now() - start > (destination_timeout < TOPIC_PATIENCE ? destination_timeout : TOPIC_PATIENCE))
		{
			*why = format("there is no topic \"%s\", and the brokers do not make one: create it, or correct --topic", constant_topic);
			return OPEN_REFUSED;
		}
		if (interrupted || clock_now() - start > destination_timeout)
		{
			*why = interrupted ? format("interrupted") : format("no answer from %s: %s", description,
																last_error != NULL ? last_error : rd_kafka_err2str(error));
			return OPEN_TROUBLE;
		}
		poll(&polled, 1, 50);
	}
}

/* See destination.h. */
static Opened
kafka_open(char **why)
{
	return make_producer(brokers, why) ? wait_for_cluster(why) : OPEN_REFUSED;
}

/* The headers: id as Debezium's router has it, eventType as its manual calls the type, cause, and the event's. */
static rd_kafka_headers_t *
make_headers(const Message *message)
{
	rd_kafka_headers_t *headers = rd_kafka_headers_new(3 + message->nheaders);

	rd_kafka_header_add(headers, "id", -1, message->id, -1);
	if (message->type != NULL)
		rd_kafka_header_add(headers, "eventType", -1, message->type, -1);
	if (message->cause != NULL)
		rd_kafka_header_add(headers, "cause", -1, message->cause, -1);
	for (int i = 0; i < message->nheaders; i++)
	{
		const char *name = message->headers[i].name;

		if (strcmp(name, "id") != 0 && strcmp(name, "eventType") != 0 && strcmp(name, "cause") != 0)
			rd_kafka_header_add(headers, name, -1, message->headers[i].value, -1);
	}
	return headers;
}

/* What librdkafka counts of a message, but for a few bytes that Kafka adds. */
static size_t
size_of(const Message *message)
{
	rd_kafka_headers_t *headers = make_headers(message);
	size_t		size = message->data != NULL ? message->length : 0;
	const char *name;
	const void *value;
	size_t		length;

	if (message->aggregateid != NULL)
		size += strlen(message->aggregateid);
	for (size_t i = 0; rd_kafka_header_get_all(headers, i, &name, &value, &length) == RD_KAFKA_RESP_ERR_NO_ERROR; i++)
		size += strlen(name) + length;
	rd_kafka_headers_destroy(headers);
	return size;
}

/* Hands a message to librdkafka. */
static rd_kafka_resp_err_t
produce(Message *message, const char *name)
{
	rd_kafka_headers_t *headers = make_headers(message);
	size_t		key_length = message->aggregateid != NULL ? strlen(message->aggregateid) : 0;
	size_t		length = message->data != NULL ? message->length : 0;
	rd_kafka_resp_err_t error;

	error = rd_kafka_producev(producer, RD_KAFKA_V_TOPIC(name),
							  RD_KAFKA_V_KEY(message->aggregateid, key_length),
							  RD_KAFKA_V_VALUE((void *) message->data, length),
							  RD_KAFKA_V_TIMESTAMP(message->created_at / 1000),
							  RD_KAFKA_V_HEADERS(headers),
							  RD_KAFKA_V_MSGFLAGS(0),
							  RD_KAFKA_V_OPAQUE(message),
							  RD_KAFKA_V_END);
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
		rd_kafka_headers_destroy(headers);
	return error;
}

/* Is it too late to send? */
static bool
is_late(const Message *message)
{
	return message->stop_at != NULL && clock_now() >= *message->stop_at;
}

/* librdkafka did not take a message. */
static void
take_refusal(Message *message, const char *name, rd_kafka_resp_err_t error)
{
	KafkaFault	fault = kafka_failure_fault(error);

	if (error == RD_KAFKA_RESP_ERR__QUEUE_FULL)
	{
		/* it waited for too long; what was stopped goes back with the others */
		if (!stopped && !interrupted)
			tell(message, OUTCOME_RETURNED, NULL);
	}
	else if (error == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
		tell(message, OUTCOME_REJECTED, format("it is too large with %zu bytes of value, key and headers: see --kafka message.max.bytes, "
											   "and the broker's", size_of(message)));
	else if (fault == KAFKA_FAULT_MESSAGE || (fault == KAFKA_FAULT_TOPIC && constant_topic == NULL))
		tell(message, OUTCOME_REJECTED, kafka_failure_text(error, name));
	else
		add_failure(message, error, name);
}

/* See destination.h. */
static void
kafka_send(Message *message)
{
	char	   *name = template_fill(topic, message, false);
	char	   *why = kafka_topic_look(name);
	rd_kafka_resp_err_t error;

	message->tag = clock_now();
	if (why != NULL)
		tell(message, OUTCOME_REJECTED, why);
	else if (is_late(message))
		tell(message, OUTCOME_RETURNED, NULL);
	else if (!stopped && !interrupted)
	{
		kafka_topic_introduce(producer, name);
		while ((error = produce(message, name)) == RD_KAFKA_RESP_ERR__QUEUE_FULL &&
			   !stopped && !interrupted && !is_late(message))
			rd_kafka_poll(producer, 20);
		if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
			take_refusal(message, name, error);
	}
	free(name);
}

/* Makes the topic's error a failure of all that go there. */
static void
fail_topic(void)
{
	for (Message *each = publisher_in_flight(); each != NULL; each = each->next)
	{
		char	   *name = template_fill(topic, each, false);

		if (strcmp(name, blamed_topic) == 0)
			add_failure(each, blamed_error, name);
		free(name);
	}
}

/* The producer has stopped: gets the last reports, and gives back what has no outcome.  False: it was the cluster. */
static bool
replace_producer(char **why)
{
	Message    *culprit;
	char	   *text;

	rd_kafka_purge(producer, RD_KAFKA_PURGE_F_QUEUE);
	await_reports();
	destroy_producer();
	if (blamed_topic != NULL)
		fail_topic();

	if (kafka_failure_first() == NULL || trouble != NULL)
	{
		*why = format("%s", trouble != NULL ? trouble : last_error != NULL ? last_error : "the producer has stopped");
		return false;
	}
	text = format("%s", kafka_failure_first());
	kafka_failure_reject_topics(tell);
	culprit = kafka_failure_culprit();
	forget_failures();
	if (culprit != NULL)
		tell(culprit, OUTCOME_REJECTED, format("%s", text));
	publisher_all_done(OUTCOME_AGAIN, text);
	told++;
	stopped = false;
	free(text);
	return make_producer(brokers, why);
}

/* Is it its topic that keeps librdkafka waiting with a message?  There is no report of that. */
static bool
blame_topic(const Message *message)
{
	char	   *name = template_fill(topic, message, false);

	blamed_error = kafka_topic_ask(producer, name);
	if (kafka_failure_fault(blamed_error) == KAFKA_FAULT_TOPIC)
	{
		blamed_topic = name;
		return true;
	}
	free(name);
	return false;
}

/* Has the oldest one waited for too long?  *until: when to look again, if that is earlier. */
static bool
is_overdue(int64_t *until, char **why)
{
	Message    *oldest = publisher_in_flight();
	const char *reason = refusal != NULL ? refusal : last_error;
	int64_t		overdue;
	int64_t		stop_at;

	if (oldest == NULL)
		return false;
	overdue = (int64_t) oldest->tag + destination_timeout;
	stop_at = oldest->stop_at != NULL ? *oldest->stop_at : INT64_MAX;
	if (clock_now() < overdue && clock_now() < stop_at)
	{
		if (*until > overdue)
			*until = overdue;
		if (*until > stop_at)
			*until = stop_at;
		return false;
	}
	if (clock_now() < overdue)
	{
		*why = format("no report of message %s until its lease was about to end", oldest->id);
		return true;
	}
	if (blame_topic(oldest))
		return !replace_producer(why);
	*why = format("no report of message %s within %" PRId64 " s (--timeout)%s%s", oldest->id,
				  destination_timeout / SECONDS(1), reason != NULL ? ": " : "", reason != NULL ? reason : "");
	return true;
}

/* Takes the reports that are there, and sees to failures. */
static bool
take_reports(char **why)
{
	while (rd_kafka_poll(producer, 0) > 0)
		;
	if (stopped)
		return replace_producer(why);
	kafka_failure_reject_topics(tell);
	return true;
}

/* Makes report_fd quiet, until the next report or interrupt(). */
static void
hush_reports(void)
{
	uint64_t	count;

	while (read(report_fd, &count, sizeof(count)) > 0)
		;
}

/* See destination.h. */
static bool
kafka_wait(int wake_fd, int timeout, char **why)
{
	int64_t		end = timeout < 0 ? INT64_MAX : clock_now() + MILLISECONDS(timeout);

	told = 0;
	for (;;)
	{
		struct pollfd polls[] = {{report_fd, POLLIN, 0}, {wake_fd, POLLIN, 0}};
		int64_t		until = end;
		int64_t		left;

		hush_reports();
		if (interrupted)
		{
			*why = format("interrupted");
			return false;
		}
		if (!take_reports(why) || is_overdue(&until, why))
			return false;
		if (told > 0 || clock_now() >= end)
			return true;

		left = until - clock_now();
		poll(polls, 2, until == INT64_MAX ? -1 : left <= 0 ? 0 : left / 1000 + 1);
		if (polls[1].revents != 0)
			end = 0;
	}
}

/* See destination.h. */
static void
kafka_close(bool gently)
{
	if (producer != NULL)
		destroy_producer();
	forget_failures();
	interrupted = false;
	hush_reports();
}

/* See destination.h. */
static void
kafka_interrupt(void)
{
	uint64_t	one = 1;

	interrupted = true;
	(void) !write(report_fd, &one, sizeof(one));
}

Destination destination_kafka = {
	.name = "Kafka",
	.schemes = schemes,
	.settings = settings,
	.pipelines_keys = true,
	.in_flight = 10000,
	.version = kafka_version,
	.configure = kafka_configure,
	.describe = kafka_describe,
	.show = kafka_show,
	.open = kafka_open,
	.send = kafka_send,
	.wait = kafka_wait,
	.close = kafka_close,
	.interrupt = kafka_interrupt
};
