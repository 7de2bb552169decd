/*-------------------------------------------------------------------------
 *
 * check.c
 *	  Looking without taking: --check and --dry-run.
 *
 * Events are fetched in a transaction that is rolled back, so their lease never is.
 *
 *-------------------------------------------------------------------------
 */
#include "check.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "db.h"
#include "fetch.h"
#include "log.h"
#include "publisher.h"
#include "settle.h"

static const RelayOptions *options;
static Destination *destination;
static int	signal_fd;
static Db  *db;
static bool told_to_stop;

/* The answer to the command that is waited for. */
static struct
{
	bool		there;
	DbFate		fate;
	char		sqlstate[6];
	char	   *message;
	char	   *hint;
}			answer;

static int	nshown;

/* See check.h. */
char *
check_hint(const char *sqlstate, const char *said, const char *user, const char *consumer)
{
	if (said != NULL)
		return format("%s", said);
	if (strcmp(sqlstate, "42501") != 0)
		return NULL;
	if (consumer == NULL)
		return format("An administrator can run SELECT idem_grant('%s', 'monitor').", user);
	return format("An administrator can run SELECT idem_grant('%s', 'consume', '%s').", user, consumer);
}

/* Keep it. */
static void
take_answer(DbCommand *command, const DbAnswer *from)
{
	free(answer.message);
	free(answer.hint);
	answer.there = true;
	answer.fate = from->fate;
	snprintf(answer.sqlstate, sizeof(answer.sqlstate), "%s", from->sqlstate != NULL ? from->sqlstate : "");
	answer.message = from->message != NULL ? format("%s", from->message) : NULL;
	answer.hint = from->hint != NULL ? format("%s", from->hint) : NULL;
}

/* Sleep until something comes, and take it. */
static void
turn(void)
{
	struct pollfd fds[3] = {{.fd = signal_fd,.events = POLLIN}};
	int			n = 1;
	int			at;

	if (options->mode == RELAY_CHECK)
	{
		fds[n].fd = publisher_fd();
		fds[n++].events = POLLIN;
	}
	at = n;
	n += db_poll(db, &fds[n]);
	if (poll(fds, n, 50) > 0)
	{
		if (fds[0].revents != 0)
			told_to_stop = true;
	}
	db_turn(db, n > at ? fds[at].revents : 0);
}

/* Connect, once.  Returns an exit code. */
static int
connect_to_database(void)
{
	db = db_open("work", options->dbname, true);
	db_turn(db, 0);
	while (db_health(db) == DB_AWAY && db_trouble(db) == NULL && !told_to_stop)
		turn();
	return db_health(db) == DB_UP ? EXIT_DONE :
		db_health(db) == DB_REFUSES ? EXIT_DATABASE : EXIT_UNFINISHED;
}

/* Ask, and wait for the answer.  Returns an exit code. */
static int
ask(DbCommand *command)
{
	command->once = true;
	answer.there = false;
	db_ask(db, command);
	while (!answer.there && !told_to_stop)
		turn();
	if (!answer.there)
		return EXIT_UNFINISHED;
	return answer.fate == DB_DONE ? EXIT_DONE :
		answer.fate == DB_REFUSED ? EXIT_DATABASE : EXIT_UNFINISHED;
}

/* Ask something that has no parameters. */
static int
ask_simple(const char *sql)
{
	return ask(db_command(sql, settle_patience(), take_answer, NULL));
}

/* Ask something about the consumer. */
static int
ask_about_consumer(const char *sql)
{
	DbCommand  *command = db_command(sql, settle_patience(), take_answer, NULL);

	db_param(command, format("%s", options->consumer));
	return ask(command);
}

/* An event that would be sent. */
static void
show_row(DbCommand *command, const PGresult *row)
{
	Event	   *event = fetch_event(row);
	char	   *line;

	if (event->unfit != NULL)
		line = format("%s would be rejected: %s", event->message.id, event->unfit);
	else
		line = destination->show(&event->message);
	printf("%s\n", line);
	free(line);
	free(event);
	nshown++;
}

/* An event that is not even shown. */
static void
pass_row(DbCommand *command, const PGresult *row)
{
}

/* Fetch, and take nothing.  Returns an exit code. */
static int
look(int most, void (*row) (DbCommand *command, const PGresult *row))
{
	int			code = ask_simple("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");

	if (code == EXIT_DONE)
	{
		code = ask(fetch_command(most, row, take_answer));
		if (code == EXIT_DONE)
			code = ask_simple("ROLLBACK");
	}
	return code;
}

/* Why the last command or connection failed. */
static const char *
why(void)
{
	if (db_trouble(db) != NULL)
		return db_trouble(db);
	return answer.message != NULL ? answer.message : "no answer";
}

/* --dry-run */
static int
dry_run(void)
{
	int			code = connect_to_database();

	if (code == EXIT_DONE)
		code = look(options->batch, show_row);
	if (code != EXIT_DONE)
	{
		char	   *hint = check_hint(answer.sqlstate, answer.hint, db_user(db), options->consumer);

		log_line(LOG_LEVEL_ERROR, code == EXIT_DATABASE ? "the database refuses" : "the database cannot be reached",
				 "reason", why(), hint != NULL ? "hint" : NULL, hint, NULL);
		free(hint);
	}
	else if (nshown == 0)
		log_line(LOG_LEVEL_INFO, "there is no event to be had", "consumer", options->consumer,
				 "hint", "a shard that somebody has leased shows none", NULL);
	return code;
}

/* A line of --check.  Returns the code. */
static int
say(int code, const char *what, const char *how, const char *hint)
{
	printf("%-5s %-12s %s\n", code == EXIT_DONE ? "ok" : "wrong", what, how);
	if (hint != NULL)
		printf("%-5s %-12s %s\n", "", "", hint);
	return code;
}

/* A line about what the database was asked last. */
static int
say_answer(int code, const char *what, const char *good)
{
	char	   *hint;

	if (code == EXIT_DONE)
		return say(code, what, good, NULL);
	hint = check_hint(answer.sqlstate, answer.hint, db_user(db), options->consumer);
	(void) say(code, what, why(), hint);
	free(hint);
	return code;
}

/* The database's half of --check. */
static int
check_database(void)
{
	int			code = connect_to_database();

	if (code != EXIT_DONE)
		return say(code, "database", why(), NULL);
	(void) say(code, "database", db_describe(db), NULL);
	code = ask_about_consumer("CALL @.outbox_wait($1, interval '1 microsecond')");
	if (say_answer(code, "consumer", options->consumer) != EXIT_DONE)
		return code;
	code = look(1, pass_row);
	if (say_answer(code, "events", "can be fetched") != EXIT_DONE)
		return code;
	if (ask_about_consumer("SELECT FROM idemq.consumers AS c, idemq.parked AS p WHERE c.consumer = $1 LIMIT 0") == EXIT_DONE)
		return say(code, "monitor", "--drain can see what is left", NULL);
	printf("%-5s %-12s %s\n%-5s %-12s An administrator can run SELECT idem_grant('%s', 'monitor').\n",
		   "note", "monitor", "--drain could not see what is left", "", "", db_user(db));
	return code;
}

/* The destination's half. */
static int
check_destination(void)
{
	Opened		how;
	char	   *said = NULL;
	int			code;

	publisher_open();
	while (!publisher_opened(&how, &said) && !told_to_stop)
		turn();
	if (told_to_stop)
		return EXIT_UNFINISHED;
	code = how == OPEN_OK ? EXIT_DONE : how == OPEN_TROUBLE ? EXIT_UNFINISHED : EXIT_DESTINATION;
	(void) say(code, "destination", destination->describe(), said);
	free(said);
	return code;
}

/* --check */
static int
check(void)
{
	int			database = check_database();
	int			other = told_to_stop ? EXIT_UNFINISHED : check_destination();

	return database != EXIT_DONE ? database : other;
}

/* See check.h. */
int
check_run(const RelayOptions *given, Destination *to, int signals)
{
	int			code;

	options = given;
	destination = to;
	signal_fd = signals;
	settle_start(NULL, options->lease, options->backoff_most, destination->pipelines_keys, NULL);
	fetch_start(options->consumer, options->lease, options->memory, NULL);
	if (options->mode == RELAY_DRY_RUN)
		code = dry_run();
	else
	{
		publisher_start(destination);
		code = check();
		(void) publisher_end(true);
	}
	db_close(db);
	free(answer.message);
	free(answer.hint);
	return code;
}
