--
-- idemq.stats_outbox: needs preload
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_outbox_stats TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_outbox_stats SET lc_messages = 'C';
\c regress_idemq_outbox_stats
CREATE EXTENSION idemq;
CREATE VIEW counts AS SELECT left(aggregatetype, 20) AS aggregatetype, emitted FROM idemq.stats_outbox ORDER BY aggregatetype COLLATE "C";
SELECT * FROM counts;

SELECT count(outbox_emit('order', to_jsonb(g))) FROM generate_series(1, 10) AS g;
SELECT count(outbox_emit_bytes('raw', 'x')) FROM generate_series(1, 5) AS g;
SELECT * FROM counts;
-- as it is written, and as long as it fits
SELECT outbox_emit('Order', NULL) IS NULL AS n, outbox_emit('order ', NULL) IS NULL AS n, outbox_emit(repeat('x', 255), NULL) IS NULL AS n;
SELECT outbox_emit(repeat('x', 256), NULL) IS NULL AS n, outbox_emit(repeat('y', 100000), NULL) IS NULL AS n;
SELECT * FROM counts;
-- counted at the call, whatever the transaction's end
BEGIN;
SELECT outbox_emit('rolled back', NULL) IS NULL AS n;
ROLLBACK;
SELECT emitted FROM counts WHERE aggregatetype = 'rolled back';
-- what is refused is not
SELECT outbox_emit('', NULL);
-- what comes by INSERT or COPY is counted, of whichever aggregatetype
INSERT INTO idemq.outbox (aggregatetype) SELECT 'order' FROM generate_series(1, 100);
COPY idemq.outbox (aggregatetype) FROM stdin;
order
order
\.
SELECT * FROM counts;
SELECT bool_and(since BETWEEN now() - interval '1 hour' AND clock_timestamp()) AS since FROM idemq.stats_outbox;
-- more than what fits is one row
SELECT count(outbox_emit('type ' || g, NULL)) FROM generate_series(1, 1100) AS g;
SELECT count(*) BETWEEN 100 AND 1025 AS rows, sum(emitted) FROM idemq.stats_outbox;
-- of this database only
\c :origin
SELECT count(*) FROM pg_database WHERE datname = 'regress_idemq_outbox_stats';
\c regress_idemq_outbox_stats
SELECT sum(emitted) FROM idemq.stats_outbox;

\c :origin
DROP DATABASE regress_idemq_outbox_stats WITH (FORCE);
