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
 * LOG		keeps the partitions of the log: shared by who makes a position
 *			(subscribe, seek, adopt), exclusive for who takes a partition
 *			away; until the end of the transaction.
 * SHARD	the right to change the state of one shard of a consumer, named by
 *			the consumer's number and the shard; until the end of the
 *			transaction.  Several are taken in ascending order.
 * KEY		the right to decide about a digest; held for microseconds, never
 *			while waiting for a transaction.
 *
 * Writers keep their locks on partitions to the end of their transaction, and
 * may take any of these after them.  So whoever takes a partition away locks it
 * last, and waits for none of these while it has it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_LOCK_H
#define IDEMQ_LOCK_H

#include "idemq.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/resowner.h"

typedef enum IdemLockClass
{
	IDEMQ_LOCK_ROUND = 0x1D01,
	IDEMQ_LOCK_KEY = 0x1D02,
	IDEMQ_LOCK_SHARD = 0x1D03,
	IDEMQ_LOCK_LOG = 0x1D04,
} IdemLockClass;

/* Name a lock of ours in this database. */
static inline void
lock_tag(LOCKTAG *tag, IdemLockClass class, uint64 id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id, class);
}

/*
 * Take a lock that the (sub)transaction owns.  A cursor gives up what was locked
 * through it when it fails, though what it has written before may live on.
 * Without wait, false if somebody has it.
 */
static inline bool
lock_take(const LOCKTAG *tag, LOCKMODE mode, bool wait)
{
	ResourceOwner owner = CurrentResourceOwner;
	LockAcquireResult result;

	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, mode, false, !wait);
	CurrentResourceOwner = owner;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/* Give such a lock up before the transaction ends. */
static inline void
lock_give_up(const LOCKTAG *tag, LOCKMODE mode)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(tag, mode, false);
	CurrentResourceOwner = owner;
}

/* What the lock of a shard is called. */
static inline uint64
lock_shard_id(int32 consumer, int32 shard)
{
	return (uint64) (uint32) consumer << 32 | (uint32) shard;
}

#endif							/* IDEMQ_LOCK_H */
