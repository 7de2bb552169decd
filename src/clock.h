/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The wall clock, the time that passed, and what to believe of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CLOCK_H
#define IDEMQ_CLOCK_H

#include "idemq.h"

#include "datatype/timestamp.h"

/* What the last maintenance round believed, and when: idemq.clock's row. */
typedef struct ClockBase
{
	bool		known;			/* is there a row? */
	bool		same_boot;		/* was it written since this machine booted? */
	TimestampTz high_water;		/* the trusted time then */
	int64		monotonic;		/* the monotonic clock then, in us */
	TimestampTz hold_until;		/* nothing expires before it is this time */
} ClockBase;

/* the longest outage that a new boot may hide, unless retention is longer */
#define CLOCK_OUTAGE			USECS_PER_DAY

extern TimestampTz clock_wall(void);
extern int64 clock_monotonic(void);
extern const char *clock_boot_id(void);
extern TimestampTz clock_floor(const ClockBase *base);
extern TimestampTz clock_trusted(const ClockBase *base, int64 retention_us);

#endif							/* IDEMQ_CLOCK_H */
