/*-------------------------------------------------------------------------
 *
 * relay.h
 *	  From a consumer of the outbox to a destination.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RELAY_H
#define RELAY_H

#include <stdbool.h>

#include "destination.h"
#include "task.h"

/*
 * Works until it is told to stop, or is done; returns an exit code.  Settings
 * of the destination are configured; publisher_start() is called here.  Signals are
 * handled here: before this starts a thread, so call it with one only.
 */
extern int	relay_run(const RelayOptions *options, Destination *destination);

/* A connection was being made when it ended: leave by _exit(), since the library is in use. */
extern bool relay_hangs(void);

#endif
