--
-- Leases that run out
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_consume_lease TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_consume_lease SET lc_messages = 'C';
\c regress_idemq_consume_lease
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
SELECT outbox_subscribe('c', retry_ladder => '10s', max_attempts => 3);
-- it spends no attempt; after three the batch is halved at each further one
SELECT emit('a1', 'a'), emit('b1', 'b'), emit('a2', 'a'), emit('c1', 'c');
SELECT take('c');
SELECT later(59);
SELECT take('c');
SELECT later(2);
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT later(61);
SELECT take('c');
-- alone; after three more it has failed, and the others go on but for its key
SELECT later(61);
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT * FROM parked('c');
SELECT later(61);
SELECT take('c');
SELECT * FROM parked('c');
SELECT outbox_ack(token());
SELECT take('c');
SELECT outbox_ack(token());
SELECT take('c');
SELECT * FROM parked('c');
-- from now on each lease is an attempt
SELECT later(12);
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT * FROM parked('c');
SELECT later(12);
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT type, attempts, error FROM idemq.dead_letters;
SELECT take('c');
SELECT outbox_ack(token());
SELECT * FROM parked('c');

-- what was acknowledged before it ran out is not handed out again, nor is what was given back
SELECT emit('d1', 'd'), emit('d2', 'd'), emit('e1', 'e'), emit('e2', 'e');
SELECT take('c');
SELECT outbox_ack(token(), ids('d1'));
SELECT outbox_release(token(), ids('e2'), '1 hour');
SELECT later(61);
SELECT take('c');
SELECT later(3601);
SELECT take('c');
SELECT outbox_ack(token());
SELECT take('c');
SELECT outbox_ack(token());
SELECT take('c');

-- giving back, and an ack, end the row of leases that ran out
SELECT emit('f1', 'f'), emit('f2', 'f');
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT outbox_release(token());
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT outbox_ack(token());

-- a token of the past
SELECT emit('g1', 'g'), emit('g2', 'g');
SELECT take('c', hold => 'old');
SELECT later(61);
SELECT DISTINCT attempt(format(call, 'token(''old'')')) FROM (VALUES ('SELECT outbox_ack(%s)'), ('SELECT outbox_ack(%s, ids(''g1''))'), ('SELECT outbox_release(%s)'),
	('SELECT outbox_extend(%s, ''1 minute'')'), ('SELECT outbox_nack(%s, (ids(''g1''))[1], ''x'')')) AS c (call);
SELECT take('c');
SELECT DISTINCT attempt(format(call, 'token(''old'')')) FROM (VALUES ('SELECT outbox_ack(%s)'), ('SELECT outbox_ack(%s, ids(''g1''))'), ('SELECT outbox_release(%s)'),
	('SELECT outbox_extend(%s, ''1 minute'')'), ('SELECT outbox_nack(%s, (ids(''g1''))[1], ''x'')')) AS c (call);
SELECT outbox_ack(token());
SELECT attempt('SELECT outbox_ack(token(''old''))');
-- parked events, too
SELECT emit('g3', 'g');
SELECT take('c');
SELECT nack('g3', 'x', '0');
SELECT take('c', hold => 'old');
SELECT later(61);
SELECT attempt('SELECT outbox_ack(token(''old''))');
SELECT take('c');
SELECT outbox_ack(token());
SELECT attempt('SELECT outbox_ack(token(''old''))');

-- a clock that steps back a day: the lease is void, and nothing is stuck
SELECT emit('h1', 'h'), emit('h2', 'h');
SELECT take('c', hold => 'old');
SELECT later(-86400);
SELECT attempt('SELECT outbox_ack(token(''old''))');
SELECT take('c');
SELECT nack('h1');
SELECT later(-86400);
SELECT outbox_ack(token());
SELECT later(12);
SELECT take('c');
SELECT outbox_ack(token());
-- or a moment only
SELECT emit('i1', 'i');
SELECT take('c');
SELECT later(-5);
SELECT take('c');
SELECT outbox_ack(token());

-- unordered: others are handed out meanwhile
SELECT outbox_subscribe('u', ordered => false, retry_ladder => '10s', max_attempts => 2);
SELECT emit('j1', 'j'), emit('j2', 'j'), emit('j3', 'j'), emit('j4', 'j');
SELECT take('u', 2);
SELECT later(61);
SELECT take('u', hold => 'again'), take('u', 1, hold => 'two'), take('u', 1, hold => 'three'), take('u', 1);
SELECT later(61);
SELECT take('u', hold => '1'), take('u', hold => '2'), take('u', hold => '3'), take('u');
SELECT later(61);
SELECT take('u', hold => '1'), take('u', hold => '2'), take('u', hold => '3'), take('u');
SELECT outbox_ack(token(name)) FROM held WHERE name IN ('1', '2', '3') ORDER BY name;
SELECT take('u');

-- a fetch for fewer events than a batch has that came back
SELECT take('c');
SELECT later(61);
SELECT take('c', 1);
SELECT outbox_ack(token());
SELECT take('c', 2);
SELECT outbox_ack(token());
SELECT take('c', 5);
SELECT outbox_ack(token());

-- very long leases, and many events
SELECT emit('k1', 'k');
SELECT take('c', 2147483647, '170000000 years');
SELECT outbox_extend(token(), '2000000000 months') > clock_timestamp() + interval '99 years';
SELECT action FROM outbox_nack(token(), (ids('k1'))[1], 'x', '2147483647 days');

-- a cursor that fails does not take with it the lock of a shard that it has handed out
SELECT outbox_subscribe('held');
SELECT emit('h1', 'h'), emit('h2', 'h');
BEGIN;
DECLARE c CURSOR FOR SELECT (SELECT count(*) FROM outbox_fetch('held', n)) FROM (VALUES (1), (0)) AS v (n);
FETCH c;
SAVEPOINT s;
FETCH c;
ROLLBACK TO s;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 7427;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT outbox_seek(name, now()), 1 / x FROM (VALUES ('held', 1), ('held', 0)) AS v (name, x);
FETCH c;
SAVEPOINT s;
FETCH c;
ROLLBACK TO s;
SELECT objsubid, mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' ORDER BY 1;
ROLLBACK;
SELECT outbox_unsubscribe('held');

\c :origin
DROP DATABASE regress_idemq_consume_lease WITH (FORCE);
