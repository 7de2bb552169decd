/*-------------------------------------------------------------------------
 *
 * text.h
 *	  Text that grows, JSON, and points in time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_TEXT_H
#define RELAY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero: empty.  data is malloc'd and, once something was added, ends with a zero that is not counted. */
typedef struct Text
{
	char	   *data;
	size_t		length;
	size_t		room;
} Text;

extern void text_add(Text *text, const char *what,...) __attribute__((format(printf, 2, 3)));
extern void text_add_char(Text *text, char c);
extern void text_add_bytes(Text *text, const char *data, size_t length);

/* A string of JSON with its quotes, or null; what is not UTF-8 becomes U+FFFD. */
extern void text_add_json(Text *text, const char *value);
extern void text_add_base64(Text *text, const char *data, size_t length);

#define TEXT_MOMENT_SIZE 40

/* Microseconds since 1970 as ISO 8601 in UTC with 0 to 6 digits after the second. */
extern void text_moment(char *to, int64_t moment, int digits);

/* Ends the program. */
extern void text_no_memory(void) __attribute__((noreturn));

#endif
