/*-------------------------------------------------------------------------
 *
 * grants.h
 *	  Who may claim in which scope, and consume for which consumer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_GRANTS_H
#define IDEMQ_GRANTS_H

#include "idemq.h"

extern void grants_init(void);
extern void grants_require_scope(const char *scope, int len, Oid function);
extern void grants_require_consumer(Oid user, const char *consumer, Oid function);
extern void grants_require_admin(const char *what, Oid function);

#endif							/* IDEMQ_GRANTS_H */
