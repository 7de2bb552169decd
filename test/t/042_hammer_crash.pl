# The hammer, and a server that goes down at once (pg_ctl stop -m immediate)
# several times: what was acknowledged is there, also where the transaction had
# synchronous_commit = off, what was refused has a winner, and no key has two
# effects.  A backend that is killed with SIGKILL takes the server down, too.
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
my $crashes = 4;

# a slow WAL writer: what is not flushed by its own commit is lost for long
my $node = hammer_node('crash',
	'idemq.retention' => "'1d'",
	'wal_writer_delay' => "'10s'",
	'wal_writer_flush_after' => "'1GB'",
	'restart_after_crash' => 'on');
my $db = 'crash';

hammer_database($node, $db);
my $begun = time;
my $run = hammer_start($node, $db, clients => 8, seconds => $seconds, outage => 1, sync_off => 100);
my $effects = 0;

foreach my $crash (1 .. $crashes)
{
	# sleep: let the clients work until the next crash is due
	usleep(50_000) while time - $begun < $seconds * $crash / ($crashes + 1);

	# they did something since the last one
	ok(hammer_wait($node, $db, "SELECT count(*) > $effects FROM effect", 'work'),
		"crash $crash: the clients are at work");
	if ($crash == 2)
	{
		# one is killed while it claims; the server starts again by itself
		my $pid = $node->safe_psql($db,
			q{SELECT pid FROM pg_stat_activity WHERE query ~ 'idem_claim' AND pid <> pg_backend_pid() LIMIT 1});
		kill 'KILL', $pid;
		ok($node->poll_query_until('postgres', 'SELECT true'), 'the server came back by itself');
	}
	else
	{
		$node->stop('immediate');
		$node->start;
	}
	# it may have answered once more before it noticed, and go down now
	my $ret = 1;
	foreach my $attempt (1 .. 600)
	{
		($ret, $effects) = $node->psql($db, 'SELECT count(*) FROM effect');
		last if $ret == 0;
		# sleep: between two attempts
		usleep(100_000);
	}
	is($ret, 0, "crash $crash: the server answers");
}
my $count = hammer_finish($run);

is($count->{unexpected}, 0, 'no error but those that were provoked')
  or diag slurp_file("$run->{base}.err");
cmp_ok($count->{$_}, '>', 0, "there were: $_")
  foreach qw(won refused committed rolled_back prepared resolved savepoints batches terminated);

hammer_check_told($run);
hammer_check_effects($run);
hammer_check_leaves($run);
hammer_check_log($node, qr/signal 9: Killed|terminating (?:connection|background worker)/);

$node->stop;
done_testing();
