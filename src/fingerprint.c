/*-------------------------------------------------------------------------
 *
 * fingerprint.c
 *	  A key for messages that bring none: SHA-256 of a jsonb value, or of
 *	  what is found in it under some paths.
 *
 * What is hashed is a canonical form of the value, the same for all jsonb
 * values that are equal, in every server encoding, and different for values
 * that are not.  The format, version 1, is fixed for ever, since what was
 * claimed under another fingerprint would be claimable again.  Counts, lengths
 * and indexes are four bytes, most significant first.
 *
 *	fingerprint	"idemq fingerprint 1", a zero byte, then
 *				value						if no paths are given, else
 *				'p' count of paths, then for each, in the order given:
 *					count of steps, each step as a string,
 *					'-' if nothing is there, else '+' value
 *	value		'n' | 't' | 'f'				null, true, false
 *				'd' length text				number
 *				string
 *				'a' count values			array
 *				'o' count (string value)*	object
 *	string		's' length bytes			in UTF-8
 *				'r' length name length bytes	what has no UTF-8 form, see
 *											digest.c: server encoding, and
 *											the bytes as they are stored
 *
 * A number is written as its digits without leading and trailing zeros, with
 * '-' in front if it is negative, then 'e' and the power of ten of the last
 * digit: 1 and 1.0 are "1e0", 1200 is "12e2", -0.05 is "-5e-2".  Zero is "0".
 *
 * Members of an object are sorted by their names: shorter ones first, those of
 * the same length by their bytes, both in UTF-8; names without UTF-8 form come
 * last.  That is the order in which jsonb keeps them in a UTF8 database.
 *
 * The paths are part of the fingerprint, not only what they lead to: or two
 * messages that have 42 for an order and for an invoice would count as one.
 *
 * A path is names and array indexes, from the outermost, with '.' between
 * them; within a step '.' is written as '\.' and '\' as '\\'.  An index counts
 * from 0 and has no leading zeros.  Whether a step is a name or an index is
 * for the value to say.  Empty steps are refused: a slip like 'a..b' would
 * find nothing in any message, and so make all of them the same.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "digest.h"

PG_FUNCTION_INFO_V1(idem_fingerprint);

/* a hash in the making, and the bytes that it gets next */
typedef struct Fingerprint
{
	pg_cryptohash_ctx *sha;
	int			filled;
	uint8		buffer[1024];
} Fingerprint;

/* a step of a path */
typedef struct Step
{
	const char *bytes;
	int			len;
} Step;

/* a member of an object that is to be sorted */
typedef struct Member
{
	const char *name;
	int			len;
	const char *utf8;			/* the name's UTF-8 form, or NULL */
	int			utf8_len;
	JsonbValue	value;
} Member;

static void add_value(Fingerprint *fp, const JsonbValue *value);

/* Reports that the server cannot compute SHA-256. */
static void
fail_sha(pg_cryptohash_ctx *sha)
{
	elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(sha));
}

/* Hands the buffered bytes to SHA-256. */
static void
flush_bytes(Fingerprint *fp)
{
	if (fp->filled > 0 &&
		pg_cryptohash_update(fp->sha, fp->buffer, fp->filled) < 0)
		fail_sha(fp->sha);
	fp->filled = 0;
}

static void
add_bytes(Fingerprint *fp, const void *data, int len)
{
	if (len > (int) sizeof(fp->buffer) - fp->filled)
		flush_bytes(fp);
	if (len > (int) sizeof(fp->buffer))
	{
		if (pg_cryptohash_update(fp->sha, data, len) < 0)
			fail_sha(fp->sha);
		return;
	}
	memcpy(fp->buffer + fp->filled, data, len);
	fp->filled += len;
}

static void
add_tag(Fingerprint *fp, char tag)
{
	add_bytes(fp, &tag, 1);
}

static void
add_count(Fingerprint *fp, uint32 count)
{
	uint8		bytes[4] = {
		(uint8) (count >> 24), (uint8) (count >> 16),
		(uint8) (count >> 8), (uint8) count
	};

	add_bytes(fp, bytes, 4);
}

/* Adds a string whose UTF-8 form, if it has one, is known. */
static void
add_converted(Fingerprint *fp, const char *utf8, int utf8_len,
			  const char *s, int len)
{
	if (utf8 != NULL)
	{
		add_tag(fp, 's');
		add_count(fp, utf8_len);
		add_bytes(fp, utf8, utf8_len);
	}
	else
	{
		const char *encoding = GetDatabaseEncodingName();

		add_tag(fp, 'r');
		add_count(fp, strlen(encoding));
		add_bytes(fp, encoding, strlen(encoding));
		add_count(fp, len);
		add_bytes(fp, s, len);
	}
}

/* Adds a string of the server encoding. */
static void
add_string(Fingerprint *fp, const char *s, int len)
{
	int			utf8_len;
	const char *utf8 = digest_utf8_form(s, len, &utf8_len);

	add_converted(fp, utf8, utf8_len, s, len);
	if (utf8 != NULL && utf8 != s)
		pfree(unconstify(char *, utf8));
}

/* Reads a two-byte word of a numeric's external form. */
static int
get_int16(const uint8 *p)
{
	return (int16) ((p[0] << 8) | p[1]);
}

/*
 * Adds a number.  The external binary form gives its digits to the base of
 * 10000 as they are stored, so that 1e100000 costs no more than 1; nothing is
 * promised about leading and trailing zeros there.
 */
static void
add_number(Fingerprint *fp, Numeric number)
{
	bytea	   *external;
	const uint8 *wire;
	int			ndigits;
	int			exponent;
	char	   *decimal;
	char	   *digits;
	char	   *first;
	char	   *end;

	if (numeric_is_nan(number) || numeric_is_inf(number))
		elog(ERROR, "jsonb has a number that is not finite");

	external = DatumGetByteaPP(DirectFunctionCall1(numeric_send,
												   NumericGetDatum(number)));
	wire = (const uint8 *) VARDATA_ANY(external);

	/* number of digits, weight of the first, sign, scale; then the digits */
	ndigits = get_int16(wire) & 0xffff;
	exponent = 4 * (get_int16(wire + 2) - ndigits + 1);

	decimal = palloc(1 + 4 * (Size) ndigits + 16);
	digits = decimal +1;

	end = digits;
	for (int i = 0; i < ndigits; i++)
	{
		int			digit = get_int16(wire + 8 + 2 * i);

		*end++ = '0' + digit / 1000;
		*end++ = '0' + digit / 100 % 10;
		*end++ = '0' + digit / 10 % 10;
		*end++ = '0' + digit % 10;
	}

	first = digits;
	while (first < end && *first == '0')
		first++;
	while (first < end && end[-1] == '0')
	{
		end--;
		exponent++;
	}

	if (first == end)
		*end++ = '0';
	else
	{
		if (get_int16(wire + 4) == 0x4000)
			*--first = '-';
		end += sprintf(end, "e%d", exponent);
	}

	add_tag(fp, 'd');
	add_count(fp, end - first);
	add_bytes(fp, first, end - first);

	pfree(decimal);
	pfree(external);
}

/* Sorts members as a UTF8 database does. */
static int
compare_members(const void *a, const void *b)
{
	const Member *x = a;
	const Member *y = b;

	if ((x->utf8 == NULL) != (y->utf8 == NULL))
		return x->utf8 == NULL ? 1 : -1;
	if (x->utf8 == NULL)
	{
		if (x->len != y->len)
			return x->len < y->len ? -1 : 1;
		return memcmp(x->name, y->name, x->len);
	}
	if (x->utf8_len != y->utf8_len)
		return x->utf8_len < y->utf8_len ? -1 : 1;
	return memcmp(x->utf8, y->utf8, x->utf8_len);
}

/* Adds the members of an object in the order of their UTF-8 forms. */
static void
add_sorted(Fingerprint *fp, JsonbContainer *object)
{
	int			count = JsonContainerSize(object);
	Member	   *members = MemoryContextAllocHuge(CurrentMemoryContext,
												 sizeof(Member) * (count + 1));
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbIteratorToken token;
	JsonbValue	value;
	int			n = 0;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if (token == WJB_KEY)
		{
			Member	   *member = &members[n];

			member->name = value.val.string.val;
			member->len = value.val.string.len;
			member->utf8 = digest_utf8_form(member->name,
											member->len,
											&member->utf8_len);
		}
		else if (token == WJB_VALUE)
			members[n++].value = value;
	}
	Assert(n == count);

	qsort(members, n, sizeof(Member), compare_members);

	for (int i = 0; i < n; i++)
	{
		Member	   *member = &members[i];

		CHECK_FOR_INTERRUPTS();
		add_converted(fp, member->utf8, member->utf8_len,
					  member->name, member->len);
		add_value(fp, &member->value);
		if (member->utf8 != NULL && member->utf8 != member->name)
			pfree(unconstify(char *, member->utf8));
	}
	pfree(members);
}

/* Adds an array or an object, or the scalar that a jsonb may be as a whole. */
static void
add_container(Fingerprint *fp, JsonbContainer *container)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	check_stack_depth();

	if (!JsonContainerIsScalar(container))
	{
		bool		is_object = JsonContainerIsObject(container);

		add_tag(fp, is_object ? 'o' : 'a');
		add_count(fp, JsonContainerSize(container));
		if (is_object && GetDatabaseEncoding() != PG_UTF8)
		{
			add_sorted(fp, container);
			return;
		}
	}

	it = JsonbIteratorInit(container);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if (token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM)
			add_value(fp, &value);
	}
}

/* Adds any value. */
static void
add_value(Fingerprint *fp, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			add_tag(fp, 'n');
			break;
		case jbvBool:
			add_tag(fp, value->val.boolean ? 't' : 'f');
			break;
		case jbvNumeric:
			add_number(fp, value->val.numeric);
			break;
		case jbvString:
			add_string(fp, value->val.string.val, value->val.string.len);
			break;
		case jbvBinary:
			add_container(fp, value->val.binary.data);
			break;
		default:
			elog(ERROR, "unexpected jsonb value type: %d", (int) value->type);
	}
}

/* Splits a path into its steps; a path has one at least. */
static Step *
split_path(text *path, int *count)
{
	const char *p = VARDATA_ANY(path);
	const char *end = p + VARSIZE_ANY_EXHDR(path);
	char	   *out = palloc(end - p + 1);
	Step	   *steps = palloc(sizeof(Step));
	int			n = 0;

	for (;;)
	{
		char	   *start = out;

		CHECK_FOR_INTERRUPTS();
		for (; p < end && *p != '.'; p++)
		{
			if (*p == '\\')
			{
				p++;
				if (p == end || (*p != '.' && *p != '\\'))
					ereport(ERROR,
							(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							 errmsg("invalid escape sequence in path \"%s\"",
									text_to_cstring(path)),
							 errhint("Write \\. for a dot in a name, and \\\\ for a backslash.")));
			}
			*out++ = *p;
		}
		if (out == start)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("path \"%s\" has an empty step",
							text_to_cstring(path)),
					 errhint("Write a path as names and array indexes with single dots between them, and \\. for a dot in a name.")));

		if (n > 0 && (n & (n - 1)) == 0)
			steps = repalloc(steps, sizeof(Step) * 2 * n);
		steps[n].bytes = start;
		steps[n].len = out - start;
		n++;

		if (p == end)
			break;
		p++;
	}

	*count = n;
	return steps;
}

/* Reads a step as an array index: digits, no leading zeros. */
static bool
parse_index(const Step *step, uint32 *index)
{
	if (step->len > 9 || (step->len > 1 && step->bytes[0] == '0'))
		return false;

	*index = 0;
	for (int i = 0; i < step->len; i++)
	{
		if (step->bytes[i] < '0' || step->bytes[i] > '9')
			return false;
		*index = *index * 10 + (step->bytes[i] - '0');
	}
	return true;
}

/* Finds what the steps lead to, or returns NULL. */
static JsonbValue *
find_value(JsonbContainer *root, const Step *steps, int count)
{
	JsonbContainer *container = root;
	JsonbValue *value = NULL;

	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();

		if (i > 0)
		{
			if (value->type != jbvBinary)
				return NULL;
			container = value->val.binary.data;
		}

		if (JsonContainerIsObject(container))
			value = getKeyJsonValueFromContainer(container, steps[i].bytes,
												 steps[i].len, NULL);
		else
		{
			uint32		index;

			/* a scalar is kept as an array of one */
			if (JsonContainerIsScalar(container) ||
				!parse_index(&steps[i], &index))
				return NULL;
			value = getIthJsonbValueFromContainer(container, index);
		}
		if (value == NULL)
			return NULL;
	}
	return value;
}

/* Adds a path, and what it leads to. */
static void
add_path(Fingerprint *fp, JsonbContainer *root, text *path)
{
	int			count;
	Step	   *steps = split_path(path, &count);
	JsonbValue *value;

	add_count(fp, count);
	for (int i = 0; i < count; i++)
		add_string(fp, steps[i].bytes, steps[i].len);

	value = find_value(root, steps, count);
	add_tag(fp, value == NULL ? '-' : '+');
	if (value != NULL)
		add_value(fp, value);
}

/* Reports a null among the paths. */
static void
refuse_null_path(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("path of a fingerprint must not be null")));
}

/*
 * SQL: idem_fingerprint(payload jsonb, VARIADIC paths text[] DEFAULT '{}')
 *		RETURNS text
 */
Datum
idem_fingerprint(PG_FUNCTION_ARGS)
{
	static const char version[] = "idemq fingerprint 1";

	Jsonb	   *payload;
	ArrayType  *array;
	Datum	   *paths;
	bool	   *nulls;
	int			count;
	Fingerprint fp;
	uint8		hash[PG_SHA256_DIGEST_LENGTH];
	char		hex[2 * PG_SHA256_DIGEST_LENGTH];

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("payload of a fingerprint must not be null"),
				 errhint("A fingerprint of nothing would be the same for every message without a payload.")));
	if (PG_ARGISNULL(1))
		refuse_null_path();

	payload = PG_GETARG_JSONB_P(0);
	array = PG_GETARG_ARRAYTYPE_P(1);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("paths of a fingerprint must be in an array of one dimension")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT,
					  &paths, &nulls, &count);

	/* after an error the resource owner frees the context */
	fp.filled = 0;
	fp.sha = pg_cryptohash_create(PG_SHA256);
	if (fp.sha == NULL || pg_cryptohash_init(fp.sha) < 0)
		fail_sha(fp.sha);

	add_bytes(&fp, version, sizeof(version));
	if (count == 0)
		add_container(&fp, &payload->root);
	else
	{
		add_tag(&fp, 'p');
		add_count(&fp, count);
		for (int i = 0; i < count; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (nulls[i])
				refuse_null_path();
			add_path(&fp, &payload->root, DatumGetTextPP(paths[i]));
		}
	}

	flush_bytes(&fp);
	if (pg_cryptohash_final(fp.sha, hash, sizeof(hash)) < 0)
		fail_sha(fp.sha);
	pg_cryptohash_free(fp.sha);

	hex_encode((const char *) hash, sizeof(hash), hex);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(hex, sizeof(hex)));
}
