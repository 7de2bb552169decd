/*-------------------------------------------------------------------------
 *
 * filter_build.c
 *	  Building the filter: lanes are given, cleared and filled.
 *
 * Who gets how many columns: a leaf what its keys need, guessed by its size,
 * or twice that, if there are enough; the one that is written half of the
 * spare ones.  When its time is over it is built anew with fewer, and the next
 * gets them.  All columns that a leaf has beyond the first are a luxury: whoever
 * would have none takes them.  Only when no lane has two do rows get wider, and
 * when they can't, a leaf displaces the oldest one of the database that has the
 * most.
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

/* rows that are cleared in one go, while the lock is held */
#define CLEAR_ROWS		65536

/* how long one step of the builder may take, in us */
#define BUILD_CHUNK		100000

/* about how many keys are in a block of a leaf */
#define BLOCK_KEYS		90

/* how much too few columns are for a lane to be built anew */
#define OUTGROWN		4

/* How many columns a leaf wants. */
typedef struct Want
{
	int			least;			/* as long as they last */
	int			most;			/* if every other leaf can have what it needs */
} Want;

/* What the builder needs while it reads a leaf. */
typedef struct Builder
{
	Leaf	   *leaf;
	Relation	rel;
	BufferAccessStrategy strategy;
	TransactionId oldest;
	int			lane;
	int			columns;
	int			words;			/* in a row */
	uint64		nblocks;		/* of the matrix */
	uint64		keys;			/* found so far */
} Builder;

/* A lane of this database for a leaf, or -1; the lock is held. */
static int
find_lane(Oid leaf)
{
	for (int lane = 0; lane < filter_shared->words * WORD_COLUMNS; lane++)
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
	for (int lane = 0; lane < MAX_COLUMNS; lane++)
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
	for (int lane = 0; lane < MAX_COLUMNS; lane++)
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
	for (int lane = 0; lane < MAX_COLUMNS; lane++)
		free_lane(&filter_shared->lanes[lane]);
}

/* How many lanes a database has; the lock is held. */
static int
count_lanes(Oid dboid)
{
	int			count = 0;

	for (int lane = 0; lane < MAX_COLUMNS; lane++)
		count += filter_shared->lanes[lane].dboid == dboid;
	return count;
}

/* How many columns no leaf has; the lock is held. */
static int
count_free_columns(void)
{
	int			count = filter_shared->words * WORD_COLUMNS;

	for (int lane = 0; lane < MAX_COLUMNS; lane++)
	{
		if (OidIsValid(filter_shared->lanes[lane].dboid))
			count -= filter_shared->lanes[lane].columns;
	}
	return count;
}

/* How many lanes the other databases have; the lock is held. */
static int
count_lanes_of_others(void)
{
	return MAX_COLUMNS - count_lanes(InvalidOid) - count_lanes(MyDatabaseId);
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

	for (int lane = 0; lane < MAX_COLUMNS; lane++)
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
 * The first of so many adjacent free columns, or -1; the lock is held.  Wide
 * lanes are looked for from the end on, so that small ones, which come and go at
 * the beginning, do not break up what is free.
 */
static int
find_columns(int columns)
{
	bool		used[MAX_COLUMNS] = {0};
	int			total = filter_shared->words * WORD_COLUMNS;

	for (int lane = 0; lane < total; lane++)
	{
		const Lane *entry = &filter_shared->lanes[lane];

		if (OidIsValid(entry->dboid))
			memset(used + lane, true, entry->columns);
	}
	for (int i = 0; i < total; i += columns)
	{
		int			first = columns == 1 ? i : total - columns - i;

		if (memchr(used + first, true, columns) == NULL)
			return first;
	}
	return -1;
}

/* The lane with the most columns, if that is more than one; the lock is held. */
static int
find_widest(void)
{
	int			widest = -1;
	int			most = 1;

	for (int lane = 0; lane < MAX_COLUMNS; lane++)
	{
		const Lane *entry = &filter_shared->lanes[lane];

		if (OidIsValid(entry->dboid) && entry->columns > most)
		{
			most = entry->columns;
			widest = lane;
		}
	}
	return widest;
}

/*
 * Columns for a leaf: as many as it wants, or as there are; *columns says how
 * many.  A leaf that would have none takes them from the widest lane, and if
 * there is none to take from, rows get wider; when they can't, it displaces
 * another leaf.  -1 if there is no room for it.  The lock is held.
 */
static int
take_columns(const Leaf *leaf, int *columns)
{
	for (;;)
	{
		int			lane = find_columns(*columns);

		if (lane >= 0)
			return lane;
		if (*columns > 1)
		{
			*columns /= 2;
			continue;
		}
		lane = find_widest();
		if (lane < 0 && filter_shared->words < MAX_WORDS)
			widen_rows();
		else
		{
			if (lane < 0)
				lane = find_victim(leaf);
			if (lane < 0)
				return -1;
			advance_epoch();
			free_lane(&filter_shared->lanes[lane]);
		}
	}
}

/*
 * How many columns the leaf that is written is given, whatever is in it: half of
 * those that no leaf needs.  The other half is for closed leaves.  Databases
 * share them.  The lock is held.
 */
static int
spare_columns(int nleaves)
{
	int			spare = filter_shared->words * WORD_COLUMNS - nleaves - count_lanes_of_others();
	int			databases = 1;
	int			columns = 1;

	for (int lane = 0; lane < MAX_COLUMNS; lane++)
	{
		Oid			dboid = filter_shared->lanes[lane].dboid;
		bool		first = OidIsValid(dboid) && dboid != MyDatabaseId;

		for (int other = 0; other < lane && first; other++)
			first = filter_shared->lanes[other].dboid != dboid;
		databases += first;
	}
	while (columns < CHOICES && 2 * columns <= spare / (2 * databases))
		columns *= 2;
	return columns;
}

/*
 * Give a leaf a lane to be built, another one if it has one, and note under
 * which version.  Returns its number and generation; -1 if there is no room for
 * the leaf.
 */
static int
reserve_lane(const Leaf *leaf, int nleaves, const Want *want, uint64 *generation)
{
	int			lane;
	int			columns;

	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);

	/* widen before anything is built, not when the columns run out */
	while (filter_shared->words < MAX_WORDS &&
		   count_lanes_of_others() + nleaves > filter_shared->words * WORD_COLUMNS)
		widen_rows();
	lane = find_lane(leaf->oid);
	if (lane >= 0)
	{
		advance_epoch();
		free_lane(&filter_shared->lanes[lane]);
	}
	columns = want->least;
	if (count_free_columns() - want->most >=
		nleaves - count_lanes(MyDatabaseId) + spare_columns(nleaves))
		columns = want->most;
	lane = take_columns(leaf, &columns);
	if (lane >= 0)
	{
		Lane	   *entry = &filter_shared->lanes[lane];

		advance_epoch();
		entry->dboid = MyDatabaseId;
		entry->leaf = leaf->oid;
		entry->columns = columns;
		entry->lower = leaf->lower;
		entry->version = leaf->version;
		entry->state = FILTER_BUILDING;
		entry->next_block = 0;
		entry->nblocks = InvalidBlockNumber;
		entry->keys = 0;
		*generation = ++entry->generation;
	}
	LWLockRelease(filter_shared->lock);
	return lane;
}

/*
 * Clear a lane's columns, unless they are somebody else's by now.
 *
 * Under another layout, or for another leaf, the bits that we are about to
 * clear mean something.  So the lock is held, in shared mode, for a piece at a
 * time: nobody can give the lane away meanwhile.
 */
static void
clear_lane(int lane, uint64 generation)
{
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
			uint64		mask = columns_mask(lane, filter_shared->lanes[lane].columns);
			uint64		rows = filter_shared->memory_words / words;
			uint64		end = Min(rows_done + CLEAR_ROWS, rows);

			for (; rows_done < end; rows_done++)
			{
				pg_atomic_uint64 *word = filter_matrix + rows_done * words + lane / WORD_COLUMNS;

				if (pg_atomic_read_u64(word) & mask)
					pg_atomic_fetch_and_u64(word, ~mask);
			}
			more = rows_done < rows;
		}
		LWLockRelease(filter_shared->lock);
	}
}

/* Set the bits of a row. */
static void
add_row(Builder *builder, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(builder->rel);
	bool		scope_isnull;
	bool		key_isnull;
	Datum		scope_datum = heap_getattr(tuple, builder->leaf->att_scope, desc, &scope_isnull);
	Datum		key_datum = heap_getattr(tuple, builder->leaf->att_key, desc, &key_isnull);
	text	   *scope;
	text	   *key;
	IdemDigest	digest;

	if (scope_isnull || key_isnull)
		return;					/* somebody has dropped NOT NULL */
	scope = DatumGetTextPP(scope_datum);
	key = DatumGetTextPP(key_datum);
	digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
				   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &digest);
	set_bits(builder->lane, builder->columns, &digest, builder->words, builder->nblocks);
	builder->keys++;
	if (PointerGetDatum(scope) != scope_datum)
		pfree(scope);
	if (PointerGetDatum(key) != key_datum)
		pfree(key);
}

/*
 * Set the bits of every row in a block, whatever became of its inserter.
 *
 * A long key may be in the TOAST table, so digests are made only when the block
 * is no longer locked; the pin keeps the rows where they are, as in any scan.
 */
static void
add_block(Builder *builder, BlockNumber block)
{
	Buffer		buffer = ReadBufferExtended(builder->rel, MAIN_FORKNUM, block, RBM_NORMAL,
											builder->strategy);
	HeapTupleData tuples[MaxHeapTuplesPerPage];
	int			n = 0;
	Page		page;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	for (OffsetNumber at = FirstOffsetNumber; at <= PageGetMaxOffsetNumber(page); at++)
	{
		ItemId		item = PageGetItemId(page, at);
		HeapTuple	tuple = &tuples[n];

		if (!ItemIdIsNormal(item))
			continue;
		tuple->t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple->t_len = ItemIdGetLength(item);
		tuple->t_tableOid = RelationGetRelid(builder->rel);
		ItemPointerSet(&tuple->t_self, block, at);
		/* dead to all for ever: of no interest, and its TOAST may be gone */
		if (HeapTupleSatisfiesVacuum(tuple, builder->oldest, buffer) != HEAPTUPLE_DEAD)
			n++;
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	for (int i = 0; i < n; i++)
		add_row(builder, &tuples[i]);
	ReleaseBuffer(buffer);
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
	Builder		builder = {.leaf = leaf,.rel = rel,.lane = lane};
	int64		deadline = clock_monotonic() + BUILD_CHUNK;
	BlockNumber block;
	BlockNumber nblocks;
	BlockNumber now_nblocks = RelationGetNumberOfBlocks(rel);

	builder.oldest = GetOldestNonRemovableTransactionId(rel);
	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);
	if (entry->generation != generation)
	{
		LWLockRelease(filter_shared->lock);
		return;
	}
	builder.columns = entry->columns;
	builder.words = filter_shared->words;
	builder.nblocks = filter_shared->memory_words / (BLOCK_ROWS * builder.words);
	if (entry->nblocks == InvalidBlockNumber)
		entry->nblocks = now_nblocks;
	block = entry->next_block;
	/* vacuum may have truncated it since: what is there again came later */
	nblocks = Min(entry->nblocks, now_nblocks);
	LWLockRelease(filter_shared->lock);

	builder.strategy = GetAccessStrategy(BAS_BULKREAD);
	for (; block < nblocks && clock_monotonic() < deadline; block++)
	{
		CHECK_FOR_INTERRUPTS();
		add_block(&builder, block);
	}
	FreeAccessStrategy(builder.strategy);

	LWLockAcquire(filter_shared->lock, LW_EXCLUSIVE);
	if (entry->generation == generation)
	{
		entry->next_block = block;
		entry->keys += builder.keys;
		if (block >= nblocks && !TEST_WITHOUT("filter_ready"))
		{
			advance_epoch();
			entry->state = FILTER_READY;
		}
	}
	LWLockRelease(filter_shared->lock);
}

/*
 * Where a leaf's lane stands: none, or being built or ready for the leaf's
 * present version; then a copy of it.
 */
static FilterState
lane_state(const Leaf *leaf, int *lane, Lane *copy)
{
	memset(copy, 0, sizeof(Lane));
	LWLockAcquire(filter_shared->lock, LW_SHARED);
	*lane = find_lane(leaf->oid);
	if (*lane >= 0 && filter_shared->lanes[*lane].version == leaf->version)
		*copy = filter_shared->lanes[*lane];
	LWLockRelease(filter_shared->lock);
	return copy->state;
}

/* What claims get from the filter for a leaf. */
FilterState
filter_state(const Leaf *leaf)
{
	int			lane;
	Lane		copy;

	if (filter_shared == NULL || leaf->version == 0)
		return FILTER_NONE;
	return lane_state(leaf, &lane, &copy);
}

/* Is it this leaf's turn to be written? */
static bool
is_written(const LeafSet *set, const Leaf *leaf)
{
	return leaf == catalog_leaf_for(set, Max(clock_wall(), clock_floor(&set->base)));
}

/* How many columns a leaf wants: at least, and at most. */
static Want
columns_wanted(const LeafSet *set, const Leaf *leaf, Relation rel)
{
	double		keys = (double) RelationGetNumberOfBlocks(rel) * BLOCK_KEYS;
	Want		want;

	want.least = filter_columns(keys, set->nleaves);
	want.most = filter_columns(2 * keys, set->nleaves);
	if (is_written(set, leaf))
	{
		LWLockAcquire(filter_shared->lock, LW_SHARED);
		want.least = want.most = Max(want.least, spare_columns(set->nleaves));
		LWLockRelease(filter_shared->lock);
	}
	return want;
}

/*
 * Is a ready lane to be built anew with as many columns as its leaf wants?  If
 * it has more, or if the leaf has outgrown it and there are enough.
 */
static bool
is_misfit(int columns, const Want *want)
{
	bool		room;

	if (columns > want->most)
		return true;
	if (columns * OUTGROWN > want->least)
		return false;
	LWLockAcquire(filter_shared->lock, LW_SHARED);
	room = find_columns(want->least) >= 0;
	LWLockRelease(filter_shared->lock);
	return room;
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
		Lane		copy;
		int			lane;

		if (leaf->version == 0)
			continue;
		if (lane_state(leaf, &lane, &copy) == FILTER_READY &&
			copy.columns == 1 && !is_written(set, leaf))
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
		if (copy.state != FILTER_BUILDING)
		{
			Want		want = columns_wanted(set, leaf, rel);

			if (copy.state == FILTER_READY && !is_misfit(copy.columns, &want))
			{
				leaf_close(rel, AccessShareLock);
				continue;
			}
			lane = reserve_lane(leaf, set->nleaves, &want, &copy.generation);
			copy.nblocks = InvalidBlockNumber;
		}
		if (lane >= 0)
		{
			if (copy.nblocks == InvalidBlockNumber)
				clear_lane(lane, copy.generation);
			TEST_POINT("filter-cleared");
			build_chunk(leaf, rel, lane, copy.generation);
		}
		leaf_close(rel, AccessShareLock);
		if (lane >= 0)
			return !TEST_WITHOUT("filter_ready");
	}
	return false;
}
