/*-------------------------------------------------------------------------
 *
 * rabbitmq_open.c
 *	  Making a connection to RabbitMQ.
 *
 * Without TLS the socket is opened here: librabbitmq says no more than "a socket
 * error occurred", and could not be interrupted.
 *
 *-------------------------------------------------------------------------
 */
#include "rabbitmq_open.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "clock.h"
#include "log.h"

#define FRAME_MOST 131072

/* A time as a timeval. */
static struct timeval
timeval_of(int64_t time)
{
	return (struct timeval)
	{
		.tv_sec = time / SECONDS(1), .tv_usec = time % SECONDS(1)
	};
}

/* Connects one address: a socket, or -1 with errno. */
static int
connect_address(const struct addrinfo *address, int64_t deadline, int interrupt_fd)
{
	int			fd = socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol);
	int			error = 0;

	if (fd < 0)
		return -1;
	if (connect(fd, address->ai_addr, address->ai_addrlen) == 0)
		return fd;
	error = errno;
	while (error == EINPROGRESS || error == EINTR)
	{
		struct pollfd polls[] = {{fd, POLLOUT, 0}, {interrupt_fd, POLLIN, 0}};
		int64_t		left = deadline - clock_now();
		socklen_t	length = sizeof(error);

		if (left <= 0)
			error = ETIMEDOUT;
		else if (poll(polls, 2, left / 1000 + 1) < 0)
			error = errno;
		else if (polls[1].revents != 0)
			error = ECANCELED;
		else if (polls[0].revents != 0)
		{
			if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0)
				return fd;
		}
	}
	close(fd);
	errno = error;
	return -1;
}

/* Connects a name or an address: a socket, or -1. */
static int
connect_host(const char *host, int port, int interrupt_fd, char **why)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct addrinfo *addresses;
	int64_t		deadline = clock_now() + destination_timeout;
	char		service[16];
	int			fd = -1;
	int			error;

	snprintf(service, sizeof(service), "%d", port);
	error = getaddrinfo(host, service, &hints, &addresses);
	if (error != 0)
	{
		*why = format("the address of host \"%s\" was not found: %s", host, gai_strerror(error));
		return -1;
	}
	for (struct addrinfo *address = addresses; address != NULL && fd < 0; address = address->ai_next)
	{
		fd = connect_address(address, deadline, interrupt_fd);
		if (fd < 0 && errno == ECANCELED)
			break;
	}
	if (fd < 0)
		*why = format("no connection to %s port %d: %s", host, port, strerror(errno));
	freeaddrinfo(addresses);
	return fd;
}

/* Opens the socket of a connection without TLS. */
static Opened
open_plain(const RabbitmqTarget *target, int interrupt_fd, amqp_connection_state_t connection, char **why)
{
	amqp_socket_t *socket = amqp_tcp_socket_new(connection);
	int			fd;

	if (socket == NULL)
	{
		*why = format("out of memory");
		return OPEN_TROUBLE;
	}
	fd = connect_host(target->url.host, target->url.port, interrupt_fd, why);
	if (fd < 0)
		return OPEN_TROUBLE;
	amqp_tcp_socket_set_sockfd(socket, fd);
	return OPEN_OK;
}

/* What OpenSSL has to say, or else the library; malloc'd. */
static char *
tls_why(int status)
{
	unsigned long error = ERR_peek_last_error();
	const char *reason = error != 0 ? ERR_reason_error_string(error) : NULL;

	return reason != NULL ? format("%s: %s", amqp_error_string2(status), reason) : format("%s", amqp_error_string2(status));
}

/* The files of a TLS connection. */
static Opened
load_tls_files(const RabbitmqTarget *target, amqp_socket_t *socket, char **why)
{
	char	   *said;
	int			status;

	if (target->tls_ca == NULL)
		SSL_CTX_set_default_verify_paths(amqp_ssl_socket_get_context(socket));
	else if ((status = amqp_ssl_socket_set_cacert(socket, target->tls_ca)) != AMQP_STATUS_OK)
	{
		said = tls_why(status);
		*why = format("--tls-ca: no certificates could be read from \"%s\": %s", target->tls_ca, said);
		free(said);
		return OPEN_REFUSED;
	}
	if (target->tls_cert != NULL)
	{
		/* else OpenSSL asks the terminal for the password of a key that has one */
		amqp_ssl_socket_set_key_passwd(socket, "");
		status = amqp_ssl_socket_set_key(socket, target->tls_cert, target->tls_key);
		if (status != AMQP_STATUS_OK)
		{
			said = tls_why(status);
			*why = format("--tls-cert, --tls-key: \"%s\" and \"%s\" could not be used: %s",
						  target->tls_cert, target->tls_key, said);
			free(said);
			return OPEN_REFUSED;
		}
	}
	return OPEN_OK;
}

/* Opens the socket of a connection with TLS, and shakes hands. */
static Opened
open_tls(const RabbitmqTarget *target, int interrupt_fd, amqp_connection_state_t connection, char **why)
{
	amqp_socket_t *socket = amqp_ssl_socket_new(connection);
	struct timeval timeout = timeval_of(destination_timeout);
	char	   *said;
	int			status;
	int			fd;

	if (socket == NULL)
	{
		*why = format("out of memory");
		return OPEN_TROUBLE;
	}
	ERR_clear_error();
	if (load_tls_files(target, socket, why) != OPEN_OK)
		return OPEN_REFUSED;
	amqp_ssl_socket_set_verify_peer(socket, target->tls_verify);
	amqp_ssl_socket_set_verify_hostname(socket, target->tls_verify);
	amqp_ssl_socket_set_ssl_versions(socket, AMQP_TLSv1_2, AMQP_TLSvLATEST);

	status = amqp_socket_open_noblock(socket, target->url.host, target->url.port, &timeout);
	if (status == AMQP_STATUS_OK)
		return OPEN_OK;

	if (status == AMQP_STATUS_SSL_HOSTNAME_VERIFY_FAILED)
	{
		*why = format("the certificate of %s port %d is not for that name: give the name that it is for in --to",
					  target->url.host, target->url.port);
		return OPEN_REFUSED;
	}
	if (status == AMQP_STATUS_SSL_PEER_VERIFY_FAILED || ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED)
	{
		*why = format("the certificate of %s port %d is not trusted: give the certificate of its authority by --tls-ca",
					  target->url.host, target->url.port);
		return OPEN_REFUSED;
	}
	/* without an error of TLS it is an error of the socket, of which the library does not say more */
	if (ERR_peek_last_error() == 0)
	{
		fd = connect_host(target->url.host, target->url.port, interrupt_fd, why);
		if (fd < 0)
			return OPEN_TROUBLE;
		close(fd);
	}
	said = tls_why(status);
	*why = format("no connection by TLS to %s port %d: %s%s", target->url.host, target->url.port, said,
				  ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_WRONG_VERSION_NUMBER ? "; for a port without TLS write amqp://" : "");
	free(said);
	return OPEN_TROUBLE;
}

/* See rabbitmq_open.h. */
char *
rabbitmq_reply_text(amqp_rpc_reply_t reply, int *code)
{
	*code = 0;
	switch (reply.reply_type)
	{
		case AMQP_RESPONSE_LIBRARY_EXCEPTION:
			return format("%s", amqp_error_string2(reply.library_error));
		case AMQP_RESPONSE_SERVER_EXCEPTION:
			if (reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD)
			{
				amqp_connection_close_t *method = reply.reply.decoded;

				*code = method->reply_code;
				return format("%.*s", (int) method->reply_text.len, (char *) method->reply_text.bytes);
			}
			if (reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD)
			{
				amqp_channel_close_t *method = reply.reply.decoded;

				*code = method->reply_code;
				return format("%.*s", (int) method->reply_text.len, (char *) method->reply_text.bytes);
			}
			return format("the broker answered with method 0x%08X", reply.reply.id);
		default:
			return format("the broker ended the connection");
	}
}

/* Logs in. */
static Opened
log_in(const RabbitmqTarget *target, amqp_connection_state_t connection, char **why)
{
	const char *consumer = settings_gathered("consumer");
	char	   *name = format("idemq-relay %s", consumer ? consumer : "");
	amqp_table_entry_t capability = {
		amqp_cstring_bytes("connection.blocked"),
		{.kind = AMQP_FIELD_KIND_BOOLEAN,.value.boolean = 1}
	};
	amqp_table_entry_t entries[] = {
		{amqp_cstring_bytes("capabilities"), {.kind = AMQP_FIELD_KIND_TABLE,.value.table = {1, &capability}}},
		{amqp_cstring_bytes("connection_name"), {.kind = AMQP_FIELD_KIND_UTF8,.value.bytes = amqp_cstring_bytes(name)}},
		{amqp_cstring_bytes("product"), {.kind = AMQP_FIELD_KIND_UTF8,.value.bytes = amqp_cstring_bytes("idemq-relay")}}
	};
	amqp_table_t properties = {3, entries};
	amqp_rpc_reply_t reply;
	char	   *said;
	int			code;

	reply = amqp_login_with_properties(connection, target->url.vhost, 0, FRAME_MOST, target->heartbeat, &properties,
									   AMQP_SASL_METHOD_PLAIN, target->url.user, target->password);
	free(name);
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return OPEN_OK;

	said = rabbitmq_reply_text(reply, &code);
	if (code == AMQP_ACCESS_REFUSED)
		*why = format("the broker does not let user \"%s\" in: %s; give the password by IDEMQ_RELAY_PASSWORD or in the settings file",
					  target->url.user, said);
	else if (code == AMQP_NOT_ALLOWED)
		*why = format("the broker does not let user \"%s\" into virtual host \"%s\": %s", target->url.user, target->url.vhost, said);
	else
		*why = format("no login at %s port %d: %s%s", target->url.host, target->url.port, said,
					  code == 0 && !target->url.ssl ? "; for a port with TLS write amqps://" : "");
	/* a limit of connections is NOT_ALLOWED too, and passes */
	if (code == AMQP_NOT_ALLOWED && strstr(said, "limit") != NULL)
		code = 0;
	free(said);
	return code == AMQP_ACCESS_REFUSED || code == AMQP_NOT_ALLOWED ? OPEN_REFUSED : OPEN_TROUBLE;
}

/* See rabbitmq_open.h. */
char *
rabbitmq_open_channel(amqp_connection_state_t connection)
{
	amqp_rpc_reply_t reply;
	int			code;

	amqp_channel_open(connection, RABBITMQ_CHANNEL);
	reply = amqp_get_rpc_reply(connection);
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
	{
		amqp_confirm_select(connection, RABBITMQ_CHANNEL);
		reply = amqp_get_rpc_reply(connection);
	}
	return reply.reply_type == AMQP_RESPONSE_NORMAL ? NULL : rabbitmq_reply_text(reply, &code);
}

/* Looks for the exchange, which is known beforehand. */
static Opened
look_for_exchange(const RabbitmqTarget *target, amqp_connection_state_t connection, char **why)
{
	amqp_rpc_reply_t reply;
	char	   *said;
	int			code;

	amqp_exchange_declare(connection, RABBITMQ_CHANNEL, amqp_cstring_bytes(target->exchange),
						  amqp_cstring_bytes("topic"), 1, 0, 0, 0, amqp_empty_table);
	reply = amqp_get_rpc_reply(connection);
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return OPEN_OK;
	said = rabbitmq_reply_text(reply, &code);
	if (code == AMQP_NOT_FOUND)
		*why = format("there is no exchange \"%s\" in virtual host \"%s\": declare it, or correct --exchange",
					  target->exchange, target->url.vhost);
	else
		*why = format("exchange \"%s\": %s", target->exchange, said);
	free(said);
	return code == AMQP_NOT_FOUND || code == AMQP_ACCESS_REFUSED ? OPEN_REFUSED : OPEN_TROUBLE;
}

/* Small messages leave at once when we say so, and a peer that takes nothing is given up. */
static void
tune_socket(int fd)
{
	unsigned int patience = destination_timeout / MILLISECONDS(1);
	int			one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof(patience));
}

/* See rabbitmq_open.h. */
Opened
rabbitmq_open_connection(const RabbitmqTarget *target, int interrupt_fd, _Atomic int *fd,
						 amqp_connection_state_t *connection, char **why)
{
	struct timeval timeout = timeval_of(destination_timeout);
	Opened		opened;

	*connection = amqp_new_connection();
	if (*connection == NULL ||
		amqp_set_handshake_timeout(*connection, &timeout) != AMQP_STATUS_OK ||
		amqp_set_rpc_timeout(*connection, &timeout) != AMQP_STATUS_OK)
	{
		*why = format("out of memory");
		return OPEN_TROUBLE;
	}
	opened = target->url.ssl ? open_tls(target, interrupt_fd, *connection, why) : open_plain(target, interrupt_fd, *connection, why);
	if (opened != OPEN_OK)
		return opened;
	*fd = amqp_get_sockfd(*connection);
	tune_socket(*fd);
	opened = log_in(target, *connection, why);
	if (opened != OPEN_OK)
		return opened;
	*why = rabbitmq_open_channel(*connection);
	if (*why != NULL)
		return OPEN_TROUBLE;
	if (target->exchange != NULL && target->exchange[0] != '\0')
		return look_for_exchange(target, *connection, why);
	return OPEN_OK;
}
