/*-------------------------------------------------------------------------
 *
 * db.h
 *	  Connections to PostgreSQL that never block, and commands that wait for them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DB_H
#define DB_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>

#define DB_MOST_PARAMS 4

typedef struct Db Db;
typedef struct DbCommand DbCommand;

/* How a command ended. */
typedef enum DbFate
{
	DB_DONE,
	DB_REFUSED,					/* the server says no, for good */
	DB_LOST						/* no answer came, or one that may be another
								 * later; only for those that are asked once */
} DbFate;

typedef struct DbAnswer
{
	DbFate		fate;
	const PGresult *result;		/* DB_DONE: it, or its last part if rows were
								 * taken one by one */
	const char *sqlstate;		/* not DB_DONE; "" if the connection was lost */
	const char *message;		/* not DB_DONE: one line */
	const char *hint;			/* may be NULL */
	bool		repeated;		/* an answer was lost before: it may have been
								 * done then */
} DbAnswer;

struct DbCommand
{
	const char *sql;			/* @ stands for the schema of the functions */
	int			nparams;
	char	   *params[DB_MOST_PARAMS]; /* malloc'd, text; freed with the
										 * command */
	bool		once;			/* not to be asked again when its answer is
								 * lost */
	int64_t		patience;		/* no byte for that long: the connection is
								 * dead */
	void		(*row) (DbCommand *command, const PGresult *row);	/* NULL: all at once */
	void		(*done) (DbCommand *command, const DbAnswer *answer);
	void	   *arg;
	bool		owns_arg;		/* it is malloc'd, and freed with the command */

	/* of db.c */
	int64_t		sent_at;
	int64_t		not_before;
	int			failures;
	bool		repeated;
	DbCommand  *next;
};

/* What a connection is good for now. */
typedef enum DbHealth
{
	DB_AWAY,					/* being made, or made again */
	DB_UP,
	DB_REFUSES					/* trying again would not help */
} DbHealth;

/* conninfo may be NULL.  second: it comes and goes with another one, which is told of. */
extern Db  *db_open(const char *name, const char *conninfo, bool second);

extern DbCommand *db_command(const char *sql, int64_t patience,
							 void (*done) (DbCommand *command, const DbAnswer *answer), void *arg);

/* One more parameter; malloc'd. */
extern void db_param(DbCommand *command, char *value);

/* After all others, or before all that have not been sent. */
extern void db_ask(Db *db, DbCommand *command);
extern void db_ask_first(Db *db, DbCommand *command);

/* Neither a command under way nor one that waits. */
extern bool db_is_idle(const Db *db);

extern DbHealth db_health(const Db *db);

/* What stands in the way, one line, or NULL. */
extern const char *db_trouble(const Db *db);

/* When that began; 0: nothing does. */
extern int64_t db_trouble_since(const Db *db);

/* Now at the server, microseconds since 1970, when the connection was made; 0 before. */
extern int64_t db_server_time(const Db *db);

/* For people: version of the server and of the extension; "" before. */
extern const char *db_describe(const Db *db);

/* Whom it is made for; "" before. */
extern const char *db_user(const Db *db);

/* How often it was made. */
extern int	db_generation(const Db *db);

/* Make it again; what was under way is asked again or lost. */
extern void db_drop(Db *db, const char *why);

/* Find out whether it is there. */
extern void db_probe(Db *db);

/* Ask the server to end what is under way; does not wait for that. */
extern void db_cancel(Db *db);

extern void db_close(Db *db);

/* What to poll for, at most one; returns how many. */
extern int	db_poll(const Db *db, struct pollfd *fd);

/* When it wants to be called at the latest; INT64_MAX: only by poll(). */
extern int64_t db_next(const Db *db);

/* Goes on with whatever can go on; revents is what poll() said. */
extern void db_turn(Db *db, short revents);

#endif
