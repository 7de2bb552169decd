--
-- Who may consume: for all consumers, for one, and what nobody but an administrator may
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_consume_rights TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_consume_rights SET lc_messages = 'C';
\c regress_idemq_consume_rights
-- no worker moves what is looked at here
UPDATE pg_database SET datallowconn = false WHERE datname = current_database();
SET timezone = 'UTC';
CREATE EXTENSION idemq;
CREATE ROLE regress_idemq_all;
CREATE ROLE regress_idemq_bills;
CREATE ROLE regress_idemq_mails;
CREATE ROLE regress_idemq_emits;
CREATE ROLE regress_idemq_watches;
CREATE ROLE regress_idemq_rules;
CREATE ROLE regress_idemq_none;
CREATE ROLE regress_idemq_member IN ROLE regress_idemq_bills;
SELECT outbox_subscribe('bills'), outbox_subscribe('mails');
SELECT idem_grant('regress_idemq_all', 'consume'), idem_grant('regress_idemq_bills', 'consume', 'bills'), idem_grant('regress_idemq_mails', 'consume', 'mails'),
	idem_grant('regress_idemq_emits', 'emit'), idem_grant('regress_idemq_watches', 'monitor'), idem_grant('regress_idemq_rules', 'admin');
\pset format unaligned
\pset tuples_only on
CREATE FUNCTION attempt_as(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	PERFORM set_config('role', role, true);
	EXECUTE statement INTO answer;
	PERFORM set_config('role', 'none', true);
	RETURN coalesce(answer, '(null)');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || regexp_replace(SQLERRM, '\d{9,}', '...', 'g');
END
$$;
CREATE TABLE roles (role text);
INSERT INTO roles VALUES ('regress_idemq_none'), ('regress_idemq_all'), ('regress_idemq_bills'), ('regress_idemq_mails'), ('regress_idemq_member'),
	('regress_idemq_emits'), ('regress_idemq_watches'), ('regress_idemq_rules');
CREATE FUNCTION each(statement text) RETURNS TABLE (role text, answer text) LANGUAGE sql AS $$ SELECT r.role, attempt_as(r.role, statement) FROM roles AS r $$;

-- arguments of idem_grant
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, nullif(hint, ''));
END
$$;
SELECT attempt('SELECT idem_grant(''regress_idemq_none'', ''consume'', ''nobody'')');
SELECT attempt('SELECT idem_revoke(''regress_idemq_none'', ''consume'', ''nobody'')');
SELECT attempt('SELECT idem_grant(''regress_idemq_none'', ''emit'', ''bills'')');

-- fetch
SELECT outbox_emit('order', '{}', 'o', 'o1') IS NOT NULL;
SELECT * FROM each('SELECT count(*) >= 0 FROM outbox_fetch(''bills'', 10, ''1ms'')');
SELECT * FROM each('SELECT count(*) FROM outbox_fetch(''nobody'')');
-- a lease is its role's own: neither another consumer's, nor another role with the same right, nor an administrator
SELECT outbox_seek('bills', now()), outbox_emit('order', '{}', 'o', 'o2') IS NOT NULL;
SET ROLE regress_idemq_bills;
SELECT token, id FROM outbox_fetch('bills') \gset
RESET ROLE;
SELECT * FROM each(format('SELECT outbox_ack(%s, ''{}'')', :token));
SELECT * FROM each(format('SELECT outbox_extend(%s, ''1 minute'') > now()', :token));
SELECT * FROM each(format('SELECT outbox_release(%s, ''{}'')', :token));
SELECT * FROM each(format('SELECT action FROM outbox_nack(%s, ''00000000-0000-0000-0000-000000000000'', ''x'')', :token));
SELECT attempt(format('SELECT outbox_ack(%s, ''{}'')', :token)) ~ '^42501: the lease of token \d+ is another role''s$';
-- a right that is taken away ends the lease's use
SELECT idem_revoke('regress_idemq_bills', 'consume', 'bills');
SELECT attempt_as('regress_idemq_bills', format('SELECT outbox_ack(%s)', :token));
SELECT idem_grant('regress_idemq_bills', 'consume', 'bills');
SELECT attempt_as('regress_idemq_bills', format('SELECT outbox_ack(%s)', :token));
-- to several
SELECT idem_grant('regress_idemq_bills', 'consume', 'mails');
SELECT attempt_as('regress_idemq_bills', 'SELECT count(*) > 0 FROM outbox_fetch(''mails'')'), attempt_as('regress_idemq_bills', 'SELECT count(*) FROM outbox_fetch(''bills'')');
SELECT idem_revoke('regress_idemq_bills', 'consume', 'mails');
SELECT attempt_as('regress_idemq_bills', 'SELECT count(*) FROM outbox_fetch(''mails'')'), attempt_as('regress_idemq_bills', 'SELECT count(*) FROM outbox_fetch(''bills'')');

-- wait
SET ROLE regress_idemq_none;
CALL outbox_wait('bills', '1ms');
SET ROLE regress_idemq_mails;
CALL outbox_wait('bills', '1ms');
SET ROLE regress_idemq_emits;
CALL outbox_wait('bills', '1ms');
SET ROLE regress_idemq_member;
CALL outbox_wait('bills', '1ms');
SET ROLE regress_idemq_all;
CALL outbox_wait('bills', '1ms');
RESET ROLE;

-- who consumes cannot emit, look into the log, or administer
SELECT * FROM each('SELECT outbox_emit(''order'', ''{}'') IS NOT NULL');
SELECT * FROM each('SELECT outbox_emit_bytes(''order'', '''') IS NOT NULL');
SELECT * FROM each('SELECT count(*) FROM idemq.outbox');
SELECT call, role, answer FROM (VALUES ('outbox_subscribe(''new'')'), ('outbox_alter(''new'', max_attempts => 3)'), ('outbox_seek(''new'', now())'), ('outbox_adopt(''new'', ''skip'')'), ('outbox_unsubscribe(''new'')'),
	('dead_letter_replay(''mails'')'), ('dead_letter_discard(''mails'')')) AS c (call), LATERAL each('SELECT ' || call);
-- the tables behind, for nobody but to look at what one may
SELECT r.name, e.role FROM (SELECT c.oid::regclass::text AS name FROM pg_class AS c WHERE c.relnamespace = 'idemq'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
	AND c.relname !~ '^(processed|clock|grants|_filter|partitions|stats)') AS r, each(format('SELECT count(*) FROM %s', r.name)) AS e
WHERE e.answer !~ '^42501' ORDER BY r.name COLLATE "C", e.role COLLATE "C";
SELECT r.name, p.privilege, o.role
FROM (SELECT c.oid, c.oid::regclass::text AS name FROM pg_class AS c WHERE c.relnamespace = 'idemq'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')) AS r,
	unnest('{INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS p (privilege), roles AS o
WHERE has_table_privilege(o.role, r.oid, p.privilege);

-- a hostile search_path, and operators of one's own, do not get into it
CREATE SCHEMA hostile AUTHORIZATION regress_idemq_all;
GRANT CREATE ON SCHEMA public TO regress_idemq_all;
SET ROLE regress_idemq_all;
CREATE FUNCTION hostile.evil(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil as %', current_user; RETURN true; END $$;
CREATE OPERATOR hostile.= (FUNCTION = hostile.evil, LEFTARG = int, RIGHTARG = int);
CREATE FUNCTION hostile.max(bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil as %', current_user; RETURN 1; END $$;
CREATE TEMP TABLE subscriptions (consumer text);
SET search_path = hostile, pg_temp, pg_catalog, public, idemq;
SET plan_cache_mode = force_custom_plan;
SELECT count(*) FROM public.outbox_fetch('mails');
SELECT count(*) FROM public.outbox_fetch('bills');
SELECT current_user, current_setting('search_path'), current_setting('enable_seqscan'), current_setting('plan_cache_mode');
-- nor after an error
SELECT public.outbox_ack(1);
SELECT current_user, current_setting('search_path'), current_setting('enable_seqscan'), current_setting('plan_cache_mode');
RESET ROLE;
RESET search_path;
RESET plan_cache_mode;

-- what was granted for a consumer that is gone can be taken back
SELECT outbox_unsubscribe('mails');
SELECT attempt('SELECT idem_grant(''regress_idemq_none'', ''consume'', ''mails'')');
SELECT idem_revoke('regress_idemq_mails', 'consume', 'mails');
SELECT role, object FROM idemq.grants WHERE capability = 'consume' ORDER BY 1, 2;

\c :origin
DROP DATABASE regress_idemq_consume_rights WITH (FORCE);
DROP ROLE regress_idemq_all, regress_idemq_bills, regress_idemq_mails, regress_idemq_emits, regress_idemq_watches, regress_idemq_rules, regress_idemq_none, regress_idemq_member;
