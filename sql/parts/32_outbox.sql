/*
 * The outbox: what the world is to be told, written with the business change.
 *
 * Insert-only.  Whoever may emit sets eight columns; the others have defaults
 * that only the owner could replace, and by which the log is read.
 */

CREATE SEQUENCE idemq.outbox_seq AS bigint CACHE 1 NO CYCLE;
COMMENT ON SEQUENCE idemq.outbox_seq IS 'numbers the events; a cache would break their order';
SELECT pg_catalog.pg_extension_config_dump('idemq.outbox_seq', '');

CREATE FUNCTION idemq._outbox_next()
RETURNS bigint
AS 'MODULE_PATHNAME', 'idemq_outbox_next'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idemq._outbox_next() IS 'default of idemq.outbox.seq: assigns the transaction''s id, then draws the next number';

CREATE FUNCTION idemq._outbox_origin()
RETURNS bigint
AS 'MODULE_PATHNAME', 'idemq_outbox_origin'
LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION idemq._outbox_origin() IS 'default of idemq.outbox.origin: names the cluster, the database and idemq.instance';

CREATE FUNCTION idemq._outbox_leaf_support(internal)
RETURNS internal
AS 'MODULE_PATHNAME', 'idemq_outbox_leaf_support'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idemq._outbox_leaf_support(internal) IS 'tells idemq._outbox_leaf() which partitions there are for a statement';

CREATE FUNCTION idemq._outbox_leaf(known timestamptz[] DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idemq_outbox_leaf'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SUPPORT idemq._outbox_leaf_support;
COMMENT ON FUNCTION idemq._outbox_leaf(timestamptz[]) IS 'default of idemq.outbox.leaf: the lower bound of the partition whose turn it is';

CREATE FUNCTION idemq._outbox_cause()
RETURNS text
AS 'MODULE_PATHNAME', 'idemq_outbox_cause'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idemq._outbox_cause() IS 'default of idemq.outbox.cause: the last claim of this transaction';

CREATE TABLE idemq.outbox
(
	seq			bigint NOT NULL DEFAULT idemq._outbox_next(),
	xid			xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
	origin		bigint NOT NULL DEFAULT idemq._outbox_origin(),
	leaf		timestamptz NOT NULL DEFAULT idemq._outbox_leaf(),
	created_at	timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	not_before	timestamptz,
	id			uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
	aggregatetype text NOT NULL,
	aggregateid	text,
	type		text,
	payload		jsonb,
	body		bytea,
	headers		jsonb,
	cause		text DEFAULT idemq._outbox_cause(),
	CONSTRAINT outbox_aggregatetype_not_empty CHECK (aggregatetype <> ''),
	CONSTRAINT outbox_payload_or_body CHECK (payload IS NULL OR body IS NULL),
	CONSTRAINT outbox_not_before_finite CHECK (pg_catalog.isfinite(not_before))
)
PARTITION BY RANGE (leaf);

COMMENT ON TABLE idemq.outbox IS 'events, written in the transaction that they tell of; insert only';
COMMENT ON COLUMN idemq.outbox.seq IS 'number of the event, drawn under the writer''s locks';
COMMENT ON COLUMN idemq.outbox.xid IS 'the transaction that wrote it';
COMMENT ON COLUMN idemq.outbox.origin IS 'the cluster, database and instance in which xid means something';
COMMENT ON COLUMN idemq.outbox.leaf IS 'lower bound of the partition that the row is in';
COMMENT ON COLUMN idemq.outbox.created_at IS 'clock time of the writing';
COMMENT ON COLUMN idemq.outbox.not_before IS 'not to be delivered earlier';
COMMENT ON COLUMN idemq.outbox.id IS 'the event''s id, the same at every delivery';
COMMENT ON COLUMN idemq.outbox.aggregatetype IS 'what kind of thing it is about; with aggregateid the key';
COMMENT ON COLUMN idemq.outbox.aggregateid IS 'which thing it is about; NULL: no key, no order';
COMMENT ON COLUMN idemq.outbox.type IS 'what happened to it';
COMMENT ON COLUMN idemq.outbox.payload IS 'the message, as JSON';
COMMENT ON COLUMN idemq.outbox.body IS 'the message, as bytes';
COMMENT ON COLUMN idemq.outbox.headers IS 'headers for the broker, an object';
COMMENT ON COLUMN idemq.outbox.cause IS 'idem_key(scope, key) of the last claim of the transaction';

CREATE TABLE idemq.outbox_permanent
(
	LIKE idemq.outbox INCLUDING CONSTRAINTS INCLUDING DEFAULTS
)
USING heap
WITH (vacuum_truncate = off);
COMMENT ON TABLE idemq.outbox_permanent IS 'takes events while there is no other partition';

CREATE INDEX outbox_permanent_seq ON idemq.outbox_permanent (seq) WITH (deduplicate_items = off);
CREATE INDEX outbox_permanent_xid ON idemq.outbox_permanent (xid, seq) WITH (deduplicate_items = off);

ALTER TABLE ONLY idemq.outbox ATTACH PARTITION idemq.outbox_permanent
	FOR VALUES FROM (MINVALUE) TO ('2000-01-01 00:00:00+00');
SELECT pg_catalog.pg_extension_config_dump('idemq.outbox_permanent', '');

CREATE FUNCTION @extschema@.outbox_emit(aggregatetype text, payload jsonb, aggregateid text DEFAULT NULL,
	type text DEFAULT NULL, headers jsonb DEFAULT NULL, not_before timestamptz DEFAULT NULL)
RETURNS uuid
AS 'MODULE_PATHNAME', 'outbox_emit'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_emit(text, jsonb, text, text, jsonb, timestamptz) IS
'writes an event into the outbox, in this transaction; returns its id';

CREATE FUNCTION @extschema@.outbox_emit_bytes(aggregatetype text, body bytea, aggregateid text DEFAULT NULL,
	type text DEFAULT NULL, headers jsonb DEFAULT NULL, not_before timestamptz DEFAULT NULL)
RETURNS uuid
AS 'MODULE_PATHNAME', 'outbox_emit_bytes'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_emit_bytes(text, bytea, text, text, jsonb, timestamptz) IS
'writes an event whose message is bytes into the outbox, in this transaction; returns its id';

REVOKE ALL ON idemq.outbox, idemq.outbox_permanent, idemq.outbox_seq FROM PUBLIC;
REVOKE ALL ON FUNCTION idemq._outbox_next(), idemq._outbox_origin(), idemq._outbox_leaf(timestamptz[]),
	idemq._outbox_leaf_support(internal), idemq._outbox_cause(),
	@extschema@.outbox_emit(text, jsonb, text, text, jsonb, timestamptz),
	@extschema@.outbox_emit_bytes(text, bytea, text, text, jsonb, timestamptz) FROM PUBLIC;
