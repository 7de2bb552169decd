/*
 * What pg_partman makes partitions from, where idemq.partition_manager says so.
 * It belongs to the extension, so that it is there after a restore, before the
 * rows of pg_partman's configuration mean anything.
 */

CREATE TABLE idemq.processed_template
(
	LIKE idemq.processed
)
USING heap
WITH (vacuum_truncate = off);
COMMENT ON TABLE idemq.processed_template IS 'the template for partitions of idemq.processed that pg_partman makes; always empty';

CREATE UNIQUE INDEX processed_template_digest ON idemq.processed_template (idemq.digest(scope, key));

CREATE TABLE idemq.outbox_template
(
	LIKE idemq.outbox
)
USING heap
WITH (vacuum_truncate = off);
COMMENT ON TABLE idemq.outbox_template IS 'the template for partitions of idemq.outbox that pg_partman makes; always empty';

CREATE INDEX outbox_template_seq ON idemq.outbox_template (seq);
CREATE INDEX outbox_template_xid ON idemq.outbox_template (xid, seq);

REVOKE ALL ON idemq.processed_template, idemq.outbox_template FROM PUBLIC;
