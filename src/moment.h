/*-------------------------------------------------------------------------
 *
 * moment.h
 *	  Moments of the log: snapshots that can be stored.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_MOMENT_H
#define IDEMQ_MOMENT_H

#include "idemq.h"

#include "access/transam.h"
#include "access/xlogdefs.h"
#include "utils/snapshot.h"

/* The SQL type pg_snapshot, which no header of the server declares. */
typedef struct StoredSnapshot
{
	int32		vl_len_;
	uint32		nxip;
	FullTransactionId xmin;
	FullTransactionId xmax;
	FullTransactionId xip[FLEXIBLE_ARRAY_MEMBER];	/* ascending */
} StoredSnapshot;

/* A snapshot, and what bounds the rows that it does not show. */
typedef struct Moment
{
	StoredSnapshot *snapshot;
	uint64		next;			/* next xid, read after the snapshot was taken */
	int64		seq;			/* last number drawn, read before */
	int64		top;			/* last number drawn, read after */
	XLogRecPtr	lsn;			/* what it shows was logged before */
} Moment;

extern int64 moment_last_number(void);
extern void moment_take(Moment *moment);
extern void moment_of_nothing(Moment *moment);
extern void moment_of_everything(Moment *moment);
extern void moment_copy(Moment *to, const Moment *from);
extern bool moment_equal(const Moment *a, const Moment *b);
extern bool moment_shows(const Moment *moment, uint64 xid);

#endif							/* IDEMQ_MOMENT_H */
