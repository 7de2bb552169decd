--
-- Which partition an event goes to: never none
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_outbox_leaf TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_outbox_leaf SET lc_messages = 'C';
ALTER DATABASE regress_idemq_outbox_leaf SET timezone = 'UTC';
ALTER DATABASE regress_idemq_outbox_leaf SET client_min_messages = warning;
\c regress_idemq_outbox_leaf
CREATE EXTENSION idemq;
CREATE EXTENSION dblink;
SELECT 'dbname=' || quote_literal(current_database()) || ' host=' || quote_literal(:'HOST') || ' port=' || :'PORT' AS conninfo \gset
-- a partition with these bounds
CREATE PROCEDURE attach(name text, lower text, upper text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TABLE %I (LIKE idemq.outbox INCLUDING CONSTRAINTS INCLUDING DEFAULTS)', name);
	EXECUTE format('CREATE INDEX ON %I (seq)', name);
	EXECUTE format('CREATE INDEX ON %I (xid, seq)', name);
	EXECUTE format('ALTER TABLE idemq.outbox ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, lower, upper);
END
$$;
CREATE VIEW places AS
SELECT aggregatetype, o.tableoid::regclass AS place, count(*),
	bool_and(leaf IS NOT DISTINCT FROM CASE WHEN o.tableoid = 'idemq.outbox_permanent'::regclass THEN '-infinity'
		ELSE (regexp_match(pg_get_expr(relpartbound, c.oid), 'FROM \(''(.*?)''\)'))[1]::timestamptz END) AS lower_bound
FROM idemq.outbox AS o JOIN pg_class AS c ON c.oid = o.tableoid GROUP BY 1, 2;

-- only the permanent one
SELECT outbox_emit('1 permanent', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('1 permanent');
PREPARE p AS INSERT INTO idemq.outbox (aggregatetype) VALUES ($1);
EXECUTE p('1 permanent'); EXECUTE p('1 permanent'); EXECUTE p('1 permanent'); EXECUTE p('1 permanent'); EXECUTE p('1 permanent'); EXECUTE p('1 permanent');
-- an old one: the newest there is
CALL attach('old', '2001-01-01', '2002-01-01');
SELECT outbox_emit('2 old', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('2 old');
EXECUTE p('2 old');
-- its time is to come: still the newest
CALL attach('later', '2200-01-01', '2300-01-01');
SELECT outbox_emit('3 later', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('3 later');
EXECUTE p('3 later');
-- the one of now
CALL attach('now', '2020-01-01', '2200-01-01');
SELECT outbox_emit('4 now', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('4 now');
COPY idemq.outbox (aggregatetype) FROM stdin;
4 now
\.
EXECUTE p('4 now');
SELECT * FROM places ORDER BY 1, 2;

-- attached while a statement runs: a leaf that the statement does not know is not chosen
TRUNCATE idemq.outbox;
ALTER TABLE idemq.outbox DETACH PARTITION now;
CREATE FUNCTION attach_elsewhere() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN dblink_exec(current_setting('test.conninfo'),
		'ALTER TABLE idemq.outbox ATTACH PARTITION public.now FOR VALUES FROM (''2020-01-01'') TO (''2200-01-01'')');
END
$$;
SELECT set_config('test.conninfo', :'conninfo', false) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype, aggregateid)
SELECT '5 insert', CASE g WHEN 2 THEN attach_elsewhere() END FROM generate_series(1, 3) AS g;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('5 insert');
SELECT * FROM places ORDER BY 1, 2;
TRUNCATE idemq.outbox;
ALTER TABLE idemq.outbox DETACH PARTITION now;
-- before the first row is there
INSERT INTO idemq.outbox (aggregatetype, aggregateid)
SELECT '6 first', a FROM (SELECT attach_elsewhere() AS a OFFSET 0) AS s;
SELECT * FROM places ORDER BY 1, 2;
TRUNCATE idemq.outbox;
ALTER TABLE idemq.outbox DETACH PARTITION now;
-- with a snapshot that is older than the leaf
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) >= 0 AS n FROM pg_class;
SELECT attach_elsewhere();
INSERT INTO idemq.outbox (aggregatetype) VALUES ('7 snapshot');
EXECUTE p('7 snapshot');
SELECT outbox_emit('7 snapshot', NULL) IS NULL AS n;
COMMIT;
SELECT * FROM places ORDER BY 1, 2;
TRUNCATE idemq.outbox;
ALTER TABLE idemq.outbox DETACH PARTITION now;
-- in the middle of a transaction that has emitted already
BEGIN;
SELECT outbox_emit('8 middle', NULL) IS NULL AS n;
SELECT attach_elsewhere();
SELECT outbox_emit('8 middle', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('8 middle');
SELECT outbox_emit('8 middle', NULL) IS NULL AS n;
COMMIT;
SELECT * FROM places ORDER BY 1, 2;
TRUNCATE idemq.outbox;
ALTER TABLE idemq.outbox DETACH PARTITION now;
-- by this very transaction, and taken back
BEGIN;
SELECT outbox_emit('9 own', NULL) IS NULL AS n;
SAVEPOINT s;
ALTER TABLE idemq.outbox ATTACH PARTITION now FOR VALUES FROM ('2020-01-01') TO ('2200-01-01');
SELECT outbox_emit('9 own', NULL) IS NULL AS n;
EXECUTE p('9 own');
SELECT * FROM places ORDER BY 1, 2;
ROLLBACK TO s;
SELECT outbox_emit('9 own', NULL) IS NULL AS n;
EXECUTE p('9 own');
COMMIT;
SELECT * FROM places ORDER BY 1, 2;

-- no partition at all: an error that says what to do
TRUNCATE idemq.outbox;
ALTER TABLE idemq.outbox DETACH PARTITION old;
ALTER TABLE idemq.outbox DETACH PARTITION later;
ALTER TABLE idemq.outbox DETACH PARTITION idemq.outbox_permanent;
SELECT outbox_emit('none', NULL);
\echo :LAST_ERROR_SQLSTATE
INSERT INTO idemq.outbox (aggregatetype) VALUES ('none');
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE idemq.outbox ATTACH PARTITION idemq.outbox_permanent FOR VALUES FROM (MINVALUE) TO ('2000-01-01');
SELECT outbox_emit('back', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('back');
SELECT * FROM places ORDER BY 1, 2;
-- a partition that is none of ours
CREATE TABLE parted (LIKE idemq.outbox INCLUDING CONSTRAINTS) PARTITION BY RANGE (leaf);
ALTER TABLE idemq.outbox ATTACH PARTITION parted FOR VALUES FROM ('2000-01-01') TO (MAXVALUE);
SELECT outbox_emit('still', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('still');
SELECT * FROM places ORDER BY 1, 2;

-- made anew
DROP EXTENSION idemq CASCADE;
CREATE EXTENSION idemq;
SELECT outbox_emit('anew', NULL) IS NULL AS n;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('anew');
EXECUTE p('anew');
SELECT seq, aggregatetype, leaf FROM idemq.outbox ORDER BY seq;

\c :origin
DROP DATABASE regress_idemq_outbox_leaf WITH (FORCE);
