/*-------------------------------------------------------------------------
 *
 * http_request.c
 *	  What an event becomes for HTTP.
 *
 * The body is the payload or the body of the event.  Headers: Content-Type, Idempotency-Key, the attributes of CloudEvents 1.0
 * (binary mode: ce-id, ce-source, ce-type, ce-subject, ce-time, and ce-cause), the
 * signature of Standard Webhooks, those of --header, and those of the event.
 *
 * The event's headers come from whoever may write to the outbox, so they cannot
 * take the place of ours, of --header's, or of those that HTTP itself lives by: such are left out.
 *
 *-------------------------------------------------------------------------
 */
#include "http_request.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "log.h"
#include "text.h"
#include "webhook_sign.h"

static const SettingPair *all_headers;
static bool is_authorized;		/* somebody other than the event says so */
static Template *source;
static bool is_signing;

/* What may not be set: HTTP's own, and ours. */
static const char *const reserved[] = {
	"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
	"proxy-connection", "proxy-authorization", "proxy-authenticate", "idempotency-key", NULL
};

/* Is it one of those? */
static bool
is_reserved(const char *name)
{
	for (int i = 0; reserved[i] != NULL; i++)
		if (strcasecmp(name, reserved[i]) == 0)
			return true;
	return strncasecmp(name, "ce-", 3) == 0 || strncasecmp(name, "webhook-", 8) == 0;
}

/* Can it be the name of a header? */
static bool
is_token(const char *name)
{
	for (const char *s = name; *s; s++)
		if (!isalnum((unsigned char) *s) && strchr("!#$%&'*+-.^_`|~", *s) == NULL)
			return false;
	return *name != '\0';
}

/* Does it hold what would end a header? */
static bool
has_control(const char *value)
{
	for (const char *s = value; *s; s++)
		if (((unsigned char) *s < ' ' && *s != '\t') || *s == 127)
			return true;
	return false;
}

/* See http_request.h. */
char *
http_request_configure(const SettingPair *headers, const char *from, bool has_user, bool sign)
{
	char	   *what;

	for (const SettingPair *pair = headers; pair != NULL; pair = pair->next)
	{
		if (!is_token(pair->key))
			return format("--header: \"%s\" cannot be the name of a header", pair->key);
		if (has_user && strcasecmp(pair->key, "authorization") == 0)
			return format("--to names a user, and that becomes the header Authorization: leave out one of them");
		if (is_reserved(pair->key))
			return format("--header: \"%s\" is set by the relay itself", pair->key);
		if (has_control(pair->value))
			return format("--header: the value of \"%s\" has a control character", pair->key);
	}
	all_headers = headers;
	is_authorized = has_user;
	is_signing = sign;
	source = template_parse(from, &what);
	if (source == NULL)
	{
		char	   *why = format("--source: %s", what);

		free(what);
		return why;
	}
	return NULL;
}

/* Adds "name: value". */
static void
add_header(struct curl_slist **headers, const char *name, const char *value)
{
	/* to curl "name;" is a header without a value, and "name:" takes one out */
	char	   *line = value[0] != '\0' ? format("%s: %s", name, value) : format("%s;", name);
	struct curl_slist *longer = curl_slist_append(*headers, line);

	if (longer == NULL)
		text_no_memory();
	*headers = longer;
	free(line);
}

/* Adds an attribute of CloudEvents, whose values are percent-encoded. */
static void
add_attribute(struct curl_slist **headers, const char *name, const char *value)
{
	Text		text = {0};

	text_add_bytes(&text, "", 0);
	for (const unsigned char *s = (const unsigned char *) value; *s; s++)
	{
		if (*s > ' ' && *s < 127 && *s != '"' && *s != '%')
			text_add_char(&text, *s);
		else
			text_add(&text, "%%%02X", *s);
	}
	add_header(headers, name, text.data);
	free(text.data);
}

/* Adds CloudEvents' view of the event. */
static void
add_attributes(struct curl_slist **headers, const Message *message)
{
	char		moment[TEXT_MOMENT_SIZE];
	char	   *from = template_fill(source, message, true);

	text_moment(moment, message->created_at, 6);
	add_header(headers, "ce-specversion", "1.0");
	add_attribute(headers, "ce-id", message->id);
	add_attribute(headers, "ce-source", from);
	add_attribute(headers, "ce-type", message->type != NULL && message->type[0] != '\0' ? message->type : message->aggregatetype);
	if (message->aggregateid != NULL && message->aggregateid[0] != '\0')
		add_attribute(headers, "ce-subject", message->aggregateid);
	add_header(headers, "ce-time", moment);
	if (message->cause != NULL && message->cause[0] != '\0')
		add_attribute(headers, "ce-cause", message->cause);
	free(from);
}

/* Adds what the receiver can check the body with. */
static void
add_signature(struct curl_slist **headers, const Message *message)
{
	char		now[32];
	char	   *signature;

	snprintf(now, sizeof(now), "%" PRId64, (int64_t) time(NULL));
	signature = webhook_sign(message->id, now, message->data, message->data != NULL ? message->length : 0);
	add_header(headers, "webhook-id", message->id);
	add_header(headers, "webhook-timestamp", now);
	add_header(headers, "webhook-signature", signature);
	free(signature);
}

/* Is it among those of --header? */
static bool
is_set_for_all(const char *name)
{
	for (const SettingPair *pair = all_headers; pair != NULL; pair = pair->next)
		if (strcasecmp(pair->key, name) == 0)
			return true;
	return is_authorized && strcasecmp(name, "authorization") == 0;
}

/* Adds one of the event's; what cannot be part of a name is percent-encoded. */
static void
add_event_header(struct curl_slist **headers, const Header *header)
{
	Text		name = {0};

	for (const unsigned char *s = (const unsigned char *) header->name; *s; s++)
	{
		char		one[2] = {*s, '\0'};

		if (is_token(one))
			text_add_char(&name, *s);
		else
			text_add(&name, "%%%02X", *s);
	}
	if (name.data != NULL)
		add_header(headers, name.data, header->value);
	free(name.data);
}

/* See http_request.h. */
char *
http_request_headers(const Message *message, struct curl_slist **headers)
{
	const char *content_type = message->binary ? "application/octet-stream" : "application/json";
	struct curl_slist *longer;

	*headers = NULL;
	for (int i = 0; i < message->nheaders; i++)
	{
		const Header *header = &message->headers[i];

		if (has_control(header->value))
			return format("the value of its header \"%s\" has a control character", header->name);
		if (strcasecmp(header->name, "content-type") == 0)
			content_type = header->value;
		else if (!is_reserved(header->name) && !is_set_for_all(header->name))
			add_event_header(headers, header);
	}
	for (const SettingPair *pair = all_headers; pair != NULL; pair = pair->next)
		if (strcasecmp(pair->key, "content-type") != 0)
			add_header(headers, pair->key, pair->value);
		else
			content_type = pair->value;

	/* without a value it takes out curl's own */
	if (message->data != NULL)
		add_header(headers, "Content-Type", content_type);
	else if ((longer = curl_slist_append(*headers, "Content-Type:")) != NULL)
		*headers = longer;
	if ((longer = curl_slist_append(*headers, "Expect:")) != NULL)
		*headers = longer;

	add_header(headers, "Idempotency-Key", message->id);
	add_attributes(headers, message);
	if (is_signing)
		add_signature(headers, message);
	return NULL;
}
