/*-------------------------------------------------------------------------
 *
 * partition.h
 *	  Making partitions ahead of time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_PARTITION_H
#define IDEMQ_PARTITION_H

#include "idemq.h"

extern bool partition_make(void);

#endif							/* IDEMQ_PARTITION_H */
