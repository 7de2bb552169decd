/*-------------------------------------------------------------------------
 *
 * settings_value.c
 *	  What the value of a setting means: units, limits, choices.
 *
 *-------------------------------------------------------------------------
 */
#include "settings_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "log.h"
#include "text.h"

typedef struct Unit
{
	const char *name;
	int64_t		size;
} Unit;

/* From large to small; a number alone is the one of size "plain". */
static const Unit times[] = {
	{"d", INT64_C(86400000000)},
	{"h", INT64_C(3600000000)},
	{"min", 60000000},
	{"s", 1000000},
	{"ms", 1000},
	{"us", 1},
	{NULL}
};

static const Unit sizes[] = {
	{"GB", INT64_C(1) << 30},
	{"MB", INT64_C(1) << 20},
	{"kB", INT64_C(1) << 10},
	{"B", 1},
	{NULL}
};

static const Unit counts[] = {
	{"", 1},
	{NULL}
};

static const char *const flag_words[2][5] = {
	{"off", "false", "no", "0", NULL},
	{"on", "true", "yes", "1", NULL}
};

/* 0 or 1; -1: neither. */
static int
flag_of(const char *value)
{
	for (int i = 0; i < 2; i++)
		for (int j = 0; flag_words[i][j] != NULL; j++)
			if (strcasecmp(value, flag_words[i][j]) == 0)
				return i;
	return -1;
}

/* See settings_value.h. */
bool
settings_value_is_flag(const char *value)
{
	return flag_of(value) >= 0;
}

/* The units of a kind, and how much a number alone is. */
static const Unit *
units_of(SettingKind kind, int64_t *plain, const char **what)
{
	*plain = 1;
	switch (kind)
	{
		case SETTING_TIME:
			*plain = 1000000;
			*what = "a time, as 200ms, 30s, 5min, 1h or 1d";
			return times;
		case SETTING_BYTES:
			*what = "a size, as 512kB, 64MB or 1GB";
			return sizes;
		default:
			*what = "a whole number";
			return counts;
	}
}

/* See settings_value.h. */
char *
settings_value_write(const Setting *setting, int64_t number)
{
	int64_t		plain;
	const char *what;
	const Unit *unit = units_of(setting->kind, &plain, &what);

	while (unit[1].name != NULL && (number < unit->size || number % unit->size != 0))
		unit++;
	return format("%" PRId64 "%s", number / unit->size, number == 0 ? "" : unit->name);
}

/* Digits, a decimal point if a unit follows, a unit. */
static bool
read_number(SettingKind kind, const char *value, int64_t *number)
{
	int64_t		plain;
	const char *what;
	const Unit *unit = units_of(kind, &plain, &what);
	char	   *end;
	double		amount;

	if (strspn(value, "0123456789.") == 0 && *value != '-')
		return false;
	if (strspn(value, "-0123456789.") > 18)
		return false;
	errno = 0;
	amount = strtod(value, &end);
	if (errno != 0 || end == value || end != value + strspn(value, "-0123456789."))
		return false;
	while (*end == ' ')
		end++;
	if (*end == '\0')
		amount *= plain;
	else
	{
		while (unit->name != NULL && strcasecmp(unit->name, end) != 0)
			unit++;
		if (unit->name == NULL)
			return false;
		amount *= unit->size;
	}
	if (amount > 9e17 || amount < -9e17)
		return false;
	*number = (int64_t) amount;
	/* one tenth of a second is a time; half an event, or half a byte, is nothing */
	return (double) *number == amount || kind == SETTING_TIME;
}

/* The choices in a row. */
static char *
list_choices(const Setting *setting)
{
	Text		list = {0};

	for (int i = 0; setting->choices[i] != NULL; i++)
		text_add(&list, "%s%s", i == 0 ? "" : setting->choices[i + 1] == NULL ? " or " : ", ", setting->choices[i]);
	return list.data;
}

/* One of the choices. */
static char *
set_choice(Setting *setting, const char *value)
{
	char	   *list;
	char	   *why;

	for (int i = 0; setting->choices[i] != NULL; i++)
		if (strcasecmp(value, setting->choices[i]) == 0)
		{
			setting->number = i;
			return NULL;
		}
	list = list_choices(setting);
	why = format("\"%s\" is not one of %s", value, list);
	free(list);
	return why;
}

/* A number, a time or a size, within its limits. */
static char *
set_number(Setting *setting, const char *value)
{
	int64_t		plain;
	const char *what;
	int64_t		number;

	units_of(setting->kind, &plain, &what);
	if (!read_number(setting->kind, value, &number))
		return format("\"%s\" is not %s", value, what);
	if ((setting->least != 0 || setting->most != 0) &&
		(number < setting->least || (setting->most != 0 && number > setting->most)))
	{
		char	   *least = settings_value_write(setting, setting->least);
		char	   *most = settings_value_write(setting, setting->most);
		char	   *why = setting->most == 0
			? format("\"%s\" is too little, the least is %s", value, least)
			: format("\"%s\" is not between %s and %s", value, least, most);

		free(least);
		free(most);
		return why;
	}
	setting->number = number;
	return NULL;
}

/* See settings_value.h. */
char *
settings_value_set(Setting *setting, const char *value)
{
	char	   *why = NULL;

	switch (setting->kind)
	{
		case SETTING_FLAG:
			setting->number = flag_of(value);
			if (setting->number < 0)
				why = format("\"%s\" is neither on nor off", value);
			break;
		case SETTING_NUMBER:
		case SETTING_TIME:
		case SETTING_BYTES:
			why = set_number(setting, value);
			break;
		case SETTING_CHOICE:
			why = set_choice(setting, value);
			break;
		case SETTING_TEXT:
		case SETTING_PAIRS:
			break;
	}
	if (why == NULL)
		setting->text = value;
	return why;
}
