--
-- Administration of consumers: subscribe, alter, seek, adopt, unsubscribe; dead letters
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_consume_admin TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_consume_admin SET lc_messages = 'C';
\c regress_idemq_consume_admin
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
-- fetches and acknowledges until there is nothing; one row for each lease
CREATE FUNCTION drain(consumer text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	got text;
	empty int := 0;
BEGIN
	WHILE empty < 3 LOOP
		got := take(consumer, hold => 'drain');
		IF got = '-' THEN
			empty := empty + 1;
		ELSE
			empty := 0;
			PERFORM outbox_ack(token('drain'));
			RETURN NEXT got;
		END IF;
	END LOOP;
END
$$;

-- settings: the defaults are those of the moment
SET idemq.max_attempts = 7;
SET idemq.retry_ladder = '5s,1h';
SELECT outbox_subscribe('defaults');
RESET idemq.max_attempts;
RESET idemq.retry_ladder;
SELECT outbox_subscribe('given', '{a,b}', 'now', 3, false, 2, '1min,2h');
SELECT consumer, aggregatetypes, shards, ordered, max_attempts, retry_ladder FROM idemq.subscriptions ORDER BY 1;
SELECT outbox_alter('defaults', '{x}'), outbox_alter('given', '{}', max_attempts => 3);
SELECT outbox_alter('defaults'), outbox_alter('given', retry_ladder => '3s');
SELECT consumer, aggregatetypes, shards, ordered, max_attempts, retry_ladder FROM idemq.subscriptions ORDER BY 1;
-- in a transaction that is rolled back
BEGIN;
SELECT outbox_subscribe('never');
SELECT outbox_unsubscribe('given');
SELECT outbox_alter('defaults', '{}');
ROLLBACK;
SELECT consumer, aggregatetypes FROM idemq.subscriptions ORDER BY 1;
SELECT outbox_unsubscribe('defaults'), outbox_unsubscribe('given');
SELECT count(*) FROM idemq.consumers;
-- a new one of the same name knows nothing of the old one
SELECT outbox_subscribe('c');
SELECT emit('o1', 'o'), emit('o2', 'o');
SELECT take('c', 1);
SELECT nack('o1');
SELECT outbox_unsubscribe('c');
SELECT attempt('SELECT outbox_ack(token())');
SELECT outbox_subscribe('c', max_attempts => 1);
SELECT take('c');
SELECT count(*) FROM idemq.parked;
SELECT number FROM idemq.subscriptions;

-- aggregatetypes may change at any time, a lease or not
SELECT emit('p1', 'p'), emit('p2', 'p', 'mail'), emit('p3', 'p'), emit('p4', 'p', 'mail');
SELECT take('c', 1);
SELECT outbox_alter('c', '{mail}');
SELECT outbox_ack(token());
SELECT take('c');
SELECT outbox_ack(token());
SELECT outbox_alter('c', '{}');

-- seek: back to the beginning, forward to the end; leases and what is parked are forgotten
SELECT emit('q1', 'q'), emit('q2', 'q');
SELECT take('c', 1);
SELECT outbox_alter('c', max_attempts => 5);
SELECT nack('q1', 'x', '1 hour');
SELECT outbox_seek('c', '-infinity');
SELECT attempt('SELECT outbox_ack(token())');
SELECT count(*) FROM idemq.parked;
SELECT drain('c');
SELECT emit('q3', 'q');
SELECT take('c', hold => 'old');
SELECT emit('q4', 'q');
SELECT outbox_seek('c', now());
SELECT attempt('SELECT outbox_ack(token(''old''))');
SELECT take('c');
SELECT emit('q5', 'q');
SELECT drain('c');
SELECT outbox_seek('c', 'infinity');
SELECT take('c');

-- dead letters
SELECT outbox_alter('c', max_attempts => 1);
SELECT emit('r1', 'r'), emit('r2', 'r'), emit('s1', 's', 'mail');
SELECT take('c');
SELECT nack('r1', 'first'), nack('s1', 'other');
SELECT outbox_ack(token());
SELECT dead_id, consumer, aggregatetype, aggregateid, type, attempts, error, replayed_at IS NOT NULL FROM idemq.dead_letters ORDER BY dead_id;
SELECT d.id = o.id AND d.seq = o.seq AND d.created_at = o.created_at AND d.payload = o.payload FROM idemq.dead_letters AS d JOIN idemq.outbox AS o USING (seq);
-- each filter
SELECT dead_letter_replay('c', aggregatetype => 'none'), dead_letter_replay('c', type => 'none'), dead_letter_replay(error_like => 'none%'),
	dead_letter_replay(died_before => '2000-01-01'), dead_letter_replay(ids => '{}'), dead_letter_replay(ids => '{99,NULL}');
SELECT take('c');
-- a replayed one comes after later ones of its key that wait already, and counts anew
SELECT outbox_alter('c', max_attempts => 2, retry_ladder => '10s');
SELECT emit('r3', 'r'), emit('r4', 'r');
SELECT take('c');
SELECT nack('r3');
SELECT dead_letter_replay(error_like => 'fir%');
SELECT dead_letter_replay(error_like => 'fir%');
SELECT emit('r5', 'r');
SELECT take('c');
SELECT p.state, e.type, p.dead_id, b.type FROM idemq.parked AS p JOIN idemq.outbox AS e USING (id) LEFT JOIN idemq.outbox AS b ON b.seq = p.blocked_by ORDER BY p.seq;
SELECT later(12);
SELECT take('c');
SELECT nack('r1', 'again');
SELECT outbox_ack(token());
SELECT later(12);
SELECT take('c');
-- dies anew: a dead letter of its own; the old one is its history
SELECT nack('r1', 'for good');
SELECT dead_id, type, attempts, error, replayed_at IS NOT NULL FROM idemq.dead_letters ORDER BY dead_id;
SELECT outbox_ack(token());
SELECT drain('c');
-- in bulk, with a limit
SELECT dead_letter_replay('c', max_events => 1), dead_letter_replay('c', max_events => 5), dead_letter_replay('c');
SELECT drain('c');
SELECT count(*) FROM idemq.dead_letters WHERE replayed_at IS NULL;
-- rolled back
SELECT emit('t' || i, 't') FROM generate_series(1, 4) AS i \g /dev/null
SELECT outbox_alter('c', max_attempts => 1);
SELECT take('c');
SELECT nack('t' || i, 'number ' || i) FROM generate_series(1, 4) AS i;
BEGIN;
SELECT dead_letter_replay('c'), take('c');
ROLLBACK;
SELECT take('c');
SELECT dead_letter_discard('c', max_events => 1), dead_letter_discard('nobody'), dead_letter_discard(error_like => '%3'), dead_letter_discard(type => 't4', aggregatetype => 'mail');
SELECT type FROM idemq.dead_letters WHERE replayed_at IS NULL ORDER BY dead_id;
-- of a consumer that is gone: none can be sent, all can be thrown away
SELECT outbox_subscribe('d');
SELECT outbox_unsubscribe('c');
SELECT attempt('SELECT dead_letter_replay(''c'')');
SELECT dead_letter_replay(type => 't2');
SELECT dead_letter_discard('c');
SELECT outbox_unsubscribe('d');

-- shards: a key is in one of them; what is left of the window is read under the old number
SELECT outbox_subscribe('c', retry_ladder => '10s');
SELECT emit('u' || i || k, k) FROM generate_series(1, 2) AS i, unnest('{a,b,c,d,e,f}'::text[]) AS k \g /dev/null
SELECT take('c', 2);
SELECT attempt('SELECT outbox_alter(''c'', shards => 3)');
SELECT attempt('SELECT outbox_alter(''c'', ordered => false)');
SELECT outbox_alter('c', shards => 1, ordered => true, max_attempts => 4);
SELECT nack('u1b', 'x');
SELECT attempt('SELECT outbox_alter(''c'', shards => 3)');
SELECT outbox_ack(token());
SELECT outbox_alter('c', shards => 3);
SELECT emit('v' || i || k, k) FROM generate_series(1, 2) AS i, unnest('{a,b,c,d,e,f}'::text[]) AS k \g /dev/null
SELECT drain('c') ORDER BY 1;
SELECT parked('c');
SELECT shard FROM idemq.consumers;
SELECT later(12);
SELECT drain('c') ORDER BY 1;
SELECT count(*) FROM idemq.parked;
-- several leases at a time, one a shard; an alter waits for all of them to end
SELECT emit('w' || i || k, k) FROM generate_series(1, 2) AS i, unnest('{a,b,c,d,e,f}'::text[]) AS k \g /dev/null
DELETE FROM held;
SELECT got FROM (SELECT take('c', hold => i::text) AS got FROM generate_series(1, 4) AS i) AS g ORDER BY got;
SELECT sum(outbox_ack(token(i::text))) BETWEEN 2 AND 10 FROM generate_series(1, 2) AS i WHERE token(i::text) IS NOT NULL;
SELECT attempt('SELECT outbox_alter(''c'', shards => 1)');
SELECT sum(outbox_ack(token(i::text))) BETWEEN 2 AND 10 FROM generate_series(3, 4) AS i WHERE token(i::text) IS NOT NULL;
-- back to one, with something parked in each
SELECT emit('x' || i || k, k) FROM generate_series(1, 2) AS i, unnest('{a,b,c,d,e,f}'::text[]) AS k \g /dev/null
SELECT count(*) FROM (SELECT take('c', hold => i::text) AS got FROM generate_series(1, 4) AS i) AS g;
SELECT sum(outbox_release(token(i::text), ids('x1a', 'x1b', 'x1c', 'x1d', 'x1e', 'x1f'), '10s')) FROM generate_series(1, 4) AS i WHERE token(i::text) IS NOT NULL;
SELECT count(*), count(*) FILTER (WHERE state = 'blocked') FROM idemq.parked;
SELECT sum(outbox_ack(token(i::text))) FROM generate_series(1, 4) AS i WHERE token(i::text) IS NOT NULL;
SELECT outbox_alter('c', shards => 1);
-- changed again before it has come about
SELECT outbox_alter('c', shards => 2);
SELECT outbox_alter('c', shards => 1);
SELECT emit('y1a', 'a') \g /dev/null
SELECT drain('c');
SELECT DISTINCT shard FROM idemq.consumers;
SELECT count(*), count(*) FILTER (WHERE state = 'blocked') FROM idemq.parked;
SELECT later(12);
SELECT drain('c');
SELECT emit('z1', 'z');
SELECT drain('c');
SELECT count(*) FROM idemq.parked;
-- unordered: those that were blocked are due
SELECT emit('m1', 'm'), emit('m2', 'm');
SELECT take('c');
SELECT nack('m1', 'x', '1 hour');
SELECT outbox_alter('c', ordered => false);
SELECT drain('c');
-- ordered again: those that come later wait
SELECT outbox_alter('c', ordered => true);
SELECT emit('m3', 'm'), emit('n1', 'n');
SELECT drain('c');
SELECT later(3601);
SELECT drain('c');

-- in another database: refused, until somebody decides
UPDATE idemq.ledger_0 SET origins = '{42}';
SELECT emit('a1', 'a'), emit('a2', 'a');
SELECT attempt('SELECT take(''c'')');
SELECT outbox_adopt('c', 'skip');
SELECT drain('c') ~ ' a1 a2$';
SELECT outbox_adopt('c', 'continue');
UPDATE idemq.ledger_0 SET origins = '{42}';
SELECT outbox_adopt('c', 'continue');
SELECT emit('a3', 'a');
SELECT drain('c');
-- a new consumer starts at home, whatever checkpoint of another database came along
INSERT INTO idemq.checkpoints SELECT now() - interval '1 hour', 42, pg_current_snapshot(), '1000000', 0;
SELECT outbox_subscribe('fresh', start_at => 'earliest');
SELECT take('fresh', 3, hold => 'fresh');
SELECT outbox_unsubscribe('fresh');
-- nor does one that goes back pass over anything: the last checkpoint before that time, else the beginning
INSERT INTO idemq.checkpoints SELECT now() - interval '1 hour', idemq._outbox_origin(), pg_current_snapshot(), pg_snapshot_xmax(pg_current_snapshot()), last_value FROM idemq.outbox_seq;
SELECT emit('c1', 'c');
SELECT outbox_seek('c', now() - interval '1 minute');
SELECT take('c', 3);
SELECT outbox_seek('c', now() - interval '2 hours');
SELECT take('c', 3);
SELECT outbox_seek('c', 'infinity');
DELETE FROM idemq.checkpoints;
-- what the old one had not seen comes first
UPDATE idemq.ledger_0 SET origins = '{42}';
SELECT emit('a4', 'a'), emit('a5', 'a');
UPDATE idemq.outbox SET origin = 42 WHERE type = 'a5';
SELECT outbox_adopt('c', 'replay');
SELECT outbox_alter('c', '{other}');
SELECT outbox_alter('c', '{}');
SELECT take('c');
SELECT outbox_ack(token());
SELECT take('c') ~ 'a3 c1 a4$';
SELECT outbox_ack(token()) > 10;
SELECT emit('a6', 'a');
SELECT drain('c');
-- what is parked moves once, from whichever shard to whichever
SELECT outbox_subscribe('mv', '{mv}', shards => 2, retry_ladder => '1h');
SELECT emit('m' || i, 'k' || i, 'mv') FROM generate_series(1, 20) AS i \g /dev/null
CREATE TABLE leased (token bigint, id uuid);
INSERT INTO leased SELECT f.token, f.id FROM outbox_fetch('mv') AS f;
INSERT INTO leased SELECT f.token, f.id FROM outbox_fetch('mv') AS f;
SELECT count((outbox_nack(l.token, l.id, 'x')).action) FROM leased AS l;
SELECT outbox_alter('mv', shards => 3);
SELECT take('mv'), take('mv');
SELECT shards FROM idemq.subscriptions WHERE consumer = 'mv';
SELECT count(*), count(DISTINCT seq) FROM idemq.parked WHERE consumer = 'mv';
-- nor does a change of shards bring back what a seek has passed over
SELECT outbox_alter('mv', shards => 2);
SELECT emit('n' || i, 'k' || i, 'mv') FROM generate_series(1, 6) AS i \g /dev/null
SELECT outbox_seek('mv', 'infinity');
SELECT drain('mv');
SELECT shards FROM idemq.subscriptions WHERE consumer = 'mv';

\c :origin
DROP DATABASE regress_idemq_consume_admin WITH (FORCE);
