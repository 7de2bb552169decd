/*-------------------------------------------------------------------------
 *
 * dial.h
 *	  Making a connection to PostgreSQL, in a thread of its own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DIAL_H
#define DIAL_H

#include <stdbool.h>

#include <libpq-fe.h>

typedef struct Dial Dial;

/* careful: find out why it fails, which may take a second attempt. */
extern Dial *dial_start(const char *conninfo, bool careful);

/* Can be read when it has ended. */
extern int	dial_fd(const Dial *dial);

/*
 * It has ended: frees it.  Returns the connection, good or not; *refused: the server was there and
 * said no, or what it needs is missing here.
 */
extern PGconn *dial_end(Dial *dial, bool *refused);

/* It may go on, but nobody waits for it any more. */
extern void dial_leave(Dial *dial);

/* Ask the server to end what is under way on a connection, from a thread. */
extern void dial_cancel(PGconn *conn);

/* Is a thread under way?  Then the program must be left by _exit(): libraries are in use. */
extern bool dial_is_busy(void);

#endif
