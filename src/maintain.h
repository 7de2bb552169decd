/*-------------------------------------------------------------------------
 *
 * maintain.h
 *	  Partitions: making them ahead of time, and dropping those that expired.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_MAINTAIN_H
#define IDEMQ_MAINTAIN_H

#include "idemq.h"

#include "catalog.h"

typedef enum MaintainDuty
{
	DUTY_CLOCK,					/* note what time it is believed to be */
	DUTY_MAKE,					/* make partitions ahead */
	DUTY_EXPIRE,				/* drop partitions that are past retention */
} MaintainDuty;

#define MAINTAIN_DUTIES		(DUTY_EXPIRE + 1)
#define MAINTAIN_SKIPPED	256

/* One round, over several transactions. */
typedef struct MaintainRound
{
	int			ndropped;
	Oid			condemned;		/* found expired, to be dropped next */
	Oid			at_hand;		/* what the present step is about */
	bool		parent_busy;	/* its lock was not to be had in time */
	int			nfailed;		/* drops that did not work */
	char		error[256];		/* of the last one that did not */
	int			nskipped;
	Oid			skipped[MAINTAIN_SKIPPED];	/* leaves left for the next round */
} MaintainRound;

extern bool maintain_step(MaintainRound *round, MaintainDuty duty);
extern void maintain_skip(MaintainRound *round);
extern const char *maintain_duty_name(MaintainDuty duty);
extern bool maintain_begin_round(bool wait);
extern void maintain_end_round(void);
extern int64 maintain_retention(void);
extern bool maintain_leaf_is_due(const LeafSet *set, const Leaf *leaf,
								 TimestampTz trusted);

#endif							/* IDEMQ_MAINTAIN_H */
