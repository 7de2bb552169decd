/*-------------------------------------------------------------------------
 *
 * outbox_leaf.c
 *	  Which leaf of the log an event goes to.
 *
 * The promise: an INSERT or COPY never fails for want of a partition.  The
 * default of the column leaf answers with the lower bound of a leaf that exists:
 * the one whose time it is, else the newest, else the permanent one.
 *
 * It must exist for the executor, which looks the leaves up once, when the
 * statement starts, while a default is evaluated for each row.  A leaf that was
 * attached in between (a statement may run for longer than the runway) is one
 * that the executor does not know, and the row would be refused.  So a support
 * function gives the default the leaves that the planner sees, as its argument.
 * What the planner sees the executor sees as well: attaching a leaf makes plans
 * that are kept invalid, and taking one away waits for the lock that the
 * statement has had on the parent since before it was planned.
 *
 * Which leaf it is has no influence on what a reader finds, since it looks into
 * all of them.  A leaf that this transaction has attached itself is good as
 * well: it is visible to others together with the rows in it.
 *
 * Rejected: a DEFAULT partition (nothing can be attached beside its rows), a
 * BEFORE ROW trigger (it comes after routing), asking for the leaves at each row
 * (above), or only for those that the statement's snapshot shows (it may be a
 * moment newer than what the executor knows).
 *
 *-------------------------------------------------------------------------
 */
#include "outbox.h"

#include "access/table.h"
#include "catalog/pg_type_d.h"
#include "nodes/makefuncs.h"
#include "nodes/supportnodes.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "shmem.h"

PG_FUNCTION_INFO_V1(idemq_outbox_leaf);
PG_FUNCTION_INFO_V1(idemq_outbox_leaf_support);

/* A leaf, as far as one must know it to choose. */
typedef struct LeafBounds
{
	Oid			oid;
	TimestampTz lower;			/* -infinity: the permanent one */
	TimestampTz upper;
} LeafBounds;

/* All of them, in the order of their bounds. */
static LeafBounds *leaves = NULL;
static int	nleaves = 0;
static Oid	leaves_parent = InvalidOid;
static bool leaves_valid = false;
static bool leaves_stale = false;	/* changed while they were being read */

/* Drop the list if it has to do with this relation. */
static void
forget_leaves(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == leaves_parent)
	{
		leaves_valid = false;
		leaves_stale = true;
	}
}

/* One end of a range. */
static TimestampTz
bound_value(PartitionBoundInfo bounds, int i)
{
	switch (bounds->kind[i][0])
	{
		case PARTITION_RANGE_DATUM_MINVALUE:
			return DT_NOBEGIN;
		case PARTITION_RANGE_DATUM_MAXVALUE:
			return DT_NOEND;
		default:
			return DatumGetTimestampTz(bounds->datums[i][0]);
	}
}

/* Read the leaves of a parent that is locked from the relation cache. */
static void
read_leaves(Relation parent)
{
	PartitionDesc desc;
	PartitionBoundInfo bounds;
	LeafBounds *fresh;
	int			n = 0;

	/* an older snapshot would show a leaf that is being detached */
	PushActiveSnapshot(GetLatestSnapshot());
	desc = RelationGetPartitionDesc(parent, true);
	PopActiveSnapshot();
	bounds = desc->boundinfo;
	fresh = MemoryContextAlloc(TopMemoryContext, sizeof(LeafBounds) * Max(desc->nparts, 1));

	/* the range below each bound is a partition, or none */
	for (int i = 1; bounds != NULL && i < bounds->ndatums; i++)
	{
		int			part = bounds->indexes[i];

		if (part < 0 || !desc->is_leaf[part])
			continue;
		fresh[n].oid = desc->oids[part];
		fresh[n].lower = bound_value(bounds, i - 1);
		fresh[n].upper = bound_value(bounds, i);
		n++;
	}
	if (leaves != NULL)
		pfree(leaves);
	leaves = fresh;
	nleaves = n;
}

/* Have the list of leaves, and a lock on the parent that keeps them. */
static Oid
lock_leaves(LOCKMODE lockmode)
{
	for (;;)
	{
		Relation	parent;

		if (!leaves_valid)
			leaves_parent = catalog_relation(IDEMQ_OUTBOX);
		LockRelationOid(leaves_parent, lockmode);
		if (leaves_valid)
			return leaves_parent;

		leaves_stale = false;
		parent = try_table_open(leaves_parent, NoLock);
		if (parent != NULL)
		{
			read_leaves(parent);
			table_close(parent, NoLock);
			leaves_valid = !leaves_stale;
			if (leaves_valid)
				return leaves_parent;
		}
		UnlockRelationOid(leaves_parent, lockmode);
	}
}

/* Lock the parent for an insertion, until the end of the (sub)transaction. */
void
outbox_lock_parent(void)
{
	ResourceOwner owner = CurrentResourceOwner;

	/* as in outbox.c */
	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) lock_leaves(RowExclusiveLock);
	CurrentResourceOwner = owner;
}

/* Is the list of leaves still as it was then? */
bool
outbox_leaves_known(void)
{
	return leaves_valid;
}

/* Is it a leaf's time?  The permanent one is for when there is no other. */
static inline bool
is_time_of(TimestampTz lower, TimestampTz upper, TimestampTz stamp)
{
	return lower <= stamp && stamp < upper && !TIMESTAMP_IS_NOBEGIN(lower);
}

/* The leaf for an event of that time, after outbox_lock_parent(). */
Oid
outbox_leaf_for(TimestampTz stamp, TimestampTz *lower)
{
	int			chosen = nleaves - 1;
	bool		homeless = true;

	for (int i = nleaves - 1; i >= 0 && homeless; i--)
	{
		if (is_time_of(leaves[i].lower, leaves[i].upper, stamp))
		{
			chosen = i;
			homeless = false;
		}
	}
	if (chosen < 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"%s.%s\" has no partition to write to", IDEMQ_SCHEMA, IDEMQ_OUTBOX),
				 errhint("Attach \"%s.outbox_permanent\" again, or call idem_maintain().",
						 IDEMQ_SCHEMA)));
	shmem_note_emit(leaves_parent, homeless);
	*lower = leaves[chosen].lower;
	return leaves[chosen].oid;
}

/* The leaf for an event of that time among pairs of bounds. */
static TimestampTz
choose_among(const TimestampTz *bounds, int n, TimestampTz stamp)
{
	for (int i = 0; i < n; i += 2)
	{
		if (is_time_of(bounds[i], bounds[i + 1], stamp))
		{
			shmem_note_emit(leaves_parent, false);
			return bounds[i];
		}
	}
	shmem_note_emit(leaves_parent, true);
	return bounds[n - 2];
}

/* idemq._outbox_leaf(known timestamptz[] DEFAULT NULL): default of idemq.outbox.leaf */
Datum
idemq_outbox_leaf(PG_FUNCTION_ARGS)
{
	TimestampTz lower;
	ArrayType  *known;

	if (PG_ARGISNULL(0))
	{
		Oid			parent = lock_leaves(AccessShareLock);

		(void) outbox_leaf_for(clock_wall(), &lower);
		UnlockRelationOid(parent, AccessShareLock);
		PG_RETURN_TIMESTAMPTZ(lower);
	}
	known = PG_GETARG_ARRAYTYPE_P(0);
	if (!OidIsValid(leaves_parent))
		leaves_parent = catalog_relation(IDEMQ_OUTBOX);
	if (ARR_NDIM(known) != 1 || ARR_HASNULL(known) || ARR_DIMS(known)[0] % 2 != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("bounds of partitions must be pairs")));
	PG_RETURN_TIMESTAMPTZ(choose_among((TimestampTz *) ARR_DATA_PTR(known),
									   ARR_DIMS(known)[0], clock_wall()));
}

/*
 * The leaves that exist, as an array of bounds: those whose time is not over,
 * and the newest in any case.  NULL if there are none.
 */
static ArrayType *
known_leaves(void)
{
	Oid			parent = lock_leaves(AccessShareLock);
	TimestampTz now = clock_wall();
	Datum	   *bounds = palloc(sizeof(Datum) * 2 * Max(nleaves, 1));
	int			n = 0;

	for (int i = 0; i < nleaves; i++)
	{
		if (leaves[i].upper <= now && i < nleaves - 1)
			continue;
		bounds[n++] = TimestampTzGetDatum(leaves[i].lower);
		bounds[n++] = TimestampTzGetDatum(leaves[i].upper);
	}
	UnlockRelationOid(parent, AccessShareLock);
	return n == 0 ? NULL :
		construct_array(bounds, n, TIMESTAMPTZOID, sizeof(TimestampTz),
						FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
}

/* idemq._outbox_leaf_support(): gives idemq._outbox_leaf() its argument */
Datum
idemq_outbox_leaf_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);
	FuncExpr   *call;
	FuncExpr   *result;
	ArrayType  *known;

	if (!IsA(request, SupportRequestSimplify))
		PG_RETURN_POINTER(NULL);
	call = ((SupportRequestSimplify *) request)->fcall;
	if (list_length(call->args) != 1 || !IsA(linitial(call->args), Const) ||
		!linitial_node(Const, call->args)->constisnull)
		PG_RETURN_POINTER(NULL);
	known = known_leaves();
	if (known == NULL)
		PG_RETURN_POINTER(NULL);

	result = makeFuncExpr(call->funcid, call->funcresulttype,
						  list_make1(makeConst(TIMESTAMPTZARRAYOID, -1, InvalidOid, -1,
											   PointerGetDatum(known), false, false)),
						  call->funccollid, call->inputcollid, call->funcformat);
	PG_RETURN_POINTER(result);
}

/* Hear of changes. */
void
outbox_leaf_init(void)
{
	CacheRegisterRelcacheCallback(forget_leaves, (Datum) 0);
}
