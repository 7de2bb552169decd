/*-------------------------------------------------------------------------
 *
 * idemq.h
 *	  The vocabulary that the rooms of idemq share.
 *
 * scope	who remembers: the identity of a message is (scope, key), so that
 *			several consumers of one database can each process it once.
 * key		the message's id, as the application names it.
 * digest	128 bits that stand for (scope, key); see digest.h.
 * claim	one row (scope, key, claimed_at, leaf) of idemq.processed, inserted
 *			by the transaction that may apply the effect.
 * leaf		one partition of idemq.processed that holds rows.
 * permanent leaf
 *			the leaf that the install script makes and nobody drops, at the low
 *			end of the range: it serves while there is no other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_H
#define IDEMQ_H

#include "postgres.h"

#if PG_VERSION_NUM < 150000
#error "idemq needs PostgreSQL 15 or later"
#endif

#if SIZEOF_DATUM < 8
#error "idemq needs a 64-bit server"
#endif

#define IDEMQ_SCHEMA			"idemq"
#define IDEMQ_PROCESSED			"processed"
#define IDEMQ_OUTBOX			"outbox"
#define IDEMQ_CLOCK				"clock"
#define IDEMQ_GRANTS			"grants"
#define IDEMQ_DIGEST			"digest"
#define IDEMQ_FILTER_ROW		"_filter_row"

/* in bytes; a row must stay far below TOAST_TUPLE_THRESHOLD */
#define IDEMQ_MAX_KEY			1024
#define IDEMQ_MAX_SCOPE			255

#endif							/* IDEMQ_H */
