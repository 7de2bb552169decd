/* Take back what default privileges granted to others on all of that. */

DO $$
DECLARE
	item record;
BEGIN
	FOR item IN
		WITH members AS (
			SELECT d.classid, d.objid FROM pg_depend AS d
			WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
				AND d.refobjid = (SELECT e.oid FROM pg_extension AS e WHERE e.extname = 'idemq'))
		SELECT CASE p.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END AS kind,
			p.oid::regprocedure::text AS name, a.grantee
		FROM members AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid,
			aclexplode(p.proacl) AS a
		WHERE a.grantee <> p.proowner
		UNION
		SELECT 'TABLE', c.oid::regclass::text, a.grantee
		FROM members AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid,
			aclexplode(c.relacl) AS a
		WHERE a.grantee <> c.relowner
		UNION
		SELECT 'SCHEMA', n.oid::regnamespace::text, a.grantee
		FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
		WHERE n.nspname = 'idemq' AND a.grantee <> n.nspowner
	LOOP
		EXECUTE format('REVOKE ALL ON %s %s FROM %s CASCADE', item.kind, item.name,
			CASE item.grantee WHEN 0 THEN 'PUBLIC' ELSE item.grantee::regrole::text END);
	END LOOP;
END
$$;
