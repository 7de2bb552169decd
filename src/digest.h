/*-------------------------------------------------------------------------
 *
 * digest.h
 *	  The 128 bits that stand for a scope and a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_DIGEST_H
#define IDEMQ_DIGEST_H

#include "postgres.h"

/* A uuid to SQL: the same bytes, in the same order. */
typedef struct IdemDigest
{
	uint8		bytes[16];
} IdemDigest;

/* Compares two digests as the type uuid does. */
static inline int
digest_cmp(const IdemDigest *a, const IdemDigest *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

/*
 * Half 0 or 1 of a digest, for hash tables of this machine.  Half 0 may begin
 * with a time; half 1 is hash, whatever the key.
 */
static inline uint64
digest_half(const IdemDigest *digest, int half)
{
	uint64		word;

	memcpy(&word, digest->bytes + half * sizeof(word), sizeof(word));
	return word;
}

/* What to lock for a digest: equally spread, whatever the keys. */
static inline uint64
digest_lock_bits(const IdemDigest *digest)
{
	return digest_half(digest, 1);
}

extern void digest_compute(const char *scope, int scope_len,
						   const char *key, int key_len,
						   IdemDigest *out);
extern const char *digest_utf8_form(const char *s, int len, int *utf8_len);

#endif							/* IDEMQ_DIGEST_H */
