/* The trusted time begins. */
SELECT idemq.accept_clock();

/* Tell the launcher that there is a new database to look after. */

CREATE FUNCTION idemq._announce()
RETURNS void
AS 'MODULE_PATHNAME', 'idemq_announce'
LANGUAGE C VOLATILE;
COMMENT ON FUNCTION idemq._announce() IS 'wakes the launcher when CREATE EXTENSION commits';
REVOKE ALL ON FUNCTION idemq._announce() FROM PUBLIC;

SELECT idemq._announce();
