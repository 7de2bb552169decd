/*-------------------------------------------------------------------------
 *
 * xactstate.c
 *	  What this transaction has done so far, right over savepoints.
 *
 * The last claim: the cause of the events that are written after it.  Each
 * level of subtransactions that made a claim has an entry on a stack; a
 * rollback takes its entry away, so that the last claim before it counts again,
 * and the end of a subtransaction hands it to the level above.  Entries are kept
 * for the next transaction, so a claim allocates nothing but in the first one.
 *
 * The news: whether sleepers are to be woken when this transaction commits.
 * They are woken after its locks are released, or they would find the shard
 * that it worked on still locked.  A rollback to a savepoint leaves it standing:
 * a sleeper that is woken for nothing sleeps on.  A prepared transaction has
 * nothing to tell before COMMIT PREPARED, which may come from another session
 * or after a restart, and cannot know any more: it always wakes.
 *
 *-------------------------------------------------------------------------
 */
#include "xactstate.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "shmem.h"

/* Entries that are kept from one transaction to the next. */
#define KEPT_LEVELS		8

/* The last claim of one level, as texts with a long header. */
typedef struct LevelClaim
{
	int			level;
	uint64		number;			/* another one for each claim */
	int32		scope[(VARHDRSZ + IDEMQ_MAX_SCOPE + 4) / 4];
	int32		key[(VARHDRSZ + IDEMQ_MAX_KEY + 4) / 4];
} LevelClaim;

static LevelClaim **claims = NULL;	/* the innermost level is the last */
static int	nclaims = 0;
static int	nentries = 0;		/* entries that are allocated, */
static int	nslots = 0;			/* and pointers that there is room for */
static uint64 claim_counter = 0;

static bool have_news = false;	/* to be told at commit */
static bool committed_news = false; /* to be told when the locks are released */

static ProcessUtility_hook_type previous_utility_hook = NULL;

/* Have an entry behind the last one. */
static LevelClaim *
add_level(int level)
{
	if (nclaims == nslots)
	{
		int			slots = Max(nslots * 2, KEPT_LEVELS);

		if (claims == NULL)
			claims = MemoryContextAlloc(TopMemoryContext, sizeof(LevelClaim *) * slots);
		else
			claims = repalloc(claims, sizeof(LevelClaim *) * slots);
		nslots = slots;
	}
	if (nclaims == nentries)
	{
		claims[nentries] = MemoryContextAlloc(TopMemoryContext, sizeof(LevelClaim));
		nentries++;
	}
	claims[nclaims]->level = level;
	return claims[nclaims++];
}

/* Copy a text, whichever header it has. */
static inline void
copy_text(int32 *to, const text *from)
{
	Size		len = VARSIZE_ANY_EXHDR(from);

	SET_VARSIZE(to, VARHDRSZ + len);
	memcpy(VARDATA(to), VARDATA_ANY(from), len);
}

/* This transaction was told that it may apply the effect of a message. */
void
xactstate_note_claim(const text *scope, const text *key)
{
	int			level = GetCurrentTransactionNestLevel();
	LevelClaim *claim;

	Assert(VARSIZE_ANY_EXHDR(scope) <= IDEMQ_MAX_SCOPE);
	Assert(VARSIZE_ANY_EXHDR(key) <= IDEMQ_MAX_KEY);
	if (nclaims > 0 && claims[nclaims - 1]->level == level)
		claim = claims[nclaims - 1];
	else
		claim = add_level(level);
	claim->number = ++claim_counter;
	copy_text(claim->scope, scope);
	copy_text(claim->key, key);
}

/* The last claim of this transaction that was not rolled back, if there is one. */
bool
xactstate_last_claim(const text **scope, const text **key)
{
	if (nclaims == 0)
		return false;
	*scope = (const text *) claims[nclaims - 1]->scope;
	*key = (const text *) claims[nclaims - 1]->key;
	return true;
}

/* Tells that claim from every other one of this session; 0: there is none. */
uint64
xactstate_claim_number(void)
{
	return nclaims == 0 ? 0 : claims[nclaims - 1]->number;
}

/* Wake the sleepers of this database when this transaction commits. */
void
xactstate_tell(void)
{
	have_news = true;
}

/* A level of subtransactions ends. */
static void
end_level(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	int			level;
	LevelClaim *claim;

	if (nclaims == 0 ||
		(event != SUBXACT_EVENT_ABORT_SUB && event != SUBXACT_EVENT_COMMIT_SUB))
		return;
	level = GetCurrentTransactionNestLevel();
	claim = claims[nclaims - 1];
	if (claim->level < level)
		return;

	if (event == SUBXACT_EVENT_ABORT_SUB)
		nclaims--;
	else if (nclaims > 1 && claims[nclaims - 2]->level == level - 1)
	{
		/* it takes the place of the older one, whose memory is kept */
		claims[nclaims - 1] = claims[nclaims - 2];
		claims[nclaims - 2] = claim;
		claim->level = level - 1;
		nclaims--;
	}
	else
		claim->level = level - 1;
}

/* The transaction ends. */
static void
end_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			committed_news = have_news;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			committed_news = false;
			break;
		default:
			return;
	}
	have_news = false;
	nclaims = 0;
	while (nentries > KEPT_LEVELS)
		pfree(claims[--nentries]);
}

/* Its locks are released: tell. */
static void
locks_released(ResourceReleasePhase phase, bool commit, bool top_level, void *arg)
{
	if (!committed_news || phase != RESOURCE_RELEASE_AFTER_LOCKS || !top_level)
		return;
	committed_news = false;
	if (commit)
		shmem_wake_sleepers(MyDatabaseId);
}

/* After COMMIT PREPARED: tell, in case there is something. */
static void
watch_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
			  ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *environment, DestReceiver *dest,
			  QueryCompletion *completion)
{
	/* the tree may be gone afterwards */
	bool		commits_prepared = IsA(pstmt->utilityStmt, TransactionStmt) &&
		((TransactionStmt *) pstmt->utilityStmt)->kind == TRANS_STMT_COMMIT_PREPARED;

	(previous_utility_hook ? previous_utility_hook : standard_ProcessUtility)
		(pstmt, query, read_only_tree, context, params, environment, dest, completion);
	if (commits_prepared)
		shmem_wake_sleepers(MyDatabaseId);
}

/* Hear of the ends of transactions. */
void
xactstate_init(void)
{
	RegisterXactCallback(end_transaction, NULL);
	RegisterSubXactCallback(end_level, NULL);
	RegisterResourceReleaseCallback(locks_released, NULL);
	if (process_shared_preload_libraries_in_progress)
	{
		previous_utility_hook = ProcessUtility_hook;
		ProcessUtility_hook = watch_utility;
	}
}
