/*-------------------------------------------------------------------------
 *
 * flow.h
 *	  What is sent next.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FLOW_H
#define FLOW_H

#include <stdbool.h>

#include "batch.h"

/* An event that is EVENT_READY or EVENT_AGAIN. */
extern void flow_put(Event *event);
extern void flow_remove(Event *event);

/* How many are ready, and how many the publisher has. */
extern int	flow_ready(void);
extern int	flow_out(void);

/* Hands over what may be sent, but so that the publisher has not more than that. */
extern void flow_send(int window);

/* The next that has come back, or NULL. */
extern Event *flow_take(bool *was_alone);

/* Is there one that the publisher does not tell of? */
extern bool flow_has_unfit(void);

/* Everything comes back from the publisher, soon; until then nothing is sent. */
extern void flow_abort(void);
extern bool flow_is_aborting(void);

#endif
