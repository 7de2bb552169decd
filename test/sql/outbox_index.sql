--
-- Events are put at the right end of the indexes: nothing is lost where that end moves
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_outbox_index TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_outbox_index SET lc_messages = 'C';
\c regress_idemq_outbox_index
SET client_min_messages = warning;
CREATE EXTENSION idemq;
CREATE EXTENSION amcheck;
-- events in the table, and found by each index; every entry is where a search looks for it
CREATE FUNCTION looked(OUT events bigint, OUT by_seq bigint, OUT by_xid bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM bt_index_parent_check(indexrelid, true, true) FROM pg_index WHERE indrelid = 'idemq.outbox_permanent'::regclass;
	SET LOCAL enable_indexscan = off;
	SET LOCAL enable_indexonlyscan = off;
	SET LOCAL enable_bitmapscan = off;
	SELECT count(*) INTO events FROM idemq.outbox_permanent;
	SET LOCAL enable_seqscan = off;
	SET LOCAL enable_indexscan = on;
	SELECT count(payload) INTO by_seq FROM idemq.outbox_permanent WHERE seq > 0;
	SELECT count(payload) INTO by_xid FROM idemq.outbox_permanent WHERE xid > '0';
END
$$;
CREATE PROCEDURE emit(n integer) LANGUAGE sql AS $$ SELECT count(outbox_emit('a', '{}')) FROM generate_series(1, n) $$;
-- from an empty index to one with many leaf pages
CALL emit(1);
CALL emit(300);
CALL emit(3000);
SELECT * FROM looked();
-- in a tree of two levels an entry costs one page, not the way down to it
SELECT pg_stat_force_next_flush();
SELECT idx_blks_read + idx_blks_hit AS before FROM pg_statio_all_tables WHERE relname = 'outbox_permanent' \gset
CALL emit(3000);
SELECT pg_stat_force_next_flush();
SELECT idx_blks_read + idx_blks_hit - :before < 3 * 3000 AS direct FROM pg_statio_all_tables WHERE relname = 'outbox_permanent';
-- some of them rolled back
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		BEGIN
			CALL emit(100);
			IF i % 2 = 0 THEN
				RAISE EXCEPTION 'undo';
			END IF;
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
	END LOOP;
END
$$;
SELECT * FROM looked();
-- entries of an older transaction belong in front of those of a younger one
CREATE EXTENSION dblink;
BEGIN;
CALL emit(500);
SELECT dblink_connect('other', format('host=%s port=%s dbname=%s', split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_database()));
SELECT dblink_exec('other', 'CALL emit(2000)');
CALL emit(2000);
SELECT dblink_exec('other', 'CALL emit(1000)');
CALL emit(1000);
COMMIT;
SELECT dblink_disconnect('other');
SELECT * FROM looked();
-- the indexes begin anew, in this transaction or before
REINDEX TABLE idemq.outbox_permanent;
CALL emit(1000);
SELECT * FROM looked();
BEGIN;
CALL emit(1000);
TRUNCATE idemq.outbox;
CALL emit(10);
TRUNCATE idemq.outbox;
CALL emit(1000);
REINDEX INDEX idemq.outbox_permanent_seq;
CALL emit(1000);
COMMIT;
SELECT * FROM looked();
-- pages that VACUUM emptied are used again
DELETE FROM idemq.outbox_permanent WHERE seq % 100 > 0;
VACUUM idemq.outbox_permanent;
DELETE FROM idemq.outbox_permanent;
VACUUM idemq.outbox_permanent;
SELECT pg_current_xact_id() IS NOT NULL AS younger;
VACUUM idemq.outbox_permanent;
CALL emit(5000);
SELECT * FROM looked();
\c :origin
DROP DATABASE regress_idemq_outbox_index;
