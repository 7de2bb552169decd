/*-------------------------------------------------------------------------
 *
 * reshard.c
 *	  Changing the number of shards of a consumer.
 *
 * The shards have come to different places in the log, and each has seen only
 * the events that the old number gave it.  So outbox_alter() puts up a barrier, the
 * moment of the change, and every shard goes on under the old number until it has
 * read up to there, and has got back what it handed out.  Then all are at the same
 * place, and the new ones begin there.  What is parked moves to the shard
 * that its key has now; a key was in one shard, so its order stays.
 *
 *-------------------------------------------------------------------------
 */
#include "reshard.h"

#include "catalog/pg_type_d.h"

#include "ledger.h"
#include "parked.h"
#include "spi_plan.h"
#include "xactstate.h"

/* Has a shard read up to the barrier, and got back what it handed out? */
static bool
is_at_barrier(const Consumer *consumer, int32 shard, ShardState *state)
{
	return ledger_read(consumer->number, shard, state) && !state->open &&
		!state->replaying && state->open_batches == 0 &&
		moment_equal(&state->start, &consumer->barrier);
}

/* Have all, and is nobody at work on one of them? */
bool
reshard_is_due(const Consumer *consumer)
{
	if (consumer->next_shards == 0)
		return false;
	for (int32 shard = 0; shard < consumer->shards; shard++)
	{
		ShardState	state;

		if (ledger_is_locked(consumer->number, shard) ||
			!is_at_barrier(consumer, shard, &state))
			return false;
	}
	return true;
}

/* Try to lock all shards, old and new; what was locked stays so if it fails. */
static bool
lock_all(const Consumer *consumer)
{
	for (int32 shard = 0; shard < Max(consumer->shards, consumer->next_shards); shard++)
	{
		if (!ledger_lock(consumer->number, shard, false))
		{
			while (shard-- > 0)
				ledger_unlock(consumer->number, shard);
			return false;
		}
	}
	return true;
}

/* Give all locks back. */
static void
unlock_all(const Consumer *consumer)
{
	for (int32 shard = 0; shard < Max(consumer->shards, consumer->next_shards); shard++)
		ledger_unlock(consumer->number, shard);
}

/* Move what was parked in the old shards to where it belongs. */
static void
move_parked(const List *refs, ShardState *states, int32 shards)
{
	ListCell   *cell;

	foreach(cell, refs)
	{
		ParkedRef  *ref = lfirst(cell);

		ref->place = 0;
		parked_put(&states[(uint64) ref->key % (uint64) shards], ref);
	}
}

/* Change the number of shards, if all have reached the barrier; false if not yet. */
bool
reshard_try(const Consumer *consumer)
{
	static SpiPlan plan = SPI_PLAN("UPDATE idemq.subscriptions SET shards = next_shards, next_shards = NULL,"
								   " barrier = NULL, barrier_next = NULL, barrier_seq = NULL WHERE number = $1",
								   1, INT4OID);
	int32		most = Max(consumer->shards, consumer->next_shards);
	ShardState *old = palloc0(sizeof(ShardState) * most);
	ShardState *new = palloc0(sizeof(ShardState) * most);
	Datum		args[] = {Int32GetDatum(consumer->number)};
	List	   *refs = NIL;

	if (!lock_all(consumer))
		return false;
	consumer = consumer_find(consumer->name);
	if (consumer->next_shards == 0 || Max(consumer->shards, consumer->next_shards) != most)
		return false;			/* somebody else did it; the locks go with us */

	for (int32 shard = 0; shard < consumer->shards; shard++)
	{
		if (!is_at_barrier(consumer, shard, &old[shard]))
		{
			unlock_all(consumer);
			return false;
		}
	}

	/* a shard number that was used before goes on counting */
	for (int32 shard = 0; shard < most; shard++)
	{
		if (!ledger_read(consumer->number, shard, &new[shard]))
		{
			consumer_find_position(consumer, shard, &new[shard]);
			ledger_count_on(&new[shard]);
		}
		new[shard].norigins = old[0].norigins;
		new[shard].origins = old[0].origins;
		new[shard].replaying = false;
		consumer_set_position(&new[shard], &consumer->barrier);
	}

	/*
	 * all of them are read before the first is moved, or some would be found
	 * again
	 */
	for (int32 shard = 0; shard < consumer->shards; shard++)
		refs = list_concat(refs, parked_live(&old[shard]));
	move_parked(refs, new, consumer->next_shards);
	for (int32 shard = 0; shard < most; shard++)
	{
		parked_find_next_due(&new[shard]);
		ledger_append(&new[shard], NULL);
	}
	spi_plan_run(&plan, args, NULL, SPI_OK_UPDATE);
	xactstate_tell();
	return true;
}
