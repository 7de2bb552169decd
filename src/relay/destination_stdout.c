/*-------------------------------------------------------------------------
 *
 * destination_stdout.c
 *	  Events as lines of JSON, for a first look and for pipes.
 *
 * An event is delivered when the kernel has all of its line.  Lines are collected, and written when there
 * is nothing more to send for now, or enough.  A pipe that is full is waited for by poll(), which an
 * interrupt ends, and then never given more than it takes without blocking.
 *
 * What an interrupt leaves of a line that has been begun is written first when it goes on: whoever
 * reads never sees half a line, but perhaps an event twice.
 *
 *-------------------------------------------------------------------------
 */
#include "destination.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "log.h"
#include "publisher.h"
#include "text.h"

/* Written when so much has been collected. */
#define ENOUGH		65536

static Setting settings[] = {
	{0}
};

static const char *const schemes[] = {"stdout", NULL};

static Text lines;				/* not written yet */
static char *rest;				/* of a line that was begun when it was interrupted */
static char *failed;			/* why nothing can be written; wait() tells */
static int	interrupt_fd = -1;

#define READER_GONE "stdout was closed by whoever was reading it"

/* Nothing has a version. */
static const char *
version(void)
{
	return "JSON lines";
}

/* There is nothing to set. */
static char *
configure(const char *to)
{
	if (strcmp(to, "stdout") != 0 && strcmp(to, "stdout:") != 0 && strcmp(to, "stdout://") != 0)
		return format("--to stdout takes nothing behind it");
	interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (interrupt_fd < 0)
		return format("an eventfd cannot be made: %s", strerror(errno));
	return NULL;
}

/* For log lines. */
static const char *
describe(void)
{
	return "stdout";
}

/* A name and a string or null. */
static void
add_member(Text *line, const char *name, const char *value)
{
	text_add(line, ",\"%s\":", name);
	text_add_json(line, value);
}

/* The line for an event, without its end. */
static void
add_line(Text *line, const Message *message)
{
	char		moment[TEXT_MOMENT_SIZE];

	text_moment(moment, message->created_at, 6);
	text_add(line, "{\"id\":\"%s\",\"seq\":%" PRId64, message->id, message->seq);
	add_member(line, "aggregatetype", message->aggregatetype);
	add_member(line, "aggregateid", message->aggregateid);
	add_member(line, "type", message->type);
	if (message->binary)
	{
		text_add(line, ",\"body\":\"");
		text_add_base64(line, message->data, message->length);
		text_add_char(line, '"');
	}
	else if (message->data == NULL)
		text_add(line, ",\"payload\":null");
	else
	{
		text_add(line, ",\"payload\":");
		text_add_bytes(line, message->data, message->length);
	}
	text_add(line, ",\"headers\":{");
	for (int i = 0; i < message->nheaders; i++)
	{
		if (i > 0)
			text_add_char(line, ',');
		text_add_json(line, message->headers[i].name);
		text_add_char(line, ':');
		text_add_json(line, message->headers[i].value);
	}
	text_add_char(line, '}');
	add_member(line, "cause", message->cause);
	text_add(line, ",\"attempt\":%d,\"created_at\":\"%s\"}", message->attempt, moment);
}

/* What --dry-run shows. */
static char *
show(const Message *message)
{
	Text		line = {0};

	add_line(&line, message);
	return line.data;
}

/* Can it be written to? */
static Opened
open_stdout(char **why)
{
	struct pollfd out = {.fd = STDOUT_FILENO,.events = POLLOUT};

	if (fcntl(STDOUT_FILENO, F_GETFL) < 0 || (fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY)
	{
		*why = format("stdout is not open for writing");
		return OPEN_ENDED;
	}
	if (poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLNVAL)) != 0)
	{
		*why = format(READER_GONE);
		return OPEN_ENDED;
	}
	return OPEN_OK;
}

/* Remembers why it does not go on. */
static void
fail(int error)
{
	if (failed == NULL)
		failed = error == EPIPE ? format(READER_GONE) : format("stdout cannot be written: %s", strerror(error));
}

/* Waits until something can be written.  False: interrupted. */
static bool
wait_for_room(void)
{
	struct pollfd ready[2] = {
		{.fd = STDOUT_FILENO,.events = POLLOUT},
		{.fd = interrupt_fd,.events = POLLIN}
	};

	while (poll(ready, 2, -1) < 0 && errno == EINTR)
		;
	return ready[1].revents == 0;
}

/* Writes; returns how much, less than all if it was interrupted or failed. */
static size_t
write_some(const char *data, size_t length)
{
	size_t		written = 0;

	while (written < length)
	{
		/* a pipe with room takes that much without blocking */
		size_t		piece = length - written < PIPE_BUF ? length - written : PIPE_BUF;
		ssize_t		n;

		if (!wait_for_room())
			break;
		n = write(STDOUT_FILENO, data + written, piece);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n < 0)
		{
			fail(errno);
			break;
		}
		written += n;
	}
	return written;
}

/* Writes what there is; what has gone is delivered. */
static void
flush(void)
{
	size_t		written;
	Message    *message;

	if (failed != NULL || lines.length == 0)
		return;
	if (rest != NULL)
	{
		size_t		length = strlen(rest);

		written = write_some(rest, length);
		if (written < length)
		{
			memmove(rest, rest + written, length - written + 1);
			return;
		}
		free(rest);
		rest = NULL;
	}
	written = write_some(lines.data, lines.length);
	/* a message's tag is where its line ends */
	while ((message = publisher_in_flight()) != NULL && message->tag <= written)
		publisher_done(message, OUTCOME_DELIVERED, NULL, 0);
	if (written < lines.length && failed == NULL)
	{
		/* what has not been sent is not sent, save for a line that was begun */
		if (message != NULL && written > 0 && lines.data[written - 1] != '\n')
			rest = strndup(lines.data + written, message->tag - written);
		failed = format("interrupted");
	}
	lines.length = 0;
}

/* Collects. */
static void
send_line(Message *message)
{
	add_line(&lines, message);
	text_add_char(&lines, '\n');
	message->tag = lines.length;
	if (lines.length >= ENOUGH)
		flush();
}

/* Writes; waits only for the main thread, since nobody answers. */
static bool
wait_stdout(int wake_fd, int timeout, char **why)
{
	struct pollfd ready[3] = {
		{.fd = wake_fd,.events = POLLIN},
		{.fd = interrupt_fd,.events = POLLIN},
		{.fd = STDOUT_FILENO}
	};

	flush();
	if (failed == NULL && timeout != 0)
	{
		while (poll(ready, 3, timeout) < 0 && errno == EINTR)
			;
		if ((ready[2].revents & POLLERR) != 0)
			fail(EPIPE);
	}
	if (failed == NULL)
		return true;
	*why = format("%s", failed);
	return false;
}

/* Forgets what has not been written. */
static void
close_stdout(bool gently)
{
	uint64_t	count;

	if (gently)
		flush();
	lines.length = 0;
	free(failed);
	failed = NULL;
	while (read(interrupt_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

/* Ends poll(). */
static void
interrupt(void)
{
	uint64_t	one = 1;

	while (write(interrupt_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

Destination destination_stdout = {
	.name = "stdout",
	.schemes = schemes,
	.settings = settings,
	.pipelines_keys = false,
	.in_flight = 1000,
	.version = version,
	.configure = configure,
	.describe = describe,
	.show = show,
	.open = open_stdout,
	.send = send_line,
	.wait = wait_stdout,
	.close = close_stdout,
	.interrupt = interrupt
};
