/*-------------------------------------------------------------------------
 *
 * window.c
 *	  The events between two moments, in the order of their numbers.
 *
 * A window holds the events whose transaction the end shows and the start does
 * not.  They come in the order of seq, over all leaves.
 *
 * Two kinds of ranges are merged:
 *
 *	The bulk: in the index on seq, from the start's number on.  An event of a
 *	transaction that had no xid yet at the start (xid >= start.next) lies there;
 *	see moment.c.  What the end does not show is passed over, and so is what
 *	belongs to the stragglers.
 *
 *	The stragglers: transactions that were in progress at the start, so their
 *	numbers may lie anywhere.  Their xids are in the start's list, or between its
 *	xmax and its next; for those in between the index on (xid, seq) is asked
 *	which there are.  Not more than could run at a time, since these are top-level
 *	xids.  Each has a range in that index, in the order of seq.
 *
 * An event that was passed over because the end does not show it is not lost:
 * its transaction is in progress at the end, so it is a straggler of the next
 * window, or it has an xid of end.next or above, so it is above end.seq.
 *
 * The position may be cut anywhere in the order of seq: for each range what lies
 * before is over.  A range that passes over many rows gives way now and then, so
 * that the caller can stop there.
 *
 *-------------------------------------------------------------------------
 */
#include "window.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "testpoint.h"

/* A range that finds nothing gives way after that many rows. */
#define ROWS_AT_A_TIME	64

/* One range of one leaf. */
typedef struct Range
{
	LogLeaf    *leaf;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	bool		bulk;
	bool		found;			/* the slot holds an event of the window */
	int64		seq;			/* of the row that it is at */
	int			passed;			/* rows that it read to get there */
} Range;

struct Window
{
	const Moment *start;
	const Moment *end;
	int64		after;			/* all up to here is over */
	int			norigins;
	const int64 *origins;
	uint64		limit;
	uint64		nread;
	Snapshot	snapshot;
	LogLeaves	leaves;
	List	   *ranges;
	binaryheap *heap;
	Range	   *current;		/* whose row the caller was given */
};

/* The smallest number first. */
static int
compare_ranges(Datum a, Datum b, void *arg)
{
	const Range *x = (const Range *) DatumGetPointer(a);
	const Range *y = (const Range *) DatumGetPointer(b);

	return (x->seq < y->seq) - (x->seq > y->seq);
}

/* Can we judge the xids of this origin? */
static bool
knows_origin(const Window * window, int64 origin)
{
	for (int i = 0; i < window->norigins; i++)
	{
		if (window->origins[i] == origin)
			return true;
	}
	return false;
}

/* Does the row that a range is at belong to the window? */
static bool
belongs(const Window * window, const Range *range, const LogRow *row)
{
	bool		isnull;
	uint64		xid = DatumGetInt64(logleaf_value(row, LOG_XID, &isnull));

	if (!knows_origin(window, DatumGetInt64(logleaf_value(row, LOG_ORIGIN, &isnull))))
		return false;

	/* of a straggler it is known */
	if (!range->bulk)
		return true;
	return xid >= window->start->next && moment_shows(window->end, xid);
}

/* Go on to the next row, or to one that is not worth going on from; false at the end. */
static bool
advance(Window * window, Range *range)
{
	range->found = false;
	range->passed = 0;
	for (int i = 0; i < ROWS_AT_A_TIME && !range->found; i++)
	{
		LogRow		row = {range->leaf, range->slot};
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (!index_getnext_slot(range->scan, ForwardScanDirection, range->slot))
			return false;
		range->passed++;
		slot_getsomeattrs(range->slot, range->leaf->front);
		range->seq = DatumGetInt64(logleaf_value(&row, LOG_SEQ, &isnull));
		if (range->bulk && range->seq > window->end->top)
			return false;
		range->found = belongs(window, range, &row);
	}
	return true;
}

/* Add a range, if there is anything in it. */
static void
add_range(Window * window, LogLeaf *leaf, Relation index, int nkeys, ScanKey keys)
{
	Range	   *range = palloc0(sizeof(Range));

	range->leaf = leaf;
	range->bulk = index == leaf->by_seq;
	range->slot = table_slot_create(leaf->rel, NULL);
	range->scan = compat_index_beginscan(leaf->rel, index, window->snapshot, nkeys);
	index_rescan(range->scan, keys, nkeys, NULL, 0);
	window->ranges = lappend(window->ranges, range);
}

/* Give up what a range holds. */
static void
drop_range(Range *range)
{
	if (range->scan == NULL)
		return;
	index_endscan(range->scan);
	ExecDropSingleTupleTableSlot(range->slot);
	range->scan = NULL;
}

/* Add the events of one transaction that was in progress at the start. */
static void
add_straggler(Window * window, LogLeaf *leaf, uint64 xid)
{
	ScanKeyData keys[2];

	if (!moment_shows(window->end, xid) || TEST_WITHOUT("stragglers"))
		return;
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_XID8EQ, Int64GetDatum(xid));
	ScanKeyInit(&keys[1], 2, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(window->after));
	add_range(window, leaf, leaf->by_xid, 2, keys);
}

/* Which transactions from..below have events in a leaf? */
static void
add_stragglers_between(Window * window, LogLeaf *leaf, uint64 from, uint64 below)
{
	IndexScanDesc scan;
	TupleTableSlot *slot;

	if (from >= below)
		return;
	scan = compat_index_beginscan(leaf->rel, leaf->by_xid, window->snapshot, 2);
	slot = table_slot_create(leaf->rel, NULL);
	while (from < below)
	{
		ScanKeyData keys[2];
		LogRow		row = {leaf, slot};
		uint64		xid;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		ScanKeyInit(&keys[0], 1, BTGreaterEqualStrategyNumber, F_XID8GE, Int64GetDatum(from));
		ScanKeyInit(&keys[1], 1, BTLessStrategyNumber, F_XID8LT, Int64GetDatum(below));
		index_rescan(scan, keys, 2, NULL, 0);
		if (!index_getnext_slot(scan, ForwardScanDirection, slot))
			break;
		xid = DatumGetInt64(logleaf_value(&row, LOG_XID, &isnull));
		add_straggler(window, leaf, xid);
		from = xid + 1;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

/* Add the ranges of one leaf. */
static void
add_leaf(Window * window, LogLeaf *leaf)
{
	const StoredSnapshot *start = window->start->snapshot;
	ScanKeyData key;
	int64		floor = Max(window->after, window->start->seq);

	for (uint32 i = 0; i < start->nxip; i++)
		add_straggler(window, leaf, U64FromFullTransactionId(start->xip[i]));
	add_stragglers_between(window, leaf, U64FromFullTransactionId(start->xmax),
						   window->start->next);

	ScanKeyInit(&key, 1, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(floor));
	add_range(window, leaf, leaf->by_seq, 1, &key);
}

/*
 * Begin to read a window.  All up to the number "after" is over; about "limit" rows
 * are to be read this time.  The arguments must outlive the window.
 */
Window *
window_open(const Moment *start, const Moment *end, int64 after,
			int norigins, const int64 *origins, uint64 limit)
{
	Window	   *window = palloc0(sizeof(Window));
	ListCell   *cell;

	window->start = start;
	window->end = end;
	window->after = after;
	window->norigins = norigins;
	window->origins = origins;
	window->limit = limit;
	window->snapshot = RegisterSnapshot(GetLatestSnapshot());
	logleaf_open(&window->leaves);
	for (int i = 0; i < window->leaves.n; i++)
		add_leaf(window, &window->leaves.leaf[i]);

	window->heap = binaryheap_allocate(Max(list_length(window->ranges), 1),
									   compare_ranges, NULL);
	foreach(cell, window->ranges)
	{
		Range	   *range = lfirst(cell);

		if (advance(window, range))
			binaryheap_add_unordered(window->heap, PointerGetDatum(range));
		else
			drop_range(range);
	}
	binaryheap_build(window->heap);
	return window;
}

/* The next event; *row is good until the next call. */
WindowResult
window_next(Window * window, LogRow *row)
{
	Range	   *range = window->current;

	for (;;)
	{
		/* the range that was last dealt with is the first of the heap */
		if (range != NULL)
		{
			window->after = Max(window->after, range->seq);
			window->nread += range->passed;
			if (advance(window, range))
				binaryheap_replace_first(window->heap, PointerGetDatum(range));
			else
			{
				(void) binaryheap_remove_first(window->heap);
				drop_range(range);
			}
			window->current = NULL;
		}
		if (binaryheap_empty(window->heap))
			return WINDOW_EMPTY;
		if (window->nread >= window->limit)
			return WINDOW_PAUSE;
		range = (Range *) DatumGetPointer(binaryheap_first(window->heap));
		if (range->found)
		{
			window->current = range;
			row->leaf = range->leaf;
			row->slot = range->slot;
			return WINDOW_ROW;
		}
	}
}

/* All up to this number is over, but for the event that the caller was given last. */
int64
window_position(const Window * window)
{
	return window->after;
}

/* What a window reads, for those who look for single events. */
LogLeaves *
window_leaves(Window * window)
{
	return &window->leaves;
}

/* And how. */
Snapshot
window_snapshot(Window * window)
{
	return window->snapshot;
}

/* End it. */
void
window_close(Window * window)
{
	ListCell   *cell;

	foreach(cell, window->ranges)
		drop_range(lfirst(cell));
	logleaf_close(&window->leaves);
	UnregisterSnapshot(window->snapshot);
	binaryheap_free(window->heap);
	pfree(window);
}
