/*-------------------------------------------------------------------------
 *
 * check.h
 *	  Looking without taking: --check and --dry-run.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CHECK_H
#define CHECK_H

#include "destination.h"
#include "task.h"

/* Returns an exit code; signal_fd can be read when it is to end. */
extern int	check_run(const RelayOptions *options, Destination *destination, int signal_fd);

/* What would help, malloc'd or NULL: what the server says, else the right that is missing; consumer NULL: "monitor". */
extern char *check_hint(const char *sqlstate, const char *said, const char *user, const char *consumer);

#endif
