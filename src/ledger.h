/*-------------------------------------------------------------------------
 *
 * ledger.h
 *	  Where each shard of each consumer is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_LEDGER_H
#define IDEMQ_LEDGER_H

#include "idemq.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"

#include "moment.h"

/* Events that are handed out together. */
typedef struct Batch
{
	int64		number;			/* the entry that it began with */
	int			nevents;		/* that are left; 0: done */
	int64	   *events;			/* seqs, ascending; or places, if parked */
	bool		parked;			/* they came from the parked events */
	int64		token;			/* of the lease; 0: given back */
	char	   *role;			/* who has the lease */
	TimestampTz granted_at;
	TimestampTz until;			/* end of the lease, or not before */
	int			deliveries;		/* how often it was handed out */
	int			expiries;		/* leases of it that ran out in a row */
} Batch;

/* Where a shard is: its latest row. */
typedef struct ShardState
{
	int32		consumer;		/* by number */
	int32		shard;
	int64		turn;			/* when the state was read */
	int64		entry;			/* of the latest row */
	TimestampTz written_at;		/* likewise */
	int			norigins;
	int64	   *origins;
	bool		replaying;		/* the origins are older than the present one */
	Moment		start;
	bool		open;			/* there is a window */
	Moment		end;
	int64		last_seq;		/* how far it was read */
	int			open_batches;
	int64		open_from;
	int64		parked_from;
	int64		next_place;
	int64		parked_events;
	TimestampTz next_due;		/* infinity: none */
	Batch		batch;			/* of the latest row; number 0: none */
} ShardState;

extern bool ledger_lock(int32 consumer, int32 shard, bool wait);
extern void ledger_lock_all(int32 consumer, int32 shards);
extern bool ledger_is_locked(int32 consumer, int32 shard);
extern void ledger_unlock(int32 consumer, int32 shard);
extern int64 ledger_turn(void);
extern bool ledger_read(int32 consumer, int32 shard, ShardState *state);
extern void ledger_count_on(ShardState *state);
extern List *ledger_open_batches(const ShardState *state);
extern bool ledger_find_token(int64 token, int32 *consumer, int32 *shard, char **role);
extern bool ledger_is_done(const ShardState *state, int64 token);
extern void ledger_clear(ShardState *state);
extern void ledger_append(ShardState *state, Batch *batch);
extern void ledger_copy(ShardState *state, Batch *batch);
extern void ledger_open_batch(ShardState *state, Batch *batch);
extern void ledger_close_batch(ShardState *state, List *batches, Batch *batch);
extern void ledger_renew(ShardState *state, List *batches, const Batch *next);

#endif							/* IDEMQ_LEDGER_H */
