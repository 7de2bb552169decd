/* webhook_sign.h: signatures as Standard Webhooks has them. */
#ifndef WEBHOOK_SIGN_H
#define WEBHOOK_SIGN_H

#include <stddef.h>

/*
 * Secrets to sign with: whsec_BASE64, several (while one takes the place of
 * another) with spaces between them.  NULL, or what is wrong (malloc'd), which shows none of them.
 */
extern char *webhook_sign_configure(const char *secrets);

/* The value of webhook-signature, malloc'd. */
extern char *webhook_sign(const char *id, const char *timestamp, const char *body, size_t length);

#endif
