/*-------------------------------------------------------------------------
 *
 * rowform.h
 *	  Rows of a result, formed fast.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_ROWFORM_H
#define IDEMQ_ROWFORM_H

#include "idemq.h"

#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/tuplestore.h"

/* The rows that a function returns, formed one after the other. */
typedef struct RowForm
{
	Tuplestorestate *store;
	TupleDesc	desc;
	MinimalTuple tuple;			/* used again for each row */
	Size		room;			/* how long it may be */
	TupleTableSlot *slot;
} RowForm;

extern void rowform_begin(RowForm *form, FunctionCallInfo fcinfo);
extern void rowform_put(RowForm *form, const Datum *values, const bool *isnull);
extern void rowform_end(RowForm *form);

#endif							/* IDEMQ_ROWFORM_H */
