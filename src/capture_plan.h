/*-------------------------------------------------------------------------
 *
 * capture_plan.h
 *	  What a trigger of a captured table is to do; within the room capture.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CAPTURE_PLAN_H
#define IDEMQ_CAPTURE_PLAN_H

#include "idemq.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"

#include "capture.h"
#include "outbox.h"

typedef enum CaptureOperation
{
	CAPTURE_INSERT,
	CAPTURE_UPDATE,
	CAPTURE_DELETE,
	CAPTURE_TRUNCATE,
} CaptureOperation;

/* One column of the key. */
typedef struct CaptureKey
{
	AttrNumber	attno;
	bool		as_it_is;		/* stored as a text */
	bool		by_cast;		/* function is a cast, not an output function */
	FmgrInfo	function;
} CaptureKey;

/* A generated column that is not stored. */
typedef struct CaptureVirtual
{
	AttrNumber	attno;
	ExprState  *value;
} CaptureVirtual;

typedef struct CapturePlan
{
	MemoryContext context;		/* where all of this is */
	bool		valid;
	Oid			table;
	CaptureOperation operation;
	text	   *type;
	text	   *aggregatetype;
	bool		with_old;
	bool		only_moves;		/* of no interest but as a half of a move */
	bool		condition;		/* the WHEN clause has one */
	bool		clone;			/* made for a partition by the server */
	Oid			root;			/* the table that outbox_capture() was called
								 * for */
	int			nkeys;
	CaptureKey *keys;
	bool		pin_settings;	/* the key's text depends on settings */
	int			ncolumns;		/* those whose change counts */
	AttrNumber *columns;
	RowJson    *json;
	int			nvirtual;		/* generated columns that are not stored */
	CaptureVirtual *virtuals;
	ExprContext *expressions;	/* for them */
} CapturePlan;

extern CapturePlan *capture_plan(Relation rel, const Trigger *trigger);
extern void capture_complete(CapturePlan *plan, TupleTableSlot *slot);
extern void capture_event(CapturePlan *plan, TupleTableSlot *before, TupleTableSlot *after,
						  OutboxEvent *event);
extern void capture_update(CapturePlan *plan, TupleDesc desc, TupleTableSlot *before,
						   TupleTableSlot *after);
extern bool capture_moved(CapturePlan *plan, TriggerData *data);

#endif							/* IDEMQ_CAPTURE_PLAN_H */
