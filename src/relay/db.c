/*-------------------------------------------------------------------------
 *
 * db.c
 *	  Connections to PostgreSQL that never block, and commands that wait for them.
 *
 * A connection that is lost is made again for ever, and what it had been asked is
 * asked again; only one that has never been up may find that the server refuses it.  Nothing
 * lives in a connection (no SET, no prepared statement), so there may be a pooler
 * in between that gives each transaction another one.
 *
 * A network that is cut says nothing.  Three things notice: the kernel's
 * keepalives, its time-out for what was sent, and our own patience with a command of which not
 * one byte has come.
 *
 *-------------------------------------------------------------------------
 */
#include "db.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "dial.h"
#include "log.h"
#include "metrics.h"
#include "text.h"

/* From one attempt to the next, and from one error to the next attempt of a command. */
#define SHORTEST_BACKOFF	MILLISECONDS(100)
#define LONGEST_BACKOFF		SECONDS(5)

/* The second connection is missed aloud when it has not come back so often. */
#define FAILURES_TO_TELL	5

#define GREETING_PATIENCE	SECONDS(15)
#define PROBE_PATIENCE		SECONDS(5)

typedef enum DbState
{
	STATE_WAITING,				/* for the next attempt */
	STATE_DIALLING,
	STATE_GREETING,				/* finds out where the functions are */
	STATE_UP,
	STATE_REFUSED
} DbState;

struct Db
{
	const char *name;
	const char *conninfo;
	bool		second;
	DbState		state;
	Dial	   *dial;
	PGconn	   *conn;
	int64_t		retry_at;
	int			failures;		/* attempts in a row */
	char	   *trouble;
	int64_t		trouble_since;
	int			generation;

	/* from the greeting */
	char	   *schema;			/* as an identifier */
	char	   *description;
	char	   *user;
	int64_t		server_time;

	DbCommand  *current;
	PGresult   *result;			/* its last one */
	bool		flushing;		/* not all of it is sent */
	int64_t		heard_at;
	DbCommand  *first;
	DbCommand  *last;
};

static void send_next(Db *db);

/* Does a line of libpq say nothing? */
static bool
is_noise(const char *line)
{
	static const char *const noise[] = {
		"LOCATION:", "This probably means the server terminated abnormally",
		"before or while processing the request.", "invalid socket"
	};

	for (size_t i = 0; i < sizeof(noise) / sizeof(noise[0]); i++)
	{
		if (strncmp(line, noise[i], strlen(noise[i])) == 0)
			return true;
	}
	return false;
}

/* Text of libpq as one line, without what is for programmers. */
static char *
one_line(const char *message)
{
	Text		text = {0};

	while (*message != '\0')
	{
		size_t		length = strcspn(message, "\n");
		const char *start = message;
		const char *end = message + length;
		const char *code;

		while (start < end && (*start == ' ' || *start == '\t'))
			start++;
		message = *end != '\0' ? end + 1 : end;
		if (start == end || is_noise(start))
			continue;
		if (text.length > 0)
			text_add_bytes(&text, "; ", 2);
		code = strstr(start, "FATAL:  ");
		if (code != NULL && code + 15 < end && code[13] == ':' && strspn(code + 8, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5)
		{
			text_add_bytes(&text, start, code + 8 - start);
			start = code + 15;
		}
		text_add_bytes(&text, start, end - start);
	}
	if (text.length == 0)
		text_add_bytes(&text, "no reason was given", 19);
	return text.data;
}

/* Something stands in the way; takes why. */
static void
set_trouble(Db *db, char *why)
{
	free(db->trouble);
	db->trouble = why;
	if (db->trouble_since == 0)
		db->trouble_since = clock_now();
}

/* See db.h. */
Db *
db_open(const char *name, const char *conninfo, bool second)
{
	Db		   *db = calloc(1, sizeof(Db));

	if (db == NULL)
		text_no_memory();
	db->name = name;
	db->conninfo = conninfo;
	db->second = second;
	db->state = STATE_WAITING;
	return db;
}

/* See db.h. */
DbCommand *
db_command(const char *sql, int64_t patience,
		   void (*done) (DbCommand *command, const DbAnswer *answer), void *arg)
{
	DbCommand  *command = calloc(1, sizeof(DbCommand));

	if (command == NULL)
		text_no_memory();
	command->sql = sql;
	command->patience = patience;
	command->done = done;
	command->arg = arg;
	return command;
}

/* See db.h. */
void
db_param(DbCommand *command, char *value)
{
	command->params[command->nparams++] = value;
}

/* See db.h. */
void
db_ask(Db *db, DbCommand *command)
{
	command->next = NULL;
	if (db->last != NULL)
		db->last->next = command;
	else
		db->first = command;
	db->last = command;
	send_next(db);
}

/* See db.h. */
void
db_ask_first(Db *db, DbCommand *command)
{
	command->next = db->first;
	db->first = command;
	if (db->last == NULL)
		db->last = command;
	send_next(db);
}

/* Free a command. */
static void
free_command(DbCommand *command)
{
	for (int i = 0; i < command->nparams; i++)
		free(command->params[i]);
	if (command->owns_arg)
		free(command->arg);
	free(command);
}

/* The command under way has ended. */
static void
end_command(Db *db, const DbAnswer *answer)
{
	DbCommand  *command = db->current;

	db->current = NULL;
	command->done(command, answer);
	free_command(command);
}

/* The command under way comes again after a while. */
static void
put_off(Db *db, const DbAnswer *answer)
{
	DbCommand  *command = db->current;
	int64_t		wait = SHORTEST_BACKOFF << (command->failures < 6 ? command->failures : 6);

	/* one line, however often */
	if (command->failures++ == 0)
		log_line(LOG_LEVEL_WARNING, "the database did not do what it was asked, trying again",
				 "reason", answer->message, "sqlstate", answer->sqlstate, NULL);
	command->not_before = clock_now() +
		clock_jitter(wait < LONGEST_BACKOFF ? wait : LONGEST_BACKOFF);
	db->current = NULL;
	db_ask(db, command);
}

/* Say that the connection is gone, once. */
static void
tell_loss(const Db *db, const char *why)
{
	LogLevel	level = LOG_LEVEL_DEBUG;
	const char *what = "the database cannot be reached, trying again";

	if (db->state == STATE_UP)
		what = "lost the connection to the database";

	/* two that go together need not be told of twice */
	if (db->failures == (db->second ? FAILURES_TO_TELL : 0))
		level = LOG_LEVEL_WARNING;
	log_line(level, what, "connection", db->name, "reason", why, NULL);
}

/* The connection is gone; takes why. */
static void
lose(Db *db, char *why)
{
	DbAnswer	answer = {.fate = DB_LOST,.sqlstate = ""};
	int64_t		wait = SHORTEST_BACKOFF << (db->failures < 6 ? db->failures : 6);

	tell_loss(db, why);
	if (db->state == STATE_UP)
		metrics_add(METRIC_DB_LOST, 1);
	set_trouble(db, why);
	PQclear(db->result);
	db->result = NULL;
	PQfinish(db->conn);
	db->conn = NULL;
	db->flushing = false;
	db->state = STATE_WAITING;
	db->failures++;
	db->retry_at = clock_now() + clock_jitter(wait < LONGEST_BACKOFF ? wait : LONGEST_BACKOFF);

	if (db->current == NULL)
		return;
	if (db->current->once)
	{
		answer.message = db->trouble;
		end_command(db, &answer);
	}
	else
	{
		DbCommand  *command = db->current;

		command->repeated = true;
		db->current = NULL;
		db_ask_first(db, command);
	}
}

/* Nothing can be done about it; takes why. */
static void
refuse(Db *db, char *why)
{
	set_trouble(db, why);
	PQclear(db->result);
	db->result = NULL;
	PQfinish(db->conn);
	db->conn = NULL;
	db->flushing = false;
	db->state = STATE_REFUSED;
}

/* The schema where the functions are. */
static void
take_greeting(DbCommand *command, const DbAnswer *answer)
{
	Db		   *db = command->arg;
	const PGresult *result = answer->result;

	if (answer->fate == DB_LOST)
		return;
	if (answer->fate == DB_REFUSED)
	{
		lose(db, format("%s", answer->message));
		return;
	}
	if (PQntuples(result) == 0)
	{
		refuse(db, format("the extension idemq is not installed in database \"%s\": CREATE EXTENSION idemq, or connect to the database where it is",
						  PQdb(db->conn)));
		return;
	}
	if (PQgetvalue(result, 0, 4)[0] == 't')
	{
		lose(db, format("the server takes no writes: it is a standby, or default_transaction_read_only is set"));
		return;
	}
	free(db->schema);
	free(db->description);
	free(db->user);
	db->user = format("%s", PQuser(db->conn));
	db->schema = format("%s", PQgetvalue(result, 0, 0));
	db->description = format("PostgreSQL %s, idemq %s", PQgetvalue(result, 0, 3),
							 PQgetvalue(result, 0, 1));
	db->server_time = strtoll(PQgetvalue(result, 0, 2), NULL, 10);
	db->state = STATE_UP;
	db->generation++;
	metrics_add(METRIC_DB_CONNECTS, 1);
	log_line(db->failures > (db->second ? FAILURES_TO_TELL : 0) ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "connected to the database",
			 "connection", db->name, "host", PQhost(db->conn), "database", PQdb(db->conn),
			 "user", PQuser(db->conn), "server", db->description, NULL);
	db->failures = 0;
	free(db->trouble);
	db->trouble = NULL;
	db->trouble_since = 0;
}

/* Put the schema where it belongs. */
static char *
put_schema(const char *sql, const char *schema)
{
	Text		text = {0};

	for (; *sql != '\0'; sql++)
	{
		if (*sql == '@')
			text_add_bytes(&text, schema, strlen(schema));
		else
			text_add_char(&text, *sql);
	}
	return text.data;
}

/* Send one. */
static void
send_command(Db *db, DbCommand *command)
{
	char	   *sql = put_schema(command->sql, db->schema != NULL ? db->schema : "");

	db->current = command;
	command->sent_at = clock_now();
	db->heard_at = command->sent_at;
	if (!PQsendQueryParams(db->conn, sql, command->nparams, NULL,
						   (const char *const *) command->params, NULL, NULL, command->row != NULL))
	{
		free(sql);
		lose(db, one_line(PQerrorMessage(db->conn)));
		return;
	}
	free(sql);
	if (command->row != NULL)
		PQsetSingleRowMode(db->conn);
	db->flushing = PQflush(db->conn) == 1;
}

/* Send the first that may be sent. */
static void
send_next(Db *db)
{
	int64_t		now = clock_now();
	DbCommand  *before = NULL;

	if (db->state != STATE_UP || db->current != NULL)
		return;
	for (DbCommand *command = db->first; command != NULL; command = command->next)
	{
		if (command->not_before <= now)
		{
			if (before != NULL)
				before->next = command->next;
			else
				db->first = command->next;
			if (db->last == command)
				db->last = before;
			command->next = NULL;
			send_command(db, command);
			return;
		}
		before = command;
	}
}

/* Does the sqlstate begin like this? */
static bool
is_class(const char *sqlstate, const char *class)
{
	return strncmp(sqlstate, class, strlen(class)) == 0;
}

/* Is it the connection, or the server as a whole? */
static bool
is_lost(const char *sqlstate)
{
	return sqlstate[0] == '\0' || is_class(sqlstate, "08") || is_class(sqlstate, "57P") ||
		is_class(sqlstate, "25006");
}

/* May it be another answer the next time? */
static bool
is_passing(const char *sqlstate)
{
	static const char *const classes[] = {"40", "53", "55P03", "57", "58", "XX", "25P"};

	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
	{
		if (is_class(sqlstate, classes[i]))
			return true;
	}
	return false;
}

/* All of an answer is there. */
static void
take_answer(Db *db)
{
	DbCommand  *command = db->current;
	PGresult   *result = db->result;
	DbAnswer	answer = {.fate = DB_DONE,.result = result,.repeated = command->repeated};
	ExecStatusType status = PQresultStatus(result);
	char	   *message;

	db->result = NULL;
	if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
	{
		end_command(db, &answer);
		PQclear(result);
		return;
	}

	answer.sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (answer.sqlstate == NULL)
		answer.sqlstate = "";
	answer.hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
	message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	message = one_line(message != NULL ? message : PQerrorMessage(db->conn));
	answer.message = message;
	if (is_lost(answer.sqlstate) || PQstatus(db->conn) == CONNECTION_BAD)
		lose(db, format("%s", message));
	else if (!is_passing(answer.sqlstate) || command->once)
	{
		answer.fate = is_passing(answer.sqlstate) ? DB_LOST : DB_REFUSED;
		end_command(db, &answer);
	}
	else
		put_off(db, &answer);
	free(message);
	PQclear(result);
}

/* Take what has come. */
static void
read_answer(Db *db, short revents)
{
	if (revents != 0)
	{
		db->heard_at = clock_now();
		if (!PQconsumeInput(db->conn))
		{
			/* what the server said last may say why */
			PGresult   *result = db->current != NULL ? PQgetResult(db->conn) : NULL;
			char	   *why = one_line(result != NULL && PQresultErrorMessage(result)[0] != '\0'
									   ? PQresultErrorMessage(result) : PQerrorMessage(db->conn));

			PQclear(result);
			lose(db, why);
			return;
		}
	}
	if (db->flushing)
	{
		int			left = PQflush(db->conn);

		if (left < 0)
		{
			lose(db, one_line(PQerrorMessage(db->conn)));
			return;
		}
		db->flushing = left == 1;
	}
	while (db->current != NULL && !PQisBusy(db->conn))
	{
		PGresult   *result = PQgetResult(db->conn);

		if (result == NULL)
		{
			take_answer(db);
			return;
		}
		if (PQresultStatus(result) == PGRES_SINGLE_TUPLE)
		{
			db->current->row(db->current, result);
			PQclear(result);
			continue;
		}
		PQclear(db->result);
		db->result = result;
		if (PQstatus(db->conn) == CONNECTION_BAD)
		{
			take_answer(db);
			return;
		}
	}
	if (db->current == NULL && PQstatus(db->conn) == CONNECTION_BAD)
		lose(db, one_line(PQerrorMessage(db->conn)));
}

/* What the server says without having been asked; when it shuts down, that is why. */
static void
hear_notice(void *arg, const char *message)
{
	Db		   *db = arg;
	char	   *line = one_line(message);

	log_line(LOG_LEVEL_DEBUG, "the database says", "connection", db->name, "notice", line, NULL);
	free(line);
}

/* The attempt to connect has ended. */
static void
take_connection(Db *db)
{
	bool		refused;
	PGconn	   *conn = dial_end(db->dial, &refused);
	DbCommand  *greeting;

	db->dial = NULL;
	db->conn = conn;
	if (conn == NULL)
		text_no_memory();
	if (PQstatus(conn) != CONNECTION_OK)
	{
		char	   *why = one_line(PQerrorMessage(conn));

		if (refused && db->generation == 0)
			refuse(db, why);
		else
			lose(db, why);
		return;
	}
	PQsetNoticeProcessor(conn, hear_notice, db);
	if (PQsetnonblocking(conn, 1) != 0)
	{
		lose(db, one_line(PQerrorMessage(conn)));
		return;
	}
	db->state = STATE_GREETING;
	greeting = db_command("SELECT pg_catalog.quote_ident(n.nspname), e.extversion,"
						  " (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint, pg_catalog.current_setting('server_version'),"
						  " pg_catalog.current_setting('transaction_read_only') = 'on'"
						  " FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace"
						  " WHERE e.extname = 'idemq'",
						  GREETING_PATIENCE, take_greeting, db);
	greeting->once = true;
	send_command(db, greeting);
}

/* See db.h. */
void
db_turn(Db *db, short revents)
{
	int64_t		now = clock_now();

	switch (db->state)
	{
		case STATE_WAITING:
			if (now < db->retry_at)
				break;
			db->dial = dial_start(db->conninfo, db->generation == 0);
			if (db->dial != NULL)
				db->state = STATE_DIALLING;
			else
				lose(db, format("no thread could be started"));
			break;
		case STATE_DIALLING:
			if (revents != 0)
				take_connection(db);
			break;
		case STATE_GREETING:
		case STATE_UP:
			read_answer(db, revents);
			if (db->current != NULL && now - db->heard_at >= db->current->patience &&
				db->conn != NULL)
			{
				/* what it is busy with would keep it from others */
				db_cancel(db);
				lose(db, format("the server has not answered for %d seconds",
								(int) ((now - db->heard_at) / 1000000)));
			}
			send_next(db);
			break;
		case STATE_REFUSED:
			break;
	}
}

/* See db.h. */
int
db_poll(const Db *db, struct pollfd *fd)
{
	fd->revents = 0;
	if (db->state == STATE_DIALLING)
	{
		fd->fd = dial_fd(db->dial);
		fd->events = POLLIN;
		return 1;
	}
	if (db->conn == NULL)
		return 0;
	fd->fd = PQsocket(db->conn);
	fd->events = POLLIN | (db->flushing ? POLLOUT : 0);
	return 1;
}

/* See db.h. */
int64_t
db_next(const Db *db)
{
	int64_t		next = INT64_MAX;

	if (db->state == STATE_WAITING)
		return db->retry_at;
	if (db->conn == NULL)
		return INT64_MAX;
	if (db->current != NULL)
		return db->heard_at + db->current->patience;
	for (const DbCommand *command = db->first; command != NULL; command = command->next)
	{
		if (command->not_before < next)
			next = command->not_before;
	}
	return next;
}

/* See db.h. */
bool
db_is_idle(const Db *db)
{
	return db->current == NULL && db->first == NULL;
}

/* See db.h. */
DbHealth
db_health(const Db *db)
{
	if (db->state == STATE_REFUSED)
		return DB_REFUSES;
	return db->state == STATE_UP ? DB_UP : DB_AWAY;
}

/* See db.h. */
const char *
db_trouble(const Db *db)
{
	return db->trouble;
}

/* See db.h. */
int64_t
db_trouble_since(const Db *db)
{
	return db->trouble_since;
}

/* See db.h. */
int64_t
db_server_time(const Db *db)
{
	return db->server_time;
}

/* See db.h. */
const char *
db_describe(const Db *db)
{
	return db->description != NULL ? db->description : "";
}

/* See db.h. */
const char *
db_user(const Db *db)
{
	return db->user != NULL ? db->user : "";
}

/* See db.h. */
int
db_generation(const Db *db)
{
	return db->generation;
}

/* See db.h. */
void
db_drop(Db *db, const char *why)
{
	/* else the server would not notice before it has something to say */
	db_cancel(db);
	if (db->conn != NULL)
		lose(db, format("%s", why));
}

/* It is there. */
static void
take_probe(DbCommand *command, const DbAnswer *answer)
{
}

/* See db.h. */
void
db_probe(Db *db)
{
	DbCommand  *command = db_command("SELECT 1", PROBE_PATIENCE, take_probe, NULL);

	command->once = true;
	db_ask(db, command);
}

/* See db.h. */
void
db_cancel(Db *db)
{
	if (db->conn != NULL && db->current != NULL)
		dial_cancel(db->conn);
}

/* See db.h. */
void
db_close(Db *db)
{
	if (db->dial != NULL)
		dial_leave(db->dial);
	PQclear(db->result);
	PQfinish(db->conn);
	if (db->current != NULL)
		free_command(db->current);
	while (db->first != NULL)
	{
		DbCommand  *command = db->first;

		db->first = command->next;
		free_command(command);
	}
	free(db->trouble);
	free(db->schema);
	free(db->description);
	free(db->user);
	free(db);
}
