--
-- Many leases, one of them out for long
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_consume_many TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_consume_many SET lc_messages = 'C';
\c regress_idemq_consume_many
-- no worker reads or writes a ledger here
UPDATE pg_database SET datallowconn = false WHERE datname = current_database();
SET timezone = 'UTC';
SET client_min_messages = warning;
SET jit = off;
CREATE EXTENSION idemq;
LOAD 'idemq';
CREATE TABLE held (name text, token bigint);
CREATE TABLE cost (rows bigint);
CREATE FUNCTION take(consumer text, n int DEFAULT 1, hold text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	taken bigint;
BEGIN
	SELECT max(f.token) INTO taken FROM outbox_fetch(consumer, n, '1 hour') AS f;
	INSERT INTO held SELECT hold, taken WHERE hold IS NOT NULL;
	RETURN taken;
END
$$;
CREATE FUNCTION token(name text) RETURNS bigint LANGUAGE sql AS $$ SELECT h.token FROM held AS h WHERE h.name = token.name $$;
-- rows of the ledgers that were read so far
CREATE FUNCTION reads() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(pg_stat_get_xact_tuples_fetched(c.oid))::bigint FROM pg_class AS c WHERE c.relnamespace = 'idemq'::regnamespace AND c.relname ~ '^ledger_\d'
$$;
-- fetches and acknowledges one event after the other, and notes what each of the two has read
CREATE PROCEDURE work(consumer text, calls int) LANGUAGE plpgsql AS $$
DECLARE
	before bigint;
	lease bigint;
BEGIN
	FOR i IN 1 .. calls LOOP
		before := reads();
		lease := take(consumer);
		INSERT INTO cost VALUES (reads() - before);
		COMMIT;
		before := reads();
		PERFORM outbox_ack(lease);
		INSERT INTO cost VALUES (reads() - before);
		COMMIT;
	END LOOP;
END
$$;
CREATE FUNCTION refusal(token bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN outbox_ack(token);
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
CREATE VIEW position AS
SELECT p.open_batches, p.entry - p.open_from <= 6 * p.open_batches + 16 AS short FROM idemq._positions AS p JOIN idemq.subscriptions AS s ON s.number = p.consumer;

INSERT INTO idemq.outbox (aggregatetype, type) SELECT 'order', n::text FROM generate_series(1, 3000) AS n;
SELECT outbox_subscribe('c', start_at => 'earliest', ordered => false);

-- a lease is out, and hundreds of others come and go: no call reads much
SELECT take('c', 3, 'forgotten') IS NOT NULL AS taken;
CALL work('c', 300);
SELECT count(*), max(rows) <= 30 AS cheap FROM cost;
SELECT * FROM position;
-- it is still the lease that it was
SELECT outbox_extend(token('forgotten'), '1 hour') > now() AS extended;
SELECT outbox_ack(token('forgotten'), (SELECT array_agg(o.id) FROM idemq.outbox AS o WHERE o.type = '2')) AS acked;
CALL work('c', 30);
SELECT outbox_release(token('forgotten')) AS released;
SELECT refusal(token('forgotten'));
SELECT string_agg(f.type || '/' || f.deliveries, ' ' ORDER BY f.seq) AS back FROM outbox_fetch('c', 10) AS f;
SELECT sum(outbox_ack(s.token)) AS acked FROM (SELECT DISTINCT l.token FROM idemq._ledger AS l WHERE l.deliveries = 2) AS s;

-- twenty, of which two are extended all the time
TRUNCATE held, cost;
SELECT count(take('c', 4, 'a' || n)) FROM generate_series(1, 20) AS n;
DO $$
BEGIN
	FOR i IN 1 .. 100 LOOP
		PERFORM outbox_extend(token('a3'), '1 hour');
		PERFORM outbox_extend(token('a1'), '1 hour');
	END LOOP;
END
$$;
CALL work('c', 100);
SELECT count(*), max(rows) <= 150 AS cheap FROM cost;
SELECT * FROM position;
-- each of them is what it was, and is dealt with once
SELECT sum(outbox_ack(h.token)) AS acked FROM held AS h;
SELECT sum(outbox_ack(h.token)) AS again FROM held AS h;
SELECT * FROM position;

-- one whose lease has run out is handed out again, under another token, by whoever comes
TRUNCATE held, cost;
SELECT take('c', 2, 'late') IS NOT NULL AS taken;
CALL work('c', 100);
SET idemq.test_clock_offset = 7200;
SELECT deliveries, count(*) FROM outbox_fetch('c', 10) GROUP BY 1;
RESET idemq.test_clock_offset;
SELECT refusal(token('late'));

-- hundreds of leases
TRUNCATE held, cost;
SELECT count(take('c', 1, 'm' || n)) FROM generate_series(1, 300) AS n;
CALL work('c', 700);
SELECT count(*), max(rows) <= 6 * 300 + 30 AS cheap FROM cost;
SELECT short FROM position;
SELECT sum(outbox_ack(h.token)) AS acked FROM held AS h;
CALL work('c', 10);
SELECT * FROM position;

-- what an administrator has added to a ledger is kept as well
CREATE INDEX added ON idemq.ledger_0 ((token / 2));
SELECT take('c', 1, 'added') IS NOT NULL AS taken;
SET enable_seqscan = off;
SELECT count(*) FROM idemq.ledger_0 WHERE token / 2 = token('added') / 2;
SELECT outbox_ack(token('added'));
SELECT count(*) FROM idemq.ledger_0 WHERE token / 2 = token('added') / 2;
RESET enable_seqscan;
DROP INDEX idemq.added;
ALTER TABLE idemq.ledger_0 ADD COLUMN added text DEFAULT 'added', ADD CHECK (entry > 0);
SELECT outbox_ack(take('c', 1));
SELECT added, count(*) FROM (SELECT l.added FROM idemq.ledger_0 AS l ORDER BY l.entry DESC LIMIT 2) AS l GROUP BY 1;

-- rows of all kinds come out as they went in
CREATE FUNCTION text_of(n int) RETURNS text LANGUAGE sql AS $$ SELECT string_agg(md5(n::text || i), '') FROM generate_series(0, n / 32) AS i $$;
SELECT outbox_subscribe('all');
INSERT INTO idemq.outbox (aggregatetype, aggregateid, type, payload, body, headers)
SELECT left(text_of(n), 1 + n % 200), CASE WHEN n % 2 = 0 THEN left(text_of(n + 1), n % 300) END, CASE WHEN n % 3 = 0 THEN left(text_of(n), n % 7) END,
	CASE WHEN n % 4 = 0 THEN jsonb_build_object('a', left(text_of(n * 20), n * 20), 'b', repeat('x', n * 30)) END,
	CASE WHEN n % 4 = 1 THEN convert_to(left(text_of(n * 20), n * 20), 'UTF8') WHEN n % 4 = 2 THEN convert_to(repeat('y', n * 50), 'UTF8') END,
	CASE WHEN n % 5 = 0 THEN jsonb_build_object('n', n) END
FROM generate_series(1, 400) AS n;
SELECT count(*), count(payload) AS payloads, count(body) AS bodies, count(headers) AS headers FROM
(
	SELECT f.id, f.seq, f.aggregatetype, f.aggregateid, f.type, f.payload, f.body, f.headers, f.cause, f.created_at FROM outbox_fetch('all', 1000) AS f
	INTERSECT
	SELECT o.id, o.seq, o.aggregatetype, o.aggregateid, o.type, o.payload, o.body, o.headers, o.cause, o.created_at FROM idemq.outbox AS o
) AS same;

UPDATE pg_database SET datallowconn = true WHERE datname = current_database();
\c :origin
DROP DATABASE regress_idemq_consume_many;
