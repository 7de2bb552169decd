/* settings_value.h: what the value of a setting means. */
#ifndef SETTINGS_VALUE_H
#define SETTINGS_VALUE_H

#include "settings.h"

/* Reads value into setting, but for pairs.  Else what is wrong with it, malloc'd. */
extern char *settings_value_set(Setting *setting, const char *value);

/* Is it one of the words for yes and no? */
extern bool settings_value_is_flag(const char *value);

/* Malloc'd, as a person would write it. */
extern char *settings_value_write(const Setting *setting, int64_t number);

#endif
