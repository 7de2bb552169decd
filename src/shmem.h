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
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#define SHMEM_DATABASES		1024	/* more are counted, but not kept apart */
#define SHMEM_SCOPES		1024	/* in all databases together */
#define SHMEM_ERROR_LEN		256
#define SHMEM_DUTIES		4	/* room for what a worker's round consists of */

/* Counters of one scope. */
typedef struct ScopeStats
{
	pg_atomic_uint64 claims;
	pg_atomic_uint64 duplicates;
	pg_atomic_uint64 busy;
	pg_atomic_uint64 waits;
	pg_atomic_uint64 wait_us;
} ScopeStats;

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

	/* the last round, for idem_status (monotonic us, 0: none yet) */
	int64		round_started;
	int64		round_ended;
	char		error[SHMEM_ERROR_LEN]; /* of the last round; empty: none */
	int			failures[SHMEM_DUTIES]; /* in a row */
	int64		retry_at[SHMEM_DUTIES]; /* not before then (monotonic us) */

	TimestampTz since;			/* when counting began */
	ScopeStats	others;			/* scopes that did not fit */
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
extern bool shmem_note_claim(Oid parent, bool homeless);
extern void shmem_wake_launcher(void);

#endif							/* IDEMQ_SHMEM_H */
