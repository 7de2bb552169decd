/*-------------------------------------------------------------------------
 *
 * log.h
 *	  Lines for people and for machines, on stderr; any thread may write.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_LOG_H
#define RELAY_LOG_H

#include <stdbool.h>

typedef enum LogLevel
{
	LOG_LEVEL_DEBUG,
	LOG_LEVEL_INFO,
	LOG_LEVEL_WARNING,
	LOG_LEVEL_ERROR
} LogLevel;

extern void log_start(LogLevel least, bool json);

/*
 * One line.  The message is a sentence's worth in lower case without a full stop,
 * as PostgreSQL's; then pairs of names and values, ended by NULL, which become fields in
 * JSON and "name=value" in text:
 *
 *	log_line(LOG_LEVEL_WARNING, "the destination takes nothing", "reason", why, "retry_in", "2s", NULL);
 *
 * No payloads, no secrets.
 */
extern void log_line(LogLevel level, const char *message,...) __attribute__((sentinel));

/* A line that stays below the others, and is replaced by the next one; NULL takes it away.  For a terminal. */
extern void log_status(const char *line);

/* malloc'd; ends the program when there is no memory */
extern char *format(const char *text,...) __attribute__((format(printf, 1, 2)));

#endif
