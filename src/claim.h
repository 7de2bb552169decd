/*-------------------------------------------------------------------------
 *
 * claim.h
 *	  The claim of a message.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CLAIM_H
#define IDEMQ_CLAIM_H

#include "idemq.h"

#include "datatype/timestamp.h"

#include "digest.h"
#include "stats.h"

typedef enum ClaimAnswer
{
	CLAIM_CLAIMED,
	CLAIM_DUPLICATE,
	CLAIM_MINE,
	CLAIM_BUSY,
} ClaimAnswer;

/* The identity of a message. */
typedef struct ClaimKey
{
	Datum		scope;			/* text */
	Datum		key;			/* text */
	IdemDigest	digest;
	ScopeStats *stats;
} ClaimKey;

extern void claim_expect(const IdemDigest *digest);
extern ClaimAnswer claim_take(const ClaimKey *key, bool wait);
extern bool claim_forget(const ClaimKey *key);
extern bool claim_seen(const ClaimKey *key, TimestampTz *claimed_at);

#endif							/* IDEMQ_CLAIM_H */
