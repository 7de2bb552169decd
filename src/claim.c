/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  The claim of a message.
 *
 * The promise: of all transactions that commit, at most one was told "true"
 * for a key within the retention, at every isolation level and wherever the
 * partition boundaries fall.
 *
 * A unique index cannot promise that.  A duplicate may be in another partition
 * than the one that is being written, and a check of the others before the
 * insertion races with everybody else who does the same.  So:
 *
 *	1. Look into every leaf that the filter does not rule out (filter.c); without
 *	   a filter, into all.  A committed row is final: duplicate.  A row whose
 *	   inserter or deleter is in progress: wait for that transaction, start over.
 *	2. Take the key lock, a heavyweight lock on (half of) the digest.
 *	3. Accept invalidation messages, so that the list of leaves is new, and look
 *	   into every leaf again.  For a transaction in progress let go of the lock,
 *	   wait, start over.
 *	4. Insert into the leaf of now, and let go of the lock at once.
 *
 * From the insertion on the row itself speaks for the key: whoever gets the
 * lock next sees it, in whichever leaf it is, in progress or decided.  So the
 * lock is needed for microseconds, not until commit, and the number of claims
 * in a transaction is not limited by the size of the lock table.  The clock
 * decides which leaf is written, and nothing else: no argument here depends on
 * what time it is.
 *
 * Locking: the key lock, then locks on leaves.  Nobody waits for anybody while
 * holding the key lock: leaves are locked only if that is possible at once,
 * otherwise the key lock is given up, the leaf waited for, and all starts
 * over.  Two digests may share a key lock: a wait of
 * microseconds, never an answer.  The parent is not locked at all, so whatever
 * is done to it (or queues for it) stops no claim.  Leaves that are looked into
 * are locked one at a time, but for one that many duplicates are found in
 * (leaf.c).  The transaction's own locks on leaves it wrote to,
 * and on their indexes, stay until its end; nothing that maintenance does waits
 * for them while holding something that a claim needs.  The next claim of the
 * transaction finds them and locks nothing but the key (leaf.c).
 *
 * The first look, without the key lock, is there for duplicates: they need no
 * lock, so a flood of redeliveries of one message does not queue up.
 *
 * The answer is about now, not about the snapshot.  At REPEATABLE READ a key
 * that was committed after the snapshot is a duplicate; it is no serialization
 * failure, since no row version is read that the snapshot should have shown.
 *
 * A refusal is durable: the caller acknowledges the message on the strength of
 * it.  With synchronous_commit = off another session sees a commit that a
 * power cut can undo, so the winner's commit is flushed before "false" is said,
 * and a transaction that was told "true" commits synchronously.
 *
 * Rejected:
 *	- an advisory lock kept until commit: a batch fills the lock table.
 *	- inserting first and looking afterwards: two transactions can each find the
 *	  other's row and both give up, or wait for each other.
 *	- a speculative insertion, as ON CONFLICT does it: it settles races in one
 *	  index, and there is one for each leaf.
 *	- SERIALIZABLE: it costs all other transactions, and a duplicate would be an
 *	  error.
 *	- a batch that inserts the free keys first and waits for the others later:
 *	  two batches could wait for each other.
 *
 *-------------------------------------------------------------------------
 */
#include "claim.h"

#include "access/relation.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "filter.h"
#include "guc.h"
#include "leaf.h"
#include "lock.h"
#include "shmem.h"
#include "testpoint.h"
#include "xactstate.h"

/* How often a row that came by SQL may win a race before we suspect an index. */
#define MAX_CONFLICTS	10

/* Whether a look got through, or somebody holds a lock that we do not wait for. */
typedef enum LookResult
{
	LOOK_DONE,
	LOOK_BUSY,
} LookResult;

/* Look for a digest in every leaf that is attached. */
static LookResult
look_everywhere(const IdemDigest *digest, bool wait, bool as_committed,
				bool filtered, Sighting *seen)
{
	LeafSet    *set;
	Leaf	  **candidates;
	int			n;

restart:
	CHECK_FOR_INTERRUPTS();
	memset(seen, 0, sizeof(Sighting));
	set = wait ? catalog_leaves() : catalog_leaves_nowait();
	if (set == NULL)
		return LOOK_BUSY;
	n = filtered ? filter_candidates(set, digest, &candidates)
		: filter_all(set, &candidates);
	for (int i = 0; i < n; i++)
	{
		Relation	rel;
		LOCKMODE	lockmode = NoLock;
		bool		looked;

		if (!leaf_open_held(candidates[i], AccessShareLock, &rel))
		{
			lockmode = AccessShareLock;
			switch (leaf_open(candidates[i], lockmode, wait, &rel))
			{
				case LEAF_OPENED:
					break;
				case LEAF_BUSY:
					return LOOK_BUSY;
				case LEAF_CHANGED:
					goto restart;
			}
		}
		looked = leaf_look(candidates[i], rel, digest, as_committed, wait, seen);
		leaf_close(rel, lockmode);
		if (!looked)
			return LOOK_BUSY;
		if (seen->state >= KEY_MINE && !as_committed)
			break;
	}
	return LOOK_DONE;
}

/* Get the right to decide about a digest. */
static bool
lock_key(const IdemDigest *digest, bool wait)
{
	LOCKTAG		tag;

	if (TEST_WITHOUT("key_lock"))
		return true;
	lock_tag(&tag, IDEMQ_LOCK_KEY, digest_lock_bits(digest));
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* Give it up. */
static void
unlock_key(const IdemDigest *digest)
{
	LOCKTAG		tag;

	if (TEST_WITHOUT("key_lock"))
		return;
	lock_tag(&tag, IDEMQ_LOCK_KEY, digest_lock_bits(digest));
	LockRelease(&tag, ExclusiveLock, false);
}

/* Insert a claim into the leaf whose turn it is, without waiting for a lock. */
static LookResult
insert_claim(const ClaimKey *key, bool *inserted)
{
	for (;;)
	{
		LeafSet    *set = catalog_leaves_nowait();
		TimestampTz stamp;
		Leaf	   *leaf;
		LeafInsert	outcome;
		Relation	rel;

		CHECK_FOR_INTERRUPTS();
		if (set == NULL)
			return LOOK_BUSY;
		stamp = Max(clock_wall(), clock_floor(&set->base));
		leaf = catalog_leaf_for(set, stamp);
		if (leaf == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("\"%s.%s\" has no partition to write to",
							IDEMQ_SCHEMA, IDEMQ_PROCESSED),
					 errhint("Attach \"%s.processed_permanent\" again, or call idem_maintain().",
							 IDEMQ_SCHEMA)));

		TEST_POINT("claim-chosen");
		if (!leaf_open_held(leaf, RowExclusiveLock, &rel))
		{
			switch (leaf_open(leaf, RowExclusiveLock, false, &rel))
			{
				case LEAF_OPENED:
					break;
				case LEAF_BUSY:
					return LOOK_BUSY;
				case LEAF_CHANGED:
					continue;
			}

			/*
			 * Time went on before we got the lock.  Expiry relies on it that
			 * whoever has the lock on a leaf checks only then that it is the
			 * leaf's turn; see expire.c.
			 */
			stamp = Max(clock_wall(), clock_floor(&set->base));
			if (!TEST_WITHOUT("leaf_recheck") && catalog_leaf_for(set, stamp) != leaf)
			{
				leaf_close(rel, RowExclusiveLock);
				continue;
			}
		}
		TEST_POINT("claim-leaf-open");

		if (shmem_note_claim(set->parent, leaf->permanent || stamp >= leaf->upper))
			ereport(LOG,
					(errmsg("no partition of \"%s.%s\" for the present time, claims go to \"%s\"",
							IDEMQ_SCHEMA, IDEMQ_PROCESSED, RelationGetRelationName(rel)),
					 errhint("Look at idem_status(), or call idem_maintain().")));
		outcome = leaf_insert(leaf, rel, key->scope, key->key, &key->digest, stamp, false);
		if (outcome == LEAF_INSERTED)
			filter_add(set, RelationGetRelid(rel), &key->digest);
		leaf_close(rel, NoLock);
		*inserted = outcome == LEAF_INSERTED;
		return outcome == LEAF_INSERT_BUSY ? LOOK_BUSY : LOOK_DONE;
	}
}

/* Wait for the transaction that is deciding about a key. */
static void
wait_for_decider(TransactionId decider, ScopeStats *stats)
{
	instr_time	start;
	instr_time	end;

	INSTR_TIME_SET_CURRENT(start);
	XactLockTableWait(decider, NULL, NULL, XLTW_None);
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	stats_count_wait(stats, INSTR_TIME_GET_MICROSEC(end));
}

/* See that the commit which we are about to speak of outlives a power cut. */
static void
make_durable(const Sighting *seen)
{
	if (TEST_WITHOUT("flush") || RecoveryInProgress())
		return;
	if (!XLogRecPtrIsInvalid(seen->commit_lsn))
		XLogFlush(seen->commit_lsn);
}

/*
 * Look, lock the key, look again, insert: one try, which waits for nobody while
 * it holds the key lock.
 */
static LookResult
try_to_claim(const ClaimKey *key, bool wait, bool filtered, Sighting *seen,
			 bool *inserted)
{
	const IdemDigest *digest = &key->digest;
	LookResult	result;

	*inserted = false;
	result = look_everywhere(digest, wait, false, filtered, seen);
	if (result != LOOK_DONE || seen->state != KEY_FREE)
		return result;
	TEST_POINT("claim-looked");

	if (!lock_key(digest, wait))
		return LOOK_BUSY;
	TEST_POINT("claim-locked");
	AcceptInvalidationMessages();

	result = look_everywhere(digest, false, false, filtered, seen);
	if (result == LOOK_DONE && seen->state == KEY_FREE)
	{
		TEST_POINT("claim-probed");
		result = insert_claim(key, inserted);
		if (*inserted)
			TEST_POINT("claim-done");
	}
	unlock_key(digest);
	TEST_POINT("claim-released");

	if (result == LOOK_BUSY && wait)
		catalog_wait_for_lock();
	return result;
}

/* A key of a batch is going to be claimed soon. */
void
claim_expect(const IdemDigest *digest)
{
	filter_prefetch(digest);
}

/* Claim a key; without wait, say busy rather than wait for another transaction. */
ClaimAnswer
claim_take(const ClaimKey *key, bool wait)
{
	int			conflicts = 0;

	for (;;)
	{
		Sighting	seen;
		bool		inserted;
		LookResult	result = try_to_claim(key, wait, conflicts == 0, &seen, &inserted);

		if (inserted)
		{
			if (idemq_durable_claims && !TEST_WITHOUT("sync_commit"))
				ForceSyncCommit();
			xactstate_note_claim((text *) DatumGetPointer(key->scope),
								 (text *) DatumGetPointer(key->key));
			stats_count(key->stats, CLAIM_STAT_CLAIMED);
			return CLAIM_CLAIMED;
		}
		if (!wait && (result == LOOK_BUSY || seen.state == KEY_OPEN))
		{
			stats_count(key->stats, CLAIM_STAT_BUSY);
			return CLAIM_BUSY;
		}
		if (result == LOOK_BUSY)
			continue;
		switch (seen.state)
		{
			case KEY_MINE:
				stats_count(key->stats, CLAIM_STAT_DUPLICATE);
				return CLAIM_MINE;
			case KEY_TAKEN:
				make_durable(&seen);
				stats_count(key->stats, CLAIM_STAT_DUPLICATE);
				return CLAIM_DUPLICATE;
			case KEY_OPEN:
				wait_for_decider(seen.decider, key->stats);
				break;
			case KEY_FREE:
				if (++conflicts > MAX_CONFLICTS)
					ereport(ERROR,
							(errcode(ERRCODE_INDEX_CORRUPTED),
							 errmsg("index on the digest holds a key that the partition does not show"),
							 errhint("REINDEX the partitions of %s.%s.",
									 IDEMQ_SCHEMA, IDEMQ_PROCESSED)));
				break;
		}
	}
}

/* What became of the attempt to forget a key in one leaf. */
typedef enum ForgetResult
{
	FORGET_NONE,				/* it is not there, or not decided yet */
	FORGET_DELETED,
	FORGET_BUSY,				/* somebody holds a lock on the leaf */
	FORGET_LOCKED,				/* somebody holds a lock on the row */
	FORGET_CHANGED,				/* start over */
} ForgetResult;

/* The row whose lock claim_forget has waited for, and got. */
typedef struct LockedRow
{
	Oid			leaf;
	ItemPointerData tid;
} LockedRow;

/* Forget a key in one leaf, without waiting for anybody. */
static ForgetResult
forget_in_leaf(Leaf *leaf, const IdemDigest *digest, Sighting *seen, LockedRow *locked)
{
	LOCKMODE	lockmode = AccessShareLock;

	/* look first: most leaves do not have it, and need no writer's lock */
	for (;;)
	{
		Relation	rel;
		LeafDelete	outcome;
		bool		looked;

		switch (leaf_open(leaf, lockmode, false, &rel))
		{
			case LEAF_OPENED:
				break;
			case LEAF_BUSY:
				return FORGET_BUSY;
			case LEAF_CHANGED:
				return FORGET_CHANGED;
		}
		memset(seen, 0, sizeof(Sighting));
		looked = leaf_look(leaf, rel, digest, false, false, seen);
		if (!looked || seen->state < KEY_MINE || lockmode == AccessShareLock)
		{
			leaf_close(rel, lockmode);
			if (!looked)
				return FORGET_BUSY;
			if (seen->state < KEY_MINE)
				return FORGET_NONE;
			lockmode = RowExclusiveLock;
			continue;
		}

		outcome = leaf_delete(leaf, rel, digest, &seen->tid,
							  locked->leaf == leaf->oid &&
							  ItemPointerEquals(&locked->tid, &seen->tid));
		locked->leaf = leaf->oid;
		locked->tid = seen->tid;
		leaf_close(rel, NoLock);
		switch (outcome)
		{
			case LEAF_DELETED:
				return FORGET_DELETED;
			case LEAF_GONE:
				return FORGET_CHANGED;
			case LEAF_LOCKED:
				return FORGET_LOCKED;
		}
	}
}

/* Wait for whoever holds a lock on a row; false if it is gone. */
static bool
wait_for_row(const LockedRow *row)
{
	Relation	rel = try_relation_open(row->leaf, RowExclusiveLock);
	bool		locked;

	if (rel == NULL)
		return false;
	locked = leaf_wait_for_row(rel, &row->tid);
	relation_close(rel, NoLock);
	return locked;
}

/*
 * Give a key back; false if nobody has it.
 *
 * Deciders are waited for as by a claim, and so is whoever holds a lock on the
 * row or on a leaf, all without the key lock.
 */
bool
claim_forget(const ClaimKey *key)
{
	const IdemDigest *digest = &key->digest;
	LockedRow	locked = {InvalidOid};
	bool		deleted = false;

	for (;;)
	{
		LeafSet    *set;
		Leaf	  **candidates = NULL;
		int			n = 0;
		TransactionId decider = InvalidTransactionId;
		ForgetResult result = FORGET_NONE;

		CHECK_FOR_INTERRUPTS();
		(void) catalog_leaves();
		(void) lock_key(digest, true);
		AcceptInvalidationMessages();
		set = catalog_leaves_nowait();
		if (set == NULL)
			result = FORGET_BUSY;
		else
			n = filter_candidates(set, digest, &candidates);
		for (int i = 0; i < n; i++)
		{
			Sighting	seen;

			result = forget_in_leaf(candidates[i], digest, &seen, &locked);
			if (result == FORGET_DELETED)
				deleted = true;
			else if (result != FORGET_NONE)
				break;
			else if (seen.state == KEY_OPEN)
				decider = seen.decider;
		}
		unlock_key(digest);

		switch (result)
		{
			case FORGET_BUSY:
				catalog_wait_for_lock();
				break;
			case FORGET_LOCKED:
				if (!wait_for_row(&locked))
					locked.leaf = InvalidOid;
				break;
			case FORGET_CHANGED:
				locked.leaf = InvalidOid;
				break;
			case FORGET_NONE:
			case FORGET_DELETED:
				if (!TransactionIdIsValid(decider))
					return deleted;
				wait_for_decider(decider, key->stats);
				break;
		}
	}
}

/*
 * When was a key claimed?  Newest committed state, and this transaction's own.
 *
 * Somebody may act on the answer, so what it speaks of is made durable, where
 * that is ours to do.
 */
bool
claim_seen(const ClaimKey *key, TimestampTz *claimed_at)
{
	Sighting	seen;

	/*
	 * the filter may rule out every leaf that we know: then no lock accepts
	 * them
	 */
	AcceptInvalidationMessages();
	(void) look_everywhere(&key->digest, true, true, true, &seen);
	if (seen.state < KEY_MINE)
		return false;
	make_durable(&seen);
	*claimed_at = seen.claimed_at;
	return true;
}
