/*-------------------------------------------------------------------------
 *
 * consumer.h
 *	  The consumers of the outbox, and what they want.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_CONSUMER_H
#define IDEMQ_CONSUMER_H

#include "idemq.h"

#include "event.h"
#include "moment.h"

typedef struct Consumer
{
	int32		number;
	char	   *name;
	int			ntypes;			/* -1: it wants all */
	text	  **types;
	int32		shards;
	int32		next_shards;	/* when all have reached the barrier; 0: no
								 * change */
	Moment		barrier;
	bool		ordered;
	int32		max_attempts;
	int			nladder;
	int64	   *ladder;
} Consumer;

extern Consumer *consumer_find(const char *name);
extern Consumer *consumer_by_number(int32 number);
extern void consumer_find_position(const Consumer *consumer, int32 shard, ShardState *state);
extern bool consumer_is_home(const ShardState *state);
extern void consumer_require_home(const Consumer *consumer, const ShardState *state);
extern void consumer_go_home(ShardState *state);
extern void consumer_set_position(ShardState *state, const Moment *moment);
extern bool consumer_wants(const Consumer *consumer, const Event *event);
extern void consumer_require_fresh_snapshot(const char *function);

#endif							/* IDEMQ_CONSUMER_H */
