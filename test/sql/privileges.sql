--
-- Who may do what: a role with nothing, and each capability alone
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_privileges TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_privileges SET lc_messages = 'C';
\c regress_idemq_privileges
CREATE ROLE regress_idemq_nothing;
CREATE ROLE regress_idemq_claim;
CREATE ROLE regress_idemq_emit;
CREATE ROLE regress_idemq_consume;
CREATE ROLE regress_idemq_monitor;
CREATE ROLE regress_idemq_admin;
CREATE EXTENSION idemq;
-- so that there are partitions of maintenance's making
-- until it has had its effect: a round of the worker may be running
SET client_min_messages = warning;
DO $$
BEGIN
	FOR i IN 1..600 LOOP
		CALL idem_maintain();
		EXIT WHEN (SELECT count(*) > 4 FROM idemq.partitions);
		PERFORM pg_sleep(0.1);		-- sleep: polls, with a deadline
	END LOOP;
END
$$;
RESET client_min_messages;
SELECT idem_claim('secret', 'of others');
SELECT idem_grant('regress_idemq_claim', 'claim');
SELECT idem_grant('regress_idemq_emit', 'emit');
SELECT idem_grant('regress_idemq_consume', 'consume');
SELECT idem_grant('regress_idemq_monitor', 'monitor');
SELECT idem_grant('regress_idemq_admin', 'admin');

CREATE FUNCTION attempt_as(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	PERFORM set_config('role', role, true);
	EXECUTE statement INTO answer;
	PERFORM set_config('role', 'none', true);
	RETURN coalesce(answer, '(null)');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;
CREATE VIEW functions AS
SELECT p.oid, p.prokind, p.oid::regprocedure::text AS name, p.prosecdef, p.proowner,
	format('%s %s.%I(%s)', CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, n.nspname, p.proname,
		(SELECT string_agg(format(CASE p.prokind WHEN 'p' THEN '%sNULL::%s' ELSE '%s(SELECT NULL::%s)' END, CASE WHEN p.provariadic <> 0 AND o = p.pronargs THEN 'VARIADIC ' END,
			t::regtype), ', ' ORDER BY o) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, o))) AS call
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idemq'
-- what takes or gives internal cannot be called
WHERE p.prorettype <> 'internal'::regtype;
CREATE VIEW relations AS
SELECT c.oid, c.oid::regclass::text AS name, c.relkind,
	regexp_replace(c.relname, '_p\d{8}(_\d{6})?$', '_p...') AS kind
FROM pg_class AS c
WHERE c.relnamespace = 'idemq'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S');
SELECT count(*) > 15 AS functions FROM functions;
SELECT kind, relkind, count(*) > 1 AS many FROM relations GROUP BY 1, 2 ORDER BY kind COLLATE "C";

-- nothing: no function, no relation, no column, no schema
SELECT name FROM functions WHERE has_function_privilege('regress_idemq_nothing', oid, 'EXECUTE');
SELECT name FROM functions WHERE attempt_as('regress_idemq_nothing', call) NOT LIKE '42501: permission denied for %';
SELECT r.name, p.privilege
FROM relations AS r, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS p (privilege)
WHERE has_table_privilege('regress_idemq_nothing', r.oid, p.privilege);
SELECT r.name, p.privilege
FROM relations AS r, unnest('{SELECT,INSERT,UPDATE,REFERENCES}'::text[]) AS p (privilege)
WHERE has_any_column_privilege('regress_idemq_nothing', r.oid, p.privilege);
SELECT r.name, s.statement
FROM relations AS r, unnest('{SELECT count(*) FROM %s,TABLE %s,INSERT INTO %s DEFAULT VALUES,DELETE FROM %s,TRUNCATE %s,LOCK TABLE %s,
	ALTER TABLE %s ADD COLUMN x integer,ALTER TABLE %s DISABLE TRIGGER ALL,DROP TABLE %s}'::text[]) AS s (statement)
WHERE attempt_as('regress_idemq_nothing', format(s.statement, r.name)) NOT LIKE '42501: %';
SELECT has_schema_privilege('regress_idemq_nothing', 'idemq', 'USAGE') AS usage,
	has_schema_privilege('regress_idemq_nothing', 'idemq', 'CREATE') AS create;

-- not even with USAGE on the schema
GRANT USAGE ON SCHEMA idemq TO regress_idemq_nothing;
SELECT name FROM functions WHERE attempt_as('regress_idemq_nothing', call) NOT LIKE '42501: permission denied for %';
SELECT name FROM relations WHERE attempt_as('regress_idemq_nothing', 'SELECT count(*) FROM ' || name) NOT LIKE '42501: %';
SELECT r.name, s.statement
FROM relations AS r, unnest('{INSERT INTO %s DEFAULT VALUES,DELETE FROM %s,TRUNCATE %s,LOCK TABLE %s,
	ALTER TABLE %s ADD COLUMN x integer,ALTER TABLE %s DISABLE TRIGGER ALL,DROP TABLE %s}'::text[]) AS s (statement)
WHERE r.relkind NOT IN ('v', 'S') AND attempt_as('regress_idemq_nothing', format(s.statement, r.name)) NOT LIKE '42501: %';
SET ROLE regress_idemq_nothing;
COPY idemq.processed_permanent TO STDOUT;
\echo :LAST_ERROR_SQLSTATE
COPY idemq.grants TO STDOUT;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
REVOKE USAGE ON SCHEMA idemq FROM regress_idemq_nothing;

-- nothing is granted to PUBLIC
SELECT f.name, a.privilege_type FROM functions AS f JOIN pg_proc AS p USING (oid),
	aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a WHERE a.grantee = 0;
SELECT r.name, a.privilege_type FROM relations AS r JOIN pg_class AS c USING (oid),
	aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS a WHERE a.grantee = 0;

-- each capability: what it is made of
SELECT r.role, string_agg(f.name, E'\n' ORDER BY f.name COLLATE "C") AS may_call
FROM (VALUES ('claim'), ('emit'), ('consume'), ('monitor'), ('admin')) AS r (role)
LEFT JOIN functions AS f ON has_function_privilege('regress_idemq_' || r.role, f.oid, 'EXECUTE') AND f.name NOT LIKE 'idemq.\_%'
GROUP BY 1 ORDER BY 1;
SELECT ro.role, r.kind, string_agg(DISTINCT p.privilege, ' ') AS privileges
FROM (VALUES ('claim'), ('emit'), ('consume'), ('monitor'), ('admin')) AS ro (role), relations AS r,
	unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS p (privilege)
WHERE has_table_privilege('regress_idemq_' || ro.role, r.oid, p.privilege)
	OR (p.privilege <> ALL ('{DELETE,TRUNCATE,TRIGGER}') AND has_any_column_privilege('regress_idemq_' || ro.role, r.oid, p.privilege))
GROUP BY 1, 2 ORDER BY 1, 2;
SELECT r.role, has_schema_privilege('regress_idemq_' || r.role, 'idemq', 'USAGE') AS usage,
	has_schema_privilege('regress_idemq_' || r.role, 'idemq', 'CREATE') AS create
FROM (VALUES ('claim'), ('emit'), ('consume'), ('monitor'), ('admin')) AS r (role);

-- claim: claims, and no more
SET ROLE regress_idemq_claim;
SELECT idem_claim('a'), idem_try_claim('a'), idem_claim_many('{a,b}'), idem_seen('b') IS NOT NULL AS seen,
	idem_key('a', 'b'), length(idem_fingerprint('1'));
SELECT idem_forget('a');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idemq.processed;
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_status();
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idemq.stats;
\echo :LAST_ERROR_SQLSTATE
CALL idem_maintain();
\echo :LAST_ERROR_SQLSTATE
SELECT idem_grant('regress_idemq_claim', 'admin');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_revoke('regress_idemq_monitor', 'monitor');
\echo :LAST_ERROR_SQLSTATE
SELECT idemq.accept_clock();
\echo :LAST_ERROR_SQLSTATE
SELECT idemq.digest('', 'a');
\echo :LAST_ERROR_SQLSTATE
CREATE TRIGGER mine BEFORE INSERT ON idemq.processed_permanent FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- monitor: looks, and no more
SET ROLE regress_idemq_monitor;
SELECT count(*) > 5 AS checks, bool_and(status IN ('ok', 'warning', 'problem')) AS known FROM idem_status();
SELECT count(*) > 1 AS partitions FROM idemq.partitions;
SELECT count(*) >= 0 AS scopes FROM idemq.stats;
SELECT count(*) FROM idemq.processed;
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM idemq.grants;
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('c');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('secret', 'of others');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- emit without the outbox: the key alone
SET ROLE regress_idemq_emit;
SELECT idem_key('a', 'b');
SELECT idem_claim('c');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- admin: everything, by the functions
SET ROLE regress_idemq_admin;
SELECT idem_claim('d'), idem_claim('d', 'any'), idem_try_claim('d'), idem_claim_many('{d,e}'), idem_seen('secret', 'of others') IS NOT NULL AS seen,
	idem_forget('d'), idem_forget('secret', 'of others');
SELECT idem_key('a', 'b'), length(idem_fingerprint('1'));
SELECT count(*) > 5 AS checks FROM idem_status();
SELECT count(*) > 1 AS partitions FROM idemq.partitions;
SELECT count(*) >= 0 AS scopes FROM idemq.stats;
-- the worker may be at it
SET client_min_messages = warning;
CALL idem_maintain();
RESET client_min_messages;
SELECT idemq.accept_clock() BETWEEN now() - interval '1 minute' AND now() + interval '1 minute' AS accepted;
SELECT idem_grant('regress_idemq_nothing', 'claim', 'one');
SELECT idem_grant('regress_idemq_nothing', 'admin');
RESET ROLE;
SET ROLE regress_idemq_nothing;
SELECT idem_claim('f', 'two'), idem_forget('f', 'two');
SELECT idem_revoke('regress_idemq_admin', 'admin');
RESET ROLE;
SET ROLE regress_idemq_admin;
SELECT idem_claim('g');
\echo :LAST_ERROR_SQLSTATE
CALL idem_maintain();
\echo :LAST_ERROR_SQLSTATE
SELECT idem_grant('regress_idemq_admin', 'admin');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- but not by hand
SET ROLE regress_idemq_nothing;
SELECT count(*) FROM idemq.processed;
\echo :LAST_ERROR_SQLSTATE
INSERT INTO idemq.grants VALUES ('regress_idemq_nothing', 'claim');
\echo :LAST_ERROR_SQLSTATE
DROP TABLE idemq.processed;
\echo :LAST_ERROR_SQLSTATE
ALTER FUNCTION idem_claim(text, text) OWNER TO regress_idemq_nothing;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- EXECUTE on maintenance is not enough
GRANT EXECUTE ON PROCEDURE idem_maintain() TO regress_idemq_monitor;
SET ROLE regress_idemq_monitor;
CALL idem_maintain();
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- nor is EXECUTE on all functions, which is granted lightly
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_idemq_monitor;
SET ROLE regress_idemq_monitor;
\set VERBOSITY sqlstate
SELECT idem_grant('regress_idemq_monitor', 'admin');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_revoke('regress_idemq_nothing', 'admin');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('h');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('secret', 'of others');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
RESET ROLE;
SELECT * FROM idemq.grants ORDER BY 1, 2, 3;

-- partitions that an administrator had made belong to the owner of the table
SELECT count(*) > 1 AS many, bool_and(c.relowner = p.relowner) AS same_owner,
	bool_and(NOT EXISTS (SELECT FROM aclexplode(c.relacl) AS a WHERE a.grantee <> c.relowner)) AS owner_only
FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
JOIN pg_class AS p ON p.oid = i.inhparent
WHERE p.oid = 'idemq.processed'::regclass;

-- functions that run with their owner's rights have a pinned search_path
SELECT f.name FROM functions AS f JOIN pg_proc AS p USING (oid)
WHERE p.prosecdef AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false);

\c :origin
DROP DATABASE regress_idemq_privileges WITH (FORCE);
DROP ROLE regress_idemq_nothing, regress_idemq_claim, regress_idemq_emit, regress_idemq_consume,
	regress_idemq_monitor, regress_idemq_admin;
