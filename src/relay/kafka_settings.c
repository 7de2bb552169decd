/*-------------------------------------------------------------------------
 *
 * kafka_settings.c
 *	  librdkafka's settings, and what we insist on.
 *
 * Any of them may be given by --kafka, but for those that the order and the
 * certainty of deliveries rest on.
 *
 *-------------------------------------------------------------------------
 */
#include "kafka_settings.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "log.h"

/* Ours; those with a reason cannot be set to anything else. */
static const struct
{
	const char *key;
	const char *value;
	const char *also;			/* another word for it */
	const char *reason;
}			ours[] =
{
	{"enable.idempotence", "true", NULL, "without it retries would put a key's events out of order"},
	{"enable.gapless.guarantee", "true", NULL, "without it a key's later events could get past one that failed"},
	{"acks", "all", "-1", "an event is only delivered when all replicas have it"},
	{"request.required.acks", NULL, "-1", "an event is only delivered when all replicas have it"},
	{"message.timeout.ms", "0", NULL, "the relay's own times decide when an event is given up"},
	{"delivery.timeout.ms", NULL, "0", "the relay's own times decide when an event is given up"},
	{"delivery.report.only.error", "false", NULL, "the relay has to know what was delivered"},
	{"transactional.id", NULL, NULL, "the relay uses no transactions; consumers drop repetitions by the header id"},
	{"bootstrap.servers", NULL, NULL, "the brokers are named by --to"},
	{"metadata.broker.list", NULL, NULL, "the brokers are named by --to"},
	{"client.id", "idemq-relay", NULL, NULL},
	{"linger.ms", "1", NULL, NULL},
	{"partitioner", "murmur2_random", NULL, NULL},
	{"topic.metadata.propagation.max.ms", "10000", NULL, NULL},
	{NULL}
};

/* Sets one. */
static char *
set_one(rd_kafka_conf_t *conf, const char *key, const char *value)
{
	char		error[512];

	return rd_kafka_conf_set(conf, key, value, error, sizeof(error)) == RD_KAFKA_CONF_OK ? NULL :
		format("--kafka %s: %s", key, error);
}

/* Why a pair cannot be allowed, malloc'd, or NULL. */
static char *
look_at_pair(const SettingPair *pair)
{
	for (int i = 0; ours[i].key != NULL; i++)
	{
		if (ours[i].reason == NULL || strcmp(ours[i].key, pair->key) != 0)
			continue;
		if ((ours[i].value != NULL && strcasecmp(ours[i].value, pair->value) == 0) ||
			(ours[i].also != NULL && strcasecmp(ours[i].also, pair->value) == 0))
			continue;
		return format("--kafka %s cannot be set%s%s: %s", pair->key, ours[i].value != NULL ? " to anything but " : "",
					  ours[i].value != NULL ? ours[i].value : "", ours[i].reason);
	}
	return NULL;
}

/* See kafka_settings.h. */
char *
kafka_settings_make(rd_kafka_conf_t *conf, const char *brokers, const SettingPair *pairs)
{
	char	   *why;

	for (int i = 0; ours[i].key != NULL; i++)
		if (ours[i].value != NULL && (why = set_one(conf, ours[i].key, ours[i].value)) != NULL)
			return why;
	for (const SettingPair *pair = pairs; pair != NULL; pair = pair->next)
	{
		why = look_at_pair(pair);
		if (why == NULL)
			why = set_one(conf, pair->key, pair->value);
		if (why != NULL)
			return why;
	}
	if (brokers != NULL)
		return set_one(conf, "bootstrap.servers", brokers);
	return NULL;
}
