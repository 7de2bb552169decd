/*-------------------------------------------------------------------------
 *
 * publish_kafka.c
 *	  What the relay is held against: a bare loop that produces the same
 *	  messages, with the same headers and guarantees, and reads no database.
 *
 * publish_kafka SERVERS WINDOW FILE [NAME=VALUE ...]
 *
 * WINDOW messages at most are without a report.  NAME=VALUE are settings of
 * librdkafka.  Prints the seconds from the first message to the last report.
 *
 *-------------------------------------------------------------------------
 */
#include <librdkafka/rdkafka.h>

#include "events.h"

static rd_kafka_t *producer;
static int	waiting;			/* messages without a report */

/* Notes a report. */
static void
report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
	(void) rk;
	(void) opaque;
	if (message->err)
		die("report", rd_kafka_err2str(message->err));
	waiting--;
}

/* One setting. */
static void
set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
	char		why[512];

	if (rd_kafka_conf_set(conf, name, value, why, sizeof(why)) != RD_KAFKA_CONF_OK)
		die(name, why);
}

/* Makes the producer, with the relay's guarantees. */
static void
open_producer(const char *servers, char **settings)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	char		why[512];

	set(conf, "bootstrap.servers", servers);
	set(conf, "enable.idempotence", "true");
	set(conf, "enable.gapless.guarantee", "true");
	set(conf, "acks", "all");
	set(conf, "message.timeout.ms", "0");
	set(conf, "linger.ms", "1");
	set(conf, "partitioner", "murmur2_random");
	set(conf, "client.id", "idemq-relay");
	for (; *settings; settings++)
	{
		char	   *equals = strchr(*settings, '=');

		if (equals == NULL)
			die(*settings, "is no NAME=VALUE");
		*equals = '\0';
		set(conf, *settings, equals + 1);
	}
	rd_kafka_conf_set_dr_msg_cb(conf, report);
	producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
	if (producer == NULL)
		die(servers, why);
}

/* Produces one, as the relay does. */
static void
produce(const Event *e)
{
	rd_kafka_headers_t *headers = rd_kafka_headers_new(4);
	char		topic[256];
	rd_kafka_resp_err_t error;

	snprintf(topic, sizeof(topic), "outbox.event.%s", e->aggregatetype);
	rd_kafka_header_add(headers, "id", -1, e->id, -1);
	rd_kafka_header_add(headers, "eventType", -1, e->type, -1);
	error = rd_kafka_producev(producer, RD_KAFKA_V_TOPIC(topic),
							  RD_KAFKA_V_KEY(e->aggregateid, strlen(e->aggregateid)),
							  RD_KAFKA_V_VALUE((void *) e->payload, e->length),
							  RD_KAFKA_V_TIMESTAMP(e->created_at / 1000),
							  RD_KAFKA_V_HEADERS(headers),
							  RD_KAFKA_V_MSGFLAGS(0), RD_KAFKA_V_END);
	if (error)
		die("produce", rd_kafka_err2str(error));
	waiting++;
}

int
main(int argc, char **argv)
{
	Event	   *events;
	int			count;
	int			window;
	double		start;

	if (argc < 4)
		die(argv[0], "SERVERS WINDOW FILE [NAME=VALUE ...]");
	window = atoi(argv[2]);
	events = read_events(argv[3], &count);
	open_producer(argv[1], argv + 4);

	start = now();
	for (int i = 0; i < count; i++)
	{
		while (waiting >= window)
			rd_kafka_poll(producer, 1000);
		produce(&events[i]);
		rd_kafka_poll(producer, 0);
	}
	while (waiting > 0)
		rd_kafka_poll(producer, 1000);
	printf("%.6f\n", now() - start);
	rd_kafka_destroy(producer);
	return 0;
}
