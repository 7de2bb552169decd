/* settings_help.h: what --help says of a table of settings. */
#ifndef SETTINGS_HELP_H
#define SETTINGS_HELP_H

#include "settings.h"

extern void settings_help_print(const char *title, const Setting *settings);

#endif
