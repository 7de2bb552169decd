/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  What runs by itself: the launcher and its workers.
 *
 * One launcher per server, connected to no database, visits one database
 * after the other: for each it starts a worker, which connects, does a
 * maintenance round, and exits.  So nothing of idemq is connected to a
 * database while it naps, and DROP DATABASE or CREATE DATABASE ... TEMPLATE
 * wait for a round at most.
 *
 * Each database is looked into once, when the server starts or when its oid is
 * new.  After that only those are visited that have the extension and in which
 * something was claimed or emitted since the server started; the one has idemq.processed
 * looked after, the other the outbox.  That second condition is
 * for restores: a dump brings its own partitions, and we must not make one
 * before its CREATE TABLE comes along.
 *
 * Everything that the launcher knows is in shared memory; CREATE EXTENSION
 * (idemq._announce), claims and emits that find no partition wake it there.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/spin.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "clock.h"
#include "filter.h"
#include "guc.h"
#include "maintain.h"
#include "parent.h"
#include "shmem.h"
#include "testpoint.h"

PG_FUNCTION_INFO_V1(idemq_announce);

/* the launcher comes back this many seconds after it was ended */
#define LAUNCHER_RESTART	5

/* A duty that fails is tried again after this many naptimes at the latest. */
#define MAX_BACKOFF			32

StaticAssertDecl(MAINTAIN_DUTIES <= SHMEM_DUTIES, "no room for all duties");

/* How long a worker that has more to build stays connected, in us. */
#define ROUND_LIMIT			(2 * USECS_PER_SEC)

/* A worker that cannot be had is worth a line in the log this often. */
#define STARVED_REPORT		(60 * USECS_PER_SEC)

/* Nobody can wake the launcher any more. */
static void
withdraw_latch(int code, Datum arg)
{
	SpinLockAcquire(&shmem_state->latch_lock);
	shmem_state->launcher = NULL;
	SpinLockRelease(&shmem_state->latch_lock);
}

/* Let others wake the launcher. */
static void
publish_latch(void)
{
	before_shmem_exit(withdraw_latch, (Datum) 0);
	SpinLockAcquire(&shmem_state->latch_lock);
	shmem_state->launcher = MyLatch;
	SpinLockRelease(&shmem_state->latch_lock);
}

/* The databases that one can connect to, in the given context. */
static List *
list_databases(MemoryContext context)
{
	List	   *databases = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database row = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;

		/* a negative limit other than -1: DROP DATABASE was interrupted */
		if (!row->datallowconn || row->datconnlimit < -1)
			continue;
		old = MemoryContextSwitchTo(context);
		databases = lappend_oid(databases, row->oid);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return databases;
}

/*
 * Forget what is known of databases that are gone.
 *
 * One that is not in the list may also be newer than the list, with sessions
 * that have pointers to its entry.
 */
static void
forget_gone(List *databases)
{
	for (int i = 0; i < SHMEM_DATABASES; i++)
	{
		Oid			dboid = shmem_state->databases[i].oid;
		bool		gone;

		if (!OidIsValid(dboid) || list_member_oid(databases, dboid))
			continue;
		StartTransactionCommand();
		gone = !SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(dboid));
		CommitTransactionCommand();
		if (gone)
		{
			shmem_forget_database(dboid);
			filter_forget_database(dboid);
		}
	}
}

/* Note that there was, or was not, a slot for a worker. */
static void
note_slot(bool found)
{
	static int64 last_report = 0;
	int64		now = clock_monotonic();

	if (found)
	{
		shmem_state->starved_since = 0;
		return;
	}
	if (shmem_state->starved_since == 0)
		shmem_state->starved_since = now;
	if (last_report != 0 && now - last_report < STARVED_REPORT)
		return;
	last_report = now;
	ereport(WARNING,
			(errmsg("no slot for an idemq worker, partitions are neither made nor dropped"),
			 errhint("Raise max_worker_processes.")));
}

/* Have a worker look after a database, and wait for its end. */
static void
visit_database(Oid dboid)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	strlcpy(worker.bgw_name, "idemq worker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "idemq worker", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "idemq", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "idemq_worker_main", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = ObjectIdGetDatum(dboid);

	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		note_slot(false);
		return;
	}
	note_slot(true);
	(void) WaitForBackgroundWorkerShutdown(handle);
	pfree(handle);
}

/* Visit every database that may need it. */
static void
visit_databases(MemoryContext context)
{
	List	   *databases;
	ListCell   *cell;

	databases = list_databases(context);
	forget_gone(databases);
	MemoryContextSwitchTo(context);
	foreach(cell, databases)
	{
		DatabaseEntry *entry = shmem_database(lfirst_oid(cell));

		CHECK_FOR_INTERRUPTS();
		shmem_state->launcher_beat = clock_monotonic();
		if (TEST_WITHOUT("worker"))
			continue;
		if (entry->state == DATABASE_UNKNOWN ||
			(entry->state == DATABASE_WITH &&
			 (pg_atomic_read_u32(&entry->in_use) != InvalidOid ||
			  pg_atomic_read_u32(&entry->log_in_use) != InvalidOid)))
			visit_database(lfirst_oid(cell));
	}
	shmem_state->launcher_beat = clock_monotonic();
}

/* The launcher. */
void
idemq_launcher_main(Datum arg)
{
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	context = AllocSetContextCreate(TopMemoryContext, "idemq launcher",
									ALLOCSET_DEFAULT_SIZES);
	publish_latch();

	for (;;)
	{
		uint32		wakes;

		MemoryContextReset(context);
		MemoryContextSwitchTo(context);
		wakes = pg_atomic_read_u32(&shmem_state->wakes);
		visit_databases(context);

		/* a wake-up may have been lost while we waited for a worker */
		if (pg_atomic_read_u32(&shmem_state->wakes) == wakes)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 idemq_naptime * 1000L, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}

/* Is there a leaf for the present time? */
static bool
has_present_leaf(const Parent *parent)
{
	ClockBase	base = catalog_leaves()->base;
	TimestampTz stamp = Max(clock_wall(), clock_floor(&base));
	Spans		spans;
	const Span *span;

	if (!parent_spans(parent, false, &spans))
		return false;
	span = parent_span_for(&spans, stamp);
	return span != NULL && !span->permanent && stamp < span->upper;
}

/* If there is, writers need not call for one. */
static void
note_present_leaf(const Parent *parent, pg_atomic_uint64 *homeless_since)
{
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (has_present_leaf(parent))
		pg_atomic_write_u64(homeless_since, 0);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* A duty failed: it is tried again later each time, up to MAX_BACKOFF naptimes. */
static void
back_off(DatabaseEntry *entry, MaintainDuty duty)
{
	int			naptimes = Min(1 << Min(entry->failures[duty], 30), MAX_BACKOFF);

	entry->failures[duty]++;
	entry->retry_at[duty] = clock_monotonic() +
		naptimes * idemq_naptime * USECS_PER_SEC;
}

/* One step in a transaction of its own; an error goes to the log. */
static bool
run_step(MaintainRound *round, MaintainDuty duty)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool more = false;

	StartTransactionCommand();
	PG_TRY();
	{
		more = maintain_step(round, duty);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		more = false;			/* the commit may have failed */
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		EmitErrorReport();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();

		round->failures.n++;
		strlcpy(round->failures.last, error->message, sizeof(round->failures.last));
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return more;
}

/* A duty, unless it failed a moment ago. */
static void
run_duty(DatabaseEntry *entry, MaintainDuty duty)
{
	MaintainRound round = {0};

	if (entry->retry_at[duty] > clock_monotonic())
		return;
	while (run_step(&round, duty))
	{
		CHECK_FOR_INTERRUPTS();

		/*
		 * Building the filter is long.  Somebody may want to drop the
		 * database: leave it, and come back at once.
		 */
		if (clock_monotonic() - entry->round_started > ROUND_LIMIT && duty == DUTY_FILTER)
		{
			shmem_wake_launcher();
			break;
		}
	}
	if (round.failures.n > 0)
	{
		strlcpy(entry->error, round.failures.last, SHMEM_ERROR_LEN);
		back_off(entry, duty);
	}
	else
		entry->failures[duty] = 0;
}

/* Does a duty fail? */
static bool
fails(const DatabaseEntry *entry)
{
	for (MaintainDuty duty = 0; duty < MAINTAIN_DUTIES; duty++)
	{
		if (entry->failures[duty] > 0)
			return true;
	}
	return false;
}

/* The duties of a round. */
static void
run_duties(DatabaseEntry *entry, bool in_use, bool log_in_use)
{
	for (MaintainDuty duty = 0; duty < MAINTAIN_DUTIES; duty++)
	{
		if (maintain_is_wanted(duty, in_use, log_in_use) &&
			(!maintain_lets_go(duty) || entry->failures[DUTY_CLOCK] == 0))
			run_duty(entry, duty);
	}
}

/* A round, if there is anything to look after. */
static void
run_round(DatabaseEntry *entry)
{
	bool		installed;
	bool		in_use = false;
	bool		log_in_use = false;

	/* before we look: who announces the extension now sets it back */
	entry->state = DATABASE_WITHOUT;
	StartTransactionCommand();
	installed = OidIsValid(get_extension_oid("idemq", true));
	if (installed)
	{
		entry->state = DATABASE_WITH;
		in_use = pg_atomic_read_u32(&entry->in_use) == catalog_relation(IDEMQ_PROCESSED);
		log_in_use = pg_atomic_read_u32(&entry->log_in_use) == catalog_relation(IDEMQ_OUTBOX);
	}
	CommitTransactionCommand();
	if (!installed)
		filter_forget_database(MyDatabaseId);
	if (!installed || !maintain_begin_round(false))
		return;					/* or somebody called idem_maintain() */

	entry->round_started = clock_monotonic();
	run_duties(entry, in_use, log_in_use);
	if (in_use || log_in_use)
		entry->round_ended = clock_monotonic();
	if (!fails(entry))
		entry->error[0] = '\0';
	maintain_end_round();
	if (in_use)
		note_present_leaf(&parent_processed, &entry->homeless_since);
	if (log_in_use)
		note_present_leaf(&parent_outbox, &entry->log_homeless_since);
}

/* A worker: one round in one database. */
void
idemq_worker_main(Datum arg)
{
	Oid			dboid = DatumGetObjectId(arg);

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	pgstat_report_appname("idemq worker");

	run_round(shmem_database(dboid));
	proc_exit(0);
}

/* When the server starts. */
void
worker_register_launcher(void)
{
	BackgroundWorker worker = {0};

	/* pg_upgrade wants to be alone in its databases */
	if (IsBinaryUpgrade)
		return;
	strlcpy(worker.bgw_name, "idemq launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "idemq launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "idemq", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "idemq_launcher_main", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = LAUNCHER_RESTART;
	RegisterBackgroundWorker(&worker);
}

/* This transaction has created the extension. */
static bool announce_pending = false;

/* CREATE EXTENSION committed: have somebody look. */
static void
announce_at_commit(XactEvent event, void *arg)
{
	if (!announce_pending)
		return;
	if (event == XACT_EVENT_COMMIT)
	{
		shmem_database(MyDatabaseId)->state = DATABASE_UNKNOWN;
		shmem_wake_launcher();
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		announce_pending = false;
}

/* idemq._announce(): the end of the install script. */
Datum
idemq_announce(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	if (!shmem_is_attached())
		PG_RETURN_VOID();
	(void) shmem_database(MyDatabaseId);
	if (!registered)
		RegisterXactCallback(announce_at_commit, NULL);
	registered = true;
	announce_pending = true;
	PG_RETURN_VOID();
}
