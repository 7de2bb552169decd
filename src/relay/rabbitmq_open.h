/* rabbitmq_open.h: making a connection to RabbitMQ. */
#ifndef RABBITMQ_OPEN_H
#define RABBITMQ_OPEN_H

#include "destination.h"
#include "rabbitmq_library.h"

#define RABBITMQ_CHANNEL 1

/* Where to, and how. */
typedef struct RabbitmqTarget
{
	struct amqp_connection_info url;	/* its strings live in text */
	char	   *text;
	const char *password;
	const char *exchange;		/* has to exist; NULL: it depends on the event */
	int			heartbeat;		/* seconds */
	const char *tls_ca;
	const char *tls_cert;
	const char *tls_key;
	bool		tls_verify;
} RabbitmqTarget;

/*
 * Connects, logs in, opens the channel with confirms, and looks for the
 * exchange.  What was made is in *connection even if it failed.  interrupt_fd: gives up
 * connecting when it can be read; from then on *fd is the socket, which may be shut down.
 */
extern Opened rabbitmq_open_connection(const RabbitmqTarget *target, int interrupt_fd, _Atomic int *fd,
									   amqp_connection_state_t *connection, char **why);

/* A channel with confirms; NULL, or what went wrong (malloc'd). */
extern char *rabbitmq_open_channel(amqp_connection_state_t connection);

/* What the broker or the library said, malloc'd; *code: the broker's, 0: it was not the broker. */
extern char *rabbitmq_reply_text(amqp_rpc_reply_t reply, int *code);

#endif
