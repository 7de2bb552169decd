/*-------------------------------------------------------------------------
 *
 * idemq.c
 *	  Where the library begins.
 *
 *-------------------------------------------------------------------------
 */
#include "idemq.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "catalog.h"
#include "filter.h"
#include "grants.h"
#include "guc.h"
#include "outbox.h"
#include "shmem.h"
#include "worker.h"
#include "xactstate.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/* Called when the library is loaded, by the postmaster or by a session. */
void
_PG_init(void)
{
	guc_define();
	catalog_init();
	grants_init();
	outbox_init();
	xactstate_init();

	if (!process_shared_preload_libraries_in_progress)
		return;
	shmem_init();
	filter_init();
	worker_register_launcher();
}
