/*-------------------------------------------------------------------------
 *
 * filter_build.c
 *	  Building the filter: lanes are given, cleared and filled.
 *
 * See filter.c for the rules that all of this keeps.
 *
 *-------------------------------------------------------------------------
 */
#include "filter.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "filter_lane.h"
#include "leaf.h"
#include "testpoint.h"

/* rows that are cleared while the lock is held */
#define CLEAR_ROWS		65536

/* how long one step of the builder may take, in us */
#define BUILD_CHUNK		100000

/* A lane of this database for a leaf, or -1; the lock is held. */
static int
find_lane(Oid leaf)
{
	for (int lane = 0; lane < filter_shared->words * WORD_LANES; lane++)
	{
		if (filter_shared->lanes[lane].dboid == MyDatabaseId && filter_shared->lanes[lane].leaf == leaf)
			return lane;
	}
	return -1;
}

/* Take a lane away from its leaf; the lock is held, the epoch was advanced. */
static void
free_lane(Lane *lane)
{
	lane->dboid = InvalidOid;
	lane->leaf = InvalidOid;
	lane->state = FILTER_NONE;
	lane->generation++;
}

/* Free the lanes of leaves that are gone. */
static void
free_gone_lanes(const LeafSet *set)
{
	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);
	for (int lane = 0; lane < MAX_LANES; lane++)
	{
		Lane	   *entry = &filter_shared->lanes[lane];
		bool		found = false;

		if (entry->dboid != MyDatabaseId)
			continue;
		for (int i = 0; i < set->nleaves && !found; i++)
			found = set->leaves[i].oid == entry->leaf;
		if (!found)
		{
			advance_epoch();
			free_lane(entry);
		}
	}
	LWLockRelease(filter_shared->lock);
}

/* A database is gone. */
void
filter_forget_database(Oid dboid)
{
	if (filter_shared == NULL)
		return;
	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);
	for (int lane = 0; lane < MAX_LANES; lane++)
	{
		if (filter_shared->lanes[lane].dboid == dboid)
		{
			advance_epoch();
			free_lane(&filter_shared->lanes[lane]);
		}
	}
	LWLockRelease(filter_shared->lock);
}

/*
 * Twice as many lanes, half as many rows: everything is built anew.  The bits
 * stay as they are, for a lane is cleared before it is built.  The lock is held.
 */
static void
widen_rows(void)
{
	advance_epoch();
	filter_shared->words *= 2;
	for (int lane = 0; lane < MAX_LANES; lane++)
		free_lane(&filter_shared->lanes[lane]);
}

/* How many lanes a database has; the lock is held. */
static int
count_lanes(Oid dboid)
{
	int			count = 0;

	for (int lane = 0; lane < MAX_LANES; lane++)
		count += filter_shared->lanes[lane].dboid == dboid;
	return count;
}

/* How many lanes the other databases have; the lock is held. */
static int
count_lanes_of_others(void)
{
	return MAX_LANES - count_lanes(InvalidOid) - count_lanes(MyDatabaseId);
}

/*
 * The lane to take away for a leaf when there is none left, or -1: the oldest
 * of the database that has the most.  A leaf displaces only older ones of its
 * own database, and only databases that have more lanes than this one.  The
 * lock is held.
 */
static int
find_victim(const Leaf *leaf)
{
	int			mine = count_lanes(MyDatabaseId);
	int			victim = -1;
	int			most = 0;

	for (int lane = 0; lane < MAX_LANES; lane++)
	{
		const Lane *entry = &filter_shared->lanes[lane];
		int			held = count_lanes(entry->dboid);

		if (entry->dboid == MyDatabaseId ? entry->lower >= leaf->lower : held <= mine + 1)
			continue;
		if (held > most ||
			(held == most && entry->lower < filter_shared->lanes[victim].lower))
		{
			most = held;
			victim = lane;
		}
	}
	return victim;
}

/*
 * Give a leaf a lane to be built, and note under which version.  Returns its
 * number and generation; -1 if there is no room for the leaf.
 */
static int
reserve_lane(const Leaf *leaf, int nleaves, uint64 *generation)
{
	Lane	   *entry;
	int			lane;

	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);

	/* widen before anything is built, not when the lanes run out */
	while (filter_shared->words < MAX_WORDS &&
		   count_lanes_of_others() + nleaves > filter_shared->words * WORD_LANES)
		widen_rows();
	lane = find_lane(leaf->oid);
	while (lane < 0)
	{
		for (int i = 0; i < filter_shared->words * WORD_LANES && lane < 0; i++)
		{
			if (!OidIsValid(filter_shared->lanes[i].dboid))
				lane = i;
		}
		if (lane >= 0 || filter_shared->words == MAX_WORDS)
			break;
		widen_rows();
	}
	if (lane < 0)
		lane = find_victim(leaf);
	if (lane >= 0)
	{
		advance_epoch();
		entry = &filter_shared->lanes[lane];
		entry->dboid = MyDatabaseId;
		entry->leaf = leaf->oid;
		entry->lower = leaf->lower;
		entry->version = leaf->version;
		entry->state = FILTER_BUILDING;
		entry->next_block = 0;
		entry->nblocks = InvalidBlockNumber;
		*generation = ++entry->generation;
	}
	LWLockRelease(filter_shared->lock);
	return lane;
}

/*
 * Clear a column, unless it is somebody else's by now.
 *
 * Under another layout, or for another leaf, the bits that we are about to
 * clear mean something.  So the lock is held, in shared mode, for a piece at a
 * time: nobody can give the lane away meanwhile.
 */
static void
clear_lane(int lane, uint64 generation)
{
	uint64		bit = UINT64CONST(1) << (lane % WORD_LANES);
	uint64		rows_done = 0;
	bool		more = true;

	while (more)
	{
		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(filter_shared->lock, LW_SHARED);
		more = filter_shared->lanes[lane].generation == generation;
		if (more)
		{
			int			words = filter_shared->words;
			uint64		rows = filter_shared->memory_words / words;
			uint64		end = Min(rows_done + CLEAR_ROWS, rows);

			for (; rows_done < end; rows_done++)
			{
				pg_atomic_uint64 *word = filter_matrix + rows_done * words + lane / WORD_LANES;

				if (pg_atomic_read_u64(word) & bit)
					pg_atomic_fetch_and_u64(word, ~bit);
			}
			more = rows_done < rows;
		}
		LWLockRelease(filter_shared->lock);
	}
}

/* Set the bits of every row in a block, whatever became of its inserter. */
static void
add_block(Leaf *leaf, Relation rel, BlockNumber block, BufferAccessStrategy strategy,
		  TransactionId oldest, int lane, int words, uint64 nblocks)
{
	Buffer		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, block, RBM_NORMAL, strategy);
	TupleDesc	desc = RelationGetDescr(rel);
	Page		page;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	for (OffsetNumber at = FirstOffsetNumber; at <= PageGetMaxOffsetNumber(page); at++)
	{
		ItemId		item = PageGetItemId(page, at);
		HeapTupleData tuple;
		IdemDigest	digest;
		Datum		scope_datum;
		Datum		key_datum;
		text	   *scope;
		text	   *key;
		bool		scope_isnull;
		bool		key_isnull;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_tableOid = RelationGetRelid(rel);
		ItemPointerSet(&tuple.t_self, block, at);
		/* dead to all for ever: of no interest, and its TOAST may be gone */
		if (HeapTupleSatisfiesVacuum(&tuple, oldest, buffer) == HEAPTUPLE_DEAD)
			continue;
		scope_datum = heap_getattr(&tuple, leaf->att_scope, desc, &scope_isnull);
		key_datum = heap_getattr(&tuple, leaf->att_key, desc, &key_isnull);
		if (scope_isnull || key_isnull)
			continue;			/* somebody has dropped NOT NULL */
		scope = DatumGetTextPP(scope_datum);
		key = DatumGetTextPP(key_datum);
		digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
					   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &digest);
		set_bits(lane, &digest, words, nblocks);
	}
	UnlockReleaseBuffer(buffer);
}

/*
 * Read some blocks of a leaf into its lane; ready when it was the last one.
 *
 * What is inserted into later blocks than there were when the column was clear
 * is its inserter's business.
 */
static void
build_chunk(Leaf *leaf, Relation rel, int lane, uint64 generation)
{
	Lane	   *entry = &filter_shared->lanes[lane];
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	int64		deadline = clock_monotonic() + BUILD_CHUNK;
	BlockNumber block;
	BlockNumber nblocks;
	BlockNumber now_nblocks = RelationGetNumberOfBlocks(rel);
	TransactionId oldest = GetOldestNonRemovableTransactionId(rel);
	int			words;

	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);
	words = filter_shared->words;
	if (entry->generation != generation)
	{
		LWLockRelease(filter_shared->lock);
		return;
	}
	if (entry->nblocks == InvalidBlockNumber)
		entry->nblocks = now_nblocks;
	block = entry->next_block;
	/* vacuum may have truncated it since: what is there again came later */
	nblocks = Min(entry->nblocks, now_nblocks);
	LWLockRelease(filter_shared->lock);

	for (; block < nblocks && clock_monotonic() < deadline; block++)
	{
		CHECK_FOR_INTERRUPTS();
		add_block(leaf, rel, block, strategy, oldest, lane, words,
				  filter_shared->memory_words / (BLOCK_ROWS * words));
	}
	FreeAccessStrategy(strategy);
	TEST_POINT("filter-built");

	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);
	if (entry->generation == generation)
	{
		entry->next_block = block;
		if (block >= nblocks && !TEST_WITHOUT("filter_ready"))
		{
			advance_epoch();
			entry->state = FILTER_READY;
		}
	}
	LWLockRelease(filter_shared->lock);
}

/*
 * Where a leaf's lane stands: none, being built (under which generation), or
 * ready for its present version.
 */
static FilterState
lane_state(const Leaf *leaf, int *lane, uint64 *generation, bool *cleared)
{
	FilterState state = FILTER_NONE;

	LWLockAcquire(filter_shared->lock, LW_SHARED);
	*lane = find_lane(leaf->oid);
	if (*lane >= 0 && filter_shared->lanes[*lane].version == leaf->version)
	{
		state = filter_shared->lanes[*lane].state;
		*generation = filter_shared->lanes[*lane].generation;
		*cleared = filter_shared->lanes[*lane].nblocks != InvalidBlockNumber;
	}
	LWLockRelease(filter_shared->lock);
	return state;
}

/* What claims get from the filter for a leaf. */
FilterState
filter_state(const Leaf *leaf)
{
	int			lane;
	uint64		generation;
	bool		cleared;

	if (filter_shared == NULL || leaf->version == 0)
		return FILTER_NONE;
	return lane_state(leaf, &lane, &generation, &cleared);
}

/*
 * Build a piece of the newest lane that is not ready; false if there is nothing
 * to build.
 */
bool
filter_build_step(LeafSet *set)
{
	if (filter_shared == NULL || RecoveryInProgress())
		return false;
	free_gone_lanes(set);
	for (int i = 0; i < set->nleaves; i++)
	{
		Leaf	   *leaf = &set->leaves[i];
		Relation	rel;
		uint64		generation = 0;
		bool		cleared = false;
		int			lane;
		FilterState state;

		if (leaf->version == 0)
			continue;
		state = lane_state(leaf, &lane, &generation, &cleared);
		if (state == FILTER_READY)
			continue;

		/* a leaf that somebody has locked is for a later round */
		switch (leaf_open(leaf, AccessShareLock, false, &rel))
		{
			case LEAF_OPENED:
				break;
			case LEAF_BUSY:
				continue;
			case LEAF_CHANGED:
				return true;
		}
		if (state == FILTER_NONE)
			lane = reserve_lane(leaf, set->nleaves, &generation);
		if (lane >= 0)
		{
			TEST_POINT("filter-reserved");
			if (!cleared)
				clear_lane(lane, generation);
			build_chunk(leaf, rel, lane, generation);
		}
		leaf_close(rel, AccessShareLock);
		if (lane >= 0)
			return !TEST_WITHOUT("filter_ready");
	}
	return false;
}
