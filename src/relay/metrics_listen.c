/*-------------------------------------------------------------------------
 *
 * metrics_listen.c
 *	  The port where counts and health can be read, by libmicrohttpd's own thread.
 *
 *-------------------------------------------------------------------------
 */
#include "metrics.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "metrics_text.h"

#ifdef HAVE_METRICS

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>

/* Scrapers are few; who keeps a connection open is thrown out. */
#define CONNECTIONS_MOST	16
#define CONNECTION_TIMEOUT	10	/* s */

static struct MHD_Daemon *server;
static const char *consumer_name;
static const char *destination_name;

/* Answers a request. */
static enum MHD_Result
answer(void *unused, struct MHD_Connection *connection, const char *url, const char *method,
	   const char *http_version, const char *data, size_t *data_size, void **state)
{
	Text		text = {0};
	const char *type = "text/plain; charset=utf-8";
	unsigned	status = MHD_HTTP_OK;
	struct MHD_Response *response;
	enum MHD_Result result;

	/* a body is not wanted, but has to be read */
	if (*data_size > 0)
	{
		*data_size = 0;
		return MHD_YES;
	}
	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
	{
		status = MHD_HTTP_METHOD_NOT_ALLOWED;
		text_add(&text, "GET is all there is\n");
	}
	else if (strcmp(url, "/metrics") == 0)
	{
		type = "text/plain; version=0.0.4; charset=utf-8";
		metrics_text(&text, consumer_name, destination_name);
	}
	else if (strcmp(url, "/healthz") == 0)
	{
		type = "application/json";
		if (!metrics_text_health(&text))
			status = MHD_HTTP_SERVICE_UNAVAILABLE;
	}
	else
	{
		status = MHD_HTTP_NOT_FOUND;
		text_add(&text, "there are /metrics and /healthz\n");
	}
	response = MHD_create_response_from_buffer(text.length, text.data, MHD_RESPMEM_MUST_FREE);
	if (response == NULL)
	{
		free(text.data);
		return MHD_NO;
	}
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

/* Splits "ADDR:PORT", "[ADDR]:PORT" or ":PORT". */
static bool
split(const char *address, char **host, char **port)
{
	const char *colon = strrchr(address, ':');
	size_t		length;

	if (colon == NULL || colon[1] == '\0' || strspn(colon + 1, "0123456789") != strlen(colon + 1))
		return false;
	length = colon - address;
	if (length >= 2 && address[0] == '[' && colon[-1] == ']')
	{
		address++;
		length -= 2;
	}
	else if (memchr(address, ':', length) != NULL)
		return false;
	*host = strndup(address, length);
	*port = strdup(colon + 1);
	return true;
}

/* See metrics.h. */
bool
metrics_listen(const char *address, const char *consumer, const char *destination, char **why)
{
	char	   *host;
	char	   *port;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,.ai_flags = AI_PASSIVE};
	struct addrinfo *found;
	unsigned	flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD;
	sigset_t	all,
				before;
	int			error;

	if (!split(address, &host, &port))
	{
		*why = format("--listen: \"%s\" is not ADDRESS:PORT, as 127.0.0.1:9187, [::1]:9187, or :9187 for all addresses", address);
		return false;
	}
	error = getaddrinfo(*host == '\0' ? NULL : host, port, &hints, &found);
	free(host);
	free(port);
	if (error != 0)
	{
		*why = format("--listen: the address \"%s\" is not known: %s", address, gai_strerror(error));
		return false;
	}
	consumer_name = consumer;
	destination_name = destination;
	if (found->ai_family == AF_INET6)
		flags |= *address == ':' ? MHD_USE_DUAL_STACK : MHD_USE_IPv6;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	errno = 0;
	server = MHD_start_daemon(flags, 0, NULL, NULL, answer, NULL,
							  MHD_OPTION_SOCK_ADDR, found->ai_addr,
							  MHD_OPTION_CONNECTION_LIMIT, (unsigned) CONNECTIONS_MOST,
							  MHD_OPTION_CONNECTION_TIMEOUT, (unsigned) CONNECTION_TIMEOUT,
							  MHD_OPTION_END);
	error = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	freeaddrinfo(found);
	if (server == NULL)
	{
		*why = format("--listen: nobody can be heard at %s: %s", address, error != 0 ? strerror(error) : "the library gives no reason");
		return false;
	}
	return true;
}

/* See metrics.h. */
void
metrics_stop(void)
{
	if (server != NULL)
		MHD_stop_daemon(server);
	server = NULL;
}

/* See metrics.h. */
const char *
metrics_version(void)
{
	return MHD_get_version();
}

#else							/* !HAVE_METRICS */

/* See metrics.h. */
bool
metrics_listen(const char *address, const char *consumer, const char *destination, char **why)
{
	*why = format("--listen: this idemq-relay was built without libmicrohttpd, so nobody can listen; build it where pkg-config finds that");
	return false;
}

/* See metrics.h. */
void
metrics_stop(void)
{
}

/* See metrics.h. */
const char *
metrics_version(void)
{
	return NULL;
}

#endif
