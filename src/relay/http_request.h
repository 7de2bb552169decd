/* http_request.h: what an event becomes for HTTP. */
#ifndef HTTP_REQUEST_H
#define HTTP_REQUEST_H

#include <curl/curl.h>

#include "message.h"
#include "settings.h"
#include "template.h"

/*
 * Looks at the headers of all requests and the source of the events.  has_user: Authorization is made
 * of the user in the URL.  NULL, or what is wrong (malloc'd).
 */
extern char *http_request_configure(const SettingPair *headers, const char *source, bool has_user, bool sign);

/* The headers of a request.  NULL, or why the event cannot be sent (malloc'd). */
extern char *http_request_headers(const Message *message, struct curl_slist **headers);

#endif
