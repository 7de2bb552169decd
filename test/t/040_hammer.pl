# The hammer: eight clients and more fight for the same keys while partitions
# of one second come along and operators are at work.  No key has two effects,
# none that was committed has none, and there is no error that was not
# provoked.  Then the same hammer shows that it would have found the bug:
# without the key lock, and without the look for invalidations after it.
#
# HAMMER_SECONDS=60	how long the run takes, at least 20
# HAMMER_SEED=n		the same random numbers again
# HAMMER_WITHOUT=a,b	which protections to take out, one after the other

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Hammer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{HAMMER_SECONDS} || 60;
my $node = hammer_node('hammer', 'idemq.retention' => "'1d'");
my $db = 'hammer';
my $begun;
my %done;

hammer_database($node, $db);

# Runs SQL beside the hammer.
sub operate
{
	my ($name, @sql) = @_;
	foreach my $sql (@sql)
	{
		note(sprintf '%.3f %s', time - $begun, $sql);
		my ($ret, $out, $err) = $node->psql($db, $sql);
		if ($ret != 0)
		{
			fail("operator: $name: $sql");
			diag $err;
			return;
		}
	}
	$done{$name}++;
	return;
}

# The leaf that claims go to.
sub leaf_of_now
{
	return $node->safe_psql(
		$db, q{
SELECT leaf FROM idemq.partitions
WHERE parent = 'idemq.processed'::regclass AND coalesce(lower, '-infinity') <= clock_timestamp()
ORDER BY lower DESC NULLS LAST LIMIT 1});
}

# Rebuilds the index of the leaf that is being written.
sub reindex
{
	my $leaf = leaf_of_now();
	my $before = $node->safe_psql($db, "SELECT count(*) FROM $leaf");
	operate('reindex', "REINDEX TABLE CONCURRENTLY $leaf");
	my $after = $node->safe_psql($db, "SELECT count(*) FROM $leaf");
	$done{'reindex of a leaf being written'}++ if $after > $before;
	return;
}

$begun = time;
my $run = hammer_start($node, $db, clients => 10, seconds => $seconds);
my $starved = 0;
my $round = 0;

# A leaf that is older than all others and holds none of the hammer's keys:
# it comes when there is a newer one, which takes the claims.  Its one key is
# new, so that it does not expire.
ok( hammer_wait($node, $db, q{SELECT count(*) > 0 FROM idemq.partitions WHERE state = 'current'},
		'a leaf'),
	'the worker makes leaves');
$node->safe_psql(
	$db, q{
CREATE TABLE idemq.processed_old (LIKE idemq.processed INCLUDING CONSTRAINTS);
CREATE UNIQUE INDEX ON idemq.processed_old (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_old
	FOR VALUES FROM ('2010-01-01 00:00+00') TO ('2010-01-02 00:00+00');
WITH e AS (INSERT INTO effect (scope, key, claimed_at) VALUES ('old', 'k0', clock_timestamp()) RETURNING *)
INSERT INTO idemq.processed_old SELECT scope, key, claimed_at, '2010-01-01 00:00+00' FROM e});

while (hammer_is_running($run) && time - $begun < $seconds - 2)
{
	$round++;
	reindex();
	operate('vacuum', 'VACUUM (FREEZE) ' . leaf_of_now());
	operate('vacuum of all', 'VACUUM (FREEZE) idemq.processed') if $round % 4 == 1;
	operate('analyze', 'ANALYZE idemq.processed');
	operate('detach and attach',
		'ALTER TABLE idemq.processed DETACH PARTITION idemq.processed_old'
		  . ($round % 2 ? ' CONCURRENTLY' : ''),
		q{ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_old
			FOR VALUES FROM ('2010-01-01 00:00+00') TO ('2010-01-02 00:00+00')});

	# for longer than the leaves that are there last
	if (!$starved && time - $begun > $seconds / 3)
	{
		$starved = 1;
		my $psql = hammer_starve($node, $db, 8);
		next unless $psql;
		my $until = time + 8;
		while (hammer_is_running($run) && time < $until)
		{
			reindex();
			operate('vacuum', 'VACUUM (FREEZE) ' . leaf_of_now());
		}
		$psql->finish;
		$done{'starvation'}++;
	}
}
my $count = hammer_finish($run);

is($count->{unexpected}, 0, 'no error but those that were provoked')
  or diag slurp_file("$run->{base}.err");
cmp_ok($count->{$_}, '>', 0, "there were: $_")
  foreach qw(won refused mine busy committed rolled_back prepared resolved savepoints batches
  forgets terminated cancelled timeouts);
cmp_ok($done{$_} || 0, '>', 0, "there was: $_")
  foreach ('reindex', 'reindex of a leaf being written', 'vacuum', 'vacuum of all', 'analyze',
	'detach and attach', 'starvation');
diag(join ', ', map { "$_: $done{$_}" } sort keys %done);

is($node->safe_psql($db, 'SELECT count(*) FROM idemq.processed_old'),
	'1', 'the leaf that was detached and attached held no other key');
hammer_check_told($run);
hammer_check_effects($run);
hammer_check_leaves($run);
cmp_ok(
	$node->safe_psql(
		$db, q{SELECT count(DISTINCT tableoid) FROM idemq.processed}),
	'>', $seconds / 4, 'claims went to many leaves');
cmp_ok(
	$node->safe_psql(
		$db, q{
SELECT count(*) FROM idemq.processed AS p JOIN idemq.partitions AS q ON q.leaf = p.tableoid
WHERE q.state <> 'permanent' AND p.leaf > '2020-01-01' AND p.claimed_at >= q.upper}),
	'>', 0, 'the worker was starved for so long that a leaf served beyond its time');
hammer_check_log($node, 'no slot for an idemq worker');

# The same without a protection; no errors are promised then.
foreach my $without (split /,/, $ENV{HAMMER_WITHOUT} // 'key_lock,invalidations')
{
	my $doubles = 0;
	my $control;
	foreach my $attempt (1 .. 6)
	{
		$db = "without_${without}_$attempt";
		hammer_database($node, $db);
		$run = hammer_start($node, $db,
			clients => 10, longs => 3, seconds => 20, without => $without, first_double => 1);
		$control = hammer_finish($run);
		$doubles = $node->safe_psql(
			$db, q{
SELECT count(*) FROM (SELECT FROM effect WHERE scope <> 'forget' GROUP BY scope, key HAVING count(*) > 1) AS d});
		diag("without $without: attempt $attempt, first double after $control->{double_ms} ms, $doubles keys have two effects");
		last if $doubles > 0;
	}
	cmp_ok($doubles, '>', 0, "without $without keys have two effects, and the hammer sees it");
	cmp_ok($control->{doubles}, '>', 0, "without $without clients win a key twice");
}

$node->stop;
done_testing();
