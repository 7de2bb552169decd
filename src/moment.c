/*-------------------------------------------------------------------------
 *
 * moment.c
 *	  Moments of the log: snapshots that can be stored.
 *
 * A consumer's window lies between two of them (window.c).  A snapshot alone says
 * which transactions' rows it shows.  To find the rows that it does not
 * show without reading the log, three numbers are noted with it, in this order:
 *
 *	seq		the last number that was drawn, before the snapshot
 *	next	the next xid to be assigned, after the snapshot
 *	top		the last number that was drawn, after that
 *	lsn		where WAL ended, after that
 *
 * A writer's xid is assigned before its number is drawn (outbox.c).  So an xid of
 * next or above draws numbers above seq only, and what the snapshot shows has
 * numbers up to top, and is safe when WAL is up to lsn.
 *
 * The snapshot is the server's own, with top-level xids in 64 bits; it is never
 * overflowed in that respect, and prepared transactions are in it.  One thing is
 * added: the reading transaction's own xid counts as in progress, which a
 * snapshot of the server leaves out.  (If it has none yet, it will get one of next
 * or above.)  Otherwise a consumer that fetches, emits
 * and commits would never be given its own event.
 *
 *-------------------------------------------------------------------------
 */
#include "moment.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/sequence.h"
#include "executor/spi.h"
#include "lib/qunique.h"
#include "port/pg_bitutils.h"
#include "utils/snapmgr.h"

#include "spi_plan.h"
#include "testpoint.h"

#define SNAPSHOT_SIZE(nxip) \
	(offsetof(StoredSnapshot, xip) + sizeof(FullTransactionId) * (nxip))

/* The last number that was drawn for an event. */
int64
moment_last_number(void)
{
	static SpiPlan plan = SPI_PLAN_NO_ARGS("SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM idemq.outbox_seq");
	bool		isnull;

	spi_plan_run(&plan, NULL, NULL, SPI_OK_SELECT);
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

/* An xid that is running now or has run lately, in 64 bits. */
static FullTransactionId
widen(TransactionId xid, FullTransactionId next)
{
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

/* In ascending order. */
static int
compare_xids(const void *a, const void *b)
{
	uint64		x = U64FromFullTransactionId(*(const FullTransactionId *) a);
	uint64		y = U64FromFullTransactionId(*(const FullTransactionId *) b);

	return (x > y) - (x < y);
}

/* An empty snapshot. */
static StoredSnapshot *
make_snapshot(uint32 nxip, FullTransactionId xmin, FullTransactionId xmax)
{
	StoredSnapshot *stored = palloc(SNAPSHOT_SIZE(nxip));

	stored->nxip = nxip;
	stored->xmin = xmin;
	stored->xmax = xmax;
	SET_VARSIZE(stored, SNAPSHOT_SIZE(nxip));
	return stored;
}

/* The present moment, as this transaction may store it. */
void
moment_take(Moment *moment)
{
	FullTransactionId own = GetTopFullTransactionIdIfAny();
	FullTransactionId next;
	Snapshot	snapshot;
	StoredSnapshot *stored;
	uint32		n = 0;

	moment->seq = moment_last_number();
	snapshot = GetLatestSnapshot();
	next = ReadNextFullTransactionId();
	stored = make_snapshot(snapshot->xcnt + 1, widen(snapshot->xmin, next),
						   widen(snapshot->xmax, next));
	for (uint32 i = 0; i < snapshot->xcnt; i++)
		stored->xip[n++] = widen(snapshot->xip[i], next);
	if (FullTransactionIdIsValid(own) && FullTransactionIdPrecedes(own, stored->xmax) &&
		!TEST_WITHOUT("own_xid"))
		stored->xip[n++] = own;

	/* while a transaction is being prepared, it is in the snapshot twice */
	qsort(stored->xip, n, sizeof(FullTransactionId), compare_xids);
	n = qunique(stored->xip, n, sizeof(FullTransactionId), compare_xids);
	stored->nxip = n;
	SET_VARSIZE(stored, SNAPSHOT_SIZE(n));
	moment->snapshot = stored;
	moment->next = U64FromFullTransactionId(next);
	TEST_POINT("moment-taken");
	moment->top = moment_last_number();
	moment->lsn = GetXLogInsertRecPtr();
	if (TEST_WITHOUT("seq_floor"))
		moment->seq = moment->top;
}

/* A moment that shows nothing. */
void
moment_of_nothing(Moment *moment)
{
	FullTransactionId first = FullTransactionIdFromU64(FirstNormalTransactionId);

	moment->snapshot = make_snapshot(0, first, first);
	moment->next = FirstNormalTransactionId;
	moment->seq = 0;
	moment->top = 0;
	moment->lsn = InvalidXLogRecPtr;
}

/* A moment that shows all there is and will be. */
void
moment_of_everything(Moment *moment)
{
	FullTransactionId last = FullTransactionIdFromU64(PG_INT64_MAX);

	moment->snapshot = make_snapshot(0, last, last);
	moment->next = PG_INT64_MAX;
	moment->seq = PG_INT64_MAX;
	moment->top = PG_INT64_MAX;
	moment->lsn = InvalidXLogRecPtr;
}

/* A copy in the present memory context. */
void
moment_copy(Moment *to, const Moment *from)
{
	*to = *from;
	to->snapshot = palloc(VARSIZE(from->snapshot));
	memcpy(to->snapshot, from->snapshot, VARSIZE(from->snapshot));
}

/* Do two moments stand for the same? */
bool
moment_equal(const Moment *a, const Moment *b)
{
	return a->next == b->next && VARSIZE(a->snapshot) == VARSIZE(b->snapshot) &&
		memcmp(a->snapshot, b->snapshot, VARSIZE(a->snapshot)) == 0;
}

/* Had a transaction ended then?  Whether it committed is for others to say. */
bool
moment_shows(const Moment *moment, uint64 xid)
{
	const StoredSnapshot *stored = moment->snapshot;
	FullTransactionId value = FullTransactionIdFromU64(xid);

	if (FullTransactionIdPrecedes(value, stored->xmin))
		return true;
	if (!FullTransactionIdPrecedes(value, stored->xmax))
		return false;
	return bsearch(&value, stored->xip, stored->nxip, sizeof(FullTransactionId),
				   compare_xids) == NULL;
}
