/*
 * Capture: the changes of a table as events.
 *
 * outbox_capture() makes triggers, with the rights of whoever calls it.  Whoever
 * changes the table then needs no right of idemq's.
 */

CREATE FUNCTION idemq._capture()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idemq_capture'
LANGUAGE C;
COMMENT ON FUNCTION idemq._capture() IS 'trigger of captured tables; outbox_capture() makes it';

/*
 * The server asks whether somebody who adds a partition to a captured table may
 * execute the function of its triggers: owners of captured tables may.
 */
CREATE FUNCTION idemq._capture_owner(owner oid, begins boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	owner_name text;
	owns boolean;
	may boolean;
BEGIN
	SELECT r.rolname INTO owner_name FROM pg_roles AS r WHERE r.oid = owner;
	/* one at a time: two cannot change the rights of one function */
	LOCK TABLE idemq.grants IN SHARE ROW EXCLUSIVE MODE;
	owns := begins OR EXISTS (SELECT FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
		WHERE t.tgfoid = 'idemq._capture()'::regprocedure AND c.relowner = owner);
	may := EXISTS (SELECT FROM pg_proc AS p, aclexplode(p.proacl) AS a
		WHERE p.oid = 'idemq._capture()'::regprocedure AND a.grantee = owner);
	IF owns AND NOT may THEN
		EXECUTE format('GRANT EXECUTE ON FUNCTION idemq._capture() TO %I', owner_name);
	ELSIF may AND NOT owns THEN
		EXECUTE format('REVOKE EXECUTE ON FUNCTION idemq._capture() FROM %I', owner_name);
	END IF;
END
$$;
COMMENT ON FUNCTION idemq._capture_owner(oid, boolean) IS 'lets the owner of captured tables add partitions to them';

CREATE FUNCTION @extschema@.outbox_capture(target regclass, aggregatetype text DEFAULT NULL,
	key_columns text[] DEFAULT NULL, columns text[] DEFAULT NULL,
	operations text[] DEFAULT '{insert,update,delete}', condition text DEFAULT NULL,
	with_old boolean DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'outbox_capture'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_capture(regclass, text, text[], text[], text[], text, boolean) IS
'from now on changes of the table are events in the outbox, in the transactions that make them; replaces a former capture of it';

CREATE FUNCTION @extschema@.outbox_uncapture(target regclass)
RETURNS void
AS 'MODULE_PATHNAME', 'outbox_uncapture'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.outbox_uncapture(regclass) IS
'from now on changes of the table are no events';

REVOKE ALL ON FUNCTION idemq._capture(), idemq._capture_owner(oid, boolean),
	@extschema@.outbox_capture(regclass, text, text[], text[], text[], text, boolean),
	@extschema@.outbox_uncapture(regclass)
FROM PUBLIC;
