/* The schema of the tables and views; the functions go into the extension's own. */

\echo Use "CREATE EXTENSION idemq" to load this file. \quit

CREATE SCHEMA idemq;
COMMENT ON SCHEMA idemq IS 'tables and views of the extension idemq';
