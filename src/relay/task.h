/*-------------------------------------------------------------------------
 *
 * task.h
 *	  What a relay is to do, and how it may end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TASK_H
#define TASK_H

#include <stdint.h>

typedef enum RelayMode
{
	RELAY_RUN,					/* until it is told to stop */
	RELAY_ONCE,					/* one round of what is there now */
	RELAY_DRAIN,				/* until nothing is left for the consumer */
	RELAY_DRY_RUN,				/* shows what would be sent, and takes nothing */
	RELAY_CHECK					/* connects to both ends and says what is
								 * wrong */
} RelayMode;

/* How the program ends; see the manual. */
typedef enum ExitCode
{
	EXIT_DONE = 0,
	EXIT_FAILED = 1,
	EXIT_SETTINGS = 2,			/* wrong settings */
	EXIT_DATABASE = 3,			/* the database refuses */
	EXIT_DESTINATION = 4,		/* the destination refuses */
	EXIT_UNFINISHED = 5			/* work was left */
} ExitCode;

typedef struct RelayOptions
{
	const char *dbname;			/* a conninfo string or URI; NULL: libpq's
								 * environment */
	const char *consumer;
	int			batch;			/* events that a fetch asks for at most */
	int64_t		lease;			/* times are microseconds */
	int64_t		memory;			/* bytes of events that are held at most */
	int64_t		backoff_most;
	int64_t		timeout;		/* of one answer of the destination, and of
								 * what ends */
	int			in_flight;		/* messages at the destination at most; 0: as
								 * it likes */
	RelayMode	mode;
} RelayOptions;

#endif
