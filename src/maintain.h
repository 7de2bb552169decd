/*-------------------------------------------------------------------------
 *
 * maintain.h
 *	  Maintenance rounds: what is done for the tables, and by whom.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_MAINTAIN_H
#define IDEMQ_MAINTAIN_H

#include "idemq.h"

#include "advance.h"
#include "ddl.h"
#include "expire.h"
#include "retention.h"
#include "turn.h"

/* In this order: creations before drops, and last what may take long. */
typedef enum MaintainDuty
{
	DUTY_CLOCK,					/* note what time it is believed to be */
	DUTY_MAKE,					/* make partitions ahead */
	DUTY_MAKE_LOG,				/* the same for the log */
	DUTY_ADVANCE,				/* move idle consumers along */
	DUTY_CHECKPOINT,			/* note where the log is */
	DUTY_TURN,					/* begin another ledger */
	DUTY_EXPIRE,				/* drop partitions that are past retention */
	DUTY_RETENTION,				/* the same for the log */
	DUTY_DEAD,					/* take old dead letters away */
	DUTY_FILTER,				/* build the filter */
} MaintainDuty;

#define MAINTAIN_DUTIES		(DUTY_FILTER + 1)

/* What one round has come to, of one duty. */
typedef struct MaintainRound
{
	ExpireRound expire;
	RetentionRound retention;
	AdvanceRound advance;
	TurnRound	turn;
	DdlFailures failures;
} MaintainRound;

extern bool maintain_is_wanted(MaintainDuty duty, bool in_use, bool log_in_use);
extern bool maintain_lets_go(MaintainDuty duty);
extern bool maintain_step(MaintainRound *round, MaintainDuty duty);
extern bool maintain_begin_round(bool wait);
extern void maintain_end_round(void);

#endif							/* IDEMQ_MAINTAIN_H */
