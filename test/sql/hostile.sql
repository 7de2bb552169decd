--
-- What others put in the way: shadowing objects, default privileges, triggers,
-- row security
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_hostile TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_hostile SET lc_messages = 'C';
\c regress_idemq_hostile
CREATE ROLE regress_idemq_victim;
CREATE ROLE regress_idemq_attacker;
CREATE ROLE regress_idemq_reader;
GRANT CREATE ON SCHEMA public TO regress_idemq_attacker;

-- what default privileges give away, the extension takes back
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT ON TABLES TO regress_idemq_reader;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO regress_idemq_reader;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO regress_idemq_reader;
CREATE EXTENSION idemq;
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
SELECT has_schema_privilege('regress_idemq_victim', 'idemq', 'USAGE') AS public_usage,
	has_schema_privilege('regress_idemq_victim', 'idemq', 'CREATE') AS public_create,
	has_schema_privilege('regress_idemq_reader', 'idemq', 'USAGE') AS reader_usage,
	has_schema_privilege('regress_idemq_reader', 'idemq', 'CREATE') AS reader_create;
SELECT r.role, p.oid::regprocedure AS may_call
FROM (VALUES ('regress_idemq_victim'), ('regress_idemq_reader')) AS r (role), pg_proc AS p
JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idemq'
WHERE has_function_privilege(r.role, p.oid, 'EXECUTE')
ORDER BY 1, 2::text COLLATE "C";
SELECT r.role, regexp_replace(c.relname, '_p\d{8}$', '_p...') AS may_read, count(*) > 1 AS many
FROM (VALUES ('regress_idemq_victim'), ('regress_idemq_reader')) AS r (role), pg_class AS c
WHERE c.relnamespace = 'idemq'::regnamespace AND c.relkind IN ('r', 'p', 'v')
	AND (has_any_column_privilege(r.role, c.oid, 'SELECT') OR has_any_column_privilege(r.role, c.oid, 'INSERT'))
GROUP BY 1, 2 ORDER BY 1, 2;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC, regress_idemq_reader;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM regress_idemq_reader;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM PUBLIC, regress_idemq_reader;
DROP EXTENSION idemq;
CREATE EXTENSION idemq;
SELECT idem_grant('regress_idemq_victim', 'claim');
SELECT idem_grant('regress_idemq_victim', 'monitor');

-- an attacker's functions and operators, before pg_catalog in the search_path
SET ROLE regress_idemq_attacker;
CREATE FUNCTION public.digest(scope text, key text) RETURNS uuid LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'digest called'; END $$;
CREATE FUNCTION public.trap(text, text) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'operator called by %', current_user; END $$;
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.trap);
CREATE OPERATOR public.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = public.trap);
CREATE FUNCTION public.trap_oid(oid, oid) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'operator called by %', current_user; END $$;
CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = public.trap_oid);
CREATE FUNCTION public.trap_uuid(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'operator called by %', current_user; END $$;
CREATE OPERATOR public.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = public.trap_uuid);
CREATE FUNCTION public.trap_text(text, text) RETURNS text LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'operator called by %', current_user; END $$;
CREATE OPERATOR public.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = public.trap_text);
CREATE FUNCTION public.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'format called by %', current_user; END $$;
CREATE FUNCTION public.octet_length(text) RETURNS integer LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'octet_length called by %', current_user; END $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'clock_timestamp called by %', current_user; END $$;
CREATE FUNCTION public.round(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'round called by %', current_user; END $$;
CREATE FUNCTION public.pg_total_relation_size(regclass) RETURNS bigint LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'pg_total_relation_size called by %', current_user; END $$;
CREATE TABLE public.pg_roles (rolname name, oid oid);
CREATE TABLE public.pg_class (oid oid);
CREATE TABLE public.processed (scope text, key text, claimed_at timestamptz, leaf timestamptz);
CREATE TABLE public.grants (role text, capability text, object text);
INSERT INTO public.grants VALUES ('regress_idemq_attacker', 'admin');
CREATE DOMAIN public.text AS pg_catalog.text CHECK (VALUE IS NULL);
CREATE DOMAIN public.uuid AS pg_catalog.text CHECK (VALUE IS NULL);
CREATE TYPE public.regrole AS ENUM ('nobody');
RESET ROLE;
-- and temporary ones
CREATE TEMP TABLE processed (scope pg_catalog.text, key pg_catalog.text);
CREATE TEMP TABLE processed_permanent (scope pg_catalog.text);
CREATE TEMP TABLE clock (high_water timestamptz);
CREATE TEMP TABLE grants (role pg_catalog.text, capability pg_catalog.text, object pg_catalog.text);
INSERT INTO grants VALUES ('regress_idemq_attacker', 'admin');
CREATE TEMP VIEW pg_proc AS SELECT 0 AS oid;
GRANT ALL ON processed, processed_permanent, clock, grants TO PUBLIC;

SET search_path = pg_temp, public, pg_catalog, idemq;
SELECT idem_claim('a'), idem_claim('a');
SELECT idem_try_claim('a'), idem_claim_many('{a,b}'), idem_seen('b') IS NOT NULL AS seen, idem_forget('b');
SELECT idem_key('a', 'b'), length(idem_fingerprint('{"a": 1}', 'a'));
SELECT idem_grant('regress_idemq_attacker', 'claim', 'own');
SELECT idem_grant('regress_idemq_attacker', 'claim', 'own');
SET ROLE regress_idemq_attacker;
SELECT idem_claim('b', 'own');
SELECT idem_claim('b', 'other');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('a');
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_idemq_victim;
SELECT idem_claim('c'), idem_claim('c');
SELECT count(*) OPERATOR(pg_catalog.>) 5 AS checks FROM idem_status();
SELECT count(*) OPERATOR(pg_catalog.>) 0 AS partitions FROM idemq.partitions;
SELECT count(*) OPERATOR(pg_catalog.>=) 0 AS scopes FROM idemq.stats;
RESET ROLE;
SELECT idem_revoke('regress_idemq_attacker', 'claim', 'own');
SET client_min_messages = warning;
CALL idem_maintain();
RESET client_min_messages;
SELECT idemq.accept_clock() IS NOT NULL AS accepted;
SELECT count(*) FROM pg_temp.processed;
SELECT count(*) FROM public.processed;
-- by plain SQL: the index calls ours
INSERT INTO idemq.processed VALUES ('', 'd', now(), '-infinity');
SELECT idem_claim('d');
RESET search_path;
SELECT key FROM idemq.processed WHERE scope OPERATOR(pg_catalog.=) '' ORDER BY key;
-- a copy of the extension made with all of that around, and with operators that
-- fit the expressions in its views better than those of pg_catalog do
DROP EXTENSION idemq;
SET ROLE regress_idemq_attacker;
CREATE FUNCTION public.trap_regclass(oid, regclass) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'operator called by %', current_user; END $$;
CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = public.trap_regclass);
CREATE FUNCTION public.trap_interval(bigint, interval) RETURNS interval LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'operator called by %', current_user; END $$;
CREATE OPERATOR public.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = public.trap_interval);
CREATE FUNCTION public.trap_share(numeric, bigint) RETURNS numeric LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'operator called by %', current_user; END $$;
CREATE OPERATOR public./ (LEFTARG = numeric, RIGHTARG = bigint, FUNCTION = public.trap_share);
RESET ROLE;
SET search_path = public, pg_catalog;
CREATE EXTENSION idemq;
SELECT idem_claim('a'), idem_claim('a');
SET client_min_messages = warning;
CALL idem_maintain();
RESET client_min_messages;
SELECT idem_claim('a'), idem_claim('b');
SELECT count(bytes) OPERATOR(pg_catalog.>) 0 AS partitions FROM idemq.partitions;
SELECT count(wait_time) OPERATOR(pg_catalog.>=) count(duplicate_share) AS stats FROM idemq.stats;
RESET search_path;
-- none of its objects needs one that is not its own or the server's
SELECT DISTINCT c.oid::regclass AS view, pg_describe_object(d.refclassid, d.refobjid, 0) AS needs
FROM pg_catalog.pg_rewrite AS r
JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) r.ev_class
JOIN pg_catalog.pg_depend AS d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass::oid AND d.objid OPERATOR(pg_catalog.=) r.oid
WHERE c.relnamespace OPERATOR(pg_catalog.=) 'idemq'::regnamespace::oid
	AND (d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass::oid OR d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::oid)
	AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS e WHERE e.classid OPERATOR(pg_catalog.=) d.refclassid AND e.objid OPERATOR(pg_catalog.=) d.refobjid AND e.deptype OPERATOR(pg_catalog.=) 'e')
ORDER BY 1, 2;
SET ROLE regress_idemq_attacker;
DROP OPERATOR public.= (text, text), public.<> (text, text), public.= (oid, oid), public.= (uuid, uuid), public.|| (text, text),
	public.= (oid, regclass), public.* (bigint, interval), public./ (numeric, bigint);
DROP TABLE public.pg_roles, public.pg_class, public.processed, public.grants;
DROP DOMAIN public.text, public.uuid;
DROP TYPE public.regrole;
DROP FUNCTION public.digest(pg_catalog.text, pg_catalog.text);
RESET ROLE;
DISCARD TEMP;

-- a user's trigger on the tables: plain SQL fires it, a claim does not
CREATE TABLE fired (operation text, who name);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO public.fired VALUES (TG_OP, current_user); RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER note BEFORE INSERT OR DELETE ON idemq.processed FOR EACH ROW EXECUTE FUNCTION note();
SELECT idem_claim('trigger'), idem_claim('trigger'), idem_forget('trigger'), idem_claim('trigger');
SELECT count(*) FROM fired;
INSERT INTO idemq.processed VALUES ('', 'by hand', now(), '-infinity');
SELECT idem_claim('by hand');
SELECT operation, count(*) FROM fired GROUP BY 1;
-- partitions that are made afterwards inherit it and are made all the same
SET idemq.premake = 6;
SET client_min_messages = warning;
CALL idem_maintain();
RESET client_min_messages;
RESET idemq.premake;
SELECT idem_claim('trigger 2'), idem_claim('trigger 2');
SELECT operation, count(*) FROM fired GROUP BY 1;
DROP TRIGGER note ON idemq.processed;
-- one that refuses everything
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER refuse BEFORE INSERT ON idemq.processed FOR EACH ROW EXECUTE FUNCTION refuse();
SELECT idem_claim('refused'), idem_claim('refused');
DROP TRIGGER refuse ON idemq.processed;

-- row security on the tables does not concern claims, which are allowed by function
ALTER TABLE idemq.processed ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq.processed_permanent ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq.processed_permanent FORCE ROW LEVEL SECURITY;
CREATE POLICY none ON idemq.processed USING (false) WITH CHECK (false);
SET ROLE regress_idemq_victim;
SELECT idem_claim('rls');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT idem_grant('regress_idemq_victim', 'claim');
SET ROLE regress_idemq_victim;
SELECT idem_claim('rls'), idem_claim('rls'), idem_seen('rls') IS NOT NULL AS seen;
RESET ROLE;
ALTER TABLE idemq.grants ENABLE ROW LEVEL SECURITY;
ALTER TABLE idemq.grants FORCE ROW LEVEL SECURITY;
SET ROLE regress_idemq_victim;
SELECT idem_claim('rls 2'), idem_claim('rls 2');
RESET ROLE;

-- a rule
CREATE RULE nothing AS ON INSERT TO idemq.processed DO INSTEAD NOTHING;
SELECT idem_claim('rule'), idem_claim('rule');
DROP RULE nothing ON idemq.processed;

-- a function cannot be told to be a trigger of somebody else's table, nor be called as one
CREATE TABLE mine (a integer);
CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION idem_claim('a');
\echo :LAST_ERROR_SQLSTATE

\c :origin
DROP DATABASE regress_idemq_hostile WITH (FORCE);
DROP ROLE regress_idemq_victim, regress_idemq_attacker, regress_idemq_reader;
