/* kafka_failure.h: events that Kafka did not take, and whose fault that is. */
#ifndef KAFKA_FAILURE_H
#define KAFKA_FAILURE_H

#include <librdkafka/rdkafka.h>

#include "message.h"

/* What an error says about. */
typedef enum KafkaFault
{
	KAFKA_FAULT_MESSAGE,		/* one of the messages that were sent as one */
	KAFKA_FAULT_TOPIC,			/* all of the topic */
	KAFKA_FAULT_CLUSTER,		/* all */
	KAFKA_FAULT_OTHER			/* nothing: it went down with others */
} KafkaFault;

extern KafkaFault kafka_failure_fault(rd_kafka_resp_err_t error);

/* What it says, malloc'd. */
extern char *kafka_failure_text(rd_kafka_resp_err_t error, const char *topic);

/* Remembers a message whose failure is its own fault, or its topic's; takes why. */
extern void kafka_failure_add(Message *message, KafkaFault fault, char *why);

/* Why the first of them failed; NULL: there are none. */
extern const char *kafka_failure_first(void);

/*
 * Tells what becomes of those that failed for their topic: the first of a key is rejected, its later ones are
 * returned.  They are forgotten then.
 */
extern void kafka_failure_reject_topics(void (*tell) (Message *message, Outcome outcome, char *why));

/* The one message that is certainly at fault, or NULL. */
extern Message *kafka_failure_culprit(void);

extern void kafka_failure_forget(void);

#endif
