/*-------------------------------------------------------------------------
 *
 * advance.c
 *	  Moving consumers along that have nothing to read.
 *
 * A position moves when its consumer fetches.  One that asks for rare events
 * only, and waits for them, would stay behind all the others that were
 * emitted meanwhile, and hold their partitions.  So what it would pass over is
 * passed over for it, up to the first event that it wants.
 *
 * A shard that somebody is at is left alone, and so is one that has moved a
 * moment ago, and a position of another database, about which somebody has to
 * decide first.
 *
 *-------------------------------------------------------------------------
 */
#include "advance.h"

#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "consumer.h"
#include "guc.h"
#include "lease.h"
#include "ledger.h"
#include "spi_plan.h"

/* A shard that has not moved for so long, or a quarter of the retention, is idle. */
#define IDLE_TIME		USECS_PER_MINUTE

/* Steps that one round takes in a shard. */
#define CALLS_PER_SHARD	100

/*
 * Find the next idle shard; false if there is none.
 *
 * It can move on if a number was drawn since, or a transaction has ended that
 * was running then.
 */
static bool
next_idle(AdvanceRound *round)
{
	static const char *const next =
		"SELECT p.consumer, p.shard FROM idemq._positions AS p, idemq.outbox_seq AS s"
		" WHERE (p.consumer, p.shard) > ($1, $2) AND (p.written_at <= $3 OR p.written_at > $4)"
		" AND p.origins[array_upper(p.origins, 1)] = idemq._outbox_origin()"
		" AND (p.start_seq < s.last_value OR pg_snapshot_xmin(p.start_at) < pg_snapshot_xmax(p.start_at))"
		" ORDER BY p.consumer, p.shard LIMIT 1";
	Oid			types[] = {INT4OID, INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum		values[4];
	TimestampTz now = clock_wall();
	bool		isnull;

	values[0] = Int32GetDatum(round->consumer);
	values[1] = Int32GetDatum(round->shard);
	values[2] = TimestampTzGetDatum(now - Min(IDLE_TIME, guc_outbox_retention() / 4));
	values[3] = TimestampTzGetDatum(now);
	if (SPI_execute_with_args(next, lengthof(types), types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the positions of the consumers");
	if (SPI_processed == 0)
		return false;
	round->consumer = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0],
												  SPI_tuptable->tupdesc, 1, &isnull));
	round->shard = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0],
											   SPI_tuptable->tupdesc, 2, &isnull));
	return true;
}

/* Move a shard on; false if it stays where it is. */
static bool
move_on(int32 number, int32 shard)
{
	LeaseRequest request = {0};
	SpiOwner	saved;
	Consumer   *consumer;
	bool		moved = false;

	request.role = "";
	if (!ledger_lock(number, shard, false))
		return false;
	spi_plan_enter(&saved);
	consumer = consumer_by_number(number);
	if (consumer != NULL && shard < consumer->shards)
		moved = lease_take(consumer, shard, &request) == LEASE_MOVED_ON;
	spi_plan_leave(&saved);
	return moved;
}

/* Move one shard on by one step.  True if there may be more to do. */
bool
advance_step(AdvanceRound *round)
{
	if (round->ncalls == 0 && !next_idle(round))
		return false;
	if (move_on(round->consumer, round->shard) && round->ncalls < CALLS_PER_SHARD)
		round->ncalls++;
	else
		round->ncalls = 0;
	return true;
}
