/*-------------------------------------------------------------------------
 *
 * partman.c
 *	  Letting pg_partman make the partitions.
 *
 * The tables are registered in pg_partman's part_config, and each partition is
 * made by its create_partition_time(), from a template table,
 * idemq.processed_template or idemq.outbox_template, which carries the indexes.
 * When one is needed, and from when to when, is decided in partition.c as always; there the
 * partition also gets what the template cannot give it.
 *
 * Their rows in part_config are ours: what somebody changes in them is set back,
 * and rows of part_config_sub for our tables are taken away.  They say that
 * pg_partman shall not look after the tables by itself and has no retention:
 * dropping is for expire.c and retention.c, which never drop anything too early.
 *
 * What runs in here runs as the owner of the tables, so pg_partman's
 * code, its tables' triggers, and all that its search_path ("its schema,
 * pg_catalog"; up to 4.x "its schema, pg_temp, ...") can lead to must belong
 * to somebody who has these rights anyway.  check_trust() sees to that.
 *
 * Locking: ROW EXCLUSIVE on part_config, so that no trigger can be added once
 * we have looked, then our row in it; the parent is locked by the caller.
 *
 * Rejected: create_parent(), which takes ACCESS EXCLUSIVE on the parent, makes
 * many partitions in one transaction and up to 4.x a DEFAULT one, and goes by
 * names that a temporary table can stand in for.  run_maintenance(), which
 * believes the wall clock: one that is ten years ahead would have it make ten
 * years of partitions.  Besides, it stumbles over the permanent leaf: 4.x reads
 * the time out of the partitions' names, 5.x out of the text of their bounds,
 * where MINVALUE is none.
 *
 *-------------------------------------------------------------------------
 */
#include "partman.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "guc.h"

#define PARTMAN			"pg_partman"

/* What is installed here. */
typedef struct Partman
{
	int			major;			/* 4: no SET search_path on its functions */
	Oid			schema;
	const char *part_config;	/* quoted */
	const char *part_config_sub;
	const char *create;
} Partman;

/* Run a query with text arguments; answers how many rows it had. */
static uint64
query(const char *sql, int nargs, const char *const *args)
{
	Oid			types[8];
	Datum		values[8];
	int			result;

	Assert(nargs <= lengthof(types));
	for (int i = 0; i < nargs; i++)
	{
		types[i] = TEXTOID;
		values[i] = CStringGetTextDatum(args[i]);
	}
	result = SPI_execute_with_args(sql, nargs, types, values, NULL, false, 0);
	if (result < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(result));
	return SPI_processed;
}

/* What the table is called in part_config. */
static char *
parent_table(const Parent *parent)
{
	return psprintf("%s.%s", IDEMQ_SCHEMA, parent->name);
}

/* A column of the result's first row, as text. */
static char *
first_row(int column)
{
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column);
}

/* Find pg_partman. */
static void
find_partman(Partman *partman)
{
	const char *const args[] = {PARTMAN};
	char	   *schema;
	char	   *version;

	if (query("SELECT n.nspname, e.extversion, n.oid"
			  " FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
			  " WHERE e.extname = $1", 1, args) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" is not installed in this database", PARTMAN),
				 errhint("Run CREATE EXTENSION %s, or set idemq.partition_manager = builtin.", PARTMAN)));
	schema = first_row(1);
	version = first_row(2);
	partman->schema = atooid(first_row(3));
	partman->major = atoi(version);
	if (partman->major < 4)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("version %s of the extension \"%s\" is too old", version, PARTMAN),
				 errhint("Update it to 4.7 or later, or set idemq.partition_manager = builtin.")));
	partman->part_config = quote_qualified_identifier(schema, "part_config");
	partman->part_config_sub = quote_qualified_identifier(schema, "part_config_sub");
	partman->create = quote_qualified_identifier(schema, "create_partition_time");
}

/*
 * See that nobody can have code of theirs run by calling pg_partman as the
 * present user, other than superusers and this user.
 */
static void
check_trust(const Partman *partman)
{
	const char *const args[] = {psprintf("%u", partman->schema)};
	char	   *object;
	char	   *role;

	query(psprintf("LOCK TABLE %s IN ROW EXCLUSIVE MODE", partman->part_config), 0, NULL);
	if (query("WITH suspects (object, role) AS ("
			  " SELECT pg_describe_object('pg_namespace'::regclass, oid, 0), nspowner"
			  "  FROM pg_namespace WHERE oid = $1::oid"
			  " UNION ALL SELECT 'the right to create in ' || pg_describe_object('pg_namespace'::regclass, n.oid, 0), a.grantee"
			  "  FROM pg_namespace n, aclexplode(n.nspacl) a"
			  "  WHERE n.oid = $1::oid AND a.privilege_type = 'CREATE'"
			  " UNION ALL SELECT pg_describe_object('pg_proc'::regclass, oid, 0), proowner"
			  "  FROM pg_proc WHERE pronamespace = $1::oid"
			  " UNION ALL SELECT pg_describe_object('pg_operator'::regclass, oid, 0), oprowner"
			  "  FROM pg_operator WHERE oprnamespace = $1::oid"
			  " UNION ALL SELECT pg_describe_object('pg_type'::regclass, oid, 0), typowner"
			  "  FROM pg_type WHERE typnamespace = $1::oid"
			  " UNION ALL SELECT pg_describe_object('pg_class'::regclass, oid, 0), relowner"
			  "  FROM pg_class WHERE relnamespace = $1::oid"
			  " UNION ALL SELECT 'function of ' || pg_describe_object('pg_trigger'::regclass, t.oid, 0), p.proowner"
			  "  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid"
			  "  WHERE c.relnamespace = $1::oid AND NOT t.tgisinternal)"
			  " SELECT object, coalesce(r.rolname, 'public') FROM suspects s"
			  " LEFT JOIN pg_roles r ON r.oid = s.role"
			  " WHERE NOT coalesce(r.rolsuper, false) AND r.rolname IS DISTINCT FROM current_user"
			  " LIMIT 1", 1, args) > 0)
	{
		object = first_row(1);
		role = first_row(2);
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("extension \"%s\" is not used, because others could have it run their code", PARTMAN),
				 errdetail("%s belongs to \"%s\", who has not the rights of the owner of the schema %s.",
						   object, role, IDEMQ_SCHEMA),
				 errhint("Have pg_partman in a schema of its own that a superuser owns and where nobody else may create, or set idemq.partition_manager = builtin.")));
	}
	if (partman->major < 5 &&
		query("SELECT FROM pg_type WHERE typnamespace = pg_my_temp_schema() LIMIT 1", 0, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_partman before 5.0 is not called from a session with temporary objects, because they can stand in for others"),
				 errhint("Call idem_maintain() in a new session.")));
}

/* A time as interval text: in days where it is days. */
static char *
interval_text(int seconds)
{
	if (seconds % SECS_PER_DAY == 0)
		return psprintf("%d days", seconds / SECS_PER_DAY);
	return psprintf("%d seconds", seconds);
}

/* Make part_config say what it should.  With lock, it stays so. */
static void
write_config(const Partman *partman, const Parent *parent, bool lock)
{
	const char *const args[] = {
		parent_table(parent),
		partman->major < 5 ? "native" : "range",
		interval_text(idemq_partition_interval),
		psprintf("%d", idemq_premake),
		idemq_partition_interval % SECS_PER_DAY == 0 ? "YYYYMMDD" : "YYYYMMDD_HH24MISS",
		psprintf("%s_template", parent_table(parent)),
	};
	uint64		found;

	/* a column that not every version has is asked for by way of jsonb */
	found = query(psprintf("SELECT FROM %s c WHERE parent_table = $1 AND control = 'leaf'"
						   " AND partition_type = $2 AND partition_interval = $3"
						   " AND premake = $4::integer AND datetime_string = $5"
						   " AND template_table = $6 AND epoch = 'none'"
						   " AND automatic_maintenance = 'off' AND infinite_time_partitions"
						   " AND retention IS NULL AND constraint_cols IS NULL"
						   " AND NOT jobmon AND NOT inherit_privileges AND NOT undo_in_progress"
						   " AND to_jsonb(c) ->> 'time_encoder' IS NULL"
						   "%s", partman->part_config, lock ? " FOR UPDATE" : ""),
				  lengthof(args), args);
	if (found > 0 &&
		query(psprintf("SELECT FROM %s WHERE sub_parent = $1", partman->part_config_sub),
			  1, args) == 0)
		return;

	query(psprintf("DELETE FROM %s WHERE sub_parent = $1", partman->part_config_sub), 1, args);
	query(psprintf("DELETE FROM %s WHERE parent_table = $1", partman->part_config), 1, args);
	query(psprintf("INSERT INTO %s (parent_table, control, partition_type, partition_interval,"
				   " premake, datetime_string, template_table, epoch,"
				   " automatic_maintenance, infinite_time_partitions, jobmon, inherit_privileges)"
				   " VALUES ($1, 'leaf', $2, $3, $4::integer, $5, $6, 'none', 'off', true, false, false)",
				   partman->part_config), lengthof(args), args);
}

/* Register a table with pg_partman, if it is not. */
void
partman_register(const Parent *parent)
{
	Partman		partman;

	find_partman(&partman);
	check_trust(&partman);
	write_config(&partman, parent, false);
}

/* See that a partition got the indexes that its readers need. */
static void
check_indexes(const Parent *parent, Oid relid)
{
	for (int i = 0; i < PARENT_INDEXES && parent->indexes[i].suffix; i++)
	{
		const char *const args[] = {
			psprintf("%u", relid),
			psprintf("CREATE %sINDEX ", parent->indexes[i].unique),
			psprintf(" USING btree (%s)", parent->indexes[i].keys),
		};

		if (query("SELECT FROM pg_index AS i, pg_get_indexdef(i.indexrelid) AS def"
				  " WHERE i.indrelid = $1::oid AND i.indisvalid"
				  " AND starts_with(def, $2) AND right(def, length($3)) = $3",
				  lengthof(args), args) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("pg_partman made a partition of \"%s\" without the index on (%s)",
							parent_table(parent), parent->indexes[i].keys),
					 errhint("Give %s_template back the indexes that CREATE EXTENSION made.",
							 parent_table(parent))));
	}
}

/*
 * Have pg_partman make the partition from lower to upper, which is as long as
 * idemq.partition_interval says.
 */
Oid
partman_make(const Parent *parent, TimestampTz lower, TimestampTz upper)
{
	Partman		partman;
	const char *const args[] = {parent_table(parent), pstrdup(timestamptz_to_str(lower))};
	Spans		spans;

	find_partman(&partman);
	check_trust(&partman);
	write_config(&partman, parent, true);
	query(psprintf("SELECT %s(p_parent_table := $1, p_partition_times := ARRAY[$2::timestamptz]%s)",
				   partman.create, partman.major < 5 ? ", p_analyze := false" : ""),
		  lengthof(args), args);
	CommandCounterIncrement();

	(void) parent_spans(parent, true, &spans);
	for (int i = 0; i < spans.n; i++)
	{
		const Span *span = &spans.span[i];

		if (span->lower == lower && span->upper == upper)
		{
			check_indexes(parent, span->oid);
			return span->oid;
		}
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pg_partman did not make the partition of \"%s\" from %s",
					args[0], args[1]),
			 errhint("Is there another table of its name? Then rename that.")));
	return InvalidOid;
}
