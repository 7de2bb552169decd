--
-- Capture: bad arguments, and who may
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_capture_errors TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_capture_errors SET lc_messages = 'C';
\c regress_idemq_capture_errors
CREATE EXTENSION idemq;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	message text;
	hint text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN coalesce(nullif(answer, ''), '(done)');
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || message, nullif(hint, ''));
END
$$;
CREATE FUNCTION attempts(statements text[]) RETURNS TABLE (statement text, answer text) LANGUAGE sql AS $$
	SELECT s, attempt('SELECT ' || s) FROM unnest(statements) WITH ORDINALITY AS u (s, n) ORDER BY n
$$;
CREATE TABLE t (id int PRIMARY KEY, a int, "B" text);
CREATE TABLE keyless (id int UNIQUE NOT NULL);
CREATE TABLE gone (id int PRIMARY KEY, x int);
ALTER TABLE gone DROP COLUMN x;
CREATE VIEW v AS SELECT * FROM t;
CREATE MATERIALIZED VIEW m AS SELECT * FROM t;
CREATE SEQUENCE s;
CREATE TYPE composite AS (id int);
CREATE TEMP TABLE temporary (id int PRIMARY KEY);
CREATE FOREIGN DATA WRAPPER regress_idemq_fdw;
CREATE SERVER regress_idemq_server FOREIGN DATA WRAPPER regress_idemq_fdw;
CREATE FOREIGN TABLE f (id int) SERVER regress_idemq_server;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);

-- what is to be captured
SELECT * FROM attempts(ARRAY[
	'outbox_capture(NULL)',
	'outbox_capture(4294967295)',
	'outbox_capture(0)',
	'outbox_capture(''nowhere'')',
	'outbox_capture(''v'')',
	'outbox_capture(''m'')',
	'outbox_capture(''s'')',
	'outbox_capture(''composite'')',
	'outbox_capture(''t_pkey'')',
	'outbox_capture(''f'')',
	'outbox_capture(''temporary'')',
	'outbox_capture(''unlogged'')',
	'outbox_capture(''pg_class'')',
	'outbox_capture(''idemq.outbox'')',
	'outbox_capture(''idemq.processed'')',
	'outbox_capture(''idemq.outbox_permanent'')',
	'outbox_capture(''keyless'')',
	'outbox_uncapture(NULL)',
	'outbox_uncapture(0)',
	'outbox_uncapture(''v'')',
	'outbox_uncapture(''pg_class'')',
	'outbox_uncapture(''idemq.outbox'')']);
SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgfoid = 'idemq._capture'::regproc ORDER BY 1, 2;
SELECT outbox_uncapture('unlogged');

-- the other arguments
SELECT * FROM attempts(ARRAY[
	'outbox_capture(''t'', '''')',
	'outbox_capture(''t'', key_columns => ''{}'')',
	'outbox_capture(''t'', key_columns => ''{NULL}'')',
	'outbox_capture(''t'', key_columns => ''{{id,a}}'')',
	'outbox_capture(''t'', key_columns => ''{nothing}'')',
	'outbox_capture(''t'', key_columns => ''{id,id}'')',
	'outbox_capture(''t'', key_columns => ''{ctid}'')',
	'outbox_capture(''t'', key_columns => ''{tableoid}'')',
	'outbox_capture(''t'', key_columns => ''{b}'')',
	'outbox_capture(''t'', key_columns => ''{""}'')',
	'outbox_capture(''t'', key_columns => ARRAY[repeat(''x'', 100)])',
	'outbox_capture(''t'', columns => ''{}'')',
	'outbox_capture(''t'', columns => ''{a,NULL}'')',
	'outbox_capture(''t'', columns => ''{{a}}'')',
	'outbox_capture(''t'', columns => ''{a,nothing}'')',
	'outbox_capture(''t'', columns => ''{a,B,a}'')',
	'outbox_capture(''gone'', columns => ''{x}'')',
	'outbox_capture(''gone'', columns => ''{........pg.dropped.2........}'')',
	'outbox_capture(''t'', operations => NULL)',
	'outbox_capture(''t'', operations => ''{}'')',
	'outbox_capture(''t'', operations => ''{NULL}'')',
	'outbox_capture(''t'', operations => ''{{insert}}'')',
	'outbox_capture(''t'', operations => ''{insert,merge}'')',
	'outbox_capture(''t'', operations => ''{INSERT}'')',
	'outbox_capture(''t'', operations => ''{""}'')',
	'outbox_capture(''t'', with_old => NULL)']);

-- conditions
SELECT * FROM attempts(ARRAY(SELECT format('outbox_capture(''t'', operations => ''{update}'', condition => %L)', c)
	FROM unnest(ARRAY['', ' ', '-- nothing', 'true, false', 'true; true', 'true)', 'true) EXECUTE FUNCTION x() --', '(true',
		'true /* open', '''open', '"open', 'true AS x', 'true x', '*', 'NEW.*', 'true FROM t', 'true WHERE true', 'DISTINCT true', 'true ORDER BY 1',
		'true LIMIT 1', 'true FOR UPDATE', 'true GROUP BY 1', 'true HAVING true', 'true UNION SELECT true', 'SELECT true', 'x := true',
		'NEW.nothing = 1', 'a = 1', 'NEW', 'NEW.a', '1', 'NEW.a = ''x''', 'nothing(NEW.a)', '$1', 'count(*) > 1', '(SELECT true)',
		'EXISTS (SELECT FROM t)', 'generate_series(1, 2) > 1', 'other.a = 1', 'NEW.a = 1 AND']) WITH ORDINALITY AS u (c, n) ORDER BY n));
SELECT * FROM attempts(ARRAY[
	'outbox_capture(''t'', condition => ''NEW.a = 1'')',
	'outbox_capture(''t'', condition => ''OLD.a = 1'')',
	'outbox_capture(''t'', operations => ''{insert,update}'', condition => ''OLD.a = 1'')',
	'outbox_capture(''t'', operations => ''{insert}'', condition => ''NEW.a = 1 OR coalesce(OLD.a = 2, true)'')',
	'outbox_capture(''t'', operations => ''{update,delete}'', condition => ''NEW.a = 1'')',
	'outbox_capture(''t'', operations => ''{update,truncate}'', condition => ''OLD.a = 1'')',
	'outbox_capture(''t'', operations => ''{update,truncate}'', condition => ''NEW IS NOT NULL'')']);
SELECT outbox_capture('t', operations => '{update}', condition => E'NEW.a =\n  = 1');
\echo :LAST_ERROR_SQLSTATE
-- what failed has left nothing, and taken nothing away
SELECT count(*) FROM pg_trigger WHERE tgfoid = 'idemq._capture'::regproc;
SELECT outbox_capture('t');
SELECT * FROM attempts(ARRAY['outbox_capture(''t'', condition => ''nothing'', operations => ''{update}'')', 'outbox_capture(''t'', columns => ''{nothing}'')']);
SELECT tgname FROM pg_trigger WHERE tgfoid = 'idemq._capture'::regproc ORDER BY 1;
-- somebody else's trigger has our name
SELECT outbox_uncapture('t');
CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER idemq_capture_update AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION other();
SELECT * FROM attempts(ARRAY['outbox_capture(''t'')', 'outbox_uncapture(''t'')', 'outbox_capture(''t'', operations => ''{insert}'')']);
DROP TRIGGER idemq_capture_update ON t;
-- in a transaction that may not write
BEGIN READ ONLY;
SELECT outbox_capture('t');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- who may
CREATE ROLE regress_idemq_capture_admin;
CREATE ROLE "regress_idemq_capture ""o";
CREATE ROLE regress_idemq_capture_both;
CREATE ROLE regress_idemq_capture_writer;
GRANT CREATE, USAGE ON SCHEMA public TO "regress_idemq_capture ""o";
GRANT "regress_idemq_capture ""o" TO regress_idemq_capture_both;
SELECT idem_grant('regress_idemq_capture_admin', 'admin');
SELECT idem_grant('regress_idemq_capture_both', 'admin');
SET ROLE "regress_idemq_capture ""o";
CREATE TABLE owned (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE owned_1 PARTITION OF owned FOR VALUES FROM (0) TO (10);
GRANT ALL ON owned TO regress_idemq_capture_writer, regress_idemq_capture_admin;
-- an owner without admin
SELECT * FROM attempts('{outbox_capture(''owned''),outbox_uncapture(''owned'')}');
SELECT attempt('CREATE TRIGGER x AFTER INSERT ON owned FOR EACH ROW EXECUTE FUNCTION idemq._capture(''x'')');
-- an admin who does not own it
SET ROLE regress_idemq_capture_admin;
SELECT * FROM attempts('{outbox_capture(''owned''),outbox_uncapture(''owned''),outbox_capture(''pg_class''),outbox_capture(''idemq.outbox'')}');
-- both
SET ROLE regress_idemq_capture_both;
SELECT * FROM attempts('{outbox_capture(''owned'')}');
-- whoever changes the table needs no right of idemq's
SET ROLE regress_idemq_capture_writer;
INSERT INTO owned VALUES (1, 'a');
UPDATE owned SET v = 'b';
DELETE FROM owned;
SELECT attempt('SELECT outbox_emit(''x'', ''{}'')');
SELECT attempt('SELECT * FROM idemq.outbox');
SELECT attempt('SELECT idemq._capture()');
SELECT attempt('SELECT idemq._capture_owner(0, true)');
-- and the owner can still add partitions
SET ROLE "regress_idemq_capture ""o";
CREATE TABLE owned_2 PARTITION OF owned FOR VALUES FROM (10) TO (20);
CREATE TABLE owned_3 (id int PRIMARY KEY, v text);
ALTER TABLE owned ATTACH PARTITION owned_3 FOR VALUES FROM (20) TO (30);
INSERT INTO owned_3 VALUES (20, 'a');
INSERT INTO owned VALUES (10, 'a');
-- but not capture on the quiet
SELECT attempt('CREATE TRIGGER x AFTER INSERT ON owned FOR EACH ROW EXECUTE FUNCTION idemq._capture(''x'')');
RESET ROLE;
SELECT aggregatetype, aggregateid, type, payload FROM idemq.outbox ORDER BY seq;
SELECT grantee::regrole FROM pg_proc, aclexplode(proacl) WHERE oid = 'idemq._capture'::regproc AND grantee <> proowner;
SET ROLE regress_idemq_capture_both;
SELECT outbox_uncapture('owned');
RESET ROLE;
SELECT grantee::regrole FROM pg_proc, aclexplode(proacl) WHERE oid = 'idemq._capture'::regproc AND grantee <> proowner;
-- a superuser may
SELECT outbox_capture('owned');
SELECT grantee::regrole FROM pg_proc, aclexplode(proacl) WHERE oid = 'idemq._capture'::regproc AND grantee <> proowner;
DROP TABLE owned;

-- values are converted with the rights of whoever changes the table
CREATE TYPE spy AS (x int);
CREATE TABLE watched (id int PRIMARY KEY, s spy, t text);
CREATE FUNCTION spy_text(spy) RETURNS text LANGUAGE sql AS 'SELECT current_user::text';
CREATE CAST (spy AS text) WITH FUNCTION spy_text(spy);
SELECT outbox_capture('watched', key_columns => '{s}', columns => '{t}');
GRANT INSERT ON watched TO regress_idemq_capture_writer;
SET ROLE regress_idemq_capture_writer;
INSERT INTO watched VALUES (1, '(1)', 'x');
RESET ROLE;
SELECT aggregateid FROM idemq.outbox WHERE aggregatetype = 'watched';

-- DROP EXTENSION asks for the triggers
DROP EXTENSION idemq;
DROP EXTENSION idemq CASCADE;
INSERT INTO watched VALUES (2, '(1)', 'x');

\c :origin
DROP DATABASE regress_idemq_capture_errors WITH (FORCE);
DROP ROLE regress_idemq_capture_admin, regress_idemq_capture_both, "regress_idemq_capture ""o", regress_idemq_capture_writer;
