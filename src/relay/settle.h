/*-------------------------------------------------------------------------
 *
 * settle.h
 *	  What became of the events, and telling the database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SETTLE_H
#define SETTLE_H

#include "batch.h"
#include "db.h"

/* What the relay wants to hear. */
typedef struct SettleWatch
{
	void		(*delivered) (void);
	int64_t		(*trouble) (const char *why, int64_t retry_after);	/* returns how long it
																	 * is left alone */
	void		(*ended) (bool delivered);	/* a batch; whether it had an
											 * event that was */
	void		(*refused) (const DbAnswer *answer);	/* the database will not
														 * have us at all */
} SettleWatch;

extern void settle_start(Db *db, int64_t lease, int64_t backoff_most, bool pipelines,
						 const SettleWatch *watch);

/* How long to wait for a sign of life while a command is under way. */
extern int64_t settle_patience(void);

/* A batch was fetched; the command was sent then. */
extern void settle_begin(Batch *batch, int64_t sent_at);

/* Takes all that have come back from the destination.  Returns whether there were any. */
extern bool settle_take(void);

/* Leases, acks and ends that are due. */
extern void settle_turn(void);

/* When that is to be called at the latest. */
extern int64_t settle_next(void);

/* Nothing more is sent of any batch; what has been sent is waited for. */
extern void settle_give_back_all(void);

/* An interval for a parameter; malloc'd. */
extern char *settle_interval(int64_t time);

#endif
