/*-------------------------------------------------------------------------
 *
 * parent.h
 *	  The two tables that are partitioned by time, and what differs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_PARENT_H
#define IDEMQ_PARENT_H

#include "idemq.h"

#include "datatype/timestamp.h"

#include "clock.h"

/* One partition, by its bounds. */
typedef struct Span
{
	Oid			oid;
	TimestampTz lower;			/* -infinity for MINVALUE */
	TimestampTz upper;			/* infinity for MAXVALUE */
	bool		permanent;		/* belongs to the extension */
	bool		takes_all;		/* a DEFAULT partition: without bounds */
} Span;

/* All partitions of a table, newest first. */
typedef struct Spans
{
	Oid			parent;
	int			n;
	Span	   *span;
} Spans;

#define PARENT_INDEXES	2

/* One of the two tables. */
typedef struct Parent
{
	const char *name;
	bool		replica_identity;	/* its rows are deleted */
	struct
	{
		const char *suffix;		/* of its name; NULL: no such index */
		const char *unique;
		const char *keys;
		const char *with;		/* storage parameters */
	}			indexes[PARENT_INDEXES];	/* that each partition has */
	bool		(*read) (const char *name, bool wait, Spans *spans);
} Parent;

extern const Parent parent_processed;
extern const Parent parent_outbox;

extern bool parent_spans(const Parent *parent, bool wait, Spans *spans);
extern const Span *parent_span_for(const Spans *spans, TimestampTz stamp);
extern TimestampTz parent_trusted_time(bool *may_expire);

#endif							/* IDEMQ_PARENT_H */
