/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Settings, from the command line, the environment and a file.
 *
 * Everything is gathered first, as it is written, and then put into the tables that count:
 * which those are depends on --to.
 *
 *-------------------------------------------------------------------------
 */
#include "settings.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "settings_file.h"
#include "settings_help.h"
#include "settings_value.h"
#include "text.h"

#define ENVIRONMENT_PREFIX "IDEMQ_RELAY_"

typedef struct Table
{
	const char *title;
	const char *owner;
	Setting    *settings;
	bool		applied;
	struct Table *next;
} Table;

/* From the weakest to the strongest. */
typedef enum Origin
{
	ORIGIN_FILE,
	ORIGIN_ENVIRONMENT,
	ORIGIN_COMMAND_LINE,
	NORIGINS
} Origin;

typedef struct Given
{
	const char *name;
	const char *value;
	const char *source;
	struct Given *next;
} Given;

static Table *tables;
static Given *given[NORIGINS];

/* Keys whose values nobody should see, whatever pairs they are in. */
static const char *const secret_keys[] = {
	"*password*", "*passphrase*", "*secret*", "*api-key*", "*apikey*", "*.pem", "*.jaas.config",
	"sasl.oauthbearer.config", "cookie", NULL
};

/* The same, but for those that only sound like it. */
static const char *const likely_secret_keys[] = {"*token*", "*auth*", NULL};
static const char *const harmless_keys[] = {"sasl.oauthbearer.*", "enable.sasl.oauthbearer.*", "*author", NULL};

/* What is gathered lives as long as the program. */
static char *
keep(char *text)
{
	typedef struct Kept
	{
		char	   *text;
		struct Kept *next;
	} Kept;
	static Kept *all;
	Kept	   *kept = malloc(sizeof(Kept));

	if (text == NULL || kept == NULL)
		text_no_memory();
	kept->text = text;
	kept->next = all;
	all = kept;
	return text;
}

/* See settings.h. */
void
settings_add(const char *title, const char *owner, Setting *settings)
{
	Table	   *table = calloc(1, sizeof(Table));
	Table	  **last = &tables;

	if (table == NULL)
		text_no_memory();
	table->title = title;
	table->owner = owner;
	table->settings = settings;
	while (*last != NULL)
		last = &(*last)->next;
	*last = table;
}

/* See settings.h. */
Setting *
settings_find(Setting *settings, const char *name)
{
	for (Setting *setting = settings; setting->name != NULL; setting++)
		if (strcmp(setting->name, name) == 0)
			return setting;
	return NULL;
}

/* In any table. */
static Setting *
find_anywhere(const char *name, Table **where)
{
	for (Table *table = tables; table != NULL; table = table->next)
	{
		Setting    *setting = settings_find(table->settings, name);

		if (setting != NULL)
		{
			if (where != NULL)
				*where = table;
			return setting;
		}
	}
	return NULL;
}

/* How many letters are to be added, taken, changed or swapped with their neighbour. */
static int
distance(const char *a, const char *b)
{
	int			rows[3][64];
	size_t		na = strlen(a),
				nb = strlen(b);

	if (na >= 64 || nb >= 64)
		return 64;
	for (size_t i = 0; i <= na; i++)
	{
		int		   *row = rows[i % 3];
		int		   *above = rows[(i + 2) % 3];

		for (size_t j = 0; j <= nb; j++)
		{
			if (i == 0 || j == 0)
			{
				row[j] = i + j;
				continue;
			}
			row[j] = above[j - 1] + (a[i - 1] != b[j - 1]);
			if (above[j] + 1 < row[j])
				row[j] = above[j] + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && rows[(i + 1) % 3][j - 2] + 1 < row[j])
				row[j] = rows[(i + 1) % 3][j - 2] + 1;
		}
	}
	return rows[na % 3][nb];
}

/* The name that was meant, perhaps; or NULL. */
static const char *
nearest(const char *name)
{
	const char *best = NULL;
	int			least = strlen(name) < 6 ? 2 : 3;

	for (Table *table = tables; table != NULL; table = table->next)
		for (Setting *setting = table->settings; setting->name != NULL; setting++)
		{
			int			steps = distance(name, setting->name);

			if (steps < least || (strlen(name) >= 4 && steps <= least && strncmp(name, setting->name, 2) == 0))
			{
				best = setting->name;
				least = steps;
			}
		}
	return best;
}

/* "--tpoic" has no setting; prefix: how names are written there. */
static char *
unknown(const char *source, const char *name, const char *prefix)
{
	const char *meant = nearest(name);
	char	   *as_written;
	char	   *why;

	if (meant == NULL)
		return format("%s: there is no such setting; see idemq-relay --help, and --version for what is built in", source);
	as_written = format("%s%s", prefix, meant);
	if (strcmp(prefix, ENVIRONMENT_PREFIX) == 0)
		for (char *c = as_written; *c; c++)
			*c = *c == '-' ? '_' : toupper((unsigned char) *c);
	why = format("%s: there is no such setting; did you mean %s?", source, as_written);
	free(as_written);
	return why;
}

/* Write down what was found; all strings live on. */
static void
gather(Origin origin, const char *name, const char *value, const char *source)
{
	Given	   *one = calloc(1, sizeof(Given));
	Given	  **last = &given[origin];

	if (one == NULL)
		text_no_memory();
	one->name = name;
	one->value = value;
	one->source = source;
	while (*last != NULL)
		last = &(*last)->next;
	*last = one;
}

/* See settings.h. */
bool
settings_url_has_password(const char *value)
{
	const char *authority = strstr(value, "://");
	const char *end;

	if (authority == NULL)
		return false;
	authority += 3;
	/* a password may hold anything that the writer forgot to escape, so up to the last @ */
	end = strrchr(authority, '@');
	if (end == NULL)
		return false;
	authority = memchr(authority, ':', end - authority);
	return authority != NULL && authority + 1 < end;
}

/* Is the key among these patterns? */
static bool
is_among(const char *const *patterns, const char *key)
{
	for (int i = 0; patterns[i] != NULL; i++)
		if (fnmatch(patterns[i], key, FNM_CASEFOLD) == 0)
			return true;
	return false;
}

/* Does the value hold what nobody should see? */
static bool
is_secret(const Setting *setting, const char *value)
{
	if (setting->secret)
		return true;
	if (setting->holds_secret != NULL && setting->holds_secret(value))
		return true;
	if (setting->kind == SETTING_PAIRS)
	{
		char	   *key = strndup(value, strcspn(value, "="));
		bool		found = is_among(secret_keys, key) ||
			(is_among(likely_secret_keys, key) && !is_among(harmless_keys, key));

		free(key);
		return found;
	}
	return false;
}

/* Why it must not stand on the command line, and where it may. */
static char *
refuse_secret(const Setting *setting, const char *value)
{
	char	   *variable = format(ENVIRONMENT_PREFIX "%s", setting->name);
	const char *what = setting->secret ? "is a secret" : "holds a secret";
	char	   *why;

	for (char *c = variable; *c; c++)
		*c = *c == '-' ? '_' : toupper((unsigned char) *c);
	if (setting->kind == SETTING_PAIRS)
	{
		int			length = strcspn(value, "=");

		why = format("--%s %.*s %s, and everybody on this machine can read a command line; "
					 "set %s to \"%.*s=...\", or write \"%s.%.*s = ...\" in a file and name it by --settings",
					 setting->name, length, value, what, variable, length, value, setting->name, length, value);
	}
	else
		why = format("--%s %s, and everybody on this machine can read a command line; "
					 "set %s, or write \"%s = ...\" in a file and name it by --settings%s",
					 setting->name, what, variable, setting->name,
					 strcmp(setting->name, "dbname") == 0 ? ", or keep the password in ~/.pgpass" : "");
	free(variable);
	return why;
}

/* What is wrong with one of a setting that consists of pairs; NULL: nothing. */
static char *
check_pair(const Setting *setting, const char *value, const char *source)
{
	if (setting->kind == SETTING_PAIRS && (strchr(value, '=') == NULL || *value == '='))
		return format("%s: a key, \"=\" and a value are wanted", source);
	return NULL;
}

/* All arguments. */
static char *
gather_command_line(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
	{
		const char *argument = argv[i];
		const char *name;
		const char *value;
		char	   *source;
		char	   *why;
		Setting    *setting;

		if (strcmp(argument, "-?") == 0 || strcmp(argument, "-h") == 0)
			argument = "--help";
		else if (strcmp(argument, "-V") == 0)
			argument = "--version";
		if (strncmp(argument, "--", 2) != 0 || argument[2] == '\0' || argument[2] == '=')
			return format("\"%s\" is not a setting: they are written --name VALUE; see idemq-relay --help", argument);
		value = strchr(argument, '=');
		name = value == NULL ? argument + 2 : keep(strndup(argument + 2, value - argument - 2));
		source = keep(format("--%s", name));
		setting = find_anywhere(name, NULL);
		if (setting == NULL)
			return unknown(source, name, "--");
		if (value != NULL)
			value++;
		else if (setting->kind == SETTING_FLAG)
			value = i + 1 < argc && settings_value_is_flag(argv[i + 1]) ? argv[++i] : "on";
		else if (i + 1 == argc || strncmp(argv[i + 1], "--", 2) == 0)
			return format("%s needs a value: %s %s", source, source, setting->value_name ? setting->value_name : "VALUE");
		else
			value = argv[++i];
		if (is_secret(setting, value))
			return refuse_secret(setting, value);
		why = check_pair(setting, value, source);
		if (why != NULL)
			return why;
		gather(ORIGIN_COMMAND_LINE, setting->name, value, source);
	}
	return NULL;
}

/* Kubernetes tells every container about its services: of one named idemq-relay it would be these. */
static bool
is_of_kubernetes(const char *name)
{
	return strncmp(name, "service-", strlen("service-")) == 0 || strcmp(name, "port") == 0 ||
		strncmp(name, "port-", strlen("port-")) == 0;
}

/* All variables with our prefix; an empty one is not set.  Pairs are one a line. */
static char *
gather_environment(void)
{
	for (char **variable = environ; variable != NULL && *variable != NULL; variable++)
	{
		const char *value = strchr(*variable, '=');
		char	   *name;
		char	   *source;
		Setting    *setting;

		if (value == NULL || value[1] == '\0' || strncmp(*variable, ENVIRONMENT_PREFIX, strlen(ENVIRONMENT_PREFIX)) != 0)
			continue;
		source = keep(strndup(*variable, value - *variable));
		name = keep(strdup(source + strlen(ENVIRONMENT_PREFIX)));
		for (char *c = name; *c; c++)
			*c = *c == '_' ? '-' : tolower((unsigned char) *c);
		setting = find_anywhere(name, NULL);
		if (setting == NULL && is_of_kubernetes(name))
			continue;
		if (setting == NULL)
			return unknown(source, name, ENVIRONMENT_PREFIX);
		value = keep(strdup(value + 1));
		if (setting->kind != SETTING_PAIRS)
			gather(ORIGIN_ENVIRONMENT, setting->name, value, source);
		else
			for (char *rest, *line = strtok_r((char *) value, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
			{
				char	   *why = check_pair(setting, line, source);

				if (why != NULL)
					return why;
				gather(ORIGIN_ENVIRONMENT, setting->name, line, source);
			}
	}
	return NULL;
}

/* One line of the file.  name.key = value is a pair. */
static char *
gather_from_file(char *name, char *value, char *source, bool readable_by_others)
{
	char	   *dot = strchr(keep(name), '.');
	Setting    *setting;
	char	   *why;

	keep(value);
	keep(source);
	if (dot != NULL)
		*dot = '\0';
	for (char *c = name; *c; c++)
		if (*c == '_')
			*c = '-';
	setting = find_anywhere(name, NULL);
	if (setting == NULL)
		return unknown(source, name, "");
	if (strcmp(name, "settings") == 0)
		return format("%s: a settings file cannot name another one", source);
	if (dot != NULL && setting->kind != SETTING_PAIRS)
		return format("%s: \"%s\" has no parts, write \"%s = ...\"", source, name, name);
	if (dot != NULL)
		value = keep(format("%s=%s", dot + 1, value));
	why = check_pair(setting, value, source);
	if (why != NULL)
		return why;
	if (readable_by_others && is_secret(setting, value))
		log_line(LOG_LEVEL_WARNING, "everybody on this machine can read a secret in the settings file: chmod 600 it",
				 "setting", setting->name, "where", source, NULL);
	gather(ORIGIN_FILE, setting->name, value, source);
	return NULL;
}

/* See settings.h. */
const char *
settings_gathered(const char *name)
{
	for (int origin = NORIGINS - 1; origin >= 0; origin--)
	{
		const char *value = NULL;

		for (Given *one = given[origin]; one != NULL; one = one->next)
			if (strcmp(one->name, name) == 0)
				value = one->value;
		if (value != NULL)
			return value;
	}
	return NULL;
}

/* See settings.h. */
bool
settings_gather(int argc, char **argv, char **why)
{
	const char *file;

	*why = gather_command_line(argc, argv);
	if (*why == NULL)
		*why = gather_environment();
	if (*why == NULL && (file = settings_gathered("settings")) != NULL)
		*why = settings_file_read(file, gather_from_file);
	return *why == NULL;
}

/* One more pair; it replaces one of the same key. */
static void
set_pair(Setting *setting, const char *value)
{
	size_t		length = strcspn(value, "=");
	char	   *key = strndup(value, length);
	SettingPair **last = &setting->pairs;

	while (*last != NULL && strcmp((*last)->key, key) != 0)
		last = &(*last)->next;
	if (*last == NULL)
	{
		*last = calloc(1, sizeof(SettingPair));
		if (*last == NULL)
			text_no_memory();
		(*last)->key = key;
	}
	else
		free(key);
	(*last)->value = value + length + 1;
	setting->text = value;
}

/* See settings.h. */
bool
settings_apply(Setting *settings, char **why)
{
	for (Table *table = tables; table != NULL; table = table->next)
		if (table->settings == settings)
			table->applied = true;
	for (Setting *setting = settings; setting->name != NULL; setting++)
	{
		const char *value = setting->initial;

		setting->source = "the default";
		if (setting->kind == SETTING_PAIRS && value != NULL)
			set_pair(setting, value);
		for (int origin = 0; origin < NORIGINS; origin++)
			for (Given *one = given[origin]; one != NULL; one = one->next)
			{
				if (strcmp(one->name, setting->name) != 0)
					continue;
				value = one->value;
				setting->source = one->source;
				if (setting->kind == SETTING_PAIRS)
					set_pair(setting, value);
			}
		if (value != NULL && setting->kind != SETTING_PAIRS)
		{
			char	   *wrong = settings_value_set(setting, value);

			if (wrong != NULL)
			{
				if (strncmp(setting->source, "--", 2) == 0 || strchr(setting->source, ' ') == NULL)
					*why = format("%s: %s", setting->source, wrong);
				else
					*why = format("%s: %s: %s", setting->source, setting->name, wrong);
				free(wrong);
				return false;
			}
		}
	}
	return true;
}

/* Does a table that counts have it? */
static bool
is_applied(const char *name)
{
	for (Table *table = tables; table != NULL; table = table->next)
		if (table->applied && settings_find(table->settings, name) != NULL)
			return true;
	return false;
}

/* See settings.h. */
bool
settings_leftover(void (*unused) (const char *source, const char *owner), char **why)
{
	for (int origin = NORIGINS - 1; origin >= 0; origin--)
		for (Given *one = given[origin]; one != NULL; one = one->next)
		{
			Table	   *table = NULL;

			if (is_applied(one->name) || find_anywhere(one->name, &table) == NULL || table->owner == NULL)
				continue;
			if (origin == ORIGIN_COMMAND_LINE)
			{
				*why = format("%s is a setting of %s, which is not where --to leads", one->source, table->owner);
				return false;
			}
			unused(one->source, table->owner);
		}
	return true;
}

/* See settings.h. */
void
settings_print(void)
{
	for (Table *table = tables; table != NULL; table = table->next)
		settings_help_print(table->title, table->settings);
}
