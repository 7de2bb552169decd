--
-- Bad arguments: each error with its SQLSTATE, message and hint
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_errors TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_errors SET lc_messages = 'C';
\c regress_idemq_errors
CREATE EXTENSION idemq;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	message text;
	hint text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN coalesce(answer, '(null)');
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || message, nullif(hint, ''));
END
$$;

-- keys, the same for all
CREATE TABLE calls (call text);
INSERT INTO calls VALUES ('idem_claim(%s)'), ('idem_try_claim(%s)'), ('idem_seen(%s)'), ('idem_forget(%s)'),
	('idem_claim_many(ARRAY[%s])'), ('idem_claim_many(ARRAY[''good'', %s])');
SELECT v.argument, answer, count(*) AS calls
FROM (VALUES ('NULL'), ('''''::text'), ('repeat(''k'', 1025)'), ('repeat(U&''\00e9'', 513)'),
	('repeat(U&''\00e9'', 512) || ''k'''), ('repeat(''k'', 1000000)')) AS v (argument), calls,
	attempt(format('SELECT ' || call, v.argument)) AS answer
GROUP BY 1, 2 ORDER BY v.argument COLLATE "C", answer COLLATE "C";

-- scopes, the same for all
TRUNCATE calls;
INSERT INTO calls VALUES ('idem_claim(''a'', %s)'), ('idem_try_claim(''a'', %s)'), ('idem_seen(''a'', %s)'),
	('idem_forget(''a'', %s)'), ('idem_claim_many(''{a,b}'', %s)'), ('idem_claim_many(''{}'', %s)');
SELECT v.argument, answer, count(*) AS calls
FROM (VALUES ('repeat(''s'', 256)'), ('repeat(U&''\00e9'', 128)'), ('repeat(''s'', 1000000)')) AS v (argument), calls,
	attempt(format('SELECT ' || call, v.argument)) AS answer
GROUP BY 1, 2 ORDER BY v.argument COLLATE "C", answer COLLATE "C";

-- nothing was claimed on the way
SELECT count(*) FROM idemq.processed;

-- arrays
SELECT v.statement, attempt(v.statement) FROM (VALUES
	('SELECT idem_claim_many(NULL)'),
	('SELECT idem_claim_many(''{{a,b},{c,d}}'')'),
	('SELECT idem_claim_many(''{{NULL}}'')'),
	('SELECT idem_claim_many(''{}'')')) AS v (statement);

-- capabilities
CREATE ROLE regress_idemq_errors;
SELECT v.statement, attempt(v.statement) FROM (VALUES
	('SELECT idem_grant(NULL, ''claim'')'),
	('SELECT idem_grant(''regress_idemq_errors'', NULL)'),
	('SELECT idem_grant(''regress_idemq_errors'', ''fly'')'),
	('SELECT idem_grant(''regress_idemq_errors'', ''Claim'')'),
	('SELECT idem_grant(''regress_idemq_errors'', '''')'),
	('SELECT idem_grant(''regress_idemq_errors'', ''emit'', ''o'')'),
	('SELECT idem_grant(''regress_idemq_errors'', ''monitor'', ''o'')'),
	('SELECT idem_grant(''regress_idemq_errors'', ''admin'', ''o'')'),
	('SELECT idem_grant(''regress_idemq_errors'', ''claim'', repeat(''s'', 256))'),
	('SELECT idem_grant(''regress_idemq_none'', ''claim'')'),
	('SELECT idem_grant(4294967295::oid::regrole, ''claim'')'),
	('SELECT idem_grant(0::oid::regrole, ''claim'')'),
	('SELECT idem_revoke(NULL, ''claim'')'),
	('SELECT idem_revoke(''regress_idemq_errors'', NULL)'),
	('SELECT idem_revoke(''regress_idemq_errors'', ''fly'')'),
	('SELECT idem_revoke(''regress_idemq_errors'', ''emit'', ''o'')'),
	('SELECT idem_revoke(''regress_idemq_none'', ''claim'')')) AS v (statement);
SELECT count(*) FROM idemq.grants;

-- maintenance is not for transaction blocks
SELECT attempt('CALL idem_maintain()');
BEGIN;
CALL idem_maintain();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
DO 'BEGIN CALL idem_maintain(); END';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- but for what commits between its statements
DO 'BEGIN CALL idem_maintain(); END';

-- internal functions that one can reach
SELECT idemq._grants_changed();
\echo :LAST_ERROR_SQLSTATE

-- without the tables
CREATE FUNCTION lost_claim(text, text) RETURNS boolean AS '$libdir/idemq', 'idem_claim' LANGUAGE C;
CREATE FUNCTION lost_status(OUT text, OUT text, OUT text, OUT text) RETURNS SETOF record
AS '$libdir/idemq', 'idem_status' LANGUAGE C;
DROP EXTENSION idemq;
SELECT attempt('SELECT lost_claim(''a'', NULL)');
SELECT attempt('SELECT lost_status()');

\c :origin
DROP DATABASE regress_idemq_errors WITH (FORCE);
DROP ROLE regress_idemq_errors;
