/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  The events of a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATCH_H
#define BATCH_H

#include "message.h"

typedef enum EventState
{
	/* open: something is still to come */
	EVENT_WAITING,				/* behind another one of its key */
	EVENT_READY,				/* to be sent */
	EVENT_SENT,					/* the publisher has it */
	EVENT_AGAIN,				/* to be sent again, alone */
	EVENT_DEFERRED,				/* the database is to be told */
	EVENT_TOLD,					/* the database is being told that it failed,
								 * or was deferred */
	EVENT_HELD,					/* behind one of those */

	/* settled */
	EVENT_DELIVERED,			/* to be acknowledged */
	EVENT_ACKED,
	EVENT_GONE,					/* not in the lease any more: failed,
								 * withdrawn, given back */
	EVENT_LEFT,					/* to be given back with what is left when the
								 * batch ends */
	NEVENT_STATES
} EventState;

#define EVENT_LAST_OPEN EVENT_HELD

typedef struct Batch Batch;

typedef struct Event
{
	Message		message;
	Batch	   *batch;
	int			number;			/* in the batch */
	EventState	state;
	bool		out;			/* the publisher has it, whatever has become
								 * of it */
	const char *unfit;			/* why no destination can take it, or NULL */
	size_t		size;
	struct Event *earlier;		/* of its key */
	struct Event *later;

	/* where it waits for being sent */
	struct Event *next;
	struct Event *prev;
} Event;

struct Batch
{
	Batch	   *next;
	Batch	   *prev;
	int64_t		serial;
	char		token[24];
	int64_t		leased_at;		/* the lease counts from then */
	_Atomic int64_t stop_at;
	int64_t		extend_at;
	Event	  **events;
	int			nevents;
	int			room;
	int			ndropped;		/* events for which there was no memory; they
								 * come last */
	int			count[NEVENT_STATES];
	int			nout;			/* events that the publisher has */
	int64_t		deferred_for;
	int			nasked;			/* commands under way, but for extensions */
	bool		begun;			/* all its events are there */
	bool		extending;
	bool		giving_back;	/* nothing more is sent */
	bool		uncertain;		/* something may be in the lease that we do
								 * not know of */
	bool		late;			/* it was not extended in time */
	bool		over;			/* the lease has ended */
	bool		ending;			/* the last command is under way */
	struct Key *keys;
	int			nkeys;
	int			key_room;
};

/* pipelines: several events of a key may be sent one after the other without waiting. */
extern void batch_start(bool pipelines);

/* All of them, in the order in which they were fetched. */
extern Batch *batch_first(void);
extern int	batch_count(void);

/* Bytes of all events that are held. */
extern int64_t batch_memory(void);

extern Batch *batch_make(const char *token);

/* Takes the event, which is the next in order. */
extern void batch_add(Batch *batch, Event *event);

/* All were added: those that may be sent are ready. */
extern void batch_begin(Batch *batch);
extern void batch_free(Batch *batch);

/* Are all settled, and none at the publisher? */
extern bool batch_is_settled(const Batch *batch);

/* Nothing more is sent: what was not sent is left. */
extern void batch_give_back(Batch *batch);

extern void event_set(Event *event, EventState state);

/* It is out of the way of the later ones of its key. */
extern void event_let_go(Event *event);

/* Later ones of its key must not go for now; returns how many those are. */
extern int	event_hold_later(Event *event);

/* Is one before it out of order for now? */
extern bool event_is_held(const Event *event);

/* Later ones that are held get this state. */
extern void event_set_held(Event *event, EventState state);

#endif
