/*-------------------------------------------------------------------------
 *
 * maintain.c
 *	  Partitions: making them ahead of time, and dropping those that expired.
 *
 * A round is a series of steps, each a transaction of its own: first the
 * clock, then creations, one partition each, then drops, one partition each.
 * A drop that fails never undoes a creation.  The background worker runs
 * rounds, and so does idem_maintain().
 *
 * The promise: maintenance never makes a claim wait for longer than it takes
 * to commit a DROP, and never takes away a key before its retention is over.
 *
 * Locking, making: CREATE TABLE and its index are nobody's business until
 * ATTACH, which takes SHARE UPDATE EXCLUSIVE on the parent.  PARTITION OF would
 * take ACCESS EXCLUSIVE there.
 *
 * Locking, dropping: first a step that only looks.  It takes SHARE on the leaf,
 * if that is to be had at once: then nobody has unfinished writes in it.  It
 * reads the leaf for the newest claim, and lets go.  The next step takes ACCESS
 * EXCLUSIVE on the parent, for which it waits at most idemq.drop_lock_timeout
 * (claims never lock the parent), then on the leaf if that is to be had at
 * once, else it lets go of both until the next round.  No lock on a leaf is
 * ever held while waiting for another lock.
 *
 * Nobody can have claimed in the leaf between the two steps.  A claim checks,
 * when it holds the lock on its leaf, that the leaf is the one for its stamp,
 * which is not below the trusted time; this leaf's time was over, by trusted
 * time, when the first step read it; and the leaf that serves when there is
 * none for the present, the newest, is never dropped.
 *
 * What happens in here happens as the owner of idemq.processed, in a
 * security-restricted context with pinned settings, and runs nobody's code:
 * there are no triggers on CREATE, ATTACH and DROP, and a leaf with a TRUNCATE
 * trigger is not truncated.
 *
 * Rejected: DELETE (bloat, and a scan of live rows); a DEFAULT partition (once
 * it has rows nothing can be attached); creations and drops in one transaction
 * (one busy leaf undoes the creations, every night, until claims have no leaf);
 * trusting upper bounds alone (a leaf may have served longer than its time).
 *
 *-------------------------------------------------------------------------
 */
#include "maintain.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "commands/tablespace.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgtime.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "grants.h"
#include "guc.h"
#include "leaf.h"
#include "lock.h"
#include "partman.h"
#include "shmem.h"
#include "testpoint.h"

PG_FUNCTION_INFO_V1(idem_maintain);
PG_FUNCTION_INFO_V1(idemq_accept_clock);

/* The clock's row is renewed when it is this old. */
#define CLOCK_RENEWAL		USECS_PER_HOUR

/* How many partitions one round drops, beyond those that a naptime brings. */
#define DROPS_PER_ROUND		4

/* What maintain_step does with the settings: those that could change meaning. */
static const struct
{
	const char *name;
	const char *value;
}			pinned_settings[] = {
	{"search_path", "pg_catalog, pg_temp"},
	{"TimeZone", "UTC"},
	{"DateStyle", "ISO, YMD"},
	{"default_tablespace", ""},
	{"default_table_access_method", "heap"},
	{"client_min_messages", "warning"},
	{"statement_timeout", "0"},
};

/* idemq.retention in microseconds. */
int64
maintain_retention(void)
{
	return idemq_retention * USECS_PER_SEC;
}

/* A duty, for the log. */
const char *
maintain_duty_name(MaintainDuty duty)
{
	switch (duty)
	{
		case DUTY_CLOCK:
			return "noting the time";
		case DUTY_MAKE:
			return "making partitions";
		case DUTY_EXPIRE:
			return "dropping expired partitions";
	}
	return "?";
}

/* Run one statement; it must succeed. */
static void
run(const char *sql)
{
	int			result = SPI_execute(sql, false, 0);

	if (result < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(result));
}

/* Who owns a table? */
static Oid
owner_of(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/* A timestamp as a literal, under the pinned settings. */
static char *
timestamp_literal(TimestampTz value)
{
	return quote_literal_cstr(timestamptz_to_str(value));
}

/*
 * Do something in a subtransaction.  Returns what went wrong, or NULL; a cancel
 * is not caught.
 */
static ErrorData *
attempt(void (*action) (Oid relid), Oid relid)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		action(relid);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}

/* Lock the parent, to attach a partition. */
static void
lock_for_attach(Oid parent)
{
	LockRelationOid(parent, ShareUpdateExclusiveLock);
}

/* Lock the parent, to drop a partition. */
static void
lock_for_drop(Oid parent)
{
	LockRelationOid(parent, AccessExclusiveLock);
}

/*
 * Lock the parent, waiting at most idemq.drop_lock_timeout; false if that was
 * too short.
 */
static bool
lock_parent(Oid parent, void (*lock) (Oid parent))
{
	ErrorData  *error = attempt(lock, parent);

	if (error == NULL)
		return true;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/* Write down what time it is believed to be. */
static void
write_clock(Oid clock, TimestampTz now, TimestampTz hold_until)
{
	static const char *const insert =
		"INSERT INTO idemq.clock (high_water, boot_id, monotonic, hold_until) VALUES ($1, $2, $3, $4)";
	Oid			types[] = {TIMESTAMPTZOID, TEXTOID, INT8OID, TIMESTAMPTZOID};
	Datum		values[4];

	values[0] = TimestampTzGetDatum(now);
	values[1] = CStringGetTextDatum(clock_boot_id());
	values[2] = Int64GetDatum(clock_monotonic());
	values[3] = TimestampTzGetDatum(hold_until);
	run("DELETE FROM idemq.clock");
	if (SPI_execute_with_args(insert, 4, types, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not write idemq.clock");
	CacheInvalidateRelcacheByRelid(clock);
}

/* DUTY_CLOCK. */
static void
note_time(void)
{
	LeafSet    *set = catalog_leaves();
	ClockBase	base = set->base;
	TimestampTz trusted = clock_trusted(&base, maintain_retention());

	if (!base.known ||
		(!base.same_boot && clock_boot_id()[0] != '\0') ||
		trusted - base.high_water >= CLOCK_RENEWAL)
		write_clock(set->clock, trusted, base.known ? base.hold_until : DT_NOBEGIN);
}

/* The multiple of interval at or before a time. */
static TimestampTz
floor_time(TimestampTz time, int64 interval)
{
	int64		rest = time % interval;

	return time - (rest < 0 ? rest + interval : rest);
}

/*
 * The bounds of the partition that is to be made next; false if there are
 * enough of them.
 */
static bool
next_bounds(const LeafSet *set, TimestampTz trusted, TimestampTz *lower,
			TimestampTz *upper)
{
	int64		interval = idemq_partition_interval * USECS_PER_SEC;
	int64		runway = Max(idemq_premake * interval,
							 3 * idemq_naptime * USECS_PER_SEC);
	TimestampTz at = trusted;
	bool		moved;

	/* where does what there is end? */
	do
	{
		moved = false;
		for (int i = 0; i < set->nleaves; i++)
		{
			const Leaf *leaf = &set->leaves[i];

			if (leaf->upper > at && leaf->lower <= at &&
				!(TIMESTAMP_IS_NOBEGIN(leaf->lower) && TIMESTAMP_IS_NOEND(leaf->upper)))
			{
				at = leaf->upper;
				moved = true;
			}
		}
	} while (moved && !TIMESTAMP_IS_NOEND(at));
	if (TIMESTAMP_IS_NOEND(at) || at >= trusted + runway)
		return false;

	*lower = floor_time(at, interval);
	*upper = *lower + interval;
	for (int i = 0; i < set->nleaves; i++)
	{
		const Leaf *leaf = &set->leaves[i];

		if (TIMESTAMP_IS_NOBEGIN(leaf->lower) && TIMESTAMP_IS_NOEND(leaf->upper))
			continue;			/* a DEFAULT partition */
		if (leaf->upper <= at && leaf->upper > *lower)
			*lower = leaf->upper;
		if (leaf->lower > at && leaf->lower < *upper)
			*upper = leaf->lower;
	}
	return true;
}

/* A name for a partition, like pg_partman's, that is still free. */
static char *
leaf_name(TimestampTz lower, TimestampTz upper, Oid schema)
{
	struct pg_tm tm;
	fsec_t		fsec;
	char	   *stem;
	char	   *name;

	if (timestamp2tm(lower, NULL, &tm, &fsec, NULL, NULL) != 0)
		elog(ERROR, "timestamp out of range");
	stem = psprintf("%s_p%04d%02d%02d", IDEMQ_PROCESSED,
					tm.tm_year, tm.tm_mon, tm.tm_mday);
	if (lower % USECS_PER_DAY != 0 || upper % USECS_PER_DAY != 0)
		stem = psprintf("%s_%02d%02d%02d", stem, tm.tm_hour, tm.tm_min, tm.tm_sec);
	name = stem;
	for (int i = 1;
		 OidIsValid(get_relname_relid(name, schema)) ||
		 OidIsValid(get_relname_relid(psprintf("%s_digest", name), schema)); i++)
		name = psprintf("%s_%d", stem, i);
	return name;
}

/* Take back what default privileges granted on a new table. */
static void
revoke_default_privileges(const char *table, Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Datum		datum;
	bool		isnull;
	Acl		   *acl;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	datum = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relacl, &isnull);
	acl = isnull ? NULL : DatumGetAclPCopy(datum);
	ReleaseSysCache(tuple);
	if (acl == NULL)
		return;

	for (int i = 0; i < ACL_NUM(acl); i++)
	{
		Oid			grantee = ACL_DAT(acl)[i].ai_grantee;

		if (grantee == ACL_ID_PUBLIC)
			run(psprintf("REVOKE ALL ON %s FROM PUBLIC CASCADE", table));
		else if (grantee != GetUserId())
			run(psprintf("REVOKE ALL ON %s FROM %s CASCADE", table,
						 quote_identifier(GetUserNameFromId(grantee, false))));
	}
}

/* Give a new partition what partitions have in common, whoever made it. */
static void
finish_leaf(Oid relid)
{
	char	   *table = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
												   get_rel_name(relid));

	run(psprintf("ALTER TABLE %s REPLICA IDENTITY FULL", table));
	CommandCounterIncrement();
	revoke_default_privileges(table, relid);
	ereport(DEBUG1, (errmsg_internal("made partition %s", table)));
}

/* Make and attach one partition. */
static void
make_leaf(Oid parent, TimestampTz lower, TimestampTz upper)
{
	Oid			schema = get_rel_namespace(parent);
	char	   *name = leaf_name(lower, upper, schema);
	const char *table = quote_qualified_identifier(IDEMQ_SCHEMA, name);
	Oid			tablespace = get_rel_tablespace(parent);
	char	   *where = "";

	if (OidIsValid(tablespace))
		where = psprintf(" TABLESPACE %s", quote_identifier(get_tablespace_name(tablespace)));
	run(psprintf("CREATE TABLE %s (LIKE idemq.processed INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING STORAGE)"
				 " USING heap WITH (vacuum_truncate = off)%s", table, where));
	run(psprintf("CREATE UNIQUE INDEX %s ON %s (idemq.digest(scope, key))%s",
				 quote_identifier(psprintf("%s_digest", name)), table, where));
	CommandCounterIncrement();
	finish_leaf(get_relname_relid(name, schema));
	run(psprintf("ALTER TABLE idemq.processed ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)",
				 table, timestamp_literal(lower), timestamp_literal(upper)));
}

/* DUTY_MAKE: one partition.  True if there may be more to make. */
static bool
make_ahead(MaintainRound *round)
{
	LeafSet    *set = catalog_leaves();
	TimestampTz trusted = clock_trusted(&set->base, maintain_retention());
	Oid			parent = set->parent;
	TimestampTz lower;
	TimestampTz upper;

	if (idemq_partition_manager == MANAGER_PG_PARTMAN)
		partman_register();
	if (!next_bounds(set, trusted, &lower, &upper))
		return false;
	if (!lock_parent(parent, lock_for_attach))
	{
		ereport(DEBUG1, (errmsg_internal("idemq.processed is busy, partitions are made in the next round")));
		return false;
	}
	/* somebody else may have made one while we waited */
	set = catalog_leaves();
	if (!next_bounds(set, trusted, &lower, &upper))
		return false;

	/* what fills a gap that is shorter than the interval is always ours */
	if (idemq_partition_manager == MANAGER_PG_PARTMAN &&
		upper - lower == idemq_partition_interval * USECS_PER_SEC)
		finish_leaf(partman_make(lower, upper));
	else
		make_leaf(parent, lower, upper);
	return true;
}

/*
 * By its bounds, is it time for a leaf to go?  The permanent one is due when
 * there is another.
 */
bool
maintain_leaf_is_due(const LeafSet *set, const Leaf *leaf, TimestampTz trusted)
{
	TimestampTz stamp = Max(clock_wall(), clock_floor(&set->base));

	if (catalog_leaf_for(set, stamp) == leaf ||
		catalog_leaf_for(set, DT_NOEND) == leaf)
		return false;
	if (leaf->permanent)
		return true;
	return !TIMESTAMP_IS_NOEND(leaf->upper) &&
		leaf->upper <= trusted - maintain_retention();
}

/* Leave the leaf that the present step is about to the next round. */
void
maintain_skip(MaintainRound *round)
{
	if (OidIsValid(round->at_hand) && round->nskipped < MAINTAIN_SKIPPED)
		round->skipped[round->nskipped++] = round->at_hand;
	round->condemned = InvalidOid;
	round->at_hand = InvalidOid;
}

/* Was it left to the next round already? */
static bool
is_skipped(const MaintainRound *round, Oid leaf)
{
	for (int i = 0; i < round->nskipped; i++)
	{
		if (round->skipped[i] == leaf)
			return true;
	}
	return false;
}

/* Is the time known well enough to let anything go? */
static bool
may_expire(const LeafSet *set, TimestampTz trusted)
{
	return set->base.known && trusted >= set->base.hold_until;
}

/* The oldest leaf that is due, or NULL. */
static Leaf *
oldest_due(LeafSet *set, const MaintainRound *round, TimestampTz trusted)
{
	for (int i = set->nleaves - 1; i >= 0; i--)
	{
		Leaf	   *leaf = &set->leaves[i];

		if (!is_skipped(round, leaf->oid) && maintain_leaf_is_due(set, leaf, trusted))
			return leaf;
	}
	return NULL;
}

/*
 * See whether nobody has claimed in a leaf within the retention.  Answers only
 * when nobody has unfinished writes in it.
 */
static bool
is_expired(Oid relid, bool permanent, TimestampTz cutoff)
{
	Relation	rel;
	LOCKTAG		tag;
	int			holders;
	bool		expired;

	/*
	 * Before reading it all, see that the drop would get its lock.  To take
	 * it and give it back would be logged for standbys, in every round.
	 */
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	(void) GetLockConflicts(&tag, AccessExclusiveLock, &holders);
	if (holders > 0)
		return false;
	if (!ConditionalLockRelationOid(relid, ShareLock))
		return false;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(relid, ShareLock);
		return false;
	}
	if (permanent && RelationGetNumberOfBlocks(rel) == 0)
		expired = false;		/* nothing to truncate */
	else
		expired = !leaf_claimed_after(rel, cutoff);
	relation_close(rel, ShareLock);
	return expired;
}

/* A relation's name, as one would type it. */
static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/* Empty the permanent leaf, on which we hold the lock. */
static void
truncate_leaf(Oid relid)
{
	Relation	rel = relation_open(relid, NoLock);
	bool		triggers = rel->trigdesc != NULL &&
		(rel->trigdesc->trig_truncate_before_statement ||
		 rel->trigdesc->trig_truncate_after_statement);

	relation_close(rel, NoLock);
	if (triggers)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s has a trigger on TRUNCATE, which would run with the owner's rights",
						qualified_name(relid)),
				 errhint("Drop the trigger.")));
	run(psprintf("TRUNCATE ONLY %s", qualified_name(relid)));
}

/* Drop a leaf, on which we hold the lock. */
static void
drop_leaf(Oid relid)
{
	run(psprintf("DROP TABLE %s", qualified_name(relid)));
}

/*
 * Let a leaf go; false if that did not work.  One that cannot be dropped does
 * not keep the others.
 */
static bool
let_go(MaintainRound *round, Oid relid, bool permanent)
{
	char	   *name = qualified_name(relid);
	ErrorData  *error = attempt(permanent ? truncate_leaf : drop_leaf, relid);

	if (error == NULL)
	{
		ereport(DEBUG1, (errmsg_internal("let go of expired partition %s", name)));
		return true;
	}
	round->nfailed++;
	snprintf(round->error, sizeof(round->error), "%s", error->message);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("could not let go of expired partition %s: %s", name, error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0));
	return false;
}

/* Drop the leaf that the step before has found expired; false if it is busy. */
static bool
drop_condemned(MaintainRound *round)
{
	LeafSet    *set;
	TimestampTz trusted;
	Leaf	   *leaf = NULL;
	Oid			relid = round->condemned;

	set = catalog_leaves();
	for (int i = 0; i < set->nleaves && leaf == NULL; i++)
	{
		if (set->leaves[i].oid == relid)
			leaf = &set->leaves[i];
	}
	if (leaf == NULL)
		return false;
	if (!leaf->permanent && !lock_parent(set->parent, lock_for_drop))
	{
		round->parent_busy = true;
		return false;
	}
	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;
	TEST_POINT("maintain-locked");

	/* see that it still is what it was */
	set = catalog_leaves();
	trusted = clock_trusted(&set->base, maintain_retention());
	for (int i = 0; i < set->nleaves; i++)
	{
		leaf = &set->leaves[i];
		if (leaf->oid != relid || !maintain_leaf_is_due(set, leaf, trusted))
			continue;
		return may_expire(set, trusted) && let_go(round, relid, leaf->permanent);
	}
	return false;
}

/* DUTY_EXPIRE: look at one leaf, or drop it.  True if there may be more to do. */
static bool
expire(MaintainRound *round)
{
	LeafSet    *set;
	TimestampTz trusted;
	Leaf	   *leaf;
	int			limit = DROPS_PER_ROUND +
		2 * (idemq_naptime / idemq_partition_interval + 1);

	if (!idemq_expiry)
		return false;
	if (OidIsValid(round->condemned))
	{
		if (drop_condemned(round))
			round->ndropped++;
		/* dropped or busy: not again in this round */
		maintain_skip(round);
		/* nor any other, if somebody is at the parent: readers had to wait */
		return !round->parent_busy && round->ndropped < limit &&
			round->nskipped < MAINTAIN_SKIPPED;
	}

	set = catalog_leaves();
	trusted = clock_trusted(&set->base, maintain_retention());
	leaf = may_expire(set, trusted) ? oldest_due(set, round, trusted) : NULL;
	if (leaf == NULL)
		return false;
	round->at_hand = leaf->oid;
	if (is_expired(leaf->oid, leaf->permanent, trusted - maintain_retention()))
	{
		round->condemned = round->at_hand;
		TEST_POINT("maintain-scanned");
	}
	else
		maintain_skip(round);
	return round->nskipped < MAINTAIN_SKIPPED;
}

/* Say what was being done when it failed. */
static void
add_context(void *arg)
{
	errcontext("%s", (const char *) arg);
}

/*
 * Do one step of a duty, in the transaction that the caller has started and
 * will commit.  True if the duty wants another step.
 */
bool
maintain_step(MaintainRound *round, MaintainDuty duty)
{
	ErrorContextCallback context;
	Oid			user;
	int			security;
	int			nest_level;
	bool		more = false;

	context.callback = add_context;
	context.arg = psprintf("%s of \"%s.%s\" in database \"%s\"", maintain_duty_name(duty),
						   IDEMQ_SCHEMA, IDEMQ_PROCESSED, get_database_name(MyDatabaseId));
	context.previous = error_context_stack;
	error_context_stack = &context;

	/* an error restores all of this, by ending the transaction */
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(owner_of(catalog_relation(IDEMQ_PROCESSED)),
						   security | SECURITY_RESTRICTED_OPERATION);

	/*
	 * Nobody must wait for a standby while claims wait for our lock on a
	 * leaf. This setting is for the commit, so it outlives the nest level.
	 */
	(void) set_config_option("synchronous_commit", "local", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	nest_level = NewGUCNestLevel();
	for (int i = 0; i < lengthof(pinned_settings); i++)
		(void) set_config_option(pinned_settings[i].name, pinned_settings[i].value,
								 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("lock_timeout", psprintf("%d", idemq_drop_lock_timeout),
							 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();

	CHECK_FOR_INTERRUPTS();
	switch (duty)
	{
		case DUTY_CLOCK:
			note_time();
			break;
		case DUTY_MAKE:
			more = make_ahead(round);
			break;
		case DUTY_EXPIRE:
			more = expire(round);
			break;
	}

	SPI_finish();
	PopActiveSnapshot();
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, security);
	error_context_stack = context.previous;
	return more;
}

/* Begin a round, for which there is a lock; false if another one is running. */
bool
maintain_begin_round(bool wait)
{
	LOCKTAG		tag;

	lock_tag(&tag, IDEMQ_LOCK_ROUND, 0);
	return LockAcquire(&tag, ExclusiveLock, true, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* End it. */
void
maintain_end_round(void)
{
	LOCKTAG		tag;

	lock_tag(&tag, IDEMQ_LOCK_ROUND, 0);
	LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Do one step, and go on if it fails because of one leaf: a leaf that cannot
 * be dropped (there is a view on it, say) does not keep the others.
 */
static bool
try_step(MaintainRound *round, MaintainDuty duty)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool more = false;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		more = maintain_step(round, duty);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (!OidIsValid(round->at_hand) || error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		error->elevel = WARNING;
		ThrowErrorData(error);
		maintain_skip(round);
		more = round->nskipped < MAINTAIN_SKIPPED;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return more;
}

/* CALL idem_maintain(): one round, by hand. */
Datum
idem_maintain(PG_FUNCTION_ARGS)
{
	MaintainRound round = {0};

	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("idem_maintain() cannot run inside a transaction block"),
				 errhint("Each step of a round is a transaction of its own: use autocommit.")));
	grants_require_admin("idem_maintain()", fcinfo->flinfo->fn_oid);
	PreventCommandDuringRecovery("idem_maintain()");
	PreventCommandIfReadOnly("idem_maintain()");

	if (!maintain_begin_round(false))
	{
		ereport(NOTICE, (errmsg("another maintenance round is running in this database")));
		PG_RETURN_VOID();
	}
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	PG_TRY();
	{
		for (MaintainDuty duty = 0; duty < MAINTAIN_DUTIES; duty++)
		{
			bool		more;

			do
			{
				more = try_step(&round, duty);
				SPI_commit();
			} while (more);
		}
	}
	PG_FINALLY();
	{
		maintain_end_round();
	}
	PG_END_TRY();
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * idemq.accept_clock(): the wall clock is right.
 *
 * SECURITY DEFINER in SQL; EXECUTE belongs to administrators.  The install script
 * calls it, too.
 */
Datum
idemq_accept_clock(PG_FUNCTION_ARGS)
{
	LOCKTAG		tag;
	LeafSet    *set;
	TimestampTz now;
	TimestampTz hold_until = DT_NOBEGIN;

	/* not while a round writes the same row */
	lock_tag(&tag, IDEMQ_LOCK_ROUND, 0);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	AcceptInvalidationMessages();
	set = catalog_leaves();
	now = clock_wall();

	/*
	 * If the clock was behind, keys that were claimed meanwhile look older
	 * than they are: let nothing go for as long as they have to stay.
	 */
	if (set->base.known)
	{
		hold_until = set->base.hold_until;
		if (now > clock_trusted(&set->base, maintain_retention()))
			hold_until = Max(hold_until, now + maintain_retention());
	}
	SPI_connect();
	write_clock(set->clock, now, hold_until);
	SPI_finish();
	PG_RETURN_TIMESTAMPTZ(now);
}
