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

/* What did not work in a round, which went on. */
typedef struct DdlFailures
{
	int			n;
	char		last[256];
} DdlFailures;

extern void ddl_run(const char *sql);
extern char *ddl_name(Oid relid);
extern bool ddl_lock_to_attach(Oid parent);
extern bool ddl_lock_to_drop(Oid parent);
extern bool ddl_lock_if_free(Oid relid);
extern bool ddl_let_go(Oid relid, bool just_empty, DdlFailures *failures);

#endif							/* IDEMQ_DDL_H */
