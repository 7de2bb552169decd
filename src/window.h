/*-------------------------------------------------------------------------
 *
 * window.h
 *	  The events between two moments, in the order of their numbers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_WINDOW_H
#define IDEMQ_WINDOW_H

#include "idemq.h"

#include "logleaf.h"
#include "moment.h"

typedef enum WindowResult
{
	WINDOW_ROW,					/* here is the next event */
	WINDOW_EMPTY,				/* there is none left */
	WINDOW_PAUSE,				/* enough was read for this time */
} WindowResult;

typedef struct Window Window;

extern Window * window_open(const Moment *start, const Moment *end, int64 after,
							int norigins, const int64 *origins, uint64 limit);
extern WindowResult window_next(Window * window, LogRow *row);
extern int64 window_position(const Window * window);
extern LogLeaves *window_leaves(Window * window);
extern Snapshot window_snapshot(Window * window);
extern void window_close(Window * window);

#endif							/* IDEMQ_WINDOW_H */
