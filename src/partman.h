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

extern void partman_make(Oid parent);

#endif							/* IDEMQ_PARTMAN_H */
