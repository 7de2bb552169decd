/*-------------------------------------------------------------------------
 *
 * spi_plan.c
 *	  Statements of our own, with the owner's rights.
 *
 * Consumers read and write tables that they have no right to.  Between enter and
 * leave the session acts as the owner of idemq.outbox, with settings pinned by
 * which a name or an operator of somebody else's could slip in, or a plan be
 * chosen that reads whole tables: the tables are emptied and filled all the
 * time, and nobody analyzes them.
 *
 *-------------------------------------------------------------------------
 */
#include "spi_plan.h"

#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/syscache.h"

#include "catalog.h"

static const struct
{
	const char *name;
	const char *value;
}			pinned_settings[] = {
	{"search_path", "pg_catalog, pg_temp"},
	{"enable_seqscan", "off"},
	{"plan_cache_mode", "force_generic_plan"},
	{"jit", "off"},
};

/* Who owns the log? */
static Oid
owner_of_log(void)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(catalog_relation(IDEMQ_OUTBOX)));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for table \"%s.%s\"", IDEMQ_SCHEMA, IDEMQ_OUTBOX);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

/* Act as the owner.  An error undoes this, by ending the (sub)transaction. */
void
spi_plan_enter(SpiOwner *saved)
{
	GetUserIdAndSecContext(&saved->user, &saved->security);
	SetUserIdAndSecContext(owner_of_log(),
						   saved->security | SECURITY_LOCAL_USERID_CHANGE | SECURITY_NOFORCE_RLS);
	saved->nest_level = NewGUCNestLevel();
	for (int i = 0; i < lengthof(pinned_settings); i++)
		(void) set_config_option(pinned_settings[i].name, pinned_settings[i].value,
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
}

/* Be oneself again. */
void
spi_plan_leave(const SpiOwner *saved)
{
	SPI_finish();
	AtEOXact_GUC(true, saved->nest_level);
	SetUserIdAndSecContext(saved->user, saved->security);
}

/* The text of a statement in a turn: the number of the turn's tables for each '@'. */
static char *
text_in_turn(const char *sql, int tables)
{
	char	   *text = pstrdup(sql);

	for (char *at = text; *at != '\0'; at++)
	{
		if (*at == '@')
			*at = '0' + tables;
	}
	return text;
}

/*
 * Run a statement that names tables of a turn; expected is a result code of SPI.
 * Returns how many rows.
 */
uint64
spi_plan_run_in_turn(SpiPlan *plan, int64 turn, Datum *values, const char *nulls, int expected)
{
	int			tables = turn % 3;
	int			result;

	if (plan->plan[tables] == NULL)
	{
		SPIPlanPtr	prepared = SPI_prepare(text_in_turn(plan->sql, tables), plan->nargs, plan->types);

		if (prepared == NULL)
			elog(ERROR, "could not prepare \"%s\": %s", plan->sql,
				 SPI_result_code_string(SPI_result));
		if (SPI_keepplan(prepared) != 0)
			elog(ERROR, "could not keep \"%s\"", plan->sql);
		plan->plan[tables] = prepared;
	}
	result = SPI_execute_plan(plan->plan[tables], values, nulls, false, 0);
	if (result != expected)
		elog(ERROR, "could not run \"%s\": %s", plan->sql, SPI_result_code_string(result));
	return SPI_processed;
}

/* Run one that does not. */
uint64
spi_plan_run(SpiPlan *plan, Datum *values, const char *nulls, int expected)
{
	return spi_plan_run_in_turn(plan, 0, values, nulls, expected);
}
