/*-------------------------------------------------------------------------
 *
 * testpoint.h
 *	  Hooks of the test build: points at which a race test stops, and
 *	  protections that it takes out to see whether it would notice.
 *
 * Without IDEMQ_TEST all of this compiles to nothing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_TESTPOINT_H
#define IDEMQ_TESTPOINT_H

#include "idemq.h"

#ifdef IDEMQ_TEST
extern void testpoint_define_gucs(void);
extern void testpoint_reach(const char *name);
extern bool testpoint_without(const char *protection);
extern int64 testpoint_clock_offset(void);

#define TEST_POINT(name)		testpoint_reach(name)
#define TEST_WITHOUT(name)		testpoint_without(name)
#define TEST_CLOCK_OFFSET()		testpoint_clock_offset()
#else
#define TEST_POINT(name)		((void) 0)
#define TEST_WITHOUT(name)		false
#define TEST_CLOCK_OFFSET()		INT64CONST(0)
#endif

#endif							/* IDEMQ_TESTPOINT_H */
