# Captured tables over dump and restore, in logical replication, in prepared
# transactions, and an UPDATE of very many rows in little memory.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

my $node = idemq_node('main', streaming => 1, wal_level => 'logical');
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $version = $node->safe_psql('postgres', q{SELECT current_setting('server_version_num')::int / 10000});

# Definitions of all capture triggers, those of partitions too.
my $definitions = q{
SELECT t.tgrelid::regclass, t.tgname, t.tgenabled, t.tgparentid <> 0, pg_get_triggerdef(t.oid)
FROM pg_trigger t WHERE t.tgfoid = 'idemq._capture'::regproc ORDER BY t.tgrelid::regclass::text, t.tgname};

sub told
{
	my ($db) = @_;

	return $node->safe_psql($db, q{
WITH gone AS (DELETE FROM idemq.outbox RETURNING *)
SELECT string_agg(concat_ws(' ', aggregatetype, aggregateid, type, payload), E'\n' ORDER BY seq) FROM gone});
}

sub quiet_ok
{
	my ($name, @command) = @_;

	return $node->command_checks_all(\@command, 0, [qr/^$/], [qr/^$/], $name);
}

# Dump and restore.
$node->safe_psql('postgres', 'CREATE DATABASE source TEMPLATE template0');
$node->safe_psql('source', q{
CREATE EXTENSION idemq;
CREATE ROLE keeper;
CREATE SCHEMA "My x";
GRANT CREATE, USAGE ON SCHEMA "My x" TO keeper;
CREATE TABLE "My x"."Orders" (gone int, id int, "A b" text, state text, total numeric, PRIMARY KEY (id, state)) PARTITION BY LIST (state);
ALTER TABLE "My x"."Orders" DROP COLUMN gone, OWNER TO keeper;
CREATE TABLE orders_new PARTITION OF "My x"."Orders" FOR VALUES IN ('new');
CREATE TABLE orders_paid (state text NOT NULL, total numeric, gone int, "A b" text, id int NOT NULL);
ALTER TABLE orders_paid DROP COLUMN gone;
ALTER TABLE "My x"."Orders" ATTACH PARTITION orders_paid FOR VALUES IN ('paid');
SELECT outbox_capture('"My x"."Orders"', 'it''s', '{id}', '{"A b",state}', '{update,truncate}', with_old => true);
CREATE TABLE plain (gone int, id int PRIMARY KEY, a int, "B" int);
ALTER TABLE plain DROP COLUMN gone;
SELECT outbox_capture('plain', columns => '{B}', operations => '{insert,update}', condition => 'NEW.a > 5 AND NEW."B" IS NOT NULL');
CREATE TABLE off (id int PRIMARY KEY);
SELECT outbox_capture('off');
ALTER TABLE off ENABLE ALWAYS TRIGGER idemq_capture_insert;
ALTER TABLE off DISABLE TRIGGER idemq_capture_delete;
INSERT INTO "My x"."Orders" VALUES (1, 'a', 'new', 1), (2, 'b', 'paid', 2);
INSERT INTO plain VALUES (1, 5, 1), (2, 6, 2)});

my $changes = q{
UPDATE "My x"."Orders" SET total = 7;
UPDATE "My x"."Orders" SET state = CASE state WHEN 'new' THEN 'paid' ELSE 'new' END;
UPDATE "My x"."Orders" SET id = id + 10, "A b" = 'c' WHERE state = 'new';
UPDATE plain SET a = a + 1;
UPDATE plain SET "B" = 8;
INSERT INTO off VALUES (1);
DELETE FROM off;
TRUNCATE "My x"."Orders"};
my $events = q{it's 1 update {"after": {"A b": "a", "state": "paid"}, "before": {"A b": "a", "state": "new"}}
it's 2 update {"after": {"A b": "b", "state": "new"}, "before": {"A b": "b", "state": "paid"}}
it's 12 update {"after": {"A b": "c", "state": "new"}, "before": {"A b": "b", "state": "new"}}
plain 1 update {"B": 8}
plain 2 update {"B": 8}
off 1 insert {"id": 1}
it's truncate};

my $before = $node->safe_psql('source', $definitions);
quiet_ok('pg_dump', 'pg_dump', '-f', "$tmp/capture.sql", $node->connstr('source'));
quiet_ok('pg_dump -Fc', 'pg_dump', '-Fc', '-f', "$tmp/capture.dump", $node->connstr('source'));
told('source');
$node->safe_psql('source', $changes);
is(told('source'), $events, 'source: events');
my %restore = (
	plain_text => [ 'psql', '-Xq', '-o', "$tmp/out", '-v', 'ON_ERROR_STOP=1', '-f', "$tmp/capture.sql", '-d' ],
	custom => [ 'pg_restore', '-j', '2', '-d' ]);
foreach my $db (sort keys %restore)
{
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0");
	quiet_ok("restore $db", @{ $restore{$db} }, $node->connstr($db), $db eq 'custom' ? "$tmp/capture.dump" : ());
	is($node->safe_psql($db, $definitions), $before, "$db: triggers are the same");
	$node->safe_psql($db, 'DELETE FROM idemq.outbox');
	$node->safe_psql($db, $changes);
	is(told($db), $events, "$db: events are the same");
	$node->safe_psql($db, q{
SET ROLE keeper; CREATE TABLE "My x".orders_late PARTITION OF "My x"."Orders" FOR VALUES IN ('late')});
	$node->safe_psql($db, q{INSERT INTO "My x"."Orders" VALUES (1, 'a', 'late', 1); UPDATE "My x".orders_late SET "A b" = 'd'});
	like(told($db), qr/^it's 1 update /, "$db: the owner adds partitions, and they are captured");
}

# Prepared: told when it commits, not told when it is rolled back; with a row
# that left what is captured, and has to be told of at the end.
$node->safe_psql('postgres', q{
CREATE TABLE tree (id int, part int) PARTITION BY LIST (part);
CREATE TABLE tree_1 PARTITION OF tree FOR VALUES IN (1) PARTITION BY LIST (id);
CREATE TABLE tree_11 PARTITION OF tree_1 DEFAULT;
CREATE TABLE tree_2 PARTITION OF tree FOR VALUES IN (2);
INSERT INTO tree VALUES (1, 1), (2, 1);
SELECT outbox_capture('tree_1', key_columns => '{id}')});
$node->safe_psql('postgres', q{BEGIN; UPDATE tree SET part = 2 WHERE id = 1; PREPARE TRANSACTION 'one'});
$node->safe_psql('postgres', q{BEGIN; UPDATE tree SET part = 2 WHERE id = 2; PREPARE TRANSACTION 'two'});
is(told('postgres'), '', 'prepared: not yet');
$node->stop('immediate');
$node->start;
$node->safe_psql('postgres', q{COMMIT PREPARED 'one'});
$node->safe_psql('postgres', q{ROLLBACK PREPARED 'two'});
is(told('postgres'), 'tree_1 1 delete {"id": 1, "part": 1}', 'prepared: told of what was committed');

# A subscriber does not tell again what its publisher has told.
$node->safe_psql('postgres', q{
CREATE TABLE copied (id int PRIMARY KEY, v int);
INSERT INTO copied VALUES (1, 1);
SELECT outbox_capture('copied');
CREATE PUBLICATION p FOR TABLE copied});
my $subscriber = idemq_node('subscriber');
my $connstr = $node->connstr . ' dbname=postgres';
$subscriber->safe_psql('postgres', q{
CREATE TABLE copied (id int PRIMARY KEY, v int);
SELECT outbox_capture('copied')});
$subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p");
$subscriber->wait_for_subscription_sync($node, 's');
$node->safe_psql('postgres', q{UPDATE copied SET v = 2; INSERT INTO copied VALUES (2, 2)});
$node->wait_for_catchup('s');
is($subscriber->safe_psql('postgres', q{SELECT string_agg(concat_ws(' ', id, v), ', ' ORDER BY id) FROM copied}), '1 2, 2 2',
	'subscriber: has the rows');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM idemq.outbox}), '0', 'subscriber: tells nothing');
$subscriber->safe_psql('postgres', q{UPDATE copied SET v = 3});
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM idemq.outbox}), '2', 'subscriber: but of changes of its own');
$subscriber->safe_psql('postgres', q{DROP SUBSCRIPTION s});
$subscriber->stop;

# Many rows, moved ones too: what is needed for one is given back before the next.
$node->safe_psql('postgres', q{
CREATE TABLE many (id int, part int, v text) PARTITION BY LIST (part);
CREATE TABLE many_1 PARTITION OF many FOR VALUES IN (1);
CREATE TABLE many_2 PARTITION OF many FOR VALUES IN (2);
INSERT INTO many SELECT i, 1, repeat('x', 200) FROM generate_series(1, 100000) AS i;
SELECT outbox_capture('many', key_columns => '{id}');
CREATE TABLE peak (what text, kb int)});
my $context_peak = q{
CREATE FUNCTION kb() RETURNS int LANGUAGE sql AS $$
	SELECT (regexp_match(pg_read_file('/proc/self/status'), 'VmHWM:\s*(\d+) kB'))[1]::int $$};
SKIP:
{
	skip 'no /proc', 2 if !-r '/proc/self/status';
	$node->safe_psql('postgres', $context_peak);

	# shared_buffers count as soon as they are touched: touch them all first
	my $grown = $node->safe_psql('postgres', q{
SET work_mem = '1MB';
UPDATE many SET v = v || 'y';
UPDATE many SET part = 3 - part;
SELECT 'kb ' || kb();
UPDATE many SET v = v || 'y';
UPDATE many SET part = 3 - part;
UPDATE many SET v = v || 'y';
SELECT 'kb ' || kb()});
	my ($first, $last) = $grown =~ /kb (\d+)/g;
	cmp_ok($last - $first, '<', 20_000, 'many rows: memory does not grow with them');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM idemq.outbox WHERE aggregatetype = 'many'}), '500000', 'and all are told');
}

# Generated columns that are not stored are computed.
SKIP:
{
	skip 'no virtual generated columns', 1 if $version < 18;
	told('postgres');
	$node->safe_psql('postgres', q{
CREATE TABLE computed (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL);
SELECT outbox_capture('computed', columns => '{twice}', key_columns => '{twice}', condition => 'NEW.twice > 0', operations => '{insert,update}');
INSERT INTO computed VALUES (1, 1), (2, 0);
UPDATE computed SET a = 4;
UPDATE computed SET a = 4});
	is(told('postgres'), qq{computed 2 insert {"twice": 2}\ncomputed 8 update {"twice": 8}\ncomputed 8 update {"twice": 8}},
		'virtual columns');
}

$node->stop;
done_testing();
