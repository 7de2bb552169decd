# A receiver that stumbles over one event in twenty, and now and then wants to be left
# alone for a moment.  The others must not get slower and slower for that: what fails while
# others get through is set aside by itself.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RelayTest;
use Test::More;

skip_without('relay:http');

my $node = relay_node('backoff');
my $port = free_port();
my $log = put_file('hooks.jsonl', '');
my $server = program_start('hooks', python('hook_server.py'), $port, $log, '');
ok(wait_for('the server is up', sub { program_output($server) =~ /ready/ }), 'a server');

sub args
{
	my ($db, @more) = @_;

	return ('--consumer', 'hooks', '--dbname', $node->connstr($db) . ' user=relay',
		'--to', "http://127.0.0.1:$port/hook", '--timeout', '5s', @more);
}

# Emits events from..to, all at once, one for each key; what the n-th of them wishes is SQL.
sub wish
{
	my ($db, $do, $from, $to) = @_;

	return split /\n/, $node->safe_psql($db,
		qq{SELECT outbox_emit('order', jsonb_build_object('do', $do, 'times', 1000), 'k' || n, 'paid') FROM generate_series($from, $to) AS n});
}

# How many of those that are well have come.
sub well
{
	my %seen = map { $_->{event} => 1 } grep { $_->{do} eq 'ok' } json_lines(slurp_file($log));

	return scalar keys %seen;
}

sub opened
{
	my ($relay) = @_;
	my $n = () = program_errors($relay) =~ /the destination takes nothing/g;

	return $n;
}

# ---- one in twenty is poisoned -------------------------------------------

relay_database($node, 'poison', 'hooks', "max_attempts => 3, retry_ladder => '100ms', shards => 1");
wish('poison', q{CASE WHEN n % 20 = 7 THEN '500' ELSE 'ok' END}, 1, 400);
my $relay = relay_start('poison', args('poison'));
ok(wait_for('the others', sub { well() == 380 }, relay_patience(30)), 'all that are well get through')
  or diag well() . " have come\n" . program_errors($relay);
cmp_ok(opened($relay), '<=', 2, 'the others are not kept waiting for them');

# life goes on, and shows that it is not the receiver
my $n = 400;
ok( wait_for(
		'the poisoned die',
		sub { $n++; wish('poison', q{'ok'}, $n, $n); return $node->safe_psql('poison', 'SELECT count(*) FROM idemq.dead_letters') == 20; },
		relay_patience(60)),
	'the poisoned die') or diag program_errors($relay);
ok(consumer_done($node, 'poison', 'hooks'), 'nothing is left') or diag program_errors($relay);
is(well(), 380 + $n - 400, 'nothing else is missing');
is($node->safe_psql('poison', q{SELECT string_agg(DISTINCT attempts::text, ' ') FROM idemq.dead_letters}), '3', 'each had its attempts');
like(program_errors($relay), qr/an event was not taken, others go on/, 'the log tells of them');
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

# ---- it wants a rest now and then ----------------------------------------

relay_database($node, 'rest', 'hooks', "max_attempts => 3, retry_ladder => '100ms', shards => 1");
$node->safe_psql('rest', q{
SELECT outbox_emit('order', jsonb_build_object('do', CASE WHEN n % 20 = 7 THEN 'later' ELSE 'ok' END, 'times', 1), 'k' || n, 'paid')
FROM generate_series(1, 120) AS n});
my $before = well();
$relay = relay_start('rest', args('rest'));
ok(consumer_done($node, 'rest', 'hooks'), 'Retry-After: 2, six times: all is delivered') or diag program_errors($relay);
my @waits = program_errors($relay) =~ /retry_in="?([\d.]+)s/g;
is(scalar(grep { $_ > 2.5 } @waits), 0, 'it is left alone for as long as it says, and not for longer each time') or diag "@waits";
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

relay_clean();
program_kill($server);
$node->stop;
done_testing();
