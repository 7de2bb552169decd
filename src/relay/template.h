/*-------------------------------------------------------------------------
 *
 * template.h
 *	  Names made of the columns of an event: "{aggregatetype}.{type}".
 *
 *-------------------------------------------------------------------------
 */
#ifndef TEMPLATE_H
#define TEMPLATE_H

#include "message.h"

typedef struct Template Template;

/*
 * Fields: id seq aggregatetype aggregateid type cause attempt; header.NAME; {{ and }} are braces.
 * NULL, and *why (malloc'd) says what is wrong and lists the fields.
 */
extern Template *template_parse(const char *text, char **why);

/* Is it the same for every event? */
extern bool template_is_constant(const Template *template);

/* What it is for this one, malloc'd; a field that is NULL is empty.  escape: for a URL. */
extern char *template_fill(const Template *template, const Message *message, bool escape);

#endif
