/*-------------------------------------------------------------------------
 *
 * events.h
 *	  Events for the bare loops, from a file, all of them in memory before
 *	  the clock starts.
 *
 * A line for each, as COPY writes it, of: id, aggregatetype, aggregateid, type,
 * seq, created_at in microseconds since 1970, payload.  There must be no
 * character in it that COPY escapes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef EVENTS_H
#define EVENTS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Event
{
	const char *id;
	const char *aggregatetype;
	const char *aggregateid;
	const char *type;
	const char *seq;
	int64_t		created_at;
	const char *payload;
	size_t		length;
} Event;

/* Ends the program. */
static void
die(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

/* Seconds, for differences. */
static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* The next column of a line. */
static char *
take_column(char **line, const char *file)
{
	char	   *column = strsep(line, "\t");

	if (column == NULL)
		die(file, "a line has too few columns");
	return column;
}

/* All events of a file. */
static Event *
read_events(const char *file, int *count)
{
	FILE	   *f = fopen(file, "r");
	Event	   *events = NULL;
	char	   *line = NULL;
	size_t		size = 0;
	ssize_t		length;
	int			n = 0;

	if (f == NULL)
		die(file, strerror(errno));
	while ((length = getline(&line, &size, f)) > 0)
	{
		Event	   *e;
		char	   *rest = line;

		if (n % 65536 == 0 && (events = realloc(events, (n + 65536) * sizeof(Event))) == NULL)
			die(file, "no memory");
		line[strcspn(line, "\n")] = '\0';
		e = &events[n++];
		e->id = take_column(&rest, file);
		e->aggregatetype = take_column(&rest, file);
		e->aggregateid = take_column(&rest, file);
		e->type = take_column(&rest, file);
		e->seq = take_column(&rest, file);
		e->created_at = atoll(take_column(&rest, file));
		e->payload = take_column(&rest, file);
		e->length = strlen(e->payload);
		/* the event keeps the line */
		line = NULL;
		size = 0;
	}
	fclose(f);
	*count = n;
	return events;
}

#endif
