/*-------------------------------------------------------------------------
 *
 * outbox.h
 *	  Writing events into the log.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_OUTBOX_H
#define IDEMQ_OUTBOX_H

#include "idemq.h"

#include "access/attnum.h"
#include "datatype/timestamp.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

/* What a writer may say of an event; NULL and 0: nothing. */
typedef struct OutboxEvent
{
	text	   *aggregatetype;	/* neither NULL nor empty */
	text	   *aggregateid;
	text	   *type;
	Datum		payload;		/* jsonb, or 0 */
	Datum		body;			/* bytea, or 0; not both */
	Datum		headers;		/* jsonb, or 0 */
	bool		has_not_before;
	TimestampTz not_before;
} OutboxEvent;

/* An index of a leaf that a row can be put into without further ado. */
typedef struct OutboxIndex
{
	Oid			oid;
	int			natts;
	AttrNumber	att[INDEX_MAX_KEYS];
	BlockNumber last;			/* its rightmost leaf page, as far as known */
	int			refused;		/* hints in a row that were of no use */
	int			rest;			/* insertions without a hint */
} OutboxIndex;

extern void outbox_init(void);
extern void outbox_append(const OutboxEvent *event, pg_uuid_t *id);
extern int64 outbox_origin(void);

/* within this room */
extern void outbox_leaf_init(void);
extern void outbox_lock_parent(void);
extern bool outbox_leaves_known(void);
extern Oid	outbox_leaf_for(TimestampTz stamp, TimestampTz *lower);
extern bool outbox_index_know(Relation index, OutboxIndex *known);
extern void outbox_index_insert(OutboxIndex *known, Relation rel, ItemPointer tid,
								const Datum *values, const bool *isnull);

#endif							/* IDEMQ_OUTBOX_H */
