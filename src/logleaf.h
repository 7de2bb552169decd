/*-------------------------------------------------------------------------
 *
 * logleaf.h
 *	  The leaves of the log, for reading.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_LOGLEAF_H
#define IDEMQ_LOGLEAF_H

#include "idemq.h"

#include "access/attnum.h"
#include "access/relscan.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/* The columns of an event. */
typedef enum LogColumn
{
	LOG_SEQ,
	LOG_XID,
	LOG_ORIGIN,
	LOG_CREATED_AT,
	LOG_NOT_BEFORE,
	LOG_ID,
	LOG_AGGREGATETYPE,
	LOG_AGGREGATEID,
	LOG_TYPE,
	LOG_PAYLOAD,
	LOG_BODY,
	LOG_HEADERS,
	LOG_CAUSE,
	LOG_COLUMNS,
} LogColumn;

/* One leaf, open. */
typedef struct LogLeaf
{
	Relation	rel;
	Relation	by_seq;			/* index on (seq) */
	Relation	by_xid;			/* index on (xid, seq) */
	AttrNumber	att[LOG_COLUMNS];
	AttrNumber	front;			/* seq, xid and origin are not behind it */
} LogLeaf;

/* All of them. */
typedef struct LogLeaves
{
	int			n;
	LogLeaf    *leaf;
	int			last;			/* where the last event was found by its
								 * number */
} LogLeaves;

/* An event, as it lies in the log. */
typedef struct LogRow
{
	LogLeaf    *leaf;
	TupleTableSlot *slot;
} LogRow;

extern void logleaf_open(LogLeaves *leaves);
extern void logleaf_close(LogLeaves *leaves);
extern Datum logleaf_value(const LogRow *row, LogColumn column, bool *isnull);
extern bool logleaf_find(LogLeaves *leaves, Snapshot snapshot, int64 seq, LogRow *row);

#endif							/* IDEMQ_LOGLEAF_H */
