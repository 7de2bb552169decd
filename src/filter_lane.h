/*-------------------------------------------------------------------------
 *
 * filter_lane.h
 *	  The matrix and its lanes, for the rooms of the filter alone.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_FILTER_LANE_H
#define IDEMQ_FILTER_LANE_H

#include "idemq.h"

#include "port/atomics.h"
#include "storage/block.h"
#include "storage/lwlock.h"

#include "digest.h"
#include "filter.h"

#define WORD_LANES		64		/* lanes in a word */
#define MAX_WORDS		8		/* words in a row */
#define MAX_LANES		(WORD_LANES * MAX_WORDS)
#define BLOCK_ROWS		512		/* rows in a block: 9 bits of the digest */
#define ROW_BITS		9
#define KEY_ROWS		7		/* rows of a key: 63 bits of the digest */

/* One column of the matrix. */
typedef struct Lane
{
	Oid			dboid;			/* InvalidOid: free */
	Oid			leaf;
	uint64		version;		/* under which it was or is being built */
	uint64		generation;		/* advances when it is given away */
	FilterState state;
	TimestampTz lower;			/* of the leaf */
	BlockNumber next_block;		/* the builder's progress */
	BlockNumber nblocks;		/* what it has to read */
} Lane;

typedef struct FilterShared
{
	LWLock	   *lock;
	pg_atomic_uint64 epoch;
	int			words;			/* in a row */
	uint64		memory_words;	/* in the matrix */
	Lane		lanes[MAX_LANES];
} FilterShared;

extern FilterShared *filter_shared;
extern pg_atomic_uint64 *filter_matrix;

/* Where a key's block begins, in words. */
static inline uint64
block_of(const IdemDigest *digest, int words, uint64 nblocks)
{
	uint64		half = digest_half(digest, 0);

	return (((half >> 32) * nblocks) >> 32) * (BLOCK_ROWS * words);
}

/* Set a key's bits in a lane. */
static inline void
set_bits(int lane, const IdemDigest *digest, int words, uint64 nblocks)
{
	pg_atomic_uint64 *block = filter_matrix + block_of(digest, words, nblocks) + lane / WORD_LANES;
	uint64		rows = digest_half(digest, 1);
	uint64		bit = UINT64CONST(1) << (lane % WORD_LANES);

	for (int i = 0; i < KEY_ROWS; i++)
	{
		pg_atomic_uint64 *word = block + (rows & (BLOCK_ROWS - 1)) * words;

		if ((pg_atomic_read_u64(word) & bit) == 0)
			pg_atomic_fetch_or_u64(word, bit);
		rows >>= ROW_BITS;
	}
}

/* The meaning of a lane changes; the lock is held. */
static inline void
advance_epoch(void)
{
	Assert(LWLockHeldByMeInMode(filter_shared->lock, LW_EXCLUSIVE));
	pg_atomic_fetch_add_u64(&filter_shared->epoch, 1);
}

#endif							/* IDEMQ_FILTER_LANE_H */
