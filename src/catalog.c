/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  Where idemq's tables are: the leaves of idemq.processed, cached.
 *
 * The promise: whoever holds the key lock, has called
 * AcceptInvalidationMessages() since it got it, and then asks for the leaves
 * gets every leaf into which another session can have put that key.
 *
 * A leaf becomes visible when the transaction that attached it commits, and
 * the messages that make other sessions look again are sent a moment later.
 * In between, a session that happens to read the catalogs sees the leaf, and
 * one that relies on messages does not.  That is no hole, because the
 * attaching transaction holds ACCESS EXCLUSIVE on the new leaf until the
 * messages are out: nobody can have put a key into a leaf of which the others
 * have not been told.
 *
 * The parent is never locked and never opened: whoever holds a lock on it
 * (or queues for one) must not stop claims.  pg_inherits is read with a new
 * catalog snapshot, the bounds come from pg_class.
 *
 * The cache is dropped whole when anything in it changes, by a relcache
 * callback, and built anew when somebody asks.
 *
 *-------------------------------------------------------------------------
 */
#include "catalog.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension_d.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type_d.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "testpoint.h"

static LeafSet leaf_set;
static bool leaf_set_valid = false; /* may be used as it is */
static bool leaf_set_stale = false; /* changed while it was being built */
static TimestampTz leaf_set_transaction = 0;	/* which transaction built it */
static MemoryContext leaf_set_context = NULL;

/* the leaf that is being read, and not in the set yet */
static Oid	leaf_being_read = InvalidOid;

/* this database's entry in the cache of pg_database */
static uint32 database_hash = 0;

/* what catalog_lock() could not get */
static Oid	missed_lock = InvalidOid;
static LOCKMODE missed_lock_mode = NoLock;

/* Drop the set if it has to do with this relation. */
static void
forget_leaves(Datum arg, Oid relid)
{
	bool		ours = relid == InvalidOid || relid == leaf_set.parent ||
		relid == leaf_set.clock || relid == leaf_being_read;

	for (int i = 0; i < leaf_set.nleaves && !ours; i++)
	{
		Leaf	   *leaf = &leaf_set.leaves[i];

		ours = leaf->oid == relid;
		for (int j = 0; j < leaf->nindexes && !ours; j++)
			ours = leaf->indexes[j].oid == relid;
	}
	if (ours)
	{
		leaf_set_valid = false;
		leaf_set_stale = true;
	}
}

/* Drop the set if it has to do with this pg_database row: it is in the versions. */
static void
forget_database(Datum arg, int cacheid, uint32 hash)
{
	if (hash == 0 || hash == database_hash)
	{
		leaf_set_valid = false;
		leaf_set_stale = true;
	}
}

/* Which relation has this name? */
Oid
catalog_relation(const char *name)
{
	Oid			schema = get_namespace_oid(IDEMQ_SCHEMA, true);
	Oid			relid = InvalidOid;

	if (OidIsValid(schema))
		relid = get_relname_relid(name, schema);
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist", IDEMQ_SCHEMA, name),
				 errhint("Run CREATE EXTENSION idemq.")));
	return relid;
}

/* One end of a range partition. */
static TimestampTz
bound_value(List *datums)
{
	PartitionRangeDatum *datum = linitial_node(PartitionRangeDatum, datums);

	if (datum->kind == PARTITION_RANGE_DATUM_MINVALUE)
		return DT_NOBEGIN;
	if (datum->kind == PARTITION_RANGE_DATUM_MAXVALUE)
		return DT_NOEND;
	return DatumGetTimestampTz(castNode(Const, datum->value)->constvalue);
}

/*
 * This version of the database's pg_database row: a database can be made anew
 * under the oid of one that was dropped, with the same leaves in it.
 */
static TransactionId
database_version(void)
{
	HeapTuple	tuple;
	TransactionId xmin;

	database_hash = GetSysCacheHashValue1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
	xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	ReleaseSysCache(tuple);
	return xmin;
}

/*
 * What the filter of a leaf is good for: this file, and this version of the
 * trigger that tells the filter of rows that come by SQL.  0: there is no such
 * trigger, or it does not always fire.
 */
static uint64
read_version(Oid relid, Form_pg_class class)
{
	struct
	{
		TransactionId database;
		Oid			tablespace;
		Oid			filenode;
		Oid			trigger;
		TransactionId xmin;
		ItemPointerData tid;
	}			version;
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		found = false;

	memset(&version, 0, sizeof(version));
	version.database = database_version();
	version.tablespace = class->reltablespace;
	version.filenode = class->relfilenode;
	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL, 1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger row = (Form_pg_trigger) GETSTRUCT(tuple);

		if (row->tgfoid != leaf_set.filter_function ||
			!OidIsValid(row->tgparentid) ||
			row->tgenabled != TRIGGER_FIRES_ALWAYS ||
			row->tgtype != (TRIGGER_TYPE_ROW | TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE) ||
			row->tgattr.dim1 != 0 || row->tgdeferrable ||
			!heap_attisnull(tuple, Anum_pg_trigger_tgqual, NULL))
			continue;
		version.trigger = row->oid;
		version.xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
		version.tid = tuple->t_self;
		found = true;
	}
	systable_endscan(scan);
	table_close(triggers, AccessShareLock);
	return found
		? hash_bytes_extended((unsigned char *) &version, sizeof(version), 0) | 1 : 0;
}

/* Fill in a leaf from its pg_class row; false if it is not attached yet. */
static bool
read_leaf(Leaf *leaf, Oid relid, bool detaching)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class class;
	PartitionBoundSpec *bound;
	Datum		datum;
	bool		isnull = true;

	memset(leaf, 0, sizeof(Leaf));
	leaf->oid = relid;
	if (!HeapTupleIsValid(tuple))
		return false;			/* dropped: messages are on their way */
	class = (Form_pg_class) GETSTRUCT(tuple);
	datum = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relpartbound, &isnull);
	if (isnull)
	{
		ReleaseSysCache(tuple);
		return false;
	}
	if (class->relkind != RELKIND_RELATION || class->relam != HEAP_TABLE_AM_OID)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" of \"%s.%s\" is not an ordinary heap table",
						NameStr(class->relname), IDEMQ_SCHEMA, IDEMQ_PROCESSED),
				 errhint("Detach it with ALTER TABLE %s.%s DETACH PARTITION.",
						 IDEMQ_SCHEMA, IDEMQ_PROCESSED)));

	leaf->version = read_version(relid, class);
	bound = castNode(PartitionBoundSpec, stringToNode(TextDatumGetCString(datum)));
	if (bound->is_default)
	{
		leaf->lower = DT_NOBEGIN;
		leaf->upper = DT_NOEND;
	}
	else
	{
		leaf->lower = bound_value(bound->lowerdatums);
		leaf->upper = bound_value(bound->upperdatums);
		leaf->writable = !detaching &&
			class->relpersistence == RELPERSISTENCE_PERMANENT;
		leaf->permanent = TIMESTAMP_IS_NOBEGIN(leaf->lower) &&
			OidIsValid(getExtensionOfObject(RelationRelationId, relid));
	}
	ReleaseSysCache(tuple);
	return true;
}

/* Newest first. */
static int
compare_leaves(const void *a, const void *b)
{
	TimestampTz x = ((const Leaf *) a)->lower;
	TimestampTz y = ((const Leaf *) b)->lower;

	return (x < y) - (x > y);
}

/* Does this transaction hold a writer's lock on a relation? */
static bool
is_writer(Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return compat_lock_held(&tag, RowExclusiveLock);
}

/*
 * Lock a relation; false if somebody else holds a lock, and we do not wait.
 *
 * Before 17 a lock is not available at once if it conflicts with what somebody
 * is waiting for, even if that one waits for us.  Then who asks without waiting
 * would be told so until the end of its transaction, and who waits is let in at
 * the head of the queue.
 */
bool
catalog_lock(Oid relid, LOCKMODE lockmode, bool wait)
{
	if (wait)
		LockRelationOid(relid, lockmode);
	else if (ConditionalLockRelationOid(relid, lockmode))
		return true;
	else if (lockmode <= RowExclusiveLock && is_writer(relid) &&
			 !TEST_WITHOUT("own_queue"))
		LockRelationOid(relid, lockmode);
	else
	{
		missed_lock = relid;
		missed_lock_mode = lockmode;
		return false;
	}
	return true;
}

/*
 * Wait for the lock that catalog_lock() could not get last, and keep it until the
 * end of the transaction.  Who holds the key lock gives it up before.
 *
 * It is not given back: we may have got it before somebody who queues for the
 * relation, because he waits for us or the deadlock detector has put us before
 * him.  Then it would not be to be had without waiting the next time either.
 */
void
catalog_wait_for_lock(void)
{
	LockRelationOid(missed_lock, missed_lock_mode);
}

/*
 * Read what the last maintenance round believed about the time; false if
 * somebody holds a lock on the table, and we do not wait.
 *
 * An older belief does no harm: stamps made with it are not lower.  So a lock is
 * waited for only by who has none.
 */
static bool
read_clock(LeafSet *set, bool wait)
{
	Relation	rel;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!catalog_lock(set->clock, AccessShareLock, wait && set->base_of != set->clock))
		return set->base_of == set->clock;
	rel = table_open(set->clock, NoLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	memset(&set->base, 0, sizeof(ClockBase));
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull[4];
		Datum		values[4];
		bool		same_boot;

		for (int i = 0; i < 4; i++)
		{
			values[i] = heap_getattr(tuple, i + 1, RelationGetDescr(rel), &isnull[i]);
			if (isnull[i])
				elog(ERROR, "null value in %s.%s", IDEMQ_SCHEMA, IDEMQ_CLOCK);
		}
		set->base.hold_until = Max(set->base.hold_until, DatumGetTimestampTz(values[3]));
		same_boot = clock_boot_id()[0] != '\0' &&
			strcmp(TextDatumGetCString(values[1]), clock_boot_id()) == 0 &&
			DatumGetInt64(values[2]) <= clock_monotonic();

		/* a row of another machine may have come by logical replication */
		if (set->base.known &&
			(set->base.same_boot > same_boot ||
			 (set->base.same_boot == same_boot &&
			  DatumGetTimestampTz(values[0]) <= set->base.high_water)))
			continue;
		set->base.known = true;
		set->base.same_boot = same_boot;
		set->base.high_water = DatumGetTimestampTz(values[0]);
		set->base.monotonic = DatumGetInt64(values[2]);
	}
	set->base_of = set->clock;
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return true;
}

/* idemq._filter_row(), InvalidOid if there is none. */
static Oid
filter_function(void)
{
	oidvector  *no_arguments = buildoidvector(NULL, 0);

	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
						   CStringGetDatum(IDEMQ_FILTER_ROW),
						   PointerGetDatum(no_arguments),
						   ObjectIdGetDatum(get_namespace_oid(IDEMQ_SCHEMA, false)));
}

/*
 * Has this transaction made what a catalog row describes?  Then nobody else
 * sees it yet.
 */
static bool
made_by_us(HeapTuple row)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(row->t_data));
}

/* Has this transaction made the parent, by CREATE EXTENSION? */
static bool
parent_made_by_us(Oid parent)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(parent));
	bool		ours;

	if (!HeapTupleIsValid(tuple))
		return false;
	ours = made_by_us(tuple);
	ReleaseSysCache(tuple);
	return ours;
}

/*
 * Read all leaves from the catalogs into leaf_set; false if we would have to
 * wait.
 *
 * Nobody else looks into a leaf that this transaction has attached, so it is
 * not written until that has committed.  Where the whole table is ours,
 * nobody else can claim.
 */
static bool
build_leaves(bool wait)
{
	Relation	inherits;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	int			room = 16;

	leaf_set.nleaves = 0;
	MemoryContextReset(leaf_set_context);
	leaf_set.parent = catalog_relation(IDEMQ_PROCESSED);
	leaf_set.clock = catalog_relation(IDEMQ_CLOCK);
	leaf_set.filter_function = filter_function();
	leaf_set.serial++;
	leaf_set.leaves = MemoryContextAlloc(leaf_set_context, room * sizeof(Leaf));

	ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(leaf_set.parent));
	inherits = table_open(InheritsRelationId, AccessShareLock);
	scan = systable_beginscan(inherits, InheritsParentIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits row = (Form_pg_inherits) GETSTRUCT(tuple);

		if (leaf_set.nleaves == room)
		{
			room *= 2;
			leaf_set.leaves = repalloc(leaf_set.leaves, room * sizeof(Leaf));
		}
		leaf_being_read = row->inhrelid;
		if (!read_leaf(&leaf_set.leaves[leaf_set.nleaves],
					   row->inhrelid, row->inhdetachpending))
			continue;
		if (made_by_us(tuple) && !parent_made_by_us(leaf_set.parent))
			leaf_set.leaves[leaf_set.nleaves].writable = false;
		leaf_set.nleaves++;
	}
	leaf_being_read = InvalidOid;
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);

	return read_clock(&leaf_set, wait);
}

/* Every leaf; NULL if we would have to wait, and do not. */
static LeafSet *
get_leaves(bool wait)
{
	if (catalog_leaves_valid())
		return &leaf_set;

	if (leaf_set_context == NULL)
		leaf_set_context = AllocSetContextCreate(CacheMemoryContext,
												 "idemq leaves",
												 ALLOCSET_SMALL_SIZES);
	do
	{
		CHECK_FOR_INTERRUPTS();
		leaf_set_stale = false;
		if (!build_leaves(wait))
			return NULL;
	} while (leaf_set_stale);

	qsort(leaf_set.leaves, leaf_set.nleaves, sizeof(Leaf), compare_leaves);
	leaf_set_valid = true;
	leaf_set_transaction = GetCurrentTransactionStartTimestamp();
	return &leaf_set;
}

/* Every leaf, as of the last invalidation message that was accepted. */
LeafSet *
catalog_leaves(void)
{
	return get_leaves(true);
}

/* The same; NULL if somebody holds a lock on idemq.clock for which one would have to wait. */
LeafSet *
catalog_leaves_nowait(void)
{
	return get_leaves(false);
}

/* Is what catalog_leaves() answered still so? */
bool
catalog_leaves_valid(void)
{
	/* the test's fault: a transaction looks for changes only once */
	if (TEST_WITHOUT("invalidations") &&
		leaf_set_transaction == GetCurrentTransactionStartTimestamp())
		return true;
	return leaf_set_valid;
}

/* The set that catalog_leaves() has answered, if that is still so; else 0. */
uint64
catalog_leaves_serial(void)
{
	return leaf_set_valid ? leaf_set.serial : 0;
}

/* Is this idemq.digest()? */
static bool
function_is_digest(Oid funcid)
{
	char	   *name = get_func_name(funcid);

	return name != NULL && strcmp(name, IDEMQ_DIGEST) == 0 &&
		get_func_namespace(funcid) == get_namespace_oid(IDEMQ_SCHEMA, true);
}

/* Is this index the unique one on the digest, and nothing else? */
static bool
index_is_digest(Relation index, const Leaf *leaf)
{
	Form_pg_index form = index->rd_index;
	List	   *exprs;
	FuncExpr   *call;
	Var		   *scope;
	Var		   *key;

	if (!form->indisunique || !form->indimmediate || form->indnatts != 1 ||
		form->indkey.values[0] != 0 ||
		index->rd_rel->relam != BTREE_AM_OID ||
		index->rd_opcintype[0] != UUIDOID ||
		index_getprocid(index, 1, BTORDER_PROC) != F_UUID_CMP ||
		index->rd_indoption[0] != 0 ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return false;

	exprs = RelationGetIndexExpressions(index);
	if (list_length(exprs) != 1 || !IsA(linitial(exprs), FuncExpr))
		return false;
	call = linitial_node(FuncExpr, exprs);
	if (list_length(call->args) != 2 || !function_is_digest(call->funcid) ||
		!IsA(linitial(call->args), Var) || !IsA(lsecond(call->args), Var))
		return false;
	scope = linitial_node(Var, call->args);
	key = lsecond_node(Var, call->args);
	return scope->varattno == leaf->att_scope && key->varattno == leaf->att_key;
}

/* A relation's name, as one would type it. */
static char *
qualified_name(Relation rel)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
									  RelationGetRelationName(rel));
}

/*
 * Open an index; NULL if somebody holds a lock on it, and we do not wait.
 * NoLock if it is locked already.
 */
Relation
catalog_open_index(Oid relid, LOCKMODE lockmode, bool wait)
{
	if (lockmode != NoLock && !catalog_lock(relid, lockmode, wait))
		return NULL;
	return index_open(relid, NoLock);
}

/* The number of a leaf's column, which must have the type that we write. */
static AttrNumber
column_of(Relation rel, const char *name, Oid type)
{
	AttrNumber	att = get_attnum(RelationGetRelid(rel), name);

	if (att == InvalidAttrNumber ||
		TupleDescAttr(RelationGetDescr(rel), att - 1)->atttypid != type)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition %s has no column \"%s\" of type %s",
						qualified_name(rel), name, format_type_be(type)),
				 errhint("Undo what was done to the columns of %s.%s.",
						 IDEMQ_SCHEMA, IDEMQ_PROCESSED)));
	return att;
}

/* Refuse columns that a claim would have to fill, and cannot. */
static void
check_other_columns(const Leaf *leaf, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (AttrNumber att = 1; att <= desc->natts; att++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, att - 1);

		if (column->attisdropped || !column->attnotnull ||
			att == leaf->att_scope || att == leaf->att_key ||
			att == leaf->att_claimed_at || att == leaf->att_leaf)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of partition %s is NOT NULL, and claims do not fill it",
						NameStr(column->attname), qualified_name(rel)),
				 errhint("Run ALTER TABLE %s.%s ALTER COLUMN %s DROP NOT NULL.",
						 IDEMQ_SCHEMA, IDEMQ_PROCESSED,
						 quote_identifier(NameStr(column->attname)))));
	}
}

/*
 * Find out what a claim must know of a leaf on which it holds a lock; false if
 * somebody holds a lock on an index, and we do not wait.
 *
 * Every index that is ready is filled, valid or not: REINDEX CONCURRENTLY
 * builds its new index while others insert, and relies on them.  Only a valid
 * one may be asked.
 */
bool
catalog_know_leaf(Leaf *leaf, Relation rel, bool wait)
{
	List	   *indexes;
	ListCell   *cell;
	bool		invalid = false;

	if (leaf->known)
		return true;

	leaf->att_scope = column_of(rel, "scope", TEXTOID);
	leaf->att_key = column_of(rel, "key", TEXTOID);
	leaf->att_claimed_at = column_of(rel, "claimed_at", TIMESTAMPTZOID);
	leaf->att_leaf = column_of(rel, "leaf", TIMESTAMPTZOID);
	check_other_columns(leaf, rel);
	leaf->probe = InvalidOid;
	leaf->nindexes = 0;

	indexes = RelationGetIndexList(rel);
	if (leaf->indexes != NULL)
		pfree(leaf->indexes);
	leaf->indexes = MemoryContextAlloc(leaf_set_context,
									   sizeof(LeafIndex) * Max(list_length(indexes), 1));
	foreach(cell, indexes)
	{
		Relation	index = catalog_open_index(lfirst_oid(cell), AccessShareLock, wait);
		LeafIndex  *entry = &leaf->indexes[leaf->nindexes];

		if (index == NULL)
			return false;
		if (index->rd_index->indisready)
		{
			entry->oid = RelationGetRelid(index);
			entry->digest = index_is_digest(index, leaf);
			leaf->nindexes++;
			if (entry->digest && index->rd_index->indisvalid)
				leaf->probe = entry->oid;
			else if (entry->digest)
				invalid = true;
		}
		index_close(index, AccessShareLock);
	}
	list_free(indexes);

	if (!OidIsValid(leaf->probe))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" of \"%s.%s\" has no valid unique index on its digest",
						RelationGetRelationName(rel), IDEMQ_SCHEMA, IDEMQ_PROCESSED),
				 invalid
				 ? errhint("Run REINDEX TABLE %s.", qualified_name(rel))
				 : errhint("Run CREATE UNIQUE INDEX ON %s (%s.%s(scope, key)).",
						   qualified_name(rel), IDEMQ_SCHEMA, IDEMQ_DIGEST)));
	leaf->known = true;
	return true;
}

/*
 * The leaf for a claim with this stamp: the one whose time it is, else the
 * newest, else the permanent one.  NULL if there is none to write to.
 */
Leaf *
catalog_leaf_for(const LeafSet *set, TimestampTz stamp)
{
	Leaf	   *newest = NULL;
	Leaf	   *permanent = NULL;

	for (int i = 0; i < set->nleaves; i++)
	{
		Leaf	   *leaf = &set->leaves[i];

		if (!leaf->writable)
			continue;
		if (leaf->permanent)
			permanent = leaf;
		else if (leaf->lower <= stamp && stamp < leaf->upper)
			return leaf;
		else if (newest == NULL)
			newest = leaf;
	}
	return newest ? newest : permanent;
}

/* Hear of changes. */
void
catalog_init(void)
{
	CacheRegisterRelcacheCallback(forget_leaves, (Datum) 0);
	CacheRegisterSyscacheCallback(DATABASEOID, forget_database, (Datum) 0);
}
