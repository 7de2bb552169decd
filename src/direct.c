/*-------------------------------------------------------------------------
 *
 * direct.c
 *	  Single rows of our own tables, without the executor.
 *
 * A fetch and an ack look up a dozen rows by their keys, and write two.  To set up
 * and tear down a plan costs ten times what that costs.
 *
 * A scan sees what a statement would that begins now in a READ COMMITTED
 * transaction: it takes a new snapshot, after it has locked the table.  No
 * rights are checked here and no row security applies: whoever calls has checked
 * what the user may, and the tables are ours.  Their columns are known by their
 * places, as CREATE TABLE has them.
 *
 * Locking: on table and index, those of SELECT and INSERT; the transaction keeps
 * them, as it would.
 *
 *-------------------------------------------------------------------------
 */
#include "direct.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_index.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog.h"
#include "compat.h"

/*
 * Open an index of a table that is locked, which keeps it, but not what it is called:
 * REINDEX CONCURRENTLY gives its name to another one, and the lock may bring the news.
 */
static Relation
open_index(Relation rel, const char *name)
{
	Oid			relid = catalog_relation(name);

	for (;;)
	{
		Relation	index = index_open(relid, AccessShareLock);
		Oid			again;

		if (index->rd_index->indrelid == RelationGetRelid(rel) && index->rd_index->indisvalid)
			return index;
		again = catalog_relation(name);
		if (again == relid)
			elog(ERROR, "index \"%s.%s\" cannot be used", IDEMQ_SCHEMA, name);
		index_close(index, AccessShareLock);
		relid = again;
	}
}

/* Look into a table of so many columns, at least; index NULL: at all of it. */
void
direct_open(DirectScan *scan, const char *table, int ncolumns, const char *index,
			int nkeys, const DirectKey *keys)
{
	ScanKeyData scan_keys[DIRECT_KEYS];

	memset(scan, 0, sizeof(DirectScan));
	scan->rel = table_open(catalog_relation(table), AccessShareLock);
	if (RelationGetDescr(scan->rel)->natts < ncolumns)
		elog(ERROR, "table \"%s.%s\" has too few columns", IDEMQ_SCHEMA, table);
	scan->slot = table_slot_create(scan->rel, NULL);
	if (index == NULL)
	{
		scan->snapshot = RegisterSnapshot(GetLatestSnapshot());
		scan->by_table = table_beginscan(scan->rel, scan->snapshot, 0, NULL);
		return;
	}

	scan->index = open_index(scan->rel, index);
	scan->snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan->by_index = compat_index_beginscan(scan->rel, scan->index, scan->snapshot, nkeys);
	for (int i = 0; i < nkeys; i++)
		ScanKeyEntryInitialize(&scan_keys[i], 0, i + 1, keys[i].strategy, InvalidOid,
							   scan->index->rd_indcollation[i], keys[i].function,
							   keys[i].value);
	index_rescan(scan->by_index, scan_keys, nkeys, NULL, 0);
}

/* Find the next row; false if there is none. */
bool
direct_next(DirectScan *scan, ScanDirection direction)
{
	bool		found = scan->by_index != NULL
		? index_getnext_slot(scan->by_index, direction, scan->slot)
		: table_scan_getnextslot(scan->by_table, direction, scan->slot);

	if (found)
		slot_getallattrs(scan->slot);
	return found;
}

/* Enough.  What was read by reference is gone with the row. */
void
direct_close(DirectScan *scan)
{
	if (scan->by_index != NULL)
		index_endscan(scan->by_index);
	else
		table_endscan(scan->by_table);
	ExecDropSingleTupleTableSlot(scan->slot);
	UnregisterSnapshot(scan->snapshot);
	if (scan->index != NULL)
		index_close(scan->index, NoLock);
	table_close(scan->rel, NoLock);
}

/* Is a table as the extension makes it? */
static bool
is_as_made(Relation rel, int ncolumns)
{
	const TupleConstr *constraints = RelationGetDescr(rel)->constr;

	return rel->rd_rel->relam == HEAP_TABLE_AM_OID &&
		RelationGetDescr(rel)->natts == ncolumns && !rel->rd_rel->relhastriggers &&
		(constraints == NULL || constraints->num_check == 0);
}

/* Is it an index like those that the extension makes? */
static bool
is_plain(Relation index)
{
	return index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisready &&
		index->rd_index->indimmediate && !index->rd_index->indisexclusion &&
		RelationGetIndexExpressions(index) == NIL && RelationGetIndexPredicate(index) == NIL;
}

/* Open the indexes of a table; NIL if there is one that is not plain, or none. */
static List *
open_indexes(Relation rel)
{
	List	   *oids = RelationGetIndexList(rel);
	List	   *indexes = NIL;
	bool		plain = true;
	ListCell   *cell;

	foreach(cell, oids)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);

		plain = plain && is_plain(index);
		indexes = lappend(indexes, index);
	}
	list_free(oids);
	if (plain)
		return indexes;
	foreach(cell, indexes)
		index_close(lfirst(cell), NoLock);
	list_free(indexes);
	return NIL;
}

/*
 * Insert a row, and make it visible to what follows.  False if somebody has added
 * to the table what only the executor knows to handle: then nothing was done.
 */
bool
direct_insert(const char *table, int ncolumns, Datum *values, bool *isnull)
{
	Relation	rel = table_open(catalog_relation(table), RowExclusiveLock);
	List	   *indexes = is_as_made(rel, ncolumns) ? open_indexes(rel) : NIL;
	HeapTuple	tuple;
	ListCell   *cell;

	if (indexes == NIL)
	{
		table_close(rel, NoLock);
		return false;
	}
	tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	heap_insert(rel, tuple, GetCurrentCommandId(true), 0, NULL);
	foreach(cell, indexes)
	{
		Relation	index = lfirst(cell);
		Datum		keys[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		for (int i = 0; i < index->rd_index->indnatts; i++)
		{
			keys[i] = values[index->rd_index->indkey.values[i] - 1];
			nulls[i] = isnull[index->rd_index->indkey.values[i] - 1];
		}
		index_insert(index, keys, nulls, &tuple->t_self, rel,
					 index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
					 false, NULL);
		index_close(index, NoLock);
	}
	list_free(indexes);
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	return true;
}
