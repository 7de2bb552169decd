/*-------------------------------------------------------------------------
 *
 * kafka_mock.c
 *	  librdkafka's mock cluster as a server: kafka_mock BROKERS
 *
 * Prints "bootstrap HOST:PORT,...", then reads commands from stdin, a line each,
 * and answers each with a line, "ok" or what is wrong.  Ends with stdin.
 *
 *	topic NAME PARTITIONS		makes it
 *	errors KEY CODE...			the next answers to requests of this ApiKey (0 is Produce)
 *	slow BROKER KEY CODE MS ...	the same of one broker, each after so many milliseconds
 *	clear KEY					no more of them
 *	down BROKER, up BROKER
 *	rtt BROKER MS
 *	leader NAME PARTITION BROKER
 *	refuse NAME CODE			all that is produced to the topic, 0 ends it
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#define MAX_WORDS 64

static rd_kafka_mock_cluster_t *cluster;

static int
number(char **words, int i)
{
	return words[i] ? atoi(words[i]) : 0;
}

/* Obeys one command; true if it was understood. */
static int
obey(char **words, int n, rd_kafka_resp_err_t *err)
{
	*err = RD_KAFKA_RESP_ERR_NO_ERROR;
	if (n == 3 && strcmp(words[0], "topic") == 0)
		*err = rd_kafka_mock_topic_create(cluster, words[1], number(words, 2), 1);
	else if (n >= 3 && strcmp(words[0], "errors") == 0)
	{
		rd_kafka_resp_err_t errors[MAX_WORDS];

		for (int i = 2; i < n; i++)
			errors[i - 2] = number(words, i);
		rd_kafka_mock_push_request_errors_array(cluster, number(words, 1), n - 2, errors);
	}
	else if (n >= 5 && strcmp(words[0], "slow") == 0)
	{
		for (int i = 3; i + 1 < n && !*err; i += 2)
			*err = rd_kafka_mock_broker_push_request_error_rtts(cluster, number(words, 1), number(words, 2), 1,
																(rd_kafka_resp_err_t) number(words, i),
																number(words, i + 1));
	}
	else if (n == 2 && strcmp(words[0], "clear") == 0)
		rd_kafka_mock_clear_request_errors(cluster, number(words, 1));
	else if (n == 2 && strcmp(words[0], "down") == 0)
		*err = rd_kafka_mock_broker_set_down(cluster, number(words, 1));
	else if (n == 2 && strcmp(words[0], "up") == 0)
		*err = rd_kafka_mock_broker_set_up(cluster, number(words, 1));
	else if (n == 3 && strcmp(words[0], "rtt") == 0)
		*err = rd_kafka_mock_broker_set_rtt(cluster, number(words, 1), number(words, 2));
	else if (n == 4 && strcmp(words[0], "leader") == 0)
		*err = rd_kafka_mock_partition_set_leader(cluster, words[1], number(words, 2), number(words, 3));
	else if (n == 3 && strcmp(words[0], "refuse") == 0)
		rd_kafka_mock_topic_set_error(cluster, words[1], number(words, 2));
	else
		return 0;
	return 1;
}

int
main(int argc, char **argv)
{
	char		errstr[256];
	char		line[1024];
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_t *rk;

	/* it is only there because the cluster wants one */
	rd_kafka_conf_set(conf, "client.id", "kafka_mock", NULL, 0);
	/* the cluster's sockets take it over; Kafka's own do the same */
	rd_kafka_conf_set(conf, "socket.nagle.disable", "true", NULL, 0);
	rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, errstr, sizeof(errstr));
	if (!rk)
	{
		fprintf(stderr, "%s\n", errstr);
		return 1;
	}
	cluster = rd_kafka_mock_cluster_new(rk, argc > 1 ? atoi(argv[1]) : 1);
	if (!cluster)
	{
		fprintf(stderr, "no mock cluster\n");
		return 1;
	}
	printf("bootstrap %s\n", rd_kafka_mock_cluster_bootstraps(cluster));
	fflush(stdout);

	while (fgets(line, sizeof(line), stdin))
	{
		char	   *words[MAX_WORDS + 1] = {NULL};
		int			n = 0;
		rd_kafka_resp_err_t err;

		for (char *word = strtok(line, " \n"); word && n < MAX_WORDS; word = strtok(NULL, " \n"))
			words[n++] = word;
		if (n == 0)
			continue;
		if (!obey(words, n, &err))
			printf("what?\n");
		else
			printf("%s\n", err ? rd_kafka_err2name(err) : "ok");
		fflush(stdout);
	}
	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(rk);
	return 0;
}
