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

#include "expire.h"

typedef enum MaintainDuty
{
	DUTY_CLOCK,					/* note what time it is believed to be */
	DUTY_MAKE,					/* make partitions ahead */
	DUTY_EXPIRE,				/* drop partitions that are past retention */
	DUTY_FILTER,				/* build the filter */
} MaintainDuty;

#define MAINTAIN_DUTIES		(DUTY_FILTER + 1)

extern bool maintain_step(ExpireRound *round, MaintainDuty duty);
extern const char *maintain_duty_name(MaintainDuty duty);
extern bool maintain_begin_round(bool wait);
extern void maintain_end_round(void);

#endif							/* IDEMQ_MAINTAIN_H */
