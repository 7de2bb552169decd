/*-------------------------------------------------------------------------
 *
 * blake2b.c
 *	  The hash function BLAKE2b (RFC 7693), unkeyed, with a personalisation.
 *
 * Written from the RFC and from the parameter block of the BLAKE2 paper (the
 * RFC leaves salt and personalisation zero).  Nothing is allocated, nothing
 * can fail, and nothing of the server is needed, so this file compiles alone
 * for fuzzing.
 *
 * Words are put together from bytes, so byte order and alignment of the
 * machine do not matter; compilers make a single load of it where they can.
 * The message is not secret here (no key), so the state is not wiped.
 *
 *-------------------------------------------------------------------------
 */
#include "blake2b.h"

#include <string.h>

/* The fractional parts of the square roots of the first eight primes */
static const uint64_t blake2b_iv[8] = {
	UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b),
	UINT64_C(0x3c6ef372fe94f82b), UINT64_C(0xa54ff53a5f1d36f1),
	UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
	UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179)
};

/* Reads a little-endian word, aligned or not. */
static inline uint64_t
load_word(const uint8_t *p)
{
	return ((uint64_t) p[0]) | ((uint64_t) p[1] << 8) |
		((uint64_t) p[2] << 16) | ((uint64_t) p[3] << 24) |
		((uint64_t) p[4] << 32) | ((uint64_t) p[5] << 40) |
		((uint64_t) p[6] << 48) | ((uint64_t) p[7] << 56);
}

static inline uint64_t
rotate_right(uint64_t w, int n)
{
	return (w >> n) | (w << (64 - n));
}

/* The mixing function G of two message words into one column or diagonal */
#define MIX(a, b, c, d, x, y) \
	do { \
		a += b + (x); \
		d = rotate_right(d ^ a, 32); \
		c += d; \
		b = rotate_right(b ^ c, 24); \
		a += b + (y); \
		d = rotate_right(d ^ a, 16); \
		c += d; \
		b = rotate_right(b ^ c, 63); \
	} while (0)

/*
 * One round: columns, then diagonals.  The arguments are a row of the RFC's
 * SIGMA; with constants for subscripts the words stay out of an index.
 */
#define ROUND(s0, s1, s2, s3, s4, s5, s6, s7, \
			  s8, s9, s10, s11, s12, s13, s14, s15) \
	do { \
		MIX(v0, v4, v8, v12, m[s0], m[s1]); \
		MIX(v1, v5, v9, v13, m[s2], m[s3]); \
		MIX(v2, v6, v10, v14, m[s4], m[s5]); \
		MIX(v3, v7, v11, v15, m[s6], m[s7]); \
		MIX(v0, v5, v10, v15, m[s8], m[s9]); \
		MIX(v1, v6, v11, v12, m[s10], m[s11]); \
		MIX(v2, v7, v8, v13, m[s12], m[s13]); \
		MIX(v3, v4, v9, v14, m[s14], m[s15]); \
	} while (0)

/* Works one block into the chain value; length counts it in already. */
static void
compress_block(Blake2b *state, const uint8_t *block, int last)
{
	uint64_t	m[16];
	uint64_t   *h = state->h;
	uint64_t	v0 = h[0],
				v1 = h[1],
				v2 = h[2],
				v3 = h[3],
				v4 = h[4],
				v5 = h[5],
				v6 = h[6],
				v7 = h[7];
	uint64_t	v8 = blake2b_iv[0],
				v9 = blake2b_iv[1],
				v10 = blake2b_iv[2],
				v11 = blake2b_iv[3],
				v12 = blake2b_iv[4] ^ state->length,
				v13 = blake2b_iv[5],	/* no message has 2^64 bytes */
				v14 = last ? ~blake2b_iv[6] : blake2b_iv[6],
				v15 = blake2b_iv[7];

	for (int i = 0; i < 16; i++)
		m[i] = load_word(block + 8 * i);

	ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
	ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4);
	ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8);
	ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13);
	ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9);
	ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11);
	ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10);
	ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5);
	ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0);
	ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);

	h[0] ^= v0 ^ v8;
	h[1] ^= v1 ^ v9;
	h[2] ^= v2 ^ v10;
	h[3] ^= v3 ^ v11;
	h[4] ^= v4 ^ v12;
	h[5] ^= v5 ^ v13;
	h[6] ^= v6 ^ v14;
	h[7] ^= v7 ^ v15;
}

/* Starts a hash of outlen bytes, 1 to 64. */
void
blake2b_init(Blake2b *state, size_t outlen,
			 const uint8_t personal[BLAKE2B_PERSONAL])
{
	/* the parameter block: fanout 1, depth 1, no key, no salt */
	memcpy(state->h, blake2b_iv, sizeof(state->h));
	state->h[0] ^= UINT64_C(0x01010000) ^ outlen;
	state->h[6] ^= load_word(personal);
	state->h[7] ^= load_word(personal + 8);
	state->length = 0;
	state->filled = 0;
	state->outlen = outlen;
}

/* Adds len bytes; data may be NULL if len is 0. */
void
blake2b_update(Blake2b *state, const void *data, size_t len)
{
	const uint8_t *p = data;

	if (len == 0)
		return;

	/* a full block waits until more comes: the last one is marked as such */
	if (len > BLAKE2B_BLOCK - state->filled)
	{
		size_t		gap = BLAKE2B_BLOCK - state->filled;

		memcpy(state->block + state->filled, p, gap);
		p += gap;
		len -= gap;
		state->length += BLAKE2B_BLOCK;
		compress_block(state, state->block, 0);

		while (len > BLAKE2B_BLOCK)
		{
			state->length += BLAKE2B_BLOCK;
			compress_block(state, p, 0);
			p += BLAKE2B_BLOCK;
			len -= BLAKE2B_BLOCK;
		}
		state->filled = 0;
	}

	memcpy(state->block + state->filled, p, len);
	state->filled += len;
}

/* Ends the hash and writes its outlen bytes. */
void
blake2b_final(Blake2b *state, uint8_t *out)
{
	memset(state->block + state->filled, 0, BLAKE2B_BLOCK - state->filled);
	state->length += state->filled;
	compress_block(state, state->block, 1);

	for (size_t i = 0; i < state->outlen; i++)
		out[i] = (uint8_t) (state->h[i / 8] >> (8 * (i % 8)));
}
