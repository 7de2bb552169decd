/*-------------------------------------------------------------------------
 *
 * turn.c
 *	  Keeping the ledgers short.
 *
 * Ledgers and parked tables are appended to and never cleaned row by row: there
 * are three of each, used in turn (idemq.turn; k is the highest turn, k mod 3
 * the table).  When turn k has filled its tables, or is old, then
 *
 *	copy	everything that counts and is in older tables is written once more,
 *			into those of turn k: the latest row of a shard, its batches that are not
 *			done, its parked events.  A copy changes nothing.
 *	turn	in a later round, when nothing is left to copy: the tables of turn
 *			k - 2, which are those of turn k + 1, are emptied, and turn k + 1 begins.
 *
 * The promise: at any time, whoever reads the three tables with any snapshot
 * finds every position in them.
 *
 * TRUNCATE is not MVCC-safe: a pg_dump that has its snapshot, and gets its lock
 * only after the TRUNCATE, finds the table empty, and must find what it held
 * somewhere else.  What the tables of turn k - 2 held was written anew in
 * turn k - 1, before turn k began: that was the condition for turn k to begin, and
 * it was so by committed rows.  Turn k lasts for half a minute at least.  So a
 * snapshot that was taken since turn k began finds the positions in the tables of turn
 * k - 1 or k, which stay.  An older one belongs to somebody who has waited for
 * locks for more than half a minute; a position that is missed is read as the
 * oldest checkpoint, and what was delivered is delivered again.
 *
 * Can a row be written into a table after what counts has left it?
 * Whoever writes for a shard holds the shard lock until the end of its transaction,
 * and reads which turn it is after it got the lock.  So the rows of a shard are in
 * the order of their turns.  One who has begun in turn k, and writes into its
 * tables when k + 1 is the turn, does no harm: its shard has no row of turn k + 1
 * before it has ended, and turn k + 2 does not begin before there is
 * one.  A shard that is new, and not committed, would be overlooked: who
 * subscribes shares the LOG lock until the end, and the turn wants it alone.
 * Besides, the lock for the TRUNCATE is not to be had while anybody has
 * unfinished writes in the tables, and that nothing in them counts is seen with a
 * snapshot that is newer than the lock.
 *
 * Who reads with a snapshot from before the copy, after the TRUNCATE, and without
 * the shard lock, could miss something; that copy and turn are in different
 * rounds keeps them apart.
 *
 * Locking: the shard lock for a copy, only tried; the LOG lock and ACCESS EXCLUSIVE
 * on both tables for the turn, only tried.  Where consumers are in transactions
 * all the time the latter are never to be had; then, when the tables have grown
 * to several times their size, they are waited for, for idemq.drop_lock_timeout
 * at most.  Consumers wait for so long, those who emit do not.
 *
 * Rejected: UPDATE of one row per shard, and DELETE (dead tuples, which an old
 * snapshot keeps: the slower the more consumers do); two tables (what is
 * emptied would have been superseded a moment ago).
 *
 *-------------------------------------------------------------------------
 */
#include "turn.h"

#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "ddl.h"
#include "ledger.h"
#include "lock.h"
#include "spi_plan.h"
#include "testpoint.h"

/* A turn lasts that long at least, and at most if anything was written. */
#define TURN_TIME_LEAST	(30 * USECS_PER_SEC)
#define TURN_TIME_MOST	USECS_PER_HOUR

/* It ends when its tables have that many bytes, and more for each parked event. */
#define TURN_BYTES		(512 * 1024)
#define TURN_BYTES_PER_PARKED	1024

/* At that many times their size it is worth making consumers wait. */
#define OVERDUE			4

/* How often one round tries to lock what it empties, and how far apart (us). */
#define TRIES			10
#define TRY_AGAIN_AFTER	5000L

/* How many parked events one step copies. */
#define COPIES_PER_STEP	10000

/* The names of a turn's tables. */
static char *
table_of(const char *stem, int64 turn)
{
	return psprintf("%s_%d", stem, (int) (turn % 3));
}

/* A value of the first row of what was read last; 0 for null. */
static int64
first_number(int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

/* Run a statement of ours. */
static void
run(const char *sql, int expected)
{
	int			result = SPI_execute(sql, false, 0);

	if (result != expected)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(result));
}

/* Which turn is it, and is it time for the next?  Or even long past it? */
static bool
is_over(int64 *turn, bool *overdue)
{
	TimestampTz began_at;
	int64		age;
	int64		rows;
	int64		bytes;
	int64		enough;

	run("SELECT turn, began_at FROM idemq.turn ORDER BY turn DESC LIMIT 1", SPI_OK_SELECT);
	*turn = SPI_processed > 0 ? first_number(1) : 0;
	began_at = SPI_processed > 0 ? (TimestampTz) first_number(2) : 0;

	/* an age below zero says that the clock was set */
	age = clock_wall() - began_at;
	if (age >= 0 && age < TURN_TIME_LEAST && !TEST_WITHOUT("turn_time"))
		return false;
	run(psprintf("SELECT pg_relation_size('idemq.%1$s') + pg_relation_size('idemq.%2$s'),"
				 " pg_table_size('idemq.%1$s') + pg_table_size('idemq.%2$s'),"
				 " (SELECT sum(parked_events)::bigint FROM idemq._positions)",
				 table_of("ledger", *turn), table_of("parked", *turn)), SPI_OK_SELECT);
	rows = first_number(1);
	bytes = first_number(2);
	enough = TURN_BYTES + TURN_BYTES_PER_PARKED * first_number(3);
	*overdue = bytes >= OVERDUE * enough;
	if (rows == 0)
		return false;
	return age < 0 || age >= TURN_TIME_MOST || TEST_WITHOUT("turn_time") || bytes >= enough;
}

/* Parked events of a shard that count, and are in the tables of the two turns before. */
static char *
old_refs(int64 turn, const char *consumer, const char *shard, const char *parked_from)
{
	return psprintf("SELECT DISTINCT ON (o.place) o.* FROM"
					" (SELECT * FROM idemq.%1$s UNION ALL SELECT * FROM idemq.%2$s) AS o"
					" WHERE o.consumer = %3$s AND o.shard = %4$s AND o.place >= %5$s AND o.state <> 'done'"
					" AND o.entry = (SELECT max(later.entry) FROM idemq._parked AS later WHERE later.consumer = %3$s"
					"  AND later.shard = %4$s AND later.place = o.place)"
					" ORDER BY o.place",
					table_of("parked", turn + 1), table_of("parked", turn + 2),
					consumer, shard, parked_from);
}

/*
 * Find the next shard of which something that counts is in the tables of older
 * turns, behind a given one; false if there is none.
 */
static bool
next_behind(int64 turn, int32 *consumer, int32 *shard)
{
	run(psprintf("SELECT p.consumer, p.shard FROM idemq._positions AS p"
				 " WHERE (p.consumer, p.shard) > (%d, %d) AND p.entry IS NOT NULL AND (p.turn < " INT64_FORMAT
				 " OR EXISTS (SELECT FROM (SELECT DISTINCT ON (l.batch) l.turn, l.first_event FROM idemq._ledger AS l"
				 "  WHERE l.consumer = p.consumer AND l.shard = p.shard AND l.entry >= p.open_from AND l.batch >= p.open_from"
				 "  ORDER BY l.batch, l.entry DESC) AS b WHERE b.first_event IS NOT NULL AND b.turn < " INT64_FORMAT ")"
				 " OR EXISTS (%s))"
				 " ORDER BY p.consumer, p.shard LIMIT 1",
				 *consumer, *shard, turn, turn,
				 old_refs(turn, "p.consumer", "p.shard", "p.parked_from")), SPI_OK_SELECT);
	if (SPI_processed == 0)
		return false;
	*consumer = DatumGetInt32((Datum) first_number(1));
	*shard = DatumGetInt32((Datum) first_number(2));
	return true;
}

/*
 * Write what counts of a shard, whose lock we hold, into the tables of this turn.
 * True if more of it is left.
 */
static bool
copy_shard(int64 turn, int32 consumer, int32 shard)
{
	ShardState	state;
	List	   *batches;
	ListCell   *cell;
	uint64		nrefs;

	if (!ledger_read(consumer, shard, &state))
		return false;
	batches = ledger_open_batches(&state);

	/* each copy is an entry of its own */
	run(psprintf("INSERT INTO idemq.%s (consumer, shard, key, place, entry, seq, dead_id, state, attempts,"
				 " deliveries, alone, due, first_failed_at, error, rank, parked_at)"
				 " SELECT consumer, shard, key, place, " INT64_FORMAT " + row_number() OVER (), seq, dead_id, state, attempts,"
				 " deliveries, alone, due, first_failed_at, error, rank, parked_at FROM (%s LIMIT %d) AS r",
				 table_of("parked", turn), state.next_place - 1,
				 old_refs(turn, psprintf("%d", consumer), psprintf("%d", shard),
						  psprintf(INT64_FORMAT, state.parked_from)), COPIES_PER_STEP),
		SPI_OK_INSERT);
	nrefs = SPI_processed;
	state.next_place += nrefs;
	if (batches == NIL)
		ledger_copy(&state, NULL);
	foreach(cell, batches)
		ledger_copy(&state, lfirst(cell));
	return nrefs == COPIES_PER_STEP;
}

/* Lock a table like one that is to be dropped; false if that takes too long. */
static bool
lock_table(const char *name, bool overdue)
{
	Oid			relid = catalog_relation(name);

	return overdue ? ddl_lock_to_drop(relid) : ddl_lock_if_free(relid);
}

/* Empty the tables of the next turn, and begin it; false if that cannot be now. */
static bool
begin_next(int64 turn, bool overdue)
{
	char	   *ledger = table_of("ledger", turn + 1);
	char	   *parked = table_of("parked", turn + 1);
	int32		consumer = 0;
	int32		shard = 0;
	LOCKTAG		tag;

	lock_tag(&tag, IDEMQ_LOCK_LOG, 0);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	if (!lock_table(ledger, overdue) || !lock_table(parked, overdue))
		return false;
	if (next_behind(turn, &consumer, &shard))
		return false;
	ddl_run(psprintf("TRUNCATE ONLY idemq.%s, ONLY idemq.%s", ledger, parked));
	ddl_run(psprintf("INSERT INTO idemq.turn (turn, began_at) VALUES (" INT64_FORMAT ", %s)",
					 turn + 1, quote_literal_cstr(timestamptz_to_str(clock_wall()))));
	ddl_run(psprintf("DELETE FROM idemq.turn WHERE turn <= " INT64_FORMAT, turn));
	return true;
}

/* Copy one shard, or turn.  True if there may be more to do. */
bool
turn_step(TurnRound *round)
{
	SpiOwner	saved;
	int64		turn;
	bool		overdue;
	bool		more = false;

	spi_plan_enter(&saved);
	if (is_over(&turn, &overdue))
	{
		if (next_behind(turn, &round->consumer, &round->shard))
		{
			/* what is left of this shard, or somebody is at, is for later */
			round->copied = true;
			more = true;
			if (ledger_lock(round->consumer, round->shard, false) &&
				copy_shard(turn, round->consumer, round->shard))
				round->shard--;
		}
		else if (!round->copied)
		{
			/* consumers come and go: not at once, but in a moment */
			if (round->tries > 0)
				pg_usleep(TRY_AGAIN_AFTER);
			more = !begin_next(turn, overdue) && !overdue && ++round->tries < TRIES;
		}
	}
	spi_plan_leave(&saved);
	return more;
}
