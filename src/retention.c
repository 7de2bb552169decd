/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Letting go of what is past its time in the outbox.
 *
 * The promise: an event is not taken away while any consumer has still to read
 * it, has it in a lease, or has it parked; nor before idemq.outbox_retention is over;
 * and nobody waits for longer than it takes to commit a TRUNCATE or a DROP.
 *
 * A partition of the log may go when its time, and the newest event in it, are
 * past the retention, and nothing holds it (hold_of).  Whether a consumer
 * has passed it is asked of the snapshots that positions consist of: is there a
 * row whose transaction the start snapshot does not show?  The horizon of the
 * server (xmin) is not asked: any old transaction would hold everything.
 *
 * Locking: first a look without any lock that would be in somebody's way.  Then
 * the LOG lock, so that nobody makes a position further back meanwhile (subscribe,
 * seek and adopt share it); then ACCESS EXCLUSIVE on the partition; then a second
 * look, with a snapshot that is newer than these locks.  Nobody has unfinished
 * writes in it then, and who commits a change of a position after that snapshot
 * can only have moved on: a batch or a reference is of events that its position
 * had not passed before, in one and the same transaction.  All of a look goes
 * by one snapshot, for between two an event could change from a lease into a
 * parked one.
 *
 * For a DROP the parent must be locked as well.  Every lock is taken only if it is
 * to be had at once: one that queues on the parent would stop all writers.  A
 * writer holds the parent until it ends, so where somebody writes all the time
 * that lock is rare.  TRUNCATE does without, and gives the space back; what is
 * empty is dropped when it is quiet.
 *
 * Rejected: DELETE (bloat); DETACH CONCURRENTLY (it waits for every transaction
 * that uses the table, and is not for a transaction block).
 *
 *-------------------------------------------------------------------------
 */
#include "retention.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "guc.h"
#include "lock.h"
#include "shmem.h"
#include "spi_plan.h"
#include "testpoint.h"

/* How many partitions one round lets go, beyond those that a naptime brings. */
#define DROPS_PER_ROUND		4

/* How many dead letters one step takes away. */
#define DEAD_PER_STEP		1000

/*
 * By its bounds, is it time for a partition of the log to go?  The permanent
 * one is due when there is another.
 */
bool
retention_is_due(const Spans *spans, const Span *span, TimestampTz trusted,
				 TimestampTz stamp)
{
	if (span->takes_all ||
		parent_span_for(spans, stamp) == span ||
		parent_span_for(spans, DT_NOEND) == span)
		return false;
	if (span->permanent)
		return true;
	return !TIMESTAMP_IS_NOEND(span->upper) &&
		span->upper <= trusted - guc_outbox_retention();
}

/* The oldest partition that is due and was not dealt with in this round, or NULL. */
static const Span *
oldest_due(const Spans *spans, const RetentionRound *round, TimestampTz trusted)
{
	TimestampTz stamp = clock_wall();

	for (int i = spans->n - 1; i >= 0; i--)
	{
		const Span *span = &spans->span[i];

		if (round->begun && span->upper <= round->upto)
			continue;
		if (retention_is_due(spans, span, trusted, stamp) &&
			get_rel_relkind(span->oid) == RELKIND_RELATION)
			return span;
	}
	return NULL;
}

/*
 * What holds a partition; NULL if nothing does.
 *
 * The numbers in it lie between low and high.  Those of a batch or of parked
 * events between them count, whether they are in it or in another one.  Times are
 * looked up in the last rows only: numbers are drawn before the clock is read.
 * The settings of spi_plan_enter have each question answered by an index.
 */
static char *
hold_of(Oid relid, TimestampTz cutoff)
{
	static const char *const question =
		"WITH leaf AS MATERIALIZED (SELECT"
		"  (SELECT seq FROM %1$s ORDER BY seq LIMIT 1) AS low,"
		"  (SELECT seq FROM %1$s ORDER BY seq DESC LIMIT 1) AS high)"
		" SELECT CASE"
		" WHEN low IS NULL THEN NULL"
		" WHEN EXISTS (SELECT FROM (SELECT created_at FROM %1$s ORDER BY seq DESC LIMIT 100) AS r"
		"  WHERE r.created_at > $1) THEN 'an event that is not old enough'"
		" WHEN EXISTS (SELECT FROM idemq._positions AS p WHERE p.entry IS NULL OR p.replaying"
		"  OR p.origins[array_upper(p.origins, 1)] <> idemq._outbox_origin()) THEN 'a consumer whose position says nothing'"
		" WHEN EXISTS (SELECT FROM idemq._positions AS p WHERE"
		"  ((SELECT o.xid FROM %1$s AS o ORDER BY o.xid DESC LIMIT 1) >= pg_snapshot_xmax(p.start_at)"
		"   AND EXISTS (SELECT FROM %1$s AS o WHERE o.xid >= pg_snapshot_xmax(p.start_at) AND o.origin = ANY (p.origins)))"
		"  OR EXISTS (SELECT FROM pg_snapshot_xip(p.start_at) AS x (xid) JOIN %1$s AS o ON o.xid = x.xid"
		"   WHERE o.origin = ANY (p.origins))) THEN 'an event that was not read'"
		" WHEN EXISTS (SELECT FROM idemq._positions AS p, LATERAL ("
		"   SELECT DISTINCT ON (l.batch) l.first_event, l.steps, l.parked FROM idemq._ledger AS l"
		"   WHERE l.consumer = p.consumer AND l.shard = p.shard AND l.entry >= p.open_from AND l.batch >= p.open_from"
		"   ORDER BY l.batch, l.entry DESC) AS b"
		"  WHERE NOT b.parked AND b.first_event <= leaf.high"
		"  AND b.first_event + (SELECT coalesce(sum(s), 0) FROM unnest(b.steps) AS s) >= leaf.low) THEN 'an event that is leased'"
		" WHEN EXISTS (SELECT FROM idemq._positions AS p"
		"  JOIN idemq._parked AS k ON k.consumer = p.consumer AND k.shard = p.shard AND k.place >= p.parked_from"
		"  WHERE k.seq BETWEEN leaf.low AND leaf.high AND k.dead_id IS NULL AND k.state <> 'done'"
		"  AND NOT EXISTS (SELECT FROM idemq._parked AS later WHERE later.consumer = k.consumer AND later.shard = k.shard"
		"   AND later.place = k.place AND later.entry > k.entry)) THEN 'an event that is parked'"
		" END FROM leaf";
	Oid			types[] = {TIMESTAMPTZOID};
	Datum		values[] = {TimestampTzGetDatum(cutoff)};
	MemoryContext context = CurrentMemoryContext;
	SpiOwner	saved;
	char	   *hold;
	int			result;

	spi_plan_enter(&saved);
	PushActiveSnapshot(GetLatestSnapshot());
	result = SPI_execute_with_args(psprintf(question, ddl_name(relid)), 1, types, values,
								   NULL, true, 0);
	PopActiveSnapshot();
	if (result != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not ask what holds %s: %s", ddl_name(relid),
			 SPI_result_code_string(result));
	hold = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (hold != NULL)
		hold = MemoryContextStrdup(context, hold);
	spi_plan_leave(&saved);
	return hold;
}

/* Is a partition held?  If so, by what is for the log. */
static bool
is_held(Oid relid, TimestampTz cutoff)
{
	char	   *hold = hold_of(relid, cutoff);

	if (hold != NULL)
		ereport(DEBUG1,
				(errmsg_internal("partition %s is held by %s", ddl_name(relid), hold)));
	return hold != NULL;
}

/* Has a table any blocks? */
static bool
has_blocks(Oid relid)
{
	Relation	rel = relation_open(relid, AccessShareLock);
	bool		result = RelationGetNumberOfBlocks(rel) > 0;

	relation_close(rel, NoLock);
	return result;
}

/* Get the right to take partitions away, if it is to be had at once. */
static bool
lock_log(void)
{
	LOCKTAG		tag;

	lock_tag(&tag, IDEMQ_LOCK_LOG, 0);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* Is this still a partition that is due? */
static bool
is_still_due(Oid relid, TimestampTz trusted)
{
	Spans		spans;

	if (!parent_spans(&parent_outbox, false, &spans))
		return false;
	for (int i = 0; i < spans.n; i++)
	{
		if (spans.span[i].oid == relid)
			return retention_is_due(&spans, &spans.span[i], trusted, clock_wall());
	}
	return false;
}

/* Let a partition go, if nothing holds it and all locks are to be had. */
static bool
let_go(Oid parent, const Span *span, TimestampTz trusted, DdlFailures *failures)
{
	TimestampTz cutoff = trusted - guc_outbox_retention();

	if (span->permanent && !has_blocks(span->oid))
		return false;
	if (is_held(span->oid, cutoff))
		return false;
	TEST_POINT("retention-looked");
	if (!lock_log() || !ddl_lock_if_free(span->oid))
		return false;
	TEST_POINT("retention-locked");
	if (!TEST_WITHOUT("retention_look") &&
		(!is_still_due(span->oid, trusted) || is_held(span->oid, cutoff)))
		return false;

	if (!span->permanent && ddl_lock_if_free(parent))
		return ddl_let_go(span->oid, false, failures);
	return has_blocks(span->oid) && ddl_let_go(span->oid, true, failures);
}

/* Look at one partition, and let it go.  True if there may be more to do. */
bool
retention_step(RetentionRound *round, DdlFailures *failures)
{
	int			limit = DROPS_PER_ROUND +
		2 * (idemq_naptime / idemq_partition_interval + 1);
	bool		may_expire;
	TimestampTz trusted = parent_trusted_time(&may_expire);
	Spans		spans;
	const Span *span;

	if (!may_expire || !parent_spans(&parent_outbox, false, &spans))
		return false;
	span = oldest_due(&spans, round, trusted);
	if (span == NULL)
		return false;
	round->begun = true;
	round->upto = span->upper;
	if (let_go(spans.parent, span, trusted, failures))
		round->nlet_go++;
	return round->nlet_go < limit;
}

/*
 * Take dead letters away whose time is over, a few at a time, by their numbers,
 * which rise with time.  True if there may be more.
 *
 * One that is being replayed stays: who replays locks it first and parks a
 * reference to it in the same transaction.  So we lock those that are to go,
 * leave out those that somebody has locked, and look for references after that.
 */
bool
retention_dead_step(void)
{
	static const char *const choose =
		"SELECT array_agg(d.dead_id) FROM (SELECT dead_id FROM idemq.dead_letters"
		" WHERE died_at < $1 AND dead_id <= (SELECT max(o.dead_id)"
		"  FROM (SELECT dead_id FROM idemq.dead_letters ORDER BY dead_id LIMIT $2) AS o)"
		" FOR UPDATE SKIP LOCKED) AS d";
	static const char *const take =
		"DELETE FROM idemq.dead_letters AS d WHERE d.dead_id = ANY ($1)"
		" AND NOT EXISTS (SELECT FROM idemq._positions AS p"
		"  JOIN idemq._parked AS k ON k.consumer = p.consumer AND k.shard = p.shard AND k.place >= p.parked_from"
		"  WHERE k.dead_id = d.dead_id AND k.state <> 'done'"
		"  AND NOT EXISTS (SELECT FROM idemq._parked AS later WHERE later.consumer = k.consumer"
		"   AND later.shard = k.shard AND later.place = k.place AND later.entry > k.entry))";
	Oid			types[] = {TIMESTAMPTZOID, INT4OID};
	Oid			ids_type[] = {INT8ARRAYOID};
	Datum		values[2];
	bool		may_expire;
	TimestampTz trusted = parent_trusted_time(&may_expire);
	DatabaseEntry *entry = shmem_database(MyDatabaseId);
	bool		isnull;
	uint64		ntaken;

	if (!may_expire)
		return false;
	values[0] = TimestampTzGetDatum(trusted - guc_dead_retention());
	values[1] = Int32GetDatum(DEAD_PER_STEP);
	if (SPI_execute_with_args(choose, 2, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read idemq.dead_letters");
	values[0] = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (isnull)
		return false;
	if (SPI_execute_with_args(take, 1, ids_type, values, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not delete from idemq.dead_letters");
	ntaken = SPI_processed;
	if (ntaken == 0)
		return false;
	if (entry != NULL)
		pg_atomic_fetch_add_u64(&entry->dead_aged_out, ntaken);
	ereport(LOG,
			(errmsg("took " UINT64_FORMAT " dead letters away that were older than idemq.dead_retention",
					ntaken)));
	return true;
}
