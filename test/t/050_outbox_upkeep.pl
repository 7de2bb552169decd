# Looking after the outbox: the worker makes its partitions once something is
# emitted, lets them go when everybody has passed, and turns the ledgers over;
# a pg_dump in between finds every position.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

my $node = idemq_node('main', 'idemq.naptime' => '1s', 'idemq.premake' => '2', 'log_min_messages' => 'log');
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $leaves = q{idemq.partitions WHERE parent = 'idemq.outbox'::regclass AND state <> 'permanent'};

plan skip_all => 'needs the test build' unless is_test_build($node);

# Not before the first event; claims are another matter.

$node->safe_psql('postgres', q{SELECT idem_claim('a')});
ok( $node->poll_query_until('postgres',
		q{SELECT max(upper) > now() + interval '2 days' FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass}),
	'a claim has partitions for claims made');
is($node->safe_psql('postgres', "SELECT count(*) FROM $leaves"), '0', 'and none of the outbox');
$node->safe_psql('postgres', q{SELECT outbox_subscribe('c', start_at => 'earliest'); SELECT outbox_emit('order', '1')});
ok($node->poll_query_until('postgres', "SELECT max(upper) > now() + interval '2 days' FROM $leaves"),
	'an event has them made');
$node->safe_psql('postgres', q{SELECT outbox_emit('order', '2'); INSERT INTO idemq.outbox (aggregatetype) VALUES ('order')});
is($node->safe_psql('postgres', q{SELECT string_agg(p.state, ' ' ORDER BY o.seq) FROM idemq.outbox o JOIN idemq.partitions p ON p.leaf = o.tableoid}),
	'permanent current current', 'events go where they belong');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM idemq.checkpoints}), 'there are checkpoints');

# A restored database is left alone until then.

$node->safe_psql('postgres', 'CREATE DATABASE restored TEMPLATE template0');
$node->command_ok([ 'pg_dump', '-f', "$tmp/first.sql", $node->connstr('postgres') ], 'dump');
$node->command_checks_all(
	[ 'psql', '-Xq', '-o', "$tmp/out", '-v', 'ON_ERROR_STOP=1', '-f', "$tmp/first.sql", '-d', $node->connstr('restored') ],
	0, [], [qr/^$/], 'restore');
$node->safe_psql('postgres', q{ALTER DATABASE restored SET idemq.premake = 5; ALTER DATABASE restored SET idemq.test_clock_offset = 86400});
my $before = $node->safe_psql('restored', "SELECT count(*) FROM $leaves");
wait_for_quiet($node);
is($node->safe_psql('restored', "SELECT count(*) FROM $leaves"), $before, 'a restored database keeps its partitions');
is($node->safe_psql('restored', 'SELECT count(*) FROM idemq.outbox'), '3', 'events');
is($node->safe_psql('restored', 'SELECT count(*) FROM idemq._positions WHERE entry IS NOT NULL'), '1', 'and positions');
$node->safe_psql('restored', q{SELECT outbox_emit('order', '4')});
ok($node->poll_query_until('restored', "SELECT count(*) > $before FROM $leaves"), 'and gets new ones after its first event');
$node->safe_psql('postgres', 'DROP DATABASE restored WITH (FORCE)');

# Partitions of a second, and ledgers that turn over as fast as they may, with
# writers and consumers at it, under a snapshot that is as old as all of that.

my $db = 'busy';
$node->safe_psql('postgres', qq{
CREATE DATABASE $db;
ALTER DATABASE $db SET idemq.partition_interval = '1s';
ALTER DATABASE $db SET idemq.outbox_retention = '2s';
ALTER DATABASE $db SET idemq.test_without = 'turn_time'});
$node->safe_psql($db, q{
CREATE EXTENSION idemq;
CREATE TABLE delivered (consumer text, id uuid);
CREATE PROCEDURE consume(name text) LANGUAGE plpgsql AS $$
DECLARE
	t bigint;
BEGIN
	WITH f AS MATERIALIZED (SELECT * FROM outbox_fetch(name, 20)),
		d AS (INSERT INTO delivered SELECT name, f.id FROM f)
	SELECT max(token) INTO t FROM f;
	IF t IS NOT NULL THEN
		PERFORM outbox_ack(t);
	END IF;
END $$;
SELECT outbox_subscribe('one', start_at => 'earliest');
SELECT outbox_subscribe('three', start_at => 'earliest', shards => 3);
SELECT outbox_subscribe('rare', aggregatetypes => '{rare}')});
my $old = session($node, $db);
$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->query('SELECT pg_current_xact_id()');

append_to_file("$tmp/emit.sql", qq{SELECT outbox_emit('order', '{"a": 1}', (:client_id + 1)::text);\n\\sleep 20 ms\n});
append_to_file("$tmp/consume.sql", "CALL consume('one');\nCALL consume('three');\n\\sleep 40 ms\n");
my @pgbench = map {
	IPC::Run::start([ 'pgbench', '-n', '-c', '2', '-T', '10', '-f', "$tmp/$_.sql", $node->connstr($db) ],
		'>', "$tmp/$_.out", '2>', "$tmp/$_.err")
} qw(emit consume);

# While that goes on, dumps.  Of each shard the dump must have a row that is not
# older than the latest before it began.
my $dumps = 0;
my @missing;
my $positions = q{SELECT consumer || '-' || shard || '-' || entry FROM idemq._positions};

sub missing_in
{
	my ($file, @shards) = @_;
	my (%entry, $in, @gone);

	foreach (split /\n/, slurp_file($file))
	{
		$in = 1 if /^COPY idemq\.ledger_\d /;
		$in = 0 if /^\\\.$/;
		$entry{"$1-$2"} = $3 if $in && /^(\d+)\t(\d+)\t(\d+)\t/ && $3 > ($entry{"$1-$2"} // 0);
	}
	foreach (@shards)
	{
		my ($shard, $entry) = /^(\d+-\d+)-(\d+)$/ or die $_;
		push @gone, "$_ (" . ($entry{$shard} // 'none') . ')' if ($entry{$shard} // 0) < $entry;
	}
	return @gone;
}

# One whose partition goes between its snapshot and its locks fails, and is tried again.
while ($pgbench[0]->pumpable)
{
	my @shards = split /\n/, $node->safe_psql($db, $positions);

	if (IPC::Run::run([ 'pg_dump', '-f', "$tmp/dump.sql", $node->connstr($db) ], '2>', "$tmp/dump.err"))
	{
		push @missing, missing_in("$tmp/dump.sql", @shards);
		$dumps++;
	}
	elsif (slurp_file("$tmp/dump.err") !~ /relation "idemq\.outbox_p\d+_\d+" does not exist/)
	{
		push @missing, slurp_file("$tmp/dump.err");
	}
	eval { $pgbench[0]->pump_nb };	# dies when it has ended
}
$_->finish foreach @pgbench;
like(slurp_file("$tmp/$_.out"), qr/^number of failed transactions: 0 /m, 'pgbench') foreach qw(emit consume);
cmp_ok($dumps, '>', 3, 'there were dumps');
is(join(', ', @missing), '', "$dumps dumps while the ledgers turn over: every position is in them");
cmp_ok($node->safe_psql($db, 'SELECT max(turn) FROM idemq.turn'), '>', 1, 'they do turn over');
$node->safe_psql($db, q{CALL consume('one'); CALL consume('three')}) foreach 1 .. 10;
my $gone = $node->safe_psql($db, q{SELECT last_value FROM idemq.outbox_seq});
is($node->safe_psql($db, q{SELECT consumer, count(DISTINCT id), count(*) FROM delivered GROUP BY 1 ORDER BY 1}),
	"one|$gone|$gone\nthree|$gone|$gone", 'every event was delivered, once');
ok($node->poll_query_until($db, q{SELECT count(*) = 0 FROM idemq.outbox o JOIN idemq.partitions p ON p.leaf = o.tableoid WHERE p.state = 'expired'}),
	'what everybody has passed goes, under the old snapshot');
ok($node->poll_query_until($db, q{
SELECT count(*) < 25 FROM idemq.partitions WHERE parent = 'idemq.outbox'::regclass}), 'partitions and all');
$node->safe_psql($db, 'SELECT pg_stat_force_next_flush()');
cmp_ok($node->safe_psql($db, q{
SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'idemq'}), '<', 200, 'with few dead rows');
$old->quit;

# A dump that has its snapshot, and waits for its locks while the next turn begins.

$db = 'slow';
$node->safe_psql('postgres', "CREATE DATABASE $db");
$node->safe_psql($db, q{
CREATE TABLE in_the_way (a int);
CREATE EXTENSION idemq;
SELECT outbox_subscribe('c', shards => 4)});
set_without('worker,turn_time');
wait_for_quiet($node);

sub set_without
{
	my ($what) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET idemq.test_without = '$what'");
	$node->reload;
	return $node->poll_query_until('postgres', "SELECT current_setting('idemq.test_without') = '$what'");
}

# One turn more.  The first shard has something to write, the others have not.
sub next_turn
{
	my $turn = q{SELECT coalesce(max(turn), 0) FROM idemq.turn};
	my $from = $node->safe_psql($db, $turn);

	$node->safe_psql($db, q{SELECT outbox_seek('c', now())});
	foreach (1 .. 10)
	{
		$node->safe_psql($db, 'CALL idem_maintain()');
		return if $node->safe_psql($db, $turn) > $from;
	}
	die 'no turn';
}

my $errors = '';
foreach my $round (1 .. 4)
{
	my $blocker = session($node, $db);
	my @shards;

	next_turn();
	$blocker->query('BEGIN');
	$blocker->query('LOCK TABLE in_the_way');
	@shards = split /\n/, $node->safe_psql($db, $positions);
	my $dump = IPC::Run::start([ 'pg_dump', '-f', "$tmp/slow.sql", $node->connstr($db) ]);
	$node->poll_query_until('postgres', q{
SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'LOCK TABLE %in_the_way%' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()})
	  or die 'the dump does not wait';
	next_turn();
	$blocker->query('COMMIT');
	$dump->finish;
	$errors .= join ', ', missing_in("$tmp/slow.sql", @shards);
	$blocker->quit;
}
is($errors, '', 'a dump that waits while the ledgers turn over has every position');

$node->stop;
done_testing();
