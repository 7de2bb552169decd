/*-------------------------------------------------------------------------
 *
 * direct.h
 *	  Single rows of our own tables, without the executor.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_DIRECT_H
#define IDEMQ_DIRECT_H

#include "idemq.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#define DIRECT_KEYS	3

/* What is looked for: the leading columns of an index. */
typedef struct DirectKey
{
	StrategyNumber strategy;
	RegProcedure function;
	Datum		value;
} DirectKey;

#define DIRECT_EQUAL(type, datum) {BTEqualStrategyNumber, type, datum}
#define DIRECT_FROM(type, datum) {BTGreaterEqualStrategyNumber, type, datum}

/* A look into a table. */
typedef struct DirectScan
{
	Relation	rel;
	Relation	index;			/* NULL: the table is read as it lies */
	IndexScanDesc by_index;
	TableScanDesc by_table;
	Snapshot	snapshot;
	TupleTableSlot *slot;		/* the row that was found, all of it */
} DirectScan;

extern void direct_open(DirectScan *scan, const char *table, int ncolumns, const char *index,
						int nkeys, const DirectKey *keys);
extern bool direct_next(DirectScan *scan, ScanDirection direction);
extern void direct_close(DirectScan *scan);
extern bool direct_insert(const char *table, int ncolumns, Datum *values, bool *isnull);

/* A column of the row that was found, counted from 0; 0 for null. */
static inline Datum
direct_value(const DirectScan *scan, int column)
{
	return scan->slot->tts_isnull[column] ? (Datum) 0 : scan->slot->tts_values[column];
}

/* Is it null? */
static inline bool
direct_is_null(const DirectScan *scan, int column)
{
	return scan->slot->tts_isnull[column];
}

#endif							/* IDEMQ_DIRECT_H */
