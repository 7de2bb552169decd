--
-- idem_maintain: making and dropping partitions
--
-- Nothing is claimed here before it is called: so no worker does it first.
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_maintain TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_maintain SET lc_messages = 'C';
\c regress_idemq_maintain
SET timezone = 'UTC';
SET datestyle = 'ISO';
SET client_min_messages = warning;
CREATE EXTENSION idemq;
CREATE PROCEDURE make(name text, lower timestamptz, upper timestamptz) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TABLE idemq.%I (LIKE idemq.processed)', name);
	EXECUTE format('CREATE UNIQUE INDEX ON idemq.%I (idemq.digest(scope, key))', name);
	EXECUTE format('ALTER TABLE idemq.processed ATTACH PARTITION idemq.%I FOR VALUES FROM (%L) TO (%L)', name, lower, upper);
END
$$;
-- calls it until it has had its effect: a round of the worker may be running
CREATE PROCEDURE maintain_until(condition text) LANGUAGE plpgsql AS $$
DECLARE
	done boolean;
BEGIN
	FOR i IN 1..600 LOOP
		CALL public.idem_maintain();
		EXECUTE 'SELECT ' || condition INTO done;
		EXIT WHEN done;
		PERFORM pg_sleep(0.1);		-- sleep: polls, with a deadline
	END LOOP;
END
$$;
CREATE VIEW made AS
SELECT p.*, c.relname, c.relreplident, c.reloptions, c.relowner = o.relowner AS same_owner,
	lag(p.upper) OVER (ORDER BY p.lower) = p.lower AS follows,
	extract(epoch FROM p.upper - p.lower) AS seconds,
	mod(extract(epoch FROM p.lower - '2000-01-01 00:00+00')::numeric, extract(epoch FROM p.upper - p.lower)::numeric) = 0 AS aligned,
	c.relname = 'processed_p' || to_char(p.lower, 'YYYYMMDD') AS day_name,
	c.relname = 'processed_p' || to_char(p.lower, 'YYYYMMDD_HH24MISS') AS time_name
FROM idemq.partitions AS p
JOIN pg_class AS c ON c.oid = p.leaf
JOIN pg_class AS o ON o.oid = p.parent
WHERE p.parent = 'idemq.processed'::regclass AND p.state <> 'permanent';

-- days
CALL maintain_until('max(upper) >= now() + interval ''4 days'' FROM idemq.partitions');
SELECT count(*) BETWEEN 5 AND 6 AS enough, bool_and(follows IS NOT false) AS gapless, bool_and(aligned) AS aligned, bool_and(day_name) AS named,
	bool_and(seconds = 86400) AS days, bool_and(same_owner) AS same_owner, max(upper) >= now() + interval '4 days' AS ahead
FROM made;
SELECT state, count(*) >= 1 AS some FROM made GROUP BY 1 ORDER BY 1;
SELECT DISTINCT relreplident, reloptions FROM made;
SELECT DISTINCT regexp_replace(pg_get_indexdef(i.indexrelid), '\d{8}', 'N', 'g') AS index, i.indisvalid
FROM made JOIN pg_index AS i ON i.indrelid = made.leaf;
SELECT count(*) AS clock, bool_and(high_water BETWEEN now() - interval '1 minute' AND now() + interval '1 minute') AS recent FROM idemq.clock;
-- again: nothing to do
SELECT array_agg(leaf ORDER BY leaf) AS before FROM made \gset
CALL idem_maintain();
SELECT array_agg(leaf ORDER BY leaf) = :'before' AS unchanged FROM made;
-- more of them
SET idemq.premake = 6;
CALL maintain_until('max(upper) >= now() + interval ''6 days'' FROM idemq.partitions');
SELECT max(upper) >= now() + interval '6 days' AS ahead, bool_and(follows IS NOT false) AS gapless FROM made;
-- another interval begins where the last one ends
SELECT max(upper) AS edge, count(*) AS days FROM made \gset
SET idemq.partition_interval = '1h';
SET idemq.premake = 200;
CALL maintain_until('max(upper) >= now() + interval ''200 hours'' FROM idemq.partitions');
SELECT count(*) BETWEEN 24 AND 57 AS as_many, bool_and(follows) AS gapless, bool_and(time_name) AS named,
	bool_and(seconds = 3600) AS hours, bool_and(aligned) AS aligned
FROM made WHERE lower >= :'edge';
RESET idemq.partition_interval;
-- and back: the first one is cut short
SELECT max(upper) AS edge FROM made \gset
SET idemq.premake = 20;
CALL maintain_until('max(upper) >= now() + interval ''20 days'' FROM idemq.partitions');
SELECT bool_and(follows) AS gapless, bool_and(upper = date_trunc('day', upper)) AS aligned FROM made WHERE lower >= :'edge';
RESET idemq.premake;
DROP EXTENSION idemq CASCADE;

-- a gap is filled, and nothing overlaps what is there by hand
CREATE EXTENSION idemq;
CREATE VIEW made AS
SELECT p.*, lag(p.upper) OVER (ORDER BY p.lower) = p.lower AS follows
FROM idemq.partitions AS p WHERE p.parent = 'idemq.processed'::regclass AND p.state <> 'permanent';
CALL make('by_hand', date_trunc('day', now()) + interval '30 hours', date_trunc('day', now()) + interval '40 hours');
CALL maintain_until('max(upper) >= now() + interval ''4 days'' FROM idemq.partitions');
SELECT bool_and(follows IS NOT false) AS gapless, max(upper) >= now() + interval '4 days' AS ahead,
	bool_or(state = 'current') AS current, count(*) FILTER (WHERE leaf = 'idemq.by_hand'::regclass) AS by_hand FROM made;
-- a table that has the name already
DROP EXTENSION idemq CASCADE;
CREATE EXTENSION idemq;
DO $$
BEGIN
	FOR n IN 0..1 LOOP
		EXECUTE format('CREATE TABLE idemq.processed_p%s (a integer)', to_char(now() + n * interval '1 day', 'YYYYMMDD'));
	END LOOP;
END
$$;
CALL maintain_until('max(upper) >= now() + interval ''4 days'' FROM idemq.partitions');
SELECT count(*) FILTER (WHERE leaf::text LIKE '%\_1') BETWEEN 1 AND 2 AS renamed, count(*) >= 5 AS enough
FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state <> 'permanent';
SELECT idem_claim('a'), idem_claim('a');
DROP EXTENSION idemq CASCADE;

-- expiry: by the upper bound and by the newest claim in it
CREATE EXTENSION idemq;
CALL make('p_old', '2001-01-01', '2001-01-02');
CALL make('p_empty', '2001-01-02', '2001-01-03');
CALL make('p_served', '2001-01-03', '2001-01-04');
CALL make('p_recent', date_trunc('day', now()) - interval '3 days', date_trunc('day', now()) - interval '2 days');
INSERT INTO idemq.processed VALUES ('', 'old', '2001-01-01', '2001-01-01'), ('', 'served', '2001-01-03', '2001-01-03'),
	('', 'served for longer', now(), '2001-01-03'), ('', 'recent', now() - interval '3 days', date_trunc('day', now()) - interval '3 days'),
	('', 'permanent', '2001-01-01', '-infinity');
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND upper < now() ORDER BY lower;
-- off: nothing goes
SET idemq.expiry = off;
CALL maintain_until('max(upper) >= now() + interval ''4 days'' FROM idemq.partitions');
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND upper < now() ORDER BY lower;
RESET idemq.expiry;
CALL maintain_until('to_regclass(''idemq.p_old'') IS NULL AND to_regclass(''idemq.p_empty'') IS NULL
	AND NOT EXISTS (SELECT FROM idemq.processed_permanent)');
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND upper < now() ORDER BY lower;
SELECT key FROM idemq.processed ORDER BY key;
-- with a shorter retention
SET idemq.retention = '1d';
CALL maintain_until('to_regclass(''idemq.p_recent'') IS NULL');
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND upper < now() ORDER BY lower;
RESET idemq.retention;
UPDATE idemq.processed SET claimed_at = '2001-01-03';
CALL maintain_until('to_regclass(''idemq.p_served'') IS NULL');
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND upper < now() ORDER BY lower;
SELECT count(*) FROM idemq.processed;
-- the permanent partition is emptied, never dropped, and not if somebody has put a trigger there
INSERT INTO idemq.processed VALUES ('', 'permanent', '2001-01-01', '-infinity');
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called by %', current_user; END $$;
CREATE TRIGGER stop BEFORE TRUNCATE ON idemq.processed_permanent EXECUTE FUNCTION stop();
SET client_min_messages = error;
CALL idem_maintain();
SET client_min_messages = warning;
SELECT count(*) FROM idemq.processed_permanent;
DROP TRIGGER stop ON idemq.processed_permanent;
CALL maintain_until('NOT EXISTS (SELECT FROM idemq.processed_permanent)');
SELECT count(*) FROM idemq.processed_permanent;
-- one recent claim keeps it
INSERT INTO idemq.processed VALUES ('', 'permanent', '2001-01-01', '-infinity'), ('', 'permanent 2', now(), '-infinity');
CALL idem_maintain();
SELECT count(*) FROM idemq.processed_permanent;
-- many are dropped, a few a round
DO $$
BEGIN
	FOR n IN 1..20 LOOP
		CALL make('many_' || n, '2002-01-01'::timestamptz + n * interval '1 day', '2002-01-02'::timestamptz + n * interval '1 day');
	END LOOP;
END
$$;
CALL maintain_until('count(*) < 20 FROM idemq.partitions WHERE state = ''expired''');
SELECT count(*) BETWEEN 1 AND 19 AS some_are_left FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'expired';
CALL maintain_until('count(*) = 0 FROM idemq.partitions WHERE state = ''expired''');
SELECT count(*) FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'expired';
-- the newest partition stays, however old: claims without a worker go there
DO $$
DECLARE
	leaf regclass;
BEGIN
	FOR leaf IN SELECT p.leaf FROM idemq.partitions AS p WHERE p.parent = 'idemq.processed'::regclass AND p.state <> 'permanent' LOOP
		EXECUTE format('DROP TABLE %s', leaf);
	END LOOP;
END
$$;
CALL make('p_last', '2001-01-01', '2001-01-02');
CALL make('p_last_but_one', '2000-06-01', '2000-06-02');
SELECT leaf, state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass ORDER BY lower;

-- default privileges give nothing away on what is made later
CREATE ROLE regress_idemq_greedy;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO regress_idemq_greedy WITH GRANT OPTION;
CALL maintain_until('max(upper) >= now() + interval ''4 days'' FROM idemq.partitions');
SELECT count(*) AS readable FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND has_table_privilege('regress_idemq_greedy', leaf, 'SELECT, INSERT, DELETE');
DROP OWNED BY regress_idemq_greedy;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC;

-- settings of the session that could bend what it makes
DROP EXTENSION idemq CASCADE;
CREATE EXTENSION idemq;
SET timezone = 'Pacific/Chatham';
SET datestyle = 'SQL, DMY';
SET search_path = pg_temp;
SET default_transaction_isolation = 'serializable';
SET default_table_access_method = 'heap';
SET statement_timeout = '1min';
SET lock_timeout = '30s';
CALL public.maintain_until('max(upper) >= now() + interval ''4 days'' FROM idemq.partitions');
SELECT current_setting('timezone') AS timezone, current_setting('datestyle') AS datestyle, current_setting('lock_timeout') AS lock_timeout;
RESET ALL;
SET client_min_messages = warning;
SELECT bool_and(lower = date_trunc('day', lower, 'UTC')) AS aligned FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state <> 'permanent';

-- the trusted time: what accept_clock does
SELECT idemq.accept_clock() BETWEEN now() - interval '1 minute' AND now() + interval '1 minute' AS accepted;
SELECT count(*) FROM idemq.clock;
BEGIN;
SELECT idemq.accept_clock() IS NOT NULL AS accepted;
ROLLBACK;
SELECT count(*) FROM idemq.clock;

\c :origin
DROP DATABASE regress_idemq_maintain WITH (FORCE);
DROP ROLE regress_idemq_greedy;
