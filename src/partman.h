/*-------------------------------------------------------------------------
 *
 * partman.h
 *	  Letting pg_partman make the partitions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_PARTMAN_H
#define IDEMQ_PARTMAN_H

#include "idemq.h"

#include "datatype/timestamp.h"

extern void partman_register(void);
extern Oid	partman_make(TimestampTz lower, TimestampTz upper);

#endif							/* IDEMQ_PARTMAN_H */
