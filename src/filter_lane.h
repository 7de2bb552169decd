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

#define WORD_COLUMNS	64
#define MAX_COLUMNS		FILTER_LEAVES
#define MAX_WORDS		(MAX_COLUMNS / WORD_COLUMNS)	/* in a row */
#define CHOICES			32		/* columns that a lane may have: 5 bits of the
								 * digest */
#define BLOCK_ROWS		512		/* rows in a block: 9 bits of the digest */
#define ROW_BITS		9
#define KEY_ROWS		7		/* rows of a key: 63 bits of the digest */

/*
 * What a leaf has of the matrix: a power of two of adjacent columns, from a
 * multiple of their number on, so that they are in one word.  The lane's number
 * is that of the first.
 */
typedef struct Lane
{
	Oid			dboid;			/* InvalidOid: no lane begins here */
	Oid			leaf;
	int			columns;
	uint64		version;		/* under which it was or is being built */
	uint64		generation;		/* advances when it is given away */
	FilterState state;
	TimestampTz lower;			/* of the leaf */
	BlockNumber next_block;		/* the builder's progress */
	BlockNumber nblocks;		/* what it has to read */
	uint64		keys;			/* that it has found */
} Lane;

typedef struct FilterShared
{
	LWLock	   *lock;
	pg_atomic_uint64 epoch;
	int			words;			/* in a row */
	uint64		memory_words;	/* in the matrix */
	Lane		lanes[MAX_COLUMNS]; /* by number */
} FilterShared;

extern FilterShared *filter_shared;
extern pg_atomic_uint64 *filter_matrix;

/*
 * What decides on a key's block and column: bytes 4 to 7 of its digest,
 * whatever the byte order of the machine.  Not the first bytes, which need not be
 * random: keys that are ordered by time may have digests that begin alike, and
 * would all meet in a few blocks.
 */
static inline uint32
position_of(const IdemDigest *digest)
{
	uint32		position;

	memcpy(&position, digest->bytes + sizeof(position), sizeof(position));
	return position;
}

/* Where a key's block begins, in words. */
static inline uint64
block_of(const IdemDigest *digest, int words, uint64 nblocks)
{
	return ((position_of(digest) * nblocks) >> 32) * (BLOCK_ROWS * words);
}

/*
 * Which of the columns of a lane a key is in, modulo their number: by the last
 * bits of what block_of() takes the first of.
 */
static inline int
choice_of(const IdemDigest *digest)
{
	return position_of(digest) % CHOICES;
}

/* The columns of a lane, in the word that they are in. */
static inline uint64
columns_mask(int lane, int columns)
{
	return ((UINT64CONST(1) << columns) - 1) << (lane % WORD_COLUMNS);
}

/* Set a key's bits in a lane. */
static inline void
set_bits(int lane, int columns, const IdemDigest *digest, int words, uint64 nblocks)
{
	int			column = lane + choice_of(digest) % columns;
	pg_atomic_uint64 *block = filter_matrix + block_of(digest, words, nblocks) + column / WORD_COLUMNS;
	uint64		rows = digest_half(digest, 1);
	uint64		bit = UINT64CONST(1) << (column % WORD_COLUMNS);

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
