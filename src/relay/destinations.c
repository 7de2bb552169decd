/*-------------------------------------------------------------------------
 *
 * destinations.c
 *	  Those that were built in.
 *
 *-------------------------------------------------------------------------
 */
#include "destination.h"

int64_t		destination_timeout = INT64_C(30000000);

Destination *const destinations[] = {
#ifdef HAVE_RABBITMQ
	&destination_rabbitmq,
#endif
#ifdef HAVE_KAFKA
	&destination_kafka,
#endif
#ifdef HAVE_HTTP
	&destination_http,
#endif
	&destination_stdout,
	NULL
};
