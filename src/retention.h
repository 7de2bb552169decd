/*-------------------------------------------------------------------------
 *
 * retention.h
 *	  Letting go of what is past its time in the outbox.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_RETENTION_H
#define IDEMQ_RETENTION_H

#include "idemq.h"

#include "ddl.h"
#include "parent.h"

/* One round, over several transactions. */
typedef struct RetentionRound
{
	bool		begun;
	TimestampTz upto;			/* partitions that end by then were dealt with */
	int			nlet_go;
} RetentionRound;

extern bool retention_is_due(const Spans *spans, const Span *span, TimestampTz trusted,
							 TimestampTz stamp);
extern bool retention_step(RetentionRound *round, DdlFailures *failures);
extern bool retention_dead_step(void);

#endif							/* IDEMQ_RETENTION_H */
