# The hammer with a retention of 5 s: keys become claimable again, and never
# before the retention is over.
#
# What is promised is counted from the claim (claimed_at) to the next claim
# that is told true, not from commit to commit: a transaction may have been
# open for most of the retention when it committed.
#
# HAMMER_SECONDS=25	how long the run takes

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Hammer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{HAMMER_SECONDS} || 25;
my $node = hammer_node('retention', 'idemq.retention' => "'5s'");
my $db = 'retention';

hammer_database($node, $db);
my $begun = time;
my $run = hammer_start($node, $db,
	clients => 8, seconds => $seconds, fixed => 40, longs => 2, audits => 0);

# operators are at work here, too, and once the worker has no slot for so long
# that a partition serves beyond its time, and must be kept for longer
my $starved = 0;
while (hammer_is_running($run))
{
	if (!$starved && time - $begun > $seconds / 3)
	{
		$starved = 1;
		my $psql = hammer_starve($node, $db, 7);
		$psql->finish if $psql;
	}
	foreach my $sql ('ANALYZE idemq.processed', 'VACUUM (FREEZE) idemq.processed')
	{
		my ($ret, $out, $err) = $node->psql($db, $sql);
		# partitions may go while one looks at them
		ok(0, "operator: $sql: $err") if $ret != 0 && $err !~ /does not exist|could not open relation/;
	}
	# sleep: between two rounds
	usleep(300_000);
}
my $count = hammer_finish($run);

is($count->{unexpected}, 0, 'no error but those that were provoked')
  or diag slurp_file("$run->{base}.err");
cmp_ok($count->{$_}, '>', 0, "there were: $_")
  foreach qw(won refused committed rolled_back prepared resolved savepoints batches terminated);

ok($starved, 'the worker was starved of slots');
is( $node->safe_psql(
		$db, q{SELECT count(*) FROM effect WHERE claimed_at IS NULL OR claimed_at > written_at}),
	'0', 'every claim saw itself');
is( $node->safe_psql(
		$db, q{
SELECT scope, key, claimed_at, gap
FROM (SELECT *, claimed_at - lag(claimed_at) OVER (PARTITION BY scope, key ORDER BY claimed_at) AS gap
	  FROM effect) AS e
WHERE gap < interval '5 s' ORDER BY gap LIMIT 20}),
	'', 'no two effects of a key are closer than the retention');
my ($again, $shortest, $longest) = split /\|/, $node->safe_psql(
	$db, q{
SELECT count(*), extract(epoch FROM min(gap)), extract(epoch FROM max(gap))
FROM (SELECT claimed_at - lag(claimed_at) OVER (PARTITION BY scope, key ORDER BY claimed_at) AS gap
	  FROM effect WHERE scope <> 'long') AS e
WHERE gap IS NOT NULL});
diag("$again keys were claimed again, after $shortest to $longest s");
cmp_ok($again, '>', 40, 'keys can be claimed again when the retention is over');

# what is there now has an effect, and nothing is there twice
is( $node->safe_psql(
		$db, q{
SELECT p.scope, p.key, count(*) FROM idemq.processed AS p
GROUP BY 1, 2 HAVING count(*) > 1 LIMIT 20}),
	'', 'no key has two rows');
is( $node->safe_psql(
		$db, q{
SELECT p.scope, p.key, p.claimed_at FROM idemq.processed AS p
WHERE NOT EXISTS (SELECT FROM effect AS e WHERE (e.scope, e.key, e.claimed_at) = (p.scope, p.key, p.claimed_at)) LIMIT 20}),
	'', 'every row has its effect');
is( $node->safe_psql($db, 'SELECT count(*) FROM pg_prepared_xacts'),
	'0', 'no prepared transaction is left');

# and all of it ends
cmp_ok(
	$node->safe_psql($db, q{SELECT count(*) FROM idemq.partitions WHERE state <> 'permanent' AND upper < now() - interval '1 min'}),
	'==', 0, 'partitions do not pile up');

# none may go while we look
$node->append_conf('postgresql.conf', 'idemq.expiry = off');
$node->reload;
ok( $node->poll_query_until($db,
		q{SELECT current_setting('idemq.expiry') = 'off' AND NOT EXISTS (
			SELECT FROM pg_stat_activity WHERE backend_type = 'idemq worker')}),
	'expiry has come to rest');
hammer_check_leaves($run);
hammer_check_log($node, "no slot for an idemq worker");

$node->stop;
done_testing();
