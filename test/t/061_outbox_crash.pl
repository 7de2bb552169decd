# The hammer on the outbox, and a server that goes down at once (pg_ctl stop -m
# immediate) several times, and once because a backend was killed.  What a
# consumer was given is committed for good, also where the writer had
# synchronous_commit = off; what was committed is delivered, in its order.
#
# HAMMER_SECONDS=25	how long the writers write
# HAMMER_SEED=n		the same random numbers again

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Hammer;
use OutboxHammer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{HAMMER_SECONDS} || 25;
my $crashes = 4;

# a slow WAL writer: what is not flushed by its own commit is lost for long
my $node = outbox_node('crash',
	'wal_writer_delay' => "'10s'",
	'wal_writer_flush_after' => "'1GB'",
	'restart_after_crash' => 'on');
my $db = 'crash';

outbox_database($node, $db);
my $begun = time;
my $run = outbox_start($node, $db, seconds => $seconds, outage => 1, sync_off => 80, long_ms => 3000);
my $fetched = 0;

foreach my $crash (1 .. $crashes)
{
	# sleep: let the clients work until the next crash is due
	usleep(50_000) while time - $begun < $seconds * $crash / ($crashes + 1);

	# they did something since the last one
	ok(hammer_wait($node, $db, "SELECT count(*) > $fetched FROM fetched", 'work'),
		"crash $crash: the clients are at work");
	if ($crash == 2)
	{
		# one is killed while it fetches or acks; the server starts again by itself
		my $pid = $node->safe_psql($db,
			q{SELECT pid FROM pg_stat_activity WHERE query ~ 'outbox_(fetch|ack)' AND pid <> pg_backend_pid() LIMIT 1});
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
		($ret, $fetched) = $node->psql($db, 'SELECT count(*) FROM fetched');
		last if $ret == 0;
		# sleep: between two attempts
		usleep(100_000);
	}
	is($ret, 0, "crash $crash: the server answers");
}
my $count = outbox_finish($run);

outbox_there_was($run, $count, 'terminated');
outbox_check($run, $count);
hammer_check_log($node, qr/signal 9: Killed|terminating (?:connection|background worker)/);

$node->stop;
done_testing();
