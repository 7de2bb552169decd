--
-- Consuming: fetch, ack, nack, release, extend; order, blocking, retries
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_consume TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_consume SET lc_messages = 'C';
\c regress_idemq_consume
-- no worker moves what is looked at here
UPDATE pg_database SET datallowconn = false WHERE datname = current_database();
SET timezone = 'UTC';
CREATE EXTENSION idemq;
LOAD 'idemq';
CREATE TABLE held (name text, token bigint);
-- an event by a name, which is its type
CREATE FUNCTION emit(name text, key text DEFAULT NULL, kind text DEFAULT 'order', not_before timestamptz DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
	SELECT outbox_emit(kind, '{}', key, name, NULL, not_before)
$$;
CREATE FUNCTION ids(VARIADIC names text[]) RETURNS uuid[] LANGUAGE sql AS $$
	SELECT array_agg(o.id ORDER BY array_position(names, o.type)) FROM idemq.outbox AS o WHERE o.type = ANY (names)
$$;
CREATE FUNCTION names(ids uuid[]) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(o.type, ' ' ORDER BY array_position(ids, o.id)), '-') FROM idemq.outbox AS o WHERE o.id = ANY (ids)
$$;
-- the names of what was fetched, with attempt/deliveries if not the first; the token is kept under a name
CREATE FUNCTION take(consumer text, max_events int DEFAULT 100, lease interval DEFAULT '1 minute', hold text DEFAULT 'x') RETURNS text LANGUAGE sql AS $$
	WITH f AS MATERIALIZED (SELECT f.*, row_number() OVER () AS n FROM outbox_fetch(consumer, max_events, lease) AS f),
		gone AS (DELETE FROM held AS h WHERE h.name = hold AND EXISTS (SELECT FROM f)),
		kept AS (INSERT INTO held SELECT DISTINCT hold, f.token FROM f)
	SELECT coalesce(string_agg(f.type || CASE WHEN (f.attempt, f.deliveries) = (1, 1) THEN '' ELSE format('(%s/%s)', f.attempt, f.deliveries) END, ' ' ORDER BY f.n), '-') FROM f
$$;
CREATE FUNCTION token(name text DEFAULT 'x') RETURNS bigint LANGUAGE sql AS $$ SELECT h.token FROM held AS h WHERE h.name = token.name $$;
CREATE FUNCTION nack(name text, error text DEFAULT 'boom', retry_in interval DEFAULT NULL, hold text DEFAULT 'x') RETURNS text LANGUAGE sql AS $$
	SELECT format('%s %s, withdrawn: %s', n.action, n.attempt, names(n.withdrawn)) FROM outbox_nack(token(hold), (ids(name))[1], error, retry_in) AS n
$$;
CREATE FUNCTION parked(consumer text) RETURNS TABLE (event text, state text, attempts int, behind text, error text) LANGUAGE sql AS $$
	SELECT e.type, p.state, p.attempts, b.type, p.error FROM idemq.parked AS p JOIN idemq.outbox AS e ON e.seq = p.seq LEFT JOIN idemq.outbox AS b ON b.seq = p.blocked_by
	WHERE p.consumer = parked.consumer ORDER BY p.seq
$$;
-- the clock that leases and retries go by
CREATE FUNCTION later(seconds int) RETURNS void LANGUAGE sql AS $$
	SELECT set_config('idemq.test_clock_offset', ((SELECT s.setting::int FROM pg_settings AS s WHERE s.name = 'idemq.test_clock_offset') + seconds)::text, false)
$$;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	message text;
	hint text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN coalesce(answer, '(null)');
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || regexp_replace(message, '\d{9,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', '...', 'g'), nullif(hint, ''));
END
$$;
\pset format unaligned
\pset tuples_only on
-- nothing yet; what was there before is not for one that starts now
SELECT emit('before', 'a');
SELECT outbox_subscribe('now');
SELECT outbox_subscribe('earliest', start_at => 'earliest');
SELECT take('now');
SELECT take('earliest');
SELECT outbox_ack(token());
SELECT take('earliest');
SELECT outbox_unsubscribe('earliest');

-- what is fetched: all columns, in the order of writing, and one token
SELECT outbox_emit('order', '{"n": 1}', '1', 'placed', '{"h": true}') IS NOT NULL;
SELECT outbox_emit_bytes('mail', '\x00ff', NULL, 'sent') IS NOT NULL;
BEGIN;
SELECT idem_claim('message', 'scope');
INSERT INTO idemq.outbox (id, aggregatetype) VALUES ('00000000-0000-0000-0000-000000000001', 'tombstone');
COMMIT;
CREATE TEMP TABLE f AS SELECT * FROM outbox_fetch('now');
SELECT f.aggregatetype, f.aggregateid, f.type, f.payload, f.body, f.headers, f.cause, f.attempt, f.deliveries,
	f.created_at BETWEEN now() - interval '1 hour' AND now(), f.id = o.id, f.seq = o.seq, f.created_at = o.created_at
FROM f JOIN idemq.outbox AS o USING (seq) ORDER BY seq;
SELECT count(DISTINCT token), min(token) > 0, array_agg(seq) = array_agg(seq ORDER BY seq) FROM f;
-- one lease at a time; nothing is left
SELECT take('now');
SELECT outbox_ack(max(token)) FROM f;
-- an ack that is repeated finds nothing left
SELECT outbox_ack(max(token)) FROM f;
SELECT outbox_ack(max(token), array_agg(id)) FROM f;
SELECT take('now');
DROP TABLE f;

-- at most max_events, and what follows later; each consumer for itself
SELECT outbox_subscribe('other');
SELECT emit('a' || i, 'a') FROM generate_series(1, 5) AS i;
SELECT take('now', 2);
SELECT outbox_ack(token());
SELECT take('now', 2);
SELECT outbox_ack(token());
SELECT take('other');
SELECT outbox_ack(token());
SELECT take('now', 2);
SELECT outbox_ack(token());
SELECT take('now', 2), take('other');
SELECT outbox_unsubscribe('other');

-- rolled back: it was not emitted, not fetched, not acknowledged
BEGIN;
SELECT emit('never', 'a');
ROLLBACK;
SELECT emit('b1', 'b');
BEGIN;
SELECT take('now');
ROLLBACK;
SELECT take('now');
BEGIN;
SELECT outbox_ack(token());
ROLLBACK;
SELECT take('now');
SELECT outbox_ack(token());
SELECT take('now');
-- in one transaction: fetch, emit, ack; the own event comes afterwards
SELECT emit('b2', 'b');
BEGIN;
SELECT take('now');
SELECT emit('b3', 'b');
SELECT outbox_ack(token());
SELECT take('now');
COMMIT;
SELECT take('now');
SELECT outbox_ack(token());

-- partial ack: by ids, any others are ignored
SELECT emit('c' || i, 'c') FROM generate_series(1, 4) AS i;
SELECT take('now');
SELECT outbox_ack(token(), '{}');
SELECT outbox_ack(token(), ids('b1') || ARRAY[NULL, '00000000-0000-0000-0000-000000000000']::uuid[]);
SELECT outbox_ack(token(), ids('c2', 'c3') || ids('c2') || ids('b1'));
SELECT outbox_ack(token(), ids('c2'));
SELECT outbox_ack(token());
SELECT take('now');

-- nack: the later ones of its key are withdrawn, the others are not
SELECT outbox_alter('now', retry_ladder => '10s,1min', max_attempts => 3);
SELECT emit('d1', 'd'), emit('e1', 'e'), emit('d2', 'd'), emit('e2', 'e'), emit('d3', 'd');
SELECT take('now');
SELECT nack('d2');
SELECT * FROM parked('now');
-- neither is in the lease any more
SELECT attempt('SELECT nack(''d2'')');
SELECT attempt('SELECT nack(''d3'')');
SELECT outbox_ack(token(), ids('d2', 'd3'));
SELECT outbox_ack(token());
-- a later event of the key waits behind, without an attempt spent; others pass
SELECT emit('d4', 'd'), emit('e3', 'e'), emit('k1');
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');
SELECT take('now');
-- due, give or take a tenth of the ladder's step
SELECT later(12);
SELECT take('now');
-- again, after the second step
SELECT nack('d2', 'still');
SELECT later(12);
SELECT take('now');
SELECT later(60);
SELECT take('now', 1);
-- the third time it is dead, and those behind it go on
SELECT nack('d2', 'for good');
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');
SELECT consumer, aggregatetype, aggregateid, type, attempts, error, first_failed_at < died_at, replayed_at FROM idemq.dead_letters;
SELECT emit('d5', 'd');
SELECT take('now');
SELECT outbox_ack(token());

-- retry_in takes the place of the ladder; without an error
SELECT emit('f1', 'f'), emit('f2', 'f'), emit('f3', 'f');
SELECT take('now', 2);
SELECT action, attempt, retry_at > now() + interval '59 minutes', names(withdrawn) FROM outbox_nack(token(), (ids('f1'))[1], NULL, '1 hour');
SELECT take('now');
SELECT * FROM parked('now');
SELECT later(3000);
SELECT take('now');
SELECT later(700);
SELECT take('now');
-- the first of a lease that is given back by ack in parts: order stays
SELECT outbox_ack(token(), ids('f1'));
SELECT nack('f2', 'x', '0');
SELECT take('now');
SELECT outbox_ack(token());
SELECT take('now');

-- events without a key block nobody, and wait for nobody
SELECT emit('k2'), emit('k3'), emit('k4');
SELECT take('now');
SELECT nack('k2', 'x', '1 hour');
SELECT outbox_ack(token());
SELECT emit('k5');
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');
SELECT later(3601);
SELECT take('now');
SELECT outbox_ack(token());

-- an ack of the second before the first: the first may still fail
SELECT emit('g1', 'g'), emit('g2', 'g'), emit('g3', 'g');
SELECT take('now');
SELECT outbox_ack(token(), ids('g2'));
SELECT nack('g1', 'x', '0');
SELECT take('now');
SELECT outbox_ack(token());
SELECT take('now');

-- the second fails before the first does: the order stays
SELECT emit('g4', 'g'), emit('g5', 'g'), emit('g6', 'g');
SELECT take('now');
SELECT nack('g5', 'x', '0');
SELECT nack('g4', 'y', '1 minute');
SELECT * FROM parked('now');
SELECT take('now');
SELECT later(61);
SELECT take('now');
SELECT nack('g5', 'x', '0');
SELECT nack('g4', 'y', '1 minute');
SELECT take('now');
SELECT later(61);
SELECT take('now');
-- or is given back before
SELECT outbox_release(token(), ids('g5'));
SELECT outbox_release(token(), ids('g4'), '10 seconds');
SELECT take('now');
SELECT later(11);
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');

-- release: all; no attempt is spent, the order stays
SELECT emit('h1', 'h'), emit('i1', 'i'), emit('h2', 'h');
SELECT take('now');
SELECT outbox_release(token());
SELECT attempt('SELECT outbox_ack(token())');
SELECT emit('h3', 'h');
SELECT take('now');
-- for a while: nothing is handed out before, not even to others of the shard
SELECT outbox_release(token(), NULL, '1 minute');
SELECT take('now');
SELECT later(61);
SELECT take('now', 2);
-- some: later ones of the key are given back with it
SELECT outbox_release(token(), ids('h1'), '1 minute');
SELECT outbox_release(token(), ids('h1', 'h2'), '1 minute');
SELECT outbox_release(token(), '{}');
SELECT outbox_ack(token());
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');
SELECT emit('h4', 'h'), emit('i2', 'i');
SELECT take('now');
SELECT outbox_ack(token());
SELECT later(61);
SELECT take('now');
SELECT outbox_ack(token());
SELECT take('now');
SELECT * FROM parked('now');
-- ids of both, in any order, count each once
SELECT emit('j1', 'j'), emit('j2', 'j'), emit('j3', 'j');
SELECT take('now');
SELECT outbox_release(token(), ids('j3', 'j2') || ids('j3'));
SELECT outbox_ack(token());
SELECT take('now');
SELECT outbox_ack(token());

-- extend
SELECT emit('l1', 'l');
SELECT take('now', lease => '10 s');
SELECT later(8);
SELECT outbox_extend(token(), '1 minute') BETWEEN clock_timestamp() + interval '1 hour' AND clock_timestamp() + interval '1 day';
SELECT later(30);
SELECT take('now');
SELECT outbox_ack(token());
SELECT attempt('SELECT outbox_extend(token(), ''1 minute'')');

-- unordered: any number of leases, nobody waits
SELECT outbox_subscribe('loose', ordered => false, max_attempts => 2, retry_ladder => '10s');
SELECT emit('m1', 'm'), emit('m2', 'm'), emit('m3', 'm'), emit('m4', 'm');
SELECT take('loose', 2, hold => 'one'), take('loose', 1, hold => 'two'), take('loose', 1, hold => 'three'), take('loose', 1, hold => 'four');
SELECT nack('m1', hold => 'one');
SELECT outbox_ack(token('one')), outbox_ack(token('three'));
SELECT * FROM parked('loose');
SELECT emit('m5', 'm');
SELECT take('loose');
SELECT outbox_ack(token());
SELECT outbox_release(token('two'));
SELECT take('loose');
SELECT outbox_ack(token());
SELECT later(12);
SELECT take('loose');
SELECT nack('m1', 'again');
SELECT take('loose');
SELECT type, attempts, error FROM idemq.dead_letters WHERE consumer = 'loose';
SELECT outbox_unsubscribe('loose');
SELECT count(*) FROM idemq.dead_letters WHERE consumer = 'loose';
SELECT take('now');
SELECT outbox_ack(token());

-- only some aggregatetypes
SELECT outbox_subscribe('mails', '{mail,sms}');
SELECT emit('n1', 'n'), emit('n2', 'n', 'mail'), emit('n3', 'n', 'mails'), emit('n4', NULL, 'sms'), emit('n5', 'n', 'Mail');
SELECT take('mails');
SELECT nack('n2', 'x', '1 hour');
SELECT outbox_ack(token());
-- the same aggregateid under another aggregatetype is another key
SELECT emit('n6', 'n', 'sms'), emit('n7', 'n', 'mail');
SELECT take('mails');
SELECT outbox_ack(token());
SELECT * FROM parked('mails');
SELECT take('now');
SELECT outbox_ack(token());
SELECT outbox_unsubscribe('mails');

-- not before a time; the later ones of the key wait for it
SELECT emit('p1', 'p', not_before => now() + interval '100 days'), emit('p2', 'p'), emit('q1', 'q'), emit('q2', 'q', not_before => now() - interval '1 hour');
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');
SELECT later(100 * 86400);
SELECT take('now');
SELECT outbox_ack(token());
-- one that is not due, behind one that has failed
SELECT emit('r1', 'r'), emit('r2', 'r', not_before => now() + interval '300 days'), emit('r3', 'r');
SELECT take('now', 1);
SELECT nack('r1', 'x', '0');
SELECT take('now');
SELECT outbox_ack(token());
SELECT take('now');
SELECT * FROM parked('now');
SELECT later(300 * 86400);
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');

-- one that commits late, when a later one of its key has failed already, is the first of them
BEGIN;
SELECT emit('t1', 't');
PREPARE TRANSACTION 'regress_idemq_consume late';
SELECT emit('t2', 't');
SELECT take('now');
SELECT nack('t2', 'x', '10 s');
COMMIT PREPARED 'regress_idemq_consume late';
SELECT emit('t3', 't');
SELECT take('now');
SELECT * FROM parked('now');
SELECT take('now');
SELECT outbox_ack(token());
SELECT take('now');
SELECT later(11);
SELECT take('now');
SELECT outbox_ack(token());
SELECT * FROM parked('now');

-- an empty set of events to a consumer that wants others moves it on all the same
SELECT sum(lag_events), max(lag) = '0' FROM idemq.consumers WHERE consumer = 'now';

\c :origin
DROP DATABASE regress_idemq_consume WITH (FORCE);
