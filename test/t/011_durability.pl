# What idemq says is durable.
#
# With synchronous_commit = off others see a commit that a power cut can take
# back.  So a refusal must flush the winner's commit, and a transaction that
# was told true must commit synchronously.  The power cut is an immediate stop
# while the WAL writer is held: what nobody has flushed is in WAL buffers and
# gone.  Each case runs twice, the second time with the protection taken out:
# then the row must be lost, or this test could not see the bug.
#
# There is no worker here: its commits would flush as well.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IdemqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idemq_node(
	'main',
	shared_preload_libraries => '',
	wal_writer_delay => '10s',
	wal_writer_flush_after => '1GB',
	bgwriter_lru_maxpages => 0,
	jit => 'off');

if (!is_test_build($node))
{
	$node->stop;
	plan skip_all => 'needs TEST_BUILD=1';
}

my $relaxed = "LOAD 'idemq'; SET synchronous_commit = off; SET idemq.durable_claims = off;";

# How the winner comes to hold the key, and what the other session does, which
# answers $expected.
my @cases = (
	{   name => 'idem_claim',
		ask => q{SELECT idem_claim('%s')},
		expected => 'f' },
	{   name => 'idem_try_claim',
		ask => q{SELECT idem_try_claim('%s')},
		expected => 'duplicate' },
	{   name => 'idem_claim_many',
		ask => q{SELECT idem_claim_many(ARRAY['%s'])},
		expected => '{f}' },
	{   name => 'idem_seen',
		ask => q{SELECT idem_seen('%s') IS NOT NULL},
		expected => 't' },
	{   name => 'claimed in a savepoint',
		win => q{BEGIN; SAVEPOINT a; SAVEPOINT b; SELECT idem_claim('%s'); RELEASE b; COMMIT},
		ask => q{SELECT idem_claim('%s')},
		expected => 'f' },
	{   name => 'REPEATABLE READ, committed after the snapshot',
		before => q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idemq.processed},
		ask => q{SELECT idem_claim('%s')},
		expected => 'f' },
	{   name => 'frozen',
		freeze => 1,
		ask => q{SELECT idem_claim('%s')},
		expected => 'f' },
	{   name => 'refused after a wait',
		wait => 1,
		ask => q{SELECT idem_claim('%s')},
		expected => 'f' });

# Brings the server to where only the case's own WAL is not flushed.
sub prepare
{
	my ($case) = @_;

	# full-page images and first extensions now, not later
	$node->safe_psql('postgres', q{CALL idem_maintain()});
	$node->safe_psql('postgres', q{SELECT idem_claim(gen_random_uuid()::text)});
	$node->safe_psql('postgres', q{VACUUM (FREEZE) idemq.processed}) if $case->{freeze};
	$node->safe_psql('postgres', q{SELECT idem_claim(gen_random_uuid()::text)});
	return;
}

my $serial = 0;

sub run_case
{
	my ($case, $without) = @_;
	my $key = sprintf 'key-%d', ++$serial;
	my $name = $case->{name} . ($without ? ", without $without" : '');

	prepare($case);
	my $winner = session($node);
	my $asker = session($node);
	$winner->query($relaxed);
	$asker->query($relaxed);
	$asker->query("SET idemq.test_without = '$without'") if $without;
	$asker->query($case->{before}) if $case->{before};
	my $asker_pid = backend_pid($asker);
	my $walwriter = stop_walwriter($node);
	my $flushed_before = $node->safe_psql('postgres', 'SELECT pg_current_wal_flush_lsn()');

	my $answer;
	if ($case->{wait})
	{
		is($winner->query("BEGIN; SELECT idem_claim('$key')"), 't', "$name: claimed");
		send_sql($asker, sprintf $case->{ask}, $key);
		wait_for_lock($node, $asker_pid);
		$winner->query('COMMIT');
		$answer = answer($asker);
	}
	else
	{
		is($winner->query(sprintf $case->{win} // q{SELECT idem_claim('%s')}, $key),
			't', "$name: claimed");
		if ($case->{freeze})
		{
			$winner->query(q{SET vacuum_freeze_min_age = 0; VACUUM (FREEZE, TRUNCATE off) idemq.processed});
			is( $winner->query(qq{
SELECT age(c.relfrozenxid) < age(p.xmin)
FROM idemq.processed p JOIN pg_class c ON c.oid = p.tableoid WHERE key = '$key'}),
				't', "$name: it is frozen");
		}
		my $flushed = $winner->query('SELECT pg_current_wal_flush_lsn()');
		is($flushed, $flushed_before, "$name: nothing was flushed so far");
		$answer = $asker->query(sprintf $case->{ask}, $key);
	}
	is($answer, $case->{expected}, "$name: answered $case->{expected}");

	crash($node, $walwriter);
	abandon($winner, $asker);

	my $there = $node->safe_psql('postgres',
		"SELECT idem_seen('$key') IS NOT NULL, idem_claim('$key')");
	is($there, $without ? 'f|t' : 't|f',
		$without ? "$name: it is lost, and this test sees it" : "$name: the winner's claim is there after the power cut");
	return;
}

foreach my $case (@cases)
{
	run_case($case);
	run_case($case, 'flush');
}

# an acknowledged true
foreach my $without ('', 'sync_commit')
{
	foreach my $ask ([ q{SELECT idem_claim('%s')}, 't' ],
		[ q{BEGIN; SELECT idem_try_claim('%s'); COMMIT}, 'claimed' ],
		[ q{BEGIN; SAVEPOINT a; SELECT idem_claim_many(ARRAY['%s']); RELEASE a; COMMIT}, '{t}' ])
	{
		my ($sql, $expected) = @$ask;
		my $key = sprintf 'key-%d', ++$serial;
		my $name = "durable_claims, $expected" . ($without ? ", without $without" : '');

		prepare({});
		my $winner = session($node);
		$winner->query("LOAD 'idemq'; SET synchronous_commit = off");
		$winner->query("SET idemq.test_without = '$without'") if $without;
		is($winner->query('SHOW idemq.durable_claims'), 'on', "$name: it is the default");
		my $walwriter = stop_walwriter($node);
		is($winner->query(sprintf $sql, $key), $expected, "$name: answered and committed");
		crash($node, $walwriter);
		abandon($winner);
		is( $node->safe_psql('postgres', "SELECT idem_seen('$key') IS NOT NULL, idem_claim('$key')"),
			$without ? 'f|t' : 't|f',
			$without ? "$name: it is lost, and this test sees it" : "$name: it survives the power cut");
	}
}

$node->stop;
done_testing();
