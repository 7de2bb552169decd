/*-------------------------------------------------------------------------
 *
 * kafka_failure.c
 *	  Events that Kafka did not take, and whose fault that is.
 *
 *-------------------------------------------------------------------------
 */
#include "kafka_failure.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "publisher.h"
#include "text.h"

typedef struct Failed
{
	Message    *message;
	KafkaFault	fault;
	char	   *why;
} Failed;

static Failed *failed;
static int	nfailed;
static int	room;

/* See kafka_failure.h. */
KafkaFault
kafka_failure_fault(rd_kafka_resp_err_t error)
{
	switch (error)
	{
		case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
		case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
		case RD_KAFKA_RESP_ERR_INVALID_MSG:
		case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
		case RD_KAFKA_RESP_ERR_INVALID_RECORD:
		case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
		case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
		case RD_KAFKA_RESP_ERR__INVALID_ARG:
			return KAFKA_FAULT_MESSAGE;
		case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
		case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
		case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
		case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
			return KAFKA_FAULT_TOPIC;
		case RD_KAFKA_RESP_ERR__PURGE_QUEUE:
		case RD_KAFKA_RESP_ERR__PURGE_INFLIGHT:
		case RD_KAFKA_RESP_ERR__FATAL:
		case RD_KAFKA_RESP_ERR__GAPLESS_GUARANTEE:
			return KAFKA_FAULT_OTHER;
		default:
			return KAFKA_FAULT_CLUSTER;
	}
}

/* See kafka_failure.h. */
char *
kafka_failure_text(rd_kafka_resp_err_t error, const char *topic)
{
	if (kafka_failure_fault(error) == KAFKA_FAULT_TOPIC)
		return format("topic \"%s\": %s", topic, rd_kafka_err2str(error));
	return format("%s", rd_kafka_err2str(error));
}

/* See kafka_failure.h. */
void
kafka_failure_add(Message *message, KafkaFault fault, char *why)
{
	if (nfailed == room)
	{
		room = room > 0 ? room * 2 : 64;
		failed = realloc(failed, room * sizeof(Failed));
		if (failed == NULL)
			text_no_memory();
	}
	failed[nfailed++] = (Failed)
	{
		message, fault, why
	};
}

/* See kafka_failure.h. */
const char *
kafka_failure_first(void)
{
	return nfailed > 0 ? failed[0].why : NULL;
}

/* Are they of one key? */
static bool
is_same_key(const Message *a, const Message *b)
{
	return a->aggregateid != NULL && b->aggregateid != NULL &&
		strcmp(a->aggregateid, b->aggregateid) == 0 && strcmp(a->aggregatetype, b->aggregatetype) == 0;
}

/* By key, then in the order of the outbox. */
static int
compare_failed(const void *a, const void *b)
{
	const Message *x = ((const Failed *) a)->message;
	const Message *y = ((const Failed *) b)->message;
	int			order = strcmp(x->aggregateid ? x->aggregateid : "", y->aggregateid ? y->aggregateid : "");

	if (order == 0)
		order = strcmp(x->aggregatetype, y->aggregatetype);
	return order != 0 ? order : (x->seq > y->seq) - (x->seq < y->seq);
}

/* See kafka_failure.h. */
void
kafka_failure_reject_topics(void (*tell) (Message *message, Outcome outcome, char *why))
{
	int			kept = 0;

	if (nfailed == 0)
		return;
	qsort(failed, nfailed, sizeof(Failed), compare_failed);

	/* backwards, for the one before has to be there for comparison */
	for (int i = nfailed - 1; i >= 0; i--)
	{
		if (failed[i].fault != KAFKA_FAULT_TOPIC)
			continue;
		if (i > 0 && is_same_key(failed[i - 1].message, failed[i].message))
		{
			free(failed[i].why);
			tell(failed[i].message, OUTCOME_RETURNED, NULL);
		}
		else
			tell(failed[i].message, OUTCOME_REJECTED, failed[i].why);
		failed[i].message = NULL;
	}
	for (int i = 0; i < nfailed; i++)
		if (failed[i].message != NULL)
			failed[kept++] = failed[i];
	nfailed = kept;
}

/* See kafka_failure.h. */
Message *
kafka_failure_culprit(void)
{
	Message    *culprit;

	if (nfailed != 1)
		return NULL;
	culprit = failed[0].message;
	for (Message *each = publisher_in_flight(); each != NULL; each = each->next)
		if (each->seq < culprit->seq && is_same_key(each, culprit))
			return NULL;
	return culprit;
}

/* See kafka_failure.h. */
void
kafka_failure_forget(void)
{
	while (nfailed > 0)
		free(failed[--nfailed].why);
}
