/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Changes of a table as events: the trigger function.
 *
 * What outbox_capture() was told is in the triggers themselves.  Their WHEN
 * clause names the columns, in a form that is always true and that the server
 * folds to nothing when a statement begins:
 *
 *		true OR ROW(NEW.id) IS NULL OR ROW(NEW.a, NEW.b) IS NULL
 *
 * first those of the key, then those that were chosen, if any were; a condition
 * follows with AND.  So the server renames columns with the table, dumps them
 * by name, numbers them anew for each partition, and refuses to drop one that
 * is in use.  Here they are read from the parsed clause, once per trigger
 * until its table changes.
 *
 * Nothing is gathered: the event of a row is written when its trigger fires,
 * which is in the order of the row changes, and under the row's lock.  The
 * queue of rows is the server's; what is needed for one row is in a memory
 * context that the server empties before the next.
 *
 * The exception are rows that an UPDATE moves to another partition; see
 * capture_move.c.
 *
 *-------------------------------------------------------------------------
 */
#include "capture.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "nodes/primnodes.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "capture_plan.h"
#include "compat.h"
#include "outbox.h"

PG_FUNCTION_INFO_V1(idemq_capture);

/* key.c: of several columns it makes the key */
extern Datum idem_key(PG_FUNCTION_ARGS);

/* What is remembered of a trigger. */
typedef struct PlanEntry
{
	Oid			trigger;		/* hash key */
	CapturePlan *plan;
} PlanEntry;

static HTAB *plans = NULL;

/* A table has changed: what is known of its triggers is to be read again. */
static void
forget_plans(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	PlanEntry  *entry;

	hash_seq_init(&status, plans);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (relid == InvalidOid || relid == entry->plan->table)
			entry->plan->valid = false;
	}
}

/* Begin to remember plans. */
static void
make_plans(void)
{
	HASHCTL		control = {.keysize = sizeof(Oid),.entrysize = sizeof(PlanEntry)};

	plans = hash_create("idemq captured tables", 32, &control, HASH_ELEM | HASH_BLOBS);
	CacheRegisterRelcacheCallback(forget_plans, (Datum) 0);
}

/*
 * Let go of plans that no longer hold.  They may be in use further out, by a
 * trigger whose conversion of a value led to here: they go with the transaction.
 */
static void
drop_stale_plans(void)
{
	HASH_SEQ_STATUS status;
	PlanEntry  *entry;

	hash_seq_init(&status, plans);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->plan->valid)
			continue;
		MemoryContextSetParent(entry->plan->context, TopTransactionContext);
		hash_search(plans, &entry->trigger, HASH_REMOVE, NULL);
	}
}

/* Not one of outbox_capture()'s. */
static void
refuse_trigger(const Trigger *trigger)
{
	ereport(ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg("trigger \"%s\" was not made by outbox_capture()", trigger->tgname),
			 errhint("Drop it, and call outbox_capture().")));
}

/* The columns in a test ROW(...) IS NULL. */
static AttrNumber *
read_columns(const Trigger *trigger, Node *node, int *count)
{
	RowExpr    *row;
	AttrNumber *columns;
	ListCell   *cell;
	int			n = 0;

	if (!IsA(node, NullTest) || !IsA(((NullTest *) node)->arg, RowExpr))
		refuse_trigger(trigger);
	row = (RowExpr *) ((NullTest *) node)->arg;
	columns = palloc(sizeof(AttrNumber) * list_length(row->args));
	foreach(cell, row->args)
	{
		Var		   *var = lfirst(cell);

		if (!IsA(var, Var) || var->varattno <= 0)
			refuse_trigger(trigger);
		columns[n++] = var->varattno;
	}
	*count = n;
	return columns;
}

/* Does a type's text look the same whatever the session's settings? */
static bool
text_is_settled(Oid base)
{
	switch (base)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case OIDOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case CHAROID:
		case UUIDOID:
		case INETOID:
		case CIDROID:
		case MACADDROID:
		case MACADDR8OID:
			return true;
		default:
			return get_typtype(base) == TYPTYPE_ENUM;
	}
}

/* Prepare a column of the key: its text is that of a cast to text. */
static void
prepare_key(CapturePlan *plan, CaptureKey *key, TupleDesc desc, AttrNumber attno)
{
	Oid			base = getBaseType(TupleDescAttr(desc, attno - 1)->atttypid);
	Oid			function = InvalidOid;
	CoercionPathType path = COERCION_PATH_RELABELTYPE;
	bool		varlena;

	key->attno = attno;
	if (base != TEXTOID)
		path = find_coercion_pathway(TEXTOID, base, COERCION_EXPLICIT, &function);
	key->as_it_is = path == COERCION_PATH_RELABELTYPE;
	key->by_cast = path == COERCION_PATH_FUNC && get_func_nargs(function) == 1;
	if (!key->as_it_is)
	{
		if (!key->by_cast)
			getTypeOutputInfo(base, &function, &varlena);
		fmgr_info(function, &key->function);
	}
	if (!text_is_settled(base))
		plan->pin_settings = true;
}

/* The table for which outbox_capture() was called: that of the topmost trigger. */
static Oid
captured_table(Oid trigger)
{
	Relation	rel = table_open(TriggerRelationId, AccessShareLock);
	Oid			table = InvalidOid;

	while (OidIsValid(trigger))
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&key, Anum_pg_trigger_oid, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(trigger));
		scan = systable_beginscan(rel, TriggerOidIndexId, true, NULL, 1, &key);
		tuple = systable_getnext(scan);
		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "could not find trigger %u", trigger);
		table = ((Form_pg_trigger) GETSTRUCT(tuple))->tgrelid;
		trigger = ((Form_pg_trigger) GETSTRUCT(tuple))->tgparentid;
		systable_endscan(scan);
	}
	table_close(rel, AccessShareLock);
	return table;
}

/* What a trigger is for. */
static CaptureOperation
operation_of(const Trigger *trigger)
{
	if (TRIGGER_FOR_INSERT(trigger->tgtype))
		return CAPTURE_INSERT;
	if (TRIGGER_FOR_UPDATE(trigger->tgtype))
		return CAPTURE_UPDATE;
	if (TRIGGER_FOR_DELETE(trigger->tgtype))
		return CAPTURE_DELETE;
	return CAPTURE_TRUNCATE;
}

/* Read the columns of a row trigger from its WHEN clause. */
static void
read_clause(CapturePlan *plan, const Trigger *trigger, TupleDesc desc)
{
	BoolExpr   *clause = trigger->tgqual == NULL ? NULL : stringToNode(trigger->tgqual);
	AttrNumber *columns;
	int			n;

	if (clause != NULL && IsA(clause, BoolExpr) && clause->boolop == AND_EXPR)
	{
		clause = linitial(clause->args);
		plan->condition = true;
	}
	if (clause == NULL || !IsA(clause, BoolExpr) || clause->boolop != OR_EXPR ||
		list_length(clause->args) < 2)
		refuse_trigger(trigger);

	columns = read_columns(trigger, lsecond(clause->args), &plan->nkeys);
	plan->keys = palloc0(sizeof(CaptureKey) * plan->nkeys);
	for (int i = 0; i < plan->nkeys; i++)
		prepare_key(plan, &plan->keys[i], desc, columns[i]);

	columns = NULL;
	n = 0;
	if (list_length(clause->args) > 2)
		columns = read_columns(trigger, lthird(clause->args), &n);
	plan->json = capture_json_make(desc, columns, n);
	if (columns == NULL)
	{
		columns = palloc(sizeof(AttrNumber) * desc->natts);
		for (int i = 0; i < desc->natts; i++)
		{
			if (!TupleDescAttr(desc, i)->attisdropped)
				columns[n++] = i + 1;
		}
	}
	plan->columns = columns;
	plan->ncolumns = n;
}

/* Prepare the columns whose values are not in the row. */
static void
prepare_virtuals(CapturePlan *plan, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	plan->virtuals = palloc0(sizeof(CaptureVirtual) * desc->natts);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);
		Node	   *expression = compat_is_virtual(attribute)
			? compat_generation_expression(rel, attribute->attnum) : NULL;
		CaptureVirtual *column = &plan->virtuals[plan->nvirtual];

		if (expression == NULL)
			continue;
		column->attno = attribute->attnum;
		column->value = ExecInitExpr(expression_planner((Expr *) expression), NULL);
		plan->nvirtual++;
	}
	if (plan->nvirtual > 0)
		plan->expressions = CreateStandaloneExprContext();
}

/* What a trigger is to do, from memory or from the trigger. */
CapturePlan *
capture_plan(Relation rel, const Trigger *trigger)
{
	static const char *const types[] = {
		[CAPTURE_INSERT] = "insert",
		[CAPTURE_UPDATE] = "update",
		[CAPTURE_DELETE] = "delete",
		[CAPTURE_TRUNCATE] = "truncate",
	};
	PlanEntry  *entry;
	CapturePlan *plan;
	MemoryContext context;
	MemoryContext old;

	if (plans == NULL)
		make_plans();
	entry = hash_search(plans, &trigger->tgoid, HASH_FIND, NULL);
	if (entry != NULL && entry->plan->valid)
		return entry->plan;

	drop_stale_plans();
	if (trigger->tgnargs < 1)
		refuse_trigger(trigger);
	context = AllocSetContextCreate(CurrentMemoryContext, "idemq captured table",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	plan = palloc0(sizeof(CapturePlan));
	plan->context = context;
	plan->table = RelationGetRelid(rel);
	plan->operation = operation_of(trigger);
	plan->type = cstring_to_text(types[plan->operation]);
	plan->aggregatetype = cstring_to_text(trigger->tgargs[0]);
	for (int i = 1; i < trigger->tgnargs; i++)
	{
		if (strcmp(trigger->tgargs[i], CAPTURE_WITH_OLD) == 0)
			plan->with_old = true;
		else if (strcmp(trigger->tgargs[i], CAPTURE_MOVES) == 0)
			plan->only_moves = true;
		else
			refuse_trigger(trigger);
	}
	if (plan->operation != CAPTURE_TRUNCATE)
	{
		read_clause(plan, trigger, RelationGetDescr(rel));
		prepare_virtuals(plan, rel);
	}
	plan->clone = trigger->tgisclone;
	plan->root = trigger->tgisclone ? captured_table(trigger->tgoid) : RelationGetRelid(rel);
	MemoryContextSwitchTo(old);

	/*
	 * Our lock on the table keeps its definition as it is meanwhile.  Reading
	 * may have led to other triggers' plans, but not to this one's.
	 */
	entry = hash_search(plans, &trigger->tgoid, HASH_ENTER, NULL);
	entry->plan = plan;
	plan->valid = true;
	MemoryContextSetParent(context, CacheMemoryContext);
	return plan;
}

/* Put into a row what is not stored. */
void
capture_complete(CapturePlan *plan, TupleTableSlot *slot)
{
	if (plan->nvirtual == 0 || slot == NULL)
		return;
	slot_getallattrs(slot);
	plan->expressions->ecxt_scantuple = slot;
	for (int i = 0; i < plan->nvirtual; i++)
	{
		int			at = plan->virtuals[i].attno - 1;

		slot->tts_values[at] = ExecEvalExpr(plan->virtuals[i].value, plan->expressions,
											&slot->tts_isnull[at]);
	}
}

/* Are two values stored in one place? */
static bool
same_pointer(Datum a, Datum b)
{
	struct varlena *x = (struct varlena *) DatumGetPointer(a);
	struct varlena *y = (struct varlena *) DatumGetPointer(b);

	return VARATT_IS_EXTERNAL_ONDISK(x) && VARATT_IS_EXTERNAL_ONDISK(y) &&
		memcmp(x, y, VARSIZE_EXTERNAL(x)) == 0;
}

/* Did an update change one of the columns that count? */
static bool
has_changed(const CapturePlan *plan, TupleDesc desc, TupleTableSlot *before, TupleTableSlot *after)
{
	for (int i = 0; i < plan->ncolumns; i++)
	{
		AttrNumber	attno = plan->columns[i];
		Form_pg_attribute attribute = TupleDescAttr(desc, attno - 1);
		bool		was_null;
		bool		is_null;
		Datum		was = slot_getattr(before, attno, &was_null);
		Datum		is = slot_getattr(after, attno, &is_null);

		if (was_null != is_null)
			return true;
		if (was_null || (attribute->attlen == -1 && same_pointer(was, is)))
			continue;
		if (!datum_image_eq(was, is, attribute->attbyval, attribute->attlen))
			return true;
	}
	return false;
}

/* The text of one column of the key. */
static text *
key_part(CaptureKey *key, Datum value)
{
	if (key->as_it_is)
		return DatumGetTextPP(value);
	if (key->by_cast)
		return DatumGetTextPP(FunctionCall1(&key->function, value));
	return cstring_to_text(OutputFunctionCall(&key->function, value));
}

/* The key of a row; NULL if a part of it is null. */
static text *
make_key(CapturePlan *plan, TupleTableSlot *slot)
{
	Datum	   *parts = palloc(sizeof(Datum) * plan->nkeys);

	for (int i = 0; i < plan->nkeys; i++)
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, plan->keys[i].attno, &isnull);

		if (isnull)
			return NULL;
		parts[i] = PointerGetDatum(key_part(&plan->keys[i], value));
	}
	if (plan->nkeys == 1)
		return (text *) DatumGetPointer(parts[0]);
	return DatumGetTextPP(DirectFunctionCall1(idem_key,
											  PointerGetDatum(construct_array(parts, plan->nkeys, TEXTOID, -1,
																			  false, TYPALIGN_INT))));
}

/* The key of a row, the same in all sessions whatever their settings. */
static text *
key_of(CapturePlan *plan, TupleTableSlot *slot)
{
	static const char *const pinned[][2] = {
		{"bytea_output", "hex"},
		{"datestyle", "ISO"},
		{"extra_float_digits", "1"},
		{"intervalstyle", "postgres"},
		{"lc_monetary", "C"},
		{"timezone", "UTC"},
		{"xmlbinary", "base64"},
	};
	text	   *key;
	int			level;

	if (!plan->pin_settings)
		return make_key(plan, slot);
	level = NewGUCNestLevel();
	for (int i = 0; i < lengthof(pinned); i++)
		(void) set_config_option(pinned[i][0], pinned[i][1], PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	key = make_key(plan, slot);
	AtEOXact_GUC(true, level);
	return key;
}

/* Add one of the two images of a row to an object. */
static void
push_image(CapturePlan *plan, JsonbParseState **state, char *name, TupleTableSlot *slot)
{
	JsonbValue	value = {.type = jbvString};

	value.val.string.val = name;
	value.val.string.len = strlen(name);
	pushJsonbValue(state, WJB_KEY, &value);
	if (slot != NULL)
		capture_json_push(plan->json, state, slot);
	else
	{
		value.type = jbvNull;
		pushJsonbValue(state, WJB_VALUE, &value);
	}
}

/* What happened to a row, as an event. */
void
capture_event(CapturePlan *plan, TupleTableSlot *before, TupleTableSlot *after, OutboxEvent *event)
{
	memset(event, 0, sizeof(OutboxEvent));
	event->aggregatetype = plan->aggregatetype;
	event->type = plan->type;
	event->aggregateid = key_of(plan, after != NULL ? after : before);
	if (!plan->with_old)
		event->payload = capture_json_form(plan->json, after != NULL ? after : before);
	else
	{
		JsonbParseState *state = NULL;
		JsonbValue *payload;

		pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
		push_image(plan, &state, "after", after);
		push_image(plan, &state, "before", before);
		payload = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
		event->payload = PointerGetDatum(JsonbValueToJsonb(payload));
	}
}

/* Tell of an update, unless it left alone what counts. */
void
capture_update(CapturePlan *plan, TupleDesc desc, TupleTableSlot *before, TupleTableSlot *after)
{
	OutboxEvent event;
	pg_uuid_t	id;

	if (!has_changed(plan, desc, before, after))
		return;
	capture_event(plan, before, after, &event);
	outbox_append(&event, &id);
}

/* Tell of a row that came, or went. */
static void
tell_row(CapturePlan *plan, TupleTableSlot *before, TupleTableSlot *after)
{
	OutboxEvent event;
	pg_uuid_t	id;

	if (plan->only_moves)
		return;
	capture_event(plan, before, after, &event);
	outbox_append(&event, &id);
}

/* Tell that a table was emptied. */
static void
tell_truncate(CapturePlan *plan)
{
	OutboxEvent event = {.aggregatetype = plan->aggregatetype,.type = plan->type};
	pg_uuid_t	id;

	outbox_append(&event, &id);
}

/* idemq._capture(aggregatetype[, options]): AFTER trigger of captured tables. */
Datum
idemq_capture(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	CapturePlan *plan;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function is only for triggers"),
				 errhint("Call outbox_capture(), which makes them.")));
	if (!TRIGGER_FIRED_AFTER(data->tg_event) ||
		TRIGGER_FIRED_FOR_ROW(data->tg_event) == TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
		refuse_trigger(data->tg_trigger);

	plan = capture_plan(data->tg_relation, data->tg_trigger);
	capture_complete(plan, data->tg_trigslot);
	capture_complete(plan, data->tg_newslot);
	if (capture_moved(plan, data))
		return PointerGetDatum(NULL);
	switch (plan->operation)
	{
		case CAPTURE_INSERT:
			tell_row(plan, NULL, data->tg_trigslot);
			break;
		case CAPTURE_UPDATE:
			capture_update(plan, RelationGetDescr(data->tg_relation),
						   data->tg_trigslot, data->tg_newslot);
			break;
		case CAPTURE_DELETE:
			tell_row(plan, data->tg_trigslot, NULL);
			break;
		case CAPTURE_TRUNCATE:
			tell_truncate(plan);
			break;
	}
	return PointerGetDatum(NULL);
}
