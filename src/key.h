/*-------------------------------------------------------------------------
 *
 * key.h
 *	  Composite keys: several texts as one, unambiguously.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_KEY_H
#define IDEMQ_KEY_H

#include "idemq.h"

extern text *key_compose(const text *scope, const text *key);

#endif							/* IDEMQ_KEY_H */
