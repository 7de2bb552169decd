/*-------------------------------------------------------------------------
 *
 * spi_plan.h
 *	  Statements of our own, with the owner's rights.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_SPI_PLAN_H
#define IDEMQ_SPI_PLAN_H

#include "idemq.h"

#include "executor/spi.h"

#define SPI_PLAN_ARGS	40

/* A statement, planned once in a session; one static variable for each. */
typedef struct SpiPlan
{
	const char *sql;
	int			nargs;
	Oid			types[SPI_PLAN_ARGS];
	SPIPlanPtr	plan[3];		/* by turn of the ledgers, where that matters */
} SpiPlan;

#define SPI_PLAN(statement, n, ...) \
	{.sql = statement, .nargs = n, .types = {__VA_ARGS__}}
#define SPI_PLAN_NO_ARGS(statement) \
	{.sql = statement}

/* What spi_plan_enter has changed. */
typedef struct SpiOwner
{
	Oid			user;
	int			security;
	int			nest_level;
} SpiOwner;

extern void spi_plan_enter(SpiOwner *saved);
extern void spi_plan_leave(const SpiOwner *saved);
extern uint64 spi_plan_run(SpiPlan *plan, Datum *values, const char *nulls, int expected);
extern uint64 spi_plan_run_in_turn(SpiPlan *plan, int64 turn, Datum *values, const char *nulls,
								   int expected);

#endif							/* IDEMQ_SPI_PLAN_H */
