/*-------------------------------------------------------------------------
 *
 * main.c
 *	  idemq-relay: publishes the events of a consumer of idemq's outbox.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "destination.h"
#include "log.h"
#include "metrics.h"
#include "options.h"
#include "publisher.h"
#include "relay.h"
#include "settings.h"
#include "text.h"

/* All that there could be, for those that were not built in. */
static const struct
{
	const char *name;
	const char *schemes[3];
	const char *package;
}			known[] =
{
	{"RabbitMQ", {"amqp", "amqps"}, "librabbitmq and libssl"},
	{"Kafka", {"kafka"}, "rdkafka"},
	{"HTTP", {"http", "https"}, "libcurl and libcrypto"},
	{"stdout", {"stdout"}, NULL},
	{NULL}
};

/* Has it the scheme of this URL? */
static bool
has_scheme(const char *const *schemes, const char *url)
{
	size_t		length = strcspn(url, ":");

	for (; *schemes != NULL; schemes++)
		if (strlen(*schemes) == length && strncmp(*schemes, url, length) == 0)
			return true;
	return false;
}

/* The destination that takes such a scheme, or NULL. */
static Destination *
find_destination(const char *url)
{
	for (int i = 0; destinations[i] != NULL; i++)
		if (has_scheme(destinations[i]->schemes, url))
			return destinations[i];
	return NULL;
}

/* Why --to leads nowhere. */
static char *
no_destination(const char *url)
{
	for (int i = 0; known[i].name != NULL; i++)
		if (has_scheme(known[i].schemes, url))
			return format("this idemq-relay was built without %s; build it where pkg-config finds %s", known[i].name, known[i].package);
	return format("--to begins with none of amqp:// amqps:// kafka:// http:// https:// stdout");
}

/* --version */
static void
print_version(void)
{
	int			version = PQlibVersion();

	printf("idemq-relay " IDEMQ_VERSION "\n");
	for (int i = 0; known[i].name != NULL; i++)
	{
		Destination *destination = find_destination(known[i].schemes[0]);

		printf("%-12s%s\n", known[i].name, destination == NULL ? "not built in" : destination->version());
	}
	printf("%-12s%s%s\n", "metrics", metrics_version() == NULL ? "" : "libmicrohttpd ",
		   metrics_version() == NULL ? "not built in" : metrics_version());
	printf("%-12s%d.%d\n", "libpq", version / 10000, version % 10000);
}

static const char head[] =
"idemq-relay publishes the events of a consumer of idemq's outbox: to RabbitMQ, Kafka, a webhook or stdout.\n"
"\n"
"  idemq-relay --consumer NAME --to URL [SETTING]...\n"
"\n"
"It runs until SIGTERM or SIGINT tells it to stop; then it finishes what is under way. A second one ends it at once.\n"
"Start as many as you like for one consumer: they share its shards, or stand by for each other.\n"
"\n"
"Examples:\n"
"\n"
"  # once, in the database: a consumer, and the right to use it\n"
"  psql -d shop -c \"SELECT outbox_subscribe('orders'), idem_grant('relay', 'consume', 'orders')\"\n"
"\n"
"  # what is there? takes nothing\n"
"  idemq-relay --dbname shop --consumer orders --to stdout --dry-run\n"
"\n"
"  # to RabbitMQ; the password comes from the environment\n"
"  IDEMQ_RELAY_PASSWORD=... idemq-relay --dbname shop --consumer orders \\\n"
"      --to amqp://shop@broker/ --exchange orders --routing-key '{aggregatetype}.{type}'\n"
"\n"
"  # are both ends as they should be?\n"
"  idemq-relay --settings /etc/idemq-relay/orders.conf --check\n";

static const char foot[] =
"\n"
"Each setting can also be given by the environment (--routing-key: IDEMQ_RELAY_ROUTING_KEY) and in the file that\n"
"--settings names (routing-key = '{type}'; # begins a remark). The command line counts most, then the environment. What\n"
"can be given several times is one per line in a variable, and kafka.KEY = VALUE or header.NAME = VALUE in the file.\n"
"Secrets are not taken from the command line, which everybody can see; that includes passwords within URLs.\n"
"\n"
"A TIME is a number and us, ms, s, min, h or d (s if there is none); a SIZE a number and B, kB, MB or GB.\n"
"A TEMPLATE may hold {id} {seq} {aggregatetype} {aggregateid} {type} {cause} {attempt} {header.NAME}; {{ and }} are braces.\n"
"\n"
"Exit codes:\n"
"  0  done, or told to stop\n"
"  1  failed\n"
"  2  wrong settings\n"
"  3  the database refuses: wrong password, no such consumer, no right to it, no extension\n"
"  4  the destination refuses: wrong password, certificate, no such exchange; or stdout was closed\n"
"  5  ended with work unfinished: told twice to stop, or an end was away for longer than --timeout\n"
"\n"
"The manual: man idemq-relay.\n";

/* --help */
static void
print_help(void)
{
	fputs(head, stdout);
	settings_print();
	fputs(foot, stdout);
}

/* Wrong settings: says so, for people or for machines. */
static int
complain(char *why)
{
	const char *log_format = settings_gathered("log-format");

	if (log_format != NULL && strcmp(log_format, "json") == 0)
	{
		log_start(LOG_LEVEL_ERROR, true);
		log_line(LOG_LEVEL_ERROR, why, NULL);
	}
	else
		fprintf(stderr, "idemq-relay: %s\n", why);
	free(why);
	return EXIT_SETTINGS;
}

/* The environment or the file may have settings for other relays. */
static void
warn_unused(const char *where, const char *owner)
{
	log_line(LOG_LEVEL_WARNING, "a setting of another destination does nothing", "where", where, "destination", owner, NULL);
}

/* Files opened later must not take the place of stdout; one that cannot be written to stands in. */
static void
keep_standard_files(void)
{
	for (int fd = 0; fd <= 2; fd++)
		while (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			if (open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) < 0)
				_exit(EXIT_FAILED);
}

/* Does somebody look at stderr, and would a line there not get in the way? */
static bool
wants_progress(const RelayOptions *options, const Destination *destination)
{
	if (!isatty(STDERR_FILENO) || options_log_json())
		return false;
	if (options->mode == RELAY_DRY_RUN || options->mode == RELAY_CHECK)
		return false;
	return destination != &destination_stdout || !isatty(STDOUT_FILENO);
}

/* Reads the settings and finds the destination.  Else *why. */
static Destination *
prepare(RelayOptions *options, char **why)
{
	const char *to = settings_gathered("to");
	Destination *destination;

	if (!options_apply(why))
		return NULL;
	log_start(options_log_level(), options_log_json());
	if (!options_read(options, why))
		return NULL;
	if (to == NULL || *to == '\0')
	{
		*why = format("--to is missing: a URL that begins with amqp:// amqps:// kafka:// http:// https://, or stdout");
		return NULL;
	}
	destination = find_destination(to);
	if (destination == NULL)
	{
		*why = no_destination(to);
		return NULL;
	}
	if (!settings_apply(destination->settings, why) || !settings_leftover(warn_unused, why))
		return NULL;
	destination_timeout = options->timeout;
	*why = destination->configure(to);
	return *why == NULL ? destination : NULL;
}

/* All that is built in, for --help and for who sets what. */
static void
add_destinations(void)
{
	for (int i = 0; destinations[i] != NULL; i++)
		if (destinations[i]->settings[0].name != NULL)
		{
			Text		title = {0};

			text_add(&title, "%s (", destinations[i]->name);
			for (int j = 0; destinations[i]->schemes[j] != NULL; j++)
				text_add(&title, "%s--to %s:", j == 0 ? "" : ", ", destinations[i]->schemes[j]);
			text_add(&title, "):");
			settings_add(title.data, destinations[i]->name, destinations[i]->settings);
		}
}

/* Ends the program's output; a full disk must not pass for success, but a reader that has seen enough is none. */
static int
finish(int code)
{
	if (fflush(stdout) != 0 && errno != EPIPE && code == EXIT_DONE)
	{
		log_line(LOG_LEVEL_ERROR, "stdout cannot be written", "reason", strerror(errno), NULL);
		code = EXIT_FAILED;
	}
	return code;
}

int
main(int argc, char **argv)
{
	RelayOptions options;
	Destination *destination;
	const char *listen;
	char	   *why;
	int			code;

	keep_standard_files();
	signal(SIGPIPE, SIG_IGN);
	options_add();
	add_destinations();
	if (argc == 1 && getenv("IDEMQ_RELAY_SETTINGS") == NULL && getenv("IDEMQ_RELAY_CONSUMER") == NULL)
		return complain(format("--consumer and --to are missing; see idemq-relay --help"));
	if (!settings_gather(argc, argv, &why))
		return complain(why);
	if (settings_gathered("help") != NULL)
	{
		print_help();
		return finish(EXIT_DONE);
	}
	if (settings_gathered("version") != NULL)
	{
		print_version();
		return finish(EXIT_DONE);
	}
	destination = prepare(&options, &why);
	if (destination == NULL)
		return complain(why);

	listen = options_listen();
	if (listen != NULL && !metrics_listen(listen, options.consumer, destination->describe(), &why))
		return complain(why);
	if (wants_progress(&options, destination))
		progress_start();
	code = relay_run(&options, destination);
	progress_stop();
	metrics_stop();
	code = finish(code);
	if (publisher_hangs() || relay_hangs())
		_exit(code);
	return code;
}
