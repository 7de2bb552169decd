/*-------------------------------------------------------------------------
 *
 * floor.c
 *	  What a claim cannot cost less than: the rows, and nothing else.
 *
 * bench_floor(key, scope) computes the digest (idemq's own code), inserts the
 * row that a claim inserts into the heap, and its entry into the unique B-tree
 * on the digest.  No look at other partitions, no key lock, no filter, no check
 * of rights or of the clock, and the locks on table and index are taken once
 * per statement.  It is no claim: a duplicate is an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "digest.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(bench_floor);

/* What a statement keeps. */
typedef struct Floor
{
	Oid			table;
	Oid			index;
	CommandId	command;
	TimestampTz now;
} Floor;

/* Find and lock table and index, at the first row of a statement. */
static Floor *
begin_floor(MemoryContext context)
{
	Floor	   *state = MemoryContextAlloc(context, sizeof(Floor));
	Relation	rel;
	List	   *indexes;

	state->table = RelnameGetRelid("floor");
	rel = table_open(state->table, RowExclusiveLock);
	indexes = RelationGetIndexList(rel);
	if (list_length(indexes) != 1)
		elog(ERROR, "the floor has one index");
	state->index = linitial_oid(indexes);
	LockRelationOid(state->index, RowExclusiveLock);
	table_close(rel, NoLock);
	state->command = GetCurrentCommandId(true);
	state->now = GetCurrentTransactionStartTimestamp();
	return state;
}

/* bench_floor(key text, scope text) returns boolean */
Datum
bench_floor(PG_FUNCTION_ARGS)
{
	Floor	   *state = fcinfo->flinfo->fn_extra;
	text	   *key = PG_GETARG_TEXT_PP(0);
	text	   *scope = PG_GETARG_TEXT_PP(1);
	Relation	rel;
	Relation	index;
	HeapTuple	tuple;
	IdemDigest	digest;
	Datum		entry;
	Datum		values[4];
	bool		isnull[4] = {false};

	if (state == NULL)
		state = fcinfo->flinfo->fn_extra = begin_floor(fcinfo->flinfo->fn_mcxt);

	digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
				   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &digest);
	values[0] = PointerGetDatum(scope);
	values[1] = PointerGetDatum(key);
	values[2] = TimestampTzGetDatum(state->now);
	values[3] = TimestampTzGetDatum(state->now);

	rel = RelationIdGetRelation(state->table);
	index = RelationIdGetRelation(state->index);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	heap_insert(rel, tuple, state->command, 0, NULL);
	entry = UUIDPGetDatum((pg_uuid_t *) &digest);
	index_insert(index, &entry, isnull, &tuple->t_self, rel, UNIQUE_CHECK_YES, false, NULL);
	heap_freetuple(tuple);
	RelationClose(index);
	RelationClose(rel);
	PG_RETURN_BOOL(true);
}
