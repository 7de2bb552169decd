/*-------------------------------------------------------------------------
 *
 * grants.c
 *	  Who may claim in which scope, and consume for which consumer.
 *
 * EXECUTE on the functions is granted by idem_grant, and PostgreSQL enforces
 * it.  What EXECUTE cannot express is a grant for one scope or consumer
 * alone; that is kept in idemq.grants, which only idem_grant and idem_revoke write.
 *
 * A row counts only if its role may execute the function that is being called:
 * it outlives a role that is dropped, and a new role of that name has not got
 * what idem_grant gave.
 *
 * The rows that apply to the current user are cached, and dropped when the
 * table changes (a trigger on it sends a relcache invalidation), when a role
 * or a membership changes, and when somebody becomes another user.
 *
 *-------------------------------------------------------------------------
 */
#include "grants.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog.h"
#include "compat.h"

PG_FUNCTION_INFO_V1(idemq_grants_changed);

#define GRANTS_COLUMNS	3

/* What a user may do. */
typedef struct Rights
{
	bool		valid;
	bool		stale;			/* changed while being read */
	Oid			user;
	Oid			function;		/* which is being called */
	Oid			table;			/* idemq.grants */
	bool		admin;
	bool		claim_all;
	List	   *scopes;			/* text, claim in these */
	bool		consume_all;
	List	   *consumers;		/* text, consume for these */
} Rights;

static Rights rights;
static MemoryContext rights_context = NULL;

/* Drop the cache if idemq.grants changed. */
static void
forget_rights_of_table(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == rights.table)
	{
		rights.valid = false;
		rights.stale = true;
	}
}

/* Drop the cache if roles changed. */
static void
forget_rights_of_roles(Datum arg, int cacheid, uint32 hashvalue)
{
	rights.valid = false;
	rights.stale = true;
}

/* Note a right to one object, or to all of them. */
static void
add_right(bool *all, List **objects, Datum object, bool isnull)
{
	MemoryContext old = MemoryContextSwitchTo(rights_context);

	if (isnull)
		*all = true;
	else
		*objects = lappend(*objects, DatumGetTextPCopy(object));
	MemoryContextSwitchTo(old);
}

/* Is a name among the objects? */
static bool
has_object(const List *objects, const char *name, int len)
{
	ListCell   *cell;

	foreach(cell, objects)
	{
		text	   *object = lfirst(cell);

		if (VARSIZE_ANY_EXHDR(object) == len && memcmp(VARDATA_ANY(object), name, len) == 0)
			return true;
	}
	return false;
}

/* Read the rows that apply to a user who calls a function. */
static void
read_rights(Oid user, Oid function)
{
	Relation	rel;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;

	rights.valid = false;
	rights.admin = false;
	rights.claim_all = false;
	rights.scopes = NIL;
	rights.consume_all = false;
	rights.consumers = NIL;
	MemoryContextReset(rights_context);
	rights.user = user;
	rights.function = function;
	rights.table = catalog_relation(IDEMQ_GRANTS);

	rel = table_open(rights.table, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[GRANTS_COLUMNS];
		bool		isnull[GRANTS_COLUMNS];
		char	   *capability;
		Oid			role;

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, isnull);
		role = get_role_oid(TextDatumGetCString(values[0]), true);
		if (!OidIsValid(role) || !has_privs_of_role(user, role))
			continue;

		/*
		 * A row outlives its role.  A new role of the same name lacks the
		 * EXECUTE that idem_grant gave together with the row.
		 */
		if (!compat_may_execute(function, role))
			continue;
		capability = TextDatumGetCString(values[1]);
		if (strcmp(capability, "admin") == 0)
			rights.admin = true;
		else if (strcmp(capability, "claim") == 0)
			add_right(&rights.claim_all, &rights.scopes, values[2], isnull[2]);
		else if (strcmp(capability, "consume") == 0)
			add_right(&rights.consume_all, &rights.consumers, values[2], isnull[2]);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/* A user's rights, for the function that is being called. */
static const Rights *
rights_of(Oid user, Oid function)
{
	if (rights.valid && rights.user == user && rights.function == function)
		return &rights;
	if (rights_context == NULL)
		rights_context = AllocSetContextCreate(CacheMemoryContext, "idemq rights",
											   ALLOCSET_SMALL_SIZES);
	do
	{
		CHECK_FOR_INTERRUPTS();
		rights.stale = false;
		read_rights(user, function);
	} while (rights.stale);
	rights.valid = true;
	return &rights;
}

/* See that the current user may claim in a scope. */
void
grants_require_scope(const char *scope, int len, Oid function)
{
	const Rights *mine;

	if (superuser())
		return;
	mine = rights_of(GetUserId(), function);
	if (mine->claim_all || mine->admin || has_object(mine->scopes, scope, len))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for scope \"%.*s\"", len, scope),
			 errhint("An administrator can run SELECT idem_grant(%s, 'claim', %s).",
					 quote_literal_cstr(GetUserNameFromId(GetUserId(), false)),
					 quote_literal_cstr(pnstrdup(scope, len)))));
}

/* See that a user may consume for a consumer. */
void
grants_require_consumer(Oid user, const char *consumer, Oid function)
{
	const Rights *theirs;

	if (superuser_arg(user))
		return;
	theirs = rights_of(user, function);
	if (theirs->consume_all || theirs->admin ||
		has_object(theirs->consumers, consumer, strlen(consumer)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for consumer \"%s\"", consumer),
			 errhint("An administrator can run SELECT idem_grant(%s, 'consume', %s).",
					 quote_literal_cstr(GetUserNameFromId(user, false)),
					 quote_literal_cstr(consumer))));
}

/* See that the current user administers idemq. */
void
grants_require_admin(const char *what, Oid function)
{
	if (superuser() || rights_of(GetUserId(), function)->admin)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for %s", what),
			 errhint("An administrator can run SELECT idem_grant(%s, 'admin').",
					 quote_literal_cstr(GetUserNameFromId(GetUserId(), false)))));
}

/* idemq._grants_changed(): trigger on idemq.grants. */
Datum
idemq_grants_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function is only for triggers")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	return PointerGetDatum(NULL);
}

/* Hear of changes. */
void
grants_init(void)
{
	CacheRegisterRelcacheCallback(forget_rights_of_table, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, forget_rights_of_roles, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, forget_rights_of_roles, (Datum) 0);
}
