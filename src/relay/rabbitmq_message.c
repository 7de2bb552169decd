/*-------------------------------------------------------------------------
 *
 * rabbitmq_message.c
 *	  What an event becomes for RabbitMQ.
 *
 * Properties: message-id (the event's id), type, timestamp, content-type, delivery-mode 2 and app-id.
 * Headers: aggregatetype, aggregateid, seq, cause, and those of the event, except for content-type,
 * which is a property, and for such as have a name of ours.  An event without a payload has an empty
 * body and no content-type.
 *
 * A message that cannot be encoded has to be found before its first frame is
 * sent: librabbitmq would leave the channel with half of it.
 *
 *-------------------------------------------------------------------------
 */
#include "rabbitmq_message.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "log.h"
#include "text.h"

#define SHORT_MOST 255			/* bytes of a short string of AMQP */
#define HEADER_NAME_MOST 255
#define OWN_HEADERS 4

/* What the header frame has besides the properties that are counted, generously. */
#define HEADER_FRAME_REST 256

/* A string of the event as AMQP's bytes. */
static amqp_bytes_t
bytes_of(const char *text)
{
	return amqp_cstring_bytes(text);
}

/* Adds a text to the headers. */
static void
add_text(amqp_table_t *headers, const char *name, const char *value)
{
	amqp_table_entry_t *entry = &headers->entries[headers->num_entries++];

	entry->key = bytes_of(name);
	entry->value.kind = AMQP_FIELD_KIND_UTF8;
	entry->value.value.bytes = bytes_of(value);
}

/* Is it a name that we give a meaning of our own? */
static bool
is_own_header(const char *name)
{
	return strcmp(name, "aggregatetype") == 0 || strcmp(name, "aggregateid") == 0 ||
		strcmp(name, "seq") == 0 || strcmp(name, "cause") == 0;
}

/* The headers, and the content-type if one of the event's says so. */
static void
make_headers(RabbitmqMessage *made, const Message *message)
{
	amqp_basic_properties_t *properties = &made->properties;
	amqp_table_t *headers = &properties->headers;

	headers->entries = calloc(OWN_HEADERS + message->nheaders, sizeof(amqp_table_entry_t));
	if (headers->entries == NULL)
		text_no_memory();
	properties->_flags |= AMQP_BASIC_HEADERS_FLAG;

	add_text(headers, "aggregatetype", message->aggregatetype);
	if (message->aggregateid != NULL)
		add_text(headers, "aggregateid", message->aggregateid);
	headers->entries[headers->num_entries++] = (amqp_table_entry_t)
	{
		bytes_of("seq"),
		{
			.kind = AMQP_FIELD_KIND_I64,
			.value.i64 = message->seq
		}
	};
	if (message->cause != NULL)
		add_text(headers, "cause", message->cause);

	for (int i = 0; i < message->nheaders; i++)
	{
		const Header *header = &message->headers[i];

		if (strcasecmp(header->name, "content-type") == 0)
		{
			properties->content_type = bytes_of(header->value);
			properties->_flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
		}
		else if (!is_own_header(header->name))
			add_text(headers, header->name, header->value);
	}
}

/* The properties but for the headers. */
static void
make_properties(RabbitmqMessage *made, const Message *message)
{
	amqp_basic_properties_t *properties = &made->properties;

	properties->_flags |= AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_TIMESTAMP_FLAG |
		AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_APP_ID_FLAG;
	properties->message_id = bytes_of(message->id);
	properties->timestamp = message->created_at / 1000000;
	properties->delivery_mode = AMQP_DELIVERY_PERSISTENT;
	properties->app_id = bytes_of("idemq-relay");
	if (message->type != NULL)
	{
		properties->_flags |= AMQP_BASIC_TYPE_FLAG;
		properties->type = bytes_of(message->type);
	}
	if (message->data == NULL)
		properties->_flags &= ~AMQP_BASIC_CONTENT_TYPE_FLAG;
	else if (!(properties->_flags & AMQP_BASIC_CONTENT_TYPE_FLAG))
	{
		properties->_flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
		properties->content_type = bytes_of(message->binary ? "application/octet-stream" : "application/json");
	}
}

/* Which header RabbitMQ closes the channel for, malloc'd, or NULL: these are its own, and have to be lists. */
static char *
find_forbidden(const Message *message)
{
	for (int i = 0; i < message->nheaders; i++)
	{
		const char *name = message->headers[i].name;

		if (strcmp(name, "CC") == 0 || strcmp(name, "BCC") == 0)
			return format("its header \"%s\" is one that RabbitMQ keeps for lists of more routing keys: give it another name", name);
	}
	return NULL;
}

/* What is too long for AMQP, malloc'd, or NULL. */
static char *
find_too_long(const RabbitmqMessage *made, size_t frame_most)
{
	const amqp_basic_properties_t *properties = &made->properties;
	size_t		size = HEADER_FRAME_REST + properties->content_type.len + properties->type.len;

	if (strlen(made->exchange) > SHORT_MOST)
		return format("the name of its exchange has %zu bytes, but AMQP knows %d at most", strlen(made->exchange), SHORT_MOST);
	if (strlen(made->routing_key) > SHORT_MOST)
		return format("its routing key has %zu bytes, but AMQP knows %d at most", strlen(made->routing_key), SHORT_MOST);
	if (properties->type.len > SHORT_MOST)
		return format("its type has %zu bytes, but AMQP knows %d at most", properties->type.len, SHORT_MOST);
	if (properties->content_type.len > SHORT_MOST)
		return format("its content-type has %zu bytes, but AMQP knows %d at most", properties->content_type.len, SHORT_MOST);
	for (int i = 0; i < properties->headers.num_entries; i++)
	{
		const amqp_table_entry_t *entry = &properties->headers.entries[i];

		if (entry->key.len > HEADER_NAME_MOST)
			return format("the name of a header has %zu bytes, but AMQP knows %d at most", entry->key.len, HEADER_NAME_MOST);
		size += 1 + entry->key.len + 1 + (entry->value.kind == AMQP_FIELD_KIND_UTF8 ? 4 + entry->value.value.bytes.len : 8);
	}
	if (size > frame_most)
		return format("its headers have about %zu bytes, but have to fit into one frame of %zu", size, frame_most);
	return NULL;
}

/* See rabbitmq_message.h. */
char *
rabbitmq_message_make(RabbitmqMessage *made, const Message *message, const Template *exchange,
					  const Template *routing_key, size_t frame_most)
{
	char	   *why;

	memset(made, 0, sizeof(*made));
	made->exchange = template_fill(exchange, message, false);
	made->routing_key = template_fill(routing_key, message, false);
	make_headers(made, message);
	make_properties(made, message);
	if (message->data != NULL)
		made->body = (amqp_bytes_t)
	{
		message->length, (void *) message->data
	};
	why = find_forbidden(message);
	return why != NULL ? why : find_too_long(made, frame_most);
}

/* Frees what is in it. */
void
rabbitmq_message_free(RabbitmqMessage *made)
{
	free(made->exchange);
	free(made->routing_key);
	free(made->properties.headers.entries);
}
