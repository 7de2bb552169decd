/*-------------------------------------------------------------------------
 *
 * partition.c
 *	  Making partitions ahead of time, of both tables.
 *
 * Locking: CREATE TABLE and its index are nobody's business until
 * ATTACH, which takes SHARE UPDATE EXCLUSIVE on the parent.  PARTITION OF would
 * take ACCESS EXCLUSIVE there.
 *
 * Rejected: a DEFAULT partition, which cannot be left behind once it has rows:
 * nothing can be attached beside them.
 *
 *-------------------------------------------------------------------------
 */
#include "partition.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "pgtime.h"
#include "utils/array.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "ddl.h"
#include "guc.h"
#include "partman.h"

/* A timestamp as a literal, under the pinned settings. */
static char *
timestamp_literal(TimestampTz value)
{
	return quote_literal_cstr(timestamptz_to_str(value));
}

/* The multiple of interval at or before a time. */
static TimestampTz
floor_time(TimestampTz time, int64 interval)
{
	int64		rest = time % interval;

	return time - (rest < 0 ? rest + interval : rest);
}

/*
 * The bounds of the partition that is to be made next; false if there are
 * enough of them.
 */
static bool
next_bounds(const Spans *spans, TimestampTz trusted, TimestampTz *lower,
			TimestampTz *upper)
{
	int64		interval = idemq_partition_interval * USECS_PER_SEC;
	int64		runway = Max(idemq_premake * interval,
							 3 * idemq_naptime * USECS_PER_SEC);
	TimestampTz at = trusted;
	bool		moved;

	/* where does what there is end? */
	do
	{
		moved = false;
		for (int i = 0; i < spans->n; i++)
		{
			const Span *span = &spans->span[i];

			if (span->upper > at && span->lower <= at && !span->takes_all)
			{
				at = span->upper;
				moved = true;
			}
		}
	} while (moved && !TIMESTAMP_IS_NOEND(at));
	if (TIMESTAMP_IS_NOEND(at) || at >= trusted + runway)
		return false;

	*lower = floor_time(at, interval);
	*upper = *lower + interval;
	for (int i = 0; i < spans->n; i++)
	{
		const Span *span = &spans->span[i];

		if (span->takes_all)
			continue;
		if (span->upper <= at && span->upper > *lower)
			*lower = span->upper;
		if (span->lower > at && span->lower < *upper)
			*upper = span->lower;
	}
	return true;
}

/* Is a name free, and those of the indexes that go with it? */
static bool
name_is_free(const Parent *parent, const char *name, Oid schema)
{
	if (OidIsValid(get_relname_relid(name, schema)))
		return false;
	for (int i = 0; i < PARENT_INDEXES && parent->indexes[i].suffix; i++)
	{
		if (OidIsValid(get_relname_relid(psprintf("%s_%s", name, parent->indexes[i].suffix), schema)))
			return false;
	}
	return true;
}

/* A name for a partition, like pg_partman's, that is still free. */
static char *
leaf_name(const Parent *parent, TimestampTz lower, TimestampTz upper, Oid schema)
{
	struct pg_tm tm;
	fsec_t		fsec;
	char	   *stem;
	char	   *name;

	if (timestamp2tm(lower, NULL, &tm, &fsec, NULL, NULL) != 0)
		elog(ERROR, "timestamp out of range");
	stem = psprintf("%s_p%04d%02d%02d", parent->name,
					tm.tm_year, tm.tm_mon, tm.tm_mday);
	if (lower % USECS_PER_DAY != 0 || upper % USECS_PER_DAY != 0)
		stem = psprintf("%s_%02d%02d%02d", stem, tm.tm_hour, tm.tm_min, tm.tm_sec);
	name = stem;
	for (int i = 1; !name_is_free(parent, name, schema); i++)
		name = psprintf("%s_%d", stem, i);
	return name;
}

/* Take back what default privileges granted on a new table. */
static void
revoke_default_privileges(const char *table, Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Datum		datum;
	bool		isnull;
	Acl		   *acl;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	datum = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relacl, &isnull);
	acl = isnull ? NULL : DatumGetAclPCopy(datum);
	ReleaseSysCache(tuple);
	if (acl == NULL)
		return;

	for (int i = 0; i < ACL_NUM(acl); i++)
	{
		Oid			grantee = ACL_DAT(acl)[i].ai_grantee;

		if (grantee == ACL_ID_PUBLIC)
			ddl_run(psprintf("REVOKE ALL ON %s FROM PUBLIC CASCADE", table));
		else if (grantee != GetUserId())
			ddl_run(psprintf("REVOKE ALL ON %s FROM %s CASCADE", table,
							 quote_identifier(GetUserNameFromId(grantee, false))));
	}
}

/* Give a new partition what partitions have in common, whoever made it. */
static void
finish_leaf(const Parent *parent, Oid relid)
{
	char	   *table = ddl_name(relid);

	if (parent->replica_identity)
		ddl_run(psprintf("ALTER TABLE %s REPLICA IDENTITY FULL", table));
	CommandCounterIncrement();
	revoke_default_privileges(table, relid);
	ereport(DEBUG1, (errmsg_internal("made partition %s", table)));
}

/* Make and attach one partition. */
static void
make_leaf(const Parent *parent, Oid relid, TimestampTz lower, TimestampTz upper)
{
	const char *parent_table = quote_qualified_identifier(IDEMQ_SCHEMA, parent->name);
	Oid			schema = get_rel_namespace(relid);
	char	   *name = leaf_name(parent, lower, upper, schema);
	const char *table = quote_qualified_identifier(IDEMQ_SCHEMA, name);
	Oid			tablespace = get_rel_tablespace(relid);
	char	   *where = "";

	if (OidIsValid(tablespace))
		where = psprintf(" TABLESPACE %s", quote_identifier(get_tablespace_name(tablespace)));
	ddl_run(psprintf("CREATE TABLE %s (LIKE %s INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING STORAGE)"
					 " USING heap WITH (vacuum_truncate = off)%s", table, parent_table, where));
	for (int i = 0; i < PARENT_INDEXES && parent->indexes[i].suffix; i++)
		ddl_run(psprintf("CREATE %sINDEX %s ON %s (%s)%s%s", parent->indexes[i].unique,
						 quote_identifier(psprintf("%s_%s", name, parent->indexes[i].suffix)),
						 table, parent->indexes[i].keys, parent->indexes[i].with, where));
	CommandCounterIncrement();
	finish_leaf(parent, get_relname_relid(name, schema));
	ddl_run(psprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)",
					 parent_table, table, timestamp_literal(lower), timestamp_literal(upper)));
}

/* Say that a table is busy; there is nothing more to do in this round. */
static bool
leave_for_later(const Parent *parent)
{
	ereport(DEBUG1,
			(errmsg_internal("%s.%s is busy, partitions are made in the next round",
							 IDEMQ_SCHEMA, parent->name)));
	return false;
}

/* Make one partition, if one is missing.  True if there may be more to make. */
bool
partition_make(const Parent *parent)
{
	bool		may_expire;
	TimestampTz trusted = parent_trusted_time(&may_expire);
	Spans		spans;
	TimestampTz lower;
	TimestampTz upper;

	if (idemq_partition_manager == MANAGER_PG_PARTMAN)
		partman_register(parent);
	if (!parent_spans(parent, false, &spans))
		return leave_for_later(parent);
	if (!next_bounds(&spans, trusted, &lower, &upper))
		return false;
	if (!ddl_lock_to_attach(spans.parent))
		return leave_for_later(parent);
	/* somebody else may have made one while we waited */
	(void) parent_spans(parent, true, &spans);
	if (!next_bounds(&spans, trusted, &lower, &upper))
		return false;

	/* what fills a gap that is shorter than the interval is always ours */
	if (idemq_partition_manager == MANAGER_PG_PARTMAN &&
		upper - lower == idemq_partition_interval * USECS_PER_SEC)
		finish_leaf(parent, partman_make(parent, lower, upper));
	else
		make_leaf(parent, spans.parent, lower, upper);
	return true;
}
