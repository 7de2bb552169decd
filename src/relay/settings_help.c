/*-------------------------------------------------------------------------
 *
 * settings_help.c
 *	  What --help says of a table of settings.
 *
 *-------------------------------------------------------------------------
 */
#include "settings_help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

/* Where the text begins, and where a line ends at last. */
#define HELP_COLUMN	31
#define HELP_WIDTH	96

/* "--name VALUE" */
static void
add_name(Text *text, const Setting *setting)
{
	text_add(text, "  --%s", setting->name);
	if (setting->value_name != NULL)
		text_add(text, " %s", setting->value_name);
	else if (setting->kind == SETTING_CHOICE)
		for (int i = 0; setting->choices[i] != NULL; i++)
			text_add(text, "%c%s", i == 0 ? ' ' : '|', setting->choices[i]);
	else if (setting->kind == SETTING_PAIRS)
		text_add(text, " KEY=VALUE");
	else if (setting->kind != SETTING_FLAG)
		text_add(text, " VALUE");
	else if (setting->initial != NULL)
		text_add(text, " on|off");
}

/* Words, in lines from the column on; a line that begins with a blank stays one. */
static void
print_words(const char *words, int column)
{
	int			at = column;
	bool		first = true;

	while (*words)
	{
		int			length = strcspn(words, " \n");

		if (!first && at + 1 + length > HELP_WIDTH)
		{
			printf("\n%*s", HELP_COLUMN, "");
			at = HELP_COLUMN;
			first = true;
		}
		printf("%s%.*s", first ? "" : " ", length, words);
		at += length + !first;
		first = false;
		words += length;
		if (words[0] == '\n' && words[1] == ' ')
		{
			length = strcspn(words + 1, "\n");
			printf("\n%*s%.*s", HELP_COLUMN, "", length, words + 1);
			words += length + 1;
			at = HELP_WIDTH;
		}
		else if (*words)
			words++;
	}
	putchar('\n');
}

/* See settings_help.h. */
void
settings_help_print(const char *title, const Setting *settings)
{
	printf("\n%s\n", title);
	for (const Setting *setting = settings; setting->name != NULL; setting++)
	{
		Text		name = {0};
		Text		help = {0};

		add_name(&name, setting);
		text_add(&help, "%s", setting->help == NULL ? "" : setting->help);
		if (setting->kind == SETTING_PAIRS)
			text_add(&help, "; may be given several times");
		if (setting->secret)
			text_add(&help, " (secret: not on the command line)");
		if (setting->initial != NULL && setting->kind != SETTING_PAIRS)
			text_add(&help, " (default: %s)", setting->initial);
		if (name.length + 2 > HELP_COLUMN)
			printf("%s\n%*s", name.data, HELP_COLUMN, "");
		else
			printf("%-*s", HELP_COLUMN, name.data);
		print_words(help.data, HELP_COLUMN);
		free(name.data);
		free(help.data);
	}
}
