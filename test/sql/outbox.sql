--
-- The outbox: plain INSERT and COPY, outbox_emit and outbox_emit_bytes
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_outbox TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_outbox SET lc_messages = 'C';
\c regress_idemq_outbox
CREATE EXTENSION idemq;
-- what there is now, and nothing of which the next run would know better
CREATE FUNCTION events() RETURNS TABLE (n bigint, what text, event text) LANGUAGE sql AS $$
	SELECT row_number() OVER (ORDER BY seq), concat_ws(' ', aggregatetype, aggregateid, type),
		concat_ws(' ', coalesce(left(payload::text, 30), '-'), coalesce(left(body::text, 30), '-'), headers, not_before AT TIME ZONE 'UTC', cause)
	FROM idemq.outbox ORDER BY seq
$$;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	hint text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN SQLSTATE || ': ' || SQLERRM || CASE WHEN hint <> '' THEN ' (' || hint || ')' ELSE '' END;
END
$$;

-- the defaults
BEGIN;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('plain');
SELECT outbox_emit('emitted', '{"a": 1}') IS NOT NULL AS id;
SELECT aggregatetype, seq, xid = pg_current_xact_id() AS xid, origin = idemq._outbox_origin() AS origin, leaf,
	created_at BETWEEN now() AND clock_timestamp() AS created_at, not_before,
	id::text ~ '^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AS id,
	aggregateid, type, payload, body, headers, cause
FROM idemq.outbox ORDER BY seq;
-- xid is the top-level one, assigned before the number is drawn
SAVEPOINT s;
SELECT outbox_emit('inner', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('inner');
SELECT count(*) FROM idemq.outbox WHERE aggregatetype = 'inner' AND xid = pg_current_xact_id() AND xmin <> xid::xid;
ROLLBACK;
BEGIN;
SELECT idemq._outbox_next() > 0 AS drawn, pg_current_xact_id_if_assigned() IS NOT NULL AS assigned;
ROLLBACK;

-- all that one can say; the id is returned, or chosen
SELECT outbox_emit('order', '{"total": 12.50}', '42', 'created', '{"h": [1]}', '2030-01-01 00:00Z') AS id \gset
SELECT id = :'id' AS same FROM idemq.outbox;
SELECT outbox_emit(type => 'shipped', aggregateid => '42', aggregatetype => 'order', payload => NULL) IS NULL AS n;
SELECT outbox_emit_bytes('order', '\x00ff0a5c00', '43', 'raw', '{}', '2031-01-01 00:00Z') IS NULL AS n;
SELECT outbox_emit_bytes('order', NULL) IS NULL AS n, outbox_emit_bytes('order', '') IS NULL AS n;
INSERT INTO idemq.outbox (id, aggregatetype, aggregateid, type, payload, headers, not_before)
VALUES ('6fa459ea-ee8a-3ca4-894e-db77e160355e', 'order', '44', 'created', '[]', 'null', '2031-01-02');
INSERT INTO idemq.outbox (aggregatetype, aggregateid, body) VALUES ('order', '45', '\xdeadbeef'), ('order', '', '');
INSERT INTO idemq.outbox (aggregatetype, aggregateid) SELECT 'many', g FROM generate_series(1, 3) AS g;
COPY idemq.outbox (aggregatetype, aggregateid, type, payload, body) FROM stdin;
copied	1	\N	{"c": 1}	\N
copied	2	x	\N	\\x0001
\.
PREPARE emit(int) AS INSERT INTO idemq.outbox (aggregatetype, aggregateid) VALUES ('prepared', $1);
EXECUTE emit(1);
EXECUTE emit(2);
SELECT * FROM events();
SELECT count(*) = count(DISTINCT id) AS ids, count(*) = count(DISTINCT seq) AS numbers, count(DISTINCT origin) AS origins
FROM idemq.outbox;
-- numbers rise as they were written
SELECT bool_and(created_at >= before) AS in_order
FROM (SELECT created_at, lag(created_at) OVER (ORDER BY seq) AS before FROM idemq.outbox) AS o;

-- what is refused
TRUNCATE idemq.outbox;
SELECT v.statement, attempt(v.statement) FROM (VALUES
	('SELECT outbox_emit(NULL, ''{}'')'),
	('SELECT outbox_emit('''', ''{}'')'),
	('SELECT outbox_emit_bytes(NULL, ''x'')'),
	('SELECT outbox_emit_bytes('''', ''x'')'),
	('SELECT outbox_emit(''a'', ''{'')'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (''a''), ('''')'),
	('SELECT outbox_emit(''a'', NULL, NULL, NULL, ''{'')'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (NULL)'),
	('INSERT INTO idemq.outbox (payload) VALUES (NULL)'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES ('''')'),
	('INSERT INTO idemq.outbox (aggregatetype, payload, body) VALUES (''a'', ''{}'', ''x'')'),
	('INSERT INTO idemq.outbox (aggregatetype, not_before) VALUES (''a'', ''infinity'')'),
	('SELECT outbox_emit(''a'', ''{}'', not_before => ''infinity'')'),
	('INSERT INTO idemq.outbox (aggregatetype, id) VALUES (''a'', NULL)'),
	('SELECT idemq._outbox_leaf(''{2020-01-01}'')'),
	('SELECT idemq._outbox_leaf(''{}'')'),
	('SELECT idemq._outbox_leaf(''{NULL,NULL}'')')) AS v (statement);
SELECT count(*) FROM idemq.outbox;

-- a cursor that fails takes no lock with it that an event of it needs
BEGIN;
DECLARE c CURSOR FOR SELECT outbox_emit('kept', NULL) IS NULL AS n, 1 / x AS x FROM (VALUES (1), (0)) AS v (x);
FETCH c;
SAVEPOINT s;
FETCH c;
ROLLBACK TO s;
SELECT relation::regclass, mode FROM pg_locks
WHERE pid = pg_backend_pid() AND relation IN ('idemq.outbox'::regclass, 'idemq.outbox_permanent'::regclass)
ORDER BY relation::regclass::text;
ROLLBACK;
-- an event lives and dies with its transaction
BEGIN;
SELECT outbox_emit('kept', NULL) IS NULL AS n;
SAVEPOINT s;
SELECT outbox_emit('lost', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('lost');
ROLLBACK TO s;
SELECT outbox_emit('kept', NULL) IS NULL AS n;
COMMIT;
BEGIN;
SELECT outbox_emit('lost', NULL) IS NULL AS n;
ROLLBACK;
DO $$
BEGIN
	PERFORM outbox_emit('kept', '1');
	BEGIN
		PERFORM outbox_emit('lost', '2');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		PERFORM outbox_emit('kept', '3');
	END;
	PERFORM outbox_emit('kept', '4');
END
$$;
SELECT * FROM events();

-- the cause: the last claim that was true and not rolled back
TRUNCATE idemq.outbox;
BEGIN;
SELECT outbox_emit('none', NULL) IS NULL AS n;
SELECT idem_claim('one', 'my:scope'), idem_claim('one', 'my:scope');
SELECT outbox_emit('one', NULL) IS NULL AS n;
SELECT idem_try_claim('two'), idem_try_claim('one', 'my:scope');
SELECT outbox_emit('two', NULL) IS NULL AS n;
SAVEPOINT a;
SELECT outbox_emit('two', NULL) IS NULL AS n;
SAVEPOINT b;
SELECT idem_claim('three\');
SAVEPOINT c;
SELECT idem_claim('four');
INSERT INTO idemq.outbox (aggregatetype) VALUES ('four');
RELEASE c;
SELECT outbox_emit('four', NULL) IS NULL AS n;
SAVEPOINT c;
SELECT idem_claim('five');
SELECT outbox_emit('lost', NULL) IS NULL AS n;
ROLLBACK TO c;
SELECT outbox_emit('four', NULL) IS NULL AS n;
RELEASE c;
RELEASE b;
SELECT outbox_emit('four', NULL) IS NULL AS n;
ROLLBACK TO a;
SELECT outbox_emit('two', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('two');
SELECT idem_claim_many('{six,six,two}');
SELECT outbox_emit('six', NULL) IS NULL AS n;
COMMIT;
SELECT outbox_emit('none', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('none');
SELECT aggregatetype, cause FROM idemq.outbox ORDER BY seq;
SELECT DISTINCT cause = idem_key('my:scope', 'one') AS same FROM idemq.outbox WHERE aggregatetype = 'one';
-- in one statement, and in the longest form
TRUNCATE idemq.outbox;
WITH c AS MATERIALIZED (SELECT idem_claim('seven') AS ok) SELECT outbox_emit('seven', NULL) IS NULL AS n FROM c WHERE c.ok;
WITH c AS MATERIALIZED (SELECT idem_claim('seven') AS ok) SELECT outbox_emit('seven', NULL) IS NULL AS n FROM c WHERE c.ok;
BEGIN;
SELECT idem_claim(repeat(':', 1024), repeat('\', 255));
SELECT outbox_emit('long', NULL) IS NULL AS n;
SELECT idem_claim('short'), outbox_emit('short', NULL) IS NULL AS n;
COMMIT;
SELECT aggregatetype, length(cause), left(cause, 20) AS cause FROM idemq.outbox ORDER BY seq;
-- savepoints without end
DO $$
BEGIN
	FOR i IN 1..200 LOOP
		BEGIN
			PERFORM idem_claim('deep' || i);
			IF i % 3 = 0 THEN RAISE division_by_zero; END IF;
		EXCEPTION WHEN division_by_zero THEN
		END;
	END LOOP;
	PERFORM outbox_emit('deep', NULL);
END
$$;
CREATE FUNCTION nest(depth int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM idem_claim('nest' || depth);
		IF depth < 40 THEN PERFORM nest(depth + 1); END IF;
		IF depth > 20 THEN RAISE division_by_zero; END IF;
	EXCEPTION WHEN division_by_zero THEN
		PERFORM outbox_emit('nest' || depth, NULL);
	END;
END
$$;
SELECT nest(1);
SELECT aggregatetype, cause FROM idemq.outbox WHERE aggregatetype IN ('deep', 'nest40', 'nest21') ORDER BY seq;

-- large messages
TRUNCATE idemq.outbox;
SELECT outbox_emit('json', jsonb_build_object('text', repeat('idemq ', 200000))) IS NULL AS n;
SELECT outbox_emit('json', jsonb_build_object('text', string_agg(md5(g::text), ''))) IS NULL AS n FROM generate_series(1, 32768) AS g;
SELECT outbox_emit_bytes('bytes', decode(string_agg(md5(g::text), ''), 'hex')) IS NULL AS n FROM generate_series(1, 65536) AS g;
-- from where it is stored already, out of line
CREATE TABLE stored AS SELECT payload, body FROM idemq.outbox;
SELECT count(outbox_emit('json', payload)) FROM stored WHERE payload IS NOT NULL;
SELECT count(outbox_emit_bytes('bytes', body, headers => to_jsonb(md5(body)))) FROM stored WHERE body IS NOT NULL;
INSERT INTO idemq.outbox (aggregatetype, payload, body) SELECT 'inserted', payload, body FROM stored;
DROP TABLE stored;
SELECT aggregatetype, length(payload->>'text') AS text, length(body) AS bytes, md5(coalesce(payload::text, body::text)) FROM idemq.outbox ORDER BY seq;
-- any byte
SELECT outbox_emit_bytes('every', (SELECT string_agg(set_byte('\x00', 0, g), '' ORDER BY g) FROM generate_series(0, 255) AS g)) IS NULL AS n;
SELECT md5(body) FROM idemq.outbox WHERE aggregatetype = 'every';

-- READ ONLY
BEGIN READ ONLY;
SELECT v.statement, attempt(v.statement) FROM (VALUES
	('SELECT outbox_emit(''a'', ''{}'')'),
	('SELECT outbox_emit_bytes(''a'', ''x'')'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'')'),
	('SELECT count(*) FROM idemq.outbox')) AS v (statement);
ROLLBACK;
-- any isolation level
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox_emit('serializable', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('serializable');
COMMIT;

-- in a function, and in the session's other ways
CREATE FUNCTION emit_all(n int) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(outbox_emit('function', to_jsonb(g))) FROM generate_series(1, n) AS g
$$;
SELECT emit_all(1000);
SELECT count(*), min(payload::int), max(payload::int), bool_and(payload::int - seq = first - first_seq) AS in_order
FROM (SELECT *, min(payload::int) OVER () AS first, min(seq) OVER () AS first_seq FROM idemq.outbox WHERE aggregatetype = 'function') AS o;
DECLARE c CURSOR WITH HOLD FOR SELECT outbox_emit('cursor', NULL);
FETCH c \g /dev/null
CLOSE c;
SELECT count(*) FROM idemq.outbox WHERE aggregatetype = 'cursor';

-- prepared: written when it is committed
BEGIN;
SELECT idem_claim('prepared');
SELECT outbox_emit('2pc', NULL) IS NULL AS n;
PREPARE TRANSACTION 'regress_idemq_outbox';
SELECT outbox_emit('between', NULL) IS NULL AS n;
SELECT aggregatetype, cause FROM idemq.outbox WHERE aggregatetype IN ('2pc', 'between') ORDER BY seq;
COMMIT PREPARED 'regress_idemq_outbox';
SELECT aggregatetype, cause FROM idemq.outbox WHERE aggregatetype IN ('2pc', 'between') ORDER BY seq;

\c :origin
DROP DATABASE regress_idemq_outbox WITH (FORCE);
