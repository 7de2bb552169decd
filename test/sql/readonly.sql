--
-- READ ONLY transactions: what writes says so, what reads works
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_readonly TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_readonly SET lc_messages = 'C';
\c regress_idemq_readonly
CREATE EXTENSION idemq;
SELECT idem_claim('a');
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN coalesce(answer, '(null)');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;

BEGIN READ ONLY;
SELECT v.statement, attempt(v.statement) FROM (VALUES
	('SELECT idem_claim(''a'')'),
	('SELECT idem_claim(''b'')'),
	('SELECT idem_try_claim(''a'')'),
	('SELECT idem_try_claim(''b'')'),
	('SELECT idem_claim_many(''{a,b}'')'),
	('SELECT idem_claim_many(''{}'')'),
	('SELECT idem_forget(''a'')'),
	('SELECT idem_forget(''b'')'),
	('SELECT idem_seen(''a'') IS NOT NULL'),
	('SELECT idem_seen(''b'')'),
	('SELECT idem_key(''a'', ''b'')'),
	('SELECT length(idem_fingerprint(''{}''))'),
	('SELECT count(*) > 0 FROM idem_status()'),
	('SELECT count(*) > 0 FROM idemq.partitions'),
	('SELECT count(*) >= 0 FROM idemq.stats'),
	('SELECT idemq.accept_clock() IS NOT NULL'),
	('SELECT idem_grant(current_user::regrole, ''claim'')'),
	('SELECT idem_revoke(current_user::regrole, ''claim'')')) AS v (statement);
-- read-only comes before everything else that is wrong
SELECT attempt('SELECT idem_claim(NULL)');
SELECT idem_claim('a');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- the transaction began to write, then went read-only: what it has is still seen
BEGIN;
SELECT idem_claim('c');
SET TRANSACTION READ ONLY;
SELECT idem_seen('c') IS NOT NULL AS own, attempt('SELECT idem_claim(''c'')');
COMMIT;

SET default_transaction_read_only = on;
CALL idem_maintain();
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('d');
\echo :LAST_ERROR_SQLSTATE
RESET default_transaction_read_only;
SELECT key FROM idemq.processed ORDER BY key;

\c :origin
DROP DATABASE regress_idemq_readonly WITH (FORCE);
