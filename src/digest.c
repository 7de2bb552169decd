/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  The 128 bits that stand for a scope and a key.
 *
 * The digest is what the unique index of a leaf is on, and what the key lock
 * and the batch order go by.  Two different pairs must never share one, not
 * even when a client chooses keys with that in mind: it could have another's
 * message refused.  Hence a cryptographic hash, BLAKE2b with 16 bytes of
 * output, which costs less than half of what SHA-256 costs through the server's
 * interface to OpenSSL.
 *
 * The format, version 1.  It is fixed for as long as there are leaves that
 * were indexed with it: another one needs all of them reindexed.
 *
 *	personalisation "idemq digest 1", zero padded:
 *		length of scope, scope, key						in UTF-8
 *	personalisation "idemq raw 1", zero padded:
 *		name of the server encoding, a zero byte,
 *		length of scope, scope, key						as they are stored
 *
 * The length is two bytes, most significant first; 65535 stands for a longer
 * scope and is followed by the length in four bytes.
 *
 * The first form is taken wherever both texts have a UTF-8 form that leads
 * back to them: then a dump can be restored into another encoding, and a
 * client can compute the digest.  The second is for all the others: bytes
 * above 127 in SQL_ASCII and MULE_INTERNAL, characters that have no
 * counterpart in Unicode, and those that share theirs with another character
 * or with a sequence of characters.  EUC_TW has 5,864 such characters, EUC_JP
 * 23 and EUC_JIS_2004 some sequences; without the way back two different keys
 * could be taken for one.  (A text whose UTF-8 form might exceed 2 GB is not
 * converted either.)
 *
 * ASCII is its own UTF-8 form in every server encoding: none of them uses
 * bytes below 128 for anything else.
 *
 * The first bits of the hash are then replaced, most significant bit first:
 *
 *	key begins with its time	1 and 31 bits: the lowest of that time, which is
 *								in milliseconds since 1970
 *	any other key				0
 *
 * A key begins with its time if it is, to the letter, a UUID of version 7 (36
 * characters, hex digits of either case) or a ULID (26 digits of Crockford's
 * base 32 of either case, so no I, L, O and U, the first not above 7).  Such keys
 * come more or less in the order of their times, and then so do their digests:
 * the index grows at its right end, in pages that are in the cache and in the
 * log already, instead of anywhere.  The leading 1 keeps all other keys from
 * that end.  After 24.8 days the 31 bits start over; a leaf that is being written
 * then goes on in the middle of its index, where pages stay half empty.
 *
 * Keys whose 31 bits differ have different digests, and among all others 96 bits
 * tell (127 where there is no time).  To have another's message refused, a client
 * must find a key with the same 31 bits whose hash agrees: 2^96 trials.  Two
 * keys of his own that agree take him 2^48 trials, and give him what he has by
 * sending the same key twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"	/* brings varatt.h from 16 on */
#include "catalog/pg_conversion.h"
#include "catalog/pg_namespace.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "blake2b.h"
#include "digest.h"

PG_FUNCTION_INFO_V1(idemq_digest);

StaticAssertDecl(sizeof(IdemDigest) == UUID_LEN, "a digest is a uuid");

static const uint8_t personal_utf8[BLAKE2B_PERSONAL] = "idemq digest 1";
static const uint8_t personal_raw[BLAKE2B_PERSONAL] = "idemq raw 1";

#define TIME_MARK	0x80000000	/* the digest begins with a time */

/*
 * The digits of Crockford's base 32, by their ASCII codes; -1 is none.  Those
 * below 16 are the hexadecimal ones.
 */
static const int8 digit_values[128] = {
	-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
	-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
	-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
	0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1, -1, -1, -1, -1,
	-1, 10, 11, 12, 13, 14, 15, 16, 17, -1, 18, 19, -1, 20, 21, -1,
	22, 23, 24, 25, 26, -1, 27, 28, 29, 30, 31, -1, -1, -1, -1, -1,
	-1, 10, 11, 12, 13, 14, 15, 16, 17, -1, 18, 19, -1, 20, 21, -1,
	22, 23, 24, 25, 26, -1, 27, 28, 29, 30, 31, -1, -1, -1, -1, -1,
};

/* Reads count digits of so many bits each; false if there is another character. */
static inline bool
read_digits(const char *s, int count, int bits, uint64 *value)
{
	*value = 0;
	for (int i = 0; i < count; i++)
	{
		int			digit = IS_HIGHBIT_SET(s[i]) ? -1 : digit_values[(int) s[i]];

		if (digit < 0 || digit >> bits != 0)
			return false;
		*value = *value << bits | (uint64) digit;
	}
	return true;
}

/* Gives the time in milliseconds that a UUID of version 7 begins with. */
static bool
uuid7_time(const char *key, uint64 *time)
{
	uint64		high;
	uint64		low;
	uint64		version;
	uint64		variant;
	uint64		rest;

	/* what most other UUIDs fail at comes first */
	if (key[14] != '7' ||
		key[8] != '-' || key[13] != '-' || key[18] != '-' || key[23] != '-' ||
		!read_digits(key, 8, 4, &high) ||
		!read_digits(key + 9, 4, 4, &low) ||
		!read_digits(key + 14, 4, 4, &version) ||
		!read_digits(key + 19, 4, 4, &variant) || variant >> 14 != 2 ||
		!read_digits(key + 24, 12, 4, &rest))
		return false;
	*time = high << 16 | low;
	return true;
}

/* Gives the time in milliseconds that a ULID begins with. */
static bool
ulid_time(const char *key, uint64 *time)
{
	uint64		rest;

	return read_digits(key, 10, 5, time) && *time >> 48 == 0 &&
		read_digits(key + 10, 16, 5, &rest);
}

/* Replaces the first bits of a hash; see the head of this file. */
static void
put_time(const char *key, int len, uint8 *bytes)
{
	uint64		time;
	uint32		word;

	if (!((len == 36 && uuid7_time(key, &time)) ||
		  (len == 26 && ulid_time(key, &time))))
	{
		bytes[0] &= 0x7f;
		return;
	}

	word = (uint32) time | TIME_MARK;
	bytes[0] = (uint8) (word >> 24);
	bytes[1] = (uint8) (word >> 16);
	bytes[2] = (uint8) (word >> 8);
	bytes[3] = (uint8) word;
}

/* Tells whether all bytes are below 128. */
static bool
is_ascii(const char *s, int len)
{
	const uint64 high_bits = UINT64CONST(0x8080808080808080);
	uint64		word;

	for (; len >= (int) sizeof(word); s += sizeof(word), len -= sizeof(word))
	{
		memcpy(&word, s, sizeof(word));
		if (word & high_bits)
			return false;
	}
	for (; len > 0; s++, len--)
	{
		if (IS_HIGHBIT_SET(*s))
			return false;
	}
	return true;
}

/* Converts all of a text, or returns NULL; the result is palloc'd. */
static char *
convert_text(Oid proc, int from, int to, const char *s, int len, int *out_len)
{
	Size		size = (Size) len * MAX_CONVERSION_GROWTH + 1;
	char	   *out;

	/* the size is passed on as an int */
	if (size > PG_INT32_MAX)
		return NULL;

	out = MemoryContextAllocHuge(CurrentMemoryContext, size);
	if (pg_do_encoding_conversion_buf(proc, from, to,
									  (unsigned char *) unconstify(char *, s),
									  len, (unsigned char *) out, (int) size,
									  true) != len)
	{
		pfree(out);
		return NULL;
	}
	*out_len = strlen(out);
	return out;
}

/*
 * Gives the UTF-8 form of a text in the server encoding: the text itself where
 * it is one, else a palloc'd copy.  NULL if there is none that leads back to
 * the same bytes.
 */
const char *
digest_utf8_form(const char *s, int len, int *utf8_len)
{
	static bool looked_up = false;
	static Oid	to_utf8 = InvalidOid;
	static Oid	from_utf8 = InvalidOid;

	int			encoding = GetDatabaseEncoding();
	char	   *utf8;
	char	   *back;
	int			back_len;
	bool		same;

	*utf8_len = len;
	if (encoding == PG_UTF8 || is_ascii(s, len))
		return s;
	if (encoding == PG_SQL_ASCII)
		return NULL;

	/*
	 * A conversion of pg_catalog, whatever search_path says: the digest must
	 * not depend on who computes it.  It cannot be dropped, and a session
	 * stays in its database, so it is looked up once.
	 */
	if (!looked_up)
	{
		to_utf8 = FindDefaultConversion(PG_CATALOG_NAMESPACE,
										encoding, PG_UTF8);
		from_utf8 = FindDefaultConversion(PG_CATALOG_NAMESPACE,
										  PG_UTF8, encoding);
		looked_up = true;
	}
	if (!OidIsValid(to_utf8) || !OidIsValid(from_utf8))
		return NULL;

	utf8 = convert_text(to_utf8, encoding, PG_UTF8, s, len, utf8_len);
	if (utf8 == NULL)
		return NULL;
	back = convert_text(from_utf8, PG_UTF8, encoding, utf8, *utf8_len,
						&back_len);
	same = back != NULL && back_len == len && memcmp(back, s, len) == 0;
	if (back != NULL)
		pfree(back);
	if (!same)
	{
		pfree(utf8);
		return NULL;
	}
	return utf8;
}

/* Adds the length of the scope, the scope and the key to a hash. */
static void
add_pair(Blake2b *state, const char *scope, int scope_len,
		 const char *key, int key_len)
{
	uint8		prefix[6];

	if (scope_len < PG_UINT16_MAX)
	{
		prefix[0] = (uint8) (scope_len >> 8);
		prefix[1] = (uint8) scope_len;
		blake2b_update(state, prefix, 2);
	}
	else
	{
		prefix[0] = prefix[1] = 0xff;
		prefix[2] = (uint8) (scope_len >> 24);
		prefix[3] = (uint8) (scope_len >> 16);
		prefix[4] = (uint8) (scope_len >> 8);
		prefix[5] = (uint8) scope_len;
		blake2b_update(state, prefix, 6);
	}
	blake2b_update(state, scope, scope_len);
	blake2b_update(state, key, key_len);
}

/* Computes the digest of texts in the server encoding, of any length. */
void
digest_compute(const char *scope, int scope_len, const char *key, int key_len,
			   IdemDigest *out)
{
	Blake2b		state;
	const char *scope8;
	const char *key8 = NULL;
	int			scope8_len;
	int			key8_len;

	scope8 = digest_utf8_form(scope, scope_len, &scope8_len);
	if (scope8 != NULL)
		key8 = digest_utf8_form(key, key_len, &key8_len);

	if (scope8 != NULL && key8 != NULL)
	{
		blake2b_init(&state, sizeof(out->bytes), personal_utf8);
		add_pair(&state, scope8, scope8_len, key8, key8_len);
	}
	else
	{
		const char *encoding = GetDatabaseEncodingName();

		blake2b_init(&state, sizeof(out->bytes), personal_raw);
		blake2b_update(&state, encoding, strlen(encoding) + 1);
		add_pair(&state, scope, scope_len, key, key_len);
	}
	blake2b_final(&state, out->bytes);
	put_time(key, key_len, out->bytes);

	if (scope8 != NULL && scope8 != scope)
		pfree(unconstify(char *, scope8));
	if (key8 != NULL && key8 != key)
		pfree(unconstify(char *, key8));
}

/* SQL: idemq.digest(scope text, key text) RETURNS uuid */
Datum
idemq_digest(PG_FUNCTION_ARGS)
{
	text	   *scope = PG_GETARG_TEXT_PP(0);
	text	   *key = PG_GETARG_TEXT_PP(1);
	IdemDigest *digest = palloc(sizeof(IdemDigest));

	digest_compute(VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
				   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), digest);

	PG_FREE_IF_COPY(scope, 0);
	PG_FREE_IF_COPY(key, 1);
	PG_RETURN_UUID_P((pg_uuid_t *) digest);
}
