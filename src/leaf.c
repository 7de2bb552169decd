/*-------------------------------------------------------------------------
 *
 * leaf.c
 *	  One leaf: look for a digest, insert a claim, delete one.
 *
 * This is what the executor would do for a one-row INSERT or DELETE, minus
 * the executor: no plan, no triggers, no snapshot, no internal subtransaction.
 *
 * Looking uses a dirty snapshot: a key that another transaction has inserted
 * and not yet committed is seen, together with whom to wait for.
 *
 * Locking: the caller holds a lock on the leaf (leaf_open).  Locks of leaves
 * that were only looked into are given up at once, because a backend has few
 * fast-path slots and there may be many leaves, save those of one in which a
 * transaction finds a second duplicate (keep_locks); those on the leaf that was
 * written to and on its indexes stay until the end of the transaction.
 *
 * What is locked so is remembered, and opened without asking the lock manager
 * again (leaf_open_held), as long as it is sure that the locks are still there.
 * They are until the end of the transaction, or until a subtransaction is rolled
 * back.  The subtransaction owns those of the leaf that it has written to, not the
 * cursor through which that was done: a cursor that fails gives up what it owns, though
 * what it has inserted before may live on.  And it is the right ones only while the
 * set of leaves is the same: there may be a new index.
 *
 * Scan and slot of a look are kept for the next one, because to make them anew
 * costs a tenth of it.  Between looks they hold no pin, no lock and no
 * reference, so nobody need be told when a transaction ends.  They name the
 * relations by address, which is good only until the next invalidation that has
 * to do with our leaves: then the set gets another number, and they are made
 * anew.  An error in the middle of a look leaves them naming pins that
 * the server has given up: then their memory is reset as it is.  No function of
 * a user's runs in a look (catalog.c asks no index that would), so there is
 * no look within a look.
 *
 *-------------------------------------------------------------------------
 */
#include "leaf.h"

#include "access/heapam.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "clock.h"
#include "compat.h"
#include "guc.h"
#include "testpoint.h"

/* Rows of more columns and leaves of more indexes are put together in allocated memory. */
#define FEW_COLUMNS		16
#define FEW_INDEXES		4

/* when the memory of a look has grown beyond this it is made anew */
#define LOOK_MEMORY		(256 * 1024)

/* A leaf that this transaction has locked, and what it needs of its indexes. */
typedef struct HeldLeaf
{
	Oid			oid;
	uint64		serial;			/* of the set of leaves; 0: there is none */
} HeldLeaf;

/* The memory of a look. */
typedef struct Look
{
	uint64		serial;			/* of the set of leaves; 0: there is none */
	bool		busy;			/* in use, or left behind by an error */
	Relation	rel;			/* what it was made for */
	Relation	index;
	IdemDigest	digest;			/* what the scan looks for */
	IndexScanDesc scan;
	TupleTableSlot *slot;
	SnapshotData dirty;
} Look;

static HeldLeaf writing;		/* locked for writing */
static HeldLeaf refused;		/* a duplicate was found here, */
static HeldLeaf reading;		/* and then another: locked for reading */
static Look look;
static MemoryContext look_context = NULL;

/* The transaction ends, and its locks with it. */
static void
forget_held(XactEvent event, void *arg)
{
	writing.serial = 0;
	refused.serial = 0;
	reading.serial = 0;
}

/* A subtransaction ends: rolled back, it may take locks with it. */
static void
forget_held_sub(SubXactEvent event, SubTransactionId subid,
				SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB && !TEST_WITHOUT("held_abort"))
		forget_held(XACT_EVENT_ABORT, NULL);
}

/* Is it this leaf, as it is? */
static bool
is_same(const HeldLeaf *held, const Leaf *leaf)
{
	return held->oid == leaf->oid && held->serial != 0 &&
		(held->serial == catalog_leaves_serial() || TEST_WITHOUT("held_serial"));
}

/* Are leaf and indexes locked until the end of the transaction? */
static bool
is_held(const Leaf *leaf, LOCKMODE lockmode)
{
	return is_same(&writing, leaf) ||
		(lockmode == AccessShareLock && is_same(&reading, leaf));
}

/* Remember that they are, or something else, until then. */
static void
remember_held(HeldLeaf *held, const Leaf *leaf)
{
	static bool hooked = false;

	if (!hooked)
	{
		RegisterXactCallback(forget_held, NULL);
		RegisterSubXactCallback(forget_held_sub, NULL);
		hooked = true;
	}
	held->oid = leaf->oid;
	held->serial = catalog_leaves_serial();
}

/*
 * A duplicate was found in a leaf: should its locks be kept?  Those of one leaf,
 * if it is the second time that this transaction finds one there, and not in a
 * leaf that may expire before the transaction ends: it could not be dropped as
 * long as there is always somebody who finds duplicates in it.
 */
static bool
keep_locks(const Leaf *leaf)
{
	if (!is_same(&refused, leaf))
	{
		remember_held(&refused, leaf);
		return false;
	}
	return (reading.serial == 0 || reading.serial != catalog_leaves_serial()) &&
		leaf->upper > clock_wall() - guc_retention() / 2;
}

/* Open a leaf that this transaction has locked; false if it has not. */
bool
leaf_open_held(const Leaf *leaf, LOCKMODE lockmode, Relation *rel)
{
	if (!is_held(leaf, lockmode))
		return false;
	*rel = relation_open(leaf->oid, NoLock);
	return true;
}

/* Lock and open a leaf, and see that it still is one. */
LeafOpen
leaf_open(Leaf *leaf, LOCKMODE lockmode, bool wait, Relation *rel)
{
	Oid			relid = leaf->oid;

	if (!catalog_lock(relid, lockmode, wait))
		return LEAF_BUSY;

	/*
	 * A new lock has made the server accept invalidation messages.  If they
	 * had to do with our leaves, even the memory of this one is stale.
	 */
	if (!catalog_leaves_valid())
	{
		UnlockRelationOid(relid, lockmode);
		return LEAF_CHANGED;
	}
	*rel = relation_open(relid, NoLock);
	if (!catalog_know_leaf(leaf, *rel, wait))
	{
		relation_close(*rel, lockmode);
		return LEAF_BUSY;
	}
	return LEAF_OPENED;
}

/* Close a leaf; NoLock keeps its lock until the end of the transaction. */
void
leaf_close(Relation rel, LOCKMODE lockmode)
{
	relation_close(rel, lockmode);
}

/*
 * The WAL position that must be flushed before a row's inserter is durable.
 *
 * The last answer is kept for as long as the statement lasts, so that no other
 * transaction can have the same number.
 */
static XLogRecPtr
commit_lsn_of(HeapTuple tuple, Buffer buffer)
{
	static TransactionId last_xmin = InvalidTransactionId;
	static XLogRecPtr last_lsn = InvalidXLogRecPtr;
	static TimestampTz last_statement = 0;
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	/*
	 * The commit log no longer knows about a frozen xmin, but freezing was
	 * logged after the commit, and the page has a position at least as new.
	 */
	if (!TransactionIdIsNormal(xmin))
		return BufferGetLSNAtomic(buffer);
	if (xmin != last_xmin || last_statement != GetCurrentStatementStartTimestamp())
	{
		last_lsn = TransactionIdGetCommitLSN(xmin);
		last_xmin = xmin;
		last_statement = GetCurrentStatementStartTimestamp();
	}
	return last_lsn;
}

/*
 * Make scan and slot ready for a look: the kept ones, if they are good for this
 * index.  What the look allocates goes to their memory.
 */
static MemoryContext
begin_look(Relation rel, Relation index, const IdemDigest *digest)
{
	MemoryContext old;

	if (look.serial == 0 || look.serial != catalog_leaves_serial() ||
		look.rel != rel || look.index != index ||
		(look.busy && !TEST_WITHOUT("look_busy")) ||
		MemoryContextMemAllocated(look_context, false) > LOOK_MEMORY)
	{
		ScanKeyData key;

		look.serial = 0;
		if (look_context == NULL)
			look_context = AllocSetContextCreate(CacheMemoryContext, "idemq look",
												 ALLOCSET_SMALL_SIZES);
		MemoryContextReset(look_context);
		old = MemoryContextSwitchTo(look_context);
		InitDirtySnapshot(look.dirty);

		/*
		 * a copy of the descriptor, and an index, that nobody counts as in
		 * use
		 */
		look.slot = MakeSingleTupleTableSlot(CreateTupleDescCopy(RelationGetDescr(rel)),
											 &TTSOpsBufferHeapTuple);
		look.scan = compat_index_beginscan(rel, index, &look.dirty, 1);
		RelationDecrementReferenceCount(index);
		ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ,
					UUIDPGetDatum((pg_uuid_t *) &look.digest));
		index_rescan(look.scan, &key, 1, NULL, 0);
		look.rel = rel;
		look.index = index;
		look.serial = catalog_leaves_serial();
	}
	else
		old = MemoryContextSwitchTo(look_context);
	look.busy = true;
	look.digest = *digest;
	return old;
}

/* Give up all pins, and be ready to look for another digest. */
static void
end_look(MemoryContext old)
{
	ExecClearTuple(look.slot);
	index_rescan(look.scan, NULL, 1, NULL, 0);
	look.busy = false;
	MemoryContextSwitchTo(old);
}

/*
 * Look for a digest in a leaf, and add what is found to *seen; false if
 * somebody holds a lock on the index, and we do not wait.
 *
 * Answers from a dirty snapshot: the first row whose fate is settled ends the
 * search, otherwise the first undecided one is remembered.  With as_committed,
 * what is undecided counts as if it had not been tried, and the newest row is
 * remembered.
 */
bool
leaf_look(Leaf *leaf, Relation rel, const IdemDigest *digest,
		  bool as_committed, bool wait, Sighting *seen)
{
	LOCKMODE	lockmode = is_held(leaf, AccessShareLock) ? NoLock : AccessShareLock;
	Relation	index = catalog_open_index(leaf->probe, lockmode, wait);
	MemoryContext old;

	if (index == NULL)
		return false;
	old = begin_look(rel, index, digest);
	look.scan->xs_snapshot = as_committed ? SnapshotSelf : &look.dirty;

	while (index_getnext_slot(look.scan, ForwardScanDirection, look.slot))
	{
		HeapTuple	tuple = ((HeapTupleTableSlot *) look.slot)->tuple;
		Buffer		buffer = ((BufferHeapTupleTableSlot *) look.slot)->buffer;
		TransactionId decider = InvalidTransactionId;

		TEST_POINT("leaf-found");
		if (!as_committed)
			decider = TransactionIdIsValid(look.dirty.xmin)
				? look.dirty.xmin : look.dirty.xmax;
		if (TransactionIdIsValid(decider))
		{
			if (seen->state == KEY_FREE)
			{
				seen->state = KEY_OPEN;
				seen->decider = decider;
			}
			continue;
		}

		if (as_committed)
		{
			bool		isnull;
			TimestampTz claimed_at = DatumGetTimestampTz(slot_getattr(look.slot,
																	  leaf->att_claimed_at,
																	  &isnull));

			if (seen->state >= KEY_MINE && claimed_at <= seen->claimed_at)
				continue;
			seen->claimed_at = claimed_at;
		}
		seen->tid = tuple->t_self;
		if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
			seen->state = KEY_MINE;
		else
		{
			seen->state = KEY_TAKEN;
			seen->commit_lsn = Max(seen->commit_lsn, commit_lsn_of(tuple, buffer));
		}
		if (!as_committed)
			break;
	}

	end_look(old);
	if (lockmode != NoLock && seen->state == KEY_TAKEN && !as_committed && keep_locks(leaf) &&
		ConditionalLockRelationOid(leaf->oid, RowExclusiveLock))
	{
		/*
		 * A writer's locks, though we only read: whoever wants to have the
		 * leaf for himself then waits for us before he has anything that we
		 * need, and catalog_lock() knows that he does.
		 */
		if (ConditionalLockRelationOid(leaf->probe, RowExclusiveLock))
			remember_held(&reading, leaf);
	}
	index_close(index, lockmode);
	return true;
}

/* Fill an index that is not the one on the digest: somebody else's. */
static void
insert_foreign_entry(Relation rel, Relation index, HeapTuple tuple)
{
	IndexInfo  *info = BuildIndexInfo(index);
	EState	   *estate = CreateExecutorState();
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	ExprContext *econtext = GetPerTupleExprContext(estate);
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	bool		wanted = true;

	ExecStoreHeapTuple(tuple, slot, false);
	econtext->ecxt_scantuple = slot;
	if (info->ii_Predicate != NIL)
		wanted = ExecQual(ExecPrepareQual(info->ii_Predicate, estate), econtext);
	if (wanted && info->ii_ExclusionOps != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("exclusion constraint \"%s\" on a partition of \"%s.%s\" is not supported",
						RelationGetRelationName(index), IDEMQ_SCHEMA, IDEMQ_PROCESSED),
				 errhint("Drop the constraint.")));
	if (wanted)
	{
		FormIndexDatum(info, slot, estate, values, isnull);
		if (!index_insert(index, values, isnull, &tuple->t_self, rel,
						  info->ii_Unique ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_NO,
						  false, info) &&
			info->ii_Unique)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("unique index \"%s\" on a partition of \"%s.%s\" refuses a claim",
							RelationGetRelationName(index), IDEMQ_SCHEMA, IDEMQ_PROCESSED),
					 errhint("Drop the index: idemq needs no other than the one on the digest.")));
		index_insert_cleanup(index, info);
	}
	ExecDropSingleTupleTableSlot(slot);
	FreeExecutorState(estate);
}

/*
 * Let the (sub)transaction own the locks on a leaf and its indexes, which we
 * hold.  A cursor gives up what was locked through it when it fails, though rows
 * that it has inserted before may live on; then the leaf could be dropped.
 */
static void
lock_for_transaction(const Leaf *leaf)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelationOid(leaf->oid, RowExclusiveLock);
	for (int i = 0; i < leaf->nindexes; i++)
		LockRelationOid(leaf->indexes[i].oid, RowExclusiveLock);
	CurrentResourceOwner = owner;
}

/*
 * Open every index of a leaf for insertion, and have them locked until the end of
 * the transaction; false if we would have to wait.
 */
static bool
open_indexes(const Leaf *leaf, Relation *indexes, bool wait)
{
	LOCKMODE	lockmode = is_held(leaf, RowExclusiveLock) ? NoLock : RowExclusiveLock;

	for (int i = 0; i < leaf->nindexes; i++)
	{
		indexes[i] = catalog_open_index(leaf->indexes[i].oid, lockmode, wait);
		if (indexes[i] == NULL)
		{
			while (i-- > 0)
				index_close(indexes[i], lockmode);
			return false;
		}
	}
	if (lockmode != NoLock)
	{
		lock_for_transaction(leaf);
		remember_held(&writing, leaf);
	}
	return true;
}

/* The row of a claim. */
static HeapTuple
form_claim(const Leaf *leaf, TupleDesc desc, Datum scope, Datum key,
		   TimestampTz claimed_at)
{
	Datum		few_values[FEW_COLUMNS];
	bool		few_nulls[FEW_COLUMNS];
	Datum	   *values = few_values;
	bool	   *isnull = few_nulls;

	if (desc->natts > FEW_COLUMNS)
	{
		values = palloc(sizeof(Datum) * desc->natts);
		isnull = palloc(sizeof(bool) * desc->natts);
	}
	memset(values, 0, sizeof(Datum) * desc->natts);
	memset(isnull, true, sizeof(bool) * desc->natts);
	values[leaf->att_scope - 1] = scope;
	values[leaf->att_key - 1] = key;
	values[leaf->att_claimed_at - 1] = TimestampTzGetDatum(claimed_at);
	values[leaf->att_leaf - 1] = TimestampTzGetDatum(leaf->lower);
	isnull[leaf->att_scope - 1] = false;
	isnull[leaf->att_key - 1] = false;
	isnull[leaf->att_claimed_at - 1] = false;
	isnull[leaf->att_leaf - 1] = false;
	return heap_form_tuple(desc, values, isnull);
}

/*
 * Insert a claim.
 *
 * The caller has looked, under the key lock, so only a row that came by SQL
 * can be in the way.  The index is asked not to wait for its fate, for we hold
 * the key lock: our row is taken back and the caller starts over.
 */
LeafInsert
leaf_insert(Leaf *leaf, Relation rel, Datum scope, Datum key,
			const IdemDigest *digest, TimestampTz claimed_at, bool wait)
{
	int			nindexes = leaf->nindexes;
	Relation	few_indexes[FEW_INDEXES];
	bool		few_digests[FEW_INDEXES];
	Relation   *indexes = few_indexes;
	bool	   *is_digest = few_digests;
	Leaf		copy = *leaf;
	HeapTuple	tuple;
	bool		unique = true;

	if (nindexes > FEW_INDEXES)
	{
		indexes = palloc(sizeof(Relation) * nindexes);
		is_digest = palloc(sizeof(bool) * nindexes);
	}

	/* a function in somebody's index may make us read the leaves anew */
	for (int i = 0; i < nindexes; i++)
		is_digest[i] = leaf->indexes[i].digest;

	if (!open_indexes(leaf, indexes, wait))
		return LEAF_INSERT_BUSY;

	tuple = form_claim(leaf, RelationGetDescr(rel), scope, key, claimed_at);
	heap_insert(rel, tuple, GetCurrentCommandId(true), 0, NULL);
	TEST_POINT("claim-inserted");

	for (int i = 0; i < nindexes && unique; i++)
	{
		if (is_digest[i])
		{
			Datum		entry = UUIDPGetDatum((pg_uuid_t *) digest);
			bool		isnull = false;

			unique = index_insert(indexes[i], &entry, &isnull, &tuple->t_self,
								  rel, UNIQUE_CHECK_PARTIAL, false, NULL);
		}
		else
			insert_foreign_entry(rel, indexes[i], tuple);
	}
	for (int i = 0; i < nindexes; i++)
		index_close(indexes[i], NoLock);

	if (!unique && leaf_delete(&copy, rel, digest, &tuple->t_self, false) != LEAF_DELETED)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not take back a claim in \"%s\"", RelationGetRelationName(rel)),
				 errhint("Retry the transaction.")));

	heap_freetuple(tuple);
	return unique ? LEAF_INSERTED : LEAF_CONFLICT;
}

/* Is this a row of that digest? */
static bool
row_has_digest(const Leaf *leaf, Relation rel, HeapTuple tuple, const IdemDigest *digest)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		isnull;
	text	   *scope = DatumGetTextPP(heap_getattr(tuple, leaf->att_scope, desc, &isnull));
	text	   *key = DatumGetTextPP(heap_getattr(tuple, leaf->att_key, desc, &isnull));
	IdemDigest	own;

	digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
				   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &own);
	return digest_cmp(&own, digest) == 0;
}

/*
 * Delete a row that leaf_look, under the same lock, has found.
 *
 * locked says that leaf_wait_for_row has got the row's lock: then there is
 * nobody whom heap_delete could have to wait for.  Without waiting it does not
 * tell our own lock from somebody else's.
 */
LeafDelete
leaf_delete(Leaf *leaf, Relation rel, const IdemDigest *digest, ItemPointer tid,
			bool locked)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData failure;
	TM_Result	result;

	/*
	 * If somebody deletes the row by SQL, commits and vacuums, all since we
	 * looked, another row may be in its place.  From here on the pin keeps
	 * vacuum away.
	 */
	tuple.t_self = *tid;
	if (!heap_fetch(rel, SnapshotSelf, &tuple, &buffer, false))
		return LEAF_GONE;
	if (!row_has_digest(leaf, rel, &tuple, digest))
	{
		ReleaseBuffer(buffer);
		return LEAF_GONE;
	}

	/* a row of this very command must be deleted by a later one */
	CommandCounterIncrement();
	result = heap_delete(rel, tid, GetCurrentCommandId(true), InvalidSnapshot,
						 locked, &failure, false);
	ReleaseBuffer(buffer);

	switch (result)
	{
		case TM_Ok:
			return LEAF_DELETED;
		case TM_BeingModified:
			return LEAF_LOCKED;
		case TM_SelfModified:
		case TM_Updated:
		case TM_Deleted:
			return LEAF_GONE;
		default:
			elog(ERROR, "unexpected result %d of heap_delete", result);
			return LEAF_GONE;	/* keep the compiler quiet */
	}
}

/* Wait until nobody else holds a lock on a row, by locking it; false if it is gone. */
bool
leaf_wait_for_row(Relation rel, const ItemPointerData *tid)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData failure;
	bool		locked = false;

	tuple.t_self = *tid;
	if (heap_fetch(rel, SnapshotSelf, &tuple, &buffer, false))
	{
		CommandCounterIncrement();
		locked = table_tuple_lock(rel, &tuple.t_self, SnapshotAny, slot,
								  GetCurrentCommandId(true), LockTupleExclusive,
								  LockWaitBlock, 0, &failure) == TM_Ok;
		ReleaseBuffer(buffer);
	}
	ExecDropSingleTupleTableSlot(slot);
	return locked;
}

/*
 * Does the leaf hold a claim that is newer than cutoff?
 *
 * Reads from the end, where the newest rows are: a leaf that is still in use
 * answers at once, and one that is not is read once, before it goes.
 */
bool
leaf_claimed_after(Relation rel, TimestampTz cutoff)
{
	AttrNumber	att = get_attnum(RelationGetRelid(rel), "claimed_at");
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL, true, false);
	bool		found = false;

	while (!found && table_scan_getnextslot(scan, BackwardScanDirection, slot))
	{
		bool		isnull;
		Datum		claimed_at = slot_getattr(slot, att, &isnull);

		CHECK_FOR_INTERRUPTS();
		found = DatumGetTimestampTz(claimed_at) > cutoff;
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}
