/*-------------------------------------------------------------------------
 *
 * filter.c
 *	  A filter over the leaves: this key is definitely not there.
 *
 * A look into a leaf costs about as much as the rest of a claim, and there may
 * be ninety leaves.  A Bloom filter in shared memory rules leaves out, all of
 * them in one go.  It never says that a key is there, only that it is not.
 *
 * The memory is a matrix of bits.  A leaf has a lane: one column, or 2, 4, up to
 * 32 side by side.  A key is in one column of each lane, chosen by bits of its
 * digest, and in a few rows, by others; a leaf that holds the key has its bit set
 * in each.  The rows' words are ANDed, then what is left is masked with the columns
 * that the key can be in, and the bits that remain are the leaves to look into.
 * A row has as many 64-bit words as the leaves need.  A key's rows lie together
 * in a block of 512, so a look touches a few cache lines and a page or two, and
 * the insertion that follows finds them in the cache.
 *
 * With n columns a lane is an n-th as full.  A closed leaf has as many as its
 * keys need; the one that is written has a share of those that nobody needs,
 * because nobody knows how many keys will come.  A lane that does not fit any more
 * is given up for another and built anew, which is no other case than a leaf
 * that has no lane yet.
 *
 * The promise: if a leaf's lane is ready, its bits are set for every key that a
 * committed or in-progress claim has put into the leaf, and for every key that
 * came by SQL, once its COMMIT has returned.  What that rests on:
 *
 *	Writers.  A claim inserts its row and the index entry, then looks which lane
 *	the leaf has, sets the bits whatever the lane's state is, looks again, and
 *	only then gives up the key lock.  For rows that come by INSERT, UPDATE, COPY or
 *	logical apply an AFTER ROW trigger, ENABLE ALWAYS, does the same at the end of
 *	the statement, before they can be committed.
 *
 *	The builder.  It gives the lane to the leaf, where every writer that looks
 *	from then on sees it, clears its columns, and then reads every row of the
 *	heap, in progress and dead ones too: what is prepared now may commit later.
 *	A row that it does not find was inserted later than that, by a writer that
 *	saw the lane.
 *
 *	Readers.  They note the epoch, read the bits, and see that the epoch is
 *	the same.  Whatever changes the meaning of a column, which leaf's it is and
 *	which keys it is for, advances the epoch first, and it is cleared only after
 *	that.
 *
 *	The version.  A lane is good for the relfilenode and the version of the
 *	trigger's pg_trigger row under which it was built.  A truncated or
 *	rewritten leaf, or one whose trigger was disabled for a while (as pg_restore
 *	--disable-triggers does), is not covered until it is built anew.
 *
 * A late writer may set bits in a column that is another leaf's by now, or under
 * another layout: a look too many, never one too few.
 *
 * Nothing of this outlives a restart, a crash or a promotion: then the matrix
 * is empty and no lane is ready.  There is no builder on a standby.
 *
 * Locking: filter_shared->lock for the lanes, taken exclusively by who changes one, and
 * the epoch advances under it.  Bits are set without it, by atomic operations; to
 * clear a bit that means something would be a lost key, so they are cleared only
 * under the lock, in shared mode, by who has seen there that the lane is still
 * the one that it is clearing.  The lock is taken after all others, and nothing
 * is waited for while it is held.
 *
 * Rejected: a filter of its own for each leaf (a cache miss for each of them in
 * every claim; ninety leaves cost a microsecond and more); a trigger that marks
 * the lane stale instead of setting the bits (a bulk load would leave the
 * lanes useless, and the builder would have to wait for every writer); counting
 * filters (four times the memory, to be able to forget keys that are hardly
 * ever forgotten).
 *
 *-------------------------------------------------------------------------
 */
#include "filter.h"

#include "access/htup_details.h"
#include "catalog/pg_type_d.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "filter_lane.h"
#include "guc.h"
#include "testpoint.h"

PG_FUNCTION_INFO_V1(idemq_filter_row);

/* The lane of a leaf. */
typedef struct LeafLane
{
	int			lane;			/* -1: none */
	int			columns;
	bool		ready;
} LeafLane;

/* What this backend knows of the lanes of its leaves. */
typedef struct FilterMap
{
	uint64		epoch;
	uint64		serial;			/* of the set of leaves; 0: none */
	int			words;
	uint64		nblocks;
	uint64		ready[CHOICES][MAX_WORDS];	/* where a key can be, by choice */
	Leaf	   *leaf_of[MAX_COLUMNS];
	int			room;
	LeafLane   *lane_of;		/* by number in the set */
	int			nuncovered;
	Leaf	  **uncovered;		/* leaves without a ready lane */
	Leaf	  **candidates;		/* room for an answer */
} FilterMap;

FilterShared *filter_shared = NULL;
pg_atomic_uint64 *filter_matrix = NULL;
static FilterMap map;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

/* Bytes of the matrix: whole blocks of the widest rows. */
static Size
matrix_size(void)
{
	Size		block = BLOCK_ROWS * MAX_WORDS * sizeof(uint64);

	return (Size) idemq_filter_memory * 1024 / block * block;
}

/* Ask for the memory. */
static void
request_memory(void)
{
	if (previous_request_hook)
		previous_request_hook();
	if (matrix_size() == 0)
		return;
	RequestAddinShmemSpace(add_size(MAXALIGN(sizeof(FilterShared)),
									matrix_size() + BLCKSZ));
	RequestNamedLWLockTranche("idemq_filter", 1);
}

/* Set the memory up, or find it. */
static void
startup_memory(void)
{
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();
	if (matrix_size() == 0)
		return;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	filter_shared = ShmemInitStruct("idemq filter", sizeof(FilterShared), &found);
	if (!found)
	{
		memset(filter_shared, 0, sizeof(FilterShared));
		filter_shared->lock = &(GetNamedLWLockTranche("idemq_filter"))->lock;
		pg_atomic_init_u64(&filter_shared->epoch, 1);
		filter_shared->words = 1;
		filter_shared->memory_words = matrix_size() / sizeof(uint64);
	}
	filter_matrix = ShmemInitStruct("idemq filter matrix", matrix_size() + BLCKSZ, &found);
	filter_matrix = (pg_atomic_uint64 *) TYPEALIGN(4096, filter_matrix);
	if (!found)
		memset(filter_matrix, 0, matrix_size());
	LWLockRelease(AddinShmemInitLock);
}

/* Hook in, when the postmaster loads us. */
void
filter_init(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_memory;
}

/* Make room in the map for a set of leaves. */
static void
size_map(int nleaves)
{
	if (nleaves <= map.room)
		return;
	if (map.lane_of != NULL)
		pfree(map.lane_of);
	if (map.uncovered != NULL)
		pfree(map.uncovered);
	if (map.candidates != NULL)
		pfree(map.candidates);
	map.lane_of = NULL;
	map.uncovered = NULL;
	map.candidates = NULL;
	map.room = 0;
	map.lane_of = MemoryContextAlloc(TopMemoryContext, sizeof(LeafLane) * nleaves);
	map.uncovered = MemoryContextAlloc(TopMemoryContext, sizeof(Leaf *) * nleaves);
	map.candidates = MemoryContextAlloc(TopMemoryContext, sizeof(Leaf *) * nleaves);
	map.room = nleaves;
}

/* Note the lane of a leaf. */
static void
map_lane(Leaf *leaf, LeafLane *out, int lane, const Lane *entry)
{
	out->lane = lane;
	out->columns = entry->columns;
	out->ready = entry->state == FILTER_READY &&
		entry->version == leaf->version && leaf->version != 0;
	if (!out->ready)
		return;
	for (int choice = 0; choice < CHOICES; choice++)
	{
		int			column = lane + choice % entry->columns;

		map.leaf_of[column] = leaf;
		map.ready[choice][column / WORD_COLUMNS] |= UINT64CONST(1) << (column % WORD_COLUMNS);
	}
}

/* See that the map is of this set and of the present epoch. */
static void
update_map(LeafSet *set)
{
	if (map.serial == set->serial && map.epoch == pg_atomic_read_u64(&filter_shared->epoch))
		return;

	map.serial = 0;
	size_map(set->nleaves);
	for (int i = 0; i < set->nleaves; i++)
	{
		map.lane_of[i].lane = -1;
		map.lane_of[i].ready = false;
	}
	memset(map.ready, 0, sizeof(map.ready));

	LWLockAcquire(filter_shared->lock, LW_SHARED);
	map.epoch = pg_atomic_read_u64(&filter_shared->epoch);
	map.words = filter_shared->words;
	map.nblocks = filter_shared->memory_words / (BLOCK_ROWS * map.words);
	for (int lane = 0; lane < map.words * WORD_COLUMNS; lane++)
	{
		const Lane *entry = &filter_shared->lanes[lane];

		if (entry->dboid != MyDatabaseId)
			continue;
		for (int i = 0; i < set->nleaves; i++)
		{
			if (set->leaves[i].oid == entry->leaf)
			{
				map_lane(&set->leaves[i], &map.lane_of[i], lane, entry);
				break;
			}
		}
	}
	LWLockRelease(filter_shared->lock);

	map.nuncovered = 0;
	for (int i = 0; i < set->nleaves; i++)
	{
		if (!map.lane_of[i].ready)
			map.uncovered[map.nuncovered++] = &set->leaves[i];
	}
	map.serial = set->serial;
}

/* Every leaf. */
int
filter_all(LeafSet *set, Leaf ***candidates)
{
	map.serial = 0;
	size_map(set->nleaves);
	for (int i = 0; i < set->nleaves; i++)
		map.candidates[i] = &set->leaves[i];
	*candidates = map.candidates;
	return set->nleaves;
}

/* The leaves that may hold a key: how many, and which. */
int
filter_candidates(LeafSet *set, const IdemDigest *digest, Leaf ***candidates)
{
	int			n;

	if (filter_shared == NULL)
		return filter_all(set, candidates);
	do
	{
		pg_atomic_uint64 *block;
		uint64		rows = digest_half(digest, 1);
		uint64		left[MAX_WORDS];

		update_map(set);
		TEST_POINT("filter-mapped");
		block = filter_matrix + block_of(digest, map.words, map.nblocks);
		memcpy(left, map.ready[choice_of(digest)], sizeof(left));
		for (int i = 0; i < KEY_ROWS; i++)
		{
			pg_atomic_uint64 *row = block + (rows & (BLOCK_ROWS - 1)) * map.words;

			for (int w = 0; w < map.words; w++)
				left[w] &= pg_atomic_read_u64(row + w);
			rows >>= ROW_BITS;
		}
		pg_read_barrier();

		n = 0;
		for (int w = 0; w < map.words; w++)
		{
			while (left[w] != 0)
			{
				int			column = w * WORD_COLUMNS + pg_rightmost_one_pos64(left[w]);

				map.candidates[n++] = map.leaf_of[column];
				left[w] &= left[w] - 1;
			}
		}
		for (int i = 0; i < map.nuncovered; i++)
			map.candidates[n++] = map.uncovered[i];
	} while (map.epoch != pg_atomic_read_u64(&filter_shared->epoch) &&
			 !TEST_WITHOUT("filter_epoch"));
	*candidates = map.candidates;
	return n;
}

/*
 * Have what a look at this key will read brought into the cache; where that is,
 * by the last look.  For who has something else to do meanwhile.
 */
void
filter_prefetch(const IdemDigest *digest)
{
#ifdef __GNUC__
	pg_atomic_uint64 *block;
	uint64		rows = digest_half(digest, 1);

	if (filter_shared == NULL || map.serial == 0)
		return;
	block = filter_matrix + block_of(digest, map.words, map.nblocks);
	for (int i = 0; i < KEY_ROWS; i++)
	{
		__builtin_prefetch(block + (rows & (BLOCK_ROWS - 1)) * map.words);
		rows >>= ROW_BITS;
	}
#endif
}

/* A row for this key is in the leaf: set its bits. */
void
filter_add(LeafSet *set, Oid leaf, const IdemDigest *digest)
{
	if (filter_shared == NULL || TEST_WITHOUT("filter_add"))
		return;
	do
	{
		/* the row, before the look at the lanes */
		pg_memory_barrier();
		update_map(set);
		for (int i = 0; i < set->nleaves; i++)
		{
			if (set->leaves[i].oid != leaf)
				continue;
			if (map.lane_of[i].lane >= 0)
				set_bits(map.lane_of[i].lane, map.lane_of[i].columns, digest,
						 map.words, map.nblocks);
			break;
		}
		/* the bits, before the second look */
		pg_memory_barrier();
	} while (map.epoch != pg_atomic_read_u64(&filter_shared->epoch));
}

/* A text column of a row; NULL if it is null, as when somebody has dropped NOT NULL. */
static text *
text_of(HeapTuple tuple, TupleDesc desc, AttrNumber att)
{
	Datum		datum;
	bool		isnull;

	if (att == InvalidAttrNumber || TupleDescAttr(desc, att - 1)->atttypid != TEXTOID)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("columns \"scope\" and \"key\" of a partition of \"%s.%s\" must be of type text",
						IDEMQ_SCHEMA, IDEMQ_PROCESSED)));
	datum = heap_getattr(tuple, att, desc, &isnull);
	return isnull ? NULL : DatumGetTextPP(datum);
}

/* idemq._filter_row(): AFTER INSERT OR UPDATE trigger of every leaf. */
Datum
idemq_filter_row(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	HeapTuple	tuple;
	TupleDesc	desc;
	Oid			relid;
	text	   *scope;
	text	   *key;
	IdemDigest	digest;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function is only for AFTER ROW triggers")));
	if (filter_shared == NULL)
		return PointerGetDatum(NULL);

	tuple = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	relid = RelationGetRelid(data->tg_relation);
	desc = RelationGetDescr(data->tg_relation);
	scope = text_of(tuple, desc, get_attnum(relid, "scope"));
	key = text_of(tuple, desc, get_attnum(relid, "key"));
	if (scope == NULL || key == NULL)
		return PointerGetDatum(NULL);	/* nobody can claim that */
	digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
				   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &digest);
	filter_add(catalog_leaves(), relid, &digest);
	return PointerGetDatum(NULL);
}
