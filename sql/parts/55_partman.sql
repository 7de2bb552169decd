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

REVOKE ALL ON idemq.processed_template FROM PUBLIC;
