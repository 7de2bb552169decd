/*-------------------------------------------------------------------------
 *
 * rabbitmq.c
 *	  RabbitMQ as a destination.
 *
 * The promise: a message is delivered when the broker has confirmed it, which it does once the message is
 * safe in every queue that it was routed to.
 *
 * Confirms count the messages of a channel from 1, so what is unconfirmed is
 * kept in a ring by that number; one confirm may be for all up to a number.  A message that
 * no queue wanted comes back before it is confirmed, which is why it is mandatory: its confirm
 * then rejects it.
 *
 * Writing.  librabbitmq writes as long as it takes.  So a message is only written while the
 * socket has room and the broker has not said that it is blocked; else it is
 * held back here, in order, until wait().  One that is larger than the room may still
 * block; the kernel ends the connection when nothing moves for --timeout, and interrupt() does.
 * The socket is corked from the first message until wait(), for full segments.
 *
 * Failures.  A message that the broker does not like (it is too large, its exchange is
 * missing) closes the channel, and the broker does not say which it was; those before it may or may
 * not have been taken.  With one unconfirmed message it is known; else all go back to be sent one by
 * one.  What is wrong with the exchange of all messages is no message's fault.  A single one over which the
 * broker closes the connection may be why; that is for the relay to find out (suspect.c).
 *
 * A broker short of memory or disk says that the connection is blocked, and stops reading.  It gets a
 * moment, since such alarms may be short, before it counts as trouble.
 *
 *-------------------------------------------------------------------------
 */
#include "destination.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "publisher.h"
#include "rabbitmq_message.h"
#include "rabbitmq_open.h"
#include "text.h"

/* Codes of AMQP for a connection that was closed because of what was in a message. */
#define IS_FAULT_OF_MESSAGE(code) ((code) == AMQP_FRAME_ERROR || (code) == AMQP_SYNTAX_ERROR || (code) == AMQP_NOT_IMPLEMENTED)

/* How long a blocked broker is waited for. */
#define BLOCKED_PATIENCE SECONDS(2)

/* One that was written and is not confirmed. */
typedef struct Sent
{
	Message    *message;		/* NULL: has an outcome */
	char	   *returned;		/* why it came back, malloc'd */
	int64_t		at;
} Sent;

static const char *const schemes[] = {"amqp", "amqps", NULL};

enum
{
	EXCHANGE,
	ROUTING_KEY,
	PASSWORD,
	MANDATORY,
	HEARTBEAT,
	TLS_CA,
	TLS_CERT,
	TLS_KEY,
	TLS_VERIFY
};

static Setting settings[] = {
	[EXCHANGE] = {
		.name = "exchange",.kind = SETTING_TEXT,.value_name = "TEMPLATE",
		.help = "exchange to publish to, which has to exist; fields as {aggregatetype} are filled\n"
		"in for each event; '' is the default exchange, whose routing keys are names of queues"
	},
	[ROUTING_KEY] = {
		.name = "routing-key",.kind = SETTING_TEXT,.initial = "{aggregatetype}.{type}",.value_name = "TEMPLATE",
		.help = "routing key"
	},
	[PASSWORD] = {
		.name = "password",.kind = SETTING_TEXT,.value_name = "PASSWORD",.secret = true,
		.help = "password of the user that --to names"
	},
	[MANDATORY] = {
		.name = "mandatory",.kind = SETTING_FLAG,.initial = "on",
		.help = "an event that no queue is bound for is rejected; off: the broker drops it, and\n"
		"it counts as delivered"
	},
	[HEARTBEAT] = {
		.name = "heartbeat",.kind = SETTING_TIME,.initial = "20s",.value_name = "TIME",.least = SECONDS(1),.most = SECONDS(3600),
		.help = "a broker that is silent for twice as long is gone"
	},
	[TLS_CA] = {
		.name = "tls-ca",.kind = SETTING_TEXT,.value_name = "FILE",
		.help = "certificates (PEM) of the authorities to trust, instead of the system's; for amqps"
	},
	[TLS_CERT] = {
		.name = "tls-cert",.kind = SETTING_TEXT,.value_name = "FILE",
		.help = "certificate (PEM) to show to the broker"
	},
	[TLS_KEY] = {
		.name = "tls-key",.kind = SETTING_TEXT,.value_name = "FILE",
		.help = "its private key (PEM), without a password"
	},
	[TLS_VERIFY] = {
		.name = "tls-verify",.kind = SETTING_FLAG,.initial = "on",
		.help = "check the broker's certificate and its name; off: anybody can be the broker"
	},
	{NULL}
};

static RabbitmqTarget target;
static Template *exchange;
static Template *routing_key;
static char *description;

/* Can be read after interrupt(). */
static int	interrupt_fd = -1;

/* The connection. */
static amqp_connection_state_t connection;
static _Atomic int socket_fd = -1;
static bool corked;
static char *broken;			/* why writing failed; wait() tells */
static char *blocked;			/* the broker's reason */
static int64_t blocked_since;
static char *returning;			/* reason of the message whose return is being read */

/* Written and unconfirmed: those numbered first_tag up to next_tag; the ring's size is a power of two. */
static Sent *ring;
static uint64_t ring_size;
static uint64_t first_tag = 1;
static uint64_t next_tag = 1;

/* Held back, in order. */
static Message **held;
static int	nheld;
static int	held_room;

/* Outcomes told since wait() began. */
static int	told;

/* The library. */
static const char *
rabbitmq_version(void)
{
	static char *version;

	if (version == NULL)
		version = format("librabbitmq %s", amqp_version());
	return version;
}

/* See destination.h. */
static const char *
rabbitmq_describe(void)
{
	return description;
}

/* Takes --to apart. */
static char *
configure_url(const char *to)
{
	target.text = strdup(to);
	if (target.text == NULL)
		text_no_memory();
	amqp_default_connection_info(&target.url);
	if (strchr(to, '?') != NULL || amqp_parse_url(target.text, &target.url) != AMQP_STATUS_OK)
		return format("--to is not a URL for RabbitMQ: write amqp://USER@HOST:PORT/VHOST, or amqps:// for TLS; "
					  "/ within the name of a virtual host is %%2F");
	/* to librabbitmq a / at the end names a virtual host without a name; who writes it means the usual one */
	if (target.url.vhost[0] == '\0')
		target.url.vhost = (char *) "/";
	target.password = settings[PASSWORD].text != NULL ? settings[PASSWORD].text : target.url.password;
	description = format("%s://%s@%s:%d/%s", target.url.ssl ? "amqps" : "amqp", target.url.user, target.url.host,
						 target.url.port, strcmp(target.url.vhost, "/") == 0 ? "%2F" : target.url.vhost);
	return NULL;
}

/* Looks at the settings for TLS. */
static char *
configure_tls(void)
{
	target.tls_ca = settings[TLS_CA].text;
	target.tls_cert = settings[TLS_CERT].text;
	target.tls_key = settings[TLS_KEY].text;
	target.tls_verify = settings[TLS_VERIFY].number;
	if (!target.url.ssl && (target.tls_ca != NULL || target.tls_cert != NULL || target.tls_key != NULL))
		return format("%s is for TLS: write amqps:// in --to",
					  target.tls_ca != NULL ? "--tls-ca" : target.tls_cert != NULL ? "--tls-cert" : "--tls-key");
	if ((target.tls_cert == NULL) != (target.tls_key == NULL))
		return format("--tls-cert and --tls-key go together");
	return NULL;
}

/* See destination.h. */
static char *
rabbitmq_configure(const char *to)
{
	static const Message nothing;
	char	   *why = configure_url(to);
	char	   *what;

	if (why == NULL)
		why = configure_tls();
	if (why != NULL)
		return why;
	if (settings[EXCHANGE].text == NULL)
		return format("--exchange is missing: name the exchange to publish to");

	exchange = template_parse(settings[EXCHANGE].text, &what);
	if (exchange == NULL)
	{
		why = format("--exchange: %s", what);
		free(what);
		return why;
	}
	routing_key = template_parse(settings[ROUTING_KEY].text, &what);
	if (routing_key == NULL)
	{
		why = format("--routing-key: %s", what);
		free(what);
		return why;
	}
	if (template_is_constant(exchange))
		target.exchange = template_fill(exchange, &nothing, false);
	target.heartbeat = settings[HEARTBEAT].number / SECONDS(1);
	interrupt_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	return interrupt_fd < 0 ? format("no file descriptor is left") : NULL;
}

/* See destination.h. */
static char *
rabbitmq_show(const Message *message)
{
	RabbitmqMessage made;
	char	   *why = rabbitmq_message_make(&made, message, exchange, routing_key, AMQP_DEFAULT_FRAME_SIZE);
	Text		line = {0};

	text_add(&line, "message-id=%s exchange=", message->id);
	text_add_json(&line, made.exchange);
	text_add(&line, " routing-key=");
	text_add_json(&line, made.routing_key);
	text_add(&line, " type=");
	text_add_json(&line, message->type);
	text_add(&line, " bytes=%zu", made.body.len);
	if (why != NULL)
	{
		text_add(&line, " rejected=");
		text_add_json(&line, why);
	}
	free(why);
	rabbitmq_message_free(&made);
	return line.data;
}

/* See destination.h. */
static Opened
rabbitmq_open(char **why)
{
	return rabbitmq_open_connection(&target, interrupt_fd, &socket_fd, &connection, why);
}

/* Holds segments back until they are full, or lets them go. */
static void
cork(bool on)
{
	int			value = on;

	if (corked != on)
		setsockopt(socket_fd, IPPROTO_TCP, TCP_CORK, &value, sizeof(value));
	corked = on;
}

/* What happened to a message. */
static void
tell(Message *message, Outcome outcome, char *why)
{
	told++;
	publisher_done(message, outcome, why, 0);
}

/* The one of that number. */
static Sent *
sent_of(uint64_t tag)
{
	return &ring[tag & (ring_size - 1)];
}

/* Remembers that a message was written. */
static void
add_sent(Message *message)
{
	if (next_tag - first_tag == ring_size)
	{
		uint64_t	size = ring_size > 0 ? ring_size * 2 : 1024;
		Sent	   *larger = calloc(size, sizeof(Sent));

		if (larger == NULL)
			text_no_memory();
		for (uint64_t tag = first_tag; tag < next_tag; tag++)
			larger[tag & (size - 1)] = *sent_of(tag);
		free(ring);
		ring = larger;
		ring_size = size;
	}
	*sent_of(next_tag++) = (Sent)
	{
		.message = message,.at = clock_now()
	};
}

/* How many are unconfirmed. */
static int
count_sent(void)
{
	int			count = 0;

	for (uint64_t tag = first_tag; tag < next_tag; tag++)
		count += sent_of(tag)->message != NULL;
	return count;
}

/* Forgets what was written; the next is number 1, as after confirm.select. */
static void
forget_sent(void)
{
	for (uint64_t tag = first_tag; tag < next_tag; tag++)
		free(sent_of(tag)->returned);
	first_tag = next_tag = 1;
	free(returning);
	returning = NULL;
}

/* May it not be sent any more? */
static bool
is_late(const Message *message)
{
	return message->stop_at != NULL && clock_now() >= *message->stop_at;
}

/* Can the socket take something without waiting? */
static bool
has_room(void)
{
	struct pollfd polled = {socket_fd, POLLOUT, 0};

	return poll(&polled, 1, 0) == 1 && (polled.revents & POLLOUT);
}

/* Writes a message, or rejects it. */
static void
write_message(Message *message)
{
	RabbitmqMessage made;
	char	   *why;
	int			status;

	if (is_late(message))
	{
		tell(message, OUTCOME_RETURNED, NULL);
		return;
	}
	why = rabbitmq_message_make(&made, message, exchange, routing_key, amqp_get_frame_max(connection));
	if (why != NULL)
		tell(message, OUTCOME_REJECTED, why);
	else
	{
		cork(true);
		add_sent(message);
		status = amqp_basic_publish(connection, RABBITMQ_CHANNEL, amqp_cstring_bytes(made.exchange),
									amqp_cstring_bytes(made.routing_key), settings[MANDATORY].number, 0,
									&made.properties, made.body);
		if (status != AMQP_STATUS_OK)
			broken = format("writing to the broker failed: %s", amqp_error_string2(status));
	}
	rabbitmq_message_free(&made);
}

/* Puts a message at the end of those that are held back. */
static void
hold(Message *message)
{
	if (nheld == held_room)
	{
		held_room = held_room > 0 ? held_room * 2 : 64;
		held = realloc(held, held_room * sizeof(Message *));
		if (held == NULL)
			text_no_memory();
	}
	held[nheld++] = message;
}

/* See destination.h. */
static void
rabbitmq_send(Message *message)
{
	if (broken == NULL && blocked == NULL && nheld == 0 && has_room())
		write_message(message);
	else
		hold(message);
}

/* Writes those that were held back, as far as that is possible. */
static void
write_held(void)
{
	int			i = 0;

	while (i < nheld && broken == NULL && blocked == NULL && has_room())
		write_message(held[i++]);
	if (i > 0)
		memmove(held, held + i, (nheld -= i) * sizeof(Message *));
}

/* The broker's answer to one. */
static void
settle(uint64_t tag, bool refused)
{
	Sent	   *sent = sent_of(tag);
	Message    *message = sent->message;

	if (message == NULL)
		return;
	sent->message = NULL;
	if (sent->returned != NULL)
		tell(message, OUTCOME_REJECTED, sent->returned);
	else if (refused)
		tell(message, OUTCOME_DEFERRED, format("the broker does not take it now (basic.nack), as when a queue is full"));
	else
		tell(message, OUTCOME_DELIVERED, NULL);
	sent->returned = NULL;
}

/* The broker's answer to one, or to all up to one. */
static void
take_confirm(uint64_t tag, bool multiple, bool refused)
{
	if (multiple && tag == 0)
		tag = next_tag - 1;
	if (tag < first_tag || tag >= next_tag)
		return;
	for (uint64_t each = multiple ? first_tag : tag; each <= tag; each++)
		settle(each, refused);
	while (first_tag < next_tag && sent_of(first_tag)->message == NULL)
		first_tag++;
}

/* A message came back; its header tells which. */
static void
take_returned(const amqp_basic_properties_t *properties)
{
	if (returning == NULL || !(properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG))
		return;
	for (uint64_t tag = first_tag; tag < next_tag; tag++)
	{
		Sent	   *sent = sent_of(tag);

		if (sent->message != NULL && sent->returned == NULL &&
			strlen(sent->message->id) == properties->message_id.len &&
			memcmp(sent->message->id, properties->message_id.bytes, properties->message_id.len) == 0)
		{
			sent->returned = returning;
			returning = NULL;
			return;
		}
	}
	free(returning);
	returning = NULL;
}

/* The broker gave up the connection: if one message alone was on its way, it may be what it fell over. */
static void
suspect_lone(void)
{
	if (count_sent() != 1)
		return;
	for (uint64_t tag = first_tag; tag < next_tag; tag++)
		if (sent_of(tag)->message != NULL)
			sent_of(tag)->message->answered = true;
}

/*
 * The broker closed the channel, or the connection, because of a message.  False: no message can be
 * sent like this.
 */
static bool
take_refusal(int code, const char *said)
{
	bool		alone = count_sent() == 1;
	uint64_t	end = next_tag;

	if (target.exchange != NULL &&
		(code == AMQP_NOT_FOUND || (code == AMQP_ACCESS_REFUSED && strstr(said, " to topic ") == NULL)))
		return false;
	for (uint64_t tag = first_tag; tag < end; tag++)
	{
		Sent	   *sent = sent_of(tag);

		if (sent->message == NULL)
			continue;
		tell(sent->message, alone ? OUTCOME_REJECTED : OUTCOME_AGAIN, format("%s", said));
		sent->message = NULL;
	}
	return true;
}

/* The broker closed the channel: opens it again, unless that would not help. */
static bool
take_channel_close(const amqp_channel_close_t *method, char **why)
{
	int			code = method->reply_code;
	amqp_channel_close_ok_t ok = {0};
	char	   *said = format("%.*s", (int) method->reply_text.len, (char *) method->reply_text.bytes);

	if (!take_refusal(code, said))
	{
		*why = said;
		return false;
	}
	free(said);
	forget_sent();
	if (amqp_send_method(connection, RABBITMQ_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok) != AMQP_STATUS_OK)
		*why = format("the connection was lost");
	else
		*why = rabbitmq_open_channel(connection);
	return *why == NULL;
}

/* The broker closed the connection. */
static void
take_connection_close(const amqp_connection_close_t *method, char **why)
{
	int			code = method->reply_code;
	amqp_connection_close_ok_t ok = {0};

	*why = format("the broker closed the connection: %.*s", (int) method->reply_text.len, (char *) method->reply_text.bytes);
	amqp_send_method(connection, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &ok);
	if (IS_FAULT_OF_MESSAGE(code))
		take_refusal(code, *why);
	else if (code != AMQP_CONNECTION_FORCED)
		suspect_lone();
}

/* A frame of the broker. */
static bool
take_method(const amqp_method_t *method, char **why)
{
	switch (method->id)
	{
		case AMQP_BASIC_ACK_METHOD:
			{
				amqp_basic_ack_t *ack = method->decoded;

				take_confirm(ack->delivery_tag, ack->multiple, false);
				return true;
			}
		case AMQP_BASIC_NACK_METHOD:
			{
				amqp_basic_nack_t *nack = method->decoded;

				take_confirm(nack->delivery_tag, nack->multiple, true);
				return true;
			}
		case AMQP_BASIC_RETURN_METHOD:
			{
				amqp_basic_return_t *returned = method->decoded;

				free(returning);
				returning = format("%.*s: no queue is bound to exchange \"%.*s\" for routing key \"%.*s\"",
								   (int) returned->reply_text.len, (char *) returned->reply_text.bytes,
								   (int) returned->exchange.len, (char *) returned->exchange.bytes,
								   (int) returned->routing_key.len, (char *) returned->routing_key.bytes);
				return true;
			}
		case AMQP_CONNECTION_BLOCKED_METHOD:
			{
				amqp_connection_blocked_t *is = method->decoded;

				free(blocked);
				blocked = format("the broker takes nothing for now (connection.blocked): %.*s", (int) is->reason.len, (char *) is->reason.bytes);
				blocked_since = clock_now();
				return true;
			}
		case AMQP_CONNECTION_UNBLOCKED_METHOD:
			free(blocked);
			blocked = NULL;
			return true;
		case AMQP_CHANNEL_CLOSE_METHOD:
			return take_channel_close(method->decoded, why);
		case AMQP_CONNECTION_CLOSE_METHOD:
			take_connection_close(method->decoded, why);
			return false;
		default:
			return true;
	}
}

/* Takes what the broker has sent so far, and keeps heartbeats going. */
static bool
read_frames(char **why)
{
	struct timeval none = {0, 0};

	for (;;)
	{
		amqp_frame_t frame;
		int			status = amqp_simple_wait_frame_noblock(connection, &frame, &none);

		if (status == AMQP_STATUS_TIMEOUT)
			return true;
		if (status == AMQP_STATUS_HEARTBEAT_TIMEOUT)
			*why = format("the broker has been silent for too long (heartbeat)");
		else if (status != AMQP_STATUS_OK)
			*why = format("the connection was lost: %s", amqp_error_string2(status));
		if (status != AMQP_STATUS_OK)
			return false;

		if (frame.frame_type == AMQP_FRAME_METHOD && !take_method(&frame.payload.method, why))
			return false;
		if (frame.frame_type == AMQP_FRAME_HEADER && frame.payload.properties.class_id == AMQP_BASIC_CLASS)
			take_returned(frame.payload.properties.decoded);
		amqp_maybe_release_buffers(connection);
	}
}

/* Is something overdue?  *until: when to look again, if that is earlier. */
static bool
check_times(int64_t *until, char **why)
{
	int64_t		now = clock_now();
	int64_t		patience = destination_timeout < BLOCKED_PATIENCE ? destination_timeout : BLOCKED_PATIENCE;
	int64_t		next = now + SECONDS(amqp_get_heartbeat(connection)) / 4;

	if (broken != NULL)
	{
		*why = broken;
		broken = NULL;
		return false;
	}
	if (blocked != NULL && (nheld > 0 || first_tag < next_tag))
	{
		if (now >= blocked_since + patience)
		{
			*why = format("%s", blocked);
			return false;
		}
		if (next > blocked_since + patience)
			next = blocked_since + patience;
	}
	if (first_tag < next_tag)
	{
		const Message *oldest = sent_of(first_tag)->message;
		bool		late = is_late(oldest);
		int64_t		overdue = sent_of(first_tag)->at + destination_timeout;

		if (now >= overdue)
			*why = format("the broker has not confirmed message %s within %" PRId64 " s (--timeout)",
						  oldest->id, destination_timeout / SECONDS(1));
		else if (late)
			*why = format("the broker has not confirmed message %s until its lease was about to end", oldest->id);
		if (now >= overdue || late)
			return false;
		if (oldest->stop_at != NULL && overdue > *oldest->stop_at)
			overdue = *oldest->stop_at;
		if (next > overdue)
			next = overdue;
	}
	if (*until > next)
		*until = next;
	return true;
}

/* See destination.h. */
static bool
rabbitmq_wait(int wake_fd, int timeout, char **why)
{
	int64_t		end = timeout < 0 ? INT64_MAX : clock_now() + MILLISECONDS(timeout);

	told = 0;
	for (;;)
	{
		struct pollfd polls[] = {{socket_fd, POLLIN, 0}, {wake_fd, POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
		int64_t		until = end;
		int64_t		left;

		if (!read_frames(why))
			return false;
		write_held();
		cork(false);
		if (!check_times(&until, why))
			return false;
		if (told > 0 || clock_now() >= end)
			return true;

		if (nheld > 0 && blocked == NULL)
			polls[0].events |= POLLOUT;
		left = until - clock_now();
		poll(polls, 3, left <= 0 ? 0 : left / 1000 + 1);
		if (polls[2].revents != 0)
		{
			*why = format("interrupted");
			return false;
		}
		if (polls[1].revents != 0)
			return read_frames(why);
	}
}

/* See destination.h. */
static void
rabbitmq_close(bool gently)
{
	uint64_t	count;

	if (connection != NULL)
	{
		if (gently && broken == NULL)
		{
			struct timeval second = {1, 0};

			cork(false);
			amqp_set_rpc_timeout(connection, &second);
			amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
		}
		else if (socket_fd >= 0)
		{
			struct linger none = {.l_onoff = 1,.l_linger = 0};

			/* after this, TLS cannot write its goodbye either */
			setsockopt(socket_fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
			shutdown(socket_fd, SHUT_RDWR);
		}
		amqp_destroy_connection(connection);
		connection = NULL;
	}
	socket_fd = -1;
	corked = false;
	forget_sent();
	nheld = 0;
	free(broken);
	free(blocked);
	broken = blocked = NULL;
	while (read(interrupt_fd, &count, sizeof(count)) > 0)
		;
}

/* See destination.h. */
static void
rabbitmq_interrupt(void)
{
	uint64_t	one = 1;
	int			fd = socket_fd;

	(void) !write(interrupt_fd, &one, sizeof(one));
	if (fd >= 0)
		shutdown(fd, SHUT_RDWR);
}

Destination destination_rabbitmq = {
	.name = "RabbitMQ",
	.schemes = schemes,
	.settings = settings,
	.pipelines_keys = false,
	.in_flight = 1000,
	.version = rabbitmq_version,
	.configure = rabbitmq_configure,
	.describe = rabbitmq_describe,
	.show = rabbitmq_show,
	.open = rabbitmq_open,
	.send = rabbitmq_send,
	.wait = rabbitmq_wait,
	.close = rabbitmq_close,
	.interrupt = rabbitmq_interrupt
};
