--
-- Settings
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_guc TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_guc SET lc_messages = 'C';
\c regress_idemq_guc

-- a bad value that was set before the library was loaded (where it is loaded it
-- is refused) is a warning then, and the default holds
SET client_min_messages = error;
DO $$
DECLARE
	setting text[];
BEGIN
	FOREACH setting SLICE 1 IN ARRAY '{{idemq.retention,a week},{idemq.premake,0},{idemq.partition_manager,cron},{idemq.no_such_thing,1},{idemq.max_attempts,0}}'::text[]
		|| ARRAY[['idemq.scope', repeat('s', 256)], ['idemq.retry_ladder', '1min,soon']]
	LOOP
		BEGIN
			PERFORM set_config(setting[1], setting[2], false);
		EXCEPTION WHEN invalid_parameter_value OR invalid_name THEN
		END;
	END LOOP;
END
$$;
LOAD 'idemq';
RESET client_min_messages;
SELECT current_setting('idemq.retention') AS retention, current_setting('idemq.premake') AS premake,
	current_setting('idemq.partition_manager') AS manager, current_setting('idemq.scope') = '' AS empty_scope,
	current_setting('idemq.max_attempts') AS attempts, current_setting('idemq.retry_ladder') AS ladder,
	current_setting('idemq.no_such_thing', true) AS no_such_thing;
\c
LOAD 'idemq';

SELECT name, boot_val, unit, vartype, context, min_val, max_val, enumvals
FROM pg_settings WHERE name LIKE 'idemq.%' AND name NOT LIKE 'idemq.test\_%' AND name <> 'idemq.filter_memory' ORDER BY name COLLATE "C";
-- each says what it is
SELECT name FROM pg_settings WHERE name LIKE 'idemq.%' AND short_desc IS NULL;

-- times have units
SET idemq.retention = '36h';
SHOW idemq.retention;
SET idemq.retention = 90;
SHOW idemq.retention;
SET idemq.partition_interval = '1h';
SHOW idemq.partition_interval;
SET idemq.drop_lock_timeout = '1.5s';
SHOW idemq.drop_lock_timeout;
SET idemq.partition_manager = 'PG_PARTMAN';
SHOW idemq.partition_manager;
RESET ALL;

-- values that are none are refused when they are set
SET idemq.retention = 0;
\echo :LAST_ERROR_SQLSTATE
SET idemq.retention = '-1d';
\echo :LAST_ERROR_SQLSTATE
SET idemq.retention = 'a week';
\echo :LAST_ERROR_SQLSTATE
SET idemq.retention = '1 week';
\echo :LAST_ERROR_SQLSTATE
SET idemq.retention = '500ms';
\echo :LAST_ERROR_SQLSTATE
SET idemq.retention = '100000d';
\echo :LAST_ERROR_SQLSTATE
SET idemq.partition_interval = 0;
\echo :LAST_ERROR_SQLSTATE
SET idemq.partition_interval = 'daily';
\echo :LAST_ERROR_SQLSTATE
SET idemq.premake = 0;
\echo :LAST_ERROR_SQLSTATE
SET idemq.premake = 1001;
\echo :LAST_ERROR_SQLSTATE
SET idemq.premake = 'four';
\echo :LAST_ERROR_SQLSTATE
SET idemq.drop_lock_timeout = 0;
\echo :LAST_ERROR_SQLSTATE
SET idemq.drop_lock_timeout = '1week';
\echo :LAST_ERROR_SQLSTATE
SET idemq.expiry = 'sometimes';
\echo :LAST_ERROR_SQLSTATE
SET idemq.durable_claims = 2;
\echo :LAST_ERROR_SQLSTATE
SET idemq.partition_manager = 'cron';
\echo :LAST_ERROR_SQLSTATE
SET idemq.naptime = '1min';
\echo :LAST_ERROR_SQLSTATE
ALTER SYSTEM SET idemq.naptime = 0;
\echo :LAST_ERROR_SQLSTATE
ALTER SYSTEM SET idemq.naptime = '2d';
\echo :LAST_ERROR_SQLSTATE

-- the scope
SELECT length(set_config('idemq.scope', repeat('s', 255), false));
SELECT length(set_config('idemq.scope', repeat(U&'\00e9', 127), false));
SELECT set_config('idemq.scope', repeat('s', 256), false);
\echo :LAST_ERROR_SQLSTATE
SELECT set_config('idemq.scope', repeat(U&'\00e9', 128), false);
\echo :LAST_ERROR_SQLSTATE
SELECT current_setting('idemq.scope') = repeat(U&'\00e9', 127) AS unchanged;
\set bad `printf '%0256d' 0`
ALTER DATABASE regress_idemq_guc SET idemq.scope = :'bad';
\echo :LAST_ERROR_SQLSTATE
RESET idemq.scope;
SELECT current_setting('idemq.scope') = '' AS empty;

-- the ladder: times with their units, in a row
SET idemq.retry_ladder = '1ms, 1.5 s,2min , 3h,4d';
SHOW idemq.retry_ladder;
SET idemq.retry_ladder = '30s', '1h';
SHOW idemq.retry_ladder;
SET idemq.retry_ladder = '3650d';
CREATE FUNCTION try_ladder(ladder text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	PERFORM set_config('idemq.retry_ladder', ladder, false);
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' ', SQLSTATE, detail, hint);
END
$$;
SELECT v.ladder, try_ladder(v.ladder)
FROM (VALUES (''), (' '), (','), ('1min,'), (',1min'), ('1min,,2min'), ('1'), ('1min,5'), ('0s'), ('-1s'), ('1min;5min'), ('1 week'), ('soon'),
	('inf'), ('nan'), ('infs'), ('1e400s'), ('3651d'), ('0.0000001ms'), ('1m'), ('s'), (repeat('9', 40) || 's')) AS v (ladder);
SHOW idemq.retry_ladder;
SELECT try_ladder(string_agg('1s', ',')) FROM generate_series(1, 10000);
SELECT length(current_setting('idemq.retry_ladder'));
RESET idemq.retry_ladder;
SET idemq.max_attempts = 0;
\echo :LAST_ERROR_SQLSTATE
SET idemq.outbox_retention = '0s';
\echo :LAST_ERROR_SQLSTATE
SET idemq.dead_retention = '-1s';
\echo :LAST_ERROR_SQLSTATE
SET idemq.instance = 'copy';
\echo :LAST_ERROR_SQLSTATE

-- a name that is none, once the library is loaded
SET idemq.retension = '1d';
\echo :LAST_ERROR_SQLSTATE
SET idemq.no_such_thing = 1;
\echo :LAST_ERROR_SQLSTATE

-- who may
CREATE ROLE regress_idemq_user;
SET ROLE regress_idemq_user;
SET idemq.scope = 'mine';
SHOW idemq.scope;
ALTER ROLE regress_idemq_user SET idemq.scope = 'my own';
SET idemq.retention = '1s';
\echo :LAST_ERROR_SQLSTATE
SET idemq.durable_claims = off;
\echo :LAST_ERROR_SQLSTATE
SET idemq.expiry = off;
\echo :LAST_ERROR_SQLSTATE
SET idemq.retry_ladder = '1s';
\echo :LAST_ERROR_SQLSTATE
SET idemq.max_attempts = 9;
\echo :LAST_ERROR_SQLSTATE
SET idemq.outbox_retention = '1s';
\echo :LAST_ERROR_SQLSTATE
SET idemq.dead_retention = '1s';
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
RESET idemq.scope;

-- per database and per role
ALTER DATABASE regress_idemq_guc SET idemq.retention = '3d';
ALTER ROLE regress_idemq_user IN DATABASE regress_idemq_guc SET idemq.scope = 'of the role';
SELECT unnest(setconfig) FROM pg_db_role_setting
WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY 1;
\c
CREATE EXTENSION idemq;
SELECT idem_claim('a');
SHOW idemq.retention;
ALTER DATABASE regress_idemq_guc RESET idemq.retention;

-- transactional, as all settings are
BEGIN;
SET idemq.scope = 'in vain';
SELECT idem_claim('b');
ROLLBACK;
SELECT current_setting('idemq.scope') = '' AS empty;
BEGIN;
SAVEPOINT s;
SET LOCAL idemq.scope = 'local';
SELECT idem_claim('c');
ROLLBACK TO s;
SELECT idem_claim('c');
COMMIT;
SELECT scope, key FROM idemq.processed ORDER BY 1, 2;

-- whatever retention and clock say, what is there is refused
SET idemq.retention = '1s';
SET idemq.partition_interval = '1s';
SET idemq.expiry = off;
SELECT idem_claim('a'), idem_claim('c');

\c :origin
DROP DATABASE regress_idemq_guc WITH (FORCE);
DROP ROLE regress_idemq_user;
