/*-------------------------------------------------------------------------
 *
 * reshard.h
 *	  Changing the number of shards of a consumer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_RESHARD_H
#define IDEMQ_RESHARD_H

#include "idemq.h"

#include "consumer.h"

extern bool reshard_is_due(const Consumer *consumer);
extern bool reshard_try(const Consumer *consumer);

#endif							/* IDEMQ_RESHARD_H */
