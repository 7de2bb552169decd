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

/* how often a claim of a new key asks the filter */
#define CLAIM_LOOKS		2

/*
 * How full a column is, from 0 to 1, and how often it says maybe for a key that
 * is not there, by a sample of whole blocks: some are fuller than others.
 */
static double
column_fill(int column, int words, double *maybe)
{
	uint64		nblocks = filter_shared->memory_words / (BLOCK_ROWS * words);
	uint64		step = Max(nblocks / SAMPLE_BLOCKS, 1);
	uint64		bit = UINT64CONST(1) << (column % WORD_COLUMNS);
	double		fill = 0;
	int			seen = 0;

	*maybe = 0;
	for (uint64 block = 0; block < nblocks; block += step)
	{
		int			set = 0;

		for (uint64 row = block * BLOCK_ROWS; row < (block + 1) * BLOCK_ROWS; row++)
		{
			if (pg_atomic_read_u64(filter_matrix + row * words + column / WORD_COLUMNS) & bit)
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

	while (words * WORD_COLUMNS < leaves && words < MAX_WORDS)
		words *= 2;
	return words;
}

/* How many columns each of so many leaves can have. */
static int
columns_for(int leaves)
{
	int			columns = 1;

	while (columns < CHOICES && 2 * columns * leaves <= words_for(leaves) * WORD_COLUMNS)
		columns *= 2;
	return columns;
}

/*
 * The fill of a column at which so many leaves cost FILTER_FALSE_LOOKS together.
 * Those that have twice as many columns as the others, half of the spare ones,
 * cost next to nothing.
 */
static double
fill_for(int leaves)
{
	int			columns = columns_for(leaves);
	int			spare = Max(words_for(leaves) * WORD_COLUMNS - columns * leaves, 0);
	double		crowded = leaves - spare / (2.0 * columns);

	return pow(FILTER_FALSE_LOOKS / CLAIM_LOOKS / UNEVENNESS / crowded, 1.0 / KEY_ROWS);
}

/* How many keys a column may hold, with this much memory. */
static double
column_capacity(double bytes, int leaves)
{
	double		rows = bytes / (sizeof(uint64) * words_for(leaves));

	return -rows * log(1 - fill_for(leaves)) / KEY_ROWS;
}

/* How many columns one of so many leaves needs that holds so many keys. */
int
filter_columns(double keys, int leaves)
{
	double		capacity = column_capacity(filter_shared->memory_words * sizeof(uint64), leaves);
	int			columns = 1;

	while (columns < CHOICES && columns * capacity < keys)
		columns *= 2;
	return columns;
}

/* How many keys each of so many leaves may hold, with this much memory. */
double
filter_capacity(double bytes, int leaves)
{
	return column_capacity(bytes, leaves) * columns_for(leaves);
}

/* How much memory so many leaves need that hold this many keys each. */
double
filter_bytes_for(double keys, int leaves)
{
	double		rows = -keys / columns_for(leaves) * KEY_ROWS / log(1 - fill_for(leaves));

	return rows * sizeof(uint64) * words_for(leaves);
}

/* What the memory is good for. */
void
filter_info(FilterInfo *info)
{
	double		rows;

	memset(info, 0, sizeof(FilterInfo));
	if (filter_shared == NULL)
		return;
	LWLockAcquire(filter_shared->lock, LW_SHARED);
	info->bytes = filter_shared->memory_words * sizeof(uint64);
	info->full = filter_shared->words == MAX_WORDS;
	rows = filter_shared->memory_words / filter_shared->words;
	for (int lane = 0; lane < filter_shared->words * WORD_COLUMNS; lane++)
	{
		const Lane *entry = &filter_shared->lanes[lane];
		double		keys = 0;

		if (!OidIsValid(entry->dboid) || entry->columns > 1)
			info->full = false;
		if (entry->dboid != MyDatabaseId || entry->state != FILTER_READY)
			continue;
		for (int column = lane; column < lane + entry->columns; column++)
		{
			double		maybe;
			double		fill = Min(column_fill(column, filter_shared->words, &maybe), 0.999);

			info->false_looks += CLAIM_LOOKS * maybe / entry->columns;
			keys += -rows * log(1 - fill) / KEY_ROWS;
		}
		/* a lane that is full to the brim does not tell how many there are */
		info->fullest = Max(info->fullest, Max(keys, entry->keys));
	}
	LWLockRelease(filter_shared->lock);
}
