/*-------------------------------------------------------------------------
 *
 * guc.h
 *	  The settings.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_GUC_H
#define IDEMQ_GUC_H

#include "idemq.h"

typedef enum PartitionManager
{
	MANAGER_BUILTIN,
	MANAGER_PG_PARTMAN,
} PartitionManager;

extern int	idemq_dead_retention;	/* s */
extern int	idemq_drop_lock_timeout;	/* ms */
extern bool idemq_durable_claims;
extern bool idemq_expiry;
extern int	idemq_filter_memory;	/* kB */
extern char *idemq_instance;
extern int	idemq_max_attempts;
extern int	idemq_naptime;		/* s */
extern int	idemq_outbox_retention; /* s */
extern int	idemq_partition_interval;	/* s */
extern int	idemq_partition_manager;
extern int	idemq_premake;
extern int	idemq_retention;	/* s */
extern char *idemq_retry_ladder;
extern char *idemq_scope;

extern void guc_define(void);
extern int	guc_parse_ladder(const char *ladder, int64 **steps);

/* idemq.retention in microseconds. */
static inline int64
guc_retention(void)
{
	return idemq_retention * INT64CONST(1000000);
}

/* idemq.outbox_retention in microseconds. */
static inline int64
guc_outbox_retention(void)
{
	return idemq_outbox_retention * INT64CONST(1000000);
}

/* idemq.dead_retention in microseconds. */
static inline int64
guc_dead_retention(void)
{
	return idemq_dead_retention * INT64CONST(1000000);
}

#endif							/* IDEMQ_GUC_H */
