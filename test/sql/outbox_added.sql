--
-- What somebody added to the outbox holds for outbox_emit as it does for INSERT
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_outbox_added TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_outbox_added SET lc_messages = 'C';
\c regress_idemq_outbox_added
CREATE EXTENSION idemq;
-- an event in each way, and what became of it
CREATE FUNCTION tried(kind text, payload jsonb DEFAULT NULL) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM outbox_emit(kind, payload);
		RETURN NEXT 'emit done';
	EXCEPTION WHEN OTHERS THEN
		RETURN NEXT 'emit ' || SQLSTATE || ': ' || SQLERRM;
	END;
	BEGIN
		INSERT INTO idemq.outbox (aggregatetype, payload) VALUES (kind, tried.payload);
		RETURN NEXT 'insert done';
	EXCEPTION WHEN OTHERS THEN
		RETURN NEXT 'insert ' || SQLSTATE || ': ' || SQLERRM;
	END;
END
$$;
SELECT tried('warm');

-- a check
ALTER TABLE idemq.outbox ADD CONSTRAINT no_scalars CHECK (jsonb_typeof(payload) = 'object');
SELECT tried('a', '{}');
SELECT tried('a', '1');
ALTER TABLE idemq.outbox DROP CONSTRAINT no_scalars;
SELECT tried('a', '1');
-- NOT NULL
TRUNCATE idemq.outbox;
ALTER TABLE idemq.outbox ALTER COLUMN payload SET NOT NULL;
SELECT tried('a', NULL);
ALTER TABLE idemq.outbox ALTER COLUMN payload DROP NOT NULL;
-- triggers: before, which may change or drop the row, and after
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_WHEN = 'BEFORE' AND NEW.aggregatetype = 'drop' THEN
		RETURN NULL;
	ELSIF TG_WHEN = 'BEFORE' THEN
		NEW.headers = jsonb_build_object('by', TG_NAME);
	ELSE
		RAISE INFO '% % %', TG_WHEN, NEW.aggregatetype, NEW.headers;
	END IF;
	RETURN NEW;
END
$$;
CREATE TRIGGER before BEFORE INSERT ON idemq.outbox FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER after AFTER INSERT ON idemq.outbox FOR EACH ROW EXECUTE FUNCTION note();
SELECT tried('triggered');
SELECT tried('drop');
SELECT aggregatetype, headers FROM idemq.outbox WHERE aggregatetype IN ('triggered', 'drop') ORDER BY seq;
-- one that emits itself
CREATE FUNCTION emit_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.aggregatetype = 'chain' THEN
		PERFORM outbox_emit('chained', to_jsonb(NEW.seq));
	END IF;
	RETURN NULL;
END
$$;
DROP TRIGGER after ON idemq.outbox;
CREATE TRIGGER chain AFTER INSERT ON idemq.outbox FOR EACH ROW EXECUTE FUNCTION emit_more();
SELECT tried('chain');
SELECT aggregatetype, headers FROM idemq.outbox WHERE aggregatetype LIKE 'chain%' ORDER BY seq;
DROP TRIGGER before ON idemq.outbox;
DROP TRIGGER chain ON idemq.outbox;
-- deferred
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON idemq.outbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
BEGIN;
SELECT tried('deferred');
COMMIT;
DROP TRIGGER later ON idemq.outbox;
-- FOR EACH STATEMENT: only for a statement
CREATE TRIGGER statement AFTER INSERT ON idemq.outbox FOR EACH STATEMENT EXECUTE FUNCTION note();
SELECT tried('statement');
DROP TRIGGER statement ON idemq.outbox;

-- indexes of all kinds; each finds every event
TRUNCATE idemq.outbox;
CREATE UNIQUE INDEX u ON idemq.outbox_permanent (id);
CREATE INDEX e ON idemq.outbox_permanent (lower(aggregatetype), (payload->>'a'));
CREATE INDEX p ON idemq.outbox_permanent (seq) WHERE aggregatetype = 'wanted';
CREATE INDEX g ON idemq.outbox_permanent USING gin (payload);
CREATE INDEX h ON idemq.outbox_permanent USING hash (aggregateid);
CREATE INDEX b ON idemq.outbox_permanent USING brin (created_at);
CREATE INDEX i ON idemq.outbox_permanent (seq) INCLUDE (aggregatetype, payload);
SELECT tried('wanted', '{"a": 1}');
SELECT tried('other', '{"a": 2}');
CREATE FUNCTION found(query text) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
	n bigint;
BEGIN
	EXECUTE query INTO n;
	RETURN n;
END
$$;
SELECT found('SELECT count(*) FROM idemq.outbox_permanent WHERE lower(aggregatetype) = ''wanted'' AND payload->>''a'' = ''1''') AS e,
	found('SELECT count(*) FROM idemq.outbox_permanent WHERE seq > 0 AND aggregatetype = ''wanted''') AS p,
	found('SELECT count(*) FROM idemq.outbox_permanent WHERE payload @> ''{"a": 2}''') AS g,
	found('SELECT count(*) FROM idemq.outbox_permanent WHERE created_at > now() - interval ''1 hour''') AS b,
	found('SELECT count(*) FROM idemq.outbox_permanent WHERE seq > 0') AS i;
DROP INDEX idemq.e, idemq.p, idemq.g, idemq.h, idemq.b, idemq.u;
-- the fast way again, with one index more
SELECT tried('plain', '{}');
SELECT found('SELECT count(*) FROM idemq.outbox_permanent WHERE seq > 0');
DROP INDEX idemq.i;
DELETE FROM idemq.outbox;
CREATE UNIQUE INDEX u ON idemq.outbox_permanent (aggregatetype);
SELECT tried('once');
DROP INDEX idemq.u;
-- another column
ALTER TABLE idemq.outbox ADD COLUMN tenant text;
SELECT tried('column');
ALTER TABLE idemq.outbox DROP COLUMN tenant;
SELECT tried('dropped');
ALTER TABLE idemq.outbox ADD COLUMN kind text GENERATED ALWAYS AS (upper(aggregatetype)) STORED;
SELECT tried('generated');
SELECT aggregatetype, kind FROM idemq.outbox WHERE kind = 'GENERATED';
ALTER TABLE idemq.outbox DROP COLUMN kind;
-- a partition with its columns in another order
CREATE TABLE shuffled (cause text, headers jsonb, body bytea, gone int, payload jsonb, type text, aggregateid text,
	aggregatetype text NOT NULL, id uuid NOT NULL, not_before timestamptz, created_at timestamptz NOT NULL,
	leaf timestamptz NOT NULL, origin bigint NOT NULL, xid xid8 NOT NULL, seq bigint NOT NULL,
	CONSTRAINT outbox_aggregatetype_not_empty CHECK (aggregatetype <> ''),
	CONSTRAINT outbox_payload_or_body CHECK (payload IS NULL OR body IS NULL),
	CONSTRAINT outbox_not_before_finite CHECK (isfinite(not_before)));
ALTER TABLE shuffled DROP COLUMN gone;
ALTER TABLE idemq.outbox ATTACH PARTITION shuffled FOR VALUES FROM ('2000-01-01') TO (MAXVALUE);
SELECT tried('shuffled', '{"s": 1}');
SELECT tableoid::regclass, aggregatetype, payload, leaf = '2000-01-01' AS leaf FROM idemq.outbox WHERE aggregatetype = 'shuffled';

\c :origin
DROP DATABASE regress_idemq_outbox_added WITH (FORCE);
