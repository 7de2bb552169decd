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

#include "access/xact.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
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
ErrorData *
ddl_attempt(void (*action) (Oid relid), Oid relid)
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
	ErrorData  *error = ddl_attempt(lock, parent);

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
