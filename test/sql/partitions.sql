--
-- Which partition a claim goes to, and where it looks
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_partitions TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_partitions SET lc_messages = 'C';
-- the partitions that are made here are enough for the worker
ALTER DATABASE regress_idemq_partitions SET idemq.expiry = off;
ALTER DATABASE regress_idemq_partitions SET idemq.premake = 1;
\c regress_idemq_partitions
SET timezone = 'UTC';
SET datestyle = 'ISO';
CREATE EXTENSION idemq;
-- a partition with the index, from and to so many days from today
CREATE PROCEDURE make(name text, lower timestamptz, upper timestamptz, how text DEFAULT '') LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE %s TABLE idemq.%I (LIKE idemq.processed)', how, name);
	EXECUTE format('CREATE UNIQUE INDEX ON idemq.%I (idemq.digest(scope, key))', name);
	EXECUTE format('ALTER TABLE idemq.processed ATTACH PARTITION idemq.%I FOR VALUES FROM (%L) TO (%L)', name, lower, upper);
END
$$;
CREATE FUNCTION day(n integer) RETURNS timestamptz LANGUAGE sql AS
$$ SELECT date_trunc('day', now()) + n * interval '1 day' $$;
CREATE FUNCTION place(k text) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(tableoid::regclass::text, ' ') FROM idemq.processed WHERE key = k $$;

-- at first there is one
SELECT * FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass;
SELECT pg_typeof(parent), pg_typeof(leaf), pg_typeof(lower), pg_typeof(upper), pg_typeof(state), pg_typeof(rows_estimated), pg_typeof(bytes), pg_typeof(filter)
FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass;

-- of each state; nothing was claimed yet, so no worker looks at them
BEGIN;
CALL make('p_expired', '2001-01-01', '2001-01-02');
CALL make('p_closed', day(-3), day(-2));
CALL make('p_current', day(-1), day(1));
CALL make('p_ahead', day(1), 'infinity');
COMMIT;
SELECT parent, leaf, state, lower >= day(-3) AS recent FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass ORDER BY lower;
SELECT lower, upper FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state IN ('permanent', 'expired') ORDER BY lower;
SELECT bool_and(p.lower = day(-1) AND p.upper = day(1)) AS bounds FROM idemq.partitions AS p WHERE p.parent = 'idemq.processed'::regclass AND state = 'current';
-- the retention decides
SET idemq.retention = '1d';
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass ORDER BY lower;
RESET idemq.retention;

-- the partition of now takes it; the row says in which it is
SELECT idem_claim('now');
SELECT place('now'), (SELECT leaf FROM idemq.processed WHERE key = 'now') = day(-1) AS lower_bound;
SELECT rows_estimated >= 0 AS rows, bytes > 0 AS bytes FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'current';
-- keys are found in all of them, whatever the retention
INSERT INTO idemq.processed VALUES ('', 'permanent', now(), '-infinity'), ('', 'expired', now(), '2001-01-01 12:00'),
	('', 'closed', now(), day(-3)), ('', 'ahead', now(), day(1));
SET idemq.retention = '1s';
SELECT key, idem_claim(key), idem_try_claim(key), idem_seen(key) IS NOT NULL AS seen
FROM unnest('{permanent,expired,closed,now,ahead,new}'::text[]) AS key;
SELECT idem_claim_many('{permanent,expired,closed,now,ahead,new,newer}');
RESET idemq.retention;
SELECT key, idem_forget(key), place(key) FROM unnest('{permanent,expired,closed,ahead}'::text[]) AS key;
SELECT key, idem_claim(key) FROM unnest('{permanent,expired,closed,ahead}'::text[]) AS key;
SELECT key, place(key) FROM unnest('{permanent,expired,closed,ahead}'::text[]) AS key;

-- without one for now: the newest; without any: the permanent one
--
-- An unlogged partition is looked into, but nothing is put there.  Here it also
-- keeps the worker from making one for now.
BEGIN;
ALTER TABLE idemq.processed DETACH PARTITION idemq.p_current;
CALL make('p_unlogged', day(-1), day(1), 'UNLOGGED');
COMMIT;
INSERT INTO idemq.processed VALUES ('', 'unlogged', now(), day(-1));
SELECT idem_claim('unlogged'), place('unlogged');
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass ORDER BY lower;
SELECT idem_claim('newest');
SELECT place('newest'), (SELECT leaf FROM idemq.processed WHERE key = 'newest') = day(1) AS lower_bound;
BEGIN;
DROP TABLE idemq.p_ahead, idemq.p_unlogged;
ALTER TABLE idemq.processed DETACH PARTITION idemq.p_closed;
TRUNCATE idemq.p_closed;
CALL make('p_unlogged', '2020-01-01', 'infinity', 'UNLOGGED');
ALTER TABLE idemq.processed ATTACH PARTITION idemq.p_closed FOR VALUES FROM ('2019-01-01') TO ('2019-01-02');
COMMIT;
SELECT idem_claim('newest');
SELECT place('newest'), (SELECT state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND leaf = 'idemq.p_closed'::regclass);
ALTER TABLE idemq.processed DETACH PARTITION idemq.p_closed;
SELECT idem_claim('newest 2');
SELECT place('newest 2');
ALTER TABLE idemq.processed DETACH PARTITION idemq.p_expired;
SELECT idem_claim('newest 3');
SELECT place('newest 3');
-- what was detached is not looked into; attached again it is
SELECT idem_claim('newest 2');
SELECT place('newest 2');
SELECT idem_forget('newest 2');
ALTER TABLE idemq.processed ATTACH PARTITION idemq.p_expired FOR VALUES FROM ('2001-01-01') TO ('2001-01-02');
SELECT idem_claim('newest 2');
SELECT place('newest 2');
-- none at all
ALTER TABLE idemq.processed DETACH PARTITION idemq.p_expired;
ALTER TABLE idemq.processed DETACH PARTITION idemq.processed_permanent;
SELECT idem_claim('none');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_try_claim('none');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many('{none}');
\echo :LAST_ERROR_SQLSTATE
INSERT INTO idemq.processed VALUES ('', 'unlogged', now(), '2020-01-01');
SELECT idem_claim_many('{}'), idem_seen('none') IS NULL AS unknown, idem_forget('none'), idem_claim('unlogged');
BEGIN;
DROP TABLE idemq.p_unlogged;
SELECT idem_claim_many('{}'), idem_seen('none') IS NULL AS unknown, idem_forget('none');
SELECT * FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass;
SELECT check_name, status FROM idem_status() WHERE check_name IN ('expiry', 'clock') ORDER BY 1;
SELECT idem_claim('none');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_permanent FOR VALUES FROM (MINVALUE) TO ('2000-01-01');
SELECT idem_claim('none'), idem_claim('newest 3');

-- emptied by hand: its keys are free
TRUNCATE idemq.processed_permanent;
SELECT idem_claim('none'), idem_claim('newest 3');

-- a DEFAULT partition: looked into, but nothing is put there
CREATE TABLE idemq.p_default (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.p_default (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.p_default DEFAULT;
INSERT INTO idemq.processed VALUES ('', 'default', now(), '2001-01-01');
SELECT place('default'), idem_claim('default'), idem_claim('not default');
SELECT place('not default');
SELECT leaf, lower, upper, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass ORDER BY leaf::text COLLATE "C";
SELECT idem_forget('default'), idem_claim('default');
SELECT place('default');
DROP TABLE idemq.p_default;

-- in another schema, under any name
CREATE SCHEMA "else where";
CREATE TABLE "else where"."It's 1" (LIKE idemq.processed);
BEGIN;
DROP TABLE idemq.p_unlogged;
ALTER TABLE idemq.processed ATTACH PARTITION "else where"."It's 1" FOR VALUES FROM ('2002-01-01') TO (MAXVALUE);
COMMIT;
SELECT idem_claim('elsewhere');
\echo :LAST_ERROR_SQLSTATE
CREATE UNIQUE INDEX ON "else where"."It's 1" (idemq.digest(scope, key));
SELECT idem_claim('elsewhere'), idem_claim('elsewhere');
SELECT place('elsewhere');
SELECT leaf, lower, upper, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'current';

-- what is no ordinary table is refused by name
CREATE TABLE idemq.p_sub (LIKE idemq.processed) PARTITION BY RANGE (leaf);
BEGIN;
DROP TABLE "else where"."It's 1";
ALTER TABLE idemq.processed ATTACH PARTITION idemq.p_sub FOR VALUES FROM ('2002-01-01') TO (MAXVALUE);
COMMIT;
SELECT idem_claim('sub');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('sub');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
DROP TABLE idemq.p_sub;
CALL make('p_unlogged', '2020-01-01', 'infinity', 'UNLOGGED');
COMMIT;
SELECT idem_claim('sub'), idem_claim('sub');

-- attached by this very transaction: looked into, but not written before the
-- others can look into it
BEGIN;
DROP TABLE idemq.p_unlogged;
CALL make('p_mine', '2020-01-01', 'infinity');
INSERT INTO idemq.processed VALUES ('', 'in mine', now(), '2020-01-01');
SELECT idem_claim('in mine'), idem_claim('mine'), idem_claim('mine');
SELECT place('in mine'), place('mine');
SAVEPOINT s;
ALTER TABLE idemq.processed DETACH PARTITION idemq.p_mine;
SELECT idem_claim('in mine'), idem_claim('mine');
SELECT place('in mine'), place('mine');
ROLLBACK TO s;
SELECT idem_claim('in mine'), idem_claim('mine');
SELECT place('in mine'), place('mine');
COMMIT;
SELECT idem_claim('in mine'), idem_claim('mine'), idem_claim('mine 2');
SELECT place('in mine'), place('mine'), place('mine 2');
-- detached by this very transaction: not looked into
BEGIN;
ALTER TABLE idemq.processed DETACH PARTITION idemq.p_mine;
SELECT idem_claim('in mine'), idem_claim('mine'), idem_claim('mine 2');
SELECT place('in mine'), place('mine'), place('mine 2');
ROLLBACK;
SELECT idem_claim('in mine'), idem_claim('mine'), idem_claim('mine 2');

-- renamed
ALTER TABLE idemq.processed_permanent RENAME TO renamed;
SELECT idem_claim('mine'), idem_claim('renamed');
SELECT place('renamed');
ALTER TABLE idemq.renamed RENAME TO processed_permanent;

\c :origin
DROP DATABASE regress_idemq_partitions WITH (FORCE);
