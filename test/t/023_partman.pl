# idemq.partition_manager = pg_partman, with the real extension: it makes the
# partitions, the promises stay the same, and nobody can use it to have code of
# theirs run as the owner.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

my $node = idemq_node('main', 'idemq.naptime' => '1s');

plan skip_all => 'pg_partman is not installed'
  if $node->safe_psql('postgres',
	q{SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_partman'}) eq '0';

# What a query returns, or the error's number and message.
sub result
{
	my ($sql, $db) = @_;
	my ($ret, $out, $err) = $node->psql($db // 'postgres', "\\set VERBOSITY verbose\n$sql");

	return $ret == 0 && $err !~ /another maintenance round/ ? $out : $err;
}

# Calls idem_maintain() after some settings, once the worker is not at it.
sub maintain
{
	my ($settings, $db) = @_;

	foreach (1 .. 1000)
	{
		my $result = result("SET client_min_messages = notice; $settings; CALL idem_maintain()", $db);
		return $result unless $result =~ s/.*another maintenance round.*//s;
	}
	return 'the other round did not end';
}

# Sets a setting for everybody.
sub set_everywhere
{
	my ($name, $value) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $name = '$value'");
	$node->reload;
	return $node->poll_query_until('postgres', "SELECT current_setting('$name') = '$value'");
}

# pg_partman leaves the name of an index to the server, idemq does not.
my $made_by = q{
CREATE VIEW made_by AS
SELECT p.leaf, p.lower, p.upper, p.state,
	CASE WHEN i.relname ~ '_digest_idx$' THEN 'pg_partman' ELSE 'builtin' END AS manager
FROM idemq.partitions p
JOIN pg_index x ON x.indrelid = p.leaf
JOIN pg_class i ON i.oid = x.indexrelid
WHERE p.parent = 'idemq.processed'::regclass AND p.state <> 'permanent'};

# Not there: an error that says what to do, and claims go on.

$node->safe_psql('postgres', $made_by);
set_everywhere('idemq.partition_manager', 'pg_partman');
like(maintain(''),
	qr/ERROR:  42704: extension "pg_partman" is not installed.*CREATE EXTENSION pg_partman/s,
	'without pg_partman: an error with a hint');
is(status_of($node, 'partition_manager'), 'problem', 'and a problem in idem_status()');
is($node->safe_psql('postgres', q{SELECT idem_claim('early')}), 't', 'claims go on');
ok( $node->poll_query_until('postgres',
		q{SELECT status = 'problem' AND detail LIKE '%pg_partman%' FROM idem_status() WHERE check_name = 'worker'}),
	'the worker says it too');

# There: what default privileges give away must not reach the partitions.

$node->safe_psql('postgres', q{
CREATE ROLE idemq_joe;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO idemq_joe;
CREATE SCHEMA partman;
CREATE EXTENSION pg_partman SCHEMA partman});
ok($node->poll_query_until('postgres', q{
SELECT count(*) >= 5 AND min(lower) <= now() AND max(upper) > now() + interval '4 days' FROM made_by}),
	'the worker has partitions made');
is($node->safe_psql('postgres', 'SELECT DISTINCT manager FROM made_by'),
	'pg_partman', 'by pg_partman');
is(status_of($node, 'partition_manager'), 'ok', 'idem_status() is content');
is($node->safe_psql('postgres', q{
SET timezone = 'UTC';
SELECT DISTINCT leaf::text = to_char(lower, '"idemq.processed_p"YYYYMMDD') AND upper - lower = interval '1 day'
FROM made_by}),
	't', 'with the names and bounds that idemq gives them');
is($node->safe_psql('postgres', q{
SELECT DISTINCT c.reloptions, c.relreplident, c.relpersistence, a.amname,
	ARRAY(SELECT grantee FROM aclexplode(c.relacl) WHERE grantee <> c.relowner)
FROM made_by m JOIN pg_class c ON c.oid = m.leaf JOIN pg_am a ON a.oid = c.relam}),
	'{vacuum_truncate=off}|f|p|heap|{}', 'options, replica identity and privileges are as they must be');
is($node->safe_psql('postgres', q{
SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT'}),
	'0', 'there is no DEFAULT partition');
is($node->safe_psql('postgres', q{
SELECT automatic_maintenance, retention IS NULL, infinite_time_partitions, template_table, premake
FROM partman.part_config WHERE parent_table = 'idemq.processed'}),
	'off|t|t|idemq.processed_template|4', 'the table is registered');

is(result(q{
SELECT idem_claim('early'), idem_claim('day'), idem_claim('day'), idem_try_claim('early')}),
	'f|t|f|duplicate', 'keys are remembered across partitions');
is(result(q{SELECT state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND leaf = (SELECT tableoid FROM idemq.processed WHERE key = 'day')}),
	'current', 'claims go where they belong');
is(leaf_errors($node), '', 'rows say where they are');
is(result('SELECT partman.run_maintenance(); SELECT count(*) FROM partman.check_default()'), "\n0",
	'pg_partman by itself leaves the table alone');

# The outbox, once something is emitted.

is(result(q{SELECT count(*) FROM partman.part_config WHERE parent_table = 'idemq.outbox'}), '0', 'the outbox is left alone while nothing is emitted');
$node->safe_psql('postgres', q{INSERT INTO idemq.outbox (aggregatetype) VALUES ('order')});
ok($node->poll_query_until('postgres', q{
SELECT count(*) >= 5 AND max(upper) > now() + interval '4 days' FROM idemq.partitions WHERE parent = 'idemq.outbox'::regclass AND state <> 'permanent'}),
	'then the worker has partitions of it made');
is($node->safe_psql('postgres', q{
SET timezone = 'UTC';
SELECT DISTINCT p.leaf::text = to_char(p.lower, '"idemq.outbox_p"YYYYMMDD'), c.reloptions, a.amname,
	ARRAY(SELECT grantee FROM aclexplode(c.relacl) WHERE grantee <> c.relowner),
	ARRAY(SELECT regexp_replace(pg_get_indexdef(indexrelid), '.* USING ', '') FROM pg_index WHERE indrelid = c.oid ORDER BY 1)
FROM idemq.partitions p JOIN pg_class c ON c.oid = p.leaf JOIN pg_am a ON a.oid = c.relam
WHERE p.parent = 'idemq.outbox'::regclass AND p.state <> 'permanent'}),
	't|{vacuum_truncate=off}|heap|{}|{"btree (seq)","btree (xid, seq)"}', 'as they must be');
is($node->safe_psql('postgres', q{
SELECT automatic_maintenance, retention IS NULL, infinite_time_partitions, template_table, premake
FROM partman.part_config WHERE parent_table = 'idemq.outbox'}),
	'off|t|t|idemq.outbox_template|4', 'the table is registered');
$node->safe_psql('postgres', q{INSERT INTO idemq.outbox (aggregatetype) VALUES ('order')});
is($node->safe_psql('postgres', q{
SELECT string_agg(p.state, ' ' ORDER BY o.seq) FROM idemq.outbox o JOIN idemq.partitions p ON p.leaf = o.tableoid}),
	'permanent current', 'events go where they belong');

# Its configuration is ours.

$node->safe_psql('postgres', q{
CREATE TABLE other (LIKE idemq.processed);
UPDATE partman.part_config
SET retention = '1 second', retention_keep_table = false, automatic_maintenance = 'on', template_table = 'public.other'
WHERE parent_table = 'idemq.processed'});
maintain('SET idemq.premake = 6');
is($node->safe_psql('postgres', q{
SELECT retention IS NULL, retention_keep_table, automatic_maintenance, template_table FROM partman.part_config
WHERE parent_table = 'idemq.processed'}),
	't|t|off|idemq.processed_template', 'what somebody wrote into part_config is set back');
is(result(q{SELECT count(*), min(manager) FROM made_by WHERE upper > now()}),
	'7|pg_partman', 'another premake is heeded');

# Who could have code of theirs run by it?

my $refused = qr/ERROR:  42501: extension "pg_partman" is not used/;
my %trap = (
	'the right to create in its schema' => [
		'GRANT CREATE ON SCHEMA partman TO idemq_joe',
		'REVOKE CREATE ON SCHEMA partman FROM idemq_joe' ],
	'a function of its' => [
		'ALTER FUNCTION partman.check_name_length OWNER TO idemq_joe',
		'ALTER FUNCTION partman.check_name_length OWNER TO CURRENT_USER' ],
	'its configuration' => [
		'ALTER TABLE partman.part_config OWNER TO idemq_joe',
		'ALTER TABLE partman.part_config OWNER TO CURRENT_USER' ],
	'its schema' => [
		'ALTER SCHEMA partman OWNER TO idemq_joe',
		'ALTER SCHEMA partman OWNER TO CURRENT_USER' ],
	'a trigger on its configuration' => [
		q{GRANT USAGE ON SCHEMA partman TO idemq_joe; GRANT TRIGGER ON partman.part_config TO idemq_joe;
GRANT CREATE ON SCHEMA public TO idemq_joe; SET SESSION AUTHORIZATION idemq_joe;
CREATE FUNCTION public.trap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN ALTER ROLE idemq_joe SUPERUSER; RETURN NEW; END';
CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON partman.part_config FOR EACH ROW EXECUTE FUNCTION public.trap();
RESET SESSION AUTHORIZATION;
UPDATE pg_trigger SET tgenabled = 'D' WHERE tgname = 'trap';
DELETE FROM partman.part_config; UPDATE pg_trigger SET tgenabled = 'A' WHERE tgname = 'trap'},
		'DROP FUNCTION public.trap() CASCADE' ]);
foreach my $what (sort keys %trap)
{
	$node->safe_psql('postgres', "SET allow_system_table_mods = on; $trap{$what}[0]");
	like(maintain(''), $refused, "not used while idemq_joe has $what");
	$node->safe_psql('postgres', $trap{$what}[1]);
}
is(result(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'idemq_joe'}), 'f', 'idemq_joe is nobody');
is(maintain(''), '', 'then it is used again');

# Another session's temporary objects cannot be in the way, and one's own
# either are not or it says so.
like(maintain(q{
CREATE TEMP VIEW pg_namespace AS SELECT 1/0 AS oid;
CREATE TEMP VIEW pg_class AS SELECT 1/0 AS oid;
SET idemq.premake = 7}),
	qr/^$|ERROR:  55000: .*temporary objects/, 'temporary tables do not stand in for others');

# A table that has a partition's name is nothing to go on with silently.
my $taken = result(q{
SET timezone = 'UTC'; SELECT to_char(max(upper), '"processed_p"YYYYMMDD') FROM made_by});
$node->safe_psql('postgres', "CREATE TABLE idemq.$taken (a int)");
like(maintain('SET idemq.premake = 9'),
	qr/ERROR:  55000: pg_partman did not make the partition/, 'a name that is taken');
$node->safe_psql('postgres', "DROP TABLE idemq.$taken");

# Shorter partitions, after the day-long ones are used up: start anew.  Between
# managers and intervals there are gaps to fill; claims go on all the while.

$node->safe_psql('postgres', q{
DROP EXTENSION idemq CASCADE;
ALTER SYSTEM SET idemq.partition_interval = '1s';
ALTER SYSTEM SET idemq.premake = 2});
$node->reload;
$node->safe_psql('postgres', "CREATE EXTENSION idemq; $made_by");
$node->safe_psql('postgres', q{CREATE TABLE effect (key text); SELECT idem_claim('first')});
ok($node->poll_query_until('postgres', q{
SELECT state = 'current' AND manager = 'pg_partman' FROM made_by WHERE lower <= clock_timestamp() AND upper > clock_timestamp()}),
	'partitions of a second');

foreach my $manager (qw(builtin pg_partman builtin pg_partman))
{
	my $traffic = start_traffic($node, "traffic_$manager", map { "$manager$_" } 1 .. 300);

	set_everywhere('idemq.partition_manager', $manager);
	ok($node->poll_query_until('postgres', qq{
SELECT count(*) > 0 FROM made_by WHERE manager = '$manager' AND lower > (SELECT max(lower) FROM made_by WHERE manager <> '$manager')}),
		"$manager takes over");
	is(result(q{SELECT idem_try_claim('first')}), 'duplicate', 'keys are remembered');
	finish_traffic($traffic);
}
is(effect_errors($node), '', 'each key has its effect, once')
  if $node->safe_psql('postgres', q{DELETE FROM idemq.processed WHERE key = 'first'; SELECT true});
is(leaf_errors($node), '', 'rows say where they are');

# Odd intervals: what is shorter than the interval idemq makes itself.
maintain(q{SET idemq.partition_interval = '7s'; SET idemq.premake = 3});
is($node->safe_psql('postgres', q{
SELECT count(*) > 0 FROM made_by
WHERE manager = 'pg_partman' AND upper - lower = interval '7s'
	AND extract(epoch FROM lower - '2000-01-01 00:00+00')::bigint % 7 = 0}),
	't', 'after another interval the bounds are multiples of it');
is($node->safe_psql('postgres', q{
SELECT count(*) FROM (SELECT lower, lag(upper) OVER (ORDER BY lower) AS before FROM made_by) m WHERE lower > before + interval '1min'}),
	'0', 'there is no gap');

# Expiry is idemq's business, and the permanent partition stays.
$node->safe_psql('postgres', q{SELECT idem_claim('old')});
set_everywhere('idemq.retention', '1s');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idemq.processed WHERE key = 'old'}),
	'partitions that pg_partman made expire');
is(result(q{SELECT to_regclass('idemq.processed_permanent') IS NOT NULL}), 't', 'the permanent one stays');
set_everywhere('idemq.retention', '7d');

# Dump and restore: the registration comes along, and goes on.
set_everywhere('idemq.partition_interval', '1d');
$node->safe_psql('postgres', q{SELECT idem_claim('kept')});
maintain('');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/partman.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_checks_all(
	[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ],
	0, [], [qr/^$/], 'restore');
is(result(q{SELECT idem_claim('kept'), idem_claim('new')}, 'restored'), 'f|t', 'keys are still refused');
maintain('SET idemq.premake = 12', 'restored');
is(result(q{
SELECT count(*), min(manager) FROM (SELECT manager FROM made_by WHERE upper > now() + interval '7 days' ORDER BY lower DESC LIMIT 4) m}, 'restored'),
	'4|pg_partman', 'partitions are made in the restored database');

$node->stop;
done_testing();
