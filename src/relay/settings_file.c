/*-------------------------------------------------------------------------
 *
 * settings_file.c
 *	  A file of settings.
 *
 *	# what follows a # at the beginning of a word is a remark
 *	name = value
 *	name = 'value with '' or # or blanks at its ends'
 *
 *-------------------------------------------------------------------------
 */
#include "settings_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "log.h"

/* Takes the quotes off the value, which begins with one.  Where it goes on after the last one; NULL: there is none. */
static char *
unquote(char *value)
{
	char	   *to = value;
	char	   *from = value + 1;

	for (;;)
	{
		if (*from == '\0')
			return NULL;
		if (*from == '\'')
		{
			if (from[1] != '\'')
				break;
			from++;
		}
		*to++ = *from++;
	}
	*to = '\0';
	return from + 1;
}

/* Cuts off blanks at the end. */
static void
trim(char *text)
{
	size_t		length = strlen(text);

	while (length > 0 && isspace((unsigned char) text[length - 1]))
		text[--length] = '\0';
}

/* Splits a line.  *name is NULL if nothing is on it.  False: it cannot be understood. */
static bool
split(char *line, char **name, char **value)
{
	char	   *rest;

	*name = NULL;
	line += strspn(line, " \t\r\n\f\v");
	if (*line == '\0' || *line == '#')
		return true;
	rest = strchr(line, '=');
	if (rest == NULL || rest == line)
		return false;
	*rest++ = '\0';
	trim(line);
	if (strpbrk(line, " \t'\"") != NULL)
		return false;
	rest += strspn(rest, " \t\r\n\f\v");
	*name = line;
	*value = rest;
	if (*rest == '\'')
	{
		rest = unquote(rest);
		if (rest == NULL)
			return false;
		rest += strspn(rest, " \t\r\n\f\v");
		return *rest == '\0' || *rest == '#';
	}
	for (; *rest; rest++)
		if (*rest == '#' && (rest == *value || isspace((unsigned char) rest[-1])))
		{
			*rest = '\0';
			break;
		}
	trim(*value);
	return true;
}

/* See settings_file.h. */
char *
settings_file_read(const char *file,
				   char *(*take) (char *name, char *value, char *source, bool readable_by_others))
{
	FILE	   *stream = fopen(file, "r");
	char	   *line = NULL;
	size_t		room = 0;
	char	   *why = NULL;
	struct stat about;

	if (stream == NULL || fstat(fileno(stream), &about) != 0)
		return format("the settings file \"%s\" cannot be read: %s", file, strerror(errno));
	for (int number = 1; why == NULL; number++)
	{
		char	   *name;
		char	   *value;
		ssize_t		length;

		errno = 0;
		length = getline(&line, &room, stream);
		if (length < 0)
		{
			if (ferror(stream))
				why = format("the settings file \"%s\" cannot be read: %s", file, strerror(errno));
			break;
		}
		if (strlen(line) != length)
			why = format("%s line %d: there is a zero byte in it", file, number);
		else if (!split(line, &name, &value))
			why = format("%s line %d: \"name = value\" is wanted; a value may stand in single quotes", file, number);
		else if (name != NULL)
			why = take(strdup(name), strdup(value), format("%s line %d", file, number), (about.st_mode & S_IROTH) != 0);
	}
	free(line);
	fclose(stream);
	return why;
}
