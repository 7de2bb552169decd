--
-- idem_try_claim
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_try TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_try SET lc_messages = 'C';
ALTER DATABASE regress_idemq_try SET idemq.expiry = off;
\c regress_idemq_try
CREATE EXTENSION idemq;
-- so that no worker makes a partition just when somebody tries
CREATE TABLE idemq.processed_all (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.processed_all (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_all
	FOR VALUES FROM ('2000-01-01 00:00+00') TO (MAXVALUE);

SELECT idem_try_claim('a');
SELECT idem_try_claim('a');
BEGIN;
SELECT idem_try_claim('b'), idem_try_claim('b');
SELECT idem_try_claim('b'), idem_claim('b'), idem_try_claim('a');
COMMIT;
SELECT idem_try_claim('b');

-- mine: by whatever call, of this transaction only
BEGIN;
SELECT idem_claim('c'), idem_claim_many('{d,e}');
SELECT idem_try_claim('c'), idem_try_claim('d'), idem_try_claim('e');
INSERT INTO idemq.processed VALUES ('', 'f', now(), '-infinity');
SELECT idem_try_claim('f');
COMMIT;
SELECT idem_try_claim('c'), idem_try_claim('d'), idem_try_claim('e'), idem_try_claim('f');

-- savepoints
BEGIN;
SAVEPOINT s;
SELECT idem_try_claim('g'), idem_try_claim('g');
ROLLBACK TO s;
SELECT idem_try_claim('g'), idem_try_claim('g');
SAVEPOINT s;
SELECT idem_try_claim('g'), idem_try_claim('h');
RELEASE s;
SELECT idem_try_claim('g'), idem_try_claim('h');
SAVEPOINT s;
SELECT idem_try_claim('g'), idem_try_claim('h'), idem_try_claim('i');
ROLLBACK TO s;
SELECT idem_try_claim('g'), idem_try_claim('h'), idem_try_claim('i');
COMMIT;
SELECT idem_try_claim('g'), idem_try_claim('h'), idem_try_claim('i');

-- arguments
SELECT idem_try_claim(key => 'j'), idem_try_claim(scope => 's', key => 'j'), idem_try_claim('j', scope => 's'),
	idem_try_claim('j', NULL), idem_try_claim('j', '');
SET idemq.scope = 's';
SELECT idem_try_claim('j'), idem_try_claim('j', ''), idem_try_claim('k'), idem_try_claim('k', '');
RESET idemq.scope;
SELECT idem_try_claim(repeat('k', 1024)), idem_try_claim(repeat('k', 1024));

-- given back and taken again
BEGIN;
SELECT idem_forget('a'), idem_try_claim('a'), idem_try_claim('a');
ROLLBACK;
SELECT idem_try_claim('a');
SELECT idem_forget('a');
SELECT idem_try_claim('a');

-- isolation levels
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idem_try_claim('a'), idem_try_claim('l'), idem_try_claim('l');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idem_try_claim('a'), idem_try_claim('l'), idem_try_claim('m'), idem_try_claim('m');
COMMIT;

SELECT idem_try_claim, count(*) FROM (
	SELECT idem_try_claim('n' || i % 700) FROM generate_series(1, 1000) AS i OFFSET 0) AS n
GROUP BY 1 ORDER BY 1;

\c :origin
DROP DATABASE regress_idemq_try WITH (FORCE);
