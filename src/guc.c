/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  The settings.
 *
 *-------------------------------------------------------------------------
 */
#include "guc.h"

#include <ctype.h>
#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "testpoint.h"

int			idemq_dead_retention = 30 * 86400;
int			idemq_drop_lock_timeout = 200;
bool		idemq_durable_claims = true;
bool		idemq_expiry = true;
int			idemq_filter_memory = 65536;
char	   *idemq_instance = NULL;
int			idemq_max_attempts = 5;
int			idemq_naptime = 10;
int			idemq_outbox_retention = 86400;
int			idemq_partition_interval = 86400;
int			idemq_partition_manager = MANAGER_BUILTIN;
int			idemq_premake = 4;
int			idemq_retention = 7 * 86400;
char	   *idemq_retry_ladder = NULL;
char	   *idemq_scope = NULL;

#define LADDER_HINT		"Name times in a row, each with its unit (ms, s, min, h, d), such as 1min,5min,30min."

/* The longest step of a ladder, in ms. */
#define MAX_STEP		(3650.0 * 86400 * 1000)

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

/* One step of a ladder, in us; 0 if it is none. */
static int64
parse_step(const char *start, const char *end)
{
	char		step[32];
	double		ms;

	while (start < end && isspace((unsigned char) *start))
		start++;
	while (end > start && isspace((unsigned char) end[-1]))
		end--;

	/* a number without a unit means something else to everybody */
	if (end == start || end - start >= sizeof(step) || !isalpha((unsigned char) end[-1]))
		return 0;
	memcpy(step, start, end - start);
	step[end - start] = '\0';
	if (!parse_real(step, &ms, GUC_UNIT_MS, NULL) || !(ms > 0 && ms <= MAX_STEP))
		return 0;
	return Max((int64) (ms * 1000), 1);
}

/*
 * Take a ladder apart: how many steps it has, and each of them in us.  A step
 * that is none ends it: answers 0, and where it is.
 */
static int
parse_steps(const char *ladder, int64 *steps, const char **step, int *len)
{
	int			nsteps = 0;

	*step = ladder;
	for (;;)
	{
		*len = strcspn(*step, ",");
		if ((steps[nsteps++] = parse_step(*step, *step + *len)) == 0)
			return 0;
		if ((*step)[*len] == '\0')
			return nsteps;
		*step += *len + 1;
	}
}

/* How many steps a ladder can have at most. */
static int
count_steps(const char *ladder)
{
	int			n = 1;

	for (; *ladder; ladder++)
		n += *ladder == ',';
	return n;
}

/* Take a ladder apart that is an argument; the steps are in microseconds. */
int
guc_parse_ladder(const char *ladder, int64 **steps)
{
	const char *step;
	int			len;
	int			nsteps;

	*steps = palloc(sizeof(int64) * count_steps(ladder));
	nsteps = parse_steps(ladder, *steps, &step, &len);
	if (nsteps == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid retry ladder: \"%s\"", ladder),
				 errdetail("\"%.*s\" is not a time greater than zero.", len, step),
				 errhint(LADDER_HINT)));
	return nsteps;
}

/* Refuse what is no ladder. */
static bool
check_ladder(char **newval, void **extra, GucSource source)
{
	int64	   *steps = palloc(sizeof(int64) * count_steps(*newval));
	const char *step;
	int			len;
	int			nsteps = parse_steps(*newval, steps, &step, &len);

	pfree(steps);
	if (nsteps > 0)
		return true;
	GUC_check_errcode(ERRCODE_INVALID_PARAMETER_VALUE);
	GUC_check_errdetail("\"%.*s\" is not a time greater than zero.", len, step);
	GUC_check_errhint(LADDER_HINT);
	return false;
}

/* Make every setting known. */
void
guc_define(void)
{
	DefineCustomIntVariable("idemq.dead_retention",
							"How long a dead letter is kept.",
							NULL,
							&idemq_dead_retention, 30 * 86400, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, check_positive, NULL, NULL);
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
	DefineCustomStringVariable("idemq.instance",
							   "Names a physical copy of a cluster.",
							   "A consumer does not go on in a copy before outbox_adopt().",
							   &idemq_instance, "",
							   PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idemq.max_attempts",
							"After how many failures an event is dead.",
							"For consumers that are made without a number of their own.",
							&idemq_max_attempts, 5, 1, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idemq.naptime",
							"The launcher's round: how often each database is looked after.",
							NULL,
							&idemq_naptime, 10, -1, 86400,
							PGC_SIGHUP, GUC_UNIT_S, check_positive, NULL, NULL);
	DefineCustomIntVariable("idemq.outbox_retention",
							"How long an event is kept after the slowest consumer has passed it.",
							NULL,
							&idemq_outbox_retention, 86400, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, check_positive, NULL, NULL);
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
	DefineCustomStringVariable("idemq.retry_ladder",
							   "How long to wait after each failure of an event.",
							   "The last step repeats. For consumers that are made without a ladder of their own.",
							   &idemq_retry_ladder, "1min,5min,30min",
							   PGC_SUSET, GUC_LIST_INPUT, check_ladder, NULL, NULL);
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
