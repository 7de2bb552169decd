--
-- Indexes and columns of partitions, idemq's and other people's
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_indexes TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_indexes SET lc_messages = 'C';
ALTER DATABASE regress_idemq_indexes SET idemq.expiry = off;
\c regress_idemq_indexes
CREATE EXTENSION idemq;
CREATE TABLE idemq.processed_all (LIKE idemq.processed);
CREATE UNIQUE INDEX processed_all_digest ON idemq.processed_all (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_all
	FOR VALUES FROM ('2000-01-01 00:00+00') TO (MAXVALUE);
SELECT idem_claim('a');
SELECT tableoid::regclass, key, leaf = '2000-01-01 00:00+00' AS lower_bound FROM idemq.processed;

-- without its index a partition cannot be searched: claims say so, all of them
DROP INDEX idemq.processed_all_digest;
SELECT idem_claim('b');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_try_claim('a');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many('{a,b}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('a');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('a');
\echo :LAST_ERROR_SQLSTATE
-- what the hint says mends it
CREATE UNIQUE INDEX ON idemq.processed_all (idemq.digest(scope, key));
SELECT idem_claim('a'), idem_claim('b'), idem_claim('b');
-- an index of the same expression that is not quite it does not count
DROP INDEX idemq.processed_all_digest_idx;
CREATE INDEX not_unique ON idemq.processed_all (idemq.digest(scope, key));
CREATE UNIQUE INDEX partial ON idemq.processed_all (idemq.digest(scope, key)) WHERE scope <> '';
CREATE UNIQUE INDEX swapped ON idemq.processed_all (idemq.digest(key, scope));
CREATE UNIQUE INDEX descending ON idemq.processed_all (idemq.digest(scope, key) DESC);
CREATE UNIQUE INDEX two_columns ON idemq.processed_all (idemq.digest(scope, key), claimed_at);
CREATE INDEX hashed ON idemq.processed_all USING hash (idemq.digest(scope, key));
SELECT idem_claim('b');
\echo :LAST_ERROR_SQLSTATE
CREATE UNIQUE INDEX processed_all_digest ON idemq.processed_all (idemq.digest(scope, key));
SELECT idem_claim('b'), idem_claim('c');
SELECT idem_claim('c');
DROP INDEX idemq.not_unique, idemq.partial, idemq.swapped, idemq.descending, idemq.two_columns, idemq.hashed;

-- an invalid one: as CREATE INDEX CONCURRENTLY leaves it when there are duplicates
DROP INDEX idemq.processed_all_digest;
INSERT INTO idemq.processed_all SELECT '', 'dup', now(), '2000-01-01 00:00+00' FROM generate_series(1, 2);
\set VERBOSITY terse
CREATE UNIQUE INDEX CONCURRENTLY processed_all_digest ON idemq.processed_all (idemq.digest(scope, key));
\set VERBOSITY default
SELECT idem_claim('d');
\echo :LAST_ERROR_SQLSTATE
DELETE FROM idemq.processed_all WHERE key = 'dup';
REINDEX TABLE idemq.processed_all;
SELECT idem_claim('c'), idem_claim('d'), idem_claim('dup');
-- one that is ready but not valid: not asked, but filled
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idemq.processed_all_digest'::regclass;
SELECT idem_claim('e');
\echo :LAST_ERROR_SQLSTATE
CREATE UNIQUE INDEX second ON idemq.processed_all (idemq.digest(scope, key));
SELECT idem_claim('c'), idem_claim('e'), idem_claim('f'), idem_forget('d');
UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'idemq.processed_all_digest'::regclass;
DROP INDEX idemq.second;
SELECT idem_claim('c'), idem_claim('e'), idem_claim('f'), idem_claim('d');

-- rebuilt and rewritten in between
REINDEX INDEX idemq.processed_all_digest;
SELECT idem_claim('e'), idem_claim('g');
REINDEX TABLE CONCURRENTLY idemq.processed_all;
SELECT idem_claim('g'), idem_claim('h');
VACUUM FULL idemq.processed_all;
SELECT idem_claim('h'), idem_claim('i');
CLUSTER idemq.processed_all USING processed_all_digest;
SELECT idem_claim('i'), idem_claim('j');
VACUUM (FREEZE, ANALYZE) idemq.processed;
SELECT idem_claim('j'), idem_claim('k'), idem_forget('h'), idem_claim('h');
BEGIN;
SELECT idem_claim('l');
REINDEX INDEX idemq.processed_all_digest;
SELECT idem_claim('l'), idem_claim('m');
ROLLBACK;
SELECT idem_claim('l'), idem_claim('m');

-- other people's indexes are filled: counted by each of them
CREATE INDEX by_time ON idemq.processed_all (claimed_at);
CREATE INDEX by_text ON idemq.processed_all (lower(key), scope DESC) INCLUDE (claimed_at);
CREATE INDEX by_part ON idemq.processed_all (key) WHERE key LIKE 'n%';
CREATE INDEX by_hash ON idemq.processed_all USING hash (key);
CREATE INDEX by_brin ON idemq.processed_all USING brin (claimed_at);
CREATE INDEX by_gin ON idemq.processed_all USING gin (string_to_array(key, '-'));
SELECT count(*) FILTER (WHERE idem_claim('n-' || i % 80)) FROM generate_series(1, 100) AS i;
BEGIN;
SELECT count(*) FILTER (WHERE idem_claim('o-' || i)) FROM generate_series(1, 10) AS i;
ROLLBACK;
SELECT count(*) FILTER (WHERE idem_forget('n-' || i)) FROM generate_series(1, 10) AS i;
SET enable_seqscan = off;
SELECT (SELECT count(*) FROM idemq.processed_all WHERE claimed_at > '2000-01-01') AS by_time,
	(SELECT count(*) FROM idemq.processed_all WHERE lower(key) LIKE 'n-%' AND lower(key) >= 'n-' AND lower(key) < 'n.') AS by_text,
	(SELECT count(*) FROM idemq.processed_all WHERE key LIKE 'n%') AS by_part,
	(SELECT count(*) FROM generate_series(0, 79) AS i, idemq.processed_all WHERE key = 'n-' || i) AS by_hash,
	(SELECT count(*) FROM idemq.processed_all WHERE string_to_array(key, '-') @> '{n}') AS by_gin;
RESET enable_seqscan;
SELECT count(*) AS all, count(*) FILTER (WHERE key LIKE 'n%') AS n FROM idemq.processed_all;
DROP INDEX idemq.by_time, idemq.by_text, idemq.by_part, idemq.by_hash, idemq.by_brin, idemq.by_gin;

-- a unique index on something else can refuse a claim: an error, never a wrong answer
CREATE UNIQUE INDEX key_alone ON idemq.processed_all (key);
SELECT idem_claim('a', 'other');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('a'), idem_claim('p', 'other'), idem_claim('p', 'other');
SELECT idem_try_claim('p');
\echo :LAST_ERROR_SQLSTATE
DROP INDEX idemq.key_alone;
SELECT idem_claim('a', 'other'), idem_claim('p');
-- one that nothing violates is no obstacle
CREATE UNIQUE INDEX all_of_it ON idemq.processed_all (key, scope);
SELECT idem_claim('q'), idem_claim('q'), idem_claim('q', 'other');
DROP INDEX idemq.all_of_it;
-- exclusion constraints are not supported
DELETE FROM idemq.processed_all WHERE scope = 'other';
ALTER TABLE idemq.processed_all ADD CONSTRAINT apart EXCLUDE USING btree (key WITH =);
SELECT idem_claim('r');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('q');
ALTER TABLE idemq.processed_all DROP CONSTRAINT apart;
SELECT idem_claim('r');
-- an index whose expression fails fails the claim, which is then not made
CREATE INDEX fails ON idemq.processed_all ((1 / (length(key) - 7)));
SELECT idem_claim('seven77');
\echo :LAST_ERROR_SQLSTATE
DROP INDEX idemq.fails;
SELECT idem_claim('seven77'), idem_claim('seven77');

-- columns that somebody added
ALTER TABLE idemq.processed ADD COLUMN note text;
SELECT idem_claim('s'), idem_claim('s'), idem_seen('s') IS NOT NULL AS seen;
UPDATE idemq.processed SET note = 'noted' WHERE key = 's';
SELECT idem_claim('s'), (SELECT note FROM idemq.processed WHERE key = 's') AS note;
-- one that must be there has a value afterwards, or the claim was refused
ALTER TABLE idemq.processed ADD COLUMN must integer NOT NULL DEFAULT 8;
CREATE FUNCTION attempt(key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN idem_claim(key);
EXCEPTION WHEN not_null_violation OR object_not_in_prerequisite_state OR feature_not_supported THEN
	RETURN true;
END
$$;
SELECT attempt('t');
SELECT count(*) FILTER (WHERE num_nulls(must) > 0) AS violating FROM idemq.processed;
ALTER TABLE idemq.processed DROP COLUMN note, DROP COLUMN must;
SELECT idem_claim('u'), idem_claim('u'), idem_forget('u');

-- a partition with its columns in another order, and with some that were dropped
CREATE TABLE idemq.shuffled (gone1 integer, leaf timestamptz NOT NULL, gone2 text, claimed_at timestamptz NOT NULL, key text NOT NULL, scope text NOT NULL);
ALTER TABLE idemq.shuffled DROP COLUMN gone1, DROP COLUMN gone2;
CREATE UNIQUE INDEX ON idemq.shuffled (idemq.digest(scope, key));
BEGIN;
ALTER TABLE idemq.processed DETACH PARTITION idemq.processed_all;
ALTER TABLE idemq.processed ATTACH PARTITION idemq.shuffled FOR VALUES FROM ('2000-01-01 00:00+00') TO (MAXVALUE);
COMMIT;
SELECT idem_claim('v', 's'), idem_claim('v', 's'), idem_claim('s', 'v');
SELECT idem_seen('v', 's') = (SELECT claimed_at FROM idemq.shuffled WHERE key = 'v') AS seen;
SELECT scope, key, leaf = '2000-01-01 00:00+00' AS lower_bound FROM idemq.shuffled ORDER BY key;
SELECT idem_forget('v', 's'), idem_claim('v', 's'), idem_claim('v', 's');

\c :origin
DROP DATABASE regress_idemq_indexes WITH (FORCE);
