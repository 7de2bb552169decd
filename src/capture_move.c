/*-------------------------------------------------------------------------
 *
 * capture_move.c
 *	  Rows that an UPDATE moves to another partition.
 *
 * The server does that as a DELETE here and an INSERT there, and fires the
 * triggers of those, one right after the other.  A captured update it is all
 * the same: who listens must not believe that the thing is gone.
 *
 * The first half is told by the mark that the server leaves in the deleted
 * row.  It waits, with the event that it would be by itself, for the next call
 * of a capture trigger at the same depth of triggers.  If that is an INSERT of
 * the same statement (same transaction id, same command id) under the same
 * captured table, the two are an update, for which the update trigger's
 * condition is looked at.  If it is anything else, the row has left what is
 * captured, or a BEFORE trigger has swallowed it: the first half is a delete.
 * So it is at the end of the transaction.
 *
 * On a partitioned table outbox_capture() therefore makes the triggers for
 * inserts and deletes always; where those are not captured, they are of
 * interest only as halves of moves.
 *
 * What cannot be told apart: within one MERGE (or one statement with several
 * parts), a row that leaves what is captured, and a new one that comes right
 * after it.  They look like a move that changed the key.
 *
 *-------------------------------------------------------------------------
 */
#include "capture.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/tupconvert.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/primnodes.h"
#include "rewrite/prs2lock.h"
#include "rewrite/rewriteManip.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "capture_plan.h"
#include "compat.h"
#include "outbox.h"

/* A row that has gone, and not yet come. */
typedef struct Departure
{
	MemoryContext context;
	Oid			table;			/* from which it has gone */
	Oid			root;
	int			depth;			/* of triggers */
	int			level;			/* of savepoints */
	int			settled;		/* told of at this level of savepoints; or 0 */
	TransactionId xid;
	CommandId	cid;
	HeapTuple	row;
	bool		is_event;		/* deletes are captured */
	OutboxEvent event;
} Departure;

static List *departures = NIL;	/* the last first, in TopTransactionContext */
static bool listening = false;

/* The last one, or the first one, that is open; or NULL. */
static Departure *
open_departure(bool first)
{
	Departure  *found = NULL;
	ListCell   *cell;

	foreach(cell, departures)
	{
		Departure  *departure = lfirst(cell);

		if (departure->settled != 0)
			continue;
		found = departure;
		if (!first)
			break;
	}
	return found;
}

/* Forget about one. */
static void
forget(Departure *departure)
{
	departures = list_delete_ptr(departures, departure);
	MemoryContextDelete(departure->context);
}

/*
 * Tell of a row that has not come anywhere.  If that is done after a savepoint
 * that was set since it went, it may be undone.
 */
static void
settle(Departure *departure)
{
	int			level = GetCurrentTransactionNestLevel();
	pg_uuid_t	id;

	departure->settled = level;
	if (departure->is_event)
		outbox_append(&departure->event, &id);
	if (departure->level == level)
		forget(departure);
}

/* At the end of a transaction: nothing comes any more. */
static void
end_transaction(XactEvent event, void *arg)
{
	Departure  *departure;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (departures == NIL)
				break;
			PushActiveSnapshot(GetTransactionSnapshot());
			while ((departure = open_departure(true)) != NULL)
				settle(departure);
			PopActiveSnapshot();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			departures = NIL;
			break;
		default:
			break;
	}
}

/* At the end of a savepoint: what was done since then is undone, or goes on. */
static void
end_subtransaction(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	bool		undone = event == SUBXACT_EVENT_ABORT_SUB;
	List	   *all;
	ListCell   *cell;

	if (departures == NIL || (!undone && event != SUBXACT_EVENT_COMMIT_SUB))
		return;
	all = list_copy(departures);
	foreach(cell, all)
	{
		Departure  *departure = lfirst(cell);

		if (departure->settled >= level)
			departure->settled = undone ? 0 : level - 1;
		if (departure->level >= level && undone)
			forget(departure);
		else
		{
			departure->level = Min(departure->level, level - 1);
			if (departure->settled == departure->level)
				forget(departure);
		}
	}
	list_free(all);
}

/* A text in the current memory context. */
static text *
copy_text(const text *value)
{
	return value == NULL ? NULL
		: (text *) DatumGetPointer(datumCopy(PointerGetDatum(value), false, -1));
}

/* Keep the first half of a move. */
static void
depart(CapturePlan *plan, TriggerData *data, int depth)
{
	MemoryContext context;
	MemoryContext old;
	Departure  *departure;
	HeapTupleHeader header = data->tg_trigtuple->t_data;

	if (!listening)
	{
		RegisterXactCallback(end_transaction, NULL);
		RegisterSubXactCallback(end_subtransaction, NULL);
		listening = true;
	}
	context = AllocSetContextCreate(TopTransactionContext, "idemq moved row",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	departure = palloc0(sizeof(Departure));
	departure->context = context;
	departure->table = RelationGetRelid(data->tg_relation);
	departure->root = plan->root;
	departure->depth = depth;
	departure->level = GetCurrentTransactionNestLevel();
	departure->xid = HeapTupleHeaderGetUpdateXid(header);
	departure->cid = HeapTupleHeaderGetCmax(header);
	departure->row = heap_copytuple(data->tg_trigtuple);
	departure->is_event = !plan->only_moves;
	if (departure->is_event)
	{
		OutboxEvent *event = &departure->event;

		capture_event(plan, data->tg_trigslot, NULL, event);
		event->aggregatetype = copy_text(event->aggregatetype);
		event->type = copy_text(event->type);
		event->aggregateid = copy_text(event->aggregateid);
	}
	MemoryContextSwitchTo(TopTransactionContext);
	departures = lcons(departure, departures);
	MemoryContextSwitchTo(old);
}

/* The trigger for updates of a partition, made by the same call; or NULL. */
static Trigger *
update_trigger(Relation rel, const Trigger *like)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == like->tgfoid && trigger->tgisclone &&
			TRIGGER_FOR_UPDATE(trigger->tgtype) && trigger->tgenabled != TRIGGER_DISABLED)
			return trigger;
	}
	return NULL;
}

/* Is the condition of an update trigger true for this move? */
static bool
condition_holds(Relation rel, const Trigger *trigger, TupleTableSlot *before, TupleTableSlot *after)
{
	EState	   *estate = CreateExecutorState();
	ExprContext *context = GetPerTupleExprContext(estate);
	Node	   *clause = stringToNode(trigger->tgqual);
	bool		holds;

	clause = compat_expand_generated(clause, rel, PRS2_OLD_VARNO);
	clause = compat_expand_generated(clause, rel, PRS2_NEW_VARNO);
	ChangeVarNodes(clause, PRS2_OLD_VARNO, INNER_VAR, 0);
	ChangeVarNodes(clause, PRS2_NEW_VARNO, OUTER_VAR, 0);
	context->ecxt_innertuple = before;
	context->ecxt_outertuple = after;
	holds = ExecQual(ExecPrepareQual(make_ands_implicit((Expr *) clause), estate), context);
	FreeExecutorState(estate);
	return holds;
}

/* A row as one of another partition, whose columns may be in another order. */
static TupleTableSlot *
as_row_of(Relation rel, Oid from, HeapTuple row)
{
	Relation	source = relation_open(from, NoLock);
	TupleConversionMap *map = convert_tuples_by_name(RelationGetDescr(source), RelationGetDescr(rel));
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

	if (map != NULL)
		row = execute_attr_map_tuple(row, map);
	ExecStoreHeapTuple(row, slot, false);
	relation_close(source, NoLock);
	return slot;
}

/* Both halves are there. */
static void
arrive(Departure *departure, TriggerData *data)
{
	Relation	rel = data->tg_relation;
	Trigger    *trigger = update_trigger(rel, data->tg_trigger);
	CapturePlan *plan;
	TupleTableSlot *before;

	if (trigger != NULL)
	{
		plan = capture_plan(rel, trigger);
		before = as_row_of(rel, departure->table, departure->row);
		capture_complete(plan, before);
		if (!plan->condition || condition_holds(rel, trigger, before, data->tg_trigslot))
			capture_update(plan, RelationGetDescr(rel), before, data->tg_trigslot);
		ExecDropSingleTupleTableSlot(before);
	}
	forget(departure);
}

/* Is this call the second half of what has departed? */
static bool
belongs(const Departure *departure, const CapturePlan *plan, const TriggerData *data)
{
	HeapTupleHeader header;

	if (plan->operation != CAPTURE_INSERT || plan->root != departure->root)
		return false;
	header = data->tg_trigtuple->t_data;
	return HeapTupleHeaderGetXmin(header) == departure->xid &&
		HeapTupleHeaderGetCmin(header) == departure->cid;
}

/* Look after moved rows; true if that was all there is to do in this call. */
bool
capture_moved(CapturePlan *plan, TriggerData *data)
{
	bool		moved = plan->operation == CAPTURE_DELETE && plan->clone &&
		HeapTupleHeaderIndicatesMovedPartitions(data->tg_trigtuple->t_data);
	Departure  *departure;
	int			depth;

	if (departures == NIL && !moved)
		return false;

	/* those further out have not come to their second half yet */
	depth = DatumGetInt32(pg_trigger_depth(NULL));
	while ((departure = open_departure(false)) != NULL && departure->depth >= depth)
	{
		if (departure->depth == depth && belongs(departure, plan, data))
		{
			arrive(departure, data);
			return true;
		}
		settle(departure);
	}
	if (moved)
		depart(plan, data, depth);
	return moved;
}
