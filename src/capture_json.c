/*-------------------------------------------------------------------------
 *
 * capture_json.c
 *	  A row as JSON, exactly as to_jsonb(row) gives it.
 *
 * to_jsonb finds out anew for each value of each row how its type is to be
 * converted.  Here that is done once per table, for the types of the server;
 * what others brought with them (they may have a cast to json, now or later),
 * arrays, rows and json are handed to to_jsonb, value by value.
 *
 *-------------------------------------------------------------------------
 */
#include "capture.h"

#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "pgtime.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

typedef enum ColumnKind
{
	COLUMN_BOOL,
	COLUMN_INT2,
	COLUMN_INT4,
	COLUMN_INT8,
	COLUMN_NUMERIC,
	COLUMN_TIME,				/* date, timestamp, timestamptz */
	COLUMN_JSONB,
	COLUMN_TEXT,
	COLUMN_OUTPUT,				/* the string that its output function gives */
	COLUMN_OTHER,				/* what to_jsonb gives */
} ColumnKind;

typedef struct RowColumn
{
	JsonbValue	name;
	AttrNumber	attno;
	ColumnKind	kind;
	FmgrInfo	function;		/* COLUMN_OUTPUT, COLUMN_OTHER */

	/* COLUMN_TIME: which type, and the last value, if it has a length */
	Oid			type;
	int64		time;
	const pg_tz *zone;
	int			time_len;
	char		time_text[MAXDATELEN + 1];
} RowColumn;

struct RowJson
{
	int			ncolumns;
	bool		flat;			/* no value is an object or an array */
	char	   *front;			/* then: all that comes before the values */
	Size		front_size;
	Size		names_size;		/* of that, the names */
	RowColumn	columns[FLEXIBLE_ARRAY_MEMBER];
};

/* How values of a type are converted, seen through domains. */
static ColumnKind
kind_of(Oid base)
{
	switch (base)
	{
		case BOOLOID:
			return COLUMN_BOOL;
		case INT2OID:
			return COLUMN_INT2;
		case INT4OID:
			return COLUMN_INT4;
		case INT8OID:
			return COLUMN_INT8;
		case NUMERICOID:
			return COLUMN_NUMERIC;
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return COLUMN_TIME;
		case JSONBOID:
			return COLUMN_JSONB;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			return COLUMN_TEXT;
		case UUIDOID:
		case BYTEAOID:
		case INTERVALOID:
		case TIMEOID:
		case TIMETZOID:
		case INETOID:
		case OIDOID:
		case NAMEOID:
			return COLUMN_OUTPUT;
		default:
			return COLUMN_OTHER;
	}
}

/* Prepare one column. */
static void
prepare_column(RowColumn *column, Form_pg_attribute attribute)
{
	Oid			base = getBaseType(attribute->atttypid);

	column->name.type = jbvString;
	column->name.val.string.val = pstrdup(NameStr(attribute->attname));
	column->name.val.string.len = strlen(column->name.val.string.val);
	column->attno = attribute->attnum;
	column->kind = kind_of(base);
	column->type = base;

	if (column->kind == COLUMN_OUTPUT)
	{
		Oid			function;
		bool		varlena;

		getTypeOutputInfo(base, &function, &varlena);
		fmgr_info(function, &column->function);
	}
	else if (column->kind == COLUMN_OTHER)
	{
		Node	   *argument = (Node *) makeNullConst(attribute->atttypid, -1, attribute->attcollation);

		fmgr_info(F_TO_JSONB, &column->function);
		fmgr_info_set_expr((Node *) makeFuncExpr(F_TO_JSONB, JSONBOID, list_make1(argument),
												 InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL),
						   &column->function);
	}
}

/* In the order that objects have inside jsonb, so that nothing is left to sort. */
static int
compare_columns(const void *a, const void *b)
{
	const JsonbValue *x = &((const RowColumn *) a)->name;
	const JsonbValue *y = &((const RowColumn *) b)->name;

	if (x->val.string.len != y->val.string.len)
		return x->val.string.len > y->val.string.len ? 1 : -1;
	return memcmp(x->val.string.val, y->val.string.val, x->val.string.len);
}

/* Refuse what no jsonb can hold. */
static void
check_size(Size size)
{
	if (size > JENTRY_OFFLENMASK)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("total size of jsonb object elements exceeds the maximum of %u bytes",
						JENTRY_OFFLENMASK)));
}

/* One more entry of a flat object; every so many hold an offset instead of a length. */
static JEntry
make_entry(int number, uint32 type, Size length, Size *total)
{
	*total += length;
	if (number % JB_OFFSET_STRIDE == 0)
		return type | (uint32) *total | JENTRY_HAS_OFF;
	return type | (uint32) length;
}

/* The beginning of the object of each row, if it is flat: the names are always the same. */
static void
prepare_front(RowJson * row)
{
	Size		head = offsetof(Jsonb, root.children) + sizeof(JEntry) * 2 * row->ncolumns;
	Size		room = head;
	Jsonb	   *front;
	char	   *at;

	row->flat = true;
	for (int i = 0; i < row->ncolumns; i++)
	{
		room += row->columns[i].name.val.string.len;
		if (row->columns[i].kind == COLUMN_JSONB || row->columns[i].kind == COLUMN_OTHER)
			row->flat = false;
	}
	if (!row->flat)
		return;

	row->front = palloc0(room);
	row->front_size = room;
	front = (Jsonb *) row->front;
	front->root.header = row->ncolumns | JB_FOBJECT;
	at = row->front + head;
	for (int i = 0; i < row->ncolumns; i++)
	{
		const JsonbValue *name = &row->columns[i].name;

		front->root.children[i] =
			make_entry(i, JENTRY_ISSTRING, name->val.string.len, &row->names_size);
		memcpy(at, name->val.string.val, name->val.string.len);
		at += name->val.string.len;
	}
}

/* Prepare for a table; no columns: all that there are. */
RowJson *
capture_json_make(TupleDesc desc, const AttrNumber *columns, int ncolumns)
{
	int			room = ncolumns > 0 ? ncolumns : desc->natts;
	RowJson    *row = palloc0(offsetof(RowJson, columns) + sizeof(RowColumn) * room);

	for (int i = 0; i < room; i++)
	{
		AttrNumber	attno = ncolumns > 0 ? columns[i] : i + 1;
		Form_pg_attribute attribute = TupleDescAttr(desc, attno - 1);

		if (!attribute->attisdropped)
			prepare_column(&row->columns[row->ncolumns++], attribute);
	}
	qsort(row->columns, row->ncolumns, sizeof(RowColumn), compare_columns);
	prepare_front(row);
	return row;
}

/* A string as a JSON value. */
static void
set_string(JsonbValue *value, char *string, int len)
{
	if (len > JENTRY_OFFLENMASK)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("string too long to represent as jsonb string")));
	value->type = jbvString;
	value->val.string.val = string;
	value->val.string.len = len;
}

/* A number, or a string if JSON has no such number. */
static void
set_numeric(JsonbValue *value, Datum datum)
{
	Numeric		number = DatumGetNumeric(datum);

	if (numeric_is_nan(number) || numeric_is_inf(number))
	{
		char	   *string = DatumGetCString(DirectFunctionCall1(numeric_out, datum));

		set_string(value, string, strlen(string));
		return;
	}
	value->type = jbvNumeric;
	value->val.numeric = number;
}

/* A time.  It is often that of the row before, since now() is the same for all of them. */
static void
set_time(JsonbValue *value, RowColumn *column, Datum datum)
{
	int64		time = column->type == DATEOID ? DatumGetDateADT(datum) : DatumGetTimestamp(datum);

	if (column->time_len == 0 || time != column->time || session_timezone != column->zone)
	{
		column->time_len = 0;
		JsonEncodeDateTime(column->time_text, datum, column->type, NULL);
		column->time = time;
		column->zone = session_timezone;
		column->time_len = strlen(column->time_text);
	}
	/* the next one may come before this one is used */
	set_string(value, pnstrdup(column->time_text, column->time_len), column->time_len);
}

/* A jsonb inside another. */
static void
set_jsonb(JsonbValue *value, Datum datum)
{
	Jsonb	   *jsonb = DatumGetJsonbP(datum);

	if (JB_ROOT_IS_SCALAR(jsonb))
		JsonbExtractScalar(&jsonb->root, value);
	else
	{
		value->type = jbvBinary;
		value->val.binary.data = &jsonb->root;
		value->val.binary.len = VARSIZE(jsonb) - VARHDRSZ;
	}
}

/* A value of a column, which is not null. */
static void
set_value(JsonbValue *value, RowColumn *column, Datum datum)
{
	switch (column->kind)
	{
		case COLUMN_BOOL:
			value->type = jbvBool;
			value->val.boolean = DatumGetBool(datum);
			break;
		case COLUMN_INT2:
			value->type = jbvNumeric;
			value->val.numeric = int64_to_numeric(DatumGetInt16(datum));
			break;
		case COLUMN_INT4:
			value->type = jbvNumeric;
			value->val.numeric = int64_to_numeric(DatumGetInt32(datum));
			break;
		case COLUMN_INT8:
			value->type = jbvNumeric;
			value->val.numeric = int64_to_numeric(DatumGetInt64(datum));
			break;
		case COLUMN_NUMERIC:
			set_numeric(value, datum);
			break;
		case COLUMN_TIME:
			set_time(value, column, datum);
			break;
		case COLUMN_JSONB:
			set_jsonb(value, datum);
			break;
		case COLUMN_TEXT:
			{
				text	   *string = DatumGetTextPP(datum);

				set_string(value, VARDATA_ANY(string), VARSIZE_ANY_EXHDR(string));
				break;
			}
		case COLUMN_OUTPUT:
			{
				char	   *string = OutputFunctionCall(&column->function, datum);

				set_string(value, string, strlen(string));
				break;
			}
		case COLUMN_OTHER:
			set_jsonb(value, FunctionCall1(&column->function, datum));
			break;
	}
}

/* Add a row, as an object, to what is being built; no slot: null. */
JsonbValue *
capture_json_push(RowJson * row, JsonbParseState **state, TupleTableSlot *slot)
{
	pushJsonbValue(state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < row->ncolumns; i++)
	{
		RowColumn  *column = &row->columns[i];
		JsonbValue	value;
		Datum		datum;
		bool		isnull;

		pushJsonbValue(state, WJB_KEY, &column->name);
		datum = slot_getattr(slot, column->attno, &isnull);
		if (isnull)
			value.type = jbvNull;
		else
			set_value(&value, column, datum);
		pushJsonbValue(state, WJB_VALUE, &value);
	}
	return pushJsonbValue(state, WJB_END_OBJECT, NULL);
}

/* A row without objects or arrays in it, written as the server writes them into a jsonb. */
static Datum
form_flat(RowJson * row, TupleTableSlot *slot)
{
	JsonbValue *values = palloc(sizeof(JsonbValue) * Max(row->ncolumns, 1));
	Size		size = row->front_size;
	Size		total = row->names_size;
	Jsonb	   *result;
	char	   *start;
	char	   *at;

	for (int i = 0; i < row->ncolumns; i++)
	{
		bool		isnull;
		Datum		datum = slot_getattr(slot, row->columns[i].attno, &isnull);

		values[i].type = jbvNull;
		if (!isnull)
			set_value(&values[i], &row->columns[i], datum);
		if (values[i].type == jbvString)
			size += values[i].val.string.len;
		else if (values[i].type == jbvNumeric)
			size = INTALIGN(size) + VARSIZE_ANY(values[i].val.numeric);
		check_size(size - VARHDRSZ);
	}

	start = palloc(size);
	result = (Jsonb *) start;
	memcpy(start, row->front, row->front_size);
	at = start + row->front_size;
	for (int i = 0; i < row->ncolumns; i++)
	{
		const JsonbValue *value = &values[i];
		char	   *before = at;
		uint32		type = JENTRY_ISNULL;

		if (value->type == jbvString)
		{
			type = JENTRY_ISSTRING;
			memcpy(at, value->val.string.val, value->val.string.len);
			at += value->val.string.len;
		}
		else if (value->type == jbvNumeric)
		{
			type = JENTRY_ISNUMERIC;
			while ((at - start) % sizeof(int) != 0)
				*at++ = 0;
			memcpy(at, value->val.numeric, VARSIZE_ANY(value->val.numeric));
			at += VARSIZE_ANY(value->val.numeric);
		}
		else if (value->type == jbvBool)
			type = value->val.boolean ? JENTRY_ISBOOL_TRUE : JENTRY_ISBOOL_FALSE;
		result->root.children[row->ncolumns + i] =
			make_entry(row->ncolumns + i, type, at - before, &total);
	}
	Assert(at == start + size);
	SET_VARSIZE(result, size);
	return PointerGetDatum(result);
}

/* A row as a jsonb of its own, built by the server. */
static Datum
form_any(RowJson * row, TupleTableSlot *slot)
{
	JsonbParseState *state = NULL;

	return PointerGetDatum(JsonbValueToJsonb(capture_json_push(row, &state, slot)));
}

/* A row as a jsonb of its own. */
Datum
capture_json_form(RowJson * row, TupleTableSlot *slot)
{
	Datum		result;

	if (!row->flat)
		return form_any(row, slot);
	result = form_flat(row, slot);
	Assert(datum_image_eq(result, form_any(row, slot), false, -1));
	return result;
}
