/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Text that grows, JSON, and points in time.
 *
 *-------------------------------------------------------------------------
 */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* There is nothing that could be done. */
void
text_no_memory(void)
{
	static const char message[] = "idemq-relay: out of memory\n";
	ssize_t		n = write(STDERR_FILENO, message, sizeof(message) - 1);

	(void) n;
	_exit(1);
}

/* Room for so many more bytes and a zero. */
static void
make_room(Text *text, size_t more)
{
	size_t		least = text->length + more + 1;

	if (least <= text->room)
		return;
	if (least < text->room * 2)
		least = text->room * 2;
	if (least < 64)
		least = 64;
	text->data = realloc(text->data, least);
	if (text->data == NULL)
		text_no_memory();
	text->room = least;
}

/* As they are. */
void
text_add_bytes(Text *text, const char *data, size_t length)
{
	make_room(text, length);
	if (length > 0)
		memcpy(text->data + text->length, data, length);
	text->length += length;
	text->data[text->length] = '\0';
}

/* One. */
void
text_add_char(Text *text, char c)
{
	text_add_bytes(text, &c, 1);
}

/* printf() to the end of it. */
void
text_add(Text *text, const char *what,...)
{
	va_list		args;
	int			length;

	make_room(text, 128);
	va_start(args, what);
	length = vsnprintf(text->data + text->length, text->room - text->length, what, args);
	va_end(args);
	if (length < 0)
		text_no_memory();
	if ((size_t) length >= text->room - text->length)
	{
		make_room(text, length);
		va_start(args, what);
		vsnprintf(text->data + text->length, text->room - text->length, what, args);
		va_end(args);
	}
	text->length += length;
}

/* How many bytes the UTF-8 character has that begins here, 0 if it is none. */
static int
utf8_length(const unsigned char *s)
{
	int			length;
	uint32_t	code;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		length = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		length = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		length = 4;
	else
		return 0;
	code = s[0] & (0xff >> (length + 1));
	for (int i = 1; i < length; i++)
	{
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
	}
	if (length == 3 && (code < 0x800 || (code >= 0xd800 && code <= 0xdfff)))
		return 0;
	if (length == 4 && (code < 0x10000 || code > 0x10ffff))
		return 0;
	return length;
}

/* See text.h. */
void
text_add_json(Text *text, const char *value)
{
	const unsigned char *s = (const unsigned char *) value;

	if (value == NULL)
	{
		text_add_bytes(text, "null", 4);
		return;
	}
	text_add_char(text, '"');
	while (*s)
	{
		int			length;

		if (*s == '"' || *s == '\\')
		{
			text_add_char(text, '\\');
			text_add_char(text, *s++);
		}
		else if (*s == '\n')
		{
			text_add_bytes(text, "\\n", 2);
			s++;
		}
		else if (*s == '\t')
		{
			text_add_bytes(text, "\\t", 2);
			s++;
		}
		else if (*s == '\r')
		{
			text_add_bytes(text, "\\r", 2);
			s++;
		}
		else if (*s < ' ' || *s == 0x7f)
			text_add(text, "\\u%04x", *s++);
		else if ((length = utf8_length(s)) == 0)
		{
			text_add_bytes(text, "\\ufffd", 6);
			s++;
		}
		else
		{
			text_add_bytes(text, (const char *) s, length);
			s += length;
		}
	}
	text_add_char(text, '"');
}

/* With padding, without line breaks. */
void
text_add_base64(Text *text, const char *data, size_t length)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *s = (const unsigned char *) data;

	make_room(text, (length + 2) / 3 * 4);
	for (size_t i = 0; i < length; i += 3)
	{
		uint32_t	three = (uint32_t) s[i] << 16;
		char	   *to = text->data + text->length;

		if (i + 1 < length)
			three |= (uint32_t) s[i + 1] << 8;
		if (i + 2 < length)
			three |= s[i + 2];
		to[0] = digits[three >> 18];
		to[1] = digits[three >> 12 & 63];
		to[2] = i + 1 < length ? digits[three >> 6 & 63] : '=';
		to[3] = i + 2 < length ? digits[three & 63] : '=';
		text->length += 4;
	}
	text->data[text->length] = '\0';
}

/* See text.h. */
void
text_moment(char *to, int64_t moment, int digits)
{
	time_t		seconds = moment / 1000000;
	int			fraction = moment % 1000000;
	struct tm	tm;
	size_t		length;

	if (fraction < 0)
	{
		fraction += 1000000;
		seconds--;
	}
	gmtime_r(&seconds, &tm);
	length = strftime(to, TEXT_MOMENT_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
	if (digits > 0)
	{
		snprintf(to + length, TEXT_MOMENT_SIZE - length, ".%06d", fraction);
		length += digits + 1;
	}
	snprintf(to + length, TEXT_MOMENT_SIZE - length, "Z");
}
