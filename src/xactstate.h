/*-------------------------------------------------------------------------
 *
 * xactstate.h
 *	  What this transaction has done so far, right over savepoints.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_XACTSTATE_H
#define IDEMQ_XACTSTATE_H

#include "idemq.h"

extern void xactstate_init(void);
extern void xactstate_note_claim(const text *scope, const text *key);
extern bool xactstate_last_claim(const text **scope, const text **key);
extern uint64 xactstate_claim_number(void);
extern void xactstate_tell(void);

#endif							/* IDEMQ_XACTSTATE_H */
