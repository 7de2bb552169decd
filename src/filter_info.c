/*-------------------------------------------------------------------------
 *
 * filter_info.c
 *	  What the filter is good for: how full it is, and how large it should be.
 *
 *-------------------------------------------------------------------------
 */
#include "filter.h"

#include <math.h>

#include "miscadmin.h"

#include "filter_lane.h"

/* blocks that are looked at to estimate how full a lane is */
#define SAMPLE_BLOCKS	64

/* what the keys' uneven spread over the blocks adds to the looks in vain */
#define UNEVENNESS		1.5

/*
 * How full a lane is, from 0 to 1, and how often it says maybe for a key that is
 * not there, by a sample of whole blocks: some are fuller than others.
 */
static double
lane_fill(int lane, int words, double *maybe)
{
	uint64		nblocks = filter_shared->memory_words / (BLOCK_ROWS * words);
	uint64		step = Max(nblocks / SAMPLE_BLOCKS, 1);
	uint64		bit = UINT64CONST(1) << (lane % WORD_LANES);
	double		fill = 0;
	int			seen = 0;

	*maybe = 0;
	for (uint64 block = 0; block < nblocks; block += step)
	{
		int			set = 0;

		for (uint64 row = block * BLOCK_ROWS; row < (block + 1) * BLOCK_ROWS; row++)
		{
			if (pg_atomic_read_u64(filter_matrix + row * words + lane / WORD_LANES) & bit)
				set++;
		}
		fill += (double) set / BLOCK_ROWS;
		*maybe += pow((double) set / BLOCK_ROWS, KEY_ROWS);
		seen++;
	}
	*maybe /= seen;
	return fill / seen;
}

/* How many words a row needs for so many leaves; it has never fewer than now. */
static int
words_for(int leaves)
{
	int			words = filter_shared->words;

	while (words * WORD_LANES < leaves && words < MAX_WORDS)
		words *= 2;
	return words;
}

/* The fill of a lane at which so many leaves cost FILTER_FALSE_LOOKS together. */
static double
fill_for(int leaves)
{
	/* blocks are unevenly full, which costs up to half as many looks again */
	return pow(FILTER_FALSE_LOOKS / UNEVENNESS / leaves, 1.0 / KEY_ROWS);
}

/* How many keys each of so many leaves may hold, with this much memory. */
double
filter_capacity(double bytes, int leaves)
{
	double		rows = bytes / (sizeof(uint64) * words_for(leaves));

	return -rows * log(1 - fill_for(leaves)) / KEY_ROWS;
}

/* How much memory so many leaves need that hold this many keys each. */
double
filter_bytes_for(double keys, int leaves)
{
	double		rows = -keys * KEY_ROWS / log(1 - fill_for(leaves));

	return rows * sizeof(uint64) * words_for(leaves);
}

/* What the memory is good for. */
void
filter_info(FilterInfo *info)
{
	memset(info, 0, sizeof(FilterInfo));
	if (filter_shared == NULL)
		return;
	LWLockAcquire(filter_shared->lock, LW_SHARED);
	info->bytes = filter_shared->memory_words * sizeof(uint64);
	info->lanes = filter_shared->words * WORD_LANES;
	info->rows = filter_shared->memory_words / filter_shared->words;
	for (int lane = 0; lane < info->lanes; lane++)
	{
		const Lane *entry = &filter_shared->lanes[lane];
		double		fill;
		double		maybe;

		if (entry->dboid != MyDatabaseId || entry->state != FILTER_READY)
			continue;
		fill = Min(lane_fill(lane, filter_shared->words, &maybe), 0.999);
		info->false_looks += maybe;
		info->fullest = Max(info->fullest, -(double) info->rows * log(1 - fill) / KEY_ROWS);
	}
	LWLockRelease(filter_shared->lock);
}
