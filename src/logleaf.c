/*-------------------------------------------------------------------------
 *
 * logleaf.c
 *	  The leaves of the log, for reading.
 *
 * The list of leaves is read anew by each reader, after its snapshot was taken.
 * A leaf is attached before anything can be written to it, so it is in the list if
 * it holds anything that the snapshot shows.
 *
 * Locking: ACCESS SHARE on each leaf while it is read.  Who drops a leaf
 * waits for nobody and makes nobody wait for longer than the drop takes.
 *
 *-------------------------------------------------------------------------
 */
#include "logleaf.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "catalog.h"
#include "compat.h"

static const char *const column_names[LOG_COLUMNS] = {
	"seq", "xid", "origin", "created_at", "not_before", "id", "aggregatetype",
	"aggregateid", "type", "payload", "body", "headers", "cause"
};

/* The number of a column; it may be what it is in another leaf. */
static AttrNumber
find_column(Relation rel, const char *name, AttrNumber guess)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (guess > 0 && guess <= desc->natts &&
		strcmp(NameStr(TupleDescAttr(desc, guess - 1)->attname), name) == 0)
		return guess;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->attisdropped && strcmp(NameStr(att->attname), name) == 0)
			return att->attnum;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("partition \"%s\" of \"%s.%s\" has no column \"%s\"",
					RelationGetRelationName(rel), IDEMQ_SCHEMA, IDEMQ_OUTBOX, name)));
	return InvalidAttrNumber;	/* keep the compiler quiet */
}

/* Is this a B-tree on just these columns that can be asked? */
static bool
is_index_on(Relation index, int natts, const AttrNumber *atts)
{
	Form_pg_index form = index->rd_index;

	if (!form->indisvalid || form->indnkeyatts != natts ||
		RelationGetIndexPredicate(index) != NIL ||
		index->rd_rel->relam != BTREE_AM_OID)
		return false;
	for (int i = 0; i < natts; i++)
	{
		if (form->indkey.values[i] != atts[i] ||
			(index->rd_indoption[i] & INDOPTION_DESC) != 0)
			return false;
	}
	return true;
}

/* Open the two indexes of a leaf. */
static void
open_indexes(LogLeaf *leaf)
{
	AttrNumber	seq_atts[] = {leaf->att[LOG_SEQ]};
	AttrNumber	xid_atts[] = {leaf->att[LOG_XID], leaf->att[LOG_SEQ]};
	List	   *list = RelationGetIndexList(leaf->rel);
	ListCell   *cell;

	leaf->by_seq = NULL;
	leaf->by_xid = NULL;
	foreach(cell, list)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (leaf->by_seq == NULL && is_index_on(index, 1, seq_atts))
			leaf->by_seq = index;
		else if (leaf->by_xid == NULL && is_index_on(index, 2, xid_atts))
			leaf->by_xid = index;
		else
			index_close(index, AccessShareLock);
	}
	list_free(list);
	if (leaf->by_seq == NULL || leaf->by_xid == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" of \"%s.%s\" lacks an index",
						RelationGetRelationName(leaf->rel), IDEMQ_SCHEMA, IDEMQ_OUTBOX),
				 errhint("Create B-tree indexes on (seq) and on (xid, seq) on it.")));
}

/* Open all leaves; the snapshot that will read them has been taken. */
void
logleaf_open(LogLeaves *leaves)
{
	List	   *oids = find_inheritance_children(catalog_relation(IDEMQ_OUTBOX), AccessShareLock);
	ListCell   *cell;

	leaves->n = 0;
	leaves->last = 0;
	leaves->leaf = palloc(sizeof(LogLeaf) * Max(list_length(oids), 1));
	foreach(cell, oids)
	{
		LogLeaf    *leaf = &leaves->leaf[leaves->n++];

		leaf->rel = table_open(lfirst_oid(cell), NoLock);
		for (int i = 0; i < LOG_COLUMNS; i++)
			leaf->att[i] = find_column(leaf->rel, column_names[i],
									   leaves->n > 1 ? leaf[-1].att[i] : InvalidAttrNumber);
		leaf->front = Max(Max(leaf->att[LOG_SEQ], leaf->att[LOG_XID]), leaf->att[LOG_ORIGIN]);
		open_indexes(leaf);
	}
	list_free(oids);
}

/* Close them. */
void
logleaf_close(LogLeaves *leaves)
{
	for (int i = 0; i < leaves->n; i++)
	{
		index_close(leaves->leaf[i].by_seq, AccessShareLock);
		index_close(leaves->leaf[i].by_xid, AccessShareLock);
		table_close(leaves->leaf[i].rel, AccessShareLock);
	}
	pfree(leaves->leaf);
	leaves->n = 0;
}

/* A column of an event. */
Datum
logleaf_value(const LogRow *row, LogColumn column, bool *isnull)
{
	return slot_getattr(row->slot, row->leaf->att[column], isnull);
}

/*
 * Find an event by its number; false if it is not there any more.  The row's slot
 * is the caller's to drop.
 */
bool
logleaf_find(LogLeaves *leaves, Snapshot snapshot, int64 seq, LogRow *row)
{
	for (int i = 0; i < leaves->n; i++)
	{
		int			at = (leaves->last + i) % leaves->n;
		LogLeaf    *leaf = &leaves->leaf[at];
		TupleTableSlot *slot = table_slot_create(leaf->rel, NULL);
		IndexScanDesc scan = compat_index_beginscan(leaf->rel, leaf->by_seq, snapshot, 1);
		ScanKeyData key;
		bool		found;

		ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(seq));
		index_rescan(scan, &key, 1, NULL, 0);
		found = index_getnext_slot(scan, ForwardScanDirection, slot);
		if (found)
			ExecMaterializeSlot(slot);
		index_endscan(scan);
		if (found)
		{
			leaves->last = at;
			row->leaf = leaf;
			row->slot = slot;
			return true;
		}
		ExecDropSingleTupleTableSlot(slot);
	}
	return false;
}
