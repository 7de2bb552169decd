/*-------------------------------------------------------------------------
 *
 * claim_sql.c
 *	  The claim family as SQL sees it: arguments, rights, batches.
 *
 *-------------------------------------------------------------------------
 */
#include "claim.h"

#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "grants.h"
#include "guc.h"

PG_FUNCTION_INFO_V1(idem_claim);
PG_FUNCTION_INFO_V1(idem_try_claim);
PG_FUNCTION_INFO_V1(idem_claim_many);
PG_FUNCTION_INFO_V1(idem_seen);
PG_FUNCTION_INFO_V1(idem_forget);

/* How many keys ahead a batch asks for the filter's memory. */
#define BATCH_AHEAD		3

/* After how many keys a batch gives memory back. */
#define BATCH_RESET		64

/* One key of a batch. */
typedef struct BatchItem
{
	text	   *key;
	int			position;		/* in the array */
	IdemDigest	digest;
} BatchItem;

/* Refuse what writes where nothing can be written. */
static void
require_writable(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

/* The scope of a call: its argument, or idemq.scope; checked, and allowed. */
static text *
resolve_scope(FunctionCallInfo fcinfo, int argno)
{
	text	   *scope = PG_ARGISNULL(argno)
		? cstring_to_text(idemq_scope) : PG_GETARG_TEXT_PP(argno);

	if (VARSIZE_ANY_EXHDR(scope) > IDEMQ_MAX_SCOPE)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("scope is longer than %d bytes", IDEMQ_MAX_SCOPE),
				 errhint("Name the consumer, not the message.")));
	grants_require_scope(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
						 fcinfo->flinfo->fn_oid);
	return scope;
}

/* Refuse a key that is none. */
static void
check_key(const text *key)
{
	if (VARSIZE_ANY_EXHDR(key) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("key is empty"),
				 errhint("Use the message's id, or idem_fingerprint(payload) where it has none.")));
	if (VARSIZE_ANY_EXHDR(key) > IDEMQ_MAX_KEY)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("key is longer than %d bytes", IDEMQ_MAX_KEY),
				 errhint("Use a fingerprint of it: encode(sha256(convert_to(key, 'UTF8')), 'hex'), or idem_fingerprint(payload).")));
}

/* Refuse a missing key. */
static void
refuse_null_key(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("key must not be null"),
			 errhint("Use the message's id, or idem_fingerprint(payload) where it has none.")));
}

/* Put a key and its scope together. */
static void
set_key(ClaimKey *out, text *scope, text *key)
{
	out->scope = PointerGetDatum(scope);
	out->key = PointerGetDatum(key);
	out->stats = shmem_scope(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope));
	digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
				   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &out->digest);
}

/* The arguments (key, scope) of a call. */
static void
get_key(FunctionCallInfo fcinfo, ClaimKey *out)
{
	text	   *key;

	if (PG_ARGISNULL(0))
		refuse_null_key();
	key = PG_GETARG_TEXT_PP(0);
	check_key(key);
	set_key(out, resolve_scope(fcinfo, 1), key);
}

/* In digest order; equal keys in the order of the array. */
static inline int
compare_items(const BatchItem *x, const BatchItem *y)
{
	uint64		a = pg_ntoh64(digest_half(&x->digest, 0));
	uint64		b = pg_ntoh64(digest_half(&y->digest, 0));
	int			order;

	if (a != b)
		return a < b ? -1 : 1;
	order = digest_cmp(&x->digest, &y->digest);
	return order != 0 ? order : (x->position > y->position) - (x->position < y->position);
}

/* sort_items(), with the comparison inlined */
#define ST_SORT sort_items
#define ST_ELEMENT_TYPE BatchItem
#define ST_COMPARE(a, b) compare_items(a, b)
#define ST_SCOPE static
#define ST_CHECK_FOR_INTERRUPTS
#define ST_DEFINE
#include "lib/sort_template.h"

/* idem_claim(key text, scope text) returns boolean */
Datum
idem_claim(PG_FUNCTION_ARGS)
{
	ClaimKey	key;

	require_writable("idem_claim()");
	get_key(fcinfo, &key);
	PG_RETURN_BOOL(claim_take(&key, true) == CLAIM_CLAIMED);
}

/* idem_try_claim(key text, scope text) returns text */
Datum
idem_try_claim(PG_FUNCTION_ARGS)
{
	static const char *const answers[] = {
		[CLAIM_CLAIMED] = "claimed",
		[CLAIM_DUPLICATE] = "duplicate",
		[CLAIM_MINE] = "mine",
		[CLAIM_BUSY] = "busy",
	};
	ClaimKey	key;

	require_writable("idem_try_claim()");
	get_key(fcinfo, &key);
	PG_RETURN_TEXT_P(cstring_to_text(answers[claim_take(&key, false)]));
}

/*
 * idem_claim_many(keys text[], scope text) returns boolean[]
 *
 * Strictly one key at a time, each taken before the next is looked at, and in
 * digest order, so that two transactions that make one batch each wait for
 * each other in one direction only.  It is also the order of the index, so that
 * the next key is near the last one in it.
 */
Datum
idem_claim_many(PG_FUNCTION_ARGS)
{
	ArrayType  *array;
	text	   *scope;
	Datum	   *elements;
	Datum	   *answers;
	bool	   *isnull;
	BatchItem  *items;
	int			n;
	ClaimKey	key;
	MemoryContext work;
	MemoryContext old;

	require_writable("idem_claim_many()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("array of keys must not be null")));
	array = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("array of keys must have one dimension"),
				 errhint("Unnest it.")));
	scope = resolve_scope(fcinfo, 1);

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &isnull, &n);
	items = palloc_extended(sizeof(BatchItem) * Max(n, 1), MCXT_ALLOC_HUGE);
	answers = palloc_extended(sizeof(Datum) * Max(n, 1), MCXT_ALLOC_HUGE);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (isnull[i])
			refuse_null_key();
		items[i].key = DatumGetTextPP(elements[i]);
		items[i].position = i;
		check_key(items[i].key);
		digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
					   VARDATA_ANY(items[i].key), VARSIZE_ANY_EXHDR(items[i].key),
					   &items[i].digest);
	}
	sort_items(items, n);

	work = AllocSetContextCreate(CurrentMemoryContext, "idemq batch", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(work);
	key.scope = PointerGetDatum(scope);
	key.stats = shmem_scope(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope));
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i + BATCH_AHEAD < n)
			claim_expect(&items[i + BATCH_AHEAD].digest);
		key.key = PointerGetDatum(items[i].key);
		key.digest = items[i].digest;
		answers[items[i].position] = BoolGetDatum(claim_take(&key, true) == CLAIM_CLAIMED);
		if (i % BATCH_RESET == 0)
			MemoryContextReset(work);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(work);

	PG_RETURN_ARRAYTYPE_P(construct_array(answers, n, BOOLOID, 1, true, TYPALIGN_CHAR));
}

/* idem_seen(key text, scope text) returns timestamptz */
Datum
idem_seen(PG_FUNCTION_ARGS)
{
	ClaimKey	key;
	TimestampTz claimed_at;

	get_key(fcinfo, &key);
	if (!claim_seen(&key, &claimed_at))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(claimed_at);
}

/* idem_forget(key text, scope text) returns boolean */
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	ClaimKey	key;

	require_writable("idem_forget()");
	grants_require_admin("idem_forget()", fcinfo->flinfo->fn_oid);
	get_key(fcinfo, &key);
	PG_RETURN_BOOL(claim_forget(&key));
}
