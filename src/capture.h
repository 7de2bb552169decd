/*-------------------------------------------------------------------------
 *
 * capture.h
 *	  Changes of a table as events.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CAPTURE_H
#define IDEMQ_CAPTURE_H

#include "idemq.h"

#include "access/attnum.h"
#include "access/tupdesc.h"
#include "executor/tuptable.h"
#include "utils/jsonb.h"

#define CAPTURE_FUNCTION		"_capture"
#define CAPTURE_WITH_OLD		"with_old"	/* arguments of the triggers */
#define CAPTURE_MOVES			"moves"

typedef struct RowJson RowJson;

extern RowJson * capture_json_make(TupleDesc desc, const AttrNumber *columns, int ncolumns);
extern Datum capture_json_form(RowJson * row, TupleTableSlot *slot);
extern JsonbValue *capture_json_push(RowJson * row, JsonbParseState **state, TupleTableSlot *slot);

#endif							/* IDEMQ_CAPTURE_H */
