-- The tables and views: columns, types, constraints, partitions, comments.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS idemq;
-- makes partitions; each step is a transaction of its own
-- until it has had its effect: a round of the worker may be running
DO $$
BEGIN
	FOR i IN 1..600 LOOP
		CALL idem_maintain();
		EXIT WHEN (SELECT count(*) > 4 FROM idemq.partitions);
		PERFORM pg_sleep(0.1);		-- sleep: polls, with a deadline
	END LOOP;
END
$$;
RESET client_min_messages;

BEGIN;
SELECT * FROM no_plan();
SET LOCAL timezone = 'UTC';
SET LOCAL datestyle = 'ISO';

SELECT has_extension('idemq');
SELECT has_schema('idemq');
SELECT is(obj_description('idemq'::regnamespace, 'pg_namespace') IS NOT NULL, true, 'schema idemq has a comment');
SELECT has_table('idemq', t, format('table idemq.%s', t)) FROM unnest('{processed_permanent,clock,grants}'::name[]) AS t;
SELECT is_partitioned('idemq', 'processed', 'idemq.processed is partitioned');
SELECT is_partition_of('idemq', 'processed_permanent', 'idemq', 'processed', 'the permanent partition is one');
SELECT has_view('idemq', v, format('view idemq.%s', v)) FROM unnest('{partitions,stats,stats_outbox,consumers,parked}'::name[]) AS v;

-- columns: all of them, in their order, with their types; NOT NULL for tables
CREATE TEMP TABLE wanted (relation text, position integer, name text, type text, not_null boolean);
INSERT INTO wanted VALUES
	('processed', 1, 'scope', 'text', true),
	('processed', 2, 'key', 'text', true),
	('processed', 3, 'claimed_at', 'timestamp with time zone', true),
	('processed', 4, 'leaf', 'timestamp with time zone', true),
	('clock', 1, 'high_water', 'timestamp with time zone', true),
	('clock', 2, 'boot_id', 'text', true),
	('clock', 3, 'monotonic', 'bigint', true),
	('clock', 4, 'hold_until', 'timestamp with time zone', true),
	('grants', 1, 'role', 'text', true),
	('grants', 2, 'capability', 'text', true),
	('grants', 3, 'object', 'text', false),
	('outbox', 1, 'seq', 'bigint', true),
	('outbox', 2, 'xid', 'xid8', true),
	('outbox', 3, 'origin', 'bigint', true),
	('outbox', 4, 'leaf', 'timestamp with time zone', true),
	('outbox', 5, 'created_at', 'timestamp with time zone', true),
	('outbox', 6, 'not_before', 'timestamp with time zone', false),
	('outbox', 7, 'id', 'uuid', true),
	('outbox', 8, 'aggregatetype', 'text', true),
	('outbox', 9, 'aggregateid', 'text', false),
	('outbox', 10, 'type', 'text', false),
	('outbox', 11, 'payload', 'jsonb', false),
	('outbox', 12, 'body', 'bytea', false),
	('outbox', 13, 'headers', 'jsonb', false),
	('outbox', 14, 'cause', 'text', false),
	('consumers', 1, 'consumer', 'text', false),
	('consumers', 2, 'shard', 'integer', false),
	('consumers', 3, 'ordered', 'boolean', false),
	('consumers', 4, 'last_seq', 'bigint', false),
	('consumers', 5, 'lag_events', 'bigint', false),
	('consumers', 6, 'lag', 'interval', false),
	('consumers', 7, 'delivered', 'bigint', false),
	('consumers', 8, 'acked', 'bigint', false),
	('consumers', 9, 'retried', 'bigint', false),
	('consumers', 10, 'in_flight', 'bigint', false),
	('consumers', 11, 'retrying', 'bigint', false),
	('consumers', 12, 'blocked', 'bigint', false),
	('consumers', 13, 'dead', 'bigint', false),
	('consumers', 14, 'last_progress', 'timestamp with time zone', false),
	('consumers', 15, 'held_by_kind', 'text', false),
	('consumers', 16, 'held_by', 'text', false),
	('parked', 1, 'consumer', 'text', false),
	('parked', 2, 'shard', 'integer', false),
	('parked', 3, 'seq', 'bigint', false),
	('parked', 4, 'id', 'uuid', false),
	('parked', 5, 'aggregatetype', 'text', false),
	('parked', 6, 'aggregateid', 'text', false),
	('parked', 7, 'dead_id', 'bigint', false),
	('parked', 8, 'state', 'text', false),
	('parked', 9, 'attempts', 'integer', false),
	('parked', 10, 'due', 'timestamp with time zone', false),
	('parked', 11, 'blocked_by', 'bigint', false),
	('parked', 12, 'first_failed_at', 'timestamp with time zone', false),
	('parked', 13, 'error', 'text', false),
	('dead_letters', 1, 'dead_id', 'bigint', true),
	('dead_letters', 2, 'consumer', 'text', true),
	('dead_letters', 3, 'seq', 'bigint', true),
	('dead_letters', 4, 'created_at', 'timestamp with time zone', true),
	('dead_letters', 5, 'id', 'uuid', true),
	('dead_letters', 6, 'aggregatetype', 'text', true),
	('dead_letters', 7, 'aggregateid', 'text', false),
	('dead_letters', 8, 'type', 'text', false),
	('dead_letters', 9, 'payload', 'jsonb', false),
	('dead_letters', 10, 'body', 'bytea', false),
	('dead_letters', 11, 'headers', 'jsonb', false),
	('dead_letters', 12, 'cause', 'text', false),
	('dead_letters', 13, 'attempts', 'integer', true),
	('dead_letters', 14, 'error', 'text', false),
	('dead_letters', 15, 'first_failed_at', 'timestamp with time zone', true),
	('dead_letters', 16, 'died_at', 'timestamp with time zone', true),
	('dead_letters', 17, 'replayed_at', 'timestamp with time zone', false),
	('partitions', 1, 'parent', 'regclass', false),
	('partitions', 2, 'leaf', 'regclass', false),
	('partitions', 3, 'lower', 'timestamp with time zone', false),
	('partitions', 4, 'upper', 'timestamp with time zone', false),
	('partitions', 5, 'state', 'text', false),
	('partitions', 6, 'rows_estimated', 'bigint', false),
	('partitions', 7, 'bytes', 'bigint', false),
	('partitions', 8, 'filter', 'text', false),
	('stats', 1, 'scope', 'text', false),
	('stats', 2, 'claims', 'bigint', false),
	('stats', 3, 'duplicates', 'bigint', false),
	('stats', 4, 'busy', 'bigint', false),
	('stats', 5, 'waits', 'bigint', false),
	('stats', 6, 'wait_time', 'interval', false),
	('stats', 7, 'duplicate_share', 'numeric', false),
	('stats', 8, 'since', 'timestamp with time zone', false),
	('stats_outbox', 1, 'aggregatetype', 'text', false),
	('stats_outbox', 2, 'emitted', 'bigint', false),
	('stats_outbox', 3, 'since', 'timestamp with time zone', false);
SELECT columns_are('idemq', relation, array_agg(name::name), format('columns of idemq.%s', relation))
FROM wanted GROUP BY relation ORDER BY relation;
SELECT col_type_is('idemq', relation, name, type, format('type of idemq.%s.%s', relation, name))
FROM wanted ORDER BY relation, position;
SELECT is((SELECT attnum::integer FROM pg_attribute WHERE attrelid = ('idemq.' || relation)::regclass AND attname = name),
	position, format('position of idemq.%s.%s', relation, name))
FROM wanted ORDER BY relation, position;
SELECT col_not_null('idemq', relation, name, format('idemq.%s.%s is not null', relation, name))
FROM wanted WHERE not_null ORDER BY relation, position;
SELECT col_hasnt_default('idemq', relation, name, format('idemq.%s.%s has no default', relation, name))
FROM wanted WHERE relation = 'processed' ORDER BY position;

-- the parent: its key, and no index, which would break a restore
SELECT is(pg_get_partkeydef('idemq.processed'::regclass), 'RANGE (leaf)', 'idemq.processed is partitioned by range of leaf');
SELECT is_empty('SELECT indexrelid::regclass FROM pg_index WHERE indrelid = ''idemq.processed''::regclass', 'idemq.processed has no index');
SELECT is_empty('SELECT conname FROM pg_constraint WHERE conrelid = ''idemq.processed''::regclass AND contype <> ''n''', 'idemq.processed has no constraint');
SELECT is((SELECT array_agg(tgname = 'filter_row' AND tgenabled = 'A') FROM pg_trigger WHERE tgrelid = 'idemq.processed'::regclass), '{t}'::boolean[], 'idemq.processed has the filter''s trigger, which always fires');
SELECT is(pg_get_expr(relpartbound, oid), 'FOR VALUES FROM (MINVALUE) TO (''2000-01-01 00:00:00+00'')', 'bounds of the permanent partition')
FROM pg_class WHERE oid = 'idemq.processed_permanent'::regclass;

-- the outbox: its defaults, its checks, its rights by column
SELECT is_partitioned('idemq', 'outbox', 'idemq.outbox is partitioned');
SELECT is_partition_of('idemq', 'outbox_permanent', 'idemq', 'outbox', 'its permanent partition is one');
SELECT is(pg_get_partkeydef('idemq.outbox'::regclass), 'RANGE (leaf)', 'idemq.outbox is partitioned by range of leaf');
SELECT is_empty('SELECT indexrelid::regclass FROM pg_index WHERE indrelid = ''idemq.outbox''::regclass', 'idemq.outbox has no index');
SELECT is(pg_get_expr(relpartbound, oid), 'FOR VALUES FROM (MINVALUE) TO (''2000-01-01 00:00:00+00'')', 'bounds of its permanent partition')
FROM pg_class WHERE oid = 'idemq.outbox_permanent'::regclass;
SELECT is((SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
		WHERE a.attrelid = t::regclass AND a.attname = v.name), v.expression, format('default of %s.%s', t, v.name))
FROM unnest('{idemq.outbox,idemq.outbox_permanent}'::text[]) AS t, (VALUES ('seq', 'idemq._outbox_next()'), ('xid', 'pg_current_xact_id()'), ('origin', 'idemq._outbox_origin()'),
	('leaf', 'idemq._outbox_leaf()'), ('created_at', 'clock_timestamp()'), ('id', 'gen_random_uuid()'), ('cause', 'idemq._outbox_cause()'),
	('not_before', NULL), ('aggregatetype', NULL), ('aggregateid', NULL), ('type', NULL), ('payload', NULL), ('body', NULL), ('headers', NULL)) AS v (name, expression);
SELECT is((SELECT array_agg(conname::text ORDER BY conname) FROM pg_constraint WHERE conrelid = t::regclass AND contype = 'c'),
	'{outbox_aggregatetype_not_empty,outbox_not_before_finite,outbox_payload_or_body}', 'the checks of ' || t)
FROM unnest('{idemq.outbox,idemq.outbox_permanent}'::text[]) AS t;
SELECT ok(seqcache = 1 AND NOT seqcycle AND seqincrement = 1 AND seqtypid = 'bigint'::regtype, 'numbers are drawn one by one')
FROM pg_sequence WHERE seqrelid = 'idemq.outbox_seq'::regclass;
SELECT ok(t::regclass = ANY (extconfig), t || ' is dumped')
FROM pg_extension, unnest('{idemq.outbox_permanent,idemq.outbox_seq}'::text[]) AS t WHERE extname = 'idemq';
SELECT is((SELECT array_agg(pg_get_indexdef(indexrelid) ORDER BY indexrelid::regclass::text) FROM pg_index WHERE indrelid = 'idemq.outbox_permanent'::regclass),
	ARRAY['CREATE INDEX outbox_permanent_seq ON idemq.outbox_permanent USING btree (seq) WITH (deduplicate_items=off)',
		'CREATE INDEX outbox_permanent_xid ON idemq.outbox_permanent USING btree (xid, seq) WITH (deduplicate_items=off)'],
	'idemq.outbox_permanent has its two indexes');
CREATE ROLE regress_idemq_pgtap;
SELECT lives_ok($$ SELECT idem_grant('regress_idemq_pgtap', 'emit') $$, 'emit is granted');
SELECT is(has_column_privilege('regress_idemq_pgtap', 'idemq.outbox', name, 'INSERT'),
	name IN ('id', 'aggregatetype', 'aggregateid', 'type', 'payload', 'body', 'headers', 'not_before'), 'emit: whether it may set ' || name)
FROM wanted WHERE relation = 'outbox' ORDER BY position;
SELECT is_empty($$ SELECT p FROM unnest('{SELECT,UPDATE,REFERENCES}'::text[]) AS p WHERE has_any_column_privilege('regress_idemq_pgtap', 'idemq.outbox', p) $$,
	'emit: nothing else');
SELECT lives_ok($$ SELECT idem_revoke('regress_idemq_pgtap', 'emit') $$, 'emit is taken back');
SELECT is(has_any_column_privilege('regress_idemq_pgtap', 'idemq.outbox', 'INSERT'), false, 'and is gone');

-- every partition, made by the install script or by maintenance
CREATE TEMP VIEW leaf AS
SELECT c.oid, c.oid::regclass::text AS name, c.relname, c.relkind, c.relpersistence, c.relreplident, c.reloptions, c.relowner, c.relacl,
	c.reltablespace, a.amname
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid JOIN pg_am AS a ON a.oid = c.relam
WHERE i.inhparent = 'idemq.processed'::regclass;
SELECT cmp_ok(count(*), '>', 4::bigint, 'maintenance has made partitions') FROM leaf;
SELECT is(format('%s%s%s', relkind, relpersistence, relreplident), 'rpf', name || ' is an ordinary permanent table with full replica identity') FROM leaf ORDER BY name;
SELECT is(amname, 'heap', name || ' is a heap') FROM leaf ORDER BY name;
SELECT is(reloptions, '{vacuum_truncate=off}', name || ' is not truncated by vacuum') FROM leaf ORDER BY name;
SELECT is(relowner, (SELECT relowner FROM pg_class WHERE oid = 'idemq.processed'::regclass), name || ' has the owner of its parent') FROM leaf ORDER BY name;
SELECT results_eq(
	format('SELECT pg_get_indexdef(indexrelid) COLLATE "C" FROM pg_index WHERE indrelid = %L::regclass AND indisunique AND indisvalid AND indisready AND indislive', name),
	format($$ SELECT 'CREATE UNIQUE INDEX %I ON %s USING btree (idemq.digest(scope, key))' COLLATE "C" $$, relname || '_digest', name),
	name || ' has the unique index on the digest, and no other')
FROM leaf ORDER BY name;
SELECT is((SELECT array_agg(tgname = 'filter_row' AND tgenabled = 'A') FROM pg_trigger WHERE tgrelid = name::regclass), '{t}'::boolean[], name || ' has the filter''s trigger, which always fires') FROM leaf ORDER BY name;
SELECT is_empty(format('SELECT conname FROM pg_constraint WHERE conrelid = %L::regclass AND contype <> ''n''', name), name || ' has no constraint') FROM leaf ORDER BY name;
SELECT matches(relname::text, '^processed_(permanent|p\d{8}(_\d{6})?)$', name || ' is named like pg_partman would') FROM leaf ORDER BY name;

-- what belongs to the extension, and what pg_dump has to dump as data
SELECT is(EXISTS (SELECT FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idemq'
		WHERE d.classid = 'pg_class'::regclass AND d.objid = leaf.oid AND d.deptype = 'e'),
	relname = 'processed_permanent', name || CASE relname WHEN 'processed_permanent' THEN ' belongs' ELSE ' does not belong' END || ' to the extension')
FROM leaf ORDER BY name;
SELECT ok(t::regclass = ANY (extconfig), t || ' is dumped with its rows')
FROM pg_extension, unnest('{idemq.processed_permanent,idemq.grants}'::text[]) AS t WHERE extname = 'idemq';
SELECT ok(NOT t::regclass = ANY (extconfig), t || ' is not') FROM pg_extension, unnest('{idemq.clock}'::text[]) AS t WHERE extname = 'idemq';

-- a publication FOR ALL TABLES must not make deletions fail
SELECT is(relreplident::text, 'f', oid::regclass || ' has full replica identity') FROM pg_class
WHERE oid IN ('idemq.grants'::regclass, 'idemq.clock'::regclass) ORDER BY relname;

-- idemq.grants
SELECT is(count(*), 1::bigint, 'idemq.grants is unique, nulls and all')
FROM pg_index WHERE indrelid = 'idemq.grants'::regclass AND indisunique AND indnullsnotdistinct AND indkey::text = '1 2 3';
SELECT has_trigger('idemq', 'grants', 'grants_changed', 'sessions hear of changes');
SELECT is(tgenabled::text, 'A', 'also of those that replication makes') FROM pg_trigger WHERE tgname = 'grants_changed';

-- a comment on each table, view and column of a table
SELECT isnt(obj_description(c.oid, 'pg_class'), NULL, c.oid::regclass || ' has a comment')
FROM pg_class AS c
JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idemq'
WHERE c.relkind IN ('r', 'p', 'v') ORDER BY c.oid::regclass::text COLLATE "C";
SELECT isnt(col_description(('idemq.' || relation)::regclass, position), NULL, format('idemq.%s.%s has a comment', relation, name))
FROM wanted ORDER BY relation, position;

-- nothing is PUBLIC's
SELECT is_empty(format('SELECT privilege_type FROM aclexplode(%L::aclitem[]) WHERE grantee = 0', c.relacl), 'PUBLIC may not touch ' || c.oid::regclass)
FROM pg_class AS c
WHERE c.relnamespace = 'idemq'::regnamespace AND c.relkind IN ('r', 'p', 'v') ORDER BY c.oid::regclass::text COLLATE "C";
SELECT is_empty(format('SELECT privilege_type FROM aclexplode(%L::aclitem[]) WHERE grantee = 0', nspacl), 'PUBLIC may not use the schema idemq')
FROM pg_namespace WHERE nspname = 'idemq';

SELECT * FROM finish();
ROLLBACK;
