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
 *	1. Look into every leaf.  A committed row is final: duplicate.  A row whose
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
 * Locking: the key lock, then locks on leaves.  Nobody waits for a transaction
 * while holding the key lock.  Two digests may share a key lock: a wait of
 * microseconds, never an answer.  The parent is not locked at all, so whatever
 * is done to it (or queues for it) stops no claim.  Leaves that are looked into
 * are locked one at a time.  The transaction's own locks on leaves it wrote to
 * stay until its end; nothing that maintenance does waits for them while
 * holding something that a claim needs.
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
#include "guc.h"
#include "leaf.h"
#include "lock.h"
#include "shmem.h"
#include "testpoint.h"

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
				Sighting *seen)
{
	LeafSet    *set;

restart:
	CHECK_FOR_INTERRUPTS();
	memset(seen, 0, sizeof(Sighting));
	set = catalog_leaves();
	for (int i = 0; i < set->nleaves; i++)
	{
		Relation	rel;
		bool		looked;

		switch (leaf_open(&set->leaves[i], AccessShareLock, wait, &rel))
		{
			case LEAF_OPENED:
				break;
			case LEAF_BUSY:
				return LOOK_BUSY;
			case LEAF_CHANGED:
				goto restart;
		}
		looked = leaf_look(&set->leaves[i], rel, digest, as_committed, wait, seen);
		leaf_close(rel, AccessShareLock);
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
	lock_tag(&tag, IDEMQ_LOCK_KEY, digest_half(digest, 0));
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* Give it up. */
static void
unlock_key(const IdemDigest *digest)
{
	LOCKTAG		tag;

	if (TEST_WITHOUT("key_lock"))
		return;
	lock_tag(&tag, IDEMQ_LOCK_KEY, digest_half(digest, 0));
	LockRelease(&tag, ExclusiveLock, false);
}

/* Insert a claim into the leaf whose turn it is. */
static LookResult
insert_claim(const ClaimKey *key, bool wait, bool *inserted)
{
	for (;;)
	{
		LeafSet    *set = catalog_leaves();
		TimestampTz stamp = Max(clock_wall(), clock_floor(&set->base));
		Leaf	   *leaf = catalog_leaf_for(set, stamp);
		LeafInsert	outcome;
		Relation	rel;

		CHECK_FOR_INTERRUPTS();
		if (leaf == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("\"%s.%s\" has no partition to write to",
							IDEMQ_SCHEMA, IDEMQ_PROCESSED),
					 errhint("Attach \"%s.processed_permanent\" again, or call idem_maintain().",
							 IDEMQ_SCHEMA)));

		switch (leaf_open(leaf, RowExclusiveLock, wait, &rel))
		{
			case LEAF_OPENED:
				break;
			case LEAF_BUSY:
				return LOOK_BUSY;
			case LEAF_CHANGED:
				continue;
		}

		/*
		 * Time went on while we waited for the lock.  Expiry relies on it
		 * that whoever has the lock on a leaf checks only then that it is the
		 * leaf's turn; see maintain.c.
		 */
		stamp = Max(clock_wall(), clock_floor(&set->base));
		if (!TEST_WITHOUT("leaf_recheck") && catalog_leaf_for(set, stamp) != leaf)
		{
			leaf_close(rel, RowExclusiveLock);
			continue;
		}
		TEST_POINT("claim-leaf-open");

		if (shmem_note_claim(set->parent, leaf->permanent || stamp >= leaf->upper))
			ereport(LOG,
					(errmsg("no partition of \"%s.%s\" for the present time, claims go to \"%s\"",
							IDEMQ_SCHEMA, IDEMQ_PROCESSED, RelationGetRelationName(rel)),
					 errhint("Look at idem_status(), or call idem_maintain().")));
		outcome = leaf_insert(leaf, rel, key->scope, key->key, &key->digest, stamp, wait);
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

/* Claim a key; without wait, say busy rather than wait for another transaction. */
ClaimAnswer
claim_take(const ClaimKey *key, bool wait)
{
	const IdemDigest *digest = &key->digest;
	int			conflicts = 0;

	for (;;)
	{
		Sighting	seen;
		LookResult	result;
		bool		inserted = false;

		result = look_everywhere(digest, wait, false, &seen);
		if (result == LOOK_DONE && seen.state == KEY_FREE)
		{
			TEST_POINT("claim-looked");
			if (!lock_key(digest, wait))
			{
				stats_count(key->stats, CLAIM_STAT_BUSY);
				return CLAIM_BUSY;
			}
			TEST_POINT("claim-locked");
			AcceptInvalidationMessages();

			result = look_everywhere(digest, wait, false, &seen);
			if (result == LOOK_DONE && seen.state == KEY_FREE)
			{
				TEST_POINT("claim-probed");
				result = insert_claim(key, wait, &inserted);
				if (inserted)
					TEST_POINT("claim-done");
			}
			unlock_key(digest);
			TEST_POINT("claim-released");
		}

		if (inserted)
		{
			if (idemq_durable_claims && !TEST_WITHOUT("sync_commit"))
				ForceSyncCommit();
			stats_count(key->stats, CLAIM_STAT_CLAIMED);
			return CLAIM_CLAIMED;
		}
		if (result == LOOK_BUSY)
		{
			stats_count(key->stats, CLAIM_STAT_BUSY);
			return CLAIM_BUSY;
		}
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
				if (!wait)
				{
					stats_count(key->stats, CLAIM_STAT_BUSY);
					return CLAIM_BUSY;
				}
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

/*
 * Give a key back; false if nobody has it.
 *
 * Deciders are waited for as by a claim, and so is whoever holds a lock on the
 * row, both without the key lock.
 */
bool
claim_forget(const ClaimKey *key)
{
	const IdemDigest *digest = &key->digest;
	bool		deleted = false;

restart:
	for (;;)
	{
		LeafSet    *set;
		TransactionId decider = InvalidTransactionId;

		CHECK_FOR_INTERRUPTS();
		(void) lock_key(digest, true);
		AcceptInvalidationMessages();
		set = catalog_leaves();
		for (int i = 0; i < set->nleaves; i++)
		{
			Leaf	   *leaf = &set->leaves[i];
			Relation	rel;
			Sighting	seen;
			LeafDelete	outcome;

			/*
			 * look first: most leaves do not have it, and need no writer's
			 * lock
			 */
			if (leaf_open(leaf, AccessShareLock, true, &rel) != LEAF_OPENED)
			{
				unlock_key(digest);
				goto restart;
			}
			memset(&seen, 0, sizeof(Sighting));
			(void) leaf_look(leaf, rel, digest, false, true, &seen);
			leaf_close(rel, AccessShareLock);
			if (seen.state == KEY_OPEN)
				decider = seen.decider;
			if (seen.state < KEY_MINE)
				continue;

			if (leaf_open(leaf, RowExclusiveLock, true, &rel) != LEAF_OPENED)
			{
				unlock_key(digest);
				goto restart;
			}
			/* while we had no lock the leaf may have been rewritten */
			memset(&seen, 0, sizeof(Sighting));
			(void) leaf_look(leaf, rel, digest, false, true, &seen);
			outcome = seen.state >= KEY_MINE
				? leaf_delete(leaf, rel, digest, &seen.tid) : LEAF_GONE;
			if (outcome == LEAF_LOCKED)
			{
				unlock_key(digest);
				leaf_wait_for_row(rel, &seen.tid);
				leaf_close(rel, NoLock);
				goto restart;
			}
			leaf_close(rel, NoLock);
			if (outcome == LEAF_DELETED)
				deleted = true;
			else if (seen.state == KEY_OPEN)
				decider = seen.decider;
		}
		unlock_key(digest);
		if (!TransactionIdIsValid(decider))
			return deleted;
		wait_for_decider(decider, key->stats);
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

	(void) look_everywhere(&key->digest, true, true, &seen);
	if (seen.state < KEY_MINE)
		return false;
	make_durable(&seen);
	*claimed_at = seen.claimed_at;
	return true;
}
