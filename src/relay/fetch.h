/*-------------------------------------------------------------------------
 *
 * fetch.h
 *	  Fetching events.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FETCH_H
#define FETCH_H

#include "batch.h"
#include "db.h"

typedef enum FetchResult
{
	FETCH_GOT,					/* the batch is there, and begins */
	FETCH_NOTHING,
	FETCH_LOST,					/* to be asked again; there may be a lease that
								 * nobody knows */
	FETCH_REFUSED
} FetchResult;

typedef void (*FetchDone) (FetchResult result, const DbAnswer *answer, Batch *batch);

extern void fetch_start(const char *consumer, int64_t lease, int64_t memory, FetchDone done);

/* Asks for so many at most, or fewer if there is no memory for them. */
extern void fetch_ask(Db *db, int most);

/* The command that fetches, for who does something else with the rows. */
extern DbCommand *fetch_command(int most, void (*row) (DbCommand *command, const PGresult *row),
								void (*done) (DbCommand *command, const DbAnswer *answer));

/* The event of such a row; free() it. */
extern Event *fetch_event(const PGresult *row);

/* Is one under way? */
extern bool fetch_is_asked(void);

/* Is there memory for another one? */
extern bool fetch_has_room(void);

#endif
