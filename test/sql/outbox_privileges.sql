--
-- What the capability emit is, and is not
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_emit TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_emit SET lc_messages = 'C';
\c regress_idemq_emit
CREATE EXTENSION idemq;
CREATE ROLE regress_idemq_emitter;
CREATE ROLE regress_idemq_other;
SELECT idem_grant('regress_idemq_emitter', 'emit');
CREATE FUNCTION attempt_as(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('role', role, true);
	EXECUTE statement;
	PERFORM set_config('role', 'none', true);
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;

-- the eight columns
SELECT c.name, attempt_as('regress_idemq_emitter', format('INSERT INTO idemq.outbox (aggregatetype%s) VALUES (''a''%s)',
	', ' || nullif(c.name, 'aggregatetype'), ', ' || quote_nullable(nullif(c.value, 'a')))) AS emitter
FROM (VALUES ('id', '6fa459ea-ee8a-4ca4-894e-db77e160355e'), ('aggregatetype', 'a'), ('aggregateid', 'x'), ('type', 'x'), ('payload', '{}'),
	('body', 'x'), ('headers', '{}'), ('not_before', '2030-01-01')) AS c (name, value);
-- and no other, not even as what would come anyway
SELECT c.name, attempt_as('regress_idemq_emitter', format('INSERT INTO idemq.outbox (aggregatetype, %I) VALUES (''a'', %L)', c.name, c.value)) AS emitter,
	attempt_as('regress_idemq_emitter', format('INSERT INTO idemq.outbox (aggregatetype, %I) VALUES (''a'', DEFAULT)', c.name)) AS by_default
FROM (VALUES ('seq', '1'), ('xid', '1'), ('origin', '1'), ('leaf', '2030-01-01'), ('created_at', '2030-01-01'), ('cause', 'x')) AS c (name, value);
-- the functions
SELECT v.statement, attempt_as('regress_idemq_emitter', v.statement) AS emitter, attempt_as('regress_idemq_other', v.statement) AS other FROM (VALUES
	('SELECT outbox_emit(''a'', ''{}'')'),
	('SELECT outbox_emit_bytes(''a'', ''x'')'),
	('SELECT idem_key(''a'', ''b'')'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'')'),
	('INSERT INTO idemq.outbox (aggregatetype) SELECT ''a'' FROM generate_series(1, 10)'),
	('INSERT INTO idemq.outbox DEFAULT VALUES'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'') RETURNING id'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'') RETURNING 1'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'') ON CONFLICT DO NOTHING'),
	('INSERT INTO idemq.outbox_permanent (aggregatetype) VALUES (''a'')'),
	('SELECT FROM idemq.outbox'),
	('SELECT count(*) FROM idemq.outbox'),
	('SELECT id FROM idemq.outbox_permanent'),
	('UPDATE idemq.outbox SET type = ''x'''),
	('DELETE FROM idemq.outbox'),
	('TRUNCATE idemq.outbox'),
	('LOCK idemq.outbox IN ROW EXCLUSIVE MODE'),
	('LOCK idemq.outbox IN ACCESS EXCLUSIVE MODE'),
	('SELECT nextval(''idemq.outbox_seq'')'),
	('SELECT last_value FROM idemq.outbox_seq'),
	('SELECT setval(''idemq.outbox_seq'', 1)'),
	('CREATE TRIGGER t BEFORE INSERT ON idemq.outbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()'),
	('CREATE TABLE child () INHERITS (idemq.outbox_permanent)'),
	('SELECT idem_claim(''a'')'),
	('SELECT idem_forget(''a'')'),
	('SELECT * FROM idemq.stats_outbox'),
	('CALL idem_maintain()')) AS v (statement);
-- COPY
SET ROLE regress_idemq_emitter;
COPY idemq.outbox (aggregatetype, payload) FROM stdin;
copied	{"c": 1}
\.
COPY idemq.outbox (aggregatetype, seq) FROM stdin;
copied	1
\.
\echo :LAST_ERROR_SQLSTATE
COPY idemq.outbox TO stdout;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT aggregatetype, payload, cause FROM idemq.outbox WHERE aggregatetype = 'copied';
-- an error does not tell what it must not
SET ROLE regress_idemq_emitter;
DO $$
DECLARE
	detail text;
BEGIN
	INSERT INTO idemq.outbox (aggregatetype, payload, body) VALUES ('a', '{"secret": 1}', 'x');
EXCEPTION WHEN check_violation THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RAISE INFO '%', detail;
END
$$;
RESET ROLE;

-- a function or a trigger lends its owner's right, and its own only
CREATE FUNCTION emit_for_others() RETURNS uuid LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$ SELECT outbox_emit('lent', NULL) $$;
ALTER FUNCTION emit_for_others() OWNER TO regress_idemq_emitter;
SELECT attempt_as('regress_idemq_other', 'SELECT emit_for_others()');
-- what somebody added runs with the rights of who emits
CREATE FUNCTION who() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE INFO '%', current_user; RETURN NEW; END $$;
CREATE TRIGGER who BEFORE INSERT ON idemq.outbox FOR EACH ROW EXECUTE FUNCTION who();
SELECT attempt_as('regress_idemq_emitter', 'SELECT outbox_emit(''a'', NULL)');
SELECT attempt_as('regress_idemq_emitter', 'INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'')');
DROP TRIGGER who ON idemq.outbox;

-- taken back
SELECT idem_grant('regress_idemq_emitter', 'monitor');
SELECT attempt_as('regress_idemq_emitter', 'SELECT * FROM idemq.stats_outbox');
SELECT idem_revoke('regress_idemq_emitter', 'emit');
SELECT v.statement, attempt_as('regress_idemq_emitter', v.statement) AS emitter FROM (VALUES
	('SELECT outbox_emit(''a'', ''{}'')'),
	('SELECT outbox_emit_bytes(''a'', ''x'')'),
	('INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'')'),
	('SELECT * FROM idemq.stats_outbox')) AS v (statement);
SELECT idem_revoke('regress_idemq_emitter', 'monitor');
SELECT attname FROM pg_attribute WHERE attrelid = 'idemq.outbox'::regclass AND attacl::text LIKE '%regress%';
SELECT attempt_as('regress_idemq_emitter', 'INSERT INTO idemq.outbox (aggregatetype) VALUES (''a'')'),
	has_schema_privilege('regress_idemq_emitter', 'idemq', 'USAGE') AS schema;

\c :origin
DROP DATABASE regress_idemq_emit WITH (FORCE);
DROP ROLE regress_idemq_emitter, regress_idemq_other;
