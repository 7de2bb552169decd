/* clock.h: microseconds that only go forward, and waiting times. */
#ifndef RELAY_CLOCK_H
#define RELAY_CLOCK_H

#include <stdint.h>

#define SECONDS(n) ((int64_t) (n) * 1000000)
#define MILLISECONDS(n) ((int64_t) (n) * 1000)

extern int64_t clock_now(void);

/* between 0.8 and 1.2 times */
extern int64_t clock_jitter(int64_t time);

#endif
