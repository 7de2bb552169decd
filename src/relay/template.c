/*-------------------------------------------------------------------------
 *
 * template.c
 *	  Names made of the columns of an event: "{aggregatetype}.{type}".
 *
 *-------------------------------------------------------------------------
 */
#include "template.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "text.h"

typedef enum Field
{
	FIELD_LITERAL,				/* the part's own text */
	FIELD_HEADER,				/* the header that the text names */
	FIELD_ID,
	FIELD_SEQ,
	FIELD_AGGREGATETYPE,
	FIELD_AGGREGATEID,
	FIELD_TYPE,
	FIELD_CAUSE,
	FIELD_ATTEMPT
} Field;

static const struct
{
	const char *name;
	Field		field;
}			fields[] =
{
	{"id", FIELD_ID},
	{"seq", FIELD_SEQ},
	{"aggregatetype", FIELD_AGGREGATETYPE},
	{"aggregateid", FIELD_AGGREGATEID},
	{"type", FIELD_TYPE},
	{"cause", FIELD_CAUSE},
	{"attempt", FIELD_ATTEMPT},
	{NULL}
};

#define FIELDS_HINT "fields are {id} {seq} {aggregatetype} {aggregateid} {type} {cause} {attempt} {header.NAME}, and {{ and }} are braces"

typedef struct Part
{
	Field		field;
	char	   *text;
} Part;

struct Template
{
	int			nparts;
	Part		parts[];
};

/* One more part; takes the text. */
static Template *
add_part(Template *template, Field field, char *text)
{
	template = realloc(template, sizeof(Template) + sizeof(Part) * (template->nparts + 1));
	if (template == NULL)
		text_no_memory();
	template->parts[template->nparts++] = (Part)
	{
		field, text
	};
	return template;
}

/* Not needed any more. */
static void
free_template(Template *template)
{
	for (int i = 0; i < template->nparts; i++)
		free(template->parts[i].text);
	free(template);
}

/* What stands between braces; NULL: there is no such field. */
static Template *
add_field(Template *template, const char *name, size_t length)
{
	for (int i = 0; fields[i].name != NULL; i++)
		if (strlen(fields[i].name) == length && memcmp(fields[i].name, name, length) == 0)
			return add_part(template, fields[i].field, NULL);
	if (length > strlen("header.") && strncmp(name, "header.", strlen("header.")) == 0)
		return add_part(template, FIELD_HEADER, strndup(name + strlen("header."), length - strlen("header.")));
	return NULL;
}

/* See template.h. */
Template *
template_parse(const char *text, char **why)
{
	Template   *template = calloc(1, sizeof(Template));
	Text		literal = {0};
	const char *s = text;

	if (template == NULL)
		text_no_memory();
	while (*s)
	{
		if ((s[0] == '{' || s[0] == '}') && s[1] == s[0])
		{
			text_add_char(&literal, *s);
			s += 2;
		}
		else if (*s == '{')
		{
			const char *end = s + 1 + strcspn(s + 1, "{}");
			Template   *more;

			if (*end != '}')
			{
				*why = format("\"%s\": a { has no }; " FIELDS_HINT, text);
				goto wrong;
			}
			if (literal.length > 0)
			{
				template = add_part(template, FIELD_LITERAL, literal.data);
				literal = (Text)
				{
					0
				};
			}
			more = add_field(template, s + 1, end - s - 1);
			if (more == NULL)
			{
				*why = format("\"%s\": there is no field \"%.*s\"; " FIELDS_HINT, text, (int) (end - s - 1), s + 1);
				goto wrong;
			}
			template = more;
			s = end + 1;
		}
		else if (*s == '}')
		{
			*why = format("\"%s\": a } has no {; " FIELDS_HINT, text);
			goto wrong;
		}
		else
			text_add_char(&literal, *s++);
	}
	if (literal.length > 0)
		template = add_part(template, FIELD_LITERAL, literal.data);
	return template;

wrong:
	free(literal.data);
	free_template(template);
	return NULL;
}

/* See template.h. */
bool
template_is_constant(const Template *template)
{
	for (int i = 0; i < template->nparts; i++)
		if (template->parts[i].field != FIELD_LITERAL)
			return false;
	return true;
}

/* What a part is for this event; NULL: nothing.  number: room for a number as text. */
static const char *
part_value(const Part *part, const Message *message, char number[32])
{
	switch (part->field)
	{
		case FIELD_LITERAL:
			return part->text;
		case FIELD_HEADER:
			for (int i = 0; i < message->nheaders; i++)
				if (strcmp(message->headers[i].name, part->text) == 0)
					return message->headers[i].value;
			return NULL;
		case FIELD_ID:
			return message->id;
		case FIELD_SEQ:
			snprintf(number, 32, "%" PRId64, message->seq);
			return number;
		case FIELD_AGGREGATETYPE:
			return message->aggregatetype;
		case FIELD_AGGREGATEID:
			return message->aggregateid;
		case FIELD_TYPE:
			return message->type;
		case FIELD_CAUSE:
			return message->cause;
		case FIELD_ATTEMPT:
			snprintf(number, 32, "%d", message->attempt);
			return number;
	}
	return NULL;
}

/* See template.h. */
char *
template_fill(const Template *template, const Message *message, bool escape)
{
	Text		result = {0};

	text_add_bytes(&result, "", 0);
	for (int i = 0; i < template->nparts; i++)
	{
		const Part *part = &template->parts[i];
		char		number[32];
		const char *value = part_value(part, message, number);

		if (value == NULL)
			continue;
		if (!escape || part->field == FIELD_LITERAL)
			text_add_bytes(&result, value, strlen(value));
		else
			for (; *value; value++)
			{
				if (isalnum((unsigned char) *value) || strchr("-._~", *value) != NULL)
					text_add_char(&result, *value);
				else
					text_add(&result, "%%%02X", (unsigned char) *value);
			}
	}
	return result.data;
}
