--
-- idemq.consumers, idemq.parked, and what idem_status says about them
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_consumers TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_consumers SET lc_messages = 'C';
\c regress_idemq_consumers
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
SELECT current_setting('shared_preload_libraries') ~ '\midemq\M' AS preloaded \gset
-- a check, with sizes and times made alike
CREATE FUNCTION look(name text) RETURNS TABLE (status text, detail text, hint text) LANGUAGE sql AS $$
	SELECT s.status, regexp_replace(regexp_replace(s.detail, '\d+ (kB|s)\M', 'N \1', 'g'), '\d{4,}', 'N', 'g'), s.hint FROM idem_status() AS s WHERE s.check_name = name
$$;
CREATE VIEW shown AS
SELECT consumer, shard, ordered, lag_events, lag > '0' AS lags, in_flight, retrying, blocked, held_by_kind FROM idemq.consumers ORDER BY consumer, shard;
CREATE VIEW counted AS
SELECT consumer, shard, delivered, acked, retried, dead FROM idemq.consumers ORDER BY consumer, shard;

-- nobody, nothing; events and nobody to read them
SELECT * FROM shown;
SELECT * FROM look('consumers');
SELECT * FROM look('dead_letters');
SELECT emit('before', 'a');
SELECT * FROM look('consumers');
SELECT outbox_subscribe('c', retry_ladder => '10s', max_attempts => 2);
SELECT * FROM look('consumers');
SELECT * FROM shown;
SELECT last_progress BETWEEN now() - interval '1 minute' AND clock_timestamp(), last_seq, lag = '0', held_by FROM idemq.consumers;

-- what waits, is in flight, was nacked, is blocked, is dead
SELECT emit('a1', 'a'), emit('a2', 'a'), emit('b1', 'b'), emit('a3', 'a'), emit('k1');
SELECT * FROM shown;
SELECT take('c', 3);
SELECT * FROM shown;
SELECT held_by ~ format('^%s until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d', current_user) FROM idemq.consumers;
SELECT nack('a1');
SELECT * FROM shown;
SELECT outbox_ack(token());
SELECT take('c');
SELECT * FROM shown;
SELECT outbox_ack(token());
SELECT * FROM shown;
SELECT e.type, p.aggregatetype, p.aggregateid, p.dead_id, p.state, p.attempts, p.due > now(), b.type, p.first_failed_at IS NOT NULL, p.error
FROM idemq.parked AS p JOIN idemq.outbox AS e USING (id) LEFT JOIN idemq.outbox AS b ON b.seq = p.blocked_by ORDER BY p.seq;
SELECT later(12);
SELECT take('c');
SELECT * FROM shown;
SELECT * FROM parked('c');
SELECT nack('a1', 'again');
SELECT * FROM look('dead_letters');
SELECT outbox_ack(token());
SELECT * FROM shown;
-- counted, whatever became of the transactions; null without preload
BEGIN;
SELECT emit('r1', 'r');
SELECT take('c');
ROLLBACK;
SELECT CASE WHEN :'preloaded' THEN (delivered, acked, retried, dead) = (7, 4, 1, 1) ELSE coalesce(delivered, acked, retried, dead) IS NULL END AS counted FROM counted;
-- numbers that were drawn in vain are no lag
SELECT * FROM shown;
SELECT dead_letter_replay('c');
SELECT * FROM look('dead_letters');
SELECT take('c');
SELECT outbox_ack(token());

-- a consumer of something else: what is not for it is no lag either
SELECT outbox_subscribe('mails', '{mail}', shards => 2);
SELECT emit('o' || i, i::text) FROM generate_series(1, 10) AS i \g /dev/null
SELECT * FROM shown;
SELECT emit('m' || i, i::text, 'mail') FROM generate_series(1, 10) AS i \g /dev/null
SELECT sum(lag_events) BETWEEN 2 AND 22, bool_and(lag > '0') FROM idemq.consumers WHERE consumer = 'mails';
SELECT outbox_unsubscribe('mails');
SELECT take('c');
SELECT outbox_ack(token());

-- who holds it: an open transaction, a prepared one, one's own
BEGIN;
SELECT emit('p1', 'p');
COMMIT;
BEGIN;
SELECT take('c');
SELECT outbox_ack(token());
SELECT held_by_kind, held_by = pg_backend_pid()::text FROM idemq.consumers;
PREPARE TRANSACTION 'regress idemq ''consumer''';
SELECT held_by_kind, held_by FROM idemq.consumers;
SELECT take('c');
COMMIT PREPARED 'regress idemq ''consumer''';
SELECT * FROM shown;

-- leases that run out, again and again
SELECT emit('q1', 'q');
SELECT take('c');
SELECT later(61);
SELECT * FROM shown;
SELECT take('c');
SELECT * FROM look('consumers');
SELECT later(61);
SELECT * FROM look('consumers');
SELECT take('c');
SELECT later(61);
SELECT take('c');
SELECT * FROM look('consumers');
SELECT later(12);
SELECT take('c');
SELECT outbox_ack(token());
SELECT * FROM look('consumers');

-- one that has stopped is named, with its lag and what it holds
SELECT emit('s1', 's'), emit('s2', 's');
SELECT later(200);
SELECT * FROM look('consumers');
SELECT later(200);
SELECT * FROM look('consumers');
-- under a lease it has not
SELECT take('c', lease => '1 hour');
SELECT later(600);
SELECT * FROM look('consumers');
SELECT later(3600);
SELECT * FROM look('consumers');
SELECT take('c');
SELECT outbox_ack(token());
SELECT * FROM look('consumers');

-- the position of another database
UPDATE idemq.ledger_0 SET origins = '{42}';
SELECT * FROM look('consumers');
SELECT * FROM shown;
SELECT outbox_adopt('c', 'continue');
SELECT * FROM look('consumers');

-- at any isolation level, in a read-only transaction, and on whatever there is
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT * FROM shown;
SELECT count(*) FROM idemq.parked;
SELECT * FROM look('consumers');
COMMIT;
DELETE FROM idemq.ledger_0;
SELECT consumer, last_progress FROM idemq.consumers;

\c :origin
DROP DATABASE regress_idemq_consumers WITH (FORCE);
