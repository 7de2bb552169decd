/*-------------------------------------------------------------------------
 *
 * fetch.c
 *	  Fetching events.
 *
 * Rows come one by one and are copied, each into one piece of memory.  When there is no memory
 * for one, that one and all later ones of the batch are not kept: they stay in the
 * lease, and are given back with it.  Fewer are asked for the next time.
 *
 * Events are not sent before the answer is complete: only then is the lease
 * committed.
 *
 * There are events that the server cannot send: as text, JSON of 200 MB, or of 100 kB
 * with numbers such as 1e131071, is longer than the 1 GB that it can hold.  The fetch fails, so
 * nothing is leased, and nothing is counted.  Such a fetch is made again for one event, and if that
 * fails too, once without what is in the event, unless it is too small to be the one: another
 * relay may have been given that.  The event is then rejected for the reason that the server gave.
 *
 *-------------------------------------------------------------------------
 */
#include "fetch.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "metrics.h"
#include "settle.h"
#include "text.h"

/* Headers come as an array of names and values by turns. */
#define FETCH_SQL \
	"SELECT f.token, f.id, f.seq, f.aggregatetype, f.aggregateid, f.type, f.payload, f.body," \
	" CASE WHEN pg_catalog.jsonb_typeof(f.headers) = 'object' THEN ARRAY(SELECT u.u" \
	" FROM pg_catalog.jsonb_each_text(f.headers) AS e(k, v), unnest(ARRAY[e.k, e.v]) AS u(u)) END," \
	" pg_catalog.jsonb_typeof(f.headers) <> 'object', f.cause, f.attempt, f.deliveries, f.created_at" \
	" FROM @.outbox_fetch($1, $2::int, $3::interval) AS f"

/* The same, without the contents of an event that may be too large, and whether it is one. */
#define CAREFUL_SQL \
	"SELECT f.token, f.id, f.seq, f.aggregatetype, f.aggregateid, f.type," \
	" CASE WHEN s.small THEN f.payload END, CASE WHEN s.small THEN f.body END," \
	" CASE WHEN s.small AND pg_catalog.jsonb_typeof(f.headers) = 'object' THEN ARRAY(SELECT u.u" \
	" FROM pg_catalog.jsonb_each_text(f.headers) AS e(k, v), unnest(ARRAY[e.k, e.v]) AS u(u)) END," \
	" pg_catalog.jsonb_typeof(f.headers) <> 'object', f.cause, f.attempt, f.deliveries, f.created_at, NOT s.small" \
	" FROM @.outbox_fetch($1, $2::int, $3::interval) AS f, LATERAL (SELECT" \
	" coalesce(pg_catalog.pg_column_size(f.payload #> '{}'), 0) + coalesce(pg_catalog.octet_length(f.body), 0) +" \
	" coalesce(pg_catalog.pg_column_size(f.headers #> '{}'), 0) < 65536 AS small OFFSET 0) AS s"

enum
{
	COLUMN_TOKEN,
	COLUMN_ID,
	COLUMN_SEQ,
	COLUMN_AGGREGATETYPE,
	COLUMN_AGGREGATEID,
	COLUMN_TYPE,
	COLUMN_PAYLOAD,
	COLUMN_BODY,
	COLUMN_HEADERS,
	COLUMN_HEADERS_UNFIT,
	COLUMN_CAUSE,
	COLUMN_ATTEMPT,
	COLUMN_DELIVERIES,
	COLUMN_CREATED_AT,
	COLUMN_LEFT_OUT				/* of CAREFUL_SQL */
};

/* From 1970 to 2000. */
#define EPOCH_DISTANCE	(INT64_C(10957) * 86400 * 1000000)

static const char *consumer;
static int64_t lease;
static int64_t memory;
static FetchDone fetch_done;

static bool asked;
static Batch *batch;			/* that is coming in */
static int64_t bytes;			/* of its events, dropped ones too */
static int	enough = INT32_MAX; /* more were too much the last time */
static int64_t typical;			/* size of an event */
static int	asked_for;
static bool careful;			/* ask without contents */
static char *unsendable;		/* why */
static int64_t searching_since;

/* See fetch.h. */
void
fetch_start(const char *name, int64_t lease_time, int64_t most_memory, FetchDone done)
{
	consumer = name;
	lease = lease_time;
	memory = most_memory;
	fetch_done = done;
}

/* See fetch.h. */
bool
fetch_is_asked(void)
{
	return asked;
}

/* See fetch.h. */
bool
fetch_has_room(void)
{
	return batch_count() == 0 || batch_memory() + typical < memory;
}

/* A number of 8 bytes. */
static int64_t
get_int64(const PGresult *row, int column)
{
	uint64_t	value;

	memcpy(&value, PQgetvalue(row, 0, column), sizeof(value));
	return (int64_t) be64toh(value);
}

/* A number of 4 bytes. */
static int32_t
int32_at(const char *at)
{
	uint32_t	value;

	memcpy(&value, at, sizeof(value));
	return (int32_t) be32toh(value);
}

/* Copy text to where there is room, and go on behind it. */
static const char *
put_text(char **to, const char *text, size_t length)
{
	char	   *start = *to;

	memcpy(start, text, length);
	start[length] = '\0';
	*to += length + 1;
	return start;
}

/* Copy a column. */
static const char *
put_column(char **to, const PGresult *row, int column)
{
	if (PQgetisnull(row, 0, column))
		return NULL;
	return put_text(to, PQgetvalue(row, 0, column), PQgetlength(row, 0, column));
}

/* How many elements a column with an array of one dimension has. */
static int
count_elements(const PGresult *row, int column)
{
	const char *at = PQgetvalue(row, 0, column);

	/*
	 * dimensions, has nulls, type; length and lower bound of the first
	 * dimension
	 */
	if (PQgetisnull(row, 0, column) || int32_at(at) != 1)
		return 0;
	return int32_at(at + 12);
}

/* Copy the headers; those that are null are left out. */
static void
put_headers(char **to, Event *event, Header *headers, const PGresult *row)
{
	const char *at = PQgetvalue(row, 0, COLUMN_HEADERS) + 20;
	int			n = count_elements(row, COLUMN_HEADERS) / 2;

	for (int i = 0; i < n; i++)
	{
		const char *name = at + 4;
		int			name_length = int32_at(at);
		const char *value = name + name_length + 4;
		int			value_length = int32_at(name + name_length);

		at = value + (value_length >= 0 ? value_length : 0);
		if (value_length < 0)
			continue;
		headers[event->message.nheaders].name = put_text(to, name, name_length);
		headers[event->message.nheaders].value = put_text(to, value, value_length);
		event->message.nheaders++;
	}
	event->message.headers = headers;
}

/* An id as people write it. */
static void
put_id(char *to, const char *id)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < 16; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		*to++ = digits[(unsigned char) id[i] >> 4];
		*to++ = digits[(unsigned char) id[i] & 15];
	}
	*to = '\0';
}

/* Were its contents left out? */
static bool
is_left_out(const PGresult *row)
{
	return PQnfields(row) > COLUMN_LEFT_OUT && PQgetvalue(row, 0, COLUMN_LEFT_OUT)[0];
}

/* What an event will take; all that is copied, and then some. */
static size_t
size_of(const PGresult *row)
{
	size_t		size = sizeof(Event) + sizeof(Event *);

	for (int column = COLUMN_AGGREGATETYPE; column <= COLUMN_CAUSE; column++)
		size += PQgetlength(row, 0, column) + 1;
	if (is_left_out(row))
		size += strlen(unsendable) + 1;
	return size + sizeof(Header) * (count_elements(row, COLUMN_HEADERS) / 2);
}

/* An event. */
static Event *
make_event(const PGresult *row, size_t size)
{
	Event	   *event = calloc(1, size);
	Message    *message = &event->message;
	Header	   *headers = (Header *) (event + 1);
	char	   *to;

	if (event == NULL)
		text_no_memory();
	to = (char *) (headers + count_elements(row, COLUMN_HEADERS) / 2);
	event->size = size;
	put_id(message->id, PQgetvalue(row, 0, COLUMN_ID));
	message->seq = get_int64(row, COLUMN_SEQ);
	message->aggregatetype = put_column(&to, row, COLUMN_AGGREGATETYPE);
	message->aggregateid = put_column(&to, row, COLUMN_AGGREGATEID);
	message->type = put_column(&to, row, COLUMN_TYPE);
	message->cause = put_column(&to, row, COLUMN_CAUSE);
	if (!PQgetisnull(row, 0, COLUMN_PAYLOAD))
	{
		/* a version, then the text */
		message->length = PQgetlength(row, 0, COLUMN_PAYLOAD) - 1;
		message->data = put_text(&to, PQgetvalue(row, 0, COLUMN_PAYLOAD) + 1, message->length);
	}
	else if (!PQgetisnull(row, 0, COLUMN_BODY))
	{
		message->binary = true;
		message->length = PQgetlength(row, 0, COLUMN_BODY);
		message->data = put_text(&to, PQgetvalue(row, 0, COLUMN_BODY), message->length);
	}
	if (is_left_out(row))
		event->unfit = put_text(&to, unsendable, strlen(unsendable));
	else if (!PQgetisnull(row, 0, COLUMN_HEADERS_UNFIT) && PQgetvalue(row, 0, COLUMN_HEADERS_UNFIT)[0])
		event->unfit = "its headers are no JSON object";
	else if (!PQgetisnull(row, 0, COLUMN_HEADERS))
		put_headers(&to, event, headers, row);
	message->attempt = int32_at(PQgetvalue(row, 0, COLUMN_ATTEMPT));
	message->deliveries = int32_at(PQgetvalue(row, 0, COLUMN_DELIVERIES));
	message->created_at = get_int64(row, COLUMN_CREATED_AT) + EPOCH_DISTANCE;
	return event;
}

/* A row has come. */
static void
take_row(DbCommand *command, const PGresult *row)
{
	size_t		size = size_of(row);

	if (batch == NULL)
	{
		char		token[24];

		snprintf(token, sizeof(token), "%lld", (long long) get_int64(row, COLUMN_TOKEN));
		batch = batch_make(token);
		bytes = 0;
	}
	bytes += size;

	/* one there must be, whatever its size, for things to go on */
	if (batch->ndropped > 0 || (batch->nevents > 0 && batch_memory() + (int64_t) size > memory))
		batch->ndropped++;
	else
		batch_add(batch, make_event(row, size));
}

/* Ask for fewer or for more the next time. */
static void
adapt(int64_t took)
{
	int			n = batch->nevents + batch->ndropped;

	typical = bytes / n;
	if (batch->ndropped > 0)
		enough = batch->nevents;
	else if (took > lease / 4 && n > 1)
		enough = n / 2;
	else if (n >= enough)
		enough = enough > INT32_MAX / 2 ? INT32_MAX : enough * 2;
}

/* Is there an event that the server cannot send? */
static bool
is_unsendable(const DbAnswer *answer)
{
	return answer->fate != DB_DONE &&
		(strncmp(answer->sqlstate, "54", 2) == 0 ||
		 (strcmp(answer->sqlstate, "XX000") == 0 &&
		  strstr(answer->message, "invalid memory alloc request size") != NULL));
}

/* Look for it, by fetching less. */
static void
search(const DbAnswer *answer)
{
	int64_t		now = clock_now();

	/* one line, however many steps that takes */
	if (searching_since == 0 || now - searching_since > SECONDS(60))
	{
		log_line(LOG_LEVEL_WARNING, "there is an event that the database cannot send, looking for it",
				 "reason", answer->message, "sqlstate", answer->sqlstate, NULL);
		searching_since = now;
	}
	enough = 1;
	careful = asked_for == 1;
	if (careful)
	{
		free(unsendable);
		unsendable = format("the database cannot send it: %s", answer->message);
	}
}

/* All rows have come. */
static void
take_end(DbCommand *command, const DbAnswer *answer)
{
	Batch	   *got = batch;
	bool		again = !careful && is_unsendable(answer);
	DbAnswer	told = *answer;

	asked = false;
	careful = false;
	if (got != NULL)
		adapt(clock_now() - command->sent_at);
	batch = NULL;
	if (again)
	{
		search(answer);
		told.fate = DB_LOST;
		told.sqlstate = "";		/* nothing more to be said of it */
	}
	if (answer->fate == DB_DONE && got == NULL)
	{
		fetch_done(FETCH_NOTHING, answer, NULL);
		return;
	}
	if (answer->fate == DB_DONE)
	{
		metrics_add(METRIC_FETCHED, got->nevents);
		metrics_add(METRIC_BATCHES, 1);
	}
	else if (got != NULL)
	{
		/* we know the token, but not whether there is such a lease */
		got->uncertain = true;
		got->giving_back = true;
	}
	if (got != NULL)
		settle_begin(got, command->sent_at);
	fetch_done(told.fate == DB_DONE ? FETCH_GOT : told.fate == DB_LOST ? FETCH_LOST : FETCH_REFUSED,
			   &told, got);
}

/* See fetch.h. */
Event *
fetch_event(const PGresult *row)
{
	return make_event(row, size_of(row));
}

/* See fetch.h. */
DbCommand *
fetch_command(int most, void (*row) (DbCommand *command, const PGresult *row),
			  void (*done) (DbCommand *command, const DbAnswer *answer))
{
	DbCommand  *command = db_command(FETCH_SQL, settle_patience(), done, NULL);

	db_param(command, format("%s", consumer));
	db_param(command, format("%d", most));
	db_param(command, settle_interval(lease));
	command->once = true;
	command->row = row;
	return command;
}

/* See fetch.h. */
void
fetch_ask(Db *db, int most)
{
	DbCommand  *command;
	int64_t		fit = memory - batch_memory();

	if (typical > 0 && most > fit / typical)
		most = fit / typical;
	if (most > enough)
		most = enough;
	if (most < 1 || careful)
		most = 1;
	asked = true;
	asked_for = most;
	command = fetch_command(most, take_row, take_end);
	if (careful)
		command->sql = CAREFUL_SQL;
	metrics_add(METRIC_FETCHES, 1);
	db_ask(db, command);
}
