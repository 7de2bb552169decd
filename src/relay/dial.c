/*-------------------------------------------------------------------------
 *
 * dial.c
 *	  Making a connection to PostgreSQL, in a thread of its own.
 *
 * PQconnectPoll() would do without a thread, but for two things: it looks up names
 * of hosts while the caller waits, for half a minute if the resolver is away, and
 * it knows no connect_timeout, so that a host that swallows packets keeps it
 * from the next one.  The leases must be kept meanwhile, so a thread blocks instead.
 * Nothing else is shared with it: it owns what it is given, and gives a PGconn.
 *
 *-------------------------------------------------------------------------
 */
#include "dial.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "log.h"
#include "text.h"

#define MOST_OPTIONS 16

struct Dial
{
	char	   *conninfo;
	bool		careful;
	int			fd;
	PGconn	   *conn;
	bool		refused;

	/* who of the two ends last frees it */
	pthread_mutex_t lock;
	bool		ended;
	bool		left;
};

static atomic_int nthreads;

/* What is set unless the user has. */
static const struct
{
	const char *name;
	const char *value;
}			defaults[] =

{
	{"target_session_attrs", "read-write"},
	{"connect_timeout", "10"},
	{"keepalives_idle", "10"},
	{"keepalives_interval", "5"},
	{"keepalives_count", "3"},
	{"tcp_user_timeout", "20000"},
};

/* Was an option set by the environment or a service? */
static bool
is_set(const PQconninfoOption *options, const char *name)
{
	for (; options != NULL && options->keyword != NULL; options++)
	{
		if (strcmp(options->keyword, name) != 0)
			continue;
		if (options->envvar != NULL && getenv(options->envvar) != NULL)
			return true;
		return options->val != NULL && options->val[0] != '\0' &&
			(options->compiled == NULL || strcmp(options->val, options->compiled) != 0);
	}
	return false;
}

/* Connect, and wait for that. */
static PGconn *
connect_now(const char *conninfo)
{
	const char *keywords[MOST_OPTIONS];
	const char *values[MOST_OPTIONS];
	PQconninfoOption *options = PQconndefaults();
	PGconn	   *conn;
	int			n = 0;

	/* what comes before the connection string gives way to it */
	for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
	{
		if (is_set(options, defaults[i].name))
			continue;
		keywords[n] = defaults[i].name;
		values[n++] = defaults[i].value;
	}
	keywords[n] = "dbname";
	values[n++] = conninfo;
	keywords[n] = "fallback_application_name";
	values[n++] = "idemq-relay";
	keywords[n] = "client_encoding";
	values[n++] = "UTF8";
	keywords[n] = NULL;
	values[n] = NULL;
	conn = PQconnectdbParams(keywords, values, 1);
	PQconninfoFree(options);
	return conn;
}

/* How often one text occurs in another. */
static int
count(const char *text, const char *what)
{
	int			n = 0;

	while ((text = strstr(text, what)) != NULL)
	{
		text += strlen(what);
		n++;
	}
	return n;
}

/*
 * Would it be the same the next time?  Codes of the server are in the message
 * only if it was asked to say more, which a connection can be told for its next attempt alone.
 */
static bool
is_refused(PGconn *conn)
{
	static const char *const codes[] = {"28P01:", "28000:", "3D000:", "42501:", "0A000:"};
	static const char *const local[] = {
		"does not support SSL", "certificate", "private key", "invalid connection option",
		"invalid sslmode", "missing \"=\"", "definition of service"
	};
	const char *message = PQerrorMessage(conn);
	int			refusals = 0;
	int			failures = count(message, " failed: ");

	if (PQconnectionNeedsPassword(conn))
		return true;
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		refusals += count(message, codes[i]);
	for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
	{
		if (strstr(message, local[i]) != NULL)
			return true;
	}

	/* of several hosts one may be away for now */
	return refusals > 0 && refusals >= failures;
}

/* Free what both are done with. */
static void
free_dial(Dial *dial)
{
	pthread_mutex_destroy(&dial->lock);
	if (dial->fd >= 0)
		close(dial->fd);
	free(dial->conninfo);
	free(dial);
}

/* One thread has ended. */
static void
end_thread(void)
{
	atomic_fetch_sub(&nthreads, 1);
}

/* The thread. */
static void *
run(void *arg)
{
	Dial	   *dial = arg;
	uint64_t	one = 1;
	bool		left;

	dial->conn = connect_now(dial->conninfo);
	if (dial->careful && dial->conn != NULL && PQstatus(dial->conn) != CONNECTION_OK)
	{
		dial->refused = is_refused(dial->conn);
		if (!dial->refused)
		{
			PQsetErrorVerbosity(dial->conn, PQERRORS_VERBOSE);
			PQreset(dial->conn);
			dial->refused = PQstatus(dial->conn) != CONNECTION_OK && is_refused(dial->conn);
			PQsetErrorVerbosity(dial->conn, PQERRORS_DEFAULT);
		}
	}

	pthread_mutex_lock(&dial->lock);
	dial->ended = true;
	left = dial->left;
	if (!left && write(dial->fd, &one, sizeof(one)) < 0)
		log_line(LOG_LEVEL_ERROR, "could not write to an event file", NULL);
	pthread_mutex_unlock(&dial->lock);
	if (left)
	{
		PQfinish(dial->conn);
		free_dial(dial);
	}
	end_thread();
	return NULL;
}

/* A thread that nobody waits for; ends with end_thread(). */
static bool
start_thread(void *(*function) (void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t	thread;
	bool		good;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	atomic_fetch_add(&nthreads, 1);
	good = pthread_create(&thread, &attr, function, arg) == 0;
	if (!good)
		end_thread();
	pthread_attr_destroy(&attr);
	return good;
}

/* See dial.h. */
Dial *
dial_start(const char *conninfo, bool careful)
{
	Dial	   *dial = calloc(1, sizeof(Dial));

	if (dial == NULL)
		text_no_memory();
	dial->conninfo = conninfo != NULL ? format("%s", conninfo) : NULL;
	dial->careful = careful;
	dial->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&dial->lock, NULL);
	if (dial->fd < 0 || !start_thread(run, dial))
	{
		/* as when the server is away: the next attempt may find more room */
		free_dial(dial);
		return NULL;
	}
	return dial;
}

/* See dial.h. */
int
dial_fd(const Dial *dial)
{
	return dial->fd;
}

/* See dial.h. */
PGconn *
dial_end(Dial *dial, bool *refused)
{
	PGconn	   *conn;

	pthread_mutex_lock(&dial->lock);
	conn = dial->conn;
	*refused = dial->refused;
	pthread_mutex_unlock(&dial->lock);
	free_dial(dial);
	return conn;
}

/* See dial.h. */
void
dial_leave(Dial *dial)
{
	bool		ended;

	pthread_mutex_lock(&dial->lock);
	ended = dial->ended;
	dial->left = true;
	pthread_mutex_unlock(&dial->lock);
	if (ended)
	{
		PQfinish(dial->conn);
		free_dial(dial);
	}
}

/* The thread of dial_cancel(). */
static void *
run_cancel(void *arg)
{
	char		why[256];

	(void) PQcancel(arg, why, sizeof(why));
	PQfreeCancel(arg);
	end_thread();
	return NULL;
}

/* See dial.h. */
void
dial_cancel(PGconn *conn)
{
	PGcancel   *cancel = PQgetCancel(conn);

	if (cancel != NULL && !start_thread(run_cancel, cancel))
		PQfreeCancel(cancel);
}

/* See dial.h. */
bool
dial_is_busy(void)
{
	return atomic_load(&nthreads) > 0;
}
