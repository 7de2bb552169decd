/*-------------------------------------------------------------------------
 *
 * event.h
 *	  Events as they are handed out.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_EVENT_H
#define IDEMQ_EVENT_H

#include "idemq.h"

#include "ledger.h"
#include "logleaf.h"
#include "parked.h"

typedef struct Event
{
	int64		number;			/* in its batch: seq, or place */
	ParkedRef  *ref;			/* if it was parked */
	bool		keyed;			/* it has a key */
	int64		key;			/* hash of that, else of its seq */
	bool		gone;			/* somebody dropped its partition */
	bool		chosen;			/* for whoever goes through a batch */
	Datum		values[LOG_COLUMNS];
	bool		nulls[LOG_COLUMNS];
} Event;

extern void event_from_row(const LogRow *row, Event *event);
extern Event *event_read_batch(const ShardState *state, const Batch *batch);
extern void event_set_key(Event *event, int64 seq, Datum aggregatetype, Datum aggregateid,
						  bool no_id);
extern int32 event_shard(const Event *event, int32 shards);

#endif							/* IDEMQ_EVENT_H */
