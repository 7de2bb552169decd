--
-- idem_forget
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_forget TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_forget SET lc_messages = 'C';
\c regress_idemq_forget
CREATE EXTENSION idemq;

SELECT idem_forget('never');
SELECT idem_claim('a');
SELECT idem_forget('a');
SELECT idem_forget('a');
SELECT count(*) FROM idemq.processed;
SELECT idem_claim('a'), idem_claim('a');

-- the scope is part of the identity
SELECT idem_claim('s', 'one'), idem_claim('s', 'two'), idem_claim('s');
SELECT idem_forget('s', 'three'), idem_forget('s', 'one');
SELECT idem_claim('s', 'one'), idem_claim('s', 'two'), idem_claim('s');
SELECT idem_forget(scope => 'one', key => 's'), idem_forget('s', scope => 'two'), idem_forget('s', NULL);
SET idemq.scope = 'two';
SELECT idem_claim('s'), idem_forget('s'), idem_forget('s');
RESET idemq.scope;

-- transactional
BEGIN;
SELECT idem_forget('a'), idem_forget('a');
ROLLBACK;
SELECT idem_claim('a');
BEGIN;
SELECT idem_forget('a');
SAVEPOINT s;
SELECT idem_claim('a'), idem_claim('a');
ROLLBACK TO s;
SELECT idem_seen('a') IS NULL AS given_back;
SAVEPOINT s;
SELECT idem_claim('a'), idem_forget('a'), idem_claim('a'), idem_forget('a'), idem_claim('a');
RELEASE s;
COMMIT;
SELECT idem_claim('a');
SELECT count(*) FROM idemq.processed WHERE key = 'a';
BEGIN;
SAVEPOINT s;
SELECT idem_forget('a');
ROLLBACK TO s;
SELECT idem_claim('a'), idem_try_claim('a');
COMMIT;

-- one's own uncommitted claim, which can be made again at once
BEGIN;
SELECT idem_claim('own'), idem_forget('own'), idem_claim('own');
SELECT idem_forget('own');
SELECT idem_forget('own');
COMMIT;
SELECT idem_seen('own') IS NULL AS given_back;
SELECT idem_claim('own') AND idem_forget('own') AS both;
BEGIN;
SAVEPOINT s;
SELECT idem_claim('sub');
RELEASE s;
SELECT idem_forget('sub'), idem_claim('sub');
COMMIT;
SELECT idem_claim('sub');

-- at every isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idem_forget('a'), idem_claim('a'), idem_forget('a');
COMMIT;
SELECT idem_seen('a') IS NULL AS given_back;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idem_claim('a'), idem_forget('sub');
COMMIT;
SELECT idem_claim('a'), idem_claim('sub');

-- in functions
CREATE FUNCTION give_back_and_fail(key text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF idem_forget(key) THEN
		RAISE EXCEPTION 'changed my mind';
	END IF;
	RETURN 'nothing to give back';
EXCEPTION WHEN raise_exception THEN
	RETURN 'kept';
END
$$;
SELECT give_back_and_fail('a'), idem_claim('a'), give_back_and_fail('zzz');

-- many
SELECT count(*) FILTER (WHERE idem_claim('m' || i)) FROM generate_series(1, 2000) AS i;
SELECT count(*) FILTER (WHERE idem_forget('m' || i)) FROM generate_series(1, 2000, 2) AS i;
SELECT count(*) FILTER (WHERE idem_claim('m' || i)) FROM generate_series(1, 2000) AS i;
BEGIN;
SELECT count(*) FILTER (WHERE idem_forget('m' || i % 500)) FROM generate_series(1, 20000) AS i;
SELECT count(*) < 200 AS few_locks FROM pg_locks WHERE pid = pg_backend_pid();
ROLLBACK;
SELECT count(*) FILTER (WHERE idem_claim('m' || i)) FROM generate_series(1, 2000) AS i;

-- in all partitions: a key that somebody put into two is forgotten in both
CREATE TABLE idemq.processed_hand (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.processed_hand (idemq.digest(scope, key));
ALTER TABLE idemq.processed_hand REPLICA IDENTITY FULL;
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_hand
	FOR VALUES FROM ('2001-01-01 00:00+00') TO ('2001-01-02 00:00+00');
INSERT INTO idemq.processed VALUES ('', 'twice', '2001-01-01 00:00+00', '2001-01-01 00:00+00'),
	('', 'twice', '2000-01-01 00:00+00', '-infinity');
SELECT idem_seen('twice') = '2001-01-01 00:00+00' AS newest, idem_claim('twice');
SELECT idem_forget('twice');
SELECT count(*) FROM idemq.processed WHERE key = 'twice';
SELECT idem_claim('twice'), idem_claim('twice');

-- with a publication of all tables there is a replica identity to delete by
CREATE PUBLICATION everything FOR ALL TABLES;
SELECT idem_claim('published'), idem_forget('published');
INSERT INTO idemq.processed VALUES ('', 'published', '2001-01-01 00:00+00', '2001-01-01 00:00+00');
SELECT idem_forget('published');
DELETE FROM idemq.processed WHERE key = 'm1';
DROP PUBLICATION everything;

\c :origin
DROP DATABASE regress_idemq_forget WITH (FORCE);
