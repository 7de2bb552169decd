# The hammer, with the filter in every state that it can be in: ready, too small
# to rule anything out, none, being built for ever, built again and again by
# workers that are killed in the middle, and shared with another database that
# takes its lanes.  Then the same hammer shows that it would have found the bug:
# when claims do not tell the filter.
#
# HAMMER_FILTER_SECONDS=5	how long each run takes

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Hammer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{HAMMER_FILTER_SECONDS} || 5;
my $node = hammer_node('filter', 'idemq.retention' => "'1d'");

# One run in a database of its own; meanwhile something happens again and again.
sub hammer_run
{
	my ($db, $meanwhile) = @_;
	hammer_database($node, $db);
	my $run = hammer_start($node, $db, clients => 8, seconds => $seconds);
	my $times = 0;
	while (hammer_is_running($run))
	{
		$times += $meanwhile->($db) if $meanwhile;
		# sleep: between two disturbances
		usleep(50_000);
	}
	my $count = hammer_finish($run);
	is($count->{unexpected}, 0, "$db: no error but those that were provoked")
	  or diag slurp_file("$run->{base}.err");
	hammer_check_told($run);
	hammer_check_effects($run);
	hammer_check_leaves($run);
	return $times;
}

sub filters
{
	my ($db) = @_;
	return $node->safe_psql($db,
		'SELECT DISTINCT filter FROM idemq.partitions ORDER BY 1');
}

# ready, and looked at while it is
my $ready = hammer_run('ready', sub { filters($_[0]) =~ /ready/ ? 1 : 0 });
cmp_ok($ready, '>', 0, 'lanes were ready while the clients were at work');

# builders that are killed in the middle, and leaves whose lanes are void
my $killed = hammer_run(
	'killed',
	sub {
		my ($db) = @_;
		my $leaf = $node->safe_psql($db, q{
SELECT leaf FROM idemq.partitions WHERE state = 'closed' ORDER BY random() LIMIT 1});
		$node->psql($db, "SET lock_timeout = '100ms'; ALTER TABLE $leaf DISABLE TRIGGER filter_row;
			ALTER TABLE $leaf ENABLE ALWAYS TRIGGER filter_row") if $leaf ne '';
		return $node->safe_psql($db, q{
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE backend_type = 'idemq worker'});
	});
cmp_ok($killed, '>', 0, "$killed workers were killed");

# another database's claims and lanes beside ours
hammer_database($node, 'neighbour');
my $neighbour = hammer_start($node, 'neighbour', clients => 2, seconds => $seconds);
hammer_run('beside');
hammer_finish($neighbour);
hammer_check_effects($neighbour);

# a builder that never gets ready
$node->append_conf('postgresql.conf', "idemq.test_without = 'filter_ready'");
$node->reload;
my $building = hammer_run('building', sub { filters($_[0]) =~ /building/ ? 1 : 0 });
cmp_ok($building, '>', 0, 'lanes stood half built while the clients were at work');
unlike(filters('building'), qr/ready/, 'and none got ready');
$node->append_conf('postgresql.conf', "idemq.test_without = ''");

# so small that every bit is set
$node->append_conf('postgresql.conf', "idemq.filter_memory = '32kB'");
$node->restart;
hammer_run('small');

# none
$node->append_conf('postgresql.conf', "idemq.filter_memory = 0");
$node->restart;
hammer_run('none');
is(filters('none'), 'none', 'without memory no leaf is covered');

# it would have found the bug
$node->append_conf('postgresql.conf', "idemq.filter_memory = '1MB'");
$node->restart;
my $doubles = 0;
foreach my $attempt (1 .. 6)
{
	my $db = "without_filter_add_$attempt";
	hammer_database($node, $db);
	my $run = hammer_start($node, $db,
		clients => 8, seconds => 20, without => 'filter_add', first_double => 1);
	hammer_finish($run);
	$doubles = $node->safe_psql(
		$db, q{
SELECT count(*) FROM (SELECT FROM effect WHERE scope <> 'forget' GROUP BY scope, key HAVING count(*) > 1) AS d});
	last if $doubles > 0;
}
cmp_ok($doubles, '>', 0,
	'when claims do not tell the filter, keys have two effects, and the hammer sees it');

$node->stop;
done_testing();
