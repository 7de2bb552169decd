/*-------------------------------------------------------------------------
 *
 * maintain.c
 *	  Maintenance rounds: what is done for the partitions, and by whom.
 *
 * A round is a series of steps, each a transaction of its own: first the
 * clock, then creations, one partition each, then drops, one partition each.
 * A drop that fails never undoes a creation.  What the outbox needs besides comes
 * in between.  The background worker runs
 * rounds, and so does idem_maintain().
 *
 * What happens in a step happens as the owner of idemq.processed, in a
 * security-restricted context with pinned settings, and runs nobody's code:
 * there are no triggers on CREATE, ATTACH and DROP, a leaf with a TRUNCATE
 * trigger is not truncated, and where rows are written triggers are off (those
 * that fire always are the owner's).
 *
 *-------------------------------------------------------------------------
 */
#include "maintain.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "checkpoint.h"
#include "clock.h"
#include "ddl.h"
#include "grants.h"
#include "filter.h"
#include "guc.h"
#include "lock.h"
#include "partition.h"

PG_FUNCTION_INFO_V1(idem_maintain);
PG_FUNCTION_INFO_V1(idemq_accept_clock);

/* The clock's row is renewed when it is this old. */
#define CLOCK_RENEWAL		USECS_PER_HOUR

/* What maintain_step does with the settings: those that could change meaning. */
static const struct
{
	const char *name;
	const char *value;
}			pinned_settings[] = {
	{"search_path", "pg_catalog, pg_temp"},
	{"TimeZone", "UTC"},
	{"DateStyle", "ISO, YMD"},
	{"default_tablespace", ""},
	{"default_table_access_method", "heap"},
	{"client_min_messages", "warning"},
	{"jit", "off"},
	{"statement_timeout", "0"},
};

/* Which half of idemq a duty is for. */
typedef enum DutyFor
{
	FOR_BOTH,
	FOR_CLAIMS,
	FOR_LOG,
} DutyFor;

static const struct
{
	const char *name;			/* for the server's log */
	DutyFor		half;
	bool		lets_go;		/* takes something away when its time is over */
	bool		writes;			/* rows */
}			duties[MAINTAIN_DUTIES] = {
	[DUTY_CLOCK] = {"noting the time", FOR_BOTH, false, true},
	[DUTY_MAKE] = {"making partitions of idemq.processed", FOR_CLAIMS, false, false},
	[DUTY_MAKE_LOG] = {"making partitions of idemq.outbox", FOR_LOG, false, false},
	[DUTY_ADVANCE] = {"moving idle consumers along", FOR_LOG, false, true},
	[DUTY_CHECKPOINT] = {"writing checkpoints of the outbox", FOR_LOG, false, true},
	[DUTY_TURN] = {"turning the ledgers over", FOR_LOG, false, true},
	[DUTY_EXPIRE] = {"dropping expired partitions of idemq.processed", FOR_CLAIMS, true, false},
	[DUTY_RETENTION] = {"dropping expired partitions of idemq.outbox", FOR_LOG, true, false},
	[DUTY_DEAD] = {"taking old dead letters away", FOR_LOG, true, true},
	[DUTY_FILTER] = {"building the filter", FOR_CLAIMS, false, false},
};

/*
 * Has a duty something to look after, where something was claimed, or emitted,
 * since the server started?  The sooner a new boot's clock is noted the better.
 */
bool
maintain_is_wanted(MaintainDuty duty, bool in_use, bool log_in_use)
{
	switch (duties[duty].half)
	{
		case FOR_BOTH:
			return true;
		case FOR_CLAIMS:
			return in_use;
		case FOR_LOG:
			return log_in_use;
	}
	return false;
}

/* Must the time be known for it? */
bool
maintain_lets_go(MaintainDuty duty)
{
	return duties[duty].lets_go;
}

/* Who owns a table? */
static Oid
owner_of(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/* Write down what time it is believed to be. */
static void
write_clock(Oid clock, TimestampTz now, TimestampTz hold_until)
{
	static const char *const insert =
		"INSERT INTO idemq.clock (high_water, boot_id, monotonic, hold_until) VALUES ($1, $2, $3, $4)";
	Oid			types[] = {TIMESTAMPTZOID, TEXTOID, INT8OID, TIMESTAMPTZOID};
	Datum		values[4];

	values[0] = TimestampTzGetDatum(now);
	values[1] = CStringGetTextDatum(clock_boot_id());
	values[2] = Int64GetDatum(clock_monotonic());
	values[3] = TimestampTzGetDatum(hold_until);
	ddl_run("DELETE FROM idemq.clock");
	if (SPI_execute_with_args(insert, 4, types, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not write idemq.clock");
	CacheInvalidateRelcacheByRelid(clock);
}

/* DUTY_CLOCK. */
static void
note_time(void)
{
	LeafSet    *set = catalog_leaves();
	ClockBase	base = set->base;
	TimestampTz trusted = clock_trusted(&base, guc_retention());

	if (!base.known ||
		(!base.same_boot && clock_boot_id()[0] != '\0') ||
		trusted - base.high_water >= CLOCK_RENEWAL)
		write_clock(set->clock, trusted, base.known ? base.hold_until : DT_NOBEGIN);
}

/* Say what was being done when it failed. */
static void
add_context(void *arg)
{
	errcontext("%s", (const char *) arg);
}

/*
 * Do one step of a duty, in the transaction that the caller has started and
 * will commit.  True if the duty wants another step.
 */
bool
maintain_step(MaintainRound *round, MaintainDuty duty)
{
	ErrorContextCallback context;
	Oid			user;
	int			security;
	int			nest_level;
	bool		more = false;

	context.callback = add_context;
	context.arg = psprintf("%s in database \"%s\"", duties[duty].name,
						   get_database_name(MyDatabaseId));
	context.previous = error_context_stack;
	error_context_stack = &context;

	/* an error restores all of this, by ending the transaction */
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(owner_of(catalog_relation(IDEMQ_PROCESSED)),
						   security | SECURITY_RESTRICTED_OPERATION);

	/*
	 * Nobody must wait for a standby while claims wait for our lock on a
	 * leaf. This setting is for the commit, so it outlives the nest level.
	 */
	(void) set_config_option("synchronous_commit", "local", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	/* what is locked first and read afterwards must be read afresh */
	(void) set_config_option("transaction_isolation", "read committed", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	nest_level = NewGUCNestLevel();
	for (int i = 0; i < lengthof(pinned_settings); i++)
		(void) set_config_option(pinned_settings[i].name, pinned_settings[i].value,
								 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("lock_timeout", psprintf("%d", idemq_drop_lock_timeout),
							 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (duties[duty].writes)
		(void) set_config_option("session_replication_role", "replica",
								 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();

	CHECK_FOR_INTERRUPTS();
	switch (duty)
	{
		case DUTY_CLOCK:
			note_time();
			break;
		case DUTY_MAKE:
			more = partition_make(&parent_processed);
			break;
		case DUTY_MAKE_LOG:
			more = partition_make(&parent_outbox);
			break;
		case DUTY_EXPIRE:
			more = expire_step(&round->expire, &round->failures);
			break;
		case DUTY_ADVANCE:
			more = advance_step(&round->advance);
			break;
		case DUTY_CHECKPOINT:
			more = checkpoint_step();
			break;
		case DUTY_TURN:
			more = turn_step(&round->turn);
			break;
		case DUTY_RETENTION:
			more = retention_step(&round->retention, &round->failures);
			break;
		case DUTY_DEAD:
			more = retention_dead_step();
			break;
		case DUTY_FILTER:
			more = filter_build_step(catalog_leaves());
			break;
	}

	SPI_finish();
	PopActiveSnapshot();
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, security);
	error_context_stack = context.previous;
	return more;
}

/* Begin a round, for which there is a lock; false if another one is running. */
bool
maintain_begin_round(bool wait)
{
	LOCKTAG		tag;

	lock_tag(&tag, IDEMQ_LOCK_ROUND, 0);
	return LockAcquire(&tag, ExclusiveLock, true, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* End it. */
void
maintain_end_round(void)
{
	LOCKTAG		tag;

	lock_tag(&tag, IDEMQ_LOCK_ROUND, 0);
	LockRelease(&tag, ExclusiveLock, true);
}

/* CALL idem_maintain(): one round, by hand. */
Datum
idem_maintain(PG_FUNCTION_ARGS)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("idem_maintain() cannot run inside a transaction block"),
				 errhint("Each step of a round is a transaction of its own: use autocommit.")));
	grants_require_admin("idem_maintain()", fcinfo->flinfo->fn_oid);
	PreventCommandDuringRecovery("idem_maintain()");
	PreventCommandIfReadOnly("idem_maintain()");

	if (!maintain_begin_round(false))
	{
		ereport(NOTICE, (errmsg("another maintenance round is running in this database")));
		PG_RETURN_VOID();
	}
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	PG_TRY();
	{
		/* the caller's transaction has an isolation level of its own */
		SPI_commit();
		for (MaintainDuty duty = 0; duty < MAINTAIN_DUTIES; duty++)
		{
			MaintainRound round = {0};
			bool		more;

			do
			{
				more = maintain_step(&round, duty);
				SPI_commit();
			} while (more);
		}
	}
	PG_FINALLY();
	{
		maintain_end_round();
	}
	PG_END_TRY();
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * idemq.accept_clock(): the wall clock is right.
 *
 * SECURITY DEFINER in SQL; EXECUTE belongs to administrators.  The install script
 * calls it, too.
 */
Datum
idemq_accept_clock(PG_FUNCTION_ARGS)
{
	LOCKTAG		tag;
	LeafSet    *set;
	TimestampTz now;
	TimestampTz hold_until = DT_NOBEGIN;

	/* not while a round writes the same row */
	lock_tag(&tag, IDEMQ_LOCK_ROUND, 0);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	AcceptInvalidationMessages();
	set = catalog_leaves();
	now = clock_wall();

	/*
	 * If the clock was behind, keys that were claimed meanwhile look older
	 * than they are: let nothing go for as long as they have to stay.
	 */
	if (set->base.known)
	{
		hold_until = set->base.hold_until;
		if (now > clock_trusted(&set->base, guc_retention()))
			hold_until = Max(hold_until, now + guc_retention());
	}
	SPI_connect();
	write_clock(set->clock, now, hold_until);
	SPI_finish();
	PG_RETURN_TIMESTAMPTZ(now);
}
