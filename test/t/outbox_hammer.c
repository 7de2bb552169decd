/*-------------------------------------------------------------------------
 *
 * outbox_hammer.c
 *	  Writers and consumers of the outbox who do all that can go wrong; a part
 *	  of test/t/OutboxHammer.pm.
 *
 * A writer counts under the row lock of what it writes about, and puts the
 * number into the event:
 *
 *	a	one of 30 keys, the row in the table agg, by all ways of emitting
 *	b	one of 6 keys, by transactions that stay open for long
 *	c	one of 20 keys, the row in the table captured, by capture
 *	u	no key
 *	r	written by a consumer in the transaction in which it fetches and acks
 *
 * Whatever is written is noted in the table hist in the same transaction, under
 * a name of its own, uid, which is in the event: kind/key/number/salt, with a !
 * at the end if it is poisoned.  What consumers are given is noted in the table
 * fetched in the transaction of the fetch, what became of it in the table ended
 * in the transaction of the ack, and so on: both are numbered under the shard's
 * lock.  OutboxHammer.pm compares all that.
 *
 * What a consumer has seen, and be it in a transaction that came to nothing, it
 * writes into a file: that must have been committed for good.
 *
 * Beside them: somebody who ends or cancels them, somebody who decides about
 * prepared transactions, somebody who changes the number of shards, and a
 * stranger whose transaction never ends.  When the
 * writers have stopped, consumers only do what is proper, until nothing is left
 * to be delivered, or nothing more comes.
 *
 *	outbox_hammer TARGET BASE [name=value ...]
 *
 * TARGET is a file with the conninfo, read at each connection.  BASE.N is
 * written by the N-th process: consumer, uid.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
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

#define MAX_CHILDREN	64
#define MAX_BATCH		200
#define ID_SIZE			40
#define UID_SIZE		100
#define LIST_SIZE		(MAX_BATCH * (UID_SIZE + 4))
#define PATIENCE		90		/* seconds without a connection, or that the end may take */

/* The consumers; OutboxHammer.pm subscribes them. */
static const struct
{
	const char *name;
	bool		ordered;
	int			workers;
}			consumers[] = {
	{"one", true, 2},
	{"three", true, 3},
	{"free", false, 3},
	{"some", true, 2},
};

#define CONSUMERS		((int) (sizeof(consumers) / sizeof(consumers[0])))

/* What the processes share. */
typedef struct Shared
{
	int			stop;			/* no new transactions of writers */
	int			done;			/* no more of consumers either */
	int			pids[MAX_CHILDREN]; /* backends that may be ended */
	int			salt;
	int64_t		written,
				committed,
				rolled_back,
				prepared,
				resolved,
				savepoints,
				claims,
				fetches,
				empty,
				events,
				acks,
				partial,
				nacks,
				dead,
				withdrawn,
				released,
				extended,
				expired,
				undone,
				replies,
				waits,
				altered,
				crashed,
				terminated,
				cancelled,
				conflicts,
				connections,
				stalled,
				unexpected;
} Shared;

static Shared *shared;

#define COUNT(what)		__atomic_add_fetch(&shared->what, 1, __ATOMIC_SEQ_CST)
#define READ(what)		__atomic_load_n(&shared->what, __ATOMIC_SEQ_CST)
#define WRITE(what, v)	__atomic_store_n(&shared->what, v, __ATOMIC_SEQ_CST)

/* Options. */
static const char *target_file;
static const char *base_file;
static char *opt_without = "";
static int	opt_writers = 5;
static int	opt_longs = 2;		/* writers whose transactions stay open */
static int	opt_long_ms = 4000; /* for as long as this, at most */
static int	opt_seconds = 40;
static int	opt_pace_ms = 40;	/* between two transactions of a writer, at most */
static int	opt_kill_ms = 400;	/* how often one is ended or cancelled */
static int	opt_alter_ms = 1000;	/* how often the number of shards is changed */
static int	opt_outage = 0;		/* the server may go away */
static int	opt_sync_off = 30;	/* percent that write or fetch with synchronous_commit = off */
static int	opt_proper = 0;		/* consumers do nothing wrong */
static int	opt_stall_s = 15;	/* nothing more comes if nothing came for so long */
static int	opt_seed = 0;

static const struct
{
	const char *name;
	int		   *value;
}			options[] = {
	{"writers", &opt_writers}, {"longs", &opt_longs}, {"long_ms", &opt_long_ms},
	{"seconds", &opt_seconds}, {"pace_ms", &opt_pace_ms}, {"kill_ms", &opt_kill_ms},
	{"alter_ms", &opt_alter_ms}, {"outage", &opt_outage}, {"sync_off", &opt_sync_off}, {"proper", &opt_proper},
	{"stall_s", &opt_stall_s}, {"seed", &opt_seed},
};

/* An event that was handed out. */
typedef struct Item
{
	char		id[ID_SIZE];
	char		uid[UID_SIZE];
	bool		gone;			/* acked, nacked or withdrawn */
} Item;

/* A lease. */
static struct
{
	char		token[24];
	int			n;
	int			lease_ms;
	long		asked_ms;		/* it began after this */
	long		got_ms;			/* and before that */
	bool		delicate;		/* has an event that has failed often enough */
	Item		items[MAX_BATCH];
}			batch;

/* A client. */
static PGconn *conn = NULL;
static int	slot = -1;			/* in shared->pids; -1: never to be ended */
static int	number;				/* of the process */
static int	consumer;			/* index in consumers */
static int	file = -1;
static const char *tolerated = NULL;	/* this SQLSTATE is no surprise now */
static bool was_refused;		/* the last statement failed with it */
static char cause[UID_SIZE];	/* of what is written now */
static int	gid_number = 0;
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
nap_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

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
	fprintf(stderr, "outbox_hammer: %d at %ld ms: ", number, elapsed_ms());
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

	if (tolerated && strcmp(sqlstate, tolerated) == 0)
		return was_refused = true;
	if (strcmp(sqlstate, "57P01") == 0 && (killed || opt_outage))
		return COUNT(terminated);
	/* what libpq says last is that the connection is gone */
	if (sqlstate[0] == '\0' && (killed || opt_outage))
		return COUNT(terminated);
	if (opt_outage && (strcmp(sqlstate, "57P02") == 0 || strcmp(sqlstate, "57P03") == 0))
		return true;
	if (strcmp(sqlstate, "57014") == 0 && killed)
		return COUNT(cancelled);

	/* writers lock rows in any order, at any level, and do not wait for long */
	if (consumer < 0 && (strcmp(sqlstate, "40P01") == 0 || strcmp(sqlstate, "40001") == 0 ||
						 strcmp(sqlstate, "55P03") == 0))
		return COUNT(conflicts);
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
		unexpected("%.60s: %s: %s", what, sqlstate ? sqlstate : "no SQLSTATE",
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

/* Run a statement with arguments. */
static PGresult *
query(const char *sql, int n,...)
{
	const char *values[10];
	va_list		args;

	va_start(args, n);
	for (int i = 0; i < n; i++)
		values[i] = va_arg(args, const char *);
	va_end(args);
	return judge(PQexecParams(conn, sql, n, NULL, values, NULL, NULL, 0), sql);
}

/* Commit; false if it came to something else. */
static bool
commit(void)
{
	PGresult   *result = judge(PQexec(conn, "COMMIT"), "COMMIT");
	bool		ok;

	if (result == NULL)
		return false;
	ok = strcmp(PQcmdStatus(result), "COMMIT") == 0;
	if (!ok)
		unexpected("COMMIT was answered by %s", PQcmdStatus(result));
	PQclear(result);
	return ok;
}

/* Leave the transaction to the one who decides. */
static bool
prepare(void)
{
	if (!command("PREPARE TRANSACTION 'o/%d.%d'", getpid(), ++gid_number))
		return false;
	COUNT(prepared);
	return true;
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
	snprintf(extra, sizeof(extra), "%s%s", opt_without[0] ? "-c idemq.test_without=" : "", opt_without);
	for (long give_up = elapsed_ms() + PATIENCE * 1000; elapsed_ms() < give_up;)
	{
		const char *keys[] = {"dbname", "options", NULL};
		const char *values[] = {conninfo, extra, NULL};
		FILE	   *target = fopen(target_file, "r");
		size_t		n = 0;

		if (target)
		{
			n = fread(conninfo, 1, sizeof(conninfo) - 1, target);
			fclose(target);
		}
		conninfo[n] = '\0';
		if (conn)
			PQfinish(conn);
		conn = PQconnectdbParams(keys, values, 1);
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
		nap_ms(20);
	}
	unexpected("no connection for %d s", PATIENCE);
	return false;
}

/* After an error: out of the transaction, or a new connection. */
static bool
recover(void)
{
	tolerated = NULL;
	if (PQstatus(conn) == CONNECTION_OK &&
		(PQtransactionStatus(conn) == PQTRANS_IDLE || command("ROLLBACK")))
		return true;
	return connect_target();
}

/* ---- writers ---------------------------------------------------------- */

/* Write an event, one way or another; false on an error. */
static bool
write_event(const char *kind)
{
	/* the number, and a note */
	static const char count[] =
	"WITH u AS (UPDATE agg SET n = n + 1 WHERE kind = $1 AND id = $2"
	" RETURNING concat_ws('/', kind, id, n, $3::text) AS uid, n),"
	" h AS (INSERT INTO hist (uid, kind, key, n, cause, not_before)"
	"  SELECT uid, $1, $2, n, $4::text, to_timestamp($5::float8) FROM u)"
	" SELECT uid FROM u";
	static const char at_once[] =
	"WITH u AS (UPDATE agg SET n = n + 1 WHERE kind = $1 AND id = $2"
	" RETURNING concat_ws('/', kind, id, n, $3::text) AS uid, n),"
	" h AS (INSERT INTO hist (uid, kind, key, n, cause, not_before)"
	"  SELECT uid, $1, $2, n, $4::text, to_timestamp($5::float8) FROM u)"
	" SELECT outbox_emit($1, jsonb_build_object('uid', uid), $2, 'at once', NULL, to_timestamp($5::float8)) FROM u";
	static const char unkeyed[] =
	"WITH h AS (INSERT INTO hist (uid, kind, n, cause, not_before)"
	"  VALUES (concat_ws('/', $1::text, '-', 0, $2::text), $1, 0, $3::text, to_timestamp($4::float8)) RETURNING uid)"
	" SELECT outbox_emit($1, jsonb_build_object('uid', uid), NULL, 'no key', NULL, to_timestamp($4::float8)) FROM h";
	static const char captured[] =
	"WITH u AS (UPDATE captured SET n = n + 1, uid = concat_ws('/', 'c', id, n + 1, $2::text)"
	"  WHERE id = $1 RETURNING uid, n)"
	" INSERT INTO hist (uid, kind, key, n, cause) SELECT uid, 'c', $1, n, $3::text FROM u";
	static const char *const ways[] = {
		"SELECT outbox_emit($1, jsonb_build_object('uid', $3::text), $2, 'emit', NULL, to_timestamp($4::float8))",
		"INSERT INTO idemq.outbox (aggregatetype, aggregateid, type, payload, not_before)"
		" VALUES ($1, $2, 'insert', jsonb_build_object('uid', $3::text), to_timestamp($4::float8))",
		"SELECT outbox_emit_bytes($1, convert_to($3, 'UTF8'), $2, 'bytes', NULL, to_timestamp($4::float8))",
	};
	char		key[16];
	char		salt[24];
	char		uid[UID_SIZE];
	char		due[24];
	const char *not_before = NULL;
	PGresult   *result;

	snprintf(salt, sizeof(salt), "%d%s", COUNT(salt), strchr("au", kind[0]) && rnd(300) == 0 ? "!" : "");
	snprintf(key, sizeof(key), "k%u", rnd(kind[0] == 'a' ? 30 : kind[0] == 'b' ? 6 : 20));
	if (strchr("au", kind[0]) && chance(3))
	{
		struct timespec now;

		clock_gettime(CLOCK_REALTIME, &now);
		snprintf(due, sizeof(due), "%.3f", now.tv_sec + now.tv_nsec / 1e9 + rnd(1500) / 1e3);
		not_before = due;
	}

	if (kind[0] == 'u')
		result = query(unkeyed, 4, kind, salt, cause[0] ? cause : NULL, not_before);
	else if (kind[0] == 'c')
		result = query(captured, 3, key, salt, cause[0] ? cause : NULL);
	else if (chance(40))
		result = query(at_once, 5, kind, key, salt, cause[0] ? cause : NULL, not_before);
	else
	{
		result = query(count, 5, kind, key, salt, cause[0] ? cause : NULL, not_before);
		if (result == NULL)
			return false;
		snprintf(uid, sizeof(uid), "%s", PQgetvalue(result, 0, 0));
		PQclear(result);
		if (chance(20))
			nap_ms(rnd(5));
		result = query(ways[rnd(3)], 4, kind, key, uid, not_before);
	}
	PQclear(result);
	if (result)
		COUNT(written);
	return result != NULL;
}

/* Claim a message that is new; events from now on have it as their cause. */
static bool
claim(void)
{
	char		key[UID_SIZE];
	PGresult   *result;

	snprintf(key, sizeof(key), "m%d", COUNT(salt));
	result = query("SELECT idem_claim($1, 'hammer'), idem_key('hammer', $1)", 1, key);
	if (result == NULL)
		return false;
	if (PQgetvalue(result, 0, 0)[0] != 't')
		unexpected("%s is claimed already", key);
	snprintf(cause, sizeof(cause), "%s", PQgetvalue(result, 0, 1));
	PQclear(result);
	COUNT(claims);
	return true;
}

/* A few events, some of them in subtransactions that may come to nothing. */
static bool
write_events(int n)
{
	static const char *const kinds[] = {"a", "a", "a", "a", "b", "c", "c", "u"};

	for (int i = 0; i < n; i++)
	{
		const char *kind = kinds[rnd(8)];
		char		before[UID_SIZE];

		if (chance(10) && !claim())
			return false;
		if (chance(75))
		{
			if (!write_event(kind))
				return false;
			continue;
		}
		COUNT(savepoints);
		strcpy(before, cause);
		if (!command("SAVEPOINT s") || (chance(20) && !claim()) || !write_event(kind))
			return false;
		if (chance(50))
		{
			if (!command("RELEASE s"))
				return false;
			continue;
		}
		if (!command("ROLLBACK TO s"))
			return false;
		strcpy(cause, before);
	}
	return true;
}

/* One transaction of a writer. */
static void
write_transaction(bool is_long)
{
	static const char *const levels[] = {"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"};
	int			level = chance(60) ? 0 : 1 + rnd(2);
	int			how = rnd(100);
	bool		ok;

	cause[0] = '\0';
	ok = command("BEGIN ISOLATION LEVEL %s; SET LOCAL lock_timeout = '%ums'%s", levels[level],
				 is_long ? 3000 : 20 + rnd(400),
				 chance(opt_sync_off) ? "; SET LOCAL synchronous_commit = off" : "");
	/* an old snapshot; for one who is long perhaps older than some partitions */
	if (ok && level > 0 && chance(30))
	{
		ok = command("SELECT count(*) FROM pg_class");
		nap_ms(is_long ? rnd(opt_long_ms / 2) : rnd(20));
	}
	/* its number is older than that of others who commit before it */
	if (ok && chance(20))
		ok = command("SELECT pg_current_xact_id()");
	if (is_long)
	{
		long		until = elapsed_ms() + rnd(opt_long_ms);

		ok = ok && (chance(30) || write_event(chance(50) ? "b" : "u"));
		while (ok && elapsed_ms() < until && !READ(stop))
			nap_ms(20);
	}
	ok = ok && write_events(1 + rnd(is_long ? 3 : 5));
	if (ok && chance(30))
		nap_ms(rnd(20));
	if (ok && how < 70)
	{
		if ((ok = commit()))
			COUNT(committed);
	}
	else if (ok && how < 85)
	{
		if ((ok = command("ROLLBACK")))
			COUNT(rolled_back);
	}
	else if (ok)
		ok = prepare();
	if (!ok)
		(void) recover();
}

static void
writer_main(bool is_long)
{
	if (!connect_target())
		return;
	while (!READ(stop))
	{
		write_transaction(is_long);
		nap_ms(rnd(opt_pace_ms + 1));
	}
	WRITE(pids[slot], 0);
}

/* ---- consumers -------------------------------------------------------- */

/* Note in the file what was seen. */
static void
note_received(void)
{
	static char text[MAX_BATCH * (UID_SIZE + 20)];
	int			length = 0;

	for (int i = 0; i < batch.n; i++)
		length += sprintf(text + length, "%s\t%s\n", consumers[consumer].name, batch.items[i].uid);
	if (length > 0 && write(file, text, length) != length)
		unexpected("cannot write: %s", strerror(errno));
}

/* Fetch, and note it; false on an error. */
static bool
fetch(void)
{
	static const char sql[] =
	"WITH f AS MATERIALIZED (SELECT *, coalesce(payload->>'uid', convert_from(body, 'UTF8')) AS uid"
	"  FROM outbox_fetch($1, $2::int, $3::interval) WITH ORDINALITY AS f),"
	" i AS (INSERT INTO fetched (consumer, token, place, id, uid, event_cause, attempt, deliveries, worker, until)"
	"  SELECT $1, token, ordinality, id, uid, cause, attempt, deliveries, $4::int, statement_timestamp() + $3::interval"
	"  FROM f ORDER BY ordinality)"
	" SELECT token, id, uid, attempt, deliveries FROM f ORDER BY ordinality";
	static const int sizes[] = {1, 2, 5, 20, 100, MAX_BATCH};
	char		size[16];
	char		lease[16];
	char		worker[16];
	PGresult   *result;

	snprintf(size, sizeof(size), "%d", READ(stop) ? MAX_BATCH : sizes[rnd(6)]);
	batch.lease_ms = READ(stop) || opt_proper ? 5000 : chance(30) ? 100 + rnd(200) : 300 + rnd(1000);
	snprintf(lease, sizeof(lease), "%dms", batch.lease_ms);
	snprintf(worker, sizeof(worker), "%d", number);
	batch.n = 0;
	batch.delicate = false;
	batch.asked_ms = elapsed_ms();
	result = query(sql, 4, consumers[consumer].name, size, lease, worker);
	batch.got_ms = elapsed_ms();
	if (result == NULL)
		return false;
	COUNT(fetches);
	if (PQntuples(result) > atoi(size))
		unexpected("%d events, not %s", PQntuples(result), size);
	for (int i = 0; i < PQntuples(result) && i < MAX_BATCH; i++)
	{
		Item	   *item = &batch.items[batch.n++];

		COUNT(events);
		if (i > 0 && strcmp(batch.token, PQgetvalue(result, i, 0)) != 0)
			unexpected("two tokens in one fetch");
		snprintf(batch.token, sizeof(batch.token), "%s", PQgetvalue(result, i, 0));
		snprintf(item->id, sizeof(item->id), "%s", PQgetvalue(result, i, 1));
		snprintf(item->uid, sizeof(item->uid), "%s", PQgetvalue(result, i, 2));
		item->gone = false;
		if (atoi(PQgetvalue(result, i, 3)) > 3 || atoi(PQgetvalue(result, i, 4)) > 8)
			batch.delicate = true;
	}
	PQclear(result);
	note_received();
	return true;
}

static bool
is_poisoned(const Item *item)
{
	return item->uid[strlen(item->uid) - 1] == '!';
}

/* A refusal is no surprise if the lease has run out: settle() will see. */
static void
expect_refusal(void)
{
	was_refused = false;
	tolerated = "55000";
}

/* How it came out; was it refused too early, or not at all? */
static bool
settle(PGresult *result, long asked_ms, const char *what)
{
	tolerated = NULL;
	if (result == NULL)
	{
		if (was_refused)
		{
			COUNT(expired);
			if (elapsed_ms() < batch.asked_ms + batch.lease_ms)
				unexpected("%s was refused %ld ms before the lease's end", what,
						   batch.asked_ms + batch.lease_ms - elapsed_ms());
		}
		return false;
	}
	if (asked_ms > batch.got_ms + batch.lease_ms + 1)
		unexpected("%s was allowed %ld ms after the lease's end", what,
				   asked_ms - batch.got_ms - batch.lease_ms);
	return true;
}

/* The next few events that are left, as two arrays; how many. */
static int
list_left(int most, char *ids, char *uids, bool poisoned_too)
{
	int			n = 0;

	strcpy(ids, "{");
	strcpy(uids, "{");
	for (int i = 0; i < batch.n && n < most; i++)
	{
		const Item *item = &batch.items[i];

		if (item->gone)
			continue;
		if (is_poisoned(item) && !poisoned_too)
			break;
		ids += sprintf(ids, "%s%s", n ? "," : "{", item->id);
		uids += sprintf(uids, "%s%s", n ? "," : "{", item->uid);
		n++;
	}
	strcpy(n ? ids : ids + 1, "}");
	strcpy(n ? uids : uids + 1, "}");
	return n;
}

/* Mark the first n that are left as gone. */
static void
mark_gone(int n)
{
	for (int i = 0; i < batch.n && n > 0; i++)
	{
		if (!batch.items[i].gone)
		{
			batch.items[i].gone = true;
			n--;
		}
	}
}

/* Ack the first n that are left, up to one that is poisoned; false on an error. */
static bool
ack(int n)
{
	static const char sql[] =
	"WITH a AS MATERIALIZED (SELECT outbox_ack($2::bigint, $3::uuid[]) AS n),"
	" e AS (INSERT INTO ended (consumer, token, uid, how)"
	"  SELECT $1, $2::bigint, u.uid, 'ack' FROM a, unnest($4::text[]) WITH ORDINALITY AS u(uid, place) ORDER BY place)"
	" SELECT n FROM a";
	static char ids[LIST_SIZE];
	static char uids[LIST_SIZE];
	int			left = list_left(MAX_BATCH, ids, uids, true);
	bool		all;
	long		asked_ms = elapsed_ms();
	PGresult   *result;

	n = list_left(n, ids, uids, false);
	if (n == 0)
		return true;
	all = n == left && chance(70);
	expect_refusal();
	result = query(sql, 4, consumers[consumer].name, batch.token, all ? NULL : ids, uids);
	if (!settle(result, asked_ms, "ack"))
		return false;
	if (atoi(PQgetvalue(result, 0, 0)) != n)
		unexpected("ack of %d events of %d of token %s: %s", n, batch.n, batch.token, PQgetvalue(result, 0, 0));
	PQclear(result);
	COUNT(acks);
	if (n < left)
		COUNT(partial);
	mark_gone(n);
	return true;
}

/* Nack one; those that are withdrawn with it are gone, too. */
static bool
nack(Item *item)
{
	static const char sql[] =
	"WITH n AS MATERIALIZED (SELECT * FROM outbox_nack($2::bigint, $3::uuid, 'nacked by the hammer', $5::interval)),"
	" e AS (INSERT INTO ended (consumer, token, uid, how, not_before)"
	"  SELECT $1, $2::bigint, $4, CASE action WHEN 'retry' THEN 'nack' ELSE action END, retry_at FROM n),"
	" w AS (INSERT INTO ended (consumer, token, uid, how)"
	"  SELECT $1, $2::bigint, f.uid, 'withdrawn' FROM n, fetched AS f"
	"  WHERE f.token = $2::bigint AND f.id = ANY (withdrawn))"
	" SELECT action, attempt, withdrawn FROM n";
	long		asked_ms = elapsed_ms();
	const char *withdrawn;
	PGresult   *result;

	expect_refusal();
	result = query(sql, 5, consumers[consumer].name, batch.token, item->id, item->uid, chance(20) ? "30ms" : NULL);
	if (!settle(result, asked_ms, "nack"))
		return false;
	COUNT(nacks);
	item->gone = true;
	if (strcmp(PQgetvalue(result, 0, 0), "dead") == 0)
	{
		COUNT(dead);
		if (!is_poisoned(item))
			unexpected("%s is dead after attempt %s", item->uid, PQgetvalue(result, 0, 1));
	}
	withdrawn = PQgetvalue(result, 0, 2);
	for (int i = 0; i < batch.n; i++)
	{
		if (strstr(withdrawn, batch.items[i].id) == NULL)
			continue;
		if (!consumers[consumer].ordered || batch.items[i].gone || &batch.items[i] < item)
			unexpected("%s was withdrawn with %s", batch.items[i].uid, item->uid);
		batch.items[i].gone = true;
		COUNT(withdrawn);
	}
	PQclear(result);
	return true;
}

/* Give back what is left. */
static bool
release(void)
{
	static const char sql[] =
	"WITH r AS MATERIALIZED (SELECT outbox_release($2::bigint, $3::uuid[], $5::interval) AS n),"
	" e AS (INSERT INTO ended (consumer, token, uid, how, not_before)"
	"  SELECT $1, $2::bigint, u, 'release', statement_timestamp() + $5::interval FROM r, unnest($4::text[]) AS u)"
	" SELECT n FROM r";
	static char ids[LIST_SIZE];
	static char uids[LIST_SIZE];
	int			n = list_left(MAX_BATCH, ids, uids, true);
	long		asked_ms = elapsed_ms();
	PGresult   *result;

	if (n == 0)
		return true;
	expect_refusal();
	result = query(sql, 5, consumers[consumer].name, batch.token, chance(70) ? NULL : ids, uids,
				   chance(50) ? NULL : "100ms");
	if (!settle(result, asked_ms, "release"))
		return false;
	if (atoi(PQgetvalue(result, 0, 0)) != n)
		unexpected("release of %d events: %s", n, PQgetvalue(result, 0, 0));
	PQclear(result);
	COUNT(released);
	mark_gone(n);
	return true;
}

/* Heartbeat. */
static bool
extend(int ms)
{
	char		lease[16];
	long		asked_ms = elapsed_ms();
	PGresult   *result;

	snprintf(lease, sizeof(lease), "%dms", ms);
	expect_refusal();
	result = query("WITH x AS MATERIALIZED (SELECT outbox_extend($1::bigint, $2::interval) AS until),"
				   " u AS (UPDATE fetched SET until = x.until FROM x WHERE token = $1::bigint)"
				   " SELECT until FROM x", 2, batch.token, lease);
	if (!settle(result, asked_ms, "extend"))
		return false;
	PQclear(result);
	batch.asked_ms = asked_ms;
	batch.got_ms = elapsed_ms();
	batch.lease_ms = ms;
	COUNT(extended);
	return true;
}

/* Does the process die here, as it would if somebody pulled the plug? */
static void
perhaps_crash(unsigned percent)
{
	if (!chance(percent) || READ(stop) || opt_proper || batch.delicate)
		return;
	COUNT(crashed);
	raise(SIGKILL);
}

/* Acks and nacks as it should be, up to the end of the batch. */
static bool
work(void)
{
	for (int i = 0; i < batch.n; i++)
	{
		if (batch.items[i].gone)
			continue;
		if (is_poisoned(&batch.items[i]))
		{
			if (!nack(&batch.items[i]))
				return false;
		}
		else if (!ack(chance(70) ? MAX_BATCH : 1 + rnd(20)))
			return false;
	}
	return true;
}

/* An answer to the batch. */
static bool
reply(void)
{
	char		salt[24];
	char		key[16];
	PGresult   *result;

	snprintf(salt, sizeof(salt), "%d", COUNT(salt));
	snprintf(key, sizeof(key), "k%u", rnd(5));
	result = query("WITH u AS (UPDATE agg SET n = n + 1 WHERE kind = 'r' AND id = $1"
				   " RETURNING concat_ws('/', kind, id, n, $2::text) AS uid, n),"
				   " h AS (INSERT INTO hist (uid, kind, key, n) SELECT uid, 'r', $1, n FROM u)"
				   " SELECT outbox_emit('r', jsonb_build_object('uid', uid), $1, 'reply') FROM u", 2, key, salt);
	PQclear(result);
	if (result)
		COUNT(replies);
	return result != NULL;
}

/* Fetch, answer and ack in one transaction, while others commit. */
static bool
consume_at_once(void)
{
	bool		first = chance(50);
	bool		ok = command("BEGIN");

	if (ok && chance(50))
		ok = command("SELECT pg_current_xact_id()");
	ok = ok && (!first || reply());
	if (ok && chance(75))
		nap_ms(1 + rnd(30));
	ok = ok && fetch();
	if (ok && batch.n > 0)
		ok = (first || reply()) && work();
	if (ok && chance(30))
		nap_ms(rnd(100));
	perhaps_crash(3);
	if (ok && chance(15))
		return command("ROLLBACK") && COUNT(undone);
	if (ok && chance(10))
		return prepare();
	return ok && commit();
}

/* A batch, and what a consumer does with it. */
static bool
consume_improperly(void)
{
	int			what = rnd(100);
	Item	   *item;

	if (what < 30)
		return work();
	if (what < 40)
	{
		bool		ok = command("BEGIN") && work();

		if (ok && chance(20))
			return command("ROLLBACK") && COUNT(undone);
		if (ok && chance(30))
			return prepare();
		return ok && commit();
	}
	if (what < 58)
	{
		/* some, then perhaps a nack, and the others or not */
		if (!ack(rnd(batch.n) + 1))
			return false;
		item = &batch.items[rnd(batch.n)];
		if (!item->gone && !nack(item))
			return false;
		perhaps_crash(10);
		return chance(30) ? release() : work();
	}
	if (what < 66)
		return (chance(50) || ack(rnd(batch.n) + 1)) && release();
	if (what < 76)
	{
		/* longer than the lease; perhaps somebody else has it by now */
		if (chance(30) && !ack(rnd(batch.n) + 1))
			return false;
		nap_ms(batch.lease_ms + rnd(40));
		return chance(50) ? work() : chance(50) ? extend(500) : release();
	}
	if (what < 84)
	{
		int			old = batch.lease_ms;

		if (!extend(400 + rnd(400)))
			return false;
		nap_ms(rnd(old));
		return work();
	}
	perhaps_crash(50);

	/* forgotten: the lease runs out */
	return true;
}

static bool
consume(void)
{
	bool		proper = READ(stop) || opt_proper;

	if (!proper && consumer == 0 && chance(35))
		return consume_at_once();
	if (chance(40))
	{
		bool		ok = command("BEGIN") && (!chance(opt_sync_off) || command("SET LOCAL synchronous_commit = off"));

		ok = ok && fetch();
		if (ok && chance(20))
			nap_ms(rnd(60));
		perhaps_crash(2);
		if (ok && !proper && chance(8))
			return command("ROLLBACK") && COUNT(undone);
		if (!ok || !commit())
			return false;
	}
	else if (!fetch())
		return false;
	if (batch.n == 0)
	{
		COUNT(empty);
		if (chance(50))
		{
			COUNT(waits);
			return command("CALL outbox_wait('%s', '%ums')", consumers[consumer].name, 50 + rnd(300));
		}
		nap_ms(rnd(20));
		return true;
	}
	if (proper || batch.delicate)
		return work();
	return consume_improperly();
}

static void
consumer_main(void)
{
	char		path[1024];

	snprintf(path, sizeof(path), "%s.%d", base_file, number);
	file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (file < 0)
	{
		unexpected("%s: %s", path, strerror(errno));
		return;
	}
	if (!connect_target())
		return;
	while (!READ(done))
	{
		if (!consume() && !recover())
			return;
	}
	WRITE(pids[slot], 0);
}

/* ---- the others ------------------------------------------------------- */

/* Decides about prepared transactions. */
static void
resolver_main(void)
{
	if (!connect_target())
		return;
	while (!READ(done))
	{
		PGresult   *result = query("SELECT gid, now() - prepared > interval '1 s' FROM pg_prepared_xacts"
								   " WHERE database = current_database()", 0);

		for (int i = 0; result && i < PQntuples(result); i++)
		{
			if (PQgetvalue(result, i, 1)[0] != 't' && !READ(stop) && chance(80))
				continue;
			/* busy: it waits for the standby */
			tolerated = "55000";
			if (!command("%s PREPARED '%s'", chance(65) ? "COMMIT" : "ROLLBACK", PQgetvalue(result, i, 0)))
				break;
			COUNT(resolved);
		}
		PQclear(result);
		tolerated = NULL;
		if (PQstatus(conn) != CONNECTION_OK && !connect_target())
			return;
		nap_ms(10);
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
		int			pid = READ(pids[rnd(MAX_CHILDREN)]);
		char		arg[16];

		if (pid == 0)
			continue;
		snprintf(arg, sizeof(arg), "%d", pid);
		PQclear(query(chance(50) ? "SELECT pg_terminate_backend($1::int)" : "SELECT pg_cancel_backend($1::int)",
					  1, arg));
		if (PQstatus(conn) != CONNECTION_OK && !connect_target())
			return;
		nap_ms(opt_kill_ms / 2 + rnd(opt_kill_ms));
	}
}

/* Changes the number of shards, when no lease is out. */
static void
operator_main(void)
{
	if (!connect_target())
		return;
	while (!READ(stop))
	{
		tolerated = "55006";
		if (command("SELECT outbox_alter('%s', shards => %u)", rnd(2) ? "three" : "some", 1 + rnd(4)))
			COUNT(altered);
		tolerated = NULL;
		if (PQstatus(conn) != CONNECTION_OK && !connect_target())
			return;
		nap_ms(opt_alter_ms / 10 + rnd(opt_alter_ms / 5));
	}
}

/* Has nothing to do with it: a transaction with an xid and a snapshot, open to the end. */
static void
stranger_main(void)
{
	while (!READ(done))
	{
		if (!connect_target())
			return;
		if (!command("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()"))
			continue;
		while (!READ(done) && PQstatus(conn) == CONNECTION_OK)
		{
			nap_ms(100);
			PQclear(PQexec(conn, "SELECT 1"));
		}
	}
}

/* ---- main ------------------------------------------------------------- */

typedef enum Role
{
	WRITER, LONG_WRITER, CONSUMER, RESOLVER, KILLER, OPERATOR, STRANGER
} Role;

static struct
{
	pid_t		pid;
	Role		role;
	int			consumer;
	int			starts;
}			children[MAX_CHILDREN];
static int	n_children = 0;

/* Start a process, or start it again. */
static void
start(int i)
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
	{
		children[i].pid = pid;
		children[i].starts++;
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (conn)
		conn = NULL;			/* the parent's */
	number = i;
	random_state = 88172645463325252ULL + opt_seed * 7919ULL + i * 104729ULL + children[i].starts * 15485863ULL;
	for (int j = 0; j < 20; j++)
		(void) rnd(2);
	consumer = children[i].role == CONSUMER ? children[i].consumer : -1;
	if (children[i].role <= CONSUMER)
		slot = i;
	switch (children[i].role)
	{
		case WRITER:
		case LONG_WRITER:
			writer_main(children[i].role == LONG_WRITER);
			break;
		case CONSUMER:
			consumer_main();
			break;
		case RESOLVER:
			resolver_main();
			break;
		case KILLER:
			killer_main();
			break;
		case OPERATOR:
			operator_main();
			break;
		case STRANGER:
			stranger_main();
			break;
	}
	if (conn)
		PQfinish(conn);
	_exit(0);
}

static void
add(Role role, int which)
{
	if (n_children == MAX_CHILDREN)
		exit(2);
	children[n_children].role = role;
	children[n_children].consumer = which;
	start(n_children++);
}

/* Look after the processes: those that crashed start again.  How many of these roles are left? */
static int
look_after(Role from, Role to)
{
	int			left = 0;

	for (int i = 0; i < n_children; i++)
	{
		int			status;

		if (children[i].pid && waitpid(children[i].pid, &status, WNOHANG) != 0)
		{
			children[i].pid = 0;
			if (WIFSIGNALED(status) && children[i].role == CONSUMER && !READ(done))
				start(i);
			else if (WIFSIGNALED(status) && !READ(done))
				unexpected("process %d: signal %d", i, WTERMSIG(status));
		}
		if (children[i].pid && children[i].role >= from && children[i].role <= to)
			left++;
	}
	return left;
}

/* What is still to be delivered: a number, and how often something ended. */
static bool
look_at_rest(int64_t *rest, int64_t *ended)
{
	PGresult   *result;

	if (conn == NULL || PQstatus(conn) != CONNECTION_OK)
	{
		if (!connect_target())
			return false;
	}
	result = query("SELECT (SELECT count(*) FROM undelivered), (SELECT count(*) FROM ended),"
				   " (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())", 0);
	if (result == NULL)
		return false;
	*rest = atoll(PQgetvalue(result, 0, 0)) + atoll(PQgetvalue(result, 0, 2));
	*ended = atoll(PQgetvalue(result, 0, 1));
	PQclear(result);
	return true;
}

/* Say who waits for whom. */
static void
show_stuck(void)
{
	PGresult   *result;

	if (!connect_target())
		return;
	result = PQexec(conn, "SELECT pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), left(query, 60)"
					" FROM pg_stat_activity WHERE datname IS NOT NULL");
	for (int i = 0; i < PQntuples(result); i++)
	{
		for (int j = 0; j < PQnfields(result); j++)
			fprintf(stderr, "%s%s", j ? "|" : "outbox_hammer: ", PQgetvalue(result, i, j));
		fputc('\n', stderr);
	}
	PQclear(result);
}

int
main(int argc, char **argv)
{
	int64_t		rest = -1;
	int64_t		ended = 0;
	int64_t		ended_before = -1;
	long		progress_ms;
	long		drain_ms;
	long		give_up_ms;
	bool		finished = true;

	if (argc < 3)
		return 2;
	target_file = argv[1];
	base_file = argv[2];
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
			fprintf(stderr, "outbox_hammer: no option %s\n", argv[i]);
			return 2;
		}
	}

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
	number = -1;
	consumer = -1;

	add(STRANGER, 0);
	add(RESOLVER, 0);
	for (int i = 0; i < opt_writers; i++)
		add(WRITER, 0);
	for (int i = 0; i < opt_longs; i++)
		add(LONG_WRITER, 0);
	for (int i = 0; i < CONSUMERS; i++)
	{
		for (int j = 0; j < consumers[i].workers; j++)
			add(CONSUMER, i);
	}
	if (opt_kill_ms > 0)
		add(KILLER, 0);
	if (opt_alter_ms > 0)
		add(OPERATOR, 0);

	while (elapsed_ms() < opt_seconds * 1000L)
	{
		(void) look_after(WRITER, STRANGER);
		nap_ms(20);
	}
	WRITE(stop, 1);
	give_up_ms = elapsed_ms() + PATIENCE * 1000L + opt_long_ms;
	while (look_after(WRITER, LONG_WRITER) > 0 && elapsed_ms() < give_up_ms)
		nap_ms(20);
	finished = look_after(WRITER, LONG_WRITER) == 0;

	/* all is delivered, or nothing more comes */
	drain_ms = progress_ms = elapsed_ms();
	while (finished && rest != 0 && elapsed_ms() < progress_ms + opt_stall_s * 1000L)
	{
		(void) look_after(WRITER, STRANGER);
		if (look_at_rest(&rest, &ended) && ended != ended_before)
		{
			ended_before = ended;
			progress_ms = elapsed_ms();
		}
		nap_ms(200);
	}
	drain_ms = elapsed_ms() - drain_ms;
	if (rest != 0)
		COUNT(stalled);

	/* and what more would come now is one delivery too many */
	for (long until = elapsed_ms() + 1500; elapsed_ms() < until; nap_ms(20))
		(void) look_after(WRITER, STRANGER);
	WRITE(done, 1);
	give_up_ms = elapsed_ms() + PATIENCE * 1000L;
	while (look_after(WRITER, STRANGER) > 0 && elapsed_ms() < give_up_ms)
		nap_ms(20);
	if (!finished || look_after(WRITER, STRANGER) > 0)
	{
		finished = false;
		unexpected("it does not end");
		show_stuck();
	}
	for (int i = 0; i < n_children; i++)
	{
		if (children[i].pid)
			kill(children[i].pid, SIGKILL);
	}

#define SHOW(what) printf(#what " %" PRId64 "\n", (int64_t) shared->what)
	printf("ms %ld\ndrain_ms %ld\nrest %" PRId64 "\nseed %d\n", elapsed_ms(), drain_ms, rest, opt_seed);
	SHOW(written);
	SHOW(committed);
	SHOW(rolled_back);
	SHOW(prepared);
	SHOW(resolved);
	SHOW(savepoints);
	SHOW(claims);
	SHOW(fetches);
	SHOW(empty);
	SHOW(events);
	SHOW(acks);
	SHOW(partial);
	SHOW(nacks);
	SHOW(dead);
	SHOW(withdrawn);
	SHOW(released);
	SHOW(extended);
	SHOW(expired);
	SHOW(undone);
	SHOW(replies);
	SHOW(waits);
	SHOW(altered);
	SHOW(crashed);
	SHOW(terminated);
	SHOW(cancelled);
	SHOW(conflicts);
	SHOW(connections);
	SHOW(stalled);
	SHOW(unexpected);
	return finished ? 0 : 3;
}
