/*-------------------------------------------------------------------------
 *
 * kafka_topic.c
 *	  Topics and their names.
 *
 * librdkafka looks once a second for where new topics are.  To be faster, the
 * first event of a topic has the cluster asked about it at once.
 *
 *-------------------------------------------------------------------------
 */
#include "kafka_topic.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "text.h"

#define LENGTH_MOST 249

#define ASK_MS 200

/* How many are introduced; with more the others wait for librdkafka. */
#define INTRODUCED_MOST 64

static char *introduced[INTRODUCED_MOST];
static int	nintroduced;

/* Has it no other characters than Kafka allows? */
static bool
is_clean(const char *name)
{
	for (; *name; name++)
		if (!((*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') || (*name >= '0' && *name <= '9') ||
			  *name == '.' || *name == '_' || *name == '-'))
			return false;
	return true;
}

/* See kafka_topic.h. */
char *
kafka_topic_look(const char *name)
{
	if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return format("\"%s\" cannot be the name of a topic", name);
	if (strlen(name) > LENGTH_MOST)
		return format("the name of its topic has %zu bytes, but Kafka knows %d at most", strlen(name), LENGTH_MOST);
	if (!is_clean(name))
		return format("\"%s\" cannot be the name of a topic, which has letters, digits, \".\", \"_\" and \"-\" only", name);
	return NULL;
}

/* See kafka_topic.h. */
bool
kafka_topic_keeps_keys(const char *template)
{
	static const char *const fields[] = {"{aggregatetype}", "{aggregateid}", NULL};

	for (const char *s = template; (s = strpbrk(s, "{}")) != NULL;)
	{
		int			i = 0;

		if (s[1] == s[0])
		{
			s += 2;
			continue;
		}
		while (fields[i] != NULL && strncmp(s, fields[i], strlen(fields[i])) != 0)
			i++;
		if (fields[i] == NULL)
			return false;
		s += strlen(fields[i]);
	}
	return true;
}

/* See kafka_topic.h. */
rd_kafka_resp_err_t
kafka_topic_ask(rd_kafka_t *producer, const char *name)
{
	const struct rd_kafka_metadata *metadata;
	rd_kafka_topic_t *handle = NULL;
	rd_kafka_resp_err_t error;

	if (name != NULL && (handle = rd_kafka_topic_new(producer, name, NULL)) == NULL)
		return rd_kafka_last_error();
	error = rd_kafka_metadata(producer, 0, handle, &metadata, ASK_MS);
	if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		if (handle != NULL && metadata->topic_cnt > 0)
			error = metadata->topics[0].err;
		rd_kafka_metadata_destroy(metadata);
	}
	if (handle != NULL)
		rd_kafka_topic_destroy(handle);
	return error;
}

/* See kafka_topic.h. */
void
kafka_topic_introduce(rd_kafka_t *producer, const char *name)
{
	for (int i = 0; i < nintroduced; i++)
		if (strcmp(introduced[i], name) == 0)
			return;
	if (nintroduced == INTRODUCED_MOST)
		return;
	introduced[nintroduced++] = format("%s", name);

	/* an error shows when something is sent there */
	kafka_topic_ask(producer, name);
}

/* See kafka_topic.h. */
void
kafka_topic_forget(void)
{
	while (nintroduced > 0)
		free(introduced[--nintroduced]);
}
