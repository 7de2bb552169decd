/*-------------------------------------------------------------------------
 *
 * outbox.c
 *	  Writing events into the log.
 *
 * An event is one row of idemq.outbox, in the transaction that it tells of.
 * Readers rely on two things (window.c):
 *
 *	- the transaction's id is assigned before the number is drawn, by whichever
 *	  way the row comes.  So the default of seq is a function of ours.
 *	- numbers of one key are drawn under the lock that orders its writers.  So
 *	  the sequence has no cache, and nothing draws numbers ahead.
 *
 * outbox_append() does what the executor would do for a one-row INSERT into the
 * leaf, minus the executor.  It knows the table as we make it.  Where somebody has
 * added to it (triggers, checks, other kinds of indexes), the row goes the
 * executor's way, with all that belongs to it; only triggers FOR EACH STATEMENT
 * do not fire.  They have no rows to see.
 *
 * Locking: the parent as any INSERT does, so that no leaf vanishes, then the leaf,
 * both until the end of the transaction, then the indexes, for the moment.
 *
 *-------------------------------------------------------------------------
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "blake2b.h"
#include "catalog.h"
#include "clock.h"
#include "compat.h"
#include "guc.h"
#include "key.h"
#include "shmem.h"
#include "stats.h"
#include "xactstate.h"

PG_FUNCTION_INFO_V1(idemq_outbox_next);
PG_FUNCTION_INFO_V1(idemq_outbox_origin);
PG_FUNCTION_INFO_V1(idemq_outbox_cause);

typedef enum OutboxColumn
{
	COLUMN_SEQ,
	COLUMN_XID,
	COLUMN_ORIGIN,
	COLUMN_LEAF,
	COLUMN_CREATED_AT,
	COLUMN_NOT_BEFORE,
	COLUMN_ID,
	COLUMN_AGGREGATETYPE,
	COLUMN_AGGREGATEID,
	COLUMN_TYPE,
	COLUMN_PAYLOAD,
	COLUMN_BODY,
	COLUMN_HEADERS,
	COLUMN_CAUSE,
	OUTBOX_COLUMNS
} OutboxColumn;

static const struct
{
	const char *name;
	Oid			type;
	bool		optional;		/* may be null */
}			columns[OUTBOX_COLUMNS] =

{
	[COLUMN_SEQ] = {"seq", INT8OID},
	[COLUMN_XID] = {"xid", XID8OID},
	[COLUMN_ORIGIN] = {"origin", INT8OID},
	[COLUMN_LEAF] = {"leaf", TIMESTAMPTZOID},
	[COLUMN_CREATED_AT] = {"created_at", TIMESTAMPTZOID},
	[COLUMN_NOT_BEFORE] = {"not_before", TIMESTAMPTZOID, true},
	[COLUMN_ID] = {"id", UUIDOID},
	[COLUMN_AGGREGATETYPE] = {"aggregatetype", TEXTOID},
	[COLUMN_AGGREGATEID] = {"aggregateid", TEXTOID, true},
	[COLUMN_TYPE] = {"type", TEXTOID, true},
	[COLUMN_PAYLOAD] = {"payload", JSONBOID, true},
	[COLUMN_BODY] = {"body", BYTEAOID, true},
	[COLUMN_HEADERS] = {"headers", JSONBOID, true},
	[COLUMN_CAUSE] = {"cause", TEXTOID, true},
};

/* The checks of ours, which outbox_append() makes itself. */
static const char *const own_checks[] = {
	"outbox_aggregatetype_not_empty", "outbox_not_before_finite", "outbox_payload_or_body"
};

/* The leaf that was written to last. */
typedef struct Target
{
	Oid			oid;
	bool		valid;
	bool		plain;			/* as we make it: nothing else is to be done */
	bool		in_order;		/* and its columns are in our order */
	int			natts;
	AttrNumber	att[OUTBOX_COLUMNS];
	int			nindexes;
	OutboxIndex *indexes;

	bool		locked;			/* until the end of the transaction: it, the
								 * parent, the indexes */
} Target;

static Target target;
static bool target_stale = false;	/* changed while it was being read */
static Oid	sequence = InvalidOid;

/* Forget what a relation has to do with. */
static void
forget_target(Datum arg, Oid relid)
{
	bool		ours = relid == InvalidOid || relid == target.oid;

	for (int i = 0; i < target.nindexes && !ours; i++)
		ours = target.indexes[i].oid == relid;
	if (ours)
	{
		target.valid = false;
		target_stale = true;
	}
	if (relid == InvalidOid || relid == sequence)
		sequence = InvalidOid;
}

/* The transaction ends, and its locks with it. */
static void
forget_locks(XactEvent event, void *arg)
{
	target.locked = false;
}

/*
 * A subtransaction ends.  Rolled back, it may even take locks with it that are
 * older than itself: those of a cursor that failed in it.
 */
static void
forget_locks_of_sub(SubXactEvent event, SubTransactionId subid, SubTransactionId parent,
					void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		target.locked = false;
}

/* Draw the number of an event. */
static int64
next_number(FullTransactionId *xid)
{
	/* in this order: see above */
	*xid = GetTopFullTransactionId();
	xactstate_tell();
	if (!OidIsValid(sequence))
		sequence = catalog_relation("outbox_seq");
	return nextval_internal(sequence, false);
}

/* Names the cluster, the database and the instance in which an xid means something. */
int64
outbox_origin(void)
{
	static const uint8_t personal[BLAKE2B_PERSONAL] = "idemq origin";
	static char *instance = NULL;
	static int64 origin;
	uint64		system;
	uint64		database;
	uint8		bytes[16 + sizeof(origin)];
	Blake2b		hash;

	if (instance != NULL && strcmp(instance, idemq_instance) == 0)
		return origin;
	if (instance != NULL)
		pfree(instance);
	instance = NULL;

	system = GetSystemIdentifier();
	database = MyDatabaseId;
	for (int i = 0; i < 8; i++)
	{
		bytes[i] = system >> (8 * i);
		bytes[8 + i] = database >> (8 * i);
	}
	blake2b_init(&hash, sizeof(origin), personal);
	blake2b_update(&hash, bytes, 16);
	blake2b_update(&hash, idemq_instance, strlen(idemq_instance));
	blake2b_final(&hash, bytes);
	origin = 0;
	for (int i = 0; i < sizeof(origin); i++)
		origin = origin << 8 | bytes[i];
	instance = MemoryContextStrdup(TopMemoryContext, idemq_instance);
	return origin;
}

/* The key of the last claim of this transaction, NULL if there is none. */
static const text *
current_cause(void)
{
	static text *cause = NULL;
	static uint64 cause_of = 0;
	uint64		number = xactstate_claim_number();
	const text *scope;
	const text *key;

	if (number == 0 || !xactstate_last_claim(&scope, &key))
		return NULL;
	if (number != cause_of)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		cause_of = 0;
		if (cause != NULL)
			pfree(cause);
		cause = NULL;
		cause = key_compose(scope, key);
		MemoryContextSwitchTo(old);
		cause_of = number;
	}
	return cause;
}

/* A random uuid, version 4.  Randomness is fetched for several of them. */
static void
make_id(pg_uuid_t *id)
{
	static pg_uuid_t pool[256];
	static int	left = 0;

	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = lengthof(pool);
	}
	*id = pool[--left];
	id->data[6] = (id->data[6] & 0x0f) | 0x40;
	id->data[8] = (id->data[8] & 0x3f) | 0x80;
}

/* Is this one of our checks? */
static bool
is_own_check(const char *name)
{
	for (int i = 0; i < lengthof(own_checks); i++)
	{
		if (strcmp(name, own_checks[i]) == 0)
			return true;
	}
	return false;
}

/* Has a leaf nothing but what we gave it, indexes aside? */
static bool
leaf_is_plain(Relation rel)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;

	if (rel->rd_rel->relam != HEAP_TABLE_AM_OID || rel->trigdesc != NULL ||
		RelationGetDescr(rel)->natts != OUTBOX_COLUMNS)
		return false;
	for (int i = 0; i < OUTBOX_COLUMNS; i++)
	{
		if (columns[i].optional &&
			TupleDescAttr(RelationGetDescr(rel), target.att[i] - 1)->attnotnull)
			return false;
	}
	if (constr == NULL)
		return true;
	for (int i = 0; i < constr->num_check; i++)
	{
		if (!is_own_check(constr->check[i].ccname))
			return false;
	}
	return true;
}

/* Are the columns in our order, and stored as they are by default? */
static bool
leaf_is_in_order(Relation rel)
{
	for (int i = 0; i < OUTBOX_COLUMNS; i++)
	{
		if (target.att[i] != i + 1 ||
			TupleDescAttr(RelationGetDescr(rel), i)->attstorage !=
			(i < COLUMN_AGGREGATETYPE ? TYPSTORAGE_PLAIN : TYPSTORAGE_EXTENDED))
			return false;
	}
	return true;
}

/* Find out what must be known of a leaf. */
static void
know_target(Relation rel)
{
	List	   *indexes;
	ListCell   *cell;

	target.valid = false;
	target_stale = false;
	target.nindexes = 0;
	target.locked = false;
	target.oid = RelationGetRelid(rel);
	target.natts = RelationGetDescr(rel)->natts;
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" of \"%s.%s\" is not an ordinary table",
						RelationGetRelationName(rel), IDEMQ_SCHEMA, IDEMQ_OUTBOX),
				 errhint("Detach it with ALTER TABLE %s.%s DETACH PARTITION.",
						 IDEMQ_SCHEMA, IDEMQ_OUTBOX)));
	for (int i = 0; i < OUTBOX_COLUMNS; i++)
	{
		AttrNumber	att = get_attnum(target.oid, columns[i].name);

		if (att == InvalidAttrNumber ||
			TupleDescAttr(RelationGetDescr(rel), att - 1)->atttypid != columns[i].type)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("partition \"%s\" of \"%s.%s\" has no column \"%s\" of type %s",
							RelationGetRelationName(rel), IDEMQ_SCHEMA, IDEMQ_OUTBOX,
							columns[i].name, format_type_be(columns[i].type)),
					 errhint("Undo what was done to the columns of %s.%s.",
							 IDEMQ_SCHEMA, IDEMQ_OUTBOX)));
		target.att[i] = att;
	}

	target.plain = leaf_is_plain(rel);
	target.in_order = target.plain && leaf_is_in_order(rel);
	indexes = RelationGetIndexList(rel);
	if (target.indexes != NULL)
		pfree(target.indexes);
	target.indexes = NULL;
	target.indexes = MemoryContextAlloc(TopMemoryContext,
										sizeof(OutboxIndex) * Max(list_length(indexes), 1));
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);

		/*
		 * REINDEX CONCURRENTLY relies on it that what is ready is filled,
		 * valid or not
		 */
		if (index->rd_index->indisready)
		{
			if (outbox_index_know(index, &target.indexes[target.nindexes]))
				target.nindexes++;
			else
				target.plain = false;
		}
		index_close(index, RowExclusiveLock);
	}
	list_free(indexes);
	target.valid = !target_stale;
}

/*
 * Lock a relation for the (sub)transaction, not for the cursor that may be running.
 * A cursor gives up its locks when it fails, though events that it has written
 * before may live on; then the leaf could be emptied.
 */
static void
lock_for_transaction(Oid relid)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelationOid(relid, RowExclusiveLock);
	CurrentResourceOwner = owner;
}

/*
 * Open the leaf for an event, lock all that will be written to, and know it.
 *
 * The locks stay until the end of the transaction, those on indexes too:
 * whatever waits for them waits for the one on the leaf.
 */
static Relation
open_leaf(TimestampTz now, TimestampTz *lower)
{
	Relation	rel;
	Oid			leaf;

	if (target.valid && target.locked && outbox_leaves_known() &&
		outbox_leaf_for(now, lower) == target.oid)
		return relation_open(target.oid, NoLock);

	target.locked = false;
	outbox_lock_parent();
	leaf = outbox_leaf_for(now, lower);
	lock_for_transaction(leaf);
	rel = relation_open(leaf, NoLock);

	/* a lock that is new may bring news of the leaf */
	do
	{
		while (!target.valid || target.oid != leaf)
		{
			CHECK_FOR_INTERRUPTS();
			know_target(rel);
		}
		for (int i = 0; i < target.nindexes; i++)
			lock_for_transaction(target.indexes[i].oid);
	} while (!target.valid);
	target.locked = true;
	return rel;
}

/*
 * Form a row as heap_form_tuple() does, for columns in our order: all of fixed
 * length, then those of any length, of which some are null.
 */
static HeapTuple
form_row(Relation rel, Datum *values, bool *isnull)
{
	const Size	hoff = MAXALIGN(SizeofHeapTupleHeader + BITMAPLEN(OUTBOX_COLUMNS));
	Size		room = hoff + sizeof(int64) * COLUMN_ID + UUID_LEN;
	HeapTuple	tuple;
	HeapTupleHeader header;
	char	   *at;

	for (int i = COLUMN_AGGREGATETYPE; i < OUTBOX_COLUMNS; i++)
	{
		if (isnull[i])
			continue;
		if (VARATT_IS_EXTERNAL(DatumGetPointer(values[i])))
			return heap_form_tuple(RelationGetDescr(rel), values, isnull);
		room += VARSIZE_ANY(DatumGetPointer(values[i])) + ALIGNOF_INT - 1;
	}

	tuple = palloc0(HEAPTUPLESIZE + room);
	tuple->t_data = header = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	ItemPointerSetInvalid(&tuple->t_self);
	ItemPointerSetInvalid(&header->t_ctid);
	HeapTupleHeaderSetNatts(header, OUTBOX_COLUMNS);
	header->t_hoff = hoff;
	header->t_infomask = HEAP_HASNULL | HEAP_HASVARWIDTH;
	for (int i = 0; i < OUTBOX_COLUMNS; i++)
	{
		if (!isnull[i])
			header->t_bits[i / 8] |= 1 << i % 8;
	}

	at = (char *) header + hoff;
	for (int i = 0; i < COLUMN_ID; i++)
	{
		if (!isnull[i])
		{
			*(int64 *) at = DatumGetInt64(values[i]);
			at += sizeof(int64);
		}
	}
	memcpy(at, DatumGetUUIDP(values[COLUMN_ID]), UUID_LEN);
	at += UUID_LEN;
	for (int i = COLUMN_AGGREGATETYPE; i < OUTBOX_COLUMNS; i++)
	{
		char	   *value = DatumGetPointer(values[i]);

		if (isnull[i])
			continue;
		if (VARATT_IS_SHORT(value))
		{
			memcpy(at, value, VARSIZE_SHORT(value));
			at += VARSIZE_SHORT(value);
		}
		else if (VARATT_CAN_MAKE_SHORT(value))
		{
			SET_VARSIZE_SHORT(at, VARATT_CONVERTED_SHORT_SIZE(value));
			memcpy(at + VARHDRSZ_SHORT, VARDATA(value), VARSIZE(value) - VARHDRSZ);
			at += VARATT_CONVERTED_SHORT_SIZE(value);
		}
		else
		{
			at = (char *) INTALIGN(at);
			memcpy(at, value, VARSIZE(value));
			at += VARSIZE(value);
		}
	}
	tuple->t_len = at - (char *) header;
	return tuple;
}

#ifdef USE_ASSERT_CHECKING

/* Is what will be stored of a row the same as with the server's way to form it? */
static bool
is_formed_well(Relation rel, HeapTuple tuple, Datum *values, bool *isnull)
{
	HeapTuple	other = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	HeapTupleHeader a = tuple->t_data;
	HeapTupleHeader b = other->t_data;
	Size		start = offsetof(HeapTupleHeaderData, t_hoff);

	/* the rest of the header is set when the row is put into the table */
	return tuple->t_len == other->t_len &&
		HeapTupleHeaderGetNatts(a) == HeapTupleHeaderGetNatts(b) &&
		(a->t_infomask & ~HEAP_XACT_MASK) == (b->t_infomask & ~HEAP_XACT_MASK) &&
		memcmp((char *) a + start, (char *) b + start, tuple->t_len - start) == 0;
}

#endif

/* Insert a row into a leaf that is as we make it. */
static void
insert_plain(Relation rel, Datum *values, bool *isnull)
{
	HeapTuple	tuple = target.in_order ? form_row(rel, values, isnull)
		: heap_form_tuple(RelationGetDescr(rel), values, isnull);

	Assert(is_formed_well(rel, tuple, values, isnull));
	heap_insert(rel, tuple, GetCurrentCommandId(true), 0, NULL);
	for (int i = 0; i < target.nindexes; i++)
		outbox_index_insert(&target.indexes[i], rel, &tuple->t_self, values, isnull);
	heap_freetuple(tuple);
}

/* Insert a row into any leaf, as the executor does. */
static void
insert_thorough(Relation rel, Datum *values, bool *isnull)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *result = makeNode(ResultRelInfo);
	TupleTableSlot *slot;
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);

	InitResultRelInfo(result, rel, 0, NULL, 0);
	ExecOpenIndices(result, false);
	estate->es_output_cid = GetCurrentCommandId(true);
	AfterTriggerBeginQuery();

	slot = ExecInitExtraTupleSlot(estate, RelationGetDescr(rel), &TTSOpsVirtual);
	memcpy(slot->tts_values, values, sizeof(Datum) * RelationGetDescr(rel)->natts);
	memcpy(slot->tts_isnull, isnull, sizeof(bool) * RelationGetDescr(rel)->natts);
	ExecStoreVirtualTuple(slot);
	ExecMaterializeSlot(slot);
	ExecSimpleRelationInsert(result, estate, slot);

	AfterTriggerEndQuery(estate);
	ExecResetTupleTable(estate->es_tupleTable, false);
	ExecCloseIndices(result);
	ExecCloseResultRelations(estate);
	MemoryContextSwitchTo(old);
	FreeExecutorState(estate);
}

/* Write an event, and say under which id. */
void
outbox_append(const OutboxEvent *event, pg_uuid_t *id)
{
	TimestampTz now = clock_wall();
	TimestampTz lower;
	Relation	rel = open_leaf(now, &lower);
	int			natts = target.natts;
	Datum		room[OUTBOX_COLUMNS];
	bool		nulls_room[OUTBOX_COLUMNS];
	Datum	   *values = room;
	bool	   *isnull = nulls_room;
	FullTransactionId xid;
	const text *cause = current_cause();

	Assert(event->aggregatetype != NULL && VARSIZE_ANY_EXHDR(event->aggregatetype) > 0);
	Assert(event->payload == 0 || event->body == 0);
	if (natts > OUTBOX_COLUMNS)
	{
		values = palloc(sizeof(Datum) * natts);
		isnull = palloc(sizeof(bool) * natts);
		memset(isnull, true, sizeof(bool) * natts);
	}
#define SET_COLUMN(column, value, null) \
	(values[target.att[column] - 1] = (value), isnull[target.att[column] - 1] = (null))

	make_id(id);
	SET_COLUMN(COLUMN_SEQ, Int64GetDatum(next_number(&xid)), false);
	SET_COLUMN(COLUMN_XID, FullTransactionIdGetDatum(xid), false);
	SET_COLUMN(COLUMN_ORIGIN, Int64GetDatum(outbox_origin()), false);
	SET_COLUMN(COLUMN_LEAF, TimestampTzGetDatum(lower), false);
	SET_COLUMN(COLUMN_CREATED_AT, TimestampTzGetDatum(now), false);
	SET_COLUMN(COLUMN_NOT_BEFORE, TimestampTzGetDatum(event->not_before), !event->has_not_before);
	SET_COLUMN(COLUMN_ID, UUIDPGetDatum(id), false);
	SET_COLUMN(COLUMN_AGGREGATETYPE, PointerGetDatum(event->aggregatetype), false);
	SET_COLUMN(COLUMN_AGGREGATEID, PointerGetDatum(event->aggregateid), event->aggregateid == NULL);
	SET_COLUMN(COLUMN_TYPE, PointerGetDatum(event->type), event->type == NULL);
	SET_COLUMN(COLUMN_PAYLOAD, event->payload, event->payload == 0);
	SET_COLUMN(COLUMN_BODY, event->body, event->body == 0);
	SET_COLUMN(COLUMN_HEADERS, event->headers, event->headers == 0);
	SET_COLUMN(COLUMN_CAUSE, PointerGetDatum(cause), cause == NULL);
#undef SET_COLUMN

	stats_count_event(VARDATA_ANY(event->aggregatetype), VARSIZE_ANY_EXHDR(event->aggregatetype));
	if (target.plain)
		insert_plain(rel, values, isnull);
	else
		insert_thorough(rel, values, isnull);
	relation_close(rel, NoLock);
	if (values != room)
	{
		pfree(values);
		pfree(isnull);
	}
}

/* idemq._outbox_next(): default of idemq.outbox.seq */
Datum
idemq_outbox_next(PG_FUNCTION_ARGS)
{
	FullTransactionId xid;

	/* which aggregatetype it is a default cannot know */
	stats_count_other_event();
	PG_RETURN_INT64(next_number(&xid));
}

/* idemq._outbox_origin(): default of idemq.outbox.origin */
Datum
idemq_outbox_origin(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(outbox_origin());
}

/* idemq._outbox_cause(): default of idemq.outbox.cause */
Datum
idemq_outbox_cause(PG_FUNCTION_ARGS)
{
	const text *cause = current_cause();

	if (cause == NULL)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(datumCopy(PointerGetDatum(cause), false, -1));
}

/* Hear of changes. */
void
outbox_init(void)
{
	outbox_leaf_init();
	CacheRegisterRelcacheCallback(forget_target, (Datum) 0);
	RegisterXactCallback(forget_locks, NULL);
	RegisterSubXactCallback(forget_locks_of_sub, NULL);
}
