/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The settings of the relay itself.
 *
 *-------------------------------------------------------------------------
 */
#include "options.h"

#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "clock.h"
#include "settings.h"

#define MEGABYTES(n) ((int64_t) (n) << 20)

/* Does a connection string hold a password? */
static bool
conninfo_has_secret(const char *value)
{
	PQconninfoOption *options;
	bool		found = false;

	if (settings_url_has_password(value))
		return true;
	options = PQconninfoParse(value, NULL);
	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
		if (option->val != NULL && *option->val != '\0' &&
			(strcmp(option->keyword, "password") == 0 || strcmp(option->keyword, "sslpassword") == 0))
			found = true;
	if (options != NULL)
		PQconninfoFree(options);
	else if (strcasestr(value, "password") != NULL)
		found = true;
	return found;
}

static Setting source[] = {
	{
		.name = "consumer",.kind = SETTING_TEXT,.value_name = "NAME",
		.help = "the consumer of the outbox whose events are published (made by outbox_subscribe)"
	},
	{
		.name = "dbname",.kind = SETTING_TEXT,.value_name = "CONNINFO",.holds_secret = conninfo_has_secret,
		.help = "where the outbox is: a name, a connection string or a URI; what it does not say comes from PGHOST, "
		"PGUSER, PGSERVICE and so on, passwords from ~/.pgpass. target_session_attrs is read-write unless set, so of "
		"several hosts the one that takes writes is found"
	},
	{0}
};

static Setting target[] = {
	{
		.name = "to",.kind = SETTING_TEXT,.value_name = "URL",.holds_secret = settings_url_has_password,
		.help = "where events go:\n"
		"  amqp://user@host:5672/vhost  or amqps://\n"
		"  kafka://broker:9092,broker:9092\n"
		"  https://host/path  or http://\n"
		"  stdout  (lines of JSON)"
	},
	{
		.name = "in-flight",.kind = SETTING_NUMBER,.value_name = "N",.least = 1,.most = 100000,
		.help = "how many events may be without an answer at a time; by default what suits the destination. Of one key "
		"it is one event at a time all the same, but with Kafka"
	},
	{
		.name = "timeout",.kind = SETTING_TIME,.value_name = "TIME",.initial = "30s",
		.least = MILLISECONDS(100),.most = SECONDS(3600),
		.help = "how long one answer may take; also how long --once, --drain and the end wait for an end that is away"
	},
	{
		.name = "backoff-most",.kind = SETTING_TIME,.value_name = "TIME",.initial = "1min",
		.least = MILLISECONDS(100),.most = SECONDS(86400),
		.help = "when the destination takes nothing it is tried again after 1s, 2s, 4s and so on, at last so far apart"
	},
	{0}
};

static Setting amount[] = {
	{
		.name = "batch",.kind = SETTING_NUMBER,.value_name = "N",.initial = "1000",.least = 1,.most = 100000,
		.help = "events fetched at a time"
	},
	{
		.name = "lease",.kind = SETTING_TIME,.value_name = "TIME",.initial = "30s",.least = SECONDS(1),.most = SECONDS(86400),
		.help = "after so long without a sign of life another relay may take the events over; longer than an interruption of the network"
	},
	{
		.name = "memory",.kind = SETTING_BYTES,.value_name = "SIZE",.initial = "64MB",.least = 65536,.most = MEGABYTES(1 << 20),
		.help = "events held at a time; one event is held whatever its size"
	},
	{0}
};

static Setting mode[] = {
	{
		.name = "once",.kind = SETTING_FLAG,
		.help = "publish what is there now, then end"
	},
	{
		.name = "drain",.kind = SETTING_FLAG,
		.help = "end when nothing is left for the consumer, nor leased to others, nor waiting for its next attempt; needs the right \"monitor\" as well"
	},
	{
		.name = "dry-run",.kind = SETTING_FLAG,
		.help = "print what would be published, and take nothing"
	},
	{
		.name = "check",.kind = SETTING_FLAG,
		.help = "connect to both ends, say what is wrong and how to mend it, and publish nothing"
	},
	{0}
};

static const char *const log_formats[] = {"text", "json", NULL};
static const char *const log_levels[] = {"debug", "info", "warning", "error", NULL};

static Setting running[] = {
	{
		.name = "settings",.kind = SETTING_TEXT,.value_name = "FILE",
		.help = "read settings from this file"
	},
	{
		.name = "log-format",.kind = SETTING_CHOICE,.initial = "text",.choices = log_formats,
		.help = "of the lines on stderr"
	},
	{
		.name = "log-level",.kind = SETTING_CHOICE,.value_name = "LEVEL",.initial = "info",.choices = log_levels,
		.help = "the least that is logged: debug, info, warning or error"
	},
	{
		.name = "listen",.kind = SETTING_TEXT,.value_name = "ADDR:PORT",
		.help = "serve /metrics (for Prometheus) and /healthz there, as 127.0.0.1:9187; off unless set"
	},
	{
		.name = "help",.kind = SETTING_FLAG,
		.help = "show this and end"
	},
	{
		.name = "version",.kind = SETTING_FLAG,
		.help = "show the version, and the libraries that are built in, and end"
	},
	{0}
};

static Setting *const all[] = {source, target, amount, mode, running, NULL};

/* See options.h. */
void
options_add(void)
{
	settings_add("From:", NULL, source);
	settings_add("To:", NULL, target);
	settings_add("How much:", NULL, amount);
	settings_add("What to do, if not to run until told to stop:", NULL, mode);
	settings_add("Running:", NULL, running);
}

/* See options.h. */
bool
options_apply(char **why)
{
	for (int i = 0; all[i] != NULL; i++)
		if (!settings_apply(all[i], why))
			return false;
	return true;
}

/* At most one of the modes. */
static bool
read_mode(RelayMode *which, char **why)
{
	static const RelayMode modes[] = {RELAY_ONCE, RELAY_DRAIN, RELAY_DRY_RUN, RELAY_CHECK};
	const Setting *chosen = NULL;

	*which = RELAY_RUN;
	for (int i = 0; mode[i].name != NULL; i++)
	{
		if (mode[i].number == 0)
			continue;
		if (chosen != NULL)
		{
			*why = format("--%s and --%s do not go together", chosen->name, mode[i].name);
			return false;
		}
		chosen = &mode[i];
		*which = modes[i];
	}
	return true;
}

/* See options.h. */
bool
options_read(RelayOptions *options, char **why)
{
	PQconninfoOption *parsed;

	*options = (RelayOptions)
	{
		.dbname = settings_find(source, "dbname")->text,
		.consumer = settings_find(source, "consumer")->text,
		.batch = settings_find(amount, "batch")->number,
		.lease = settings_find(amount, "lease")->number,
		.memory = settings_find(amount, "memory")->number,
		.backoff_most = settings_find(target, "backoff-most")->number,
		.timeout = settings_find(target, "timeout")->number,
		.in_flight = settings_find(target, "in-flight")->number
	};
	if (!read_mode(&options->mode, why))
		return false;
	if (options->consumer == NULL || *options->consumer == '\0')
	{
		*why = format("--consumer is missing: the name of a consumer of the outbox");
		return false;
	}
	/* without "=" it is the name of a database */
	if (options->dbname != NULL && (strchr(options->dbname, '=') != NULL || strstr(options->dbname, "://") != NULL))
	{
		char	   *error = NULL;

		parsed = PQconninfoParse(options->dbname, &error);
		if (parsed == NULL)
		{
			/* libpq's words would quote it, password and all */
			*why = format("%s is not a connection string%s%s", settings_find(source, "dbname")->source,
						  conninfo_has_secret(options->dbname) || error == NULL ? "" : ": ",
						  conninfo_has_secret(options->dbname) || error == NULL ? "" : error);
			(*why)[strcspn(*why, "\n")] = '\0';
			PQfreemem(error);
			return false;
		}
		PQconninfoFree(parsed);
	}
	return true;
}

/* See options.h. */
LogLevel
options_log_level(void)
{
	return (LogLevel) settings_find(running, "log-level")->number;
}

/* See options.h. */
bool
options_log_json(void)
{
	return settings_find(running, "log-format")->number == 1;
}

/* See options.h. */
const char *
options_listen(void)
{
	return settings_find(running, "listen")->text;
}
