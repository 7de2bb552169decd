/*-------------------------------------------------------------------------
 *
 * expire.h
 *	  Letting go of partitions that are past their retention.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_EXPIRE_H
#define IDEMQ_EXPIRE_H

#include "idemq.h"

#include "access/xlogdefs.h"
#include "storage/block.h"

#include "catalog.h"
#include "ddl.h"

#define EXPIRE_SKIPPED		256

/* Where a leaf ended when it was read. */
typedef struct LeafEnd
{
	BlockNumber nblocks;
	XLogRecPtr	lsn;			/* of the last block */
} LeafEnd;

/* One round, over several transactions. */
typedef struct ExpireRound
{
	int			ndropped;
	Oid			condemned;		/* found expired, to be dropped next */
	Oid			at_hand;		/* what the present step is about */
	bool		parent_busy;	/* its lock was not to be had in time */
	LeafEnd		end;			/* of the condemned one */
	int			nskipped;
	Oid			skipped[EXPIRE_SKIPPED];	/* leaves left for the next round */
} ExpireRound;

extern bool expire_step(ExpireRound *round, DdlFailures *failures);
extern bool expire_is_due(const LeafSet *set, const Leaf *leaf, TimestampTz trusted);

#endif							/* IDEMQ_EXPIRE_H */
