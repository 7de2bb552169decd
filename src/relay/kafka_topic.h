/* kafka_topic.h: topics and their names. */
#ifndef KAFKA_TOPIC_H
#define KAFKA_TOPIC_H

#include <stdbool.h>

#include <librdkafka/rdkafka.h>

/* What is wrong with the name of a topic, malloc'd, or NULL. */
extern char *kafka_topic_look(const char *name);

/* Do all events of a key go to one topic? */
extern bool kafka_topic_keeps_keys(const char *template);

/* Asks the cluster how it is, and how the topic is; NULL: no topic.  For 200 ms at most. */
extern rd_kafka_resp_err_t kafka_topic_ask(rd_kafka_t *producer, const char *name);

/* Tells the producer of a topic that it may not know yet. */
extern void kafka_topic_introduce(rd_kafka_t *producer, const char *name);

/* The producer is gone, and what it knew with it. */
extern void kafka_topic_forget(void);

#endif
