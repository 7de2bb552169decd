/* rabbitmq_message.h: what an event becomes for RabbitMQ. */
#ifndef RABBITMQ_MESSAGE_H
#define RABBITMQ_MESSAGE_H

#include "message.h"
#include "rabbitmq_library.h"
#include "template.h"

typedef struct RabbitmqMessage
{
	char	   *exchange;
	char	   *routing_key;
	amqp_basic_properties_t properties; /* points into the event */
	amqp_bytes_t body;
} RabbitmqMessage;

/*
 * Returns NULL, or why the broker could not take it (malloc'd).  What is in it
 * has to be freed in either case.
 */
extern char *rabbitmq_message_make(RabbitmqMessage *made, const Message *message, const Template *exchange,
								   const Template *routing_key, size_t frame_most);
extern void rabbitmq_message_free(RabbitmqMessage *made);

#endif
