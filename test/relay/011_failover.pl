# The loop in small, and PostgreSQL fails over to its synchronous standby in the
# middle of it.  Relay, consumer and payers know both hosts.
#
# RELAY_ORDERS=1500	RELAY_SECONDS=15	RELAY_SEED=n

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Loop;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Rabbit;
use RelayTest;
use Test::More;

skip_without(Rabbit->needs);

my $orders = $ENV{RELAY_ORDERS} || 1500;
my $seconds = $ENV{RELAY_SECONDS} || 15;
my $seed = random_seed();
my $rabbit = Rabbit->new;
my $primary = relay_node('primary', streaming => 1);
my $db = 'shop';

loop_database($primary, $db, 1);
loop_queue($rabbit);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$primary->reload;
ok( $primary->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'}),
	'the standby is synchronous');

my $both = sprintf 'host=%s,%s port=%d,%d dbname=%s', $primary->host, $standby->host, $primary->port, $standby->port, $db;
my $relay = relay_start('relay', { env => { $rabbit->env } },
	'--consumer', 'orders', '--dbname', "$both user=relay", '--to', $rabbit->to, '--exchange', 'orders',
	'--routing-key', '{aggregatetype}.{type}.{attempt}', '--lease', '6s', '--timeout', '3s', '--backoff-most', '2s');
my $ledger = loop_ledger("$both target_session_attrs=read-write", $rabbit);
my $payers = loop_payers("$both target_session_attrs=read-write",
	orders => $orders, seconds => $seconds, poisoned_every => 100, seed => $seed);

ok(wait_for('a third of the effects', sub { loop_effects($primary, $db) > $orders / 3 }, $seconds + 60),
	'the loop is at work');
$primary->stop('immediate');
$standby->promote;
my $before = loop_effects($standby, $db);

loop_finish($standby, $db, $rabbit, $payers, $seconds + 60);
cmp_ok(loop_effects($standby, $db), '>', $before, 'the loop went on with the standby');
ok(program_lives($relay), 'the relay is the same one');
loop_check($standby, $db, another_log => 1);

program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM') or diag program_errors($relay);
relay_clean();
$standby->stop;
done_testing();
