/*-------------------------------------------------------------------------
 *
 * durable.h
 *	  What one tells the world must outlive a power cut, and a failover.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_DURABLE_H
#define IDEMQ_DURABLE_H

#include "idemq.h"

#include "access/xlogdefs.h"

extern void durable_wait(XLogRecPtr lsn);

#endif							/* IDEMQ_DURABLE_H */
