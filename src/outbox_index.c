/*-------------------------------------------------------------------------
 *
 * outbox_index.c
 *	  Putting an event into an index of the log.
 *
 * Numbers ascend, so entries are added at the right end of an index.  nbtree
 * knows that case: it remembers the rightmost leaf page as the target block of
 * the relation, and begins there instead of at the root; but only in trees of
 * three levels or more, which is some 150,000 events of a leaf later.  So we
 * set the target block ourselves.
 *
 * It is a hint, and nothing depends on it.  nbtree takes the page if it can
 * have it without waiting, and if it is the rightmost leaf, has room, and
 * begins below the new entry; else it forgets the hint, and descends.  What we
 * must see to is that the page is there and in use: a leaf stays that, or
 * becomes one that is deleted, as long as we have our lock on the index.
 *
 * A hint that is refused costs a tenth of an insertion.  It is when the page is
 * full, when others write to it at this moment, and for as long as younger
 * transactions fill the right end of the index on (xid, seq).  So after refusals
 * in a row it is left for a while.
 *
 *-------------------------------------------------------------------------
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_index.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#define MOST_REST		255		/* insertions without a hint */
#define MOST_STEPS		3		/* pages to look at */

/* Take note of an index; false if it wants more than column values. */
bool
outbox_index_know(Relation index, OutboxIndex *known)
{
	Form_pg_index form = index->rd_index;

	if (index->rd_rel->relam != BTREE_AM_OID ||
		form->indisunique || form->indisexclusion ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return false;
	known->oid = RelationGetRelid(index);
	known->last = InvalidBlockNumber;
	known->refused = 0;
	known->rest = 0;
	known->natts = form->indnatts;
	for (int i = 0; i < form->indnatts; i++)
	{
		known->att[i] = form->indkey.values[i];
		if (known->att[i] <= 0)
			return false;
	}
	return true;
}

/*
 * Is this page the rightmost leaf?  If it is another leaf, say what is right of
 * it; else, P_NONE.  A root that is a leaf is not worth a hint.
 */
static bool
is_rightmost(Relation index, BlockNumber block, BlockNumber *right)
{
	Buffer		buffer = ReadBuffer(index, block);
	Page		page = BufferGetPage(buffer);
	bool		found = false;

	*right = P_NONE;
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	/* new: somebody is about to fill it, or has not lived to do so */
	if (!PageIsNew(page))
	{
		BTPageOpaque opaque = (BTPageOpaque) PageGetSpecialPointer(page);

		if (P_ISLEAF(opaque) && !P_ISROOT(opaque) && !P_IGNORE(opaque))
		{
			found = P_RIGHTMOST(opaque);
			*right = opaque->btpo_next;
		}
	}
	UnlockReleaseBuffer(buffer);
	return found;
}

/* Tell nbtree where the right end is, if we find it nearby. */
static void
give_hint(OutboxIndex *known, Relation index)
{
	BlockNumber size = RelationGetNumberOfBlocks(index);
	BlockNumber block = known->last;

	if (size <= BTREE_METAPAGE + 1)
		return;

	/* new pages come last, but for what was emptied by VACUUM */
	if (block == InvalidBlockNumber || block >= size)
		block = size - 1;
	known->last = InvalidBlockNumber;
	for (int i = 0; i < MOST_STEPS && block != BTREE_METAPAGE; i++)
	{
		BlockNumber right;

		if (is_rightmost(index, block, &right))
		{
			known->last = block;
			RelationSetTargetBlock(index, block);
			return;
		}
		/* the last one may be an inner page, which was made after a leaf */
		block = right == P_NONE && i == 0 && block == size - 1 ? block - 1 : right;
	}
}

/* Insert the entry of a row. */
void
outbox_index_insert(OutboxIndex *known, Relation rel, ItemPointer tid,
					const Datum *values, const bool *isnull)
{
	Relation	index = index_open(known->oid, NoLock);
	Datum		keys[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	bool		resting = known->rest > 0;

	for (int i = 0; i < known->natts; i++)
	{
		keys[i] = values[known->att[i] - 1];
		nulls[i] = isnull[known->att[i] - 1];
	}
	if (resting)
		known->rest--;
	else if (RelationGetTargetBlock(index) == InvalidBlockNumber)
		give_hint(known, index);
	index_insert(index, keys, nulls, tid, rel, UNIQUE_CHECK_NO, false, NULL);
	if (RelationGetTargetBlock(index) != InvalidBlockNumber)
		known->refused = 0;
	else if (!resting)
	{
		known->rest = known->refused;
		known->refused = Min(known->refused * 2 + 1, MOST_REST);
	}
	index_close(index, NoLock);
}
