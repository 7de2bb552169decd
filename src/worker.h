/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  What runs by itself: the launcher and its workers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_WORKER_H
#define IDEMQ_WORKER_H

#include "idemq.h"

extern void worker_register_launcher(void);

extern PGDLLEXPORT void idemq_launcher_main(Datum arg);
extern PGDLLEXPORT void idemq_worker_main(Datum arg);

#endif							/* IDEMQ_WORKER_H */
