# The hammer on the outbox, and a failover in the middle of it: the primary goes
# down at once, the synchronous standby is promoted, the clients go over to it.
# What a consumer was given is there, also where its writer did not wait for the
# standby; what was committed is delivered, in its order.
#
# Nobody ends or cancels clients here: one whose wait for the standby is
# cancelled has committed on the primary alone, and says so in a warning.
#
# HAMMER_SECONDS=20	how long the writers write
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

my $seconds = $ENV{HAMMER_SECONDS} || 20;
my $primary = outbox_node('primary');
my $db = 'failover';

outbox_database($primary, $db);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$primary->reload;
ok( $primary->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'}),
	'the standby is synchronous');

my $begun = time;
my $run = outbox_start($primary, $db, seconds => $seconds, outage => 1, kill_ms => 0, long_ms => 3000);

# sleep: let the clients work until it is time for the failover
usleep(50_000) while time - $begun < $seconds / 2;
ok(hammer_wait($primary, $db, 'SELECT count(*) > 100 FROM fetched', 'work'),
	'the clients are at work');

$primary->stop('immediate');
$standby->promote;
my $fetched = $standby->safe_psql($db, 'SELECT count(*) FROM fetched');
hammer_aim($standby, $db);
$run->{node} = $standby;
my $count = outbox_finish($run);

outbox_there_was($run, $count);
outbox_check($run, $count);
cmp_ok($standby->safe_psql($db, 'SELECT count(*) FROM fetched'),
	'>', $fetched, 'the clients went on with the standby');

$standby->stop;
done_testing();
