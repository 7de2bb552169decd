/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Waiting for events.
 *
 * A sleeper looks whether a fetch would find anything, in a transaction of its
 * own, and sleeps without one snapshot, so that it holds nothing up however long
 * that takes.  The counter of news is read before it looks: a commit that comes after
 * the look has advanced it, and the sleep ends at once.
 *
 * It wakes for a commit that wrote events or changed a shard (xactstate.c), when
 * something is due or a lease ends, and once a second for whatever slipped by,
 * also to see whether the client is still there.
 * Without shared memory nobody wakes it: it looks more and more seldom, down
 * to once a second.
 *
 *-------------------------------------------------------------------------
 */
#include "idemq.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "consume.h"
#include "consumer.h"
#include "grants.h"
#include "lease.h"
#include "reshard.h"
#include "shmem.h"
#include "spi_plan.h"

PG_FUNCTION_INFO_V1(outbox_wait);

/* libpq/libpq.h wants Kerberos's headers, which need not be there */
extern bool pq_check_connection(void);

#define LONGEST_SLEEP	1000	/* ms */
#define SHORTEST_SLEEP	1		/* ms, after a wake that was not for us */

/* What a sleeper remembers from one look to the next. */
typedef struct Sleeper
{
	char	   *name;
	MemoryContext context;
	int32		nlooks;
	LeaseLook  *looks;			/* by shard */
} Sleeper;

/* Would a fetch find anything?  If not, *next is when it will, if that is known. */
static bool
look(Sleeper *sleeper, TimestampTz *next)
{
	SpiOwner	owner;
	Consumer   *consumer;
	bool		found = false;

	*next = DT_NOEND;
	PushActiveSnapshot(GetTransactionSnapshot());
	spi_plan_enter(&owner);
	consumer = consumer_find(sleeper->name);
	if (consumer->shards != sleeper->nlooks)
	{
		MemoryContextReset(sleeper->context);
		sleeper->looks = MemoryContextAllocZero(sleeper->context,
												sizeof(LeaseLook) * consumer->shards);
		sleeper->nlooks = consumer->shards;
	}
	for (int32 shard = 0; shard < consumer->shards && !found; shard++)
		found = lease_is_to_be_had(consumer, shard, &sleeper->looks[shard],
								   sleeper->context, next);

	/* somebody has to fetch for the change to come about */
	found = found || reshard_is_due(consumer);
	spi_plan_leave(&owner);
	PopActiveSnapshot();
	return found;
}

/* Once a second: a client that was killed says nothing, and its backend would sleep for nobody. */
static void
check_client(int64 *checked_at)
{
	int64		now = clock_monotonic();

	if (MyProcPort == NULL || now - *checked_at < LONGEST_SLEEP * INT64CONST(1000))
		return;
	*checked_at = now;
	if (pq_check_connection())
		return;
	ClientConnectionLost = true;
	InterruptPending = true;
}

/* CALL outbox_wait(consumer, timeout) */
Datum
outbox_wait(PG_FUNCTION_ARGS)
{
	Sleeper		sleeper = {0};
	int64		timeout;
	int64		deadline;
	int64		checked_at = clock_monotonic();
	long		backoff = SHORTEST_SLEEP;
	int			nwakes = 0;
	SpiOwner	owner;

	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox_wait() cannot run inside a transaction block"),
				 errhint("It would hold a snapshot while it sleeps: use autocommit.")));
	consumer_require_fresh_snapshot("outbox_wait()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("consumer must not be null")));
	timeout = PG_ARGISNULL(1) ? 0 : consume_interval(PG_GETARG_INTERVAL_P(1));
	if (timeout <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must be longer than nothing"),
				 errhint("For example interval '1 minute'.")));
	deadline = clock_monotonic() + timeout;
	sleeper.context = AllocSetContextCreate(PortalContext, "idemq sleeper", ALLOCSET_SMALL_SIZES);
	sleeper.name = MemoryContextStrdup(PortalContext, text_to_cstring(PG_GETARG_TEXT_PP(0)));

	spi_plan_enter(&owner);
	(void) consumer_find(sleeper.name);
	grants_require_consumer(owner.user, sleeper.name, fcinfo->flinfo->fn_oid);
	spi_plan_leave(&owner);

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	for (;;)
	{
		uint64		news = shmem_wake_counter();
		TimestampTz next;
		long		sleep = LONGEST_SLEEP;
		int64		left;
		bool		found = look(&sleeper, &next);

		SPI_commit();
		left = deadline - clock_monotonic();
		if (found || left <= 0)
			break;
		sleep = Min(sleep, left / 1000 + 1);
		if (!TIMESTAMP_IS_NOEND(next))
			sleep = Min(sleep, Max((next - clock_wall()) / 1000 + 1, SHORTEST_SLEEP));
		check_client(&checked_at);
		CHECK_FOR_INTERRUPTS();
		if (!shmem_is_attached())
		{
			sleep = Min(sleep, backoff);
			backoff = Min(backoff * 2, LONGEST_SLEEP);
		}

		/* others' commits may come thick and fast */
		if (shmem_sleep(news, sleep) && nwakes++ > 0)
			(void) shmem_sleep(shmem_wake_counter(), SHORTEST_SLEEP);
	}
	SPI_finish();
	PG_RETURN_VOID();
}
