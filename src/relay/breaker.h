/*-------------------------------------------------------------------------
 *
 * breaker.h
 *	  Leaving a destination that is in trouble alone for a while.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BREAKER_H
#define BREAKER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum BreakerState
{
	BREAKER_CLOSED,				/* all goes well */
	BREAKER_OPEN,				/* nothing is fetched */
	BREAKER_HALF_OPEN			/* one event is tried */
} BreakerState;

/* It begins open, and due to connect. */
extern void breaker_start(int full, int64_t backoff_most);

extern BreakerState breaker_state(void);

/* The destination takes nothing.  May be called once for each event. */
extern void breaker_trouble(const char *why, int64_t retry_after);

/* The destination has taken an event. */
extern void breaker_delivered(void);

/* A batch has ended, in which there were such. */
extern void breaker_batch_done(void);

/* While it is open: how long until the destination is tried again. */
extern int64_t breaker_wait(void);

/* As many events may be fetched at a time, and sent. */
extern int	breaker_pace(void);

/* Connects when it is due.  False: the destination refused, for good or from the beginning; *why is what it said. */
extern bool breaker_turn(const char **why);

/* When that is to be called at the latest. */
extern int64_t breaker_next(void);

/* Since when it has not been closed; 0: it is. */
extern int64_t breaker_since(void);

/* What stands in the way, or NULL. */
extern const char *breaker_why(void);

#endif
