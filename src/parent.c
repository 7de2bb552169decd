/*-------------------------------------------------------------------------
 *
 * parent.c
 *	  The two tables that are partitioned by time, and what differs.
 *
 * What is made, shown and let go by time is the same for both: partitions with
 * bounds.  Those of idemq.processed come from the list that claims work with,
 * which never locks the parent; those of idemq.outbox from the server's own
 * cache, as its writers do.
 *
 *-------------------------------------------------------------------------
 */
#include "parent.h"

#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension_d.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "guc.h"

/* Those of idemq.processed. */
static bool
read_from_catalog(const char *name, bool wait, Spans *spans)
{
	LeafSet    *set = catalog_leaves();

	spans->parent = set->parent;
	spans->n = set->nleaves;
	spans->span = palloc(sizeof(Span) * Max(set->nleaves, 1));
	for (int i = 0; i < set->nleaves; i++)
	{
		const Leaf *leaf = &set->leaves[i];
		Span	   *span = &spans->span[i];

		span->oid = leaf->oid;
		span->lower = leaf->lower;
		span->upper = leaf->upper;
		span->permanent = leaf->permanent;
		span->takes_all = TIMESTAMP_IS_NOBEGIN(leaf->lower) && TIMESTAMP_IS_NOEND(leaf->upper);
	}
	return true;
}

/* The bound at a place of the list of bounds. */
static TimestampTz
bound_at(PartitionBoundInfo bounds, int at)
{
	if (at < 0 || bounds->kind[at][0] == PARTITION_RANGE_DATUM_MINVALUE)
		return DT_NOBEGIN;
	if (at >= bounds->ndatums || bounds->kind[at][0] == PARTITION_RANGE_DATUM_MAXVALUE)
		return DT_NOEND;
	return DatumGetTimestampTz(bounds->datums[at][0]);
}

/*
 * Those of any other table; false if somebody holds a lock on it, and we do not
 * wait.
 */
static bool
read_from_relcache(const char *name, bool wait, Spans *spans)
{
	Oid			relid = catalog_relation(name);
	Relation	rel;
	PartitionDesc desc;
	PartitionBoundInfo bounds;

	if (!catalog_lock(relid, AccessShareLock, wait))
		return false;
	rel = table_open(relid, NoLock);
	desc = RelationGetPartitionDesc(rel, false);
	bounds = desc->boundinfo;
	spans->parent = relid;
	spans->n = 0;
	spans->span = palloc0(sizeof(Span) * Max(desc->nparts, 1));

	/* the partition at i lies between the bounds i - 1 and i */
	for (int i = bounds ? bounds->ndatums : -1; i >= 0; i--)
	{
		Span	   *span = &spans->span[spans->n];

		if (bounds->indexes[i] < 0)
			continue;
		span->oid = desc->oids[bounds->indexes[i]];
		span->lower = bound_at(bounds, i - 1);
		span->upper = bound_at(bounds, i);
		span->permanent = TIMESTAMP_IS_NOBEGIN(span->lower) &&
			OidIsValid(getExtensionOfObject(RelationRelationId, span->oid));
		spans->n++;
	}
	if (bounds && partition_bound_has_default(bounds))
	{
		Span	   *span = &spans->span[spans->n++];

		span->oid = desc->oids[bounds->default_index];
		span->lower = DT_NOBEGIN;
		span->upper = DT_NOEND;
		span->takes_all = true;
	}
	table_close(rel, AccessShareLock);
	return true;
}

const Parent parent_processed = {
	.name = IDEMQ_PROCESSED,
	.replica_identity = true,
	.indexes = {
		{"digest", "UNIQUE ", "idemq.digest(scope, key)", ""},
	},
	.read = read_from_catalog,
};

const Parent parent_outbox = {
	.name = IDEMQ_OUTBOX,
	.indexes = {
		{"seq", "", "seq", " WITH (deduplicate_items = off)"},
		{"xid", "", "xid, seq", " WITH (deduplicate_items = off)"},
	},
	.read = read_from_relcache,
};

/*
 * The partitions of a table; false if somebody holds a lock on it, and we do not
 * wait.
 */
bool
parent_spans(const Parent *parent, bool wait, Spans *spans)
{
	return parent->read(parent->name, wait, spans);
}

/* The partition whose turn it is at a time: its own, the newest, the permanent one. */
const Span *
parent_span_for(const Spans *spans, TimestampTz stamp)
{
	const Span *newest = NULL;
	const Span *permanent = NULL;

	for (int i = 0; i < spans->n; i++)
	{
		const Span *span = &spans->span[i];

		if (span->takes_all)
			continue;
		if (span->permanent)
			permanent = span;
		else if (span->lower <= stamp && stamp < span->upper)
			return span;
		else if (newest == NULL)
			newest = span;
	}
	return newest ? newest : permanent;
}

/* The trusted time, and whether it is known well enough to let anything go. */
TimestampTz
parent_trusted_time(bool *may_expire)
{
	LeafSet    *set = catalog_leaves();
	TimestampTz trusted = clock_trusted(&set->base, guc_retention());

	*may_expire = set->base.known && trusted >= set->base.hold_until;
	return trusted;
}
