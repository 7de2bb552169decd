/*-------------------------------------------------------------------------
 *
 * retry.c
 *	  What becomes of an event that has failed.
 *
 * It is parked until the step of the retry ladder that its attempt has reached is
 * over, give or take a tenth, so that what failed together does not come back
 * together.  After max_attempts it is dead: copied into the dead letters, with its
 * error.
 *
 *-------------------------------------------------------------------------
 */
#include "retry.h"

#include "catalog/pg_type_d.h"
#include "common/pg_prng.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "parked.h"
#include "spi_plan.h"
#include "stats.h"

/* The reference to an event; a new one if it has none. */
static ParkedRef *
ref_of(Event *event)
{
	if (event->ref == NULL)
	{
		event->ref = palloc0(sizeof(ParkedRef));
		event->ref->key = event->key;
		event->ref->seq = DatumGetInt64(event->values[LOG_SEQ]);
		event->ref->rank = event->ref->seq;
	}
	return event->ref;
}

/* Park an event, or park it again. */
void
retry_park(ShardState *state, const Batch *batch, Event *event, ParkedState as, TimestampTz due)
{
	ParkedRef  *ref = ref_of(event);

	ref->state = as;
	ref->due = due;
	if (batch != NULL)
		ref->deliveries += batch->deliveries;
	parked_put(state, ref);
}

/* How long to wait after an attempt. */
static int64
wait_after(const Consumer *consumer, int attempt)
{
	int64		step = consumer->ladder[Min(attempt, consumer->nladder) - 1];
	double		jitter = 0.9 + 0.2 * pg_prng_double(&pg_global_prng_state);

	return (int64) (step * jitter);
}

/* Copy an event into the dead letters. */
static void
bury(const Consumer *consumer, const Event *event, const char *error, int attempts,
	 TimestampTz first_failed_at, TimestampTz now)
{
	static SpiPlan plan = SPI_PLAN("INSERT INTO idemq.dead_letters (consumer, seq, created_at, id, aggregatetype, aggregateid, type,"
								   " payload, body, headers, cause, attempts, error, first_failed_at, died_at)"
								   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)", 15,
								   TEXTOID, INT8OID, TIMESTAMPTZOID, UUIDOID, TEXTOID, TEXTOID, TEXTOID,
								   JSONBOID, BYTEAOID, JSONBOID, TEXTOID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID);
	static const LogColumn columns[] = {
		LOG_SEQ, LOG_CREATED_AT, LOG_ID, LOG_AGGREGATETYPE, LOG_AGGREGATEID, LOG_TYPE,
		LOG_PAYLOAD, LOG_BODY, LOG_HEADERS, LOG_CAUSE
	};
	Datum		values[15];
	char		nulls[16] = "               ";

	values[0] = CStringGetTextDatum(consumer->name);
	for (int i = 0; i < lengthof(columns); i++)
	{
		values[i + 1] = event->values[columns[i]];
		if (event->nulls[columns[i]])
			nulls[i + 1] = 'n';
	}
	values[11] = Int32GetDatum(attempts);
	values[12] = (Datum) 0;
	if (error != NULL)
		values[12] = CStringGetTextDatum(error);
	else
		nulls[12] = 'n';
	values[13] = TimestampTzGetDatum(first_failed_at);
	values[14] = TimestampTzGetDatum(now);
	spi_plan_run(&plan, values, nulls, SPI_OK_INSERT);
}

/*
 * An event of a batch has failed; retry_in, if not negative, takes the place of
 * the ladder's step.  The caller takes it out of the batch, and appends to the ledger.
 */
void
retry_fail(ShardState *state, const Consumer *consumer, const Batch *batch, Event *event,
		   const char *error, int64 retry_in, bool alone, RetryOutcome *outcome)
{
	TimestampTz now = clock_wall();
	ParkedRef  *ref = event->ref;
	TimestampTz first_failed_at = now;

	outcome->attempt = 1;
	if (ref != NULL)
	{
		outcome->attempt += ref->attempts;
		if (ref->first_failed_at != 0)
			first_failed_at = ref->first_failed_at;
	}
	outcome->dead = outcome->attempt >= consumer->max_attempts;
	if (outcome->dead)
	{
		bury(consumer, event, error, outcome->attempt, first_failed_at, now);
		if (ref != NULL)
			parked_done(state, ref, consumer->ordered);
		stats_count_consumer(consumer->number, state->shard, CONSUMER_STAT_DEAD, 1);
		return;
	}

	ref = ref_of(event);
	ref->attempts = outcome->attempt;
	ref->first_failed_at = first_failed_at;
	ref->error = error != NULL ? pstrdup(error) : NULL;
	ref->alone = ref->alone || alone;
	outcome->retry_at = now + (retry_in >= 0 ? retry_in : wait_after(consumer, outcome->attempt));
	retry_park(state, batch, event, PARKED_RETRY, outcome->retry_at);
	stats_count_consumer(consumer->number, state->shard, CONSUMER_STAT_RETRIED, 1);
}
