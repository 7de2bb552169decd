--
-- idemq.stats: needs preload
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_stats TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_stats SET lc_messages = 'C';
ALTER DATABASE regress_idemq_stats SET idemq.expiry = off;
\c regress_idemq_stats
CREATE EXTENSION idemq;
CREATE EXTENSION dblink;
-- so that no worker makes a partition just when somebody tries
CREATE TABLE idemq.processed_all (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.processed_all (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_all
	FOR VALUES FROM ('2000-01-01 00:00+00') TO (MAXVALUE);
SELECT * FROM idemq.stats;

-- each answer
SELECT idem_claim('a', 'one'), idem_claim('a', 'one'), idem_try_claim('a', 'one'), idem_try_claim('b', 'one');
SELECT idem_claim_many('{a,b,c,c}', 'one'), idem_seen('c', 'one') IS NOT NULL AS seen, idem_forget('c', 'one');
SELECT idem_try_claim('a', 'one'), idem_claim('c', 'two');
SELECT idem_claim('c', ''), idem_claim('c');
SELECT scope, claims, duplicates, busy, waits, wait_time, duplicate_share FROM idemq.stats ORDER BY scope;
SELECT bool_and(since BETWEEN now() - interval '1 hour' AND clock_timestamp()) AS since FROM idemq.stats;
SELECT pg_typeof(scope), pg_typeof(claims), pg_typeof(duplicates), pg_typeof(busy), pg_typeof(waits), pg_typeof(wait_time), pg_typeof(duplicate_share), pg_typeof(since)
FROM idemq.stats LIMIT 1;

-- counted at the call, whatever the transaction's end
BEGIN;
SELECT idem_claim('d', 'rolled back'), idem_claim('d', 'rolled back'), idem_try_claim('d', 'rolled back');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idem_claim('d', 'rolled back');
ROLLBACK TO s;
COMMIT;
SELECT scope, claims, duplicates, busy, waits, duplicate_share FROM idemq.stats WHERE scope = 'rolled back';
-- errors are no answers, and give no scope a row
SELECT idem_claim('', 'error');
SELECT idem_claim('e', repeat('s', 256));
SELECT count(*) FROM idemq.stats WHERE scope = 'error' OR scope LIKE 'sss%';
-- a call that only looks has none either, but one that gives back may
SELECT idem_forget('never', 'forgets only'), idem_seen('never', 'forgets only') IS NULL AS unknown;
SELECT sum(claims + duplicates + busy + waits) FROM idemq.stats WHERE scope = 'forgets only';

-- busy, and waits, with another session
SELECT dblink_connect('other', format('host=%s port=%s dbname=%s user=%s',
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_database(), current_user));
-- returns when somebody waits for the transaction that calls it
CREATE FUNCTION until_waited_for() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + interval '1 minute';
BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted
		AND transactionid = pg_current_xact_id_if_assigned()::xid) AND clock_timestamp() < deadline
	LOOP
		PERFORM pg_sleep(0.01);		-- sleep: polls, with a deadline
	END LOOP;
END
$$;
SELECT dblink_exec('other', 'BEGIN');
SELECT * FROM dblink('other', 'SELECT idem_claim(''f'', ''waited'')') AS t (claimed boolean);
SELECT idem_try_claim('f', 'waited'), idem_try_claim('f', 'waited'), idem_try_claim('g', 'waited');
SELECT dblink_send_query('other', 'SELECT until_waited_for(); COMMIT');
SELECT idem_claim('f', 'waited');
SELECT scope, claims, duplicates, busy, waits, wait_time > '0' AS waited, duplicate_share FROM idemq.stats WHERE scope = 'waited';
SELECT count(*) FROM dblink_get_result('other', false) AS t (result text);
SELECT count(*) FROM dblink_get_result('other', false) AS t (result text);
SELECT count(*) FROM dblink_get_result('other', false) AS t (result text);
-- the same, and the one who waited rolls back
SELECT dblink_exec('other', 'BEGIN');
SELECT * FROM dblink('other', 'SELECT idem_claim(''h'', ''waited'')') AS t (claimed boolean);
SELECT dblink_send_query('other', 'SELECT until_waited_for(); ROLLBACK');
BEGIN;
SELECT idem_claim('h', 'waited');
ROLLBACK;
SELECT scope, claims, duplicates, busy, waits, duplicate_share FROM idemq.stats WHERE scope = 'waited';
SELECT dblink_disconnect('other');

-- scopes of any bytes and lengths
SELECT idem_claim('i', repeat('l', 255)), idem_claim('i', repeat('l', 254)), idem_claim('i', '(others)'), idem_claim('i', E'\n'), idem_claim('i', U&'\00e9');
SELECT length(scope), claims FROM idemq.stats WHERE scope LIKE 'lll%' ORDER BY 1;
SELECT scope, claims FROM idemq.stats WHERE scope IN (U&'\00e9', E'\n') ORDER BY 1;

-- more scopes than there is room for: counted together, never lost
SELECT sum(claims) AS claims, sum(duplicates) AS duplicates FROM idemq.stats \gset
SELECT count(*) FILTER (WHERE idem_claim('j', 'scope ' || i % 1500)) FROM generate_series(1, 4500) AS i;
SELECT count(*) FILTER (WHERE idem_claim('k', 'scope ' || i)) FROM generate_series(1, 1499) AS i;
SELECT sum(claims) - :claims AS claims, sum(duplicates) - :duplicates AS duplicates, count(*) BETWEEN 500 AND 1026 AS rows,
	count(*) FILTER (WHERE scope = '(others)' AND claims > 400) >= 1 AS others FROM idemq.stats;
SELECT claims, duplicates FROM idemq.stats WHERE scope = 'scope 1';
-- another session counts in the same places
\c
SELECT idem_claim('l', 'scope 1'), idem_claim('l', 'scope 1499'), idem_claim('l', 'scope 1499');
SELECT sum(claims) - :claims AS claims, sum(duplicates) - :duplicates AS duplicates FROM idemq.stats;
SELECT claims, duplicates FROM idemq.stats WHERE scope = 'scope 1';

-- each database has its own
\c :origin
DROP DATABASE regress_idemq_stats WITH (FORCE);
CREATE DATABASE regress_idemq_stats TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
\c regress_idemq_stats
CREATE EXTENSION idemq;
-- the room of the database that is gone is free again after a while
DO $$
DECLARE
	deadline timestamptz := clock_timestamp() + interval '1 minute';
BEGIN
	FOR i IN 1..1000000 LOOP
		PERFORM idem_claim('m', 'again ' || i);
		EXIT WHEN EXISTS (SELECT FROM idemq.stats WHERE scope = 'again ' || i) OR clock_timestamp() > deadline;
		PERFORM pg_sleep(0.1);		-- sleep: polls, with a deadline
	END LOOP;
END
$$;
SELECT count(*) > 0 AS free_again FROM idemq.stats WHERE scope LIKE 'again %';
SELECT count(*) FROM idemq.stats WHERE scope NOT LIKE 'again %' AND scope <> '(others)';

\c :origin
DROP DATABASE regress_idemq_stats WITH (FORCE);
