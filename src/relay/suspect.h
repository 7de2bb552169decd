/*-------------------------------------------------------------------------
 *
 * suspect.h
 *	  Events for whose sake the destination may only seem to be in trouble.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SUSPECT_H
#define SUSPECT_H

#include "message.h"

/*
 * It was answered, and by the answer the destination is in trouble.  True: it was before, and another one has got
 * through between the two, so this one is at fault.  Else *wait: how much later than the destination it
 * is to be tried again, so that another one is what is tried.
 */
extern bool suspect_failed(const Message *message, int64_t *wait);

/* It is not taken now.  *wait: how much later than the destination it is to be tried again. */
extern void suspect_put_off(const Message *message, int64_t *wait);

/* Have so many failed or been put off in a row, none delivered in between, that it is the destination? */
extern bool suspect_none_gets_through(void);

/* One was delivered. */
extern void suspect_delivered(const Message *message);

/* Has none been delivered since one of them failed? */
extern bool suspect_is_last(void);

#endif
