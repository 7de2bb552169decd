/*-------------------------------------------------------------------------
 *
 * ddl.c
 *	  Running DDL for maintenance.
 *
 * Inside a maintenance step: with the owner's rights, pinned settings, and a
 * connection to SPI.
 *
 *-------------------------------------------------------------------------
 */
#include "ddl.h"

#include "access/relation.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/resowner.h"

/* Run one statement; it must succeed. */
void
ddl_run(const char *sql)
{
	int			result = SPI_execute(sql, false, 0);

	if (result < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(result));
}

/* A relation's name, as one would type it. */
char *
ddl_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/*
 * Do something in a subtransaction.  Returns what went wrong, or NULL; a cancel
 * is not caught.
 */
static ErrorData *
attempt(void (*action) (Oid relid), Oid relid)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		action(relid);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}

/* Wait for the lock that attaching a partition needs. */
static void
wait_to_attach(Oid parent)
{
	LockRelationOid(parent, ShareUpdateExclusiveLock);
}

/* Wait for the lock that dropping a partition needs. */
static void
wait_to_drop(Oid parent)
{
	LockRelationOid(parent, AccessExclusiveLock);
}

/*
 * Wait for a lock for at most lock_timeout, which is idemq.drop_lock_timeout
 * here; false if that was too short.
 */
static bool
lock_within_timeout(void (*lock) (Oid parent), Oid parent)
{
	ErrorData  *error = attempt(lock, parent);

	if (error == NULL)
		return true;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/* Lock the parent, to attach a partition; false if somebody is busy with it. */
bool
ddl_lock_to_attach(Oid parent)
{
	return lock_within_timeout(wait_to_attach, parent);
}

/* Lock the parent, to drop a partition; false if somebody is busy with it. */
bool
ddl_lock_to_drop(Oid parent)
{
	return lock_within_timeout(wait_to_drop, parent);
}

/*
 * Lock a table like one that is to be dropped, if nobody else holds any lock on it.
 *
 * To ask for it and give up would be logged for standbys, so first see.
 */
bool
ddl_lock_if_free(Oid relid)
{
	LOCKTAG		tag;
	int			holders;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	(void) GetLockConflicts(&tag, AccessExclusiveLock, &holders);
	return holders == 0 && ConditionalLockRelationOid(relid, AccessExclusiveLock);
}

/* Empty a table, on which we hold the lock. */
static void
truncate_table(Oid relid)
{
	Relation	rel = relation_open(relid, NoLock);
	bool		triggers = rel->trigdesc != NULL &&
		(rel->trigdesc->trig_truncate_before_statement ||
		 rel->trigdesc->trig_truncate_after_statement);

	relation_close(rel, NoLock);
	if (triggers)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s has a trigger on TRUNCATE, which would run with the owner's rights",
						ddl_name(relid)),
				 errhint("Drop the trigger.")));
	ddl_run(psprintf("TRUNCATE ONLY %s", ddl_name(relid)));
}

/* Drop a table, on which we hold the lock. */
static void
drop_table(Oid relid)
{
	ddl_run(psprintf("DROP TABLE %s", ddl_name(relid)));
}

/*
 * Let a partition go, on which we hold the lock, by dropping or emptying it;
 * false if that did not work.  One that cannot be dropped does not keep the others.
 */
bool
ddl_let_go(Oid relid, bool just_empty, DdlFailures *failures)
{
	char	   *name = ddl_name(relid);
	ErrorData  *error = attempt(just_empty ? truncate_table : drop_table, relid);

	if (error == NULL)
	{
		ereport(DEBUG1, (errmsg_internal("let go of expired partition %s", name)));
		return true;
	}
	failures->n++;
	strlcpy(failures->last, error->message, sizeof(failures->last));
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("could not let go of expired partition %s: %s", name, error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0));
	return false;
}
