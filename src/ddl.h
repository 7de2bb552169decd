/*-------------------------------------------------------------------------
 *
 * ddl.h
 *	  Running DDL for maintenance.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_DDL_H
#define IDEMQ_DDL_H

#include "idemq.h"

extern void ddl_run(const char *sql);
extern char *ddl_name(Oid relid);
extern ErrorData *ddl_attempt(void (*action) (Oid relid), Oid relid);
extern bool ddl_lock_to_attach(Oid parent);
extern bool ddl_lock_to_drop(Oid parent);

#endif							/* IDEMQ_DDL_H */
