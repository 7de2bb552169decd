/*-------------------------------------------------------------------------
 *
 * consume.h
 *	  Fetching events, and saying what has become of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CONSUME_H
#define IDEMQ_CONSUME_H

#include "idemq.h"

#include "utils/timestamp.h"

extern int64 consume_interval(const Interval *interval);

#endif							/* IDEMQ_CONSUME_H */
