/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  What the backends, the launcher and the workers share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_SHMEM_H
#define IDEMQ_SHMEM_H

#include "idemq.h"

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#define SHMEM_DATABASES		1024	/* more are counted, but not kept apart */
#define SHMEM_SCOPES		1024	/* in all databases together */
#define SHMEM_TYPES			1024	/* aggregatetypes, likewise */
#define SHMEM_SHARDS		4096	/* shards of consumers, likewise */
#define SHMEM_ERROR_LEN		256
#define SHMEM_DUTIES		16	/* room for what a worker's round consists of */

/* Counters of one scope. */
typedef struct ScopeStats
{
	pg_atomic_uint64 claims;
	pg_atomic_uint64 duplicates;
	pg_atomic_uint64 busy;
	pg_atomic_uint64 waits;
	pg_atomic_uint64 wait_us;
} ScopeStats;

/* Counters of one shard of a consumer. */
typedef struct ShardStats
{
	pg_atomic_uint64 delivered;
	pg_atomic_uint64 acked;
	pg_atomic_uint64 retried;
	pg_atomic_uint64 dead;
} ShardStats;

typedef enum DatabaseState
{
	DATABASE_UNKNOWN,			/* nobody has looked yet */
	DATABASE_WITHOUT,			/* idemq is not installed in it */
	DATABASE_WITH,				/* it is */
} DatabaseState;

/*
 * What is known of one database.  What is not atomic is written by one process
 * at a time, the one that runs the round, and read by others for information.
 */
typedef struct DatabaseEntry
{
	Oid			oid;			/* InvalidOid: free */
	DatabaseState state;

	/* idemq.processed, by oid, once something was claimed in it */
	pg_atomic_uint32 in_use;

	/* since when claims find no leaf of their time (monotonic us, 0: they do) */
	pg_atomic_uint64 homeless_since;
	pg_atomic_uint64 homeless_reported;

	/* the same for idemq.outbox and what is emitted */
	pg_atomic_uint32 log_in_use;
	pg_atomic_uint64 log_homeless_since;

	pg_atomic_uint64 dead_aged_out; /* dead letters past their retention */

	/* the last round, for idem_status (monotonic us, 0: none yet) */
	int64		round_started;
	int64		round_ended;
	char		error[SHMEM_ERROR_LEN]; /* of the last round; empty: none */
	int			failures[SHMEM_DUTIES]; /* in a row */
	int64		retry_at[SHMEM_DUTIES]; /* not before then (monotonic us) */

	/* how often those who wait for events were woken, and where they sleep */
	pg_atomic_uint64 news;
	ConditionVariable sleepers;

	TimestampTz since;			/* when counting began */
	ScopeStats	others;			/* scopes that did not fit */
	pg_atomic_uint64 other_events;	/* of no aggregatetype that is kept apart */
	ShardStats	other_shards;
} DatabaseEntry;

/* Everything. */
typedef struct SharedState
{
	LWLock	   *lock;			/* for which database and scope is where */
	slock_t		latch_lock;
	Latch	   *launcher;		/* NULL: not running */
	pg_atomic_uint32 wakes;		/* how often somebody wanted it to look */
	int64		launcher_beat;	/* monotonic us */
	int64		starved_since;	/* no slot for a worker since (0: there was) */
	DatabaseEntry databases[SHMEM_DATABASES];
	DatabaseEntry overflow;		/* stands for those beyond */
} SharedState;

extern SharedState *shmem_state;

extern void shmem_init(void);
extern bool shmem_is_attached(void);
extern DatabaseEntry *shmem_database(Oid dboid);
extern void shmem_forget_database(Oid dboid);
extern ScopeStats *shmem_scope(const char *name, int len);
extern void shmem_each_scope(void (*callback) (const char *name, int len,
											   const ScopeStats *stats, TimestampTz since,
											   void *arg), void *arg);
extern pg_atomic_uint64 *shmem_type(const char *name, int len);
extern pg_atomic_uint64 *shmem_other_events(void);
extern void shmem_each_type(void (*callback) (const char *name, int len,
											  uint64 emitted, TimestampTz since,
											  void *arg), void *arg);
extern ShardStats *shmem_shard(int32 consumer, int32 shard);
extern const ShardStats *shmem_find_shard(int32 consumer, int32 shard);
extern void shmem_forget_consumer(int32 consumer);
extern uint64 shmem_wake_counter(void);
extern void shmem_wake_sleepers(Oid dboid);
extern bool shmem_sleep(uint64 seen, long timeout_ms);
extern bool shmem_note_claim(Oid parent, bool homeless);
extern void shmem_note_emit(Oid parent, bool homeless);
extern void shmem_wake_launcher(void);

#endif							/* IDEMQ_SHMEM_H */
