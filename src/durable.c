/*-------------------------------------------------------------------------
 *
 * durable.c
 *	  What one tells the world must outlive a power cut, and a failover.
 *
 * A snapshot shows transactions that committed with synchronous_commit = off and
 * can still be lost, and such as standbys have not confirmed yet.  Before what
 * they wrote is handed out their WAL is flushed here and, where synchronous
 * standbys are configured, there: whatever synchronous_commit of the session is,
 * which is about its own commit.
 *
 * The server's function for the latter obeys that setting, and takes a cancel for
 * leave to go on.  So we look for ourselves.
 *
 *-------------------------------------------------------------------------
 */
#include "durable.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "testpoint.h"

/* how often we look whether the standbys have confirmed (ms) */
#define STANDBY_POLL	1

/* Have the synchronous standbys flushed up to there, or are there none? */
static bool
standbys_have(XLogRecPtr lsn)
{
	bool		done;

	/* not our own copy of the setting, which is as old as the last command */
	if (max_wal_senders == 0 || !compat_sync_standbys_defined(WalSndCtl))
		return true;
	LWLockAcquire(SyncRepLock, LW_SHARED);
	done = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH] >= lsn;
	LWLockRelease(SyncRepLock);
	return done;
}

/* Wait until everything up to there will be found again. */
void
durable_wait(XLogRecPtr lsn)
{
	if (TEST_WITHOUT("flush"))
		return;
	XLogFlush(lsn);
	while (!standbys_have(lsn))
	{
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 STANDBY_POLL, WAIT_EVENT_SYNC_REP);
		ResetLatch(MyLatch);
	}
}
