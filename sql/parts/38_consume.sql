/*
 * Consumers: administration, fetching, and what becomes of an event.
 */

CREATE FUNCTION @extschema@.outbox_subscribe(consumer text, aggregatetypes text[] DEFAULT NULL, start_at text DEFAULT 'now',
	shards int DEFAULT 1, ordered boolean DEFAULT true, max_attempts int DEFAULT NULL, retry_ladder text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'outbox_subscribe'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_subscribe(text, text[], text, int, boolean, int, text) IS
'makes a consumer, which is given every event from now on, or from the earliest that is kept';

CREATE FUNCTION @extschema@.outbox_alter(consumer text, aggregatetypes text[] DEFAULT NULL, shards int DEFAULT NULL,
	ordered boolean DEFAULT NULL, max_attempts int DEFAULT NULL, retry_ladder text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'outbox_alter'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_alter(text, text[], int, boolean, int, text) IS
'changes a consumer; NULL leaves a setting as it is, aggregatetypes {} stands for all';

CREATE FUNCTION @extschema@.outbox_unsubscribe(consumer text)
RETURNS void
AS 'MODULE_PATHNAME', 'outbox_unsubscribe'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_unsubscribe(text) IS 'removes a consumer, with its position and what is parked for it';

CREATE FUNCTION @extschema@.outbox_seek(consumer text, to_time timestamptz)
RETURNS void
AS 'MODULE_PATHNAME', 'outbox_seek'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_seek(text, timestamptz) IS
'moves a consumer to the last checkpoint before a time, back or forward; leases and what is parked are forgotten';

CREATE FUNCTION @extschema@.outbox_adopt(consumer text, mode text)
RETURNS void
AS 'MODULE_PATHNAME', 'outbox_adopt'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_adopt(text, text) IS
'decides about a consumer in a copied, restored or upgraded database: continue, replay or skip';

CREATE FUNCTION @extschema@.outbox_fetch(consumer text, max_events int DEFAULT 100, lease interval DEFAULT '1 minute',
	OUT token bigint, OUT id uuid, OUT seq bigint, OUT aggregatetype text, OUT aggregateid text, OUT type text,
	OUT payload jsonb, OUT body bytea, OUT headers jsonb, OUT cause text, OUT attempt int, OUT deliveries int,
	OUT created_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'outbox_fetch'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_fetch(text, int, interval) IS
'leases events of one shard, all under one token; none: call outbox_wait()';

CREATE FUNCTION @extschema@.outbox_ack(token bigint, ids uuid[] DEFAULT NULL)
RETURNS int
AS 'MODULE_PATHNAME', 'outbox_ack'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_ack(bigint, uuid[]) IS
'events of a lease are dealt with: these, or all that are left of it; returns how many';

CREATE FUNCTION @extschema@.outbox_nack(token bigint, id uuid, error text, retry_in interval DEFAULT NULL,
	OUT action text, OUT attempt int, OUT retry_at timestamptz, OUT withdrawn uuid[])
RETURNS record
AS 'MODULE_PATHNAME', 'outbox_nack'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_nack(bigint, uuid, text, interval) IS
'an event has failed: it is tried again later, or dead; withdrawn are the later events of its key, which must not be processed now';

CREATE FUNCTION @extschema@.outbox_release(token bigint, ids uuid[] DEFAULT NULL, retry_in interval DEFAULT NULL)
RETURNS int
AS 'MODULE_PATHNAME', 'outbox_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_release(bigint, uuid[], interval) IS
'gives events back: the destination is away, not the event at fault; spends no attempt and keeps the order';

CREATE FUNCTION @extschema@.outbox_extend(token bigint, lease interval)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'outbox_extend'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_extend(bigint, interval) IS 'the worker is alive: the lease ends that long from now; returns when';

CREATE PROCEDURE @extschema@.outbox_wait(consumer text, timeout interval DEFAULT '1 minute')
AS 'MODULE_PATHNAME', 'outbox_wait'
LANGUAGE C;
COMMENT ON PROCEDURE @extschema@.outbox_wait(text, interval) IS
'sleeps until a fetch for this consumer would find something, or the timeout is over; not in a transaction block';
REVOKE ALL ON PROCEDURE @extschema@.outbox_wait(text, interval) FROM PUBLIC;

CREATE FUNCTION @extschema@.dead_letter_replay(consumer text DEFAULT NULL, aggregatetype text DEFAULT NULL, type text DEFAULT NULL,
	error_like text DEFAULT NULL, died_before timestamptz DEFAULT NULL, ids bigint[] DEFAULT NULL, max_events int DEFAULT 1000)
RETURNS int
AS 'MODULE_PATHNAME', 'dead_letter_replay'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dead_letter_replay(text, text, text, text, timestamptz, bigint[], int) IS
'sends dead letters to their consumers again, behind later events of their keys; returns how many';

CREATE FUNCTION @extschema@.dead_letter_discard(consumer text DEFAULT NULL, aggregatetype text DEFAULT NULL, type text DEFAULT NULL,
	error_like text DEFAULT NULL, died_before timestamptz DEFAULT NULL, ids bigint[] DEFAULT NULL, max_events int DEFAULT 1000)
RETURNS int
AS 'MODULE_PATHNAME', 'dead_letter_discard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.dead_letter_discard(text, text, text, text, timestamptz, bigint[], int) IS
'throws dead letters away; returns how many';

REVOKE ALL ON FUNCTION
	@extschema@.outbox_subscribe(text, text[], text, int, boolean, int, text),
	@extschema@.outbox_alter(text, text[], int, boolean, int, text),
	@extschema@.outbox_unsubscribe(text),
	@extschema@.outbox_seek(text, timestamptz),
	@extschema@.outbox_adopt(text, text),
	@extschema@.outbox_fetch(text, int, interval),
	@extschema@.outbox_ack(bigint, uuid[]),
	@extschema@.outbox_nack(bigint, uuid, text, interval),
	@extschema@.outbox_release(bigint, uuid[], interval),
	@extschema@.outbox_extend(bigint, interval),
	@extschema@.dead_letter_replay(text, text, text, text, timestamptz, bigint[], int),
	@extschema@.dead_letter_discard(text, text, text, text, timestamptz, bigint[], int)
FROM PUBLIC;
