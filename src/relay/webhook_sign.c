/*-------------------------------------------------------------------------
 *
 * webhook_sign.c
 *	  Signatures as Standard Webhooks has them.
 *
 * For each secret "v1," and the base64 of HMAC-SHA256 over id.timestamp.body, with spaces between them.
 *
 *-------------------------------------------------------------------------
 */
#include "webhook_sign.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "log.h"
#include "text.h"

#define PREFIX "whsec_"
#define SECRETS_MOST 8
#define SECRET_LEAST 24			/* bytes */
#define SECRET_MOST 64
#define SIGNATURE_SIZE 32

static EVP_PKEY *keys[SECRETS_MOST];
static int	nkeys;

/* What a digit of base64 is worth, or -1. */
static int
digit_value(char digit)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *found = digit != '\0' ? strchr(digits, digit) : NULL;

	return found != NULL ? found - digits : -1;
}

/* Decodes base64, with its = at the end or without: the number of bytes, or -1. */
static int
decode(const char *text, size_t length, unsigned char *bytes, int most)
{
	unsigned int bits = 0;
	int			nbits = 0;
	int			n = 0;

	for (int i = 0; i < 2 && length > 0 && text[length - 1] == '='; i++)
		length--;
	for (size_t i = 0; i < length; i++)
	{
		int			value = digit_value(text[i]);

		if (value < 0)
			return -1;
		bits = (bits << 6 | value) & 0xFFFF;
		nbits += 6;
		if (nbits >= 8)
		{
			if (n == most)
				return -1;
			nbits -= 8;
			bytes[n++] = bits >> nbits;
		}
	}
	return nbits < 6 ? n : -1;
}

/* See webhook_sign.h. */
char *
webhook_sign_configure(const char *secrets)
{
	const char *s = secrets + strspn(secrets, " ");

	for (; *s != '\0'; s += strspn(s, " "))
	{
		size_t		length = strcspn(s, " ");
		unsigned char bytes[SECRET_MOST];
		int			n;

		if (nkeys == SECRETS_MOST)
			return format("there are more than %d secrets", SECRETS_MOST);
		if (length < strlen(PREFIX) || strncmp(s, PREFIX, strlen(PREFIX)) != 0)
			return format("a secret begins with " PREFIX);
		n = decode(s + strlen(PREFIX), length - strlen(PREFIX), bytes, SECRET_MOST);
		if (n < SECRET_LEAST)
			return format("after " PREFIX " a secret is base64 of %d to %d random bytes: " PREFIX "$(openssl rand -base64 32)",
						  SECRET_LEAST, SECRET_MOST);
		keys[nkeys] = EVP_PKEY_new_raw_private_key(EVP_PKEY_HMAC, NULL, bytes, n);
		if (keys[nkeys] == NULL)
			text_no_memory();
		nkeys++;
		s += length;
	}
	return nkeys > 0 ? NULL : format("a secret begins with " PREFIX);
}

/* Signs with one secret. */
static void
sign(EVP_PKEY *key, const char *head, const char *body, size_t length, char signature[SIGNATURE_SIZE])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	size_t		size = SIGNATURE_SIZE;

	if (context == NULL ||
		EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) != 1 ||
		EVP_DigestSignUpdate(context, head, strlen(head)) != 1 ||
		(length > 0 && EVP_DigestSignUpdate(context, body, length) != 1) ||
		EVP_DigestSignFinal(context, (unsigned char *) signature, &size) != 1)
		text_no_memory();
	EVP_MD_CTX_free(context);
}

/* See webhook_sign.h. */
char *
webhook_sign(const char *id, const char *timestamp, const char *body, size_t length)
{
	char	   *head = format("%s.%s.", id, timestamp);
	Text		text = {0};

	for (int i = 0; i < nkeys; i++)
	{
		char		signature[SIGNATURE_SIZE];

		sign(keys[i], head, body, length, signature);
		text_add(&text, i > 0 ? " v1," : "v1,");
		text_add_base64(&text, signature, SIGNATURE_SIZE);
	}
	free(head);
	return text.data;
}
