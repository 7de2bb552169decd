--
-- idem_claim
--
\set origin :DBNAME
\set me :USER
CREATE DATABASE regress_idemq_claim TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_claim SET lc_messages = 'C';
\c regress_idemq_claim
CREATE EXTENSION idemq;

-- once
SELECT idem_claim('payment-1');
SELECT idem_claim('payment-1');
SELECT idem_claim('payment-2');
SELECT scope, key, claimed_at BETWEEN now() - interval '1 minute' AND now() + interval '1 minute' AS recent
FROM idemq.processed ORDER BY key;

-- all forms of arguments
SELECT idem_claim(key => 'named'), idem_claim(scope => 's', key => 'named'),
	idem_claim('named', scope => 's'), idem_claim('named', NULL), idem_claim('named', '');
SELECT idem_claim('varchar'::varchar), idem_claim('varchar'), idem_claim('name'::name::text);
PREPARE claim(text) AS SELECT idem_claim($1);
EXECUTE claim('prepared');
EXECUTE claim('prepared');
PREPARE claim_in(text, text) AS SELECT idem_claim($1, $2);
SET plan_cache_mode = force_generic_plan;
EXECUTE claim_in('prepared', 'generic');
EXECUTE claim_in('prepared', 'generic');
EXECUTE claim_in('prepared', NULL);
RESET plan_cache_mode;
DEALLOCATE ALL;

-- the scope is part of the identity
SELECT idem_claim('both', 'billing'), idem_claim('both', 'mail'), idem_claim('both'),
	idem_claim('both', 'billing'), idem_claim('both', 'mail'), idem_claim('both');
SELECT idem_claim('b', 'a'), idem_claim('ab', ''), idem_claim('', 'ab') IS NULL;
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('b', 'a'), idem_claim('ab', '');

-- idemq.scope: for the session
SET idemq.scope = 'billing';
SELECT idem_claim('both'), idem_claim('both', ''), idem_claim('session'), idem_claim('session', 'billing');
BEGIN;
SET LOCAL idemq.scope = 'mail';
SELECT idem_claim('session');
COMMIT;
SELECT idem_claim('session', 'mail');
RESET idemq.scope;
SELECT idem_claim('session');
CREATE FUNCTION claim_as_function(key text) RETURNS boolean
LANGUAGE sql SET idemq.scope = 'function' AS 'SELECT idem_claim($1)';
SELECT claim_as_function('session'), idem_claim('session', 'function'), current_setting('idemq.scope') AS scope;
-- for the database and for the role
ALTER DATABASE regress_idemq_claim SET idemq.scope = 'database';
\c
SELECT current_setting('idemq.scope', true) AS scope, idem_claim('d'), idem_claim('d', 'database'), idem_claim('d', '');
ALTER DATABASE regress_idemq_claim RESET idemq.scope;
CREATE ROLE regress_idemq_billing LOGIN SUPERUSER;
ALTER ROLE regress_idemq_billing SET idemq.scope = 'role';
\c - regress_idemq_billing
SELECT idem_claim('r'), idem_claim('r', 'role'), idem_claim('r', '');

\c - :me

-- keys are told apart byte by byte
CREATE TABLE spellings (id integer, key text);
INSERT INTO spellings VALUES (1, 'a'), (2, 'A'), (3, ' a'), (4, 'a '), (5, E'a\t'), (6, E'a\n'),
	(7, U&'\00e9'), (8, U&'e\0301'), (9, 'e'), (10, 'ae'), (11, U&'\00e6'), (12, U&'\+01F600'),
	(13, '0'), (14, '00'), (15, 'null'), (16, E'a\x01'), (17, U&'a\200b');
SELECT count(*), count(*) FILTER (WHERE idem_claim(key)) FROM spellings;
SELECT count(*), count(*) FILTER (WHERE idem_claim(key)) FROM spellings;

-- limits: in bytes
SELECT idem_claim(repeat('k', 1024)), idem_claim(repeat('k', 1024)), idem_claim(repeat('k', 1023) || 'l');
SELECT idem_claim(repeat(U&'\00e9', 512)), idem_claim(repeat(U&'\+01F600', 256));
SELECT idem_claim('limit', repeat('s', 255)), idem_claim('limit', repeat('s', 255)), idem_claim('limit', repeat(U&'\00e9', 127));

-- a claim lives and dies with its transaction
BEGIN;
SELECT idem_claim('tx'), idem_claim('tx');
SELECT idem_claim('tx');
ROLLBACK;
BEGIN;
SELECT idem_claim('tx');
COMMIT;
SELECT idem_claim('tx');
BEGIN;
SELECT idem_claim('error');
SELECT 1 / 0;
SELECT idem_claim('error');
COMMIT;
SELECT idem_claim('error');

-- and with its savepoint
BEGIN;
SELECT idem_claim('outer');
SAVEPOINT a;
SELECT idem_claim('outer'), idem_claim('inner');
SAVEPOINT b;
SELECT idem_claim('innermost'), idem_claim('inner');
RELEASE b;
SELECT idem_claim('innermost');
ROLLBACK TO a;
SELECT idem_claim('outer'), idem_claim('inner'), idem_claim('innermost');
ROLLBACK TO a;
RELEASE a;
COMMIT;
SELECT idem_claim('outer'), idem_claim('inner'), idem_claim('innermost');

-- functions, exception blocks, DO, triggers, cursors
CREATE TABLE effects (key text, note text);
CREATE FUNCTION handle(key text, fail boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
	IF NOT idem_claim(key) THEN
		RETURN 'duplicate';
	END IF;
	INSERT INTO effects VALUES (key, 'handled');
	IF fail THEN
		RAISE EXCEPTION 'the handler failed';
	END IF;
	RETURN 'handled';
EXCEPTION WHEN raise_exception THEN
	RETURN 'given back';
END
$$;
SELECT handle('h1'), handle('h1'), handle('h2', true), handle('h2'), handle('h2');
BEGIN;
SELECT handle('h3', true), handle('h3'), handle('h3', true);
COMMIT;
SELECT * FROM effects ORDER BY key;
DO $$
BEGIN
	FOR i IN 1..3 LOOP
		RAISE INFO '%', idem_claim('do-' || i % 2);
	END LOOP;
END
$$;
CREATE PROCEDURE claim_and_commit() LANGUAGE plpgsql AS $$
BEGIN
	RAISE INFO '%', idem_claim('procedure');
	COMMIT;
	RAISE INFO '%', idem_claim('procedure');
	RAISE INFO '%', idem_claim('procedure 2');
	ROLLBACK;
	RAISE INFO '%', idem_claim('procedure 2');
END
$$;
CALL claim_and_commit();
CREATE FUNCTION claim_new() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RETURN CASE WHEN idem_claim(NEW.key, ''trigger'') THEN NEW END; END';
CREATE TRIGGER once BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION claim_new();
INSERT INTO effects VALUES ('t1', 'a'), ('t2', 'b'), ('t1', 'c');
INSERT INTO effects VALUES ('t2', 'd'), ('t3', 'e');
SELECT * FROM effects WHERE key LIKE 't%' ORDER BY key;
BEGIN;
DECLARE c CURSOR FOR SELECT i, idem_claim('c' || i) FROM generate_series(1, 5) AS i;
FETCH 2 FROM c;
CLOSE c;
COMMIT;
SELECT i, idem_claim('c' || i) FROM generate_series(1, 3) AS i;

-- the form in one statement, as documented
CREATE TABLE account (id integer PRIMARY KEY, balance integer);
INSERT INTO account VALUES (1, 100);
WITH c AS MATERIALIZED (SELECT idem_claim('m1') AS ok)
UPDATE account SET balance = balance + 10 FROM c WHERE c.ok AND id = 1;
WITH c AS MATERIALIZED (SELECT idem_claim('m1') AS ok)
UPDATE account SET balance = balance + 10 FROM c WHERE c.ok AND id = 1;
SELECT * FROM account;

-- isolation levels: the answer is about now
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idem_claim('rr'), idem_claim('tx'), idem_claim('rr');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idem_claim('sr'), idem_claim('tx'), idem_claim('rr');
COMMIT;
SELECT idem_claim('rr'), idem_claim('sr');
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE;
SELECT idem_seen('sr') IS NOT NULL AS seen;
COMMIT;

-- many in one statement and transaction: the lock table does not fill
BEGIN;
SELECT count(*) FILTER (WHERE ok) AS claimed, count(*) FILTER (WHERE NOT ok) AS refused
FROM (SELECT idem_claim('batch-' || i % 15000) AS ok FROM generate_series(1, 20000) AS i OFFSET 0) AS b;
SELECT count(*) < 200 AS few_locks FROM pg_locks WHERE pid = pg_backend_pid();
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
SELECT count(*) FILTER (WHERE idem_claim('batch-' || i)) FROM generate_series(0, 14999) AS i;

-- a row that comes by INSERT or COPY counts
INSERT INTO idemq.processed (scope, key, claimed_at, leaf) VALUES ('', 'hand', now(), '-infinity');
SELECT idem_claim('hand'), idem_try_claim('hand'), idem_seen('hand') IS NOT NULL AS seen;
COPY idemq.processed (scope, key, claimed_at, leaf) FROM stdin;
copied	c1	2026-01-01 00:00+00	-infinity
copied	c2	2026-01-01 00:00+00	-infinity
\.
SELECT idem_claim_many('{c1,c2,c3}', 'copied');
BEGIN;
INSERT INTO idemq.processed (scope, key, claimed_at, leaf) VALUES ('', 'hand 2', now(), '-infinity');
SELECT idem_try_claim('hand 2'), idem_claim('hand 2');
DELETE FROM idemq.processed WHERE key = 'hand 2';
SELECT idem_claim('hand 2');
COMMIT;
DELETE FROM idemq.processed WHERE key = 'hand';
SELECT idem_claim('hand'), idem_claim('hand');
-- twice in one partition
\set VERBOSITY terse
INSERT INTO idemq.processed (scope, key, claimed_at, leaf) VALUES ('copied', 'c1', now(), '-infinity');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default

-- no parallel plan, whatever is asked for
SELECT count(*) FROM (SELECT set_config(name, 'on', false) FROM pg_settings
	WHERE name IN ('debug_parallel_query', 'force_parallel_mode')) AS s;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT count(*) FILTER (WHERE idem_claim(key, 'parallel')) FROM spellings;
SELECT count(*) FILTER (WHERE idem_claim(key, 'parallel')) FROM spellings;
-- somebody's false promise
CREATE FUNCTION promised(key text) RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN idem_claim($1); END';
\set VERBOSITY terse
SELECT promised('p');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default

\c :origin
DROP DATABASE regress_idemq_claim WITH (FORCE);
DROP ROLE regress_idemq_billing;
