/*-------------------------------------------------------------------------
 *
 * http.c
 *	  HTTP as a destination: webhooks.
 *
 * The promise: an event is delivered when its POST was answered by 2xx, to the end of the answer.
 *
 * 3xx, 401, 407, 408, 425, 429, 5xx, and no answer are the destination's trouble, with
 * the wait that Retry-After asks for; other answers reject the event.  Redirects are not
 * followed: the receiver's address is a setting, and a signed event goes nowhere else.
 *
 * libcurl sends nothing whose head is larger than 1 MB, and does not say so: such an event is rejected before.
 *
 * libcurl's multi interface does the transfers, all within wait(), each in an easy handle that is used again.
 * A transfer that is taken out closes its connection, without what the kernel has not sent yet
 * (close_socket()).  That is one reason for HTTP/1.1, where a connection has one request at a time; the other is
 * that with HTTP/2 some versions of libcurl lose requests over the framing.
 *
 *-------------------------------------------------------------------------
 */
#include "destination.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <curl/curl.h>

#include "clock.h"
#include "http_request.h"
#include "log.h"
#include "publisher.h"
#include "text.h"
#include "webhook_sign.h"

/* What is kept of an answer, and how much of it is read at most. */
#define ANSWER_KEPT 200
#define ANSWER_MOST (256 * 1024)

#define RETRY_AFTER_MOST SECONDS(24 * 3600)

/* Bytes of the URL and the headers of a request; libcurl's limit of 1 MB also counts what it adds. */
#define HEAD_MOST 900000

/* One request. */
typedef struct Transfer
{
	CURL	   *easy;
	Message    *message;
	struct curl_slist *headers;
	size_t		received;
	bool		is_enough;		/* the rest of the answer does not matter */
	char		answer[ANSWER_KEPT + 1];
	char		error[CURL_ERROR_SIZE];
	struct Transfer *next;		/* of those that are free */
} Transfer;

static const char *const schemes[] = {"http", "https", NULL};

enum
{
	HEADER,
	SIGNING_SECRET,
	SOURCE,
	TLS_CA,
	TLS_CERT,
	TLS_KEY,
	TLS_VERIFY
};

static Setting settings[] = {
	[HEADER] = {
		.name = "header",.kind = SETTING_PAIRS,.value_name = "NAME=VALUE",
		.help = "header of all requests; Authorization is a secret"
	},
	[SIGNING_SECRET] = {
		.name = "signing-secret",.kind = SETTING_TEXT,.value_name = "SECRET",.secret = true,
		.help = "whsec_ and base64: requests are signed as Standard Webhooks has it; with two\n"
		"of them, a space between, each signs, so that the receiver can change over"
	},
	[SOURCE] = {
		.name = "source",.kind = SETTING_TEXT,.initial = "/idemq/{aggregatetype}",.value_name = "TEMPLATE",
		.help = "ce-source of CloudEvents"
	},
	[TLS_CA] = {
		.name = "tls-ca",.kind = SETTING_TEXT,.value_name = "FILE",
		.help = "certificates (PEM) of the authorities to trust, instead of the system's; for https"
	},
	[TLS_CERT] = {
		.name = "tls-cert",.kind = SETTING_TEXT,.value_name = "FILE",
		.help = "certificate (PEM) to show to the receiver"
	},
	[TLS_KEY] = {
		.name = "tls-key",.kind = SETTING_TEXT,.value_name = "FILE",
		.help = "its private key (PEM), without a password"
	},
	[TLS_VERIFY] = {
		.name = "tls-verify",.kind = SETTING_FLAG,.initial = "on",
		.help = "check the receiver's certificate and its name; off: anybody can be the receiver"
	},
	{NULL}
};

static Template *url;
static int	dot_segments;		/* that url has by itself */
static char *base;				/* scheme, host and port, for a first connection */
static char *user;
static char *password;
static char *description;

static _Atomic(CURLM *) multi;
static Transfer *free_transfers;
static _Atomic bool interrupted;
static bool dropping;			/* what is closed now shall send nothing any more */

/* The library. */
static const char *
http_version(void)
{
	static char *version;

	if (version == NULL)
		version = format("libcurl %s", curl_version_info(CURLVERSION_NOW)->version);
	return version;
}

/* See destination.h. */
static const char *
http_describe(void)
{
	return description;
}

/* Part of a URL, malloc'd, or NULL. */
static char *
url_part(CURLU *parsed, CURLUPart part, unsigned int flags)
{
	char	   *text = NULL;
	char	   *copy;

	if (curl_url_get(parsed, part, &text, flags) != CURLUE_OK)
		return NULL;
	copy = format("%s", text);
	curl_free(text);
	return copy;
}

/* How many segments of its path are . or .., by which a receiver finds its way to another path? */
static int
count_dot_segments(const char *to)
{
	const char *s = strstr(to, "://") != NULL ? strstr(to, "://") + 3 : to;
	int			count = 0;

	for (s += strcspn(s, "/?#"); *s == '/';)
	{
		size_t		length = strcspn(++s, "/?#");

		count += (length == 1 && s[0] == '.') || (length == 2 && s[0] == '.' && s[1] == '.');
		s += length;
	}
	return count;
}

/* Takes --to apart: what comes before the path is the same for all events. */
static char *
configure_url(const char *to)
{
	const char *host = strstr(to, "://") != NULL ? strstr(to, "://") + 3 : to;
	const char *path = host + strcspn(host, "/?#");
	CURLU	   *parsed;
	char	   *rest;
	char	   *why = NULL;
	CURLUcode	code;

	if (memchr(host, '{', path - host) != NULL)
		return format("--to: fields as {type} may be in the path or after ?, not in the name of the host");
	parsed = curl_url();
	if (parsed == NULL)
		text_no_memory();

	base = format("%.*s", (int) (path - to), to);
	code = curl_url_set(parsed, CURLUPART_URL, base, 0);
	if (code != CURLUE_OK)
		why = format("--to is not a URL for HTTP (%s): write https://HOST:PORT/PATH", curl_url_strerror(code));
	else
	{
		user = url_part(parsed, CURLUPART_USER, CURLU_URLDECODE);
		password = url_part(parsed, CURLUPART_PASSWORD, CURLU_URLDECODE);
		curl_url_set(parsed, CURLUPART_USER, NULL, 0);
		curl_url_set(parsed, CURLUPART_PASSWORD, NULL, 0);
		free(base);
		base = url_part(parsed, CURLUPART_URL, 0);
		if (base == NULL)
			why = format("--to is not a URL for HTTP: write https://HOST:PORT/PATH");
	}
	curl_url_cleanup(parsed);
	if (why != NULL)
		return why;

	/* curl_url() gives a path of / to a URL that has none */
	base[strlen(base) - (base[strlen(base) - 1] == '/')] = '\0';
	description = format("%s", base);
	rest = format("%s%s%s", base, path[0] == '/' ? "" : "/", path);
	dot_segments = count_dot_segments(rest);
	url = template_parse(rest, &why);
	if (url == NULL)
	{
		char	   *what = why;

		why = format("--to: %s", what);
		free(what);
	}
	free(rest);
	return why;
}

/* See destination.h. */
static char *
http_configure(const char *to)
{
	char	   *why;
	char	   *what;

	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return format("libcurl could not be started");
	why = configure_url(to);
	if (why == NULL && (settings[TLS_CERT].text == NULL) != (settings[TLS_KEY].text == NULL))
		why = format("--tls-cert and --tls-key go together");
	if (why == NULL && settings[SIGNING_SECRET].text != NULL)
	{
		what = webhook_sign_configure(settings[SIGNING_SECRET].text);
		if (what != NULL)
			why = format("signing-secret: %s", what);
		free(what);
	}
	if (why == NULL)
		why = http_request_configure(settings[HEADER].pairs, settings[SOURCE].text, user != NULL,
									 settings[SIGNING_SECRET].text != NULL);
	return why;
}

/* The URL and the headers for an event.  NULL, or why it cannot be sent; malloc'd. */
static char *
make_head(const Message *message, char **to, struct curl_slist **headers)
{
	char	   *why = http_request_headers(message, headers);
	size_t		size;

	*to = template_fill(url, message, true);
	if (why != NULL)
		return why;
	if (count_dot_segments(*to) > dot_segments)
		return format("by its fields a part of the path in --to would be . or .., which leads to another path");
	size = strlen(*to);
	for (const struct curl_slist *header = *headers; header != NULL; header = header->next)
		size += strlen(header->data) + strlen("\r\n");
	if (size > HEAD_MOST)
		return format("its URL and headers have %zu bytes, but a request has room for %d: put large data into the payload",
					  size, HEAD_MOST);
	return NULL;
}

/* See destination.h. */
static char *
http_show(const Message *message)
{
	struct curl_slist *headers;
	char	   *to;
	char	   *why = make_head(message, &to, &headers);
	Text		line = {0};

	text_add(&line, "id=%s url=", message->id);
	text_add_json(&line, to);
	text_add(&line, " type=");
	text_add_json(&line, message->type);
	text_add(&line, " bytes=%zu", message->data != NULL ? message->length : 0);
	if (why != NULL)
	{
		text_add(&line, " rejected=");
		text_add_json(&line, why);
	}
	curl_slist_free_all(headers);
	free(to);
	free(why);
	return line.data;
}

/* Closes a connection; with what was to be sent, if it is dropped. */
static int
close_socket(void *unused, curl_socket_t fd)
{
	struct linger none = {.l_onoff = 1,.l_linger = 0};

	if (dropping)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	return close(fd);
}

/* What all requests and the first connection have in common. */
static void
set_common(CURL *easy, char *error)
{
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 1L);
	curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long) (destination_timeout / MILLISECONDS(1)));
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long) (destination_timeout / MILLISECONDS(1)));
	curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
#if LIBCURL_VERSION_NUM >= 0x075500
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long) (CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "idemq-relay");
	if (user != NULL)
	{
		curl_easy_setopt(easy, CURLOPT_USERNAME, user);
		curl_easy_setopt(easy, CURLOPT_PASSWORD, password != NULL ? password : "");
	}
	curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
	curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, settings[TLS_VERIFY].number ? 1L : 0L);
	curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, settings[TLS_VERIFY].number ? 2L : 0L);
	if (settings[TLS_CA].text != NULL)
	{
		curl_easy_setopt(easy, CURLOPT_CAINFO, settings[TLS_CA].text);
		curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
	}
	if (settings[TLS_CERT].text != NULL)
	{
		curl_easy_setopt(easy, CURLOPT_SSLCERT, settings[TLS_CERT].text);
		curl_easy_setopt(easy, CURLOPT_SSLKEY, settings[TLS_KEY].text);
		/* else OpenSSL asks the terminal for the password of a key that has one */
		curl_easy_setopt(easy, CURLOPT_KEYPASSWD, "");
	}
}

/* What became of a transfer that has ended, if any has. */
static CURLMsg *
next_ended(void)
{
	CURLMsg    *ended;
	int			left;

	while ((ended = curl_multi_info_read(multi, &left)) != NULL)
		if (ended->msg == CURLMSG_DONE)
			return ended;
	return NULL;
}

/* What curl says, in one line, or the system if that is to the point; malloc'd. */
static char *
curl_why(CURL *easy, CURLcode code, const char *error)
{
	long		number = 0;

	if (code == CURLE_COULDNT_CONNECT && curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &number) == CURLE_OK && number != 0)
		return format("%s", strerror(number));
	return format("%s", error[0] != '\0' ? error : curl_easy_strerror(code));
}

/* Would connecting again not help? */
static bool
is_refusal(CURLcode code)
{
	switch (code)
	{
		case CURLE_PEER_FAILED_VERIFICATION:
		case CURLE_SSL_CERTPROBLEM:
		case CURLE_SSL_CACERT_BADFILE:
		case CURLE_SSL_ISSUER_ERROR:
		case CURLE_SSL_ENGINE_INITFAILED:
		case CURLE_URL_MALFORMAT:
		case CURLE_UNSUPPORTED_PROTOCOL:
		case CURLE_NOT_BUILT_IN:
			return true;
		default:
			return false;
	}
}

/* Why the first connection failed, and how to mend it; malloc'd. */
static char *
connection_why(CURL *easy, CURLcode code, const char *error)
{
	char	   *what = curl_why(easy, code, error);
	char	   *why;

	if (code == CURLE_PEER_FAILED_VERIFICATION && strstr(what, "subject name") != NULL)
		why = format("the certificate of %s is not for that name: give the name that it is for in --to", base);
	else if (code == CURLE_PEER_FAILED_VERIFICATION)
		why = format("the certificate of %s is not trusted: %s; give the certificate of its authority by --tls-ca", base, what);
	else if (code == CURLE_SSL_CERTPROBLEM)
		why = format("--tls-cert, --tls-key: %s", what);
	else if (code == CURLE_SSL_CACERT_BADFILE)
		why = format("--tls-ca: %s", what);
	else
		why = format("no connection to %s: %s%s", base, what,
					 strstr(what, "wrong version number") != NULL ? "; for a port without TLS write http://" : "");
	free(what);
	return why;
}

/* See destination.h.  Connects once, without a request, so that names and certificates are looked at. */
static Opened
http_open(char **why)
{
	char		error[CURL_ERROR_SIZE] = "";
	CURLcode	code = CURLE_ABORTED_BY_CALLBACK;
	CURLMsg    *ended = NULL;
	CURL	   *easy;
	int			running;

	multi = curl_multi_init();
	easy = curl_easy_init();
	if (multi == NULL || easy == NULL)
		text_no_memory();
	set_common(easy, error);
	curl_easy_setopt(easy, CURLOPT_URL, base);
	curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
	curl_multi_add_handle(multi, easy);
	while (!interrupted && curl_multi_perform(multi, &running) == CURLM_OK && (ended = next_ended()) == NULL)
		curl_multi_poll(multi, NULL, 0, 1000, NULL);
	if (ended != NULL)
		code = ended->data.result;
	curl_multi_remove_handle(multi, easy);
	if (code != CURLE_OK)
		*why = interrupted ? format("interrupted") : connection_why(easy, code, error);
	curl_easy_cleanup(easy);

	if (code == CURLE_OK)
		return OPEN_OK;
	return is_refusal(code) ? OPEN_REFUSED : OPEN_TROUBLE;
}

/* Part of an answer has come. */
static size_t
take_answer(char *data, size_t size, size_t count, void *argument)
{
	Transfer   *transfer = argument;
	size_t		length = size * count;

	for (size_t i = 0; i < length && transfer->received + i < ANSWER_KEPT; i++)
		transfer->answer[transfer->received + i] = data[i] >= ' ' && data[i] < 127 ? data[i] : data[i] == '\n' ? ' ' : '?';
	transfer->received += length;
	transfer->is_enough = transfer->received > ANSWER_MOST;
	return transfer->is_enough ? 0 : length;
}

/* A handle for a request. */
static Transfer *
take_transfer(void)
{
	Transfer   *transfer = free_transfers;

	if (transfer != NULL)
		free_transfers = transfer->next;
	else
	{
		transfer = calloc(1, sizeof(Transfer));
		if (transfer == NULL || (transfer->easy = curl_easy_init()) == NULL)
			text_no_memory();
		set_common(transfer->easy, transfer->error);
		curl_easy_setopt(transfer->easy, CURLOPT_POST, 1L);
		curl_easy_setopt(transfer->easy, CURLOPT_WRITEFUNCTION, take_answer);
		curl_easy_setopt(transfer->easy, CURLOPT_WRITEDATA, transfer);
		curl_easy_setopt(transfer->easy, CURLOPT_PRIVATE, transfer);
	}
	memset(transfer->answer, 0, sizeof(transfer->answer));
	transfer->error[0] = '\0';
	transfer->received = 0;
	transfer->is_enough = false;
	return transfer;
}

/* It has ended, or is taken out. */
static void
give_transfer(Transfer *transfer)
{
	transfer->message->private = NULL;
	transfer->message = NULL;
	curl_slist_free_all(transfer->headers);
	transfer->headers = NULL;
	transfer->next = free_transfers;
	free_transfers = transfer;
}

/* See destination.h. */
static void
http_send(Message *message)
{
	struct curl_slist *headers;
	char	   *to;
	char	   *why = make_head(message, &to, &headers);
	Transfer   *transfer;
	CURLcode	code;

	if (why != NULL)
	{
		curl_slist_free_all(headers);
		free(to);
		publisher_done(message, OUTCOME_REJECTED, why, 0);
		return;
	}
	transfer = take_transfer();
	transfer->message = message;
	transfer->headers = headers;
	message->private = transfer;
	code = curl_easy_setopt(transfer->easy, CURLOPT_URL, to);
	free(to);
	if (code != CURLE_OK)
	{
		give_transfer(transfer);
		publisher_done(message, OUTCOME_REJECTED, format("libcurl does not take its URL: %s", curl_easy_strerror(code)), 0);
		return;
	}
	curl_easy_setopt(transfer->easy, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(transfer->easy, CURLOPT_POSTFIELDS, message->data != NULL ? message->data : "");
	curl_easy_setopt(transfer->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) (message->data != NULL ? message->length : 0));
	curl_multi_add_handle(multi, transfer->easy);
}

/* What an answer means. */
static void
take_status(Transfer *transfer, long status)
{
	Message    *message = transfer->message;
	curl_off_t	retry_after = 0;
	char	   *redirect = NULL;
	char	   *why;

	if (status >= 200 && status < 300)
	{
		give_transfer(transfer);
		publisher_done(message, OUTCOME_DELIVERED, NULL, 0);
		return;
	}
	if (status >= 300 && status < 400)
	{
		curl_easy_getinfo(transfer->easy, CURLINFO_REDIRECT_URL, &redirect);
		why = format("answered %ld, which is not followed: if the receiver has moved, give its new address by --to%s%.*s",
					 status, redirect ? ": " : "", redirect ? (int) strcspn(redirect, "?") : 0, redirect ? redirect : "");
	}
	else
		why = format("answered %ld%s%s", status, transfer->answer[0] ? ": " : "", transfer->answer);
	curl_easy_getinfo(transfer->easy, CURLINFO_RETRY_AFTER, &retry_after);
	give_transfer(transfer);

	if (status / 100 == 3 || status >= 500 || status == 401 || status == 407 || status == 408 || status == 425 || status == 429)
	{
		int64_t		most = RETRY_AFTER_MOST / SECONDS(1);

		/* a redirect may be for this event, or for all, as to a page that asks for a login */
		message->answered = (status / 100 == 3 || status >= 500) && !(status == 503 && retry_after > 0);
		publisher_done(message, OUTCOME_TROUBLE, why, SECONDS(retry_after < most ? retry_after : most));
	}
	else
		publisher_done(message, OUTCOME_REJECTED, why, 0);
}

/* If nothing was sent: is it for what the request is, and would be again? */
static bool
is_fault_of_request(CURLcode code)
{
#if LIBCURL_VERSION_NUM >= 0x080600
	if (code == CURLE_TOO_LARGE)
		return true;
#endif
	return code == CURLE_OUT_OF_MEMORY || code == CURLE_BAD_FUNCTION_ARGUMENT || code == CURLE_URL_MALFORMAT;
}

/* A transfer has ended. */
static void
take_ended(Transfer *transfer, CURLcode code)
{
	Message    *message = transfer->message;
	long		status = 0;
	long		sent = 0;
	char	   *why;

	curl_multi_remove_handle(multi, transfer->easy);
	curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);

	/* a rejection counts even if its text, or the rest of the request, was cut off: 413 may come like that */
	if (status >= 100 && (code == CURLE_OK || (code == CURLE_WRITE_ERROR && transfer->is_enough) || status / 100 == 4))
	{
		take_status(transfer, status);
		return;
	}
	why = curl_why(transfer->easy, code, transfer->error);

	/* if the request was on its way, it may be what the receiver hung, or fell over */
	curl_easy_getinfo(transfer->easy, CURLINFO_REQUEST_SIZE, &sent);
	message->answered = sent > 0;
	give_transfer(transfer);
	publisher_done(message, sent == 0 && is_fault_of_request(code) ? OUTCOME_REJECTED : OUTCOME_TROUBLE, why, 0);
}

/* Gives up transfers whose lease is about to end.  *until: when to look again, if that is earlier. */
static int
stop_overdue(int64_t *until)
{
	int64_t		now = clock_now();
	int			count = 0;
	Message    *next;

	for (Message *message = publisher_in_flight(); message != NULL; message = next)
	{
		int64_t		stop_at = message->stop_at != NULL ? *message->stop_at : INT64_MAX;
		Transfer   *transfer = message->private;

		next = message->next;
		if (now >= stop_at && transfer != NULL)
		{
			curl_multi_remove_handle(multi, transfer->easy);
			give_transfer(transfer);
			publisher_done(message, OUTCOME_TROUBLE, format("no answer until the lease was about to end"), 0);
			count++;
		}
		else if (*until > stop_at)
			*until = stop_at;
	}
	return count;
}

/* See destination.h. */
static bool
http_wait(int wake_fd, int timeout, char **why)
{
	int64_t		end = timeout < 0 ? INT64_MAX : clock_now() + MILLISECONDS(timeout);

	for (;;)
	{
		struct curl_waitfd wake = {.fd = wake_fd,.events = CURL_WAIT_POLLIN};
		int64_t		until = end;
		int64_t		left;
		int			count = 0;
		int			running;
		CURLMsg    *ended;
		CURLMcode	code = curl_multi_perform(multi, &running);

		while ((ended = next_ended()) != NULL)
		{
			Transfer   *transfer;

			curl_easy_getinfo(ended->easy_handle, CURLINFO_PRIVATE, &transfer);
			take_ended(transfer, ended->data.result);
			count++;
		}
		dropping = true;
		count += stop_overdue(&until);
		dropping = false;
		if (code != CURLM_OK || interrupted)
		{
			*why = format("%s", interrupted ? "interrupted" : curl_multi_strerror(code));
			return false;
		}
		if (count > 0 || clock_now() >= end || wake.revents != 0)
			return true;

		left = until == INT64_MAX ? SECONDS(60) : until - clock_now();
		if (left > SECONDS(60))
			left = SECONDS(60);
		curl_multi_poll(multi, &wake, 1, left <= 0 ? 0 : left / 1000 + 1, NULL);
		if (wake.revents != 0)
			end = 0;
	}
}

/* See destination.h. */
static void
http_close(bool gently)
{
	dropping = !gently;
	for (Message *message = publisher_in_flight(); message != NULL; message = message->next)
	{
		Transfer   *transfer = message->private;

		if (transfer == NULL)
			continue;
		curl_multi_remove_handle(multi, transfer->easy);
		give_transfer(transfer);
	}
	while (free_transfers != NULL)
	{
		Transfer   *transfer = free_transfers;

		free_transfers = transfer->next;
		curl_easy_cleanup(transfer->easy);
		free(transfer);
	}
	if (multi != NULL)
		curl_multi_cleanup(multi);
	multi = NULL;
	interrupted = false;
	dropping = false;
}

/* See destination.h. */
static void
http_interrupt(void)
{
	interrupted = true;
	if (multi != NULL)
		curl_multi_wakeup(multi);
}

Destination destination_http = {
	.name = "HTTP",
	.schemes = schemes,
	.settings = settings,
	.pipelines_keys = false,
	.in_flight = 16,
	.version = http_version,
	.configure = http_configure,
	.describe = http_describe,
	.show = http_show,
	.open = http_open,
	.send = http_send,
	.wait = http_wait,
	.close = http_close,
	.interrupt = http_interrupt
};
