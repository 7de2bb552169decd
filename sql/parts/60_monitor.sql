/* What one can see. */

CREATE FUNCTION @extschema@.idem_status(
	OUT check_name text, OUT status text, OUT detail text, OUT hint text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_status'
LANGUAGE C STABLE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_status() IS
'is all well? one row a check; status is ok, warning or problem';

CREATE FUNCTION idemq._partitions(
	OUT parent regclass, OUT leaf regclass, OUT lower timestamptz, OUT upper timestamptz, OUT state text,
	OUT filter text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idemq_partitions'
LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION idemq._partitions() IS 'serves the view idemq.partitions';

CREATE VIEW idemq.partitions AS
SELECT p.parent, p.leaf, p.lower, p.upper, p.state,
	greatest(c.reltuples::bigint, pg_catalog.pg_stat_get_live_tuples(p.leaf), 0) AS rows_estimated,
	pg_catalog.pg_total_relation_size(p.leaf) AS bytes,
	p.filter
FROM idemq._partitions() AS p
JOIN pg_catalog.pg_class AS c ON c.oid = p.leaf;
COMMENT ON VIEW idemq.partitions IS
'partitions: bounds, state (permanent, current, ahead, closed, expired), rows by the statistics, bytes with indexes';
COMMENT ON COLUMN idemq.partitions.parent IS 'the partitioned table';
COMMENT ON COLUMN idemq.partitions.leaf IS 'the partition';
COMMENT ON COLUMN idemq.partitions.lower IS 'its lower bound';
COMMENT ON COLUMN idemq.partitions.upper IS 'its upper bound, not included';
COMMENT ON COLUMN idemq.partitions.state IS 'permanent; current: takes what is written now; ahead: its time is to come; closed: its time is over; expired: to be dropped if it holds no newer row, and nothing that a consumer has still to read';
COMMENT ON COLUMN idemq.partitions.rows_estimated IS 'rows, by the statistics';
COMMENT ON COLUMN idemq.partitions.bytes IS 'size with indexes';
COMMENT ON COLUMN idemq.partitions.filter IS 'ready; building; none: it is looked into at each claim (partitions of the outbox need none)';

CREATE FUNCTION idemq._stats(
	OUT scope text, OUT claims bigint, OUT duplicates bigint, OUT busy bigint,
	OUT waits bigint, OUT wait_us bigint, OUT since timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idemq_stats'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION idemq._stats() IS 'serves the view idemq.stats';

CREATE VIEW idemq.stats AS
SELECT s.scope, s.claims, s.duplicates, s.busy, s.waits,
	s.wait_us * interval '1 microsecond' AS wait_time,
	round(s.duplicates::numeric / nullif(s.claims + s.duplicates, 0), 4) AS duplicate_share,
	s.since
FROM idemq._stats() AS s;
COMMENT ON VIEW idemq.stats IS
'answers per scope since the server started, whatever became of the transactions; duplicate_share is the share of refused claims';
COMMENT ON COLUMN idemq.stats.scope IS 'the scope; (others) for those that did not fit into shared memory';
COMMENT ON COLUMN idemq.stats.claims IS 'answers true, or claimed';
COMMENT ON COLUMN idemq.stats.duplicates IS 'answers false, or duplicate or mine';
COMMENT ON COLUMN idemq.stats.busy IS 'answers busy';
COMMENT ON COLUMN idemq.stats.waits IS 'how often another transaction was waited for';
COMMENT ON COLUMN idemq.stats.wait_time IS 'for how long, in all';
COMMENT ON COLUMN idemq.stats.duplicate_share IS 'duplicates / (claims + duplicates)';
COMMENT ON COLUMN idemq.stats.since IS 'when counting began';

CREATE FUNCTION idemq._stats_outbox(
	OUT aggregatetype text, OUT emitted bigint, OUT since timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idemq_stats_outbox'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION idemq._stats_outbox() IS 'serves the view idemq.stats_outbox';

CREATE VIEW idemq.stats_outbox AS
SELECT s.aggregatetype, s.emitted, s.since
FROM idemq._stats_outbox() AS s;
COMMENT ON VIEW idemq.stats_outbox IS
'events written per aggregatetype since the server started, whatever became of the transactions';
COMMENT ON COLUMN idemq.stats_outbox.aggregatetype IS
'the aggregatetype; (others) for those that did not fit into shared memory, and for rows that came by INSERT or COPY';
COMMENT ON COLUMN idemq.stats_outbox.emitted IS 'events written';
COMMENT ON COLUMN idemq.stats_outbox.since IS 'when counting began';

REVOKE ALL ON FUNCTION @extschema@.idem_status(), idemq._partitions(), idemq._stats(), idemq._stats_outbox() FROM PUBLIC;
REVOKE ALL ON idemq.partitions, idemq.stats, idemq.stats_outbox FROM PUBLIC;
