-- The filter: whatever way a key came, a claim of it is refused.
-- needs preload
\set origin :DBNAME
CREATE DATABASE regress_idemq_filter TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_filter SET lc_messages = 'C';
ALTER DATABASE regress_idemq_filter SET idemq.expiry = off;
\c regress_idemq_filter
CREATE EXTENSION idemq;

CREATE FUNCTION filters() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(DISTINCT filter, ', ' ORDER BY filter) FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass
$$;
-- how many of n new keys made a claim look into a partition
CREATE FUNCTION looks() RETURNS bigint LANGUAGE sql AS $$
	SELECT coalesce(sum(pg_stat_get_numscans(i.indexrelid) + pg_stat_get_xact_numscans(i.indexrelid)), 0)::bigint
	FROM idemq.partitions AS p JOIN pg_index AS i ON i.indrelid = p.leaf
$$;

-- a round, and again if the worker was at it, until every lane is ready
CREATE FUNCTION built() RETURNS boolean LANGUAGE sql AS $$ SELECT filters() = 'ready' $$;
\set maintain 'DO $$ BEGIN FOR i IN 1..600 LOOP CALL idem_maintain(); EXIT WHEN built(); PERFORM pg_sleep(0.05); /* sleep: polls, with a deadline */ END LOOP; END $$'
SET client_min_messages = warning;
:maintain;
SELECT filters();

-- every way for a key to come
SELECT idem_claim('by claim');
SELECT idem_claim_many('{by many, by many too}');
INSERT INTO idemq.processed SELECT '', 'by insert', now(), lower FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'current';
INSERT INTO idemq.processed SELECT '', 'by insert ' || i, now(), lower FROM idemq.partitions, generate_series(1, 5000) AS i WHERE parent = 'idemq.processed'::regclass AND state = 'current';
SELECT leaf AS current FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'current' \gset
INSERT INTO :current SELECT '', 'by insert into the partition', now(), lower FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'current';
INSERT INTO idemq.processed VALUES ('', 'before update', now(), '-infinity');
UPDATE idemq.processed SET key = 'by update' WHERE key = 'before update';
COPY idemq.processed FROM stdin;
	by copy	2026-01-01	-infinity
\.
SELECT k, idem_claim(k) FROM unnest('{by claim, by many, by many too, by insert, by insert into the partition, by update, by copy}'::text[]) AS k;
SELECT count(*) FILTER (WHERE idem_claim('by insert ' || i)) FROM generate_series(1, 5000) AS i;
SELECT idem_claim('before update');

-- replica role: the trigger always fires
SET session_replication_role = replica;
INSERT INTO idemq.processed VALUES ('', 'by replica', now(), '-infinity');
RESET session_replication_role;
SELECT idem_claim('by replica');

-- a disabled trigger: the partition is not covered any more, until it is built anew
ALTER TABLE idemq.processed_permanent DISABLE TRIGGER filter_row;
INSERT INTO idemq.processed VALUES ('', 'behind its back', now(), '-infinity');
SELECT idem_claim('behind its back');
SELECT filters();
ALTER TABLE idemq.processed_permanent ENABLE ALWAYS TRIGGER filter_row;
SELECT filters();
SELECT idem_claim('behind its back');
:maintain;
SELECT filters();
SELECT idem_claim('behind its back');

-- in one transaction, as pg_restore --disable-triggers does it
BEGIN;
ALTER TABLE idemq.processed_permanent DISABLE TRIGGER ALL;
INSERT INTO idemq.processed VALUES ('', 'by pg_restore', now(), '-infinity');
ALTER TABLE idemq.processed_permanent ENABLE TRIGGER ALL;
COMMIT;
SELECT idem_claim('by pg_restore');
ALTER TABLE idemq.processed_permanent ENABLE ALWAYS TRIGGER filter_row;
:maintain;
SELECT filters();
SELECT idem_claim('by pg_restore');

-- a key that was rolled back, and one that was forgotten, can be claimed
BEGIN;
SELECT idem_claim('rolled back');
ROLLBACK;
SELECT idem_claim('rolled back');
SELECT idem_forget('rolled back');
SELECT idem_claim('rolled back');

-- rewritten and truncated
VACUUM FULL idemq.processed_permanent;
SELECT filters();
SELECT idem_claim('by copy');
:maintain;
SELECT filters();
SELECT idem_claim('by copy');
TRUNCATE idemq.processed_permanent;
SELECT idem_claim('by copy');
:maintain;
SELECT idem_claim('by copy');

-- detached, and attached again with rows in it
CREATE TABLE idemq.processed_old (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.processed_old (idemq.digest(scope, key));
INSERT INTO idemq.processed_old SELECT '', 'old ' || i, '2001-01-01', '2001-01-01 UTC' FROM generate_series(1, 1000) AS i;
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_old FOR VALUES FROM ('2001-01-01 UTC') TO ('2001-01-02 UTC');
SELECT filters();
SELECT idem_claim('old 1');
SET idemq.expiry = off;
:maintain;
SELECT filters();
SELECT count(*) FILTER (WHERE idem_claim('old ' || i)) FROM generate_series(1, 1000) AS i;
ALTER TABLE idemq.processed DETACH PARTITION idemq.processed_old;
SELECT idem_claim('old 2');
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_old FOR VALUES FROM ('2001-01-01 UTC') TO ('2001-01-02 UTC');
SELECT idem_claim('old 3');
:maintain;
SELECT idem_claim('old 3');
RESET idemq.expiry;

-- no look into a partition that is ruled out
SELECT looks() AS before \gset
SELECT count(*) FILTER (WHERE idem_claim('new ' || i)) FROM generate_series(1, 1000) AS i;
SELECT looks() - :before < 50 AS few_looks;

SELECT status FROM idem_status() WHERE check_name = 'filter';

-- somebody drops NOT NULL: a row that nobody can claim harms nobody
ALTER TABLE idemq.processed ALTER COLUMN key DROP NOT NULL;
INSERT INTO idemq.processed VALUES ('', NULL, now(), '-infinity');
-- and keys that are out of line
INSERT INTO idemq.processed SELECT '', string_agg(md5(i || '-' || j), ''), now(), '-infinity'
FROM generate_series(1, 50) AS i, generate_series(1, 200) AS j GROUP BY i;
SELECT pg_relation_size(reltoastrelid) > 0 AS toasted FROM pg_class WHERE oid = 'idemq.processed_permanent'::regclass;
ALTER TABLE idemq.processed_permanent DISABLE TRIGGER filter_row;
ALTER TABLE idemq.processed_permanent ENABLE ALWAYS TRIGGER filter_row;
:maintain;
SELECT filters();
SELECT idem_claim('beside it'), idem_claim('by claim');

\c :origin
DROP DATABASE regress_idemq_filter WITH (FORCE);
