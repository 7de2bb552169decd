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

SharedState *shmem_state = NULL;
static HTAB *scopes = NULL;
static DatabaseEntry *my_database = NULL;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

/* Ask for the memory. */
static void
request_memory(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(add_size(MAXALIGN(sizeof(SharedState)),
									hash_estimate_size(SHMEM_SCOPES, sizeof(ScopeEntry))));
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

/* Make an entry stand for a database. */
static void
init_database(DatabaseEntry *entry, Oid dboid)
{
	entry->oid = dboid;
	entry->state = DATABASE_UNKNOWN;
	pg_atomic_init_u32(&entry->in_use, InvalidOid);
	pg_atomic_init_u64(&entry->homeless_since, 0);
	pg_atomic_init_u64(&entry->homeless_reported, 0);
	entry->round_started = 0;
	entry->round_ended = 0;
	entry->error[0] = '\0';
	memset(entry->failures, 0, sizeof(entry->failures));
	memset(entry->retry_at, 0, sizeof(entry->retry_at));
	entry->since = GetCurrentTimestamp();
	init_stats(&entry->others);
}

/* Set the memory up, or find it. */
static void
startup_memory(void)
{
	HASHCTL		info;
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
			init_database(&shmem_state->databases[i], InvalidOid);
		init_database(&shmem_state->overflow, InvalidOid);
	}
	info.keysize = sizeof(ScopeName);
	info.entrysize = sizeof(ScopeEntry);
	scopes = ShmemInitHash("idemq scopes", SHMEM_SCOPES, SHMEM_SCOPES,
						   &info, HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE);
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

	if (pg_atomic_read_u32(&entry->in_use) != parent)
	{
		pg_atomic_write_u32(&entry->in_use, parent);
		if (entry->state == DATABASE_WITHOUT)
			entry->state = DATABASE_UNKNOWN;	/* CREATE EXTENSION was
												 * prepared */
		shmem_wake_launcher();
	}
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
