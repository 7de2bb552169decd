# The hammer, and a failover in the middle of it: the primary goes down at
# once, the synchronous standby is promoted, the clients go over to it.  What
# was acknowledged is there, what was refused has a winner, and no key has two
# effects.
#
# Nobody ends or cancels clients here: one whose wait for the standby is
# cancelled has committed on the primary alone, and says so in a warning.
#
# HAMMER_SECONDS=20	how long the run takes

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Hammer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{HAMMER_SECONDS} || 20;
my $primary = hammer_node('primary', 'idemq.retention' => "'1d'");
my $db = 'failover';

hammer_database($primary, $db);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby_feedback = on");
$standby->start;

$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$primary->reload;
ok( $primary->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'}),
	'the standby is synchronous');

# SET LOCAL synchronous_commit = off would give up the standby's word as well
my $begun = time;
my $run = hammer_start($primary, $db,
	clients => 8, seconds => $seconds, outage => 1, kill_ms => 0, sync_off => 0);

# sleep: let the clients work until it is time for the failover
usleep(50_000) while time - $begun < $seconds / 2;
ok(hammer_wait($primary, $db, 'SELECT count(*) > 100 FROM effect', 'work'),
	'the clients are at work');

# a standby knows what was claimed, and claims nothing
ok( hammer_wait($standby, $db,
		q{SELECT count(*) > 0 AND bool_and(idem_seen(key, scope) IS NOT NULL)
		  FROM (SELECT scope, key FROM effect WHERE scope <> 'forget' LIMIT 20) AS e}, 'replay'),
	'the standby sees the claims');
my (undef, undef, $error) = $standby->psql($db, q{\set VERBOSITY sqlstate
SELECT idem_claim('k0', 'hammer')});
like($error, qr/25006/, 'the standby refuses to claim');

$primary->stop('immediate');
$standby->promote;
my $effects = $standby->safe_psql($db, 'SELECT count(*) FROM effect');
hammer_aim($standby, $db);
$run->{node} = $standby;
my $count = hammer_finish($run);

is($count->{unexpected}, 0, 'no error but those that were provoked')
  or diag slurp_file("$run->{base}.err");
cmp_ok($count->{$_}, '>', 0, "there were: $_")
  foreach qw(won refused committed rolled_back prepared resolved savepoints batches);
cmp_ok($standby->safe_psql($db, 'SELECT count(*) FROM effect'),
	'>', $effects, 'the clients went on with the standby');

hammer_check_told($run);
hammer_check_effects($run);
hammer_check_leaves($run);

$standby->stop;
done_testing();
