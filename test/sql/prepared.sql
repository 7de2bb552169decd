--
-- PREPARE TRANSACTION: a claim whose outcome is open
--
-- Wants max_prepared_transactions.
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_prepared TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_prepared SET lc_messages = 'C';
ALTER DATABASE regress_idemq_prepared SET idemq.expiry = off;
\c regress_idemq_prepared
CREATE EXTENSION idemq;
CREATE TABLE idemq.processed_all (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.processed_all (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_all
	FOR VALUES FROM ('2000-01-01 00:00+00') TO (MAXVALUE);
SELECT idem_claim('old');

-- a claim
BEGIN;
SELECT idem_claim('a'), idem_claim_many('{b,c}'), idem_try_claim('d');
SAVEPOINT s;
SELECT idem_claim('e');
RELEASE s;
SAVEPOINT s;
SELECT idem_claim('f');
ROLLBACK TO s;
PREPARE TRANSACTION 'regress_idemq_1';
SELECT idem_try_claim('a'), idem_try_claim('b'), idem_try_claim('d'), idem_try_claim('e');
SELECT idem_seen('a') IS NULL AS not_yet, idem_claim('f'), idem_claim('old');
-- whoever waits can give up
SET lock_timeout = '10ms';
SELECT idem_claim('a');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many('{x,c}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('e');
\echo :LAST_ERROR_SQLSTATE
RESET lock_timeout;
SET statement_timeout = '10ms';
SELECT idem_claim('a');
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;
SELECT idem_claim('x');
-- the bare index waits as well
SET lock_timeout = '10ms';
\set VERBOSITY terse
INSERT INTO idemq.processed SELECT '', 'a', now(), '2000-01-01 00:00+00';
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
RESET lock_timeout;
COMMIT PREPARED 'regress_idemq_1';
SELECT idem_try_claim('a'), idem_claim_many('{b,c,d,e}'), idem_seen('a') IS NOT NULL AS seen;

-- a claim that is rolled back
BEGIN;
SELECT idem_claim('g');
PREPARE TRANSACTION 'regress_idemq_2';
SELECT idem_try_claim('g');
ROLLBACK PREPARED 'regress_idemq_2';
SELECT idem_try_claim('g');

-- a forget
BEGIN;
SELECT idem_forget('a'), idem_forget('b');
PREPARE TRANSACTION 'regress_idemq_3';
SELECT idem_try_claim('a'), idem_seen('a') IS NOT NULL AS still;
SET lock_timeout = '10ms';
SELECT idem_claim('a');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('a');
\echo :LAST_ERROR_SQLSTATE
RESET lock_timeout;
ROLLBACK PREPARED 'regress_idemq_3';
SELECT idem_try_claim('a');
BEGIN;
SELECT idem_forget('a');
PREPARE TRANSACTION 'regress_idemq_4';
COMMIT PREPARED 'regress_idemq_4';
SELECT idem_seen('a') IS NULL AS given_back, idem_try_claim('a');

-- given back and taken again in one transaction
BEGIN;
SELECT idem_forget('a'), idem_claim('a');
PREPARE TRANSACTION 'regress_idemq_5';
SELECT idem_try_claim('a'), idem_seen('a') IS NOT NULL AS still;
COMMIT PREPARED 'regress_idemq_5';
SELECT idem_try_claim('a');

-- taken and given back in one transaction: nobody decides about anything
BEGIN;
SELECT idem_claim('h'), idem_forget('h');
PREPARE TRANSACTION 'regress_idemq_6';
SELECT idem_try_claim('h') IN ('claimed', 'busy') AS either;
COMMIT PREPARED 'regress_idemq_6';
SELECT idem_try_claim('h') IN ('claimed', 'duplicate') AS either;

\c :origin
DROP DATABASE regress_idemq_prepared WITH (FORCE);
