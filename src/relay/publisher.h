/*-------------------------------------------------------------------------
 *
 * publisher.h
 *	  The thread that talks to the destination.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PUBLISHER_H
#define PUBLISHER_H

#include "destination.h"

/* ---- for the main thread ---- */

extern void publisher_start(Destination *destination);

/*
 * Hands a message over.  They are sent in this order; connects if need be.
 *
 * Of a destination that pipelines keys several messages of a key may be out.  As soon as one was not
 * delivered, all that have not been sent come back as RETURNED, and so does what is handed over
 * before the last such message has been taken back: so take until NULL, then hand over.  And after one that was not
 * delivered hand over the next of its key only when all of that key are back.
 */
extern void publisher_send(Message *message);

/* Can be read when publisher_take() or publisher_opened() has something; publisher_take() until NULL makes it quiet. */
extern int	publisher_fd(void);

/* The next message that has an outcome, or NULL. */
extern Message *publisher_take(void);

/*
 * Connects without a message to send (start, --check, half-open breaker); the
 * result comes by publisher_opened(): false as long as it is not known.
 */
extern void publisher_open(void);
extern bool publisher_opened(Opened *how, char **why);

/*
 * Stops: what waits comes back as RETURNED, the connection is dropped at once
 * and what was in flight comes back as TROUBLE.  The next publisher_send() connects anew.
 */
extern void publisher_abort(void);

/*
 * Ends the thread; gently or not, as close().  What was not delivered can be taken then.
 * False: it hangs in its library, and still has what it had; leave by _exit().
 */
extern bool publisher_end(bool gently);

/* Has publisher_end() said so? */
extern bool publisher_hangs(void);

/* ---- for destinations ---- */

/* What became of a message.  why is malloc'd or NULL; the publisher takes it. */
extern void publisher_done(Message *message, Outcome outcome, char *why, int64_t retry_after);

/* Messages that were sent and have no outcome yet, oldest first; NULL ends. */
extern Message *publisher_in_flight(void);
extern int	publisher_in_flight_count(void);

/* All of them have this outcome; for AGAIN and TROUBLE. */
extern void publisher_all_done(Outcome outcome, const char *why);

#endif
