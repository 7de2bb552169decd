/*-------------------------------------------------------------------------
 *
 * consumer_sql.h
 *	  Administration of consumers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CONSUMER_SQL_H
#define IDEMQ_CONSUMER_SQL_H

#include "idemq.h"

extern void consumer_keep_log(void);

#endif							/* IDEMQ_CONSUMER_SQL_H */
