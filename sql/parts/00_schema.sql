/* The schema of the tables and views; the functions go into the extension's own. */

\echo Use "CREATE EXTENSION idemq" to load this file. \quit

/* everything is qualified; operators and types are the server's, whatever others put into @extschema@ */
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE SCHEMA idemq;
COMMENT ON SCHEMA idemq IS 'tables and views of the extension idemq';
