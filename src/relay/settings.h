/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  Settings, from the command line, the environment and a file.
 *
 * --name VALUE, IDEMQ_RELAY_NAME, or "name = value" in the file, in that order of precedence.
 * What is secret is not taken from the command line, which everybody can see,
 * and not shown in the log.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum SettingKind
{
	SETTING_TEXT,
	SETTING_FLAG,				/* on or off; --name alone is on */
	SETTING_NUMBER,
	SETTING_TIME,				/* microseconds; 200ms, 30s, 5min, 1h; a number alone is seconds */
	SETTING_BYTES,				/* 64MB, 1GB, kB, B */
	SETTING_CHOICE,				/* one of choices */
	SETTING_PAIRS				/* key=value, may be given several times; in the file also name.key = value */
} SettingKind;

typedef struct Setting
{
	const char *name;			/* "routing-key" */
	SettingKind kind;
	const char *initial;		/* as it would be written, or NULL */
	const char *value_name;		/* "TEMPLATE", for --help */
	const char *help;			/* what it is for; filled into lines, but for lines that begin with a blank */
	bool		secret;
	int64_t		least,
				most;			/* of numbers, times and sizes; both 0: any */
	const char *const *choices;
	bool		(*holds_secret) (const char *value);	/* not one as a whole, but this value: a URL with a password */

	/* what it is set to */
	const char *text;			/* NULL: not set, and no initial value */
	int64_t		number;			/* of flags, numbers, times, sizes, and choices (their index) */
	const char *source;			/* "--routing-key", "IDEMQ_RELAY_ROUTING_KEY", "relay.conf line 3", "the default" */
	struct SettingPair *pairs;
} Setting;

typedef struct SettingPair
{
	const char *key;
	const char *value;
	struct SettingPair *next;
} SettingPair;

/* ---- for main.c, in this order ---- */

/* A table whose last entry has no name, under its title in --help.  owner: what it is a setting of, NULL: of the relay. */
extern void settings_add(const char *title, const char *owner, Setting *settings);

/*
 * Gathers what is written where.  False: *why says what is wrong (malloc'd).
 * Which settings there are depends on others (--to), so values are looked at later.
 */
extern bool settings_gather(int argc, char **argv, char **why);

/* What was gathered for it, as it was written; NULL: nothing. */
extern const char *settings_gathered(const char *name);

/* Puts what was gathered into a table, and checks it. */
extern bool settings_apply(Setting *settings, char **why);

/*
 * Something was gathered that no applied table has: on the command line it is wrong (false), elsewhere
 * unused() is told about it.
 */
extern bool settings_leftover(void (*unused) (const char *source, const char *owner), char **why);

/* One of a table, by name. */
extern Setting *settings_find(Setting *settings, const char *name);

/* --help, but for its head and foot. */
extern void settings_print(void);

/* Is it a URL with a password? */
extern bool settings_url_has_password(const char *value);

#endif
