--
-- CREATE EXTENSION and DROP EXTENSION
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_install TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_install SET lc_messages = 'C';
ALTER DATABASE regress_idemq_install SET idemq.expiry = off;
\c regress_idemq_install

-- what it is
SELECT superuser, trusted, relocatable, schema, requires
FROM pg_available_extension_versions WHERE name = 'idemq';
CREATE ROLE regress_idemq_nobody;
SET ROLE regress_idemq_nobody;
CREATE EXTENSION idemq;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- claims in the transaction that makes the extension
BEGIN;
CREATE EXTENSION idemq;
SELECT idem_claim('first'), idem_claim('first'), idem_try_claim('first');
SELECT idem_claim_many('{first,second}');
SELECT idem_seen('second') BETWEEN now() AND clock_timestamp() AS seen, idem_forget('second');
SELECT scope, key, leaf, tableoid::regclass FROM idemq.processed;
ROLLBACK;
SELECT to_regnamespace('idemq'), to_regprocedure('idem_claim(text, text)');
SELECT idem_claim('first');
\echo :LAST_ERROR_SQLSTATE

-- rolled back, then again: nothing of the first time is left
BEGIN;
CREATE EXTENSION idemq;
SELECT idem_claim('first');
COMMIT;
SELECT idem_claim('first'), idem_claim('second');
SELECT count(*), count(DISTINCT key) FROM idemq.processed;

-- and with a savepoint
DROP EXTENSION idemq;
BEGIN;
SAVEPOINT s;
CREATE EXTENSION idemq;
SELECT idem_claim('first');
ROLLBACK TO s;
SELECT to_regnamespace('idemq');
CREATE EXTENSION idemq;
SELECT idem_claim('first');
COMMIT;
SELECT idem_claim('first');

-- what belongs to it: no partition but the permanent one
DROP EXTENSION idemq;
CREATE EXTENSION idemq;
CREATE TABLE idemq.processed_hand (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.processed_hand (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_hand
	FOR VALUES FROM ('2000-01-01 00:00+00') TO (MAXVALUE);
SELECT idem_claim('by hand');
SELECT c.oid::regclass, c.relkind
FROM pg_class AS c
JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
JOIN pg_extension AS e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
WHERE e.extname = 'idemq' ORDER BY c.oid::regclass::text COLLATE "C";
-- what pg_dump takes along
SELECT unnest(extconfig)::regclass, unnest(extcondition) FROM pg_extension
WHERE extname = 'idemq' ORDER BY 1;

-- all of it goes, partitions too
DROP EXTENSION idemq;
SELECT to_regnamespace('idemq'),
	(SELECT count(*) FROM pg_class WHERE relname LIKE 'processed%') AS relations,
	(SELECT count(*) FROM pg_proc WHERE proname LIKE 'idem%') AS functions;
SELECT idem_claim('first');
\echo :LAST_ERROR_SQLSTATE
CREATE EXTENSION idemq;
SELECT idem_claim('first');

-- somebody else's object that needs ours
CREATE VIEW uses_idemq AS SELECT key FROM idemq.processed;
\set VERBOSITY terse
DROP EXTENSION idemq;
\echo :LAST_ERROR_SQLSTATE
DROP EXTENSION idemq CASCADE;
\set VERBOSITY default

-- in another schema: the functions are there, the tables where they always are
CREATE SCHEMA messaging;
CREATE EXTENSION idemq SCHEMA messaging;
SELECT messaging.idem_claim('a'), messaging.idem_claim('a');
SELECT idem_claim('a');
\echo :LAST_ERROR_SQLSTATE
SELECT n.nspname, p.proname FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE p.proname LIKE 'idem\_%' ORDER BY p.proname;
SELECT relname FROM pg_class
WHERE relnamespace = 'idemq'::regnamespace AND relkind IN ('r', 'p', 'v') ORDER BY relname COLLATE "C";
SELECT messaging.idem_grant('regress_idemq_nobody', 'claim');
GRANT USAGE ON SCHEMA messaging TO regress_idemq_nobody;
SET ROLE regress_idemq_nobody;
SELECT messaging.idem_claim('b'), messaging.idem_try_claim('b');
RESET ROLE;
SELECT messaging.idem_revoke('regress_idemq_nobody', 'claim');
-- the worker may be at it
SET client_min_messages = warning;
CALL messaging.idem_maintain();
RESET client_min_messages;
ALTER EXTENSION idemq SET SCHEMA public;
\echo :LAST_ERROR_SQLSTATE
DROP EXTENSION idemq;
DROP SCHEMA messaging;
CREATE EXTENSION idemq SCHEMA idemq;
\echo :LAST_ERROR_SQLSTATE

-- a schema idemq that is there already is somebody else's
CREATE SCHEMA idemq;
\set VERBOSITY terse
CREATE EXTENSION idemq;
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
DROP SCHEMA idemq;

-- and so is a function of the same name: none of ours may be replaced or bent
DO $$
DECLARE
	taken text;
	outcome text;
BEGIN
	FOREACH taken IN ARRAY ARRAY[
		'FUNCTION idem_claim(key text, scope text) RETURNS boolean',
		'FUNCTION idem_try_claim(key text, scope text) RETURNS text',
		'FUNCTION idem_claim_many(keys text[], scope text) RETURNS boolean[]',
		'FUNCTION idem_seen(key text, scope text) RETURNS timestamptz',
		'FUNCTION idem_forget(key text, scope text) RETURNS boolean',
		'FUNCTION idem_key(VARIADIC parts text[]) RETURNS text',
		'FUNCTION idem_fingerprint(payload jsonb, VARIADIC paths text[]) RETURNS text',
		'PROCEDURE idem_maintain()',
		'FUNCTION idem_status(OUT text, OUT text, OUT text, OUT text) RETURNS SETOF record',
		'FUNCTION idem_grant(role regrole, capability text, object text) RETURNS void',
		'FUNCTION idem_revoke(role regrole, capability text, object text) RETURNS void']
	LOOP
		EXECUTE format('CREATE %s LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION $m$mine$m$; END''', taken);
		BEGIN
			CREATE EXTENSION idemq;
			outcome := 'created';
		EXCEPTION WHEN OTHERS THEN
			outcome := SQLSTATE || ' ' || SQLERRM;
		END;
		RAISE INFO '%', outcome;
		EXECUTE 'DROP ' || regexp_replace(taken, '( RETURNS .*)$', '');
	END LOOP;
END
$$;
-- one of another signature is no obstacle
CREATE FUNCTION idem_claim(key integer) RETURNS boolean LANGUAGE sql AS 'SELECT NULL::boolean';
CREATE EXTENSION idemq;
SELECT idem_claim('42'), idem_claim(42) IS NULL AS other;

-- objects of the extension cannot be taken from it one by one
DROP FUNCTION idem_claim(text, text);
\echo :LAST_ERROR_SQLSTATE
DROP TABLE idemq.processed_permanent;
\echo :LAST_ERROR_SQLSTATE

\c :origin
DROP DATABASE regress_idemq_install WITH (FORCE);
DROP ROLE regress_idemq_nobody;
