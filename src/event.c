/*-------------------------------------------------------------------------
 *
 * event.c
 *	  Events as they are handed out.
 *
 * The key of an event is (aggregatetype, aggregateid).  Its hash decides the shard,
 * and is what parked events are found by.  It is stored, so it must be the same on
 * every machine and in every version.  Two keys with one hash share their fate:
 * one waits for the other, nothing is lost.
 *
 *-------------------------------------------------------------------------
 */
#include "event.h"

#include "access/htup_details.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "spi_plan.h"

/* Add bytes to a hash: FNV-1a. */
static uint64
add_bytes(uint64 hash, const char *bytes, int len)
{
	for (int i = 0; i < len; i++)
		hash = (hash ^ (unsigned char) bytes[i]) * UINT64CONST(0x100000001b3);
	return hash;
}

/* Spread it over all bits: the finalizer of MurmurHash3. */
static int64
finish_hash(uint64 hash)
{
	hash ^= hash >> 33;
	hash *= UINT64CONST(0xff51afd7ed558ccd);
	hash ^= hash >> 33;
	hash *= UINT64CONST(0xc4ceb9fe1a85ec53);
	hash ^= hash >> 33;
	return (int64) hash;
}

/* Find out about the key. */
void
event_set_key(Event *event, int64 seq, Datum aggregatetype, Datum aggregateid, bool no_id)
{
	uint64		hash = UINT64CONST(0xcbf29ce484222325);

	event->keyed = !no_id;
	if (event->keyed)
	{
		text	   *type = DatumGetTextPP(aggregatetype);
		text	   *id = DatumGetTextPP(aggregateid);

		/* no text contains a zero byte */
		hash = add_bytes(hash, VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type));
		hash = add_bytes(hash, "", 1);
		hash = add_bytes(hash, VARDATA_ANY(id), VARSIZE_ANY_EXHDR(id));

		/* a window reads many rows, and they may be long */
		if (PointerGetDatum(type) != aggregatetype)
			pfree(type);
		if (PointerGetDatum(id) != aggregateid)
			pfree(id);
	}
	else
		hash ^= (uint64) seq;
	event->key = finish_hash(hash);
}

/* Likewise, from its columns. */
static void
set_key(Event *event)
{
	event_set_key(event, DatumGetInt64(event->values[LOG_SEQ]), event->values[LOG_AGGREGATETYPE],
				  event->values[LOG_AGGREGATEID], event->nulls[LOG_AGGREGATEID]);
}

/* An event that lies in the log; it is good as long as the row. */
void
event_from_row(const LogRow *row, Event *event)
{
	const AttrNumber *att = row->leaf->att;
	const TupleTableSlot *slot = row->slot;

	/* all columns at once: one by one costs three times as much */
	slot_getallattrs(row->slot);
	memset(event, 0, offsetof(Event, values));
	for (int i = 0; i < LOG_COLUMNS; i++)
	{
		event->values[i] = slot->tts_values[att[i] - 1];
		event->nulls[i] = slot->tts_isnull[att[i] - 1];
	}
	event->number = DatumGetInt64(event->values[LOG_SEQ]);
	set_key(event);
}

/* Which shard does it belong to? */
int32
event_shard(const Event *event, int32 shards)
{
	return (int32) ((uint64) event->key % (uint64) shards);
}

/* Read an event by its number; false if it is gone. */
static bool
read_from_log(LogLeaves *leaves, Snapshot snapshot, int64 seq, Event *event)
{
	LogRow		row;
	LogRow		copy;

	if (!logleaf_find(leaves, snapshot, seq, &row))
		return false;
	copy.leaf = row.leaf;
	copy.slot = MakeSingleTupleTableSlot(CreateTupleDescCopy(RelationGetDescr(row.leaf->rel)),
										 &TTSOpsHeapTuple);
	ExecForceStoreHeapTuple(ExecCopySlotHeapTuple(row.slot), copy.slot, false);
	ExecDropSingleTupleTableSlot(row.slot);
	event_from_row(&copy, event);
	return true;
}

/* Read an event that is replayed from its dead letter; false if that is gone. */
static bool
read_from_dead_letter(int64 dead_id, Event *event)
{
	static SpiPlan plan = SPI_PLAN("SELECT seq, '0'::xid8, 0::bigint, created_at, NULL::timestamptz, id, aggregatetype, aggregateid,"
								   " type, payload, body, headers, cause FROM idemq.dead_letters WHERE dead_id = $1", 1,
								   INT8OID);
	Datum		args[] = {Int64GetDatum(dead_id)};

	memset(event, 0, sizeof(Event));
	if (spi_plan_run(&plan, args, NULL, SPI_OK_SELECT) == 0)
		return false;
	for (int i = 0; i < LOG_COLUMNS; i++)
		event->values[i] = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1,
										 &event->nulls[i]);
	set_key(event);
	return true;
}

/* The events that are left of a batch. */
Event *
event_read_batch(const ShardState *state, const Batch *batch)
{
	Event	   *events = palloc0(sizeof(Event) * Max(batch->nevents, 1));
	ParkedRef  *refs = NULL;
	Snapshot	snapshot;
	LogLeaves	leaves;

	if (batch->nevents == 0)
		return events;
	if (batch->parked)
		refs = parked_get(state, batch->nevents, batch->events);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	logleaf_open(&leaves);
	for (int i = 0; i < batch->nevents; i++)
	{
		Event	   *event = &events[i];
		int64		seq = refs != NULL ? refs[i].seq : batch->events[i];
		bool		found;

		CHECK_FOR_INTERRUPTS();
		if (refs != NULL && refs[i].dead_id != 0)
			found = read_from_dead_letter(refs[i].dead_id, event);
		else
			found = read_from_log(&leaves, snapshot, seq, event);
		event->number = batch->events[i];
		event->ref = refs != NULL ? &refs[i] : NULL;
		event->gone = !found;
		if (!found && refs != NULL)
			event->key = refs[i].key;
		if (!found)
			ereport(WARNING,
					(errmsg("event " INT64_FORMAT " is gone from \"%s.%s\"",
							seq, IDEMQ_SCHEMA, IDEMQ_OUTBOX),
					 errhint("Somebody has dropped or emptied a partition that held undelivered events.")));
	}
	logleaf_close(&leaves);
	UnregisterSnapshot(snapshot);
	return events;
}
