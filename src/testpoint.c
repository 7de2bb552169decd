/*-------------------------------------------------------------------------
 *
 * testpoint.c
 *	  Hooks of the test build.
 *
 * A point waits by taking an ordinary shared advisory lock: another session
 * arms it with pg_advisory_lock(7001), and isolationtester sees the wait.
 *
 *-------------------------------------------------------------------------
 */
#include "testpoint.h"

#ifdef IDEMQ_TEST

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#define TEST_POINT_LOCK		7001

static char *test_point = NULL;
static char *test_without = NULL;
static int	test_clock_offset = 0;

/* Is name one of the comma-separated words of list? */
static bool
list_has(const char *list, const char *name)
{
	size_t		len = strlen(name);

	for (const char *at = list; at && *at;)
	{
		size_t		word = strcspn(at, ", ");

		if (word == len && strncmp(at, name, len) == 0)
			return true;
		at += word;
		at += strspn(at, ", ");
	}
	return false;
}

/* Stop here for as long as somebody holds the point's lock, if it is armed. */
void
testpoint_reach(const char *name)
{
	LOCKTAG		tag;

	if (!list_has(test_point, name))
		return;
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, TEST_POINT_LOCK, 1);
	(void) LockAcquire(&tag, ShareLock, false, false);
	LockRelease(&tag, ShareLock, false);
}

/* Is this protection taken out? */
bool
testpoint_without(const char *protection)
{
	return list_has(test_without, protection);
}

/* What to add to the wall clock, in microseconds. */
int64
testpoint_clock_offset(void)
{
	return test_clock_offset * USECS_PER_SEC;
}

/* The settings of the test build. */
void
testpoint_define_gucs(void)
{
	DefineCustomIntVariable("idemq.test_clock_offset",
							"Seconds to add to the wall clock (test build).",
							NULL, &test_clock_offset, 0, INT_MIN, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomStringVariable("idemq.test_point",
							   "Points at which to wait for advisory lock 7001 (test build).",
							   NULL, &test_point, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("idemq.test_without",
							   "Protections to take out (test build).",
							   NULL, &test_without, "",
							   PGC_SUSET, 0, NULL, NULL, NULL);
}

#endif							/* IDEMQ_TEST */
