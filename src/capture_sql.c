/*-------------------------------------------------------------------------
 *
 * capture_sql.c
 *	  outbox_capture() and outbox_uncapture(): making the triggers.
 *
 * With the rights of whoever calls, and by statements, so that the server
 * checks, logs and announces what it would for a CREATE TRIGGER typed by hand.
 * The condition is bound under the caller's search_path; everything else is
 * qualified.
 *
 *-------------------------------------------------------------------------
 */
#include "capture.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "parser/parser.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "grants.h"

PG_FUNCTION_INFO_V1(outbox_capture);
PG_FUNCTION_INFO_V1(outbox_uncapture);

typedef enum Verb
{
	VERB_INSERT,
	VERB_UPDATE,
	VERB_DELETE,
	VERB_TRUNCATE,
} Verb;

#define VERBS (VERB_TRUNCATE + 1)

static const char *const verb_names[VERBS] = {"insert", "update", "delete", "truncate"};

/* What outbox_capture() was told. */
typedef struct CaptureRequest
{
	Relation	rel;
	char	   *aggregatetype;
	List	   *key;			/* names of columns */
	List	   *columns;		/* names of columns; NIL: all */
	bool		verbs[VERBS];
	char	   *condition;		/* or NULL */
	bool		mentions_new;
	bool		mentions_old;
	bool		with_old;
} CaptureRequest;

/* An argument that must be there. */
static void
refuse_null(const char *argument)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", argument)));
}

/* The texts of an array, which must have some; NIL if it is null. */
static List *
get_list(FunctionCallInfo fcinfo, int argno, const char *argument)
{
	ArrayType  *array;
	Datum	   *elements;
	bool	   *nulls;
	int			count;
	List	   *list = NIL;

	if (PG_ARGISNULL(argno))
		return NIL;
	array = PG_GETARG_ARRAYTYPE_P(argno);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%s must have one dimension", argument)));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &count);
	if (count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", argument)));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not hold nulls", argument)));
		list = lappend(list, TextDatumGetCString(elements[i]));
	}
	return list;
}

/* The trigger function. */
static Oid
trigger_function(void)
{
	oidvector  *none = buildoidvector(NULL, 0);

	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
						   CStringGetDatum(CAPTURE_FUNCTION), PointerGetDatum(none),
						   ObjectIdGetDatum(get_namespace_oid(IDEMQ_SCHEMA, false)));
}

/* See that a relation is one that can be captured, by this user. */
static void
check_relation(Form_pg_class form, Oid relid)
{
	const char *name = NameStr(form->relname);

	if (!has_privs_of_role(GetUserId(), form->relowner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", name),
				 errhint("Whoever captures a table needs the capability \"admin\" and owns the table.")));
	if (form->relkind != RELKIND_RELATION && form->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", name),
				 errhint("Only tables and partitioned tables can be captured.")));
	if (form->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is a temporary table", name),
				 errhint("Use outbox_emit().")));
	if (IsSystemClass(relid, form))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is a system catalog", name)));
	if (form->relnamespace == get_namespace_oid(IDEMQ_SCHEMA, false))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" belongs to idemq itself", name)));
}

/* Lock and open the table of a call. */
static Relation
open_target(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Relation	rel = NULL;

	if (HeapTupleIsValid(tuple))
	{
		/* no lock for those who have no business here */
		check_relation((Form_pg_class) GETSTRUCT(tuple), relid);
		ReleaseSysCache(tuple);
		rel = try_relation_open(relid, ShareRowExclusiveLock);
	}
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table with OID %u does not exist", relid)));
	check_relation(rel->rd_rel, relid);
	return rel;
}

/* The name of one of the capture triggers of a table, or NULL. */
static const char *
find_trigger(Relation rel, Oid function, bool clone)
{
	TriggerDesc *triggers = rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (triggers->triggers[i].tgfoid == function && triggers->triggers[i].tgisclone == clone)
			return triggers->triggers[i].tgname;
	}
	return NULL;
}

/* See that no table above or below is captured: each change would be told twice. */
static void
check_family(Relation rel, Oid function)
{
	if (find_trigger(rel, function, true) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is a partition of a captured table", RelationGetRelationName(rel)),
				 errhint("Call the function for the captured table: it covers all partitions.")));
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		ListCell   *cell;

		foreach(cell, find_all_inheritors(RelationGetRelid(rel), ShareRowExclusiveLock, NULL))
		{
			Relation	child;

			if (lfirst_oid(cell) == RelationGetRelid(rel))
				continue;
			child = relation_open(lfirst_oid(cell), NoLock);
			if (find_trigger(child, function, false) != NULL)
				ereport(ERROR,
						(errcode(ERRCODE_WRONG_OBJECT_TYPE),
						 errmsg("partition \"%s\" is captured by itself", RelationGetRelationName(child)),
						 errhint("Call outbox_uncapture() for it first.")));
			relation_close(child, NoLock);
		}
	}
}

/* See that names are columns of the table, each once. */
static void
check_columns(Relation rel, List *names)
{
	ListCell   *cell;
	List	   *seen = NIL;

	foreach(cell, names)
	{
		char	   *name = lfirst(cell);
		AttrNumber	attno = strlen(name) < NAMEDATALEN
			? get_attnum(RelationGetRelid(rel), name) : InvalidAttrNumber;

		if (attno <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of table \"%s\" does not exist",
							name, RelationGetRelationName(rel)),
					 errhint("Names are taken as they are, without quotes and in their case.")));
		if (list_member_int(seen, attno))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_COLUMN),
					 errmsg("column \"%s\" is named twice", name)));
		seen = lappend_int(seen, attno);
	}
}

/* The columns of the primary key. */
static List *
primary_key(Relation rel)
{
	List	   *names = NIL;
	ListCell   *cell;

	foreach(cell, RelationGetIndexList(rel))
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(cell)));
		Form_pg_index index;

		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "could not find index %u", lfirst_oid(cell));
		index = (Form_pg_index) GETSTRUCT(tuple);
		for (int i = 0; index->indisprimary && i < index->indnkeyatts; i++)
			names = lappend(names, get_attname(RelationGetRelid(rel), index->indkey.values[i], false));
		ReleaseSysCache(tuple);
	}
	if (names == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("table \"%s\" has no primary key", RelationGetRelationName(rel)),
				 errhint("Name the columns that tell its rows apart in key_columns.")));
	return names;
}

/* Read the operations. */
static void
get_operations(CaptureRequest *request, List *names)
{
	ListCell   *cell;

	foreach(cell, names)
	{
		int			verb = 0;

		while (verb < VERBS && strcmp(verb_names[verb], lfirst(cell)) != 0)
			verb++;
		if (verb == VERBS)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unknown operation \"%s\"", (char *) lfirst(cell)),
					 errhint("Operations are insert, update, delete and truncate.")));
		request->verbs[verb] = true;
	}
}

/* Show where the condition is wrong, not where the statement would be. */
static void
point_into_condition(void *condition)
{
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery(condition);
	}
	errcontext("condition of outbox_capture()");
}

/* Look for NEW and OLD. */
static bool
find_rows(Node *node, void *arg)
{
	CaptureRequest *request = arg;

	if (node == NULL)
		return false;
	if (IsA(node, ColumnRef))
	{
		Node	   *first = linitial(((ColumnRef *) node)->fields);

		if (IsA(first, String))
		{
			request->mentions_new |= strcmp(strVal(first), "new") == 0;
			request->mentions_old |= strcmp(strVal(first), "old") == 0;
		}
	}
	return raw_expression_tree_walker(node, find_rows, arg);
}

/* See that the condition is one expression, and nothing but that. */
static void
check_condition(CaptureRequest *request)
{
	ErrorContextCallback callback = {
		.previous = error_context_stack,
		.callback = point_into_condition,
		.arg = request->condition,
	};
	SelectStmt *select;
	ResTarget  *target = NULL;

	error_context_stack = &callback;
	select = (SelectStmt *) linitial_node(RawStmt, raw_parser(request->condition,
															  RAW_PARSE_PLPGSQL_EXPR))->stmt;
	error_context_stack = callback.previous;

	if (IsA(select, SelectStmt) && list_length(select->targetList) == 1 &&
		select->distinctClause == NIL && select->fromClause == NIL &&
		select->whereClause == NULL && select->groupClause == NIL &&
		select->havingClause == NULL && select->windowClause == NIL &&
		select->sortClause == NIL && select->limitOffset == NULL &&
		select->limitCount == NULL && select->lockingClause == NIL &&
		select->op == SETOP_NONE)
		target = linitial(select->targetList);
	if (target == NULL || target->name != NULL || target->indirection != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("condition is not exactly one expression"),
				 errhint("An example: NEW.state = 'paid'")));
	find_rows(target->val, request);
}

/* See that the condition makes sense for each of the operations. */
static void
check_rows(const CaptureRequest *request)
{
	static const char *const lacking[VERBS][2] = {
		[VERB_INSERT] = {NULL, "OLD"},
		[VERB_DELETE] = {"NEW", NULL},
		[VERB_TRUNCATE] = {"NEW", "OLD"},
	};

	for (int verb = 0; verb < VERBS; verb++)
	{
		const char *row = request->mentions_new ? lacking[verb][0] : NULL;

		if (row == NULL && request->mentions_old)
			row = lacking[verb][1];
		if (request->verbs[verb] && row != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("condition refers to %s, which does not exist for operation \"%s\"",
							row, verb_names[verb]),
					 errhint("Leave \"%s\" out of operations.", verb_names[verb])));
	}
}

/* Run a statement with the rights of the caller. */
static void
run(const char *sql)
{
	int			result = SPI_execute(sql, false, 0);

	if (result < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(result));
}

/* The name of a table, as one would type it. */
static const char *
qualified_name(Relation rel)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
									  RelationGetRelationName(rel));
}

/* Drop the triggers that there are; false if there are none. */
static bool
drop_triggers(Relation rel, Oid function)
{
	const char *name;
	bool		any = false;

	while ((name = find_trigger(rel, function, false)) != NULL)
	{
		run(psprintf("DROP TRIGGER %s ON %s", quote_identifier(name), qualified_name(rel)));
		any = true;
	}
	return any;
}

/* Add ROW(NEW.a, NEW.b) IS NULL. */
static void
append_columns(StringInfo sql, const char *row, List *columns)
{
	const char *separator = "ROW(";
	ListCell   *cell;

	foreach(cell, columns)
	{
		appendStringInfo(sql, "%s%s.%s", separator, row, quote_identifier(lfirst(cell)));
		separator = ", ";
	}
	appendStringInfoString(sql, ") IS NULL");
}

/* Add the WHEN clause of a row trigger, by which it knows its columns. */
static void
append_clause(StringInfo sql, const CaptureRequest *request, Verb verb, bool only_moves)
{
	const char *row = verb == VERB_DELETE ? "OLD" : "NEW";

	appendStringInfoString(sql, " WHEN ((true OR ");
	append_columns(sql, row, request->key);
	if (request->columns != NIL)
	{
		appendStringInfoString(sql, " OR ");
		append_columns(sql, row, request->columns);
	}
	appendStringInfoChar(sql, ')');

	/* what may end in a comment ends with its line */
	if (request->condition != NULL && !only_moves)
		appendStringInfo(sql, " AND (%s\n)", request->condition);
	appendStringInfoChar(sql, ')');
}

/* Make the trigger for an operation. */
static void
make_trigger(const CaptureRequest *request, Verb verb, bool only_moves)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfo(&sql, "CREATE TRIGGER idemq_capture_%s AFTER %s ON %s FOR EACH %s",
					 verb_names[verb], verb_names[verb], qualified_name(request->rel),
					 verb == VERB_TRUNCATE ? "STATEMENT" : "ROW");
	if (verb != VERB_TRUNCATE)
		append_clause(&sql, request, verb, only_moves);
	else if (request->condition != NULL)
		appendStringInfo(&sql, " WHEN (%s\n)", request->condition);
	appendStringInfo(&sql, " EXECUTE FUNCTION %s.%s(%s", IDEMQ_SCHEMA, CAPTURE_FUNCTION,
					 quote_literal_cstr(request->aggregatetype));
	if (request->with_old && !only_moves)
		appendStringInfo(&sql, ", '%s'", CAPTURE_WITH_OLD);
	if (only_moves)
		appendStringInfo(&sql, ", '%s'", CAPTURE_MOVES);
	appendStringInfoChar(&sql, ')');
	run(sql.data);
}

/* Make all triggers. */
static void
make_triggers(const CaptureRequest *request)
{
	const bool *verbs = request->verbs;

	/* what an update moves to another partition is deleted and inserted */
	bool		moves = request->rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE &&
		(verbs[VERB_INSERT] || verbs[VERB_UPDATE] || verbs[VERB_DELETE]);

	for (int verb = 0; verb < VERBS; verb++)
	{
		if (verbs[verb])
			make_trigger(request, verb, false);
		else if (moves && (verb == VERB_INSERT || verb == VERB_DELETE))
			make_trigger(request, verb, true);
	}
}

/*
 * The owner of a captured table adds partitions to it, which get triggers, for
 * which the server asks whether the owner may execute their function.
 */
static void
settle_owner(Oid owner, bool begins)
{
	run(psprintf("SELECT %s._capture_owner(%u, %s)", IDEMQ_SCHEMA, owner, begins ? "true" : "false"));
}

/* Read and check all arguments but the table. */
static void
read_arguments(FunctionCallInfo fcinfo, CaptureRequest *request)
{
	static const struct
	{
		int			argno;
		const char *name;
	}			needed[] = {{0, "target"}, {4, "operations"}, {6, "with_old"}};

	for (int i = 0; i < lengthof(needed); i++)
	{
		if (PG_ARGISNULL(needed[i].argno))
			refuse_null(needed[i].name);
	}
	if (!PG_ARGISNULL(1))
	{
		request->aggregatetype = text_to_cstring(PG_GETARG_TEXT_PP(1));
		if (request->aggregatetype[0] == '\0')
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("aggregatetype must not be empty")));
	}
	request->key = get_list(fcinfo, 2, "key_columns");
	request->columns = get_list(fcinfo, 3, "columns");
	get_operations(request, get_list(fcinfo, 4, "operations"));
	request->with_old = PG_GETARG_BOOL(6);
	if (!PG_ARGISNULL(5))
	{
		request->condition = text_to_cstring(PG_GETARG_TEXT_PP(5));
		check_condition(request);
		check_rows(request);
	}
}

/*
 * outbox_capture(target regclass, aggregatetype text, key_columns text[],
 * columns text[], operations text[], condition text, with_old boolean)
 * returns void
 */
Datum
outbox_capture(PG_FUNCTION_ARGS)
{
	CaptureRequest request = {0};
	Oid			function = trigger_function();
	Relation	rel;

	read_arguments(fcinfo, &request);
	grants_require_admin("outbox_capture()", fcinfo->flinfo->fn_oid);
	rel = open_target(PG_GETARG_OID(0));
	check_family(rel, function);
	request.rel = rel;
	if (request.aggregatetype == NULL)
		request.aggregatetype = pstrdup(RelationGetRelationName(rel));
	if (request.key == NIL)
		request.key = primary_key(rel);
	else
		check_columns(rel, request.key);
	check_columns(rel, request.columns);

	SPI_connect();
	settle_owner(rel->rd_rel->relowner, true);
	drop_triggers(rel, function);
	make_triggers(&request);
	SPI_finish();
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

/* outbox_uncapture(target regclass) returns void */
Datum
outbox_uncapture(PG_FUNCTION_ARGS)
{
	Oid			function = trigger_function();
	Relation	rel;

	if (PG_ARGISNULL(0))
		refuse_null("target");
	grants_require_admin("outbox_uncapture()", fcinfo->flinfo->fn_oid);
	rel = open_target(PG_GETARG_OID(0));
	if (find_trigger(rel, function, true) != NULL)
		check_family(rel, function);

	SPI_connect();
	if (!drop_triggers(rel, function))
		ereport(NOTICE,
				(errmsg("table \"%s\" is not captured", RelationGetRelationName(rel))));
	settle_owner(rel->rd_rel->relowner, false);
	SPI_finish();
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}
