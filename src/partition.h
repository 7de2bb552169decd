/*-------------------------------------------------------------------------
 *
 * partition.h
 *	  Making partitions ahead of time, of both tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_PARTITION_H
#define IDEMQ_PARTITION_H

#include "idemq.h"

#include "parent.h"

extern bool partition_make(const Parent *parent);

#endif							/* IDEMQ_PARTITION_H */
