/*-------------------------------------------------------------------------
 *
 * checkpoint.c
 *	  Moments of the log that consumers can go back to.
 *
 * The first checkpoint shows nothing, and is older than everything: a consumer
 * that starts there gets all there is.  Then there is one each minute, if anything was
 * emitted since the last one.
 *
 * A checkpoint goes when the log holds nothing any more that it does not show,
 * and idemq.outbox_retention is over: all go that are older than the last one
 * from before the oldest partition.  (What is in a partition was committed
 * after its time had begun, or the clock was set; then a seek goes back further
 * than it had to.)  While a consumer holds partitions back their checkpoints stay.
 *
 *-------------------------------------------------------------------------
 */
#include "checkpoint.h"

#include "access/relation.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "guc.h"
#include "moment.h"
#include "outbox.h"
#include "parent.h"

/* They are taken this far apart, at least. */
#define CHECKPOINT_DISTANCE		USECS_PER_MINUTE

/* How many one step takes away. */
#define CHECKPOINTS_PER_STEP	1000

/* Write one down. */
static void
write_checkpoint(TimestampTz taken_at, const Moment *moment)
{
	static const char *const insert =
		"INSERT INTO idemq.checkpoints (taken_at, origin, snapshot, next_xid, last_seq) VALUES ($1, $2, $3, $4, $5)";
	Oid			types[] = {TIMESTAMPTZOID, INT8OID, PG_SNAPSHOTOID, XID8OID, INT8OID};
	Datum		values[5];

	values[0] = TimestampTzGetDatum(taken_at);
	values[1] = Int64GetDatum(outbox_origin());
	values[2] = PointerGetDatum(moment->snapshot);
	values[3] = Int64GetDatum((int64) moment->next);
	values[4] = Int64GetDatum(moment->seq);
	if (SPI_execute_with_args(insert, lengthof(types), types, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not write idemq.checkpoints");
}

/* Write one down, if it is time for it. */
static void
take(TimestampTz now)
{
	static const char *const last =
		"SELECT c.taken_at, CASE WHEN s.is_called THEN s.last_value ELSE 0 END > c.last_seq"
		" FROM idemq.outbox_seq AS s, (SELECT taken_at, last_seq FROM idemq.checkpoints"
		"  ORDER BY taken_at DESC LIMIT 1) AS c";
	Moment		moment;
	TimestampTz taken_at;
	bool		emitted;
	bool		isnull;

	if (SPI_execute(last, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read idemq.checkpoints");
	if (SPI_processed == 0)
	{
		moment_of_nothing(&moment);
		write_checkpoint(DT_NOBEGIN, &moment);
		return;
	}
	taken_at = DatumGetTimestampTz(SPI_getbinval(SPI_tuptable->vals[0],
												 SPI_tuptable->tupdesc, 1, &isnull));
	emitted = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0],
										 SPI_tuptable->tupdesc, 2, &isnull));

	/* one of the future says that the clock was set */
	if (!emitted ||
		(!TIMESTAMP_IS_NOBEGIN(taken_at) && taken_at <= now && now - taken_at < CHECKPOINT_DISTANCE))
		return;
	moment_take(&moment);
	write_checkpoint(now, &moment);
}

/* Where does the oldest partition begin that has anything in it? */
static bool
oldest_partition(TimestampTz *lower)
{
	Spans		spans;

	if (!parent_spans(&parent_outbox, false, &spans))
		return false;
	*lower = DT_NOEND;
	for (int i = 0; i < spans.n; i++)
	{
		Relation	rel = try_relation_open(spans.span[i].oid, AccessShareLock);

		if (rel == NULL)
			continue;
		if (rel->rd_rel->relkind != RELKIND_RELATION || RelationGetNumberOfBlocks(rel) > 0)
			*lower = Min(*lower, spans.span[i].lower);
		relation_close(rel, AccessShareLock);
	}
	return !TIMESTAMP_IS_NOEND(*lower);
}

/* Take away what nobody can go back to any more.  True if there may be more. */
static bool
age_out(void)
{
	static const char *const take_away =
		"DELETE FROM idemq.checkpoints WHERE ctid = ANY (ARRAY("
		"SELECT ctid FROM idemq.checkpoints WHERE taken_at < $1"
		" AND taken_at < (SELECT max(taken_at) FROM idemq.checkpoints WHERE taken_at <= $2)"
		" ORDER BY taken_at LIMIT $3))";
	Oid			types[] = {TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID};
	Datum		values[3];
	bool		may_expire;
	TimestampTz trusted = parent_trusted_time(&may_expire);
	TimestampTz oldest;

	if (!may_expire || !oldest_partition(&oldest))
		return false;
	values[0] = TimestampTzGetDatum(trusted - guc_outbox_retention());
	values[1] = TimestampTzGetDatum(oldest);
	values[2] = Int32GetDatum(CHECKPOINTS_PER_STEP);
	if (SPI_execute_with_args(take_away, lengthof(types), types, values, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not delete from idemq.checkpoints");
	return SPI_processed == CHECKPOINTS_PER_STEP;
}

/* Take a checkpoint if it is time for one, and let old ones go.  True if there may be more to do. */
bool
checkpoint_step(void)
{
	take(clock_wall());
	return age_out();
}
