/*-------------------------------------------------------------------------
 *
 * key.c
 *	  Composite keys: several texts as one, unambiguously.
 *
 * The format is fixed for ever, since keys that were claimed under another
 * one would be claimable again: the parts in their order, with ':' between
 * them; within a part, ':' is written as '\:' and '\' as '\\'.
 *
 *		('order', '42')				order:42
 *		('a:b', 'c')				a\:b:c
 *		('a', 'b:c')				a:b\:c
 *		('', '')					:
 *
 * A colon that is not behind an odd number of backslashes separates, so the
 * parts can be had back and no two lists of parts give the same key.  A single
 * part without ':' and '\' is its own key.  No parts at all would look like
 * one empty part, and are refused; so are nulls, which have no text.
 *
 * Bytes are compared, not characters: in all server encodings, bytes below 128
 * are ASCII characters and never part of a longer one.
 *
 *-------------------------------------------------------------------------
 */
#include "key.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idem_key);

/* Adds a part to a key, with backslashes where they are due. */
static void
append_part(StringInfo key, const char *part, int len)
{
	const char *end = part + len;
	const char *plain = part;

	for (const char *p = part; p < end; p++)
	{
		if (*p == ':' || *p == '\\')
		{
			appendBinaryStringInfo(key, plain, p - plain);
			appendStringInfoChar(key, '\\');
			plain = p;
		}
	}
	appendBinaryStringInfo(key, plain, end - plain);
}

/* The key of a scope and a key within it, as idem_key(scope, key) gives it. */
text *
key_compose(const text *scope, const text *key)
{
	StringInfoData composite;

	initStringInfo(&composite);
	append_part(&composite, VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope));
	appendStringInfoChar(&composite, ':');
	append_part(&composite, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	return cstring_to_text_with_len(composite.data, composite.len);
}

/* Reports a null where there must be a part. */
static void
refuse_null(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("part of a composite key must not be null"),
			 errhint("Use coalesce() to say what a null stands for.")));
}

/* SQL: idem_key(VARIADIC parts text[]) RETURNS text */
Datum
idem_key(PG_FUNCTION_ARGS)
{
	ArrayType  *array;
	Datum	   *parts;
	bool	   *nulls;
	int			count;
	StringInfoData key;

	if (PG_ARGISNULL(0))
		refuse_null();

	array = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("parts of a composite key must be in an array of one dimension")));

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT,
					  &parts, &nulls, &count);
	if (count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("composite key must have at least one part")));

	initStringInfo(&key);
	for (int i = 0; i < count; i++)
	{
		text	   *part;

		if (nulls[i])
			refuse_null();
		part = DatumGetTextPP(parts[i]);
		if (i > 0)
			appendStringInfoChar(&key, ':');
		append_part(&key, VARDATA_ANY(part), VARSIZE_ANY_EXHDR(part));
	}

	PG_RETURN_TEXT_P(cstring_to_text_with_len(key.data, key.len));
}
