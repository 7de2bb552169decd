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

#include "parent.h"

extern void partman_register(const Parent *parent);
extern Oid	partman_make(const Parent *parent, TimestampTz lower, TimestampTz upper);

#endif							/* IDEMQ_PARTMAN_H */
