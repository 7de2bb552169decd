/* options.h: the settings of the relay itself. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "log.h"
#include "task.h"

/* Adds their tables. */
extern void options_add(void);

/* Puts what was gathered into them, and checks it.  Else *why. */
extern bool options_apply(char **why);

/* What relay_run() wants to know; after options_apply().  False: what is set does not go together. */
extern bool options_read(RelayOptions *options, char **why);

extern LogLevel options_log_level(void);
extern bool options_log_json(void);

/* --listen, or NULL. */
extern const char *options_listen(void);

#endif
