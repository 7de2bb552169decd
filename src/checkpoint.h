/*-------------------------------------------------------------------------
 *
 * checkpoint.h
 *	  Moments of the log that consumers can go back to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CHECKPOINT_H
#define IDEMQ_CHECKPOINT_H

#include "idemq.h"

extern bool checkpoint_step(void);

#endif							/* IDEMQ_CHECKPOINT_H */
