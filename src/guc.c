/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  The settings.
 *
 *-------------------------------------------------------------------------
 */
#include "guc.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "testpoint.h"

int			idemq_drop_lock_timeout = 200;
bool		idemq_durable_claims = true;
bool		idemq_expiry = true;
int			idemq_filter_memory = 65536;
int			idemq_naptime = 10;
int			idemq_partition_interval = 86400;
int			idemq_partition_manager = MANAGER_BUILTIN;
int			idemq_premake = 4;
int			idemq_retention = 7 * 86400;
char	   *idemq_scope = NULL;

static const struct config_enum_entry partition_managers[] = {
	{"builtin", MANAGER_BUILTIN, false},
	{"pg_partman", MANAGER_PG_PARTMAN, false},
	{NULL, 0, false}
};

/* A scope is stored with every key. */
static bool
check_scope(char **newval, void **extra, GucSource source)
{
	if (strlen(*newval) > IDEMQ_MAX_SCOPE)
	{
		GUC_check_errcode(ERRCODE_INVALID_PARAMETER_VALUE);
		GUC_check_errdetail("A scope has at most %d bytes.", IDEMQ_MAX_SCOPE);
		GUC_check_errhint("Name the consumer, not the message.");
		return false;
	}
	return true;
}

/* Refuse zero, and the -1 that switches things off elsewhere. */
static bool
check_positive(int *newval, void **extra, GucSource source)
{
	if (*newval > 0)
		return true;
	GUC_check_errcode(ERRCODE_INVALID_PARAMETER_VALUE);
	GUC_check_errdetail("It must be greater than zero.");
	GUC_check_errhint("idemq.expiry = off holds every key; nothing else can be switched off.");
	return false;
}

/* Make every setting known. */
void
guc_define(void)
{
	DefineCustomIntVariable("idemq.drop_lock_timeout",
							"How long the worker may queue for a lock when it drops or attaches a partition.",
							"Claims never wait behind that lock; whoever reads idemq.processed as a whole does.",
							&idemq_drop_lock_timeout, 200, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, check_positive, NULL, NULL);
	DefineCustomBoolVariable("idemq.durable_claims",
							 "Makes a transaction that claimed commit synchronously even if synchronous_commit is off.",
							 NULL,
							 &idemq_durable_claims, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idemq.expiry",
							 "Drops partitions that are older than idemq.retention.",
							 "Turn it off to hold every key, after an outage longer than the retention, say.",
							 &idemq_expiry, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("idemq.filter_memory",
								"Shared memory for the filter over the partitions.",
								"0: none, every claim looks into every partition.",
								&idemq_filter_memory, 65536, 0, MAX_KILOBYTES,
								PGC_POSTMASTER, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("idemq.naptime",
							"The launcher's round: how often each database is looked after.",
							NULL,
							&idemq_naptime, 10, -1, 86400,
							PGC_SIGHUP, GUC_UNIT_S, check_positive, NULL, NULL);
	DefineCustomIntVariable("idemq.partition_interval",
							"The time that one partition of idemq.processed serves.",
							"Bounds are multiples of it since 2000-01-01 UTC.",
							&idemq_partition_interval, 86400, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, check_positive, NULL, NULL);
	DefineCustomEnumVariable("idemq.partition_manager",
							 "Who makes the partitions: idemq itself or pg_partman.",
							 NULL,
							 &idemq_partition_manager, MANAGER_BUILTIN, partition_managers,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idemq.premake",
							"How many partitions are kept ahead.",
							"Extended to three naptimes' worth where partitions are short.",
							&idemq_premake, 4, -1, 1000,
							PGC_SUSET, 0, check_positive, NULL, NULL);
	DefineCustomIntVariable("idemq.retention",
							"How long a key is remembered, at least.",
							"Must be longer than the broker can take to deliver a message again.",
							&idemq_retention, 7 * 86400, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, check_positive, NULL, NULL);
	DefineCustomStringVariable("idemq.scope",
							   "The scope of claims that name none.",
							   "Part of a message's identity: one database can serve several consumers of it.",
							   &idemq_scope, "",
							   PGC_USERSET, 0, check_scope, NULL, NULL);
#ifdef IDEMQ_TEST
	testpoint_define_gucs();
#endif

	MarkGUCPrefixReserved("idemq");
}
