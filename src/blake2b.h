/*-------------------------------------------------------------------------
 *
 * blake2b.h
 *	  The hash function BLAKE2b (RFC 7693), unkeyed, with a personalisation.
 *
 * Pure: needs the C library's headers and nothing of the server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_BLAKE2B_H
#define IDEMQ_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

#define BLAKE2B_BLOCK		128 /* bytes that are compressed at once */
#define BLAKE2B_MAX_OUT		64	/* longest result */
#define BLAKE2B_PERSONAL	16	/* bytes of personalisation */

typedef struct Blake2b
{
	uint64_t	h[8];			/* the chain value */
	uint64_t	length;			/* bytes compressed so far */
	size_t		filled;			/* bytes that wait in block */
	size_t		outlen;			/* bytes of the result */
	uint8_t		block[BLAKE2B_BLOCK];
} Blake2b;

extern void blake2b_init(Blake2b *state, size_t outlen,
						 const uint8_t personal[BLAKE2B_PERSONAL]);
extern void blake2b_update(Blake2b *state, const void *data, size_t len);
extern void blake2b_final(Blake2b *state, uint8_t *out);

#endif							/* IDEMQ_BLAKE2B_H */
