# No bloat: events are written and consumed at a steady rate under a REPEATABLE READ
# transaction that keeps the server from cleaning up.  No table of idemq's
# collects dead tuples, however many events go through; the ledgers turn
# over; and at the end it goes as fast as in the beginning.
#
# OUTBOX_BLOAT_SECONDS=120	how long that takes

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

my $seconds = $ENV{OUTBOX_BLOAT_SECONDS} || 120;
my $rate = 100;    # transactions of writers a second, two events each

my $node = idemq_node(
	'main',
	'idemq.naptime' => '1s',
	'idemq.outbox_retention' => '10s',
	'idemq.partition_interval' => '10s');
my $tmp = $PostgreSQL::Test::Utils::tmp_check;

$node->safe_psql('postgres', q{
CREATE EXTENSION IF NOT EXISTS pgstattuple;
SELECT outbox_subscribe('ordered', shards => 2, retry_ladder => '1s');
SELECT outbox_subscribe('free', ordered => false, retry_ladder => '1s')});

# A script for pgbench.
sub script
{
	my ($name, $text) = @_;

	open my $file, '>', "$tmp/$name.sql" or die "$name: $!";
	print $file $text;
	close $file;
	return "$tmp/$name.sql";
}

my $writer = script('writer', q{
\set key random(1, 1000)
SELECT outbox_emit('order', '{"some": "payload"}', :key::text, 'one'), outbox_emit('order', '{"some": "payload"}', NULL, 'two');
});

# One in fifty batches has an event that fails.
sub consumer
{
	my ($name) = @_;

	return script($name, qq{
SELECT coalesce(max(token), 0) AS token, coalesce((array_agg(id))[1], gen_random_uuid()) AS id FROM outbox_fetch('$name', 100) \\gset
\\set nack random(1, 50)
\\if :token > 0
	\\if :nack = 1
		SELECT action FROM outbox_nack(:token, ':id', 'boom');
	\\endif
	SELECT outbox_ack(:token);
\\endif
});
}

# Starts pgbench with a script.
sub pgbench
{
	my ($script, @options) = @_;
	my %run;

	$run{handle} = IPC::Run::start(
		[ 'pgbench', '-n', '-T', $seconds, '-f', $script, @options, $node->connstr('postgres') ],
		'>', \$run{out}, '2>', \$run{err});
	return \%run;
}

# Dead tuples in all tables of idemq's, with their toast; and which have most.
my $dead = q{
WITH t AS (SELECT c.oid::regclass AS rel, (pgstattuple(c.oid::regclass)).dead_tuple_count AS dead
	FROM pg_class AS c WHERE c.relkind IN ('r', 't') AND (c.relnamespace = 'idemq'::regnamespace
		OR c.oid IN (SELECT reltoastrelid FROM pg_class WHERE relnamespace = 'idemq'::regnamespace)))
SELECT coalesce(sum(dead), 0), (SELECT string_agg(rel || ' ' || dead, ', ' ORDER BY dead DESC) FROM (SELECT * FROM t WHERE dead > 0 ORDER BY dead DESC LIMIT 5) AS m) FROM t};

# How far the consumers are.
sub delivered
{
	my ($n) = split /\|/, $node->safe_psql('postgres', q{SELECT coalesce(sum(delivered), 0) FROM idemq.consumers});
	return $n;
}

# an old snapshot, and an xid
my $old = session($node);
$old->set_query_timer_restart;    # its patience is for a query, not for the whole run
$old->query(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class; SELECT pg_current_xact_id()});

my $begun = time;
my @runs = (
	pgbench($writer, '-R', $rate),
	pgbench(consumer('ordered'), '-c', 2, '-R', 40),
	pgbench(consumer('free'), '-R', 20));
my $worst = 0;
my @counts;
my $most = '';

while (time - $begun < $seconds - 2)
{
	my ($ret, $out) = $node->psql('postgres', $dead);

	# a partition may go while it is looked at
	if ($ret == 0)
	{
		my ($n, $which) = split /\|/, $out, 2;

		($worst, $most) = ($n, $which) if $n > $worst;
	}
	push @counts, [ time - $begun, delivered() ];
	my $until = time + $seconds / 40;
	# sleep: until it is time for the next look
	usleep(50_000) while time < $until && time - $begun < $seconds - 2;
}
foreach my $run (@runs)
{
	ok($run->{handle}->finish, 'a client came to its end') or diag $run->{err};
}

my $events = $node->safe_psql('postgres', q{SELECT last_value FROM idemq.outbox_seq});
my $turns = $node->safe_psql('postgres', q{SELECT coalesce(max(turn), 0) FROM idemq.turn});
my ($first, $last) = ($counts[ @counts / 4 ], $counts[-1]);
my $middle = $counts[ @counts / 2 ];
diag(sprintf '%d events, %d turns, at most %d dead tuples (%s); delivered a second: %.0f in the first half, %.0f in the second',
	$events, $turns, $worst, $most,
	$middle->[1] / $middle->[0], ($last->[1] - $middle->[1]) / ($last->[0] - $middle->[0]));

cmp_ok($events, '>', $seconds * $rate, 'many events went through');
cmp_ok($worst, '<', 1000, 'dead tuples in all tables together');
cmp_ok($turns, '>=', 1, 'the ledgers turned over');
is($old->query('SELECT count(*) > 0 FROM pg_class'), 't', 'the old snapshot is still there');
ok( $node->poll_query_until('postgres', q{
SELECT max(upper) FILTER (WHERE state = 'closed') > min(lower) FILTER (WHERE isfinite(lower)) FROM idemq.partitions
WHERE parent = 'idemq.outbox'::regclass}), 'there were partitions');
cmp_ok($node->safe_psql('postgres', q{SELECT min(lower) FROM idemq.partitions WHERE parent = 'idemq.outbox'::regclass AND isfinite(lower)}),
	'gt', $node->safe_psql('postgres', q{SELECT min(created_at) FROM idemq.subscriptions}),
	'and the first of them are gone') if $seconds > 60;
$old->quit;

$node->stop;
done_testing();
