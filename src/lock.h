/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  The classes of heavyweight locks that are idemq's own, in lock order.
 *
 * They live in the advisory lock space under values of field 4 that no SQL
 * function can reach (pg_advisory_lock uses 1 and 2), so they show up in
 * pg_locks as "advisory" with that objsubid, obey lock_timeout, and take part
 * in deadlock detection.
 *
 * ROUND	one maintenance round at a time in a database; held by a session
 *			for the length of the round.
 * KEY		the right to decide about a digest; held for microseconds, never
 *			while waiting for a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_LOCK_H
#define IDEMQ_LOCK_H

#include "idemq.h"

#include "miscadmin.h"
#include "storage/lock.h"

typedef enum IdemLockClass
{
	IDEMQ_LOCK_ROUND = 0x1D01,
	IDEMQ_LOCK_KEY = 0x1D02,
} IdemLockClass;

/* Name a lock of ours in this database. */
static inline void
lock_tag(LOCKTAG *tag, IdemLockClass class, uint64 id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id, class);
}

#endif							/* IDEMQ_LOCK_H */
