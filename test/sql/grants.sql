--
-- idem_grant and idem_revoke
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_grants TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_grants SET lc_messages = 'C';
\c regress_idemq_grants
CREATE EXTENSION idemq;
CREATE ROLE regress_idemq_a;
CREATE ROLE regress_idemq_b;
CREATE ROLE regress_idemq_group;

-- what became of a statement that a role ran
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
-- the functions of the extension that a role may call
CREATE FUNCTION may_call(role text) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(p.proname, ' ' ORDER BY p.proname COLLATE "C"), '(nothing)')
	FROM pg_proc AS p
	JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idemq'
	WHERE has_function_privilege(role, p.oid, 'EXECUTE')
$$;

-- granted, again, taken back, again
SELECT may_call('regress_idemq_a');
SELECT idem_grant('regress_idemq_a', 'claim');
SELECT may_call('regress_idemq_a');
SELECT idem_grant('regress_idemq_a', 'claim');
SELECT * FROM idemq.grants;
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''a1'')'),
	attempt_as('regress_idemq_a', 'SELECT idem_claim(''a1'', ''any'')'),
	attempt_as('regress_idemq_b', 'SELECT idem_claim(''a1'')');
SELECT idem_revoke('regress_idemq_a', 'claim');
SELECT may_call('regress_idemq_a'), attempt_as('regress_idemq_a', 'SELECT idem_claim(''a2'')');
SELECT idem_revoke('regress_idemq_a', 'claim');
SELECT * FROM idemq.grants;

-- named arguments, and the hint in an error
SELECT idem_grant(capability => 'claim', role => 'regress_idemq_a', object => 'billing');
SELECT may_call('regress_idemq_a');
SET ROLE regress_idemq_a;
SELECT idem_claim('s1', 'billing'), idem_claim('s1', 'billing');
SELECT idem_claim('s1', 'it''s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('s1');
\echo :LAST_ERROR_SQLSTATE
SET idemq.scope = 'billing';
SELECT idem_claim('s2');
RESET idemq.scope;
RESET ROLE;

-- one scope alone: bytes, not patterns
SELECT v.scope, attempt_as('regress_idemq_a', format('SELECT idem_claim(''s3'', %L)', v.scope))
FROM (VALUES ('billing'), ('Billing'), ('billing '), ('billin'), ('billing2'), ('%'), (''), ('*')) AS v (scope);
SELECT v.call, attempt_as('regress_idemq_a', 'SELECT ' || v.call) FROM (VALUES
	('idem_try_claim(''s4'', ''billing'')'), ('idem_try_claim(''s4'', ''mail'')'),
	('idem_claim_many(''{s5}'', ''billing'')'), ('idem_claim_many(''{s5}'', ''mail'')'), ('idem_claim_many(''{}'', ''mail'')'),
	('idem_seen(''s6'', ''billing'')'), ('idem_seen(''s6'', ''mail'')'),
	('idem_forget(''s1'', ''billing'')'), ('idem_key(''a'', ''b'')'), ('length(idem_fingerprint(''1''))')) AS v (call);

-- several scopes, and the empty one, which is a scope like others
SELECT idem_grant('regress_idemq_a', 'claim', 'mail'), idem_grant('regress_idemq_a', 'claim', '');
SELECT idem_grant('regress_idemq_a', 'claim', 'mail');
SELECT role, capability, object, object IS NULL AS everything FROM idemq.grants ORDER BY object;
SELECT v.scope, attempt_as('regress_idemq_a', format('SELECT idem_claim(''s7'', %L)', v.scope))
FROM (VALUES ('billing'), ('mail'), (''), (NULL), ('other')) AS v (scope);
SELECT idem_revoke('regress_idemq_a', 'claim', 'mail');
SELECT idem_revoke('regress_idemq_a', 'claim', 'never');
SELECT idem_revoke('regress_idemq_a', 'claim');
SELECT v.scope, attempt_as('regress_idemq_a', format('SELECT idem_claim(''s8'', %L)', v.scope))
FROM (VALUES ('billing'), ('mail'), ('')) AS v (scope);
-- with all of them, then again with some alone
SELECT idem_grant('regress_idemq_a', 'claim');
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''s9'', ''mail'')');
SELECT idem_revoke('regress_idemq_a', 'claim');
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''s9'', ''billing'')'),
	attempt_as('regress_idemq_a', 'SELECT idem_claim(''s10'', ''mail'')');
SELECT idem_revoke('regress_idemq_a', 'claim', 'billing'), idem_revoke('regress_idemq_a', 'claim', '');
SELECT may_call('regress_idemq_a'), count(*) FROM idemq.grants;

-- what two capabilities share stays until both are gone
SELECT idem_grant('regress_idemq_a', 'claim'), idem_grant('regress_idemq_a', 'emit'), idem_grant('regress_idemq_a', 'monitor');
SELECT may_call('regress_idemq_a');
SELECT idem_revoke('regress_idemq_a', 'claim');
SELECT may_call('regress_idemq_a'), attempt_as('regress_idemq_a', 'SELECT idem_key(''a'', ''b'')'),
	attempt_as('regress_idemq_a', 'SELECT count(*) > 0 FROM idemq.partitions');
SELECT idem_revoke('regress_idemq_a', 'emit');
SELECT may_call('regress_idemq_a');
SELECT idem_grant('regress_idemq_a', 'admin');
SELECT idem_revoke('regress_idemq_a', 'admin');
SELECT may_call('regress_idemq_a'), attempt_as('regress_idemq_a', 'SELECT count(*) > 0 FROM idemq.partitions');
SELECT idem_revoke('regress_idemq_a', 'monitor');
SELECT may_call('regress_idemq_a'), has_schema_privilege('regress_idemq_a', 'idemq', 'USAGE') AS schema,
	has_table_privilege('regress_idemq_a', 'idemq.stats', 'SELECT') AS stats;

-- a grant mends what somebody took away by hand
SELECT idem_grant('regress_idemq_a', 'claim');
REVOKE EXECUTE ON FUNCTION idem_claim(text, text) FROM regress_idemq_a;
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''h1'')');
SELECT idem_grant('regress_idemq_a', 'claim');
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''h1'')');
-- EXECUTE alone does not open a scope
GRANT EXECUTE ON FUNCTION idem_claim(text, text) TO regress_idemq_b;
SELECT attempt_as('regress_idemq_b', 'SELECT idem_claim(''h2'')');
REVOKE EXECUTE ON FUNCTION idem_claim(text, text) FROM regress_idemq_b;
SELECT idem_revoke('regress_idemq_a', 'claim');

-- a session that has looked up its rights hears of changes at once
SELECT idem_grant('regress_idemq_a', 'claim');
SET ROLE regress_idemq_a;
SELECT idem_claim('c1', 'x'), idem_claim('c1', 'y');
RESET ROLE;
SELECT idem_grant('regress_idemq_a', 'claim', 'x'), idem_revoke('regress_idemq_a', 'claim');
SET ROLE regress_idemq_a;
SELECT idem_claim('c2', 'x');
SELECT idem_claim('c2', 'y');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT idem_grant('regress_idemq_a', 'claim', 'y'), idem_revoke('regress_idemq_a', 'claim', 'x');
SET ROLE regress_idemq_a;
SELECT idem_claim('c3', 'y');
SELECT idem_claim('c3', 'x');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- also when it is taken back, or was never committed
BEGIN;
SELECT idem_revoke('regress_idemq_a', 'claim', 'y'), idem_grant('regress_idemq_a', 'claim', 'z');
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c4'', ''y'')'),
	attempt_as('regress_idemq_a', 'SELECT idem_claim(''c4'', ''z'')');
SAVEPOINT s;
SELECT idem_grant('regress_idemq_a', 'claim', 'y');
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c5'', ''y'')');
ROLLBACK TO s;
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c6'', ''y'')');
ROLLBACK;
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c7'', ''y'')'),
	attempt_as('regress_idemq_a', 'SELECT idem_claim(''c7'', ''z'')');
-- and when the table is written by hand, as a restore does
INSERT INTO idemq.grants VALUES ('regress_idemq_a', 'claim', 'z');
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c8'', ''z'')');
UPDATE idemq.grants SET object = 'zz' WHERE object = 'z';
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c9'', ''z'')'),
	attempt_as('regress_idemq_a', 'SELECT idem_claim(''c9'', ''zz'')');
TRUNCATE idemq.grants;
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c10'', ''y'')');
COPY idemq.grants FROM stdin;
regress_idemq_a	claim	y
\.
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c10'', ''y'')');
DELETE FROM idemq.grants;
SELECT attempt_as('regress_idemq_a', 'SELECT idem_claim(''c11'', ''y'')');
SELECT idem_revoke('regress_idemq_a', 'claim');
SELECT may_call('regress_idemq_a');

-- membership: inherited, or by SET ROLE
SELECT idem_grant('regress_idemq_group', 'claim', 'team');
CREATE ROLE regress_idemq_inherits IN ROLE regress_idemq_group;
CREATE ROLE regress_idemq_sets NOINHERIT IN ROLE regress_idemq_group;
SELECT attempt_as('regress_idemq_inherits', 'SELECT idem_claim(''g1'', ''team'')'),
	attempt_as('regress_idemq_inherits', 'SELECT idem_claim(''g1'', ''own'')');
SELECT attempt_as('regress_idemq_sets', 'SELECT idem_claim(''g2'', ''team'')');
SELECT attempt_as('regress_idemq_group', 'SELECT idem_claim(''g2'', ''team'')');
SELECT idem_grant('regress_idemq_inherits', 'claim', 'own'), idem_grant('regress_idemq_sets', 'claim', 'own');
SELECT r.role, s.scope, attempt_as(r.role, format('SELECT idem_claim(%L, %L)', 'g3' || r.role, s.scope))
FROM (VALUES ('regress_idemq_inherits'), ('regress_idemq_sets'), ('regress_idemq_group')) AS r (role),
	(VALUES ('team'), ('own')) AS s (scope);
-- as a real session would do it
SET SESSION AUTHORIZATION regress_idemq_sets;
SELECT idem_claim('g4', 'own');
SELECT idem_claim('g4', 'team');
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_idemq_group;
SELECT idem_claim('g4', 'team');
SELECT idem_claim('g5', 'own');
\echo :LAST_ERROR_SQLSTATE
RESET SESSION AUTHORIZATION;
-- a change of membership is heard of
SET ROLE regress_idemq_inherits;
SELECT idem_claim('g6', 'team');
RESET ROLE;
REVOKE regress_idemq_group FROM regress_idemq_inherits;
SET ROLE regress_idemq_inherits;
SELECT idem_claim('g7', 'team');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('g7', 'own');
RESET ROLE;
GRANT regress_idemq_group TO regress_idemq_inherits;
SELECT attempt_as('regress_idemq_inherits', 'SELECT idem_claim(''g8'', ''team'')');

-- rights are those of current_user: a SECURITY DEFINER function lends its owner's
CREATE FUNCTION claim_for_team(key text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
SET search_path = public, pg_temp AS 'SELECT idem_claim(key, ''team'')';
ALTER FUNCTION claim_for_team(text) OWNER TO regress_idemq_group;
SELECT attempt_as('regress_idemq_b', 'SELECT claim_for_team(''d1'')'),
	attempt_as('regress_idemq_b', 'SELECT idem_claim(''d1'', ''team'')');

-- a role's name counts: after a rename the grant is to be made again
SELECT idem_grant('regress_idemq_b', 'claim');
SELECT attempt_as('regress_idemq_b', 'SELECT idem_claim(''n1'')');
ALTER ROLE regress_idemq_b RENAME TO regress_idemq_c;
SELECT attempt_as('regress_idemq_c', 'SELECT idem_claim(''n2'')');
SELECT idem_grant('regress_idemq_c', 'claim');
SELECT attempt_as('regress_idemq_c', 'SELECT idem_claim(''n3'')');
-- whoever gets the old name gets nothing with it
CREATE ROLE regress_idemq_b;
SELECT may_call('regress_idemq_b'), attempt_as('regress_idemq_b', 'SELECT idem_claim(''n4'')');
SELECT idem_grant('regress_idemq_b', 'claim', 'little');
SELECT attempt_as('regress_idemq_b', 'SELECT idem_claim(''n5'', ''little'')'),
	attempt_as('regress_idemq_b', 'SELECT idem_claim(''n5'', ''much'')');
SELECT * FROM idemq.grants WHERE role IN ('regress_idemq_b', 'regress_idemq_c') ORDER BY 1, 2, 3;
SELECT idem_revoke('regress_idemq_b', 'claim', 'little'), idem_revoke('regress_idemq_c', 'claim');

-- nor does a new role of the name of one that was dropped
SELECT idem_grant('regress_idemq_b', 'admin'), idem_grant('regress_idemq_b', 'claim', 'old');
DROP OWNED BY regress_idemq_b;
DROP ROLE regress_idemq_b;
SELECT count(*) AS left_over FROM idemq.grants WHERE role = 'regress_idemq_b';
CREATE ROLE regress_idemq_b;
SELECT may_call('regress_idemq_b');
-- nor its members
CREATE ROLE regress_idemq_member IN ROLE regress_idemq_b;
SELECT idem_grant('regress_idemq_member', 'claim', 'own');
SELECT attempt_as('regress_idemq_member', 'SELECT idem_claim(''r0'', ''own'')'),
	attempt_as('regress_idemq_member', 'SELECT idem_claim(''r0'', ''old'')'),
	attempt_as('regress_idemq_member', 'SELECT idem_claim(''r0'', ''any'')');
SELECT idem_grant('regress_idemq_b', 'claim', 'new');
SELECT * FROM idemq.grants WHERE role = 'regress_idemq_b';
SELECT attempt_as('regress_idemq_b', 'SELECT idem_claim(''r1'', ''new'')'),
	attempt_as('regress_idemq_b', 'SELECT idem_claim(''r1'', ''old'')');

-- names that want quotes
CREATE ROLE "regress idemq ""odd'; DROP TABLE idemq.grants; --";
SELECT idem_grant('"regress idemq ""odd''; DROP TABLE idemq.grants; --"', 'claim', 'o''dd; --');
SELECT idem_grant('"regress idemq ""odd''; DROP TABLE idemq.grants; --"', 'monitor');
SELECT attempt_as('regress idemq "odd''; DROP TABLE idemq.grants; --', 'SELECT idem_claim(''q1'', ''o''''dd; --'')'),
	attempt_as('regress idemq "odd''; DROP TABLE idemq.grants; --', 'SELECT idem_claim(''q1'', ''odd'')');
SELECT idem_revoke('"regress idemq ""odd''; DROP TABLE idemq.grants; --"', 'claim', 'o''dd; --');
SELECT idem_revoke('"regress idemq ""odd''; DROP TABLE idemq.grants; --"', 'monitor');
SELECT may_call('regress idemq "odd''; DROP TABLE idemq.grants; --');

-- superusers always may
CREATE ROLE regress_idemq_super SUPERUSER;
SELECT attempt_as('regress_idemq_super', 'SELECT idem_claim(''su'', ''whatever'')'),
	attempt_as('regress_idemq_super', 'SELECT idem_forget(''su'', ''whatever'')');

\c :origin
DROP DATABASE regress_idemq_grants WITH (FORCE);
DROP ROLE regress_idemq_a, regress_idemq_b, regress_idemq_c, regress_idemq_group,
	regress_idemq_inherits, regress_idemq_sets, regress_idemq_member, regress_idemq_super,
	"regress idemq ""odd'; DROP TABLE idemq.grants; --";
