# A pg_dump while the ledgers turn over: the position of every shard is in it,
# also when it waits between its snapshot and its locks, so that a ledger that its
# snapshot shows has been emptied when it gets there.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IdemqTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = idemq_node('main', 'idemq.naptime' => '1s', 'idemq.test_without' => 'turn_time');

if (!is_test_build($node))
{
	$node->stop;
	plan skip_all => 'needs TEST_BUILD=1';
}

# one is at work, the others have been idle for long
$node->safe_psql('postgres', q{
SELECT outbox_subscribe('busy', shards => 2);
SELECT outbox_subscribe('idle', shards => 3);
SELECT outbox_subscribe('free', ordered => false);
SELECT outbox_emit('order', NULL, i::text, 'early') FROM generate_series(1, 50) AS i;
-- the name comes before those of our tables
CREATE SCHEMA a;
CREATE TABLE a.a ()});
$node->safe_psql('postgres', qq{SELECT count(outbox_ack(token)) FROM (SELECT DISTINCT token FROM outbox_fetch('$_')) AS t})
  foreach qw(idle idle idle free);
# a lease that is out
is($node->safe_psql('postgres', q{SELECT outbox_emit('order', NULL, 'k', 'leased') IS NOT NULL}), 't', 'one more event');
my $token = '';
foreach (1 .. 20)
{
	$token = $node->safe_psql('postgres', q{SELECT max(token) FROM outbox_fetch('free', 100, '1 hour')});
	last if $token ne '';
}
isnt($token, '', 'a lease is out');

my $script = "$PostgreSQL::Test::Utils::tmp_check/busy.sql";
open my $file, '>', $script or die "$script: $!";
print $file q{
SELECT outbox_emit('order', NULL, 'b', 'more');
SELECT coalesce(max(token), 0) AS token FROM outbox_fetch('busy', 10) \gset
\if :token > 0
	SELECT outbox_ack(:token);
\endif
};
close $file;
my ($out, $err) = ('', '');
my $work = IPC::Run::start([ 'pgbench', '-n', '-T', 600, '-R', 50, '-f', $script, $node->connstr('postgres') ],
	'>', \$out, '2>', \$err);

sub turn
{
	return $node->safe_psql('postgres', 'SELECT coalesce(max(turn), 0) FROM idemq.turn');
}

# Waits until the ledgers have turned over once more.
sub wait_for_turn
{
	my ($turn) = @_;

	return $node->poll_query_until('postgres', "SELECT coalesce(max(turn), 0) > $turn FROM idemq.turn");
}

# Which shards have their position in a dump, and is the lease there?
sub positions
{
	my ($dump) = @_;
	my %found;
	my $in = 0;

	foreach (split /\n/, slurp_file($dump))
	{
		$in = 1, next if /^COPY idemq\.ledger_\d /;
		$in = 0 if $_ eq '\.';
		next unless $in;
		my ($consumer, $shard) = split /\t/;
		$found{"$consumer/$shard"} = 1;
		$found{lease} = 1 if /\t$token\t/;
	}
	return join ' ', sort keys %found;
}

my $all = '1/0 1/1 2/0 2/1 2/2 3/0 lease';

ok(wait_for_turn(turn() + 2), 'the ledgers turn over');
my $turned = 0;
foreach my $round (1 .. 8)
{
	my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump$round.sql";
	my ($dump_out, $dump_err) = ('', '');
	my $before = turn();
	my $locker = session($node);

	$locker->query('BEGIN; LOCK TABLE a.a') if $round % 2;
	my $run = IPC::Run::start([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], '>', \$dump_out, '2>', \$dump_err);
	if ($round % 2)
	{
		ok( $node->poll_query_until('postgres', q{
SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'LOCK TABLE'}),
			"dump $round waits for a lock");
		$before = turn();
		ok(wait_for_turn($before), "dump $round: meanwhile the ledgers turn over");
		$locker->query('COMMIT');
	}
	ok($run->finish, "dump $round is made") or diag $dump_err;
	$turned++ if turn() > $before;
	is(positions($dump), $all, "dump $round: every position is in it");
	$locker->quit;
}
cmp_ok($turned, '>=', 4, 'the ledgers turned over during dumps');

$work->signal('INT');
eval { $work->finish };
is($node->safe_psql('postgres', "SELECT outbox_ack($token) > 0"), 't', 'the lease is still good');

$node->stop;
done_testing();
