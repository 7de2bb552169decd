--
-- idem_status
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_status TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_status SET lc_messages = 'C';
-- no worker changes what is looked at here
ALTER DATABASE regress_idemq_status SET idemq.expiry = off;
\c regress_idemq_status
SET timezone = 'UTC';
CREATE EXTENSION idemq;
SET idemq.expiry = on;
CREATE PROCEDURE make(name text, lower timestamptz, upper timestamptz) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TABLE idemq.%I (LIKE idemq.processed)', name);
	EXECUTE format('CREATE UNIQUE INDEX ON idemq.%I (idemq.digest(scope, key))', name);
	EXECUTE format('ALTER TABLE idemq.processed ATTACH PARTITION idemq.%I FOR VALUES FROM (%L) TO (%L)', name, lower, upper);
END
$$;
-- a check, with numbers made alike
CREATE FUNCTION look(name text) RETURNS TABLE (status text, detail text, hint text) LANGUAGE sql AS $$
	SELECT s.status, regexp_replace(s.detail, '\d+(\.\d+)?', 'N', 'g'), s.hint FROM idem_status() AS s WHERE s.check_name = name
$$;
SELECT current_setting('shared_preload_libraries') ~ '\midemq\M' AS preloaded \gset

-- all of them, each once; what is not ok says what to do
SELECT check_name FROM idem_status() ORDER BY check_name COLLATE "C";
SELECT check_name, status, detail FROM idem_status() WHERE status NOT IN ('ok', 'warning', 'problem') OR detail IS NULL OR (status = 'ok') <> (hint IS NULL);
-- in a plan of any kind
SELECT count(*) = (SELECT count(DISTINCT check_name) FROM idem_status()) AS distinct FROM idem_status();

-- preload and worker: as it is
SELECT CASE WHEN :'preloaded' THEN status = 'ok' AND detail = 'idemq is in shared_preload_libraries'
	ELSE status = 'warning' AND hint ~ 'shared_preload_libraries' END AS preload FROM look('preload');
SELECT CASE WHEN :'preloaded' THEN status = 'ok' AND detail = 'nothing was claimed in this database since the server started'
	ELSE status = 'warning' AND hint ~ 'idem_maintain' END AS worker FROM look('worker');

-- runway: an unused database does not need any
SELECT CASE WHEN :'preloaded' THEN status = 'ok' AND detail = 'partitions are made as soon as something is claimed'
	ELSE status = 'problem' AND detail ~ 'only the permanent partition' END AS runway FROM look('runway');
-- partitions for the time to come, not many, none
CALL make('p_now', now() - interval '1 day', now() + interval '1 day');
SELECT * FROM look('runway');
DROP TABLE idemq.p_now;
CALL make('p_now', now() - interval '1 day', now() + interval '5 seconds');
SELECT * FROM look('runway');
DROP TABLE idemq.p_now;
CALL make('p_past', now() - interval '1 day', now() - interval '1 hour');
SELECT CASE WHEN :'preloaded' THEN status = 'ok' AND detail = 'partitions are made as soon as something is claimed'
	ELSE status = 'problem' AND detail = 'the newest partition ended N s ago; it takes the claims' END AS runway FROM look('runway');
DROP TABLE idemq.p_past;
CALL make('p_all', now() - interval '1 day', 'infinity');
SELECT * FROM look('runway');
DROP TABLE idemq.p_all;

-- expiry
SELECT * FROM look('expiry');
CALL make('p_now', now() - interval '1 day', now() + interval '1 day');
CALL make('p_old', '2001-01-01', '2001-01-02');
SELECT * FROM look('expiry');
SET idemq.expiry = off;
SELECT * FROM look('expiry');
SET idemq.expiry = on;
DROP TABLE idemq.p_now, idemq.p_old;
CALL make('p_now', now() - interval '1 day', now() + interval '1 day');
CALL make('p_due', now() - interval '9 days', now() - interval '7 days 10 seconds');
SELECT * FROM look('expiry');
DROP TABLE idemq.p_now, idemq.p_due;

-- the clock
SELECT * FROM look('clock');
SELECT idemq.accept_clock() IS NOT NULL AS accepted;
SELECT * FROM look('clock');
-- it went further than the time that passed
UPDATE idemq.clock SET high_water = high_water - interval '1 day';
\c
SET timezone = 'UTC';
SELECT * FROM look('clock');
SELECT idemq.accept_clock() IS NOT NULL AS accepted;
SELECT * FROM look('clock');
-- it went back
UPDATE idemq.clock SET high_water = high_water + interval '1 day';
\c
SET timezone = 'UTC';
SELECT * FROM look('clock');
SELECT idemq.accept_clock() IS NOT NULL AS accepted;
SELECT * FROM look('clock');
-- after another boot: an outage is believed as long as it is shorter than the retention
UPDATE idemq.clock SET high_water = now() - interval '3 days', boot_id = 'another';
\c
SELECT * FROM look('clock');
UPDATE idemq.clock SET high_water = now() - interval '8 days';
\c
SELECT * FROM look('clock');
SET idemq.retention = '9d';
SELECT * FROM look('clock');
RESET idemq.retention;
-- so nothing expires by it
CALL make('p_now', now() - interval '1 day', now() + interval '1 day');
CALL make('p_due', now() - interval '9 days', now() - interval '7 days 1 hour');
SELECT state FROM idemq.partitions WHERE leaf = 'idemq.p_due'::regclass;
SET idemq.retention = '9d';
SELECT state FROM idemq.partitions WHERE leaf = 'idemq.p_due'::regclass;
RESET idemq.retention;
DROP TABLE idemq.p_now, idemq.p_due;
SELECT idemq.accept_clock() IS NOT NULL AS accepted;

-- the partition manager
SELECT * FROM look('partition_manager');
SET idemq.partition_manager = 'pg_partman';
SELECT * FROM look('partition_manager');
RESET idemq.partition_manager;

-- from the first claim on the worker may make partitions: not while this is held
CALL make('p_past', now() - interval '1 day', now() - interval '1 hour');
BEGIN;
LOCK TABLE idemq.processed IN SHARE UPDATE EXCLUSIVE MODE;
SELECT idem_claim('a');
SELECT * FROM look('runway');
DROP TABLE idemq.p_past;
SELECT * FROM look('runway');
ROLLBACK;
-- claims are stamped with no less than the trusted time
UPDATE idemq.clock SET high_water = now() + interval '1 day', boot_id = 'another';
\c
BEGIN;
SELECT idem_claim('b');
SELECT idem_seen('b') >= now() + interval '23 hours' AS floor;
ROLLBACK;
SELECT idemq.accept_clock() IS NOT NULL AS accepted;
BEGIN;
SELECT idem_claim('b');
SELECT idem_seen('b') < now() + interval '23 hours' AS wall;
ROLLBACK;

\c :origin
DROP DATABASE regress_idemq_status WITH (FORCE);
