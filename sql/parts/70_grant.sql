/*
 * Capabilities.
 *
 * A capability is EXECUTE on some functions, SELECT on some views, and INSERT on
 * some columns; which, is in idemq._capability_objects.  PostgreSQL enforces that.  For claims in one
 * scope alone, and for maintenance, the C code reads idemq.grants in addition.
 */

CREATE TABLE idemq.grants
(
	role		text NOT NULL,
	capability	text NOT NULL,
	object		text,
	UNIQUE NULLS NOT DISTINCT (role, capability, object)
)
USING heap;
ALTER TABLE idemq.grants REPLICA IDENTITY FULL;
COMMENT ON TABLE idemq.grants IS 'who may do what; written by idem_grant() and idem_revoke()';
COMMENT ON COLUMN idemq.grants.role IS 'the role, by name';
COMMENT ON COLUMN idemq.grants.capability IS 'claim, emit, consume, monitor or admin';
COMMENT ON COLUMN idemq.grants.object IS 'the scope (claim) or the consumer (consume) alone; NULL: all of them';
REVOKE ALL ON idemq.grants FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('idemq.grants', '');

CREATE FUNCTION idemq._grants_changed()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idemq_grants_changed'
LANGUAGE C;
COMMENT ON FUNCTION idemq._grants_changed() IS 'makes sessions read idemq.grants again';
REVOKE ALL ON FUNCTION idemq._grants_changed() FROM PUBLIC;

CREATE TRIGGER grants_changed
AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idemq.grants
FOR EACH STATEMENT EXECUTE FUNCTION idemq._grants_changed();
ALTER TABLE idemq.grants ENABLE ALWAYS TRIGGER grants_changed;

/*
 * What a capability consists of: kind is FUNCTION, PROCEDURE, TABLE (to read),
 * COLUMNS (to set in new rows) or SCHEMA.
 */
CREATE FUNCTION idemq._capability_objects(capability text, OUT privilege text, OUT kind text, OUT name text)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH objects (capabilities, kind, name) AS (VALUES
		('{claim,admin}'::text[], 'FUNCTION', '@extschema@.idem_claim(text, text)'),
		('{claim,admin}', 'FUNCTION', '@extschema@.idem_try_claim(text, text)'),
		('{claim,admin}', 'FUNCTION', '@extschema@.idem_claim_many(text[], text)'),
		('{claim,admin}', 'FUNCTION', '@extschema@.idem_seen(text, text)'),
		('{claim,admin}', 'FUNCTION', '@extschema@.idem_fingerprint(jsonb, text[])'),
		('{claim,emit,admin}', 'FUNCTION', '@extschema@.idem_key(text[])'),
		('{emit,admin}', 'FUNCTION', '@extschema@.outbox_emit(text, jsonb, text, text, jsonb, timestamptz)'),
		('{emit,admin}', 'FUNCTION', '@extschema@.outbox_emit_bytes(text, bytea, text, text, jsonb, timestamptz)'),
		('{emit,admin}', 'FUNCTION', 'idemq._outbox_next()'),
		('{emit,admin}', 'FUNCTION', 'idemq._outbox_origin()'),
		('{emit,admin}', 'FUNCTION', 'idemq._outbox_leaf(timestamptz[])'),
		('{emit,admin}', 'FUNCTION', 'idemq._outbox_cause()'),
		('{emit,admin}', 'COLUMNS', 'idemq.outbox'),
		('{consume,admin}', 'FUNCTION', '@extschema@.outbox_fetch(text, int, interval)'),
		('{consume,admin}', 'FUNCTION', '@extschema@.outbox_ack(bigint, uuid[])'),
		('{consume,admin}', 'FUNCTION', '@extschema@.outbox_nack(bigint, uuid, text, interval)'),
		('{consume,admin}', 'FUNCTION', '@extschema@.outbox_release(bigint, uuid[], interval)'),
		('{consume,admin}', 'FUNCTION', '@extschema@.outbox_extend(bigint, interval)'),
		('{consume,admin}', 'PROCEDURE', '@extschema@.outbox_wait(text, interval)'),
		('{admin}', 'FUNCTION', '@extschema@.outbox_subscribe(text, text[], text, int, boolean, int, text)'),
		('{admin}', 'FUNCTION', '@extschema@.outbox_alter(text, text[], int, boolean, int, text)'),
		('{admin}', 'FUNCTION', '@extschema@.outbox_unsubscribe(text)'),
		('{admin}', 'FUNCTION', '@extschema@.outbox_seek(text, timestamptz)'),
		('{admin}', 'FUNCTION', '@extschema@.outbox_adopt(text, text)'),
		('{admin}', 'FUNCTION', '@extschema@.dead_letter_replay(text, text, text, text, timestamptz, bigint[], int)'),
		('{admin}', 'FUNCTION', '@extschema@.dead_letter_discard(text, text, text, text, timestamptz, bigint[], int)'),
		('{admin}', 'FUNCTION', '@extschema@.idem_forget(text, text)'),
		('{admin}', 'FUNCTION', '@extschema@.outbox_capture(regclass, text, text[], text[], text[], text, boolean)'),
		('{admin}', 'FUNCTION', '@extschema@.outbox_uncapture(regclass)'),
		('{admin}', 'FUNCTION', 'idemq._capture_owner(oid, boolean)'),
		('{admin}', 'FUNCTION', '@extschema@.idem_grant(regrole, text, text)'),
		('{admin}', 'FUNCTION', '@extschema@.idem_revoke(regrole, text, text)'),
		('{admin}', 'FUNCTION', 'idemq._grant(regrole, text, text)'),
		('{admin}', 'FUNCTION', 'idemq._revoke(regrole, text, text)'),
		('{admin}', 'PROCEDURE', '@extschema@.idem_maintain()'),
		('{admin}', 'FUNCTION', 'idemq.accept_clock()'),
		('{monitor,admin}', 'FUNCTION', '@extschema@.idem_status()'),
		('{emit,monitor,admin}', 'SCHEMA', 'idemq'),
		('{monitor,admin}', 'FUNCTION', 'idemq._partitions()'),
		('{monitor,admin}', 'FUNCTION', 'idemq._stats()'),
		('{monitor,admin}', 'TABLE', 'idemq.partitions'),
		('{monitor,admin}', 'TABLE', 'idemq.stats'),
		('{monitor,admin}', 'FUNCTION', 'idemq._stats_outbox()'),
		('{monitor,admin}', 'TABLE', 'idemq.stats_outbox'),
		('{monitor,admin}', 'FUNCTION', 'idemq._consumers()'),
		('{monitor,admin}', 'TABLE', 'idemq.consumers'),
		('{monitor,admin}', 'TABLE', 'idemq.parked'),
		('{monitor,admin}', 'TABLE', 'idemq.subscriptions'),
		('{admin}', 'TABLE', 'idemq.dead_letters'))
	SELECT CASE o.kind
			WHEN 'TABLE' THEN 'SELECT'
			WHEN 'COLUMNS' THEN 'INSERT (id, aggregatetype, aggregateid, type, payload, body, headers, not_before)'
			WHEN 'SCHEMA' THEN 'USAGE'
			ELSE 'EXECUTE' END,
		CASE o.kind WHEN 'COLUMNS' THEN 'TABLE' ELSE o.kind END, o.name
	FROM objects AS o WHERE $1 = ANY (o.capabilities)
$$;
COMMENT ON FUNCTION idemq._capability_objects(text) IS 'the objects that a capability is made of';
REVOKE ALL ON FUNCTION idemq._capability_objects(text) FROM PUBLIC;

/* Check the arguments of idem_grant and idem_revoke; returns the role's name. */
CREATE FUNCTION idemq._check_grant(role regrole, capability text, object text)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	role_name text;
BEGIN
	IF role IS NULL OR capability IS NULL THEN
		RAISE EXCEPTION 'role and capability must not be null'
			USING ERRCODE = 'null_value_not_allowed';
	END IF;
	SELECT r.rolname INTO role_name FROM pg_roles AS r WHERE r.oid = role;
	IF role_name IS NULL THEN
		RAISE EXCEPTION 'role % does not exist', role
			USING ERRCODE = 'undefined_object';
	END IF;
	IF capability NOT IN ('claim', 'emit', 'consume', 'monitor', 'admin') THEN
		RAISE EXCEPTION 'unknown capability "%"', capability
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Capabilities are claim, emit, consume, monitor and admin.';
	END IF;
	IF object IS NOT NULL AND capability NOT IN ('claim', 'consume') THEN
		RAISE EXCEPTION 'capability "%" is not granted for one object', capability
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Only claim (a scope) and consume (a consumer) take an object.';
	END IF;
	IF capability = 'consume' AND object IS NOT NULL
		AND NOT EXISTS (SELECT FROM idemq.subscriptions AS s WHERE s.consumer = _check_grant.object)
		/* what was granted for one that is gone can be taken back */
		AND NOT EXISTS (SELECT FROM idemq.grants AS g WHERE g.role = role_name
			AND g.capability = 'consume' AND g.object = _check_grant.object) THEN
		RAISE EXCEPTION 'consumer "%" does not exist', object
			USING ERRCODE = 'undefined_object', HINT = 'Create it with outbox_subscribe().';
	END IF;
	IF capability = 'claim' AND octet_length(object) > 255 THEN
		RAISE EXCEPTION 'scope is longer than 255 bytes'
			USING ERRCODE = 'program_limit_exceeded';
	END IF;
	RETURN role_name;
END
$$;
COMMENT ON FUNCTION idemq._check_grant(regrole, text, text) IS 'checks the arguments of idem_grant and idem_revoke';
REVOKE ALL ON FUNCTION idemq._check_grant(regrole, text, text) FROM PUBLIC;

CREATE FUNCTION idemq._grant(role regrole, capability text, object text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	role_name text := idemq._check_grant(role, capability, object);
	item record;
BEGIN
	/* one at a time, so that a grant and a revoke agree on what is left */
	LOCK TABLE idemq.grants IN SHARE ROW EXCLUSIVE MODE;

	/* rows of a role of the same name that was dropped mean nothing */
	DELETE FROM idemq.grants AS g
	WHERE g.role = role_name
		AND EXISTS (SELECT FROM idemq._capability_objects(g.capability))
		AND NOT EXISTS (
			SELECT FROM idemq._capability_objects(g.capability) AS o
			JOIN pg_proc AS p ON o.kind IN ('FUNCTION', 'PROCEDURE') AND p.oid = o.name::regprocedure
			CROSS JOIN aclexplode(p.proacl) AS a
			WHERE a.grantee = _grant.role AND a.privilege_type = 'EXECUTE');

	INSERT INTO idemq.grants (role, capability, object)
	VALUES (role_name, _grant.capability, _grant.object)
	ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		RAISE NOTICE 'role "%" has the capability "%" already', role_name, capability;
	END IF;

	FOR item IN SELECT o.* FROM idemq._capability_objects(_grant.capability) AS o
	LOOP
		EXECUTE format('GRANT %s ON %s %s TO %I', item.privilege, item.kind, item.name, role_name);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idemq._grant(regrole, text, text) IS 'does what idem_grant() says';
REVOKE ALL ON FUNCTION idemq._grant(regrole, text, text) FROM PUBLIC;

CREATE FUNCTION @extschema@.idem_grant(role regrole, capability text, object text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT idemq._grant($1, $2, $3)
$$;
COMMENT ON FUNCTION @extschema@.idem_grant(regrole, text, text) IS
'grants a capability (claim, emit, consume, monitor, admin) to a role; object: a scope (claim) or a consumer (consume) alone';

CREATE FUNCTION idemq._revoke(role regrole, capability text, object text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	role_name text := idemq._check_grant(role, capability, object);
	item record;
BEGIN
	LOCK TABLE idemq.grants IN SHARE ROW EXCLUSIVE MODE;

	DELETE FROM idemq.grants AS g
	WHERE g.role = role_name AND g.capability = _revoke.capability
		AND g.object IS NOT DISTINCT FROM _revoke.object;
	IF NOT FOUND THEN
		RAISE NOTICE 'role "%" does not have the capability "%"', role_name, capability;
	END IF;

	/* take away what no capability that is left consists of */
	FOR item IN
		SELECT o.* FROM idemq._capability_objects(_revoke.capability) AS o
		WHERE NOT EXISTS (
			SELECT FROM idemq.grants AS g, idemq._capability_objects(g.capability) AS other
			WHERE g.role = role_name AND other.privilege = o.privilege
				AND other.kind = o.kind AND other.name = o.name)
	LOOP
		EXECUTE format('REVOKE %s ON %s %s FROM %I', item.privilege, item.kind, item.name, role_name);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idemq._revoke(regrole, text, text) IS 'does what idem_revoke() says';
REVOKE ALL ON FUNCTION idemq._revoke(regrole, text, text) FROM PUBLIC;

CREATE FUNCTION @extschema@.idem_revoke(role regrole, capability text, object text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT idemq._revoke($1, $2, $3)
$$;
COMMENT ON FUNCTION @extschema@.idem_revoke(regrole, text, text) IS
'takes back what idem_grant() with the same arguments gave';

REVOKE ALL ON FUNCTION
	@extschema@.idem_grant(regrole, text, text),
	@extschema@.idem_revoke(regrole, text, text)
FROM PUBLIC;
