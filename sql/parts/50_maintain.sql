/* Maintenance by hand. */

CREATE PROCEDURE @extschema@.idem_maintain()
AS 'MODULE_PATHNAME', 'idem_maintain'
LANGUAGE C;
COMMENT ON PROCEDURE @extschema@.idem_maintain() IS
'one maintenance round: makes partitions ahead of time, drops those that are past their retention, and keeps the consumers'' ledgers short; not in a transaction block';

CREATE FUNCTION idemq.accept_clock()
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idemq_accept_clock'
LANGUAGE C VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idemq.accept_clock() IS
'says that the wall clock is right, after it was set or the machine was away for longer than the retention; returns it';

CREATE VIEW idemq._positions AS
SELECT s.number AS consumer, n.shard, l.entry, l.turn, l.written_at, l.origins, l.replaying, l.start_at, l.start_seq,
	l.open_batches, l.open_from, l.parked_from, l.parked_events
FROM idemq.subscriptions AS s
CROSS JOIN LATERAL pg_catalog.generate_series(0, s.shards - 1) AS n (shard)
LEFT JOIN LATERAL (
	SELECT * FROM idemq._ledger AS r WHERE r.consumer = s.number AND r.shard = n.shard
	ORDER BY r.entry DESC LIMIT 1) AS l ON true;
COMMENT ON VIEW idemq._positions IS 'the latest row of each shard of each consumer; entry is null if it has none';
REVOKE ALL ON idemq._positions FROM PUBLIC;

REVOKE ALL ON PROCEDURE @extschema@.idem_maintain() FROM PUBLIC;
REVOKE ALL ON FUNCTION idemq.accept_clock() FROM PUBLIC;
