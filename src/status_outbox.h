/*-------------------------------------------------------------------------
 *
 * status_outbox.h
 *	  The checks of idem_status() that are about the outbox.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_STATUS_OUTBOX_H
#define IDEMQ_STATUS_OUTBOX_H

#include "idemq.h"

#include "fmgr.h"

/* Puts one check into the result. */
typedef void (*StatusPut) (FunctionCallInfo fcinfo, const char *name, const char *status,
						   const char *hint, const char *detail);

extern void status_outbox(FunctionCallInfo fcinfo, StatusPut put);

#endif							/* IDEMQ_STATUS_OUTBOX_H */
