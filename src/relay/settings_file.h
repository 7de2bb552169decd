/* settings_file.h: a file of settings. */
#ifndef SETTINGS_FILE_H
#define SETTINGS_FILE_H

#include <stdbool.h>

/*
 * Hands each "name = value" to take(), which may keep the strings.  Returns NULL, or what is wrong, malloc'd,
 * with file and line.
 */
extern char *settings_file_read(const char *file,
								char *(*take) (char *name, char *value, char *source, bool readable_by_others));

#endif
