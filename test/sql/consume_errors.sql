--
-- Consuming: bad arguments and wrong moments, each error with its SQLSTATE, message and hint
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_consume_errors TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_consume_errors SET lc_messages = 'C';
\c regress_idemq_consume_errors
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
SELECT outbox_subscribe('c');
SELECT emit('a1', 'a'), emit('a2', 'a');
SELECT take('c');
CREATE FUNCTION attempts(template text, VARIADIC arguments text[]) RETURNS TABLE (argument text, answer text) LANGUAGE sql AS $$
	SELECT a, attempt(format('SELECT ' || template, a)) FROM unnest(arguments) WITH ORDINALITY AS x (a, n) ORDER BY n
$$;

-- consumers
SELECT * FROM attempts('outbox_fetch(%s)', 'NULL', '''''', '''nobody''', '''C''');
SELECT * FROM attempts('outbox_subscribe(%s)', 'NULL', '''''', '''c''', 'repeat(''n'', 256)', 'repeat(U&''\00e9'', 128)');
SELECT * FROM attempts('outbox_alter(%s)', 'NULL', '''''', '''nobody''', 'repeat(''n'', 256)');
SELECT * FROM attempts('outbox_unsubscribe(%s)', 'NULL', '''''', '''nobody''');
SELECT * FROM attempts('outbox_seek(%s, now())', 'NULL', '''''', '''nobody''');
SELECT * FROM attempts('outbox_adopt(%s, ''skip'')', 'NULL', '''''', '''nobody''');
SELECT * FROM attempts('dead_letter_replay(%s)', 'NULL', '''nobody''');
SELECT outbox_subscribe(repeat('n', 255)), outbox_unsubscribe(repeat('n', 255));

-- subscribe and alter
SELECT * FROM attempts('outbox_subscribe(''d'', %s)', '''{a,NULL}''', '''{{a},{b}}''');
SELECT * FROM attempts('outbox_subscribe(''d'', start_at => %s)', 'NULL', '''''', '''Now''', '''yesterday''');
SELECT * FROM attempts('outbox_subscribe(''d'', shards => %s)', 'NULL', '0', '-1', '1025');
SELECT * FROM attempts('outbox_subscribe(''d'', ordered => %s)', 'NULL');
SELECT * FROM attempts('outbox_subscribe(''d'', max_attempts => %s)', '0', '-1');
SELECT * FROM attempts('outbox_subscribe(''d'', retry_ladder => %s)', '''''', '''1''', '''1min,''', '''0s''', '''-1s''', '''soon''', '''1min,5parsec''');
SELECT * FROM attempts('outbox_alter(''c'', %s)', '''{a,NULL}''', '''{{a},{b}}''');
SELECT * FROM attempts('outbox_alter(''c'', shards => %s)', '0', '-1', '1025', '2');
SELECT * FROM attempts('outbox_alter(''c'', ordered => %s)', 'false');
SELECT * FROM attempts('outbox_alter(''c'', max_attempts => %s)', '0', '-1');
SELECT * FROM attempts('outbox_alter(''c'', retry_ladder => %s)', '''''', '''1min 5min''');
SELECT * FROM attempts('outbox_seek(''c'', %s)', 'NULL');
SELECT * FROM attempts('outbox_adopt(''c'', %s)', 'NULL', '''''', '''Skip''');
SELECT consumer, aggregatetypes, shards, ordered, max_attempts, retry_ladder FROM idemq.subscriptions;

-- fetch
SELECT * FROM attempts('outbox_fetch(''c'', max_events => %s)', 'NULL', '0', '-1');
SELECT * FROM attempts('outbox_fetch(''c'', lease => %s)', 'NULL', '''0''', '''-1s''', '''1 day -2 days''', '''-178000000 years''');
-- tokens
SELECT * FROM attempts('outbox_ack(%s)', 'NULL', '0', '-1', '1', '9223372036854775807');
SELECT * FROM attempts('outbox_nack(%s, gen_random_uuid(), ''x'')', 'NULL', '0', '1');
SELECT * FROM attempts('outbox_release(%s)', 'NULL', '0', '1');
SELECT * FROM attempts('outbox_extend(%s, ''1s'')', 'NULL', '0', '1');
-- with a good one
SELECT * FROM attempts('outbox_nack(token(), %s, ''x'')', 'NULL', '''00000000-0000-0000-0000-000000000000''');
SELECT * FROM attempts('outbox_nack(token(), (ids(''a1''))[1], ''x'', %s)', '''-1s''');
SELECT * FROM attempts('outbox_release(token(), NULL, %s)', '''-1s''');
SELECT * FROM attempts('outbox_extend(token(), %s)', 'NULL', '''0''', '''-1s''');
-- none of that has changed anything
SELECT in_flight, retrying, blocked FROM idemq.consumers;
SELECT outbox_ack(token(), '{}'), outbox_ack(token(), '{NULL}'), outbox_release(token(), '{NULL}'), outbox_ack(token());
SELECT * FROM attempts('outbox_nack(token(), %s, ''x'')', '(ids(''a1''))[1]');

-- dead letters
SELECT attempt('SELECT dead_letter_replay()'), attempt('SELECT dead_letter_replay(max_events => 5)'), attempt('SELECT dead_letter_discard()');
SELECT * FROM attempts('dead_letter_replay(''c'', max_events => %s)', 'NULL', '0', '-1');
SELECT * FROM attempts('dead_letter_discard(''c'', max_events => %s)', 'NULL', '0', '-1');

-- wait
\set VERBOSITY terse
CALL outbox_wait(NULL);
CALL outbox_wait('nobody');
CALL outbox_wait('c', NULL);
CALL outbox_wait('c', '0');
CALL outbox_wait('c', '-1s');
\set VERBOSITY default
BEGIN;
CALL outbox_wait('c', '1ms');
ROLLBACK;
DO $$ BEGIN CALL outbox_wait('c', '1ms'); END $$;
CREATE FUNCTION waits() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL outbox_wait('c', '1ms'); END $$;
SELECT waits();
-- a time-out is no error; and if there is something it returns at once
CALL outbox_wait('c', '1ms');
SELECT emit('b1', 'b');
CALL outbox_wait('c', '1 hour');
SELECT take('c');
CALL outbox_wait('c', '1ms');
SELECT nack('b1', 'x', '0');
CALL outbox_wait('c', '1 hour');
SELECT take('c');
-- wakes when it is due, and when the lease is over
SELECT nack('b1', 'x', '100 ms');
CALL outbox_wait('c', '1 hour');
SELECT take('c', lease => '100 ms');
CALL outbox_wait('c', '1 hour');
SELECT take('c');
SELECT outbox_ack(token());
-- ends with the statement
SET statement_timeout = '50ms';
CALL outbox_wait('c', '1 hour');
RESET statement_timeout;

-- isolation levels: whatever reads or writes a position
SELECT emit('c1', 'c');
SELECT take('c');
CREATE TABLE calls (call text);
INSERT INTO calls VALUES ('outbox_subscribe(''e'')'), ('outbox_alter(''c'')'), ('outbox_unsubscribe(''c'')'), ('outbox_seek(''c'', now())'), ('outbox_adopt(''c'', ''skip'')'),
	('outbox_fetch(''c'')'), ('outbox_ack(token())'), ('outbox_nack(token(), (ids(''c1''))[1], ''x'')'), ('outbox_release(token())'), ('outbox_extend(token(), ''1 minute'')'),
	('dead_letter_replay(''c'')'), ('dead_letter_discard(''c'')');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT attempt('SELECT ' || call) FROM calls;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT left(attempt('SELECT ' || call), 5) AS answer, count(*) FROM calls GROUP BY 1;
ROLLBACK;
SET default_transaction_isolation = 'repeatable read';
CALL outbox_wait('c', '1ms');
RESET default_transaction_isolation;
-- read only
BEGIN READ ONLY;
SELECT attempt('SELECT ' || call) FROM calls;
ROLLBACK;
SET default_transaction_read_only = on;
CALL outbox_wait('c', '1ms');
RESET default_transaction_read_only;
-- READ UNCOMMITTED is READ COMMITTED
BEGIN ISOLATION LEVEL READ UNCOMMITTED;
SELECT outbox_ack(token());
COMMIT;

-- a partition that somebody has emptied: a warning, and nothing is stuck
SELECT emit('d1', 'd'), emit('d2', 'd'), emit('e1', 'e');
SELECT take('c');
SELECT nack('d1', 'x', '0');
SELECT outbox_release(token());
DELETE FROM idemq.outbox WHERE type IN ('d1', 'e1');
\set VERBOSITY terse
SELECT regexp_replace(take('c'), '\d{3,}', '...', 'g');
SELECT take('c');
SELECT outbox_ack(token());
SELECT take('c');
\set VERBOSITY default
SELECT count(*) FROM idemq.parked;

\c :origin
DROP DATABASE regress_idemq_consume_errors WITH (FORCE);
