/*-------------------------------------------------------------------------
 *
 * message.h
 *	  An event on its way to a destination, and what became of it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MESSAGE_H
#define MESSAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum Outcome
{
	OUTCOME_NONE,				/* not known yet */
	OUTCOME_DELIVERED,			/* the destination has it for good */
	OUTCOME_REJECTED,			/* it will never take it: the event is at fault */
	OUTCOME_DEFERRED,			/* it does not take this one now, but others; no attempt is spent */
	OUTCOME_TROUBLE,			/* it takes nothing now; no attempt is spent */
	OUTCOME_AGAIN,				/* went down with others when one of them failed: send it again, alone */
	OUTCOME_RETURNED			/* was not sent: the lease would have ended, or publishing was stopped */
} Outcome;

typedef struct Header
{
	const char *name;
	const char *value;
} Header;

/*
 * All strings are zero-terminated UTF-8, and NULL where the column was.  They
 * live until the relay has taken the message back.
 */
typedef struct Message
{
	/* the event */
	char		id[37];
	int64_t		seq;
	const char *aggregatetype;
	const char *aggregateid;
	const char *type;
	const char *data;			/* payload as JSON text, or body; NULL: a tombstone */
	size_t		length;
	bool		binary;			/* it is a body */
	const char *cause;
	const Header *headers;
	int			nheaders;
	int			attempt;
	int			deliveries;
	int64_t		created_at;		/* microseconds since 1970 */

	/*
	 * Microseconds of clock_now(): the publisher sends nothing from then on.
	 * The batch owns it, and moves it when the lease is extended.
	 */
	const _Atomic int64_t *stop_at;

	/* the answer, by publisher_done() */
	Outcome		outcome;
	char	   *why;			/* malloc'd, for all but DELIVERED and RETURNED */
	int64_t		retry_after;	/* microseconds that the destination asked for, or 0 */
	bool		answered;		/* TROUBLE: it came to this message, which may be what is wrong */

	/* of the publisher while it has the message, and of the destination */
	struct Message *next;
	struct Message *prev;
	void	   *private;		/* the destination's */
	uint64_t	tag;			/* the destination's */

	/* of the relay */
	void	   *owner;
	int64_t		sent_at;
} Message;

#endif
