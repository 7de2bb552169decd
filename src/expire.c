/*-------------------------------------------------------------------------
 *
 * expire.c
 *	  Letting go of partitions that are past their retention.
 *
 * The promise: a key is not taken away before its retention is over, and no
 * claim waits for longer than it takes to commit a DROP.
 *
 * Locking: first a step that only looks.  It takes SHARE on the leaf,
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
 * Rows that come by SQL are added at the end, as a rule, and that the end has
 * not moved is checked under the lock.  One that is put into a gap, between the
 * two steps, into a partition that is past its retention, is lost.
 *
 * Rejected: DELETE (bloat, and a scan of live rows); creations and drops in one
 * transaction (one busy leaf undoes the creations, every night, until claims
 * have no leaf); trusting upper bounds alone (a leaf may have served for longer).
 *
 *-------------------------------------------------------------------------
 */
#include "expire.h"

#include "access/relation.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "ddl.h"
#include "guc.h"
#include "leaf.h"
#include "testpoint.h"

/* How many partitions one round drops, beyond those that a naptime brings. */
#define DROPS_PER_ROUND		4

/*
 * By its bounds, is it time for a leaf to go?  The permanent one is due when
 * there is another.
 */
bool
expire_is_due(const LeafSet *set, const Leaf *leaf, TimestampTz trusted)
{
	TimestampTz stamp = Max(clock_wall(), clock_floor(&set->base));

	if (catalog_leaf_for(set, stamp) == leaf ||
		catalog_leaf_for(set, DT_NOEND) == leaf)
		return false;
	if (leaf->permanent)
		return true;
	return !TIMESTAMP_IS_NOEND(leaf->upper) &&
		leaf->upper <= trusted - guc_retention();
}

/* Leave the leaf that the present step is about to the next round. */
static void
skip(ExpireRound *round)
{
	if (OidIsValid(round->at_hand) && round->nskipped < EXPIRE_SKIPPED)
		round->skipped[round->nskipped++] = round->at_hand;
	round->condemned = InvalidOid;
	round->at_hand = InvalidOid;
}

/* Was it left to the next round already? */
static bool
is_skipped(const ExpireRound *round, Oid leaf)
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
oldest_due(LeafSet *set, const ExpireRound *round, TimestampTz trusted)
{
	for (int i = set->nleaves - 1; i >= 0; i--)
	{
		Leaf	   *leaf = &set->leaves[i];

		if (!is_skipped(round, leaf->oid) && expire_is_due(set, leaf, trusted))
			return leaf;
	}
	return NULL;
}

/* Where does a leaf end, to see later whether rows were added? */
static void
note_end(Relation rel, LeafEnd *end)
{
	end->nblocks = RelationGetNumberOfBlocks(rel);
	end->lsn = InvalidXLogRecPtr;
	if (end->nblocks > 0)
	{
		Buffer		buffer = ReadBuffer(rel, end->nblocks - 1);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		end->lsn = PageGetLSN(BufferGetPage(buffer));
		UnlockReleaseBuffer(buffer);
	}
}

/*
 * See whether nobody has claimed in a leaf within the retention.  Answers only
 * when nobody has unfinished writes in it.
 */
static bool
is_expired(Oid relid, bool permanent, TimestampTz cutoff, LeafEnd *end)
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
	note_end(rel, end);
	if (permanent && end->nblocks == 0)
		expired = false;		/* nothing to truncate */
	else
		expired = !leaf_claimed_after(rel, cutoff);
	relation_close(rel, ShareLock);
	return expired;
}

/* Has nothing been added to a leaf, on which we hold the lock, since we read it? */
static bool
is_unchanged(Oid relid, const LeafEnd *end)
{
	Relation	rel = relation_open(relid, NoLock);
	LeafEnd		now;

	note_end(rel, &now);
	relation_close(rel, NoLock);
	return now.nblocks == end->nblocks && now.lsn == end->lsn;
}

/* Drop the leaf that the step before has found expired; false if it is busy. */
static bool
drop_condemned(ExpireRound *round, DdlFailures *failures)
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
	if (!leaf->permanent && !ddl_lock_to_drop(set->parent))
	{
		round->parent_busy = true;
		return false;
	}
	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;
	TEST_POINT("maintain-locked");

	/* see that it still is what it was */
	set = catalog_leaves();
	trusted = clock_trusted(&set->base, guc_retention());
	for (int i = 0; i < set->nleaves; i++)
	{
		leaf = &set->leaves[i];
		if (leaf->oid != relid || !expire_is_due(set, leaf, trusted))
			continue;
		return may_expire(set, trusted) && is_unchanged(relid, &round->end) &&
			ddl_let_go(relid, leaf->permanent, failures);
	}
	return false;
}

/* Look at one leaf, or drop it.  True if there may be more to do. */
bool
expire_step(ExpireRound *round, DdlFailures *failures)
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
		if (drop_condemned(round, failures))
			round->ndropped++;
		/* dropped or busy: not again in this round */
		skip(round);
		/* nor any other, if somebody is at the parent: readers had to wait */
		return !round->parent_busy && round->ndropped < limit &&
			round->nskipped < EXPIRE_SKIPPED;
	}

	set = catalog_leaves();
	trusted = clock_trusted(&set->base, guc_retention());
	leaf = may_expire(set, trusted) ? oldest_due(set, round, trusted) : NULL;
	if (leaf == NULL)
		return false;
	round->at_hand = leaf->oid;
	if (is_expired(leaf->oid, leaf->permanent, trusted - guc_retention(), &round->end))
	{
		round->condemned = round->at_hand;
		TEST_POINT("maintain-scanned");
	}
	else
		skip(round);
	return round->nskipped < EXPIRE_SKIPPED;
}
