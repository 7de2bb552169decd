/*
 * Processed keys.
 *
 * The table is partitioned by the lower bound of the partition itself, so that
 * a row says where it is.  It has no index: each partition has its own unique
 * index on the digest (an index here would make pg_dump's ATTACH fail).
 *
 * The permanent partition belongs to the extension.  It takes claims while
 * there is no other: in the transaction of CREATE EXTENSION, after a restore,
 * without a worker.  It is emptied by maintenance, never dropped.
 */

CREATE TABLE idemq.processed
(
	scope		text NOT NULL,
	key			text NOT NULL,
	claimed_at	timestamptz NOT NULL,
	leaf		timestamptz NOT NULL
)
PARTITION BY RANGE (leaf);

/* for publications FOR ALL TABLES, or deletions would fail */
ALTER TABLE idemq.processed REPLICA IDENTITY FULL;

COMMENT ON TABLE idemq.processed IS 'keys that were claimed; written by idem_claim() and its family';
COMMENT ON COLUMN idemq.processed.scope IS 'who remembers: argument scope, or the setting idemq.scope';
COMMENT ON COLUMN idemq.processed.key IS 'the message''s id';
COMMENT ON COLUMN idemq.processed.claimed_at IS 'clock time of the claim';
COMMENT ON COLUMN idemq.processed.leaf IS 'lower bound of the partition that the row is in';

CREATE TABLE idemq.processed_permanent
(
	LIKE idemq.processed
)
USING heap
WITH (vacuum_truncate = off);
COMMENT ON TABLE idemq.processed_permanent IS 'takes claims while there is no other partition';

CREATE UNIQUE INDEX processed_permanent_digest ON idemq.processed_permanent (idemq.digest(scope, key));

/* Rows that come by SQL or logical replication: the filter must hear of them. */
CREATE FUNCTION idemq._filter_row()
RETURNS trigger
AS 'MODULE_PATHNAME', 'idemq_filter_row'
LANGUAGE C;
COMMENT ON FUNCTION idemq._filter_row() IS 'tells the filter of rows that did not come by a claim';
REVOKE ALL ON FUNCTION idemq._filter_row() FROM PUBLIC;

CREATE TRIGGER filter_row
AFTER INSERT OR UPDATE ON idemq.processed
FOR EACH ROW EXECUTE FUNCTION idemq._filter_row();
ALTER TABLE idemq.processed ENABLE ALWAYS TRIGGER filter_row;

ALTER TABLE idemq.processed_permanent REPLICA IDENTITY FULL;
ALTER TABLE ONLY idemq.processed ATTACH PARTITION idemq.processed_permanent
	FOR VALUES FROM (MINVALUE) TO ('2000-01-01 00:00:00+00');

SELECT pg_catalog.pg_extension_config_dump('idemq.processed_permanent', '');

/*
 * What the last maintenance round believed about the time: at most one row.
 * Not dumped: it is about this machine.
 */
CREATE TABLE idemq.clock
(
	high_water	timestamptz NOT NULL,
	boot_id		text NOT NULL,
	monotonic	bigint NOT NULL,
	hold_until	timestamptz NOT NULL
)
USING heap;
ALTER TABLE idemq.clock REPLICA IDENTITY FULL;
COMMENT ON TABLE idemq.clock IS 'the trusted time, and the monotonic clock at that moment; written by maintenance';
COMMENT ON COLUMN idemq.clock.high_water IS 'the trusted time: it never advances by more than the time that passed';
COMMENT ON COLUMN idemq.clock.boot_id IS 'names the boot of the machine whose monotonic clock was read';
COMMENT ON COLUMN idemq.clock.monotonic IS 'that clock, in microseconds';
COMMENT ON COLUMN idemq.clock.hold_until IS 'no partition is let go before the trusted time is this';

REVOKE ALL ON idemq.processed, idemq.processed_permanent, idemq.clock FROM PUBLIC;
