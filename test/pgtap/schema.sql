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
SELECT has_view('idemq', v, format('view idemq.%s', v)) FROM unnest('{partitions,stats}'::name[]) AS v;

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
	('stats', 8, 'since', 'timestamp with time zone', false);
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
