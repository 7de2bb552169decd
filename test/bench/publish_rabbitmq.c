/*-------------------------------------------------------------------------
 *
 * publish_rabbitmq.c
 *	  What the relay is held against: a bare loop that publishes the same
 *	  messages, with the same properties and confirms, and reads no database.
 *
 * publish_rabbitmq HOST PORT USER PASSWORD EXCHANGE WINDOW FILE
 *
 * WINDOW messages at most are without a confirm; when so many are, one confirm at least is waited
 * for, and the socket is corked in between, as the relay does.  Prints the seconds from the
 * first message to the last confirm.
 *
 *-------------------------------------------------------------------------
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_tcp_socket.h>
#endif

#include "events.h"

static amqp_connection_state_t connection;
static uint64_t confirmed;		/* all up to this one */
static int	waiting;			/* messages without a confirm */
static char *done;				/* by delivery tag */

/* Ends the program if the last call failed. */
static void
check(const char *what)
{
	amqp_rpc_reply_t reply = amqp_get_rpc_reply(connection);

	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
		die(what, amqp_error_string2(reply.library_error));
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		die(what, "refused");
}

/* Connects, and asks for confirms. */
static void
open_channel(const char *host, int port, const char *user, const char *password)
{
	amqp_socket_t *socket;

	connection = amqp_new_connection();
	socket = amqp_tcp_socket_new(connection);
	if (amqp_socket_open(socket, host, port) != AMQP_STATUS_OK)
		die(host, "cannot connect");
	if (amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, user, password).reply_type != AMQP_RESPONSE_NORMAL)
		die(host, "cannot log in");
	amqp_channel_open(connection, 1);
	check("channel");
	amqp_confirm_select(connection, 1);
	check("confirms");
}

/* Frames are gathered into full segments, or what there is is sent. */
static void
cork(int on)
{
	setsockopt(amqp_get_sockfd(connection), IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
}

/* Publishes one, as the relay does. */
static void
publish(const char *exchange, const Event *e)
{
	amqp_basic_properties_t p;
	amqp_table_entry_t headers[3];
	char		routing_key[256];
	amqp_bytes_t body = {e->length, (void *) e->payload};
	int			n = 0;

	memset(&p, 0, sizeof(p));
	memset(headers, 0, sizeof(headers));
	snprintf(routing_key, sizeof(routing_key), "%s.%s", e->aggregatetype, e->type);
	p._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
		AMQP_BASIC_TYPE_FLAG | AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_APP_ID_FLAG | AMQP_BASIC_HEADERS_FLAG;
	p.content_type = amqp_cstring_bytes("application/json");
	p.delivery_mode = AMQP_DELIVERY_PERSISTENT;
	p.message_id = amqp_cstring_bytes(e->id);
	p.type = amqp_cstring_bytes(e->type);
	p.timestamp = e->created_at / 1000000;
	p.app_id = amqp_cstring_bytes("idemq-relay");
	headers[n].key = amqp_cstring_bytes("aggregatetype");
	headers[n].value.kind = AMQP_FIELD_KIND_UTF8;
	headers[n++].value.value.bytes = amqp_cstring_bytes(e->aggregatetype);
	headers[n].key = amqp_cstring_bytes("aggregateid");
	headers[n].value.kind = AMQP_FIELD_KIND_UTF8;
	headers[n++].value.value.bytes = amqp_cstring_bytes(e->aggregateid);
	headers[n].key = amqp_cstring_bytes("seq");
	headers[n].value.kind = AMQP_FIELD_KIND_I64;
	headers[n++].value.value.i64 = atoll(e->seq);
	p.headers.num_entries = n;
	p.headers.entries = headers;
	if (amqp_basic_publish(connection, 1, amqp_cstring_bytes(exchange), amqp_cstring_bytes(routing_key),
						   1, 0, &p, body) != AMQP_STATUS_OK)
		die("publish", "failed");
	waiting++;
}

/* Notes a confirm. */
static void
confirm(uint64_t tag, bool multiple)
{
	uint64_t	first = multiple ? confirmed + 1 : tag;

	for (uint64_t t = first; t <= tag; t++)
		if (!done[t])
		{
			done[t] = 1;
			waiting--;
		}
	while (done[confirmed + 1])
		confirmed++;
}

/* Reads a frame, waiting for it at most that long; false if there is none. */
static bool
read_frame(struct timeval *timeout)
{
	amqp_frame_t frame;
	int			status = amqp_simple_wait_frame_noblock(connection, &frame, timeout);

	if (status == AMQP_STATUS_TIMEOUT)
		return false;
	if (status != AMQP_STATUS_OK)
		die("confirm", amqp_error_string2(status));
	if (frame.frame_type != AMQP_FRAME_METHOD || frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
		die("confirm", "the broker says something else");
	confirm(((amqp_basic_ack_t *) frame.payload.method.decoded)->delivery_tag,
			((amqp_basic_ack_t *) frame.payload.method.decoded)->multiple);
	amqp_maybe_release_buffers(connection);
	return true;
}

/* Waits until there are less than "most" without a confirm, and takes what else has come. */
static void
read_confirms(int most)
{
	struct timeval none = {0, 0};
	struct timeval patience = {60, 0};

	cork(0);
	while (waiting >= most)
		if (!read_frame(&patience))
			die("confirm", "does not come");
	while (read_frame(&none))
		;
	cork(1);
}

int
main(int argc, char **argv)
{
	Event	   *events;
	int			count;
	int			window;
	double		start;

	if (argc != 8)
		die(argv[0], "HOST PORT USER PASSWORD EXCHANGE WINDOW FILE");
	window = atoi(argv[6]);
	events = read_events(argv[7], &count);
	done = calloc(count + 2, 1);
	open_channel(argv[1], atoi(argv[2]), argv[3], argv[4]);

	start = now();
	cork(1);
	for (int i = 0; i < count; i++)
	{
		if (waiting >= window)
			read_confirms(window);
		publish(argv[5], &events[i]);
	}
	read_confirms(1);
	printf("%.6f\n", now() - start);

	amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
	amqp_destroy_connection(connection);
	return 0;
}
