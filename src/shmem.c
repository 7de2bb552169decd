/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  What the backends, the launcher and the workers share.
 *
 * There is shared memory only where idemq is in shared_preload_libraries.
 * Elsewhere shmem_state stays NULL, and claims are as exact as everywhere: no
 * answer ever depends on what is in here.
 *
 * Locking: state->lock for the structure (which database or scope is in which
 * entry), taken last, for microseconds.  Counters are atomic.  An entry never
 * moves, and is freed only when its database is gone, so a backend may keep a
 * pointer to one of its own database.
 *
 *-------------------------------------------------------------------------
 */
#include "shmem.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"
#include "utils/wait_event.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "guc.h"

/* Which scope an entry counts. */
typedef struct ScopeName
{
	Oid			dboid;
	uint32		len;
	char		name[IDEMQ_MAX_SCOPE + 1];
} ScopeName;

typedef struct ScopeEntry
{
	ScopeName	name;
	TimestampTz since;
	ScopeStats	stats;
} ScopeEntry;

/* Which aggregatetype an entry counts. */
typedef ScopeName TypeName;

typedef struct TypeEntry
{
	TypeName	name;
	TimestampTz since;
	pg_atomic_uint64 emitted;
} TypeEntry;

/* Which shard an entry counts. */
typedef struct ShardName
{
	Oid			dboid;
	int32		consumer;
	int32		shard;
} ShardName;

typedef struct ShardEntry
{
	ShardName	name;
	ShardStats	stats;
} ShardEntry;

SharedState *shmem_state = NULL;
static HTAB *scopes = NULL;
static HTAB *types = NULL;
static HTAB *shards = NULL;
static DatabaseEntry *my_database = NULL;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

/* Ask for the memory. */
static void
request_memory(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(MAXALIGN(sizeof(SharedState)));
	RequestAddinShmemSpace(hash_estimate_size(SHMEM_SCOPES, sizeof(ScopeEntry)));
	RequestAddinShmemSpace(hash_estimate_size(SHMEM_TYPES, sizeof(TypeEntry)));
	RequestAddinShmemSpace(hash_estimate_size(SHMEM_SHARDS, sizeof(ShardEntry)));
	RequestNamedLWLockTranche("idemq", 1);
}

/* Start counting at zero. */
static void
init_stats(ScopeStats *stats)
{
	pg_atomic_init_u64(&stats->claims, 0);
	pg_atomic_init_u64(&stats->duplicates, 0);
	pg_atomic_init_u64(&stats->busy, 0);
	pg_atomic_init_u64(&stats->waits, 0);
	pg_atomic_init_u64(&stats->wait_us, 0);
}

/* Start counting at zero. */
static void
init_shard_stats(ShardStats *stats)
{
	pg_atomic_init_u64(&stats->delivered, 0);
	pg_atomic_init_u64(&stats->acked, 0);
	pg_atomic_init_u64(&stats->retried, 0);
	pg_atomic_init_u64(&stats->dead, 0);
}

/* Make an entry stand for a database. */
static void
init_database(DatabaseEntry *entry, Oid dboid)
{
	entry->oid = dboid;
	entry->state = DATABASE_UNKNOWN;
	pg_atomic_init_u32(&entry->in_use, InvalidOid);
	pg_atomic_init_u64(&entry->homeless_since, 0);
	pg_atomic_init_u64(&entry->homeless_reported, 0);
	pg_atomic_init_u32(&entry->log_in_use, InvalidOid);
	pg_atomic_init_u64(&entry->log_homeless_since, 0);
	pg_atomic_init_u64(&entry->dead_aged_out, 0);
	entry->round_started = 0;
	entry->round_ended = 0;
	entry->error[0] = '\0';
	memset(entry->failures, 0, sizeof(entry->failures));
	memset(entry->retry_at, 0, sizeof(entry->retry_at));
	entry->since = GetCurrentTimestamp();
	init_stats(&entry->others);
	pg_atomic_init_u64(&entry->other_events, 0);
	init_shard_stats(&entry->other_shards);
}

/* Set an entry up.  Who sleeps on it stays in its list when it is given away. */
static void
startup_database(DatabaseEntry *entry)
{
	pg_atomic_init_u64(&entry->news, 0);
	ConditionVariableInit(&entry->sleepers);
	init_database(entry, InvalidOid);
}

/* Have a hash table in shared memory. */
static HTAB *
startup_hash(const char *name, long size, Size keysize, Size entrysize)
{
	HASHCTL		info;

	info.keysize = keysize;
	info.entrysize = entrysize;
	return ShmemInitHash(name, size, size, &info, HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE);
}

/* Set the memory up, or find it. */
static void
startup_memory(void)
{
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shmem_state = ShmemInitStruct("idemq", sizeof(SharedState), &found);
	if (!found)
	{
		memset(shmem_state, 0, sizeof(SharedState));
		shmem_state->lock = &(GetNamedLWLockTranche("idemq"))->lock;
		SpinLockInit(&shmem_state->latch_lock);
		pg_atomic_init_u32(&shmem_state->wakes, 0);
		for (int i = 0; i < SHMEM_DATABASES; i++)
			startup_database(&shmem_state->databases[i]);
		startup_database(&shmem_state->overflow);
	}
	scopes = startup_hash("idemq scopes", SHMEM_SCOPES, sizeof(ScopeName), sizeof(ScopeEntry));
	types = startup_hash("idemq aggregatetypes", SHMEM_TYPES, sizeof(TypeName), sizeof(TypeEntry));
	shards = startup_hash("idemq shards", SHMEM_SHARDS, sizeof(ShardName), sizeof(ShardEntry));
	LWLockRelease(AddinShmemInitLock);
}

/* Hook in, when the postmaster loads us. */
void
shmem_init(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_memory;
}

/* Is idemq in shared_preload_libraries? */
bool
shmem_is_attached(void)
{
	return shmem_state != NULL;
}

/* Find a database's entry, or the first free one. */
static DatabaseEntry *
find_database(Oid dboid)
{
	DatabaseEntry *vacant = NULL;

	for (int i = 0; i < SHMEM_DATABASES; i++)
	{
		DatabaseEntry *entry = &shmem_state->databases[i];

		if (entry->oid == dboid)
			return entry;
		if (!OidIsValid(entry->oid) && vacant == NULL)
			vacant = entry;
	}
	return vacant;
}

/* What is known of a database; NULL only without preload. */
DatabaseEntry *
shmem_database(Oid dboid)
{
	DatabaseEntry *entry;

	if (shmem_state == NULL)
		return NULL;
	if (my_database != NULL && dboid == MyDatabaseId)
		return my_database;

	LWLockAcquire(shmem_state->lock, LW_EXCLUSIVE);
	entry = find_database(dboid);
	if (entry == NULL)
		entry = &shmem_state->overflow;
	else if (entry->oid != dboid)
		init_database(entry, dboid);
	LWLockRelease(shmem_state->lock);

	if (dboid == MyDatabaseId)
		my_database = entry;
	return entry;
}

/* A database is gone: make room. */
void
shmem_forget_database(Oid dboid)
{
	HASH_SEQ_STATUS seq;
	ScopeEntry *scope;
	TypeEntry  *type;
	ShardEntry *shard;
	DatabaseEntry *entry;

	LWLockAcquire(shmem_state->lock, LW_EXCLUSIVE);
	entry = find_database(dboid);
	if (entry != NULL && entry->oid == dboid)
		init_database(entry, InvalidOid);
	hash_seq_init(&seq, scopes);
	while ((scope = hash_seq_search(&seq)) != NULL)
	{
		if (scope->name.dboid == dboid)
			hash_search(scopes, &scope->name, HASH_REMOVE, NULL);
	}
	hash_seq_init(&seq, types);
	while ((type = hash_seq_search(&seq)) != NULL)
	{
		if (type->name.dboid == dboid)
			hash_search(types, &type->name, HASH_REMOVE, NULL);
	}
	hash_seq_init(&seq, shards);
	while ((shard = hash_seq_search(&seq)) != NULL)
	{
		if (shard->name.dboid == dboid)
			hash_search(shards, &shard->name, HASH_REMOVE, NULL);
	}
	LWLockRelease(shmem_state->lock);
}

/* The counters of a scope of this database; NULL without preload. */
ScopeStats *
shmem_scope(const char *name, int len)
{
	static ScopeName last_name;
	static ScopeStats *last_stats = NULL;
	DatabaseEntry *database;
	ScopeEntry *entry;
	bool		found;

	if (shmem_state == NULL)
		return NULL;
	if (last_stats != NULL && last_name.len == len &&
		memcmp(last_name.name, name, len) == 0)
		return last_stats;

	database = shmem_database(MyDatabaseId);
	memset(&last_name, 0, sizeof(ScopeName));
	last_stats = NULL;
	last_name.dboid = MyDatabaseId;
	last_name.len = len;
	memcpy(last_name.name, name, len);

	LWLockAcquire(shmem_state->lock, LW_SHARED);
	entry = hash_search(scopes, &last_name, HASH_FIND, NULL);
	LWLockRelease(shmem_state->lock);
	if (entry == NULL)
	{
		LWLockAcquire(shmem_state->lock, LW_EXCLUSIVE);
		entry = hash_search(scopes, &last_name, HASH_ENTER_NULL, &found);
		if (entry != NULL && !found)
		{
			entry->since = GetCurrentTimestamp();
			init_stats(&entry->stats);
		}
		LWLockRelease(shmem_state->lock);
	}
	last_stats = entry ? &entry->stats : &database->others;
	return last_stats;
}

/* Show all counters of this database. */
void
shmem_each_scope(void (*callback) (const char *name, int len,
								   const ScopeStats *stats, TimestampTz since,
								   void *arg), void *arg)
{
	DatabaseEntry *database = shmem_database(MyDatabaseId);
	HASH_SEQ_STATUS seq;
	ScopeEntry *copies;
	ScopeEntry *entry;
	int			ncopies = 0;

	if (database == NULL)
		return;
	copies = palloc(sizeof(ScopeEntry) * SHMEM_SCOPES);
	LWLockAcquire(shmem_state->lock, LW_SHARED);
	hash_seq_init(&seq, scopes);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (entry->name.dboid == MyDatabaseId)
			copies[ncopies++] = *entry;
	}
	LWLockRelease(shmem_state->lock);

	for (int i = 0; i < ncopies; i++)
		callback(copies[i].name.name, copies[i].name.len, &copies[i].stats,
				 copies[i].since, arg);
	callback(NULL, 0, &database->others, database->since, arg);
	pfree(copies);
}

/* Where events that are counted under no aggregatetype are; NULL without preload. */
pg_atomic_uint64 *
shmem_other_events(void)
{
	DatabaseEntry *database = shmem_database(MyDatabaseId);

	return database ? &database->other_events : NULL;
}

/* The counter of an aggregatetype of this database; NULL without preload. */
pg_atomic_uint64 *
shmem_type(const char *name, int len)
{
	static TypeName last_name;
	static pg_atomic_uint64 *last_counter = NULL;
	TypeEntry  *entry;
	bool		found;

	if (shmem_state == NULL)
		return NULL;
	if (last_counter != NULL && last_name.len == len &&
		memcmp(last_name.name, name, len) == 0)
		return last_counter;
	if (len >= sizeof(last_name.name))
		return shmem_other_events();

	last_counter = NULL;
	memset(&last_name, 0, sizeof(TypeName));
	last_name.dboid = MyDatabaseId;
	last_name.len = len;
	memcpy(last_name.name, name, len);

	LWLockAcquire(shmem_state->lock, LW_SHARED);
	entry = hash_search(types, &last_name, HASH_FIND, NULL);
	LWLockRelease(shmem_state->lock);
	if (entry == NULL)
	{
		LWLockAcquire(shmem_state->lock, LW_EXCLUSIVE);
		entry = hash_search(types, &last_name, HASH_ENTER_NULL, &found);
		if (entry != NULL && !found)
		{
			entry->since = GetCurrentTimestamp();
			pg_atomic_init_u64(&entry->emitted, 0);
		}
		LWLockRelease(shmem_state->lock);
	}
	last_counter = entry ? &entry->emitted : shmem_other_events();
	return last_counter;
}

/* Show how many events of each aggregatetype of this database were emitted. */
void
shmem_each_type(void (*callback) (const char *name, int len, uint64 emitted,
								  TimestampTz since, void *arg), void *arg)
{
	DatabaseEntry *database = shmem_database(MyDatabaseId);
	HASH_SEQ_STATUS seq;
	TypeEntry  *copies;
	TypeEntry  *entry;
	int			ncopies = 0;

	if (database == NULL)
		return;
	copies = palloc(sizeof(TypeEntry) * SHMEM_TYPES);
	LWLockAcquire(shmem_state->lock, LW_SHARED);
	hash_seq_init(&seq, types);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (entry->name.dboid == MyDatabaseId)
			copies[ncopies++] = *entry;
	}
	LWLockRelease(shmem_state->lock);

	for (int i = 0; i < ncopies; i++)
		callback(copies[i].name.name, copies[i].name.len,
				 pg_atomic_read_u64(&copies[i].emitted), copies[i].since, arg);
	callback(NULL, 0, pg_atomic_read_u64(&database->other_events), database->since, arg);
	pfree(copies);
}

/* The counters of a shard; NULL where it has none. */
static ShardStats *
find_shard(int32 consumer, int32 shard, HASHACTION action)
{
	ShardName	name = {MyDatabaseId, consumer, shard};
	ShardEntry *entry;
	bool		found;

	LWLockAcquire(shmem_state->lock, action == HASH_FIND ? LW_SHARED : LW_EXCLUSIVE);
	entry = hash_search(shards, &name, action, &found);
	if (entry != NULL && !found)
		init_shard_stats(&entry->stats);
	LWLockRelease(shmem_state->lock);
	return entry ? &entry->stats : NULL;
}

/*
 * The counters of a shard of a consumer of this database, to be added to; NULL
 * without preload.
 */
ShardStats *
shmem_shard(int32 consumer, int32 shard)
{
	ShardStats *stats;

	if (shmem_state == NULL)
		return NULL;
	stats = find_shard(consumer, shard, HASH_FIND);
	if (stats == NULL)
		stats = find_shard(consumer, shard, HASH_ENTER_NULL);
	return stats ? stats : &shmem_database(MyDatabaseId)->other_shards;
}

/* The same, to be read; NULL if nothing is known of it. */
const ShardStats *
shmem_find_shard(int32 consumer, int32 shard)
{
	return shmem_state == NULL ? NULL : find_shard(consumer, shard, HASH_FIND);
}

/* A consumer of this database is gone: make room. */
void
shmem_forget_consumer(int32 consumer)
{
	HASH_SEQ_STATUS seq;
	ShardEntry *shard;

	if (shmem_state == NULL)
		return;
	LWLockAcquire(shmem_state->lock, LW_EXCLUSIVE);
	hash_seq_init(&seq, shards);
	while ((shard = hash_seq_search(&seq)) != NULL)
	{
		if (shard->name.dboid == MyDatabaseId && shard->name.consumer == consumer)
			hash_search(shards, &shard->name, HASH_REMOVE, NULL);
	}
	LWLockRelease(shmem_state->lock);
}

/* How often the sleepers of this database were woken; does not move without preload. */
uint64
shmem_wake_counter(void)
{
	DatabaseEntry *entry = shmem_database(MyDatabaseId);

	return entry ? pg_atomic_read_u64(&entry->news) : 0;
}

/* There is something new for those who wait for events of a database. */
void
shmem_wake_sleepers(Oid dboid)
{
	DatabaseEntry *entry = shmem_database(dboid);

	if (entry == NULL)
		return;
	pg_atomic_fetch_add_u64(&entry->news, 1);
	ConditionVariableBroadcast(&entry->sleepers);
}

/*
 * Sleep until the wake counter of this database is another than the one seen;
 * false if that took too long.
 *
 * The counter is to be read before one looks whether there is anything to wait
 * for.  Without preload nobody wakes us.  Cancel, and whatever else ends a
 * statement, ends the sleep with its error.
 */
bool
shmem_sleep(uint64 seen, long timeout_ms)
{
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	int64		deadline = clock_monotonic() + Min(timeout_ms, INT_MAX) * INT64CONST(1000);
	int64		left;

	if (entry != NULL)
		ConditionVariablePrepareToSleep(&entry->sleepers);
	while (shmem_wake_counter() == seen && (left = deadline - clock_monotonic()) > 0)
	{
		left = Min((left + 999) / 1000, INT_MAX);
		if (entry != NULL)
			(void) ConditionVariableTimedSleep(&entry->sleepers, left, PG_WAIT_EXTENSION);
		else
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 left, PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
	}
	if (entry != NULL)
		ConditionVariableCancelSleep();
	return shmem_wake_counter() != seen;
}

/* A table is written to: the worker may look after it from now on. */
static void
note_use(DatabaseEntry *entry, pg_atomic_uint32 *in_use, Oid parent)
{
	if (pg_atomic_read_u32(in_use) == parent)
		return;
	pg_atomic_write_u32(in_use, parent);
	if (entry->state == DATABASE_WITHOUT)
		entry->state = DATABASE_UNKNOWN;	/* CREATE EXTENSION was prepared */
	shmem_wake_launcher();
}

/*
 * A claim is being made: the worker may look after this table from now on.
 *
 * homeless says that there was no leaf for its time.  Answers whether the log
 * should hear of it: not for the moment that a worker takes to make one, and
 * then once a minute.
 */
bool
shmem_note_claim(Oid parent, bool homeless)
{
	static bool reported = false;
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	int64		now;
	uint64		none = 0;
	uint64		last;

	if (entry == NULL)
	{
		bool		report = homeless && !reported;

		reported |= homeless;
		return report;
	}

	note_use(entry, &entry->in_use, parent);
	if (!homeless)
		return false;

	now = clock_monotonic();
	if (pg_atomic_compare_exchange_u64(&entry->homeless_since, &none, now))
	{
		shmem_wake_launcher();
		return false;
	}
	if (now - (int64) none < 3 * idemq_naptime * USECS_PER_SEC)
		return false;
	last = pg_atomic_read_u64(&entry->homeless_reported);
	return now - (int64) last > 60 * USECS_PER_SEC &&
		pg_atomic_compare_exchange_u64(&entry->homeless_reported, &last, now);
}

/* Something is being emitted; homeless: there was no leaf for its time. */
void
shmem_note_emit(Oid parent, bool homeless)
{
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	uint64		none = 0;

	if (entry == NULL)
		return;
	note_use(entry, &entry->log_in_use, parent);
	if (homeless && pg_atomic_read_u64(&entry->log_homeless_since) == 0 &&
		pg_atomic_compare_exchange_u64(&entry->log_homeless_since, &none, clock_monotonic()))
		shmem_wake_launcher();
}

/* Make the launcher look now rather than at the end of its nap. */
void
shmem_wake_launcher(void)
{
	Latch	   *latch;

	if (shmem_state == NULL)
		return;
	pg_atomic_fetch_add_u32(&shmem_state->wakes, 1);
	SpinLockAcquire(&shmem_state->latch_lock);
	latch = shmem_state->launcher;
	SpinLockRelease(&shmem_state->latch_lock);
	if (latch != NULL)
		SetLatch(latch);
}
