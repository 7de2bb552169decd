/* Maintenance by hand. */

CREATE PROCEDURE @extschema@.idem_maintain()
AS 'MODULE_PATHNAME', 'idem_maintain'
LANGUAGE C;
COMMENT ON PROCEDURE @extschema@.idem_maintain() IS
'one maintenance round: makes partitions ahead of time and drops those that are past idemq.retention; not in a transaction block';

CREATE FUNCTION idemq.accept_clock()
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idemq_accept_clock'
LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idemq.accept_clock() IS
'says that the wall clock is right, after it was set or the machine was away for longer than the retention; returns it';

REVOKE ALL ON PROCEDURE @extschema@.idem_maintain() FROM PUBLIC;
REVOKE ALL ON FUNCTION idemq.accept_clock() FROM PUBLIC;
