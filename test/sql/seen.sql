--
-- idem_seen
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_seen TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_seen SET lc_messages = 'C';
\c regress_idemq_seen
CREATE EXTENSION idemq;

SELECT idem_seen('never') IS NULL AS unknown;
SELECT idem_claim('a');
SELECT idem_seen('a') = (SELECT claimed_at FROM idemq.processed WHERE key = 'a') AS as_stored,
	idem_seen('a') BETWEEN now() - interval '1 minute' AND now() + interval '1 minute' AS recent;
-- it claims nothing
SELECT idem_seen('b') IS NULL, idem_claim('b'), idem_seen('b') IS NOT NULL;

-- the scope is part of the identity
SELECT idem_claim('s', 'one');
SELECT idem_seen('s', 'one') IS NOT NULL AS one, idem_seen('s', 'two') IS NULL AS two, idem_seen('s') IS NULL AS none;
SELECT idem_seen(scope => 'one', key => 's') IS NOT NULL, idem_seen('s', scope => 'one') IS NOT NULL,
	idem_seen('a', NULL) IS NOT NULL, idem_seen('a', '') IS NOT NULL;
SET idemq.scope = 'one';
SELECT idem_seen('s') IS NOT NULL AS one, idem_seen('a') IS NULL AS a;
RESET idemq.scope;

-- this transaction's own, and what became of it
BEGIN;
SELECT idem_claim('t'), idem_seen('t') IS NOT NULL AS own;
SAVEPOINT s;
SELECT idem_claim('u'), idem_seen('u') IS NOT NULL AS own;
ROLLBACK TO s;
SELECT idem_seen('t') IS NOT NULL AS own, idem_seen('u') IS NULL AS undone;
ROLLBACK;
SELECT idem_seen('t') IS NULL AS undone;
BEGIN;
SELECT idem_forget('a'), idem_seen('a') IS NULL AS given_back;
ROLLBACK;
SELECT idem_seen('a') IS NOT NULL AS kept;
SELECT idem_forget('a');
SELECT idem_seen('a') IS NULL AS given_back;

-- in one statement with the claim, and at every isolation level
SELECT idem_claim('v') AND idem_seen('v') IS NOT NULL AS ok;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idem_seen('v') IS NOT NULL AS seen;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT idem_seen('v') IS NOT NULL AS seen, idem_seen('w') IS NULL AS unknown;
COMMIT;

-- writes nothing: no transaction id
BEGIN;
SELECT idem_seen('v') IS NOT NULL AS seen, pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
-- nor does a duplicate
BEGIN;
SELECT idem_claim('v'), idem_try_claim('v'), idem_claim_many('{v,v}'), pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;

-- in a WHERE it is harmless
CREATE TABLE inbox (key text);
INSERT INTO inbox VALUES ('v'), ('x'), ('y');
SELECT key FROM inbox WHERE idem_seen(key) IS NULL ORDER BY key;

\c :origin
DROP DATABASE regress_idemq_seen WITH (FORCE);
