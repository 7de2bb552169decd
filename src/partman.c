/*-------------------------------------------------------------------------
 *
 * partman.c
 *	  Letting pg_partman make the partitions.
 *
 *-------------------------------------------------------------------------
 */
#include "partman.h"

/* Have pg_partman make what is missing. */
void
partman_make(Oid parent)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("not there yet")));
}
