/*-------------------------------------------------------------------------
 *
 * log.c
 *	  Lines for people and for machines, on stderr; any thread may write.
 *
 * A line is put together first and then written in one piece.  In text a value that holds anything
 * but plain characters is in quotes, as in JSON, so a line is a line whatever a
 * destination answers.
 *
 *-------------------------------------------------------------------------
 */
#include "log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "text.h"

static LogLevel least_level = LOG_LEVEL_INFO;
static bool as_json;

static const char *const level_names[] = {"debug", "info", "warning", "error"};

/* What stands below the lines on a terminal; under the lock, as is writing. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *status;

/* From now on; before that, text from level info. */
void
log_start(LogLevel least, bool json)
{
	least_level = least;
	as_json = json;
}

/* Write it all; what cannot be written is lost. */
static void
write_out(const char *data, size_t length)
{
	while (length > 0)
	{
		ssize_t		n = write(STDERR_FILENO, data, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		data += n;
		length -= n;
	}
}

/* Can it stand in a text line without quotes? */
static bool
is_plain(const char *value)
{
	if (*value == '\0')
		return false;
	for (; *value; value++)
		if ((unsigned char) *value <= ' ' || *value == '"' || *value == '=' || *value == '\\' || *value == 0x7f)
			return false;
	return true;
}

/* Time, level and message. */
static void
add_head(Text *line, LogLevel level, const char *message)
{
	char		moment[TEXT_MOMENT_SIZE];
	struct timeval now;

	gettimeofday(&now, NULL);
	text_moment(moment, (int64_t) now.tv_sec * 1000000 + now.tv_usec, 3);
	if (as_json)
	{
		text_add(line, "{\"time\":\"%s\",\"level\":\"%s\",\"message\":", moment, level_names[level]);
		text_add_json(line, message);
	}
	else
	{
		text_add(line, "%s %s: ", moment, level_names[level]);
		for (; *message; message++)
			text_add_char(line, (unsigned char) *message < ' ' ? ' ' : *message);
	}
}

/* One field. */
static void
add_field(Text *line, const char *name, const char *value)
{
	if (as_json)
	{
		text_add_char(line, ',');
		text_add_json(line, name);
		text_add_char(line, ':');
		text_add_json(line, value);
	}
	else
	{
		text_add(line, " %s=", name);
		if (is_plain(value))
			text_add(line, "%s", value);
		else
			text_add_json(line, value);
	}
}

/* See log.h. */
void
log_line(LogLevel level, const char *message,...)
{
	Text		line = {0};
	va_list		args;
	const char *name;

	if (level < least_level)
		return;
	add_head(&line, level, message);
	va_start(args, message);
	while ((name = va_arg(args, const char *)) != NULL)
	{
		const char *value = va_arg(args, const char *);

		if (value != NULL)
			add_field(&line, name, value);
	}
	va_end(args);
	text_add(&line, as_json ? "}\n" : "\n");

	pthread_mutex_lock(&lock);
	if (status != NULL)
		write_out("\r\033[K", 4);
	write_out(line.data, line.length);
	if (status != NULL)
		write_out(status, strlen(status));
	pthread_mutex_unlock(&lock);
	free(line.data);
}

/* See log.h. */
void
log_status(const char *line)
{
	pthread_mutex_lock(&lock);
	if (status != NULL || line != NULL)
		write_out("\r\033[K", 4);
	free(status);
	status = NULL;
	if (line != NULL)
	{
		status = format("%s", line);
		write_out(status, strlen(status));
	}
	pthread_mutex_unlock(&lock);
}

/* printf() into memory of its own. */
char *
format(const char *text,...)
{
	char	   *result;
	va_list		args;
	int			length;

	va_start(args, text);
	length = vasprintf(&result, text, args);
	va_end(args);
	if (length < 0)
		text_no_memory();
	return result;
}
