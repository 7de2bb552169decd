/* metrics_text.h: what the relay has counted, as text. */
#ifndef METRICS_TEXT_H
#define METRICS_TEXT_H

#include "text.h"

/* In the format of Prometheus. */
extern void metrics_text(Text *text, const char *consumer, const char *destination);

/* As JSON.  True: all is well. */
extern bool metrics_text_health(Text *text);

#endif
