/*-------------------------------------------------------------------------
 *
 * destination.h
 *	  What the relay asks of a destination.
 *
 * A destination is a table of functions.  But for configure() and interrupt()
 * they are called by the publisher's thread alone (publisher.c), so they may
 * block on the destination, and only on it: the main thread keeps the leases.
 * A destination tells what became of a message by publisher_done(), from within
 * one of these calls.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DESTINATION_H
#define DESTINATION_H

#include "message.h"
#include "settings.h"

/* How an open() went. */
typedef enum Opened
{
	OPEN_OK,
	OPEN_TROUBLE,				/* try again later: unreachable, timed out, ... */
	OPEN_REFUSED,				/* trying again would not help: no such exchange, wrong password, bad certificate.
								 * When it was there before somebody may be mending it. */
	OPEN_ENDED					/* refused, and nobody can mend it: the relay ends */
} Opened;

typedef struct Destination
{
	const char *name;			/* for people: "RabbitMQ" */
	const char *const *schemes; /* of --to: "amqp", "amqps", NULL */
	Setting    *settings;		/* its own, the last has no name */
	bool		pipelines_keys; /* keeps the order of a key with several of its messages in flight */
	int			in_flight;		/* how many messages it is given at most unless the setting says otherwise */

	/* the library and its version, for --version */
	const char *(*version) (void);

	/*
	 * Settings are complete: looks at them, parses templates.  Returns NULL, or what is
	 * wrong with them (malloc'd).
	 */
	char	   *(*configure) (const char *to);

	/* where it goes, without secrets, for log lines */
	const char *(*describe) (void);

	/* what a message would become, one line for --dry-run; malloc'd */
	char	   *(*show) (const Message *message);

	/* Connects.  *why: what stood in the way and how to mend it, malloc'd. */
	Opened		(*open) (char **why);

	/* Sends one; its outcome may come at once or from wait(). */
	void		(*send) (Message *message);

	/*
	 * All that was to be sent for now has been sent (flush buffers); waits until
	 * an answer comes, wake_fd can be read, or timeout (ms, -1 none) is over, and
	 * reports what has come.
	 * False: the connection is gone (*why, malloc'd); the publisher then calls
	 * close() and gives back as TROUBLE what has no outcome yet.
	 */
	bool		(*wait) (int wake_fd, int timeout, char **why);

	/*
	 * Ends the connection.  gently: say goodbye, but within a second; else what
	 * the kernel or the library still has to send is thrown away, and none of it
	 * leaves after this returns.  Also called when there is no connection, or an open() has
	 * failed.  Forgets an interrupt().
	 */
	void		(*close) (bool gently);

	/*
	 * From another thread: what blocks in open(), send() or wait() comes back soon, and
	 * so do calls to come.  Only called while the publisher's thread is in one of the three or
	 * between two send()s, never together with close(); the publisher's next call (but for
	 * a send() that it was about to make) is close(false).
	 */
	void		(*interrupt) (void);
} Destination;

/* --timeout, in microseconds: how long one answer may take; set before configure(). */
extern int64_t destination_timeout;

/* Those that were built in; the last is NULL. */
extern Destination *const destinations[];

extern Destination destination_rabbitmq;
extern Destination destination_kafka;
extern Destination destination_http;
extern Destination destination_stdout;

#endif
