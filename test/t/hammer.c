/*-------------------------------------------------------------------------
 *
 * hammer.c
 *	  Clients that fight for the same keys; a part of test/t/Hammer.pm.
 *
 * Each client runs transactions of random kinds.  Whenever a claim says true it
 * writes a row to the table effect, in the same (sub)transaction.  What it was
 * told is kept by key: "won" when the commit of a true answer was acknowledged,
 * "refused" when somebody else was said to have the key.  The test compares
 * that with the database afterwards.
 *
 * Scopes:
 *	hammer	one claim a transaction, or one batch: no deadlock is ever allowed
 *	multi	several claims a transaction, in random order: 40P01 is allowed
 *	forget	claims and forgets; a forget writes an effect of -1
 *	long	one claim that stays open for seconds
 *
 * The keys of hammer and multi are a window that moves on with every commit, so
 * that there are always free keys, and most claims meet others.
 *
 * Beside the clients: somebody who ends or cancels them, somebody who decides
 * about prepared transactions, and a gate, which stops the armed ones at points
 * in idemq's code while a partition boundary passes.
 *
 *	hammer TARGET TOLD [name=value ...]
 *
 * TARGET is a file with the conninfo, read at each connection.  TOLD is
 * written at the end: scope, key, won, refused.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_KEYS		(1 << 20)
#define MAX_MINE		64
#define MAX_CHILDREN	64
#define PATIENCE		90		/* seconds that the end may take */

enum
{
	SCOPE_HAMMER, SCOPE_MULTI, SCOPE_FORGET, SCOPE_LONG, SCOPES
};
static const char *const scope_names[SCOPES] = {"hammer", "multi", "forget", "long"};

typedef enum ClientKind
{
	CLIENT_SHORT,				/* transactions of milliseconds */
	CLIENT_LONG,				/* transactions of seconds */
	CLIENT_AUDIT,				/* asks for what others have */
} ClientKind;

/* What the processes share. */
typedef struct Shared
{
	int			stop;			/* no new transactions */
	int			done;			/* clients are gone */
	int			pids[MAX_CHILDREN]; /* backends */
	int			base[SCOPES];	/* where the window of keys begins */
	int64_t		transactions,
				claims,
				won,
				refused,
				mine,
				busy,
				committed,
				rolled_back,
				prepared,
				resolved,
				savepoints,
				batches,
				audited,
				forgets,
				terminated,
				cancelled,
				deadlocks,
				timeouts,
				connections,
				doubles,
				double_ms,
				unexpected;
	uint8_t		wins[SCOPES][MAX_KEYS];
	uint8_t		refusals[SCOPES][MAX_KEYS];
} Shared;

static Shared *shared;

#define COUNT(what)		__atomic_add_fetch(&shared->what, 1, __ATOMIC_SEQ_CST)
#define READ(what)		__atomic_load_n(&shared->what, __ATOMIC_SEQ_CST)
#define WRITE(what, v)	__atomic_store_n(&shared->what, v, __ATOMIC_SEQ_CST)

/* Options. */
static const char *target_file;
static char *opt_without = "";
static int	opt_clients = 8;
static int	opt_seconds = 60;
static int	opt_window = 6;		/* keys that are fought for */
static int	opt_fixed = 0;		/* keys in all, and they may be claimed again */
static int	opt_longs = 1;		/* clients with a transaction of seconds */
static int	opt_audits = 1;		/* clients that ask for what others have */
static int	opt_kill_ms = 300;	/* how often one is ended or cancelled */
static int	opt_gate = 1;
static int	opt_outage = 0;		/* the server may go away */
static int	opt_sync_off = 30;	/* percent with synchronous_commit = off */
static int	opt_first_double = 0;	/* stop at the first key that was won twice */
static int	opt_seed = 0;

static const struct
{
	const char *name;
	int		   *value;
}			options[] = {
	{"clients", &opt_clients}, {"seconds", &opt_seconds}, {"window", &opt_window},
	{"fixed", &opt_fixed}, {"longs", &opt_longs}, {"audits", &opt_audits}, {"kill_ms", &opt_kill_ms},
	{"gate", &opt_gate}, {"outage", &opt_outage}, {"sync_off", &opt_sync_off},
	{"first_double", &opt_first_double}, {"seed", &opt_seed},
};

/* Points at which an armed client stops while the gate is closed. */
static const char *const points[] = {
	"claim-looked", "claim-locked", "claim-probed", "claim-probed", "claim-leaf-open",
	"claim-leaf-open", "claim-inserted", "claim-done", "claim-released",
};

/* Statements; prepared at first use. */
enum
{
	ST_CLAIM, ST_CLAIM_EFFECT, ST_TRY, ST_MANY, ST_EFFECTS, ST_FORGET, ST_VISIBLE,
	ST_TERMINATE, ST_CANCEL, ST_PREPARED, STATEMENTS
};
static const char *const statements[STATEMENTS] = {
	[ST_CLAIM] = "SELECT idem_claim($1::text, $2::text)",
	[ST_CLAIM_EFFECT] = "WITH c AS MATERIALIZED (SELECT idem_claim($1::text, $2::text) AS ok),"
	" e AS (INSERT INTO effect (scope, key, claimed_at)"
	" SELECT $2::text, $1::text, idem_seen($1::text, $2::text) FROM c WHERE ok)"
	" SELECT ok FROM c",
	[ST_TRY] = "SELECT idem_try_claim($1::text, $2::text)",
	[ST_MANY] = "SELECT u FROM unnest(idem_claim_many($1::text[], $2::text)) AS u",
	[ST_EFFECTS] = "INSERT INTO effect (scope, key, claimed_at)"
	" SELECT $2::text, k, idem_seen(k, $2::text) FROM unnest($1::text[]) AS k",
	[ST_FORGET] = "WITH f AS MATERIALIZED (SELECT idem_forget($1::text, $2::text) AS ok),"
	" e AS (INSERT INTO effect (scope, key, delta) SELECT $2::text, $1::text, -1 FROM f WHERE ok)"
	" SELECT ok FROM f",
	[ST_VISIBLE] = "SELECT EXISTS (SELECT FROM effect WHERE key = $1::text AND scope = $2::text)",
	[ST_TERMINATE] = "SELECT pg_terminate_backend($1::int)",
	[ST_CANCEL] = "SELECT pg_cancel_backend($1::int)",
	[ST_PREPARED] = "SELECT gid, now() - prepared > interval '2 s' FROM pg_prepared_xacts"
	" WHERE database = current_database()",
};

/* A client and its transaction. */
static PGconn *conn = NULL;
static int	slot = -1;			/* in shared->pids; -1: never to be ended */
static bool statement_known[STATEMENTS];
static bool fresh_snapshot;		/* sees what was committed before the statement */
static bool may_deadlock;
static bool may_time_out;
static const char *decides = NULL;	/* about this prepared transaction */
static int	gid_number = 0;
static int	n_mine;				/* claims that this transaction won */
static struct
{
	int			scope;
	int			key;
}			mine[MAX_MINE];

static uint64_t random_state;
static struct timespec started;

/* xorshift */
static unsigned
rnd(unsigned below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (random_state >> 11) % below;
}

static bool
chance(unsigned percent)
{
	return rnd(100) < percent;
}

/* sleep: thinking time of a client, or the nap between two looks */
static void
nap(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&t, NULL);
}

static long
elapsed_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - started.tv_sec) * 1000 + (now.tv_nsec - started.tv_nsec) / 1000000;
}

/* Something that must not happen. */
static void
unexpected(const char *format,...)
{
	va_list		args;

	if (COUNT(unexpected) > 20)
		return;
	fprintf(stderr, "hammer: at %ld ms: ", elapsed_ms());
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

/* Is an error one of those that were provoked? */
static bool
is_provoked(const char *sqlstate)
{
	bool		killed = opt_kill_ms > 0 && slot >= 0;

	if (strcmp(sqlstate, "57P01") == 0 && (killed || opt_outage))
		return COUNT(terminated);
	/* what libpq says last is that the connection is gone */
	if (sqlstate[0] == '\0' && (killed || opt_outage))
		return COUNT(terminated);
	if (opt_outage && (strcmp(sqlstate, "57P02") == 0 || strcmp(sqlstate, "57P03") == 0))
		return true;
	if (strcmp(sqlstate, "57014") == 0 && killed)
		return COUNT(cancelled);
	if (strcmp(sqlstate, "40P01") == 0 && may_deadlock)
		return COUNT(deadlocks);

	/* busy: somebody else does, or it waits for the standby; gone: somebody did */
	if (decides && (strcmp(sqlstate, "55000") == 0 ||
					(strcmp(sqlstate, "42704") == 0 && strncmp(decides, "ours", 4) == 0)))
		return true;
	if (strcmp(sqlstate, "55P03") == 0 && may_time_out)
		return COUNT(timeouts);
	return false;
}

/* Judge a result; NULL and cleared if it is an error. */
static PGresult *
judge(PGresult *result, const char *what)
{
	ExecStatusType status = PQresultStatus(result);
	const char *sqlstate;

	if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
		return result;
	sqlstate = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
	if (!is_provoked(sqlstate ? sqlstate : ""))
		unexpected("%s: %s: %s", what, sqlstate ? sqlstate : "no SQLSTATE",
				   result ? PQresultErrorMessage(result) : PQerrorMessage(conn));
	PQclear(result);
	return NULL;
}

/* Run a simple command. */
static bool
command(const char *format,...)
{
	char		sql[1024];
	va_list		args;
	PGresult   *result;

	va_start(args, format);
	vsnprintf(sql, sizeof(sql), format, args);
	va_end(args);
	result = judge(PQexec(conn, sql), sql);
	PQclear(result);
	return result != NULL;
}

/* Run one of the statements. */
static PGresult *
execute(int which, int n, const char *a, const char *b)
{
	const char *values[2] = {a, b};
	char		name[16];

	snprintf(name, sizeof(name), "s%d", which);
	if (!statement_known[which])
	{
		PGresult   *result = judge(PQprepare(conn, name, statements[which], 0, NULL),
								   statements[which]);

		if (result == NULL)
			return NULL;
		PQclear(result);
		statement_known[which] = true;
	}
	return judge(PQexecPrepared(conn, name, n, values, NULL, NULL, 0), statements[which]);
}

/* Notices are not for us. */
static void
ignore_notice(void *arg, const char *message)
{
	(void) arg;
	(void) message;
}

/* Connect, and go on trying. */
static bool
connect_target(void)
{
	char		conninfo[1024];
	char		extra[256];

	if (slot >= 0)
		WRITE(pids[slot], 0);
	snprintf(extra, sizeof(extra), "%s%s%s%s",
			 opt_without[0] ? "-c idemq.test_without=" : "", opt_without,
			 slot >= 0 && slot % 2 == 0 ? " -c idemq.test_point=" : "",
			 slot >= 0 && slot % 2 == 0 ? points[rnd(sizeof(points) / sizeof(points[0]))] : "");
	for (long give_up = elapsed_ms() + PATIENCE * 1000; elapsed_ms() < give_up;)
	{
		const char *keys[] = {"dbname", "options", NULL};
		const char *values[] = {conninfo, extra, NULL};
		FILE	   *file = fopen(target_file, "r");
		size_t		n = 0;

		if (file)
		{
			n = fread(conninfo, 1, sizeof(conninfo) - 1, file);
			fclose(file);
		}
		conninfo[n] = '\0';
		if (conn)
			PQfinish(conn);
		conn = PQconnectdbParams(keys, values, 1);
		memset(statement_known, 0, sizeof(statement_known));
		if (PQstatus(conn) == CONNECTION_OK)
		{
			(void) PQsetNoticeProcessor(conn, ignore_notice, NULL);
			if (slot >= 0)
				WRITE(pids[slot], PQbackendPID(conn));
			COUNT(connections);
			return true;
		}
		if (!opt_outage)
			unexpected("no connection: %s", PQerrorMessage(conn));
		if (READ(done))
			return false;
		nap(20000);
	}
	unexpected("no connection for %d s", PATIENCE);
	return false;
}

/* A key of a scope, most often one that others want now. */
static int
choose_key(int scope)
{
	int			base = READ(base[scope]);
	int			r = rnd(100);

	if (opt_fixed)
		return rnd(opt_fixed);
	if (scope == SCOPE_FORGET)
		return rnd(2 * opt_window);
	if (r < 5)
		return rnd(base + 1);
	if (r < 15)
		return base > 40 ? base - (int) rnd(40) : (int) rnd(base + 1);
	return base + rnd(opt_window);
}

static char *
key_name(char *buf, int key)
{
	sprintf(buf, "k%d", key);
	return buf;
}

static bool
is_mine(int scope, int key)
{
	for (int i = 0; i < n_mine; i++)
	{
		if (mine[i].scope == scope && mine[i].key == key)
			return true;
	}
	return false;
}

/* A claim was answered. */
static bool
note_answer(int scope, int key, bool won)
{
	bool		own = is_mine(scope, key);
	char		name[16];

	COUNT(claims);
	if (won)
	{
		if (own)
			unexpected("%s %s: true a second time in a transaction", scope_names[scope],
					   key_name(name, key));
		COUNT(won);
		mine[n_mine].scope = scope;
		mine[n_mine++].key = key;
		return true;
	}
	if (own)
	{
		COUNT(mine);
		return true;
	}
	COUNT(refused);
	WRITE(refusals[scope][key], 1);

	/* the winner has committed, or we would not have been refused */
	if (fresh_snapshot && scope != SCOPE_FORGET && chance(10))
	{
		PGresult   *result = execute(ST_VISIBLE, 2, key_name(name, key), scope_names[scope]);

		if (result == NULL)
			return false;
		if (PQgetvalue(result, 0, 0)[0] != 't')
			unexpected("%s %s: refused, but there is no effect", scope_names[scope], name);
		PQclear(result);
	}
	return true;
}

/* Claim a key, one way or another, and apply the effect; false on an error. */
static bool
claim(int scope, int key)
{
	char		name[16];
	int			way = rnd(10);
	int			which = way < 4 ? ST_CLAIM_EFFECT : way < 7 ? ST_CLAIM : ST_TRY;
	bool		own = is_mine(scope, key);
	bool		won;
	PGresult   *result;

	key_name(name, key);
	result = execute(which, 2, name, scope_names[scope]);
	if (result == NULL)
		return false;
	if (which == ST_TRY)
	{
		const char *answer = PQgetvalue(result, 0, 0);

		if (own && strcmp(answer, "mine") != 0)
			unexpected("%s %s is mine, but %s", scope_names[scope], name, answer);
		if (!own && strcmp(answer, "mine") == 0)
			unexpected("%s %s is not mine", scope_names[scope], name);
		if (strcmp(answer, "busy") == 0)
		{
			PQclear(result);
			COUNT(claims);
			COUNT(busy);
			return true;
		}
		won = strcmp(answer, "claimed") == 0;
	}
	else
		won = PQgetvalue(result, 0, 0)[0] == 't';
	PQclear(result);

	if (won && which != ST_CLAIM_EFFECT)
	{
		char		array[20];

		if (chance(30))
			nap(rnd(2000));
		sprintf(array, "{%s}", name);
		result = execute(ST_EFFECTS, 2, array, scope_names[scope]);
		if (result == NULL)
			return false;
		PQclear(result);
	}
	return note_answer(scope, key, won);
}

/* Claim several keys at once, one of them perhaps twice. */
static bool
claim_batch(int scope)
{
	int			n = 2 + rnd(5);
	int			keys[8];
	bool		won[8];
	char		array[256] = "{";
	char		effects[256] = "{";
	PGresult   *result;

	COUNT(batches);
	for (int i = 0; i < n; i++)
	{
		keys[i] = choose_key(scope);
		sprintf(array + strlen(array), "%sk%d", i ? "," : "", keys[i]);
	}
	strcat(array, "}");
	result = execute(ST_MANY, 2, array, scope_names[scope]);
	if (result == NULL)
		return false;
	if (PQntuples(result) != n)
		unexpected("%d keys, %d answers", n, PQntuples(result));
	for (int i = 0; i < n; i++)
	{
		won[i] = PQgetvalue(result, i, 0)[0] == 't';
		if (won[i])
			sprintf(effects + strlen(effects), "%sk%d", effects[1] ? "," : "", keys[i]);
	}
	PQclear(result);
	strcat(effects, "}");
	if (effects[1] != '}')
	{
		result = execute(ST_EFFECTS, 2, effects, scope_names[scope]);
		if (result == NULL)
			return false;
		PQclear(result);
	}

	/* true ones first: they make others of the same name our own */
	for (int i = 0; i < n; i++)
	{
		if (won[i] && !note_answer(scope, keys[i], true))
			return false;
	}
	for (int i = 0; i < n; i++)
	{
		if (!won[i] && !note_answer(scope, keys[i], false))
			return false;
	}
	return true;
}

/* The claims of a committed transaction are won for good. */
static void
settle(int scope, int key)
{
	if (scope == SCOPE_FORGET)
		return;
	if (__atomic_add_fetch(&shared->wins[scope][key], 1, __ATOMIC_SEQ_CST) > 1 && !opt_fixed)
	{
		if (COUNT(doubles) == 1)
			WRITE(double_ms, elapsed_ms());
		if (opt_first_double)
			WRITE(stop, 1);
	}
	if (!opt_fixed && scope != SCOPE_LONG)
		COUNT(base[scope]);
}

/* Decide about a prepared transaction; its name tells what it holds. */
static bool
resolve(const char *gid)
{
	bool		commit = chance(65);
	const char *at = strrchr(gid, '/');
	bool		ok;

	decides = gid;
	ok = command("%s PREPARED '%s'", commit ? "COMMIT" : "ROLLBACK", gid);
	decides = NULL;
	if (!ok)
		return false;
	COUNT(resolved);
	if (!commit)
		return true;
	while (at && at[1])
	{
		int			scope;
		int			key;

		if (sscanf(at + 1, "%d:%d", &scope, &key) != 2)
			break;
		settle(scope, key);
		at = strchr(at + 1, ',');
	}
	return true;
}

/* End the transaction. */
static bool
finish(void)
{
	int			how = rnd(100);
	char		gid[512];

	if (how < 60 || n_mine > 8)
	{
		PGresult   *result = judge(PQexec(conn, "COMMIT"), "COMMIT");

		if (result == NULL)
			return false;
		if (strcmp(PQcmdStatus(result), "COMMIT") != 0)
			unexpected("COMMIT was answered by %s", PQcmdStatus(result));
		PQclear(result);
		COUNT(committed);
		for (int i = 0; i < n_mine; i++)
			settle(mine[i].scope, mine[i].key);
		return true;
	}
	if (how < 80)
	{
		COUNT(rolled_back);
		return command("ROLLBACK");
	}

	/* ours, or for the one who decides about those of others */
	sprintf(gid, "%s/%d.%d/", how < 90 ? "ours" : "others", getpid(), ++gid_number);
	for (int i = 0; i < n_mine; i++)
		sprintf(gid + strlen(gid), "%s%d:%d", i ? "," : "", mine[i].scope, mine[i].key);
	if (!command("PREPARE TRANSACTION '%s'", gid))
		return false;
	COUNT(prepared);
	if (how >= 90)
		return true;
	nap(rnd(3000));
	return resolve(gid);
}

/* Claims in subtransactions, some of which are rolled back. */
static bool
claim_in_savepoints(int scope, int n)
{
	for (int i = 0; i < n; i++)
	{
		int			before = n_mine;
		int			key = choose_key(scope);
		bool		ok;

		if (chance(25))
		{
			if (!claim(scope, key))
				return false;
			continue;
		}
		COUNT(savepoints);
		if (!command("SAVEPOINT s"))
			return false;
		ok = claim(scope, key);
		if (!ok && PQtransactionStatus(conn) != PQTRANS_INERROR)
			return false;
		if (ok && chance(40))
		{
			if (!command("RELEASE s"))
				return false;
			continue;
		}
		if (!command("ROLLBACK TO s"))
			return false;
		n_mine = before;
		/* free again, unless somebody was waiting for it */
		if (n == 1 && chance(50) && !claim(scope, key))
			return false;
	}
	return true;
}

/* Claims and forgets of the same few keys. */
static bool
claim_and_forget(void)
{
	int			key = choose_key(SCOPE_FORGET);
	int			n = 1 + rnd(3);

	for (int i = 0; i < n; i++)
	{
		if (chance(60))
		{
			if (!claim(SCOPE_FORGET, key))
				return false;
		}
		else
		{
			char		name[16];
			PGresult   *result = execute(ST_FORGET, 2, key_name(name, key),
										 scope_names[SCOPE_FORGET]);
			bool		forgotten;

			if (result == NULL)
				return false;
			COUNT(forgets);
			forgotten = PQgetvalue(result, 0, 0)[0] == 't';
			PQclear(result);
			if (is_mine(SCOPE_FORGET, key) && !forgotten)
				unexpected("forget %s: own claim was not found", name);
			if (forgotten)
				n_mine = 0;
		}
	}
	return true;
}

/* A transaction that is open for seconds, then claims what is new. */
static bool
claim_long(void)
{
	long		until = elapsed_ms() + 4000 + rnd(1500);

	may_deadlock = true;
	/* some do not write anything at first, so that REINDEX does not wait for them */
	if (!claim(SCOPE_LONG, chance(50) ? COUNT(base[SCOPE_LONG]) : 0))
		return false;
	while (elapsed_ms() < until && !READ(stop))
		nap(20000);
	for (int i = 0; i < 20 && !opt_fixed && n_mine < 8; i++)
	{
		int			base = READ(base[SCOPE_MULTI]);

		if (!claim(SCOPE_MULTI, base > 50 ? base - 1 - (int) rnd(50) : choose_key(SCOPE_MULTI)))
			return false;
	}
	return true;
}

/*
 * Ask for keys that somebody has for good, many at once: all must be refused.
 * The others come back to an old key now and then only.
 */
static bool
audit(void)
{
	int			scope = rnd(2) ? SCOPE_HAMMER : SCOPE_MULTI;
	int			base = READ(base[scope]);
	char		array[1024] = "{";
	int			keys[50];
	int			n = 0;
	bool		ok = true;
	PGresult   *result;

	for (int i = 0; i < 50 && base > 0; i++)
	{
		int			key = rnd(base);

		/* known before we ask */
		if (READ(wins[scope][key]) == 0 && READ(refusals[scope][key]) == 0)
			continue;
		keys[n] = key;
		sprintf(array + strlen(array), "%sk%d", n ? "," : "", key);
		n++;
	}
	if (n == 0)
	{
		nap(10000);
		return true;
	}
	strcat(array, "}");
	result = execute(ST_MANY, 2, array, scope_names[scope]);
	for (int i = 0; result && i < n; i++)
	{
		COUNT(audited);
		if (PQgetvalue(result, i, 0)[0] == 't' && !is_mine(scope, keys[i]))
		{
			char		name[20];
			PGresult   *effect;

			unexpected("%s k%d is true again", scope_names[scope], keys[i]);
			sprintf(name, "{k%d}", keys[i]);
			effect = execute(ST_EFFECTS, 2, name, scope_names[scope]);
			ok = ok && effect && note_answer(scope, keys[i], true);
			PQclear(effect);
		}
	}
	ok = ok && result;
	PQclear(result);
	return ok;
}

/* The claims of a transaction. */
static bool
body(ClientKind client)
{
	int			kind = rnd(100);

	if (client == CLIENT_LONG)
		return claim_long();
	if (client == CLIENT_AUDIT)
		return audit();
	if (kind < 40)
		return claim(SCOPE_HAMMER, choose_key(SCOPE_HAMMER));
	if (kind < 55)
		return claim_batch(SCOPE_HAMMER);
	if (kind < 65)
		return claim_in_savepoints(SCOPE_HAMMER, 1);
	if (kind < 85)
	{
		may_deadlock = true;
		if (chance(30))
			return claim_batch(SCOPE_MULTI) && claim_batch(SCOPE_MULTI);
		return claim_in_savepoints(SCOPE_MULTI, 2 + rnd(3));
	}
	if (opt_fixed)
		return claim(SCOPE_HAMMER, choose_key(SCOPE_HAMMER));
	return claim_and_forget();
}

/* One transaction from its begin to its end. */
static void
transact(ClientKind kind)
{
	static const char *const levels[] = {"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"};
	int			level = chance(50) ? 0 : 1 + rnd(2);
	bool		ok;

	COUNT(transactions);
	n_mine = 0;
	fresh_snapshot = level == 0;
	may_deadlock = false;
	may_time_out = kind == CLIENT_SHORT && chance(10);
	ok = command("BEGIN ISOLATION LEVEL %s%s%s", levels[level],
				 chance(opt_sync_off) ? "; SET LOCAL synchronous_commit = off" : "",
				 may_time_out ? "; SET LOCAL lock_timeout = '5ms'" : "");
	/* an old snapshot */
	if (ok && level > 0 && chance(30))
	{
		ok = command("SELECT count(*) FROM pg_class");
		nap(rnd(2000));
	}
	ok = ok && body(kind);
	if (ok && chance(30))
		nap(rnd(2000));
	ok = ok && finish();
	if (!ok && (PQstatus(conn) != CONNECTION_OK ||
				(PQtransactionStatus(conn) != PQTRANS_IDLE && !command("ROLLBACK"))))
		(void) connect_target();
}

static void
client_main(ClientKind kind)
{
	if (!connect_target())
		return;
	for (int i = 1; !READ(stop); i++)
	{
		transact(kind);
		/* stop elsewhere */
		if (slot % 2 == 0 && i % 50 == 0 &&
			!command("SET idemq.test_point = '%s'", points[rnd(sizeof(points) / sizeof(points[0]))]))
			(void) connect_target();
		if (READ(base[SCOPE_HAMMER]) > MAX_KEYS - 1000 || READ(base[SCOPE_MULTI]) > MAX_KEYS - 1000)
			WRITE(stop, 1);
	}
	WRITE(pids[slot], 0);
}

/* Decides about prepared transactions, those that were left behind included. */
static void
resolver_main(void)
{
	int			left = 1;

	if (!connect_target())
		return;
	while (!READ(done) || left > 0)
	{
		bool		done = READ(done);
		PGresult   *result = execute(ST_PREPARED, 0, NULL, NULL);

		left = result ? PQntuples(result) : 1;
		for (int i = 0; result && i < PQntuples(result); i++)
		{
			const char *gid = PQgetvalue(result, i, 0);
			bool		old = PQgetvalue(result, i, 1)[0] == 't';

			if (!done && !old && (strncmp(gid, "ours", 4) == 0 || chance(60)))
				continue;
			if (!resolve(gid))
				break;
		}
		PQclear(result);
		if (PQstatus(conn) != CONNECTION_OK && !connect_target())
			return;
		nap(10000);
	}
}

/* Ends clients, or cancels what they do. */
static void
killer_main(void)
{
	if (!connect_target())
		return;
	while (!READ(stop))
	{
		int			pid = READ(pids[rnd(opt_clients)]);
		char		arg[16];

		sprintf(arg, "%d", pid);
		if (pid > 0)
			PQclear(execute(chance(50) ? ST_TERMINATE : ST_CANCEL, 1, arg, NULL));
		if (PQstatus(conn) != CONNECTION_OK && !connect_target())
			return;
		nap(opt_kill_ms * 500 + rnd(opt_kill_ms * 1000));
	}
}

/* Stops the armed clients while the second changes. */
static void
gate_main(void)
{
	if (!connect_target())
		return;
	while (!READ(stop))
	{
		struct timespec now;
		long		left;

		clock_gettime(CLOCK_REALTIME, &now);
		left = 1000000 - now.tv_nsec / 1000;
		if (left > 60000)
		{
			nap(left > 100000 ? 20000 : 5000);
			continue;
		}
		if (command("SELECT pg_advisory_lock(7001)"))
		{
			nap(left + 20000 + rnd(60000));
			(void) command("SELECT pg_advisory_unlock(7001)");
		}
		if (PQstatus(conn) != CONNECTION_OK && !connect_target())
			return;
	}
}

/* Start a process. */
static pid_t
start(void (*run) (void), int number, ClientKind kind)
{
	pid_t		pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
	{
		perror("fork");
		exit(2);
	}
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	random_state = 88172645463325252ULL + opt_seed * 7919ULL + number * 104729ULL;
	for (int i = 0; i < 20; i++)
		(void) rnd(2);
	if (run)
		run();
	else
	{
		slot = number;
		client_main(kind);
	}
	if (conn)
		PQfinish(conn);
	_exit(0);
}

/* Wait for processes; false if they do not end in time. */
static bool
wait_for(pid_t *children, int n, long until_ms)
{
	for (int i = 0; i < n; i++)
	{
		while (children[i] && waitpid(children[i], NULL, WNOHANG) == 0)
		{
			if (elapsed_ms() > until_ms)
				return false;
			if (elapsed_ms() > opt_seconds * 1000L)
				WRITE(stop, 1);
			nap(10000);
		}
		children[i] = 0;
	}
	return true;
}

/* Say who waits for whom. */
static void
show_stuck(void)
{
	PGresult   *result;

	slot = -1;
	if (!connect_target())
		return;
	result = PQexec(conn, "SELECT pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), left(query, 60)"
					" FROM pg_stat_activity WHERE datname IS NOT NULL");
	for (int i = 0; i < PQntuples(result); i++)
	{
		for (int j = 0; j < PQnfields(result); j++)
			fprintf(stderr, "%s%s", j ? "|" : "hammer: ", PQgetvalue(result, i, j));
		fputc('\n', stderr);
	}
}

/* Write what was told. */
static void
write_told(const char *path)
{
	FILE	   *file = fopen(path, "w");

	if (!file)
	{
		perror(path);
		exit(2);
	}
	for (int scope = 0; scope < SCOPES; scope++)
	{
		for (int key = 0; key < MAX_KEYS && scope != SCOPE_FORGET; key++)
		{
			if (shared->wins[scope][key] || shared->refusals[scope][key])
				fprintf(file, "%s\tk%d\t%d\t%d\n", scope_names[scope], key,
						shared->wins[scope][key], shared->refusals[scope][key]);
		}
	}
	fclose(file);
}

int
main(int argc, char **argv)
{
	pid_t		clients[MAX_CHILDREN];
	pid_t		others[3];
	int			n_clients = 0;
	int			n_others = 0;
	bool		ended;

	if (argc < 3)
		return 2;
	target_file = argv[1];
	for (int i = 3; i < argc; i++)
	{
		char	   *value = strchr(argv[i], '=');
		bool		found = false;

		if (!value)
			return 2;
		*value++ = '\0';
		if (strcmp(argv[i], "without") == 0)
		{
			opt_without = value;
			continue;
		}
		for (size_t j = 0; j < sizeof(options) / sizeof(options[0]); j++)
		{
			if (strcmp(argv[i], options[j].name) == 0)
			{
				*options[j].value = atoi(value);
				found = true;
			}
		}
		if (!found)
		{
			fprintf(stderr, "hammer: no option %s\n", argv[i]);
			return 2;
		}
	}
	if (opt_clients + opt_longs + opt_audits > MAX_CHILDREN)
		return 2;

	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	clock_gettime(CLOCK_MONOTONIC, &started);
	if (opt_seed == 0)
		opt_seed = time(NULL) % 100000;
	shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
	{
		perror("mmap");
		return 2;
	}

	others[n_others++] = start(resolver_main, 1001, CLIENT_SHORT);
	if (opt_kill_ms > 0)
		others[n_others++] = start(killer_main, 1002, CLIENT_SHORT);
	if (opt_gate)
		others[n_others++] = start(gate_main, 1003, CLIENT_SHORT);
	for (int i = 0; i < opt_clients + opt_longs + opt_audits; i++)
		clients[n_clients++] = start(NULL, i,
									 i < opt_clients ? CLIENT_SHORT :
									 i < opt_clients + opt_longs ? CLIENT_LONG : CLIENT_AUDIT);

	ended = wait_for(clients, n_clients, (opt_seconds + PATIENCE) * 1000L);
	WRITE(stop, 1);
	WRITE(done, 1);
	if (ended)
		ended = wait_for(others, n_others, elapsed_ms() + PATIENCE * 1000L);
	if (!ended)
	{
		unexpected("it does not end");
		show_stuck();
		for (int i = 0; i < n_clients; i++)
			if (clients[i])
				kill(clients[i], SIGKILL);
		for (int i = 0; i < n_others; i++)
			if (others[i])
				kill(others[i], SIGKILL);
	}
	write_told(argv[2]);

#define SHOW(what) printf(#what " %" PRId64 "\n", (int64_t) shared->what)
	printf("ms %ld\nseed %d\n", elapsed_ms(), opt_seed);
	SHOW(transactions);
	SHOW(claims);
	SHOW(won);
	SHOW(refused);
	SHOW(mine);
	SHOW(busy);
	SHOW(committed);
	SHOW(rolled_back);
	SHOW(prepared);
	SHOW(resolved);
	SHOW(savepoints);
	SHOW(batches);
	SHOW(audited);
	SHOW(forgets);
	SHOW(terminated);
	SHOW(cancelled);
	SHOW(deadlocks);
	SHOW(timeouts);
	SHOW(connections);
	SHOW(doubles);
	SHOW(double_ms);
	SHOW(unexpected);
	return ended ? 0 : 3;
}
