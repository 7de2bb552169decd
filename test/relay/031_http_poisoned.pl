# A receiver that stumbles over one event: 500 for it, every time, and 200 for all others.
# That must not stop the others for ever, and costs the one its attempts.  But
# what answers 500 to everything is down, and costs none.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RelayTest;
use Test::More;

skip_without('relay:http');

my $node = relay_node('poisoned');
my $port = free_port();
my $log = put_file('hooks.jsonl', '');
my $server = program_start('hooks', python('hook_server.py'), $port, $log, '');
ok(wait_for('the server is up', sub { program_output($server) =~ /ready/ }), 'a server');

# The ids that have come, in their order.
my $read = 0;
sub requests
{
	my @all = map { $_->{event} } json_lines(slurp_file($log));
	my @new = @all[ $read .. $#all ];

	$read = @all;
	return @new;
}

sub args
{
	my ($db, @more) = @_;

	return ('--consumer', 'hooks', '--dbname', $node->connstr($db) . ' user=relay',
		'--to', "http://127.0.0.1:$port/hook", '--timeout', '2s', '--backoff-most', '1s', @more);
}

# Emits some with this wish, all at once, one for each key, and returns their ids.
sub wish
{
	my ($db, $do, @keys) = @_;
	my $keys = join ',', map { "'$_'" } @keys;

	return split /\n/, $node->safe_psql($db,
		qq{SELECT outbox_emit('order', '{"do": "$do"}', k, 'paid') FROM unnest(ARRAY[$keys]) WITH ORDINALITY AS u(k, n) ORDER BY n});
}

sub is_dead
{
	my ($db, $id) = @_;

	return $node->safe_psql($db, "SELECT count(*) FROM idemq.dead_letters WHERE id = '$id'");
}

# ---- one event is at fault -----------------------------------------------

foreach my $do (qw(500 reset))
{
	my $db = "poison_$do";
	relay_database($node, $db, 'hooks', "max_attempts => 3, retry_ladder => '100ms', shards => 1");
	my ($poison) = wish($db, $do, 'a');
	my @after = wish($db, 'ok', 'a', 'a');
	my @others = wish($db, 'ok', map { "b$_" } 1 .. 40);

	my $from = -s $node->logfile;
	my $relay = relay_start("poison_$do", args($db));
	my %seen;
	ok(wait_for('the others have come',
			sub { $seen{$_} = 1 foreach requests(); return !grep { !$seen{$_} } @others }),
		"$do: the others are delivered, although the first one in line makes the receiver stumble")
	  or diag program_errors($relay);
	is(scalar(grep { $seen{$_} } @after), 0, "$do: the later ones of its key wait");

	# life goes on, and shows each time that it is not the receiver
	my $more = 0;
	ok(wait_for('it is dead', sub { push @others, wish($db, 'ok', 'c' . $more++ % 5); return is_dead($db, $poison) }),
		"$do: it dies") or diag program_errors($relay), diag $node->safe_psql($db, 'SELECT * FROM idemq.parked');
	ok(consumer_done($node, $db, 'hooks'), "$do: nothing is left") or diag program_errors($relay);
	my $reason = $do eq '500' ? 'answered 500: because 500' : '.';
	like($node->safe_psql($db, "SELECT attempts, error FROM idemq.dead_letters"), qr/^3\|$reason/, "$do: after three attempts, with its reason");
	is(join(' ', nacked($node, $from)), join(' ', ($poison) x 3), "$do: no other spent one");

	my @all = map { $_->{event} } json_lines(slurp_file($log));
	my %at = map { $all[$_] => $_ } 0 .. $#all;
	my ($last) = grep { $all[$_] eq $poison } reverse 0 .. $#all;
	ok($last < $at{ $after[0] } && $at{ $after[0] } < $at{ $after[1] }, "$do: the later ones of its key go on after it, in order");
	program_signal($relay, 'TERM');
	is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');
	requests();
}

# ---- the receiver is at fault --------------------------------------------

relay_database($node, 'down', 'hooks', "max_attempts => 1, retry_ladder => '100ms', shards => 1");
my @ids = wish('down', '500', map { "k$_" } 1 .. 20);
my $from = -s $node->logfile;
my $relay = relay_start('down', args('down'));
my %times;
ok(wait_for('they have come again and again',
		sub { $times{$_}++ foreach requests(); return (grep { $_ >= 2 } values %times) >= 8 }),
	'500 to everything: all are tried again') or diag program_errors($relay);
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');
is(join(' ', nacked($node, $from)), '', 'no attempt was spent');
is(dead_letters($node, 'down'), '', 'nothing is dead');
is(consumer_rest($node, 'down', 'hooks'), 20, 'all are there');
my $opened = () = program_errors($relay) =~ /the destination takes nothing/g;
is($opened, 1, 'one line says so');

# nor does a single event, that no other one speaks for
relay_database($node, 'single', 'hooks', "max_attempts => 1, retry_ladder => '100ms', shards => 1");
requests();
my ($single) = wish('single', '500', 'k');
$from = -s $node->logfile;
$relay = relay_start('single', args('single'));
my $count = 0;
ok(wait_for('it has come three times', sub { $count += requests(); return $count >= 3 }), 'an event that is alone');
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');
is(join(' ', nacked($node, $from)), '', 'no attempt was spent');

# nor is it done because it was set aside
relay_database($node, 'once', 'hooks', "max_attempts => 1, retry_ladder => '100ms', shards => 1");
wish('once', '500', 'k');
my ($status) = relay(args('once', '--once'));
is($status, 5, '--once leaves it, and says so');

relay_clean();
program_kill($server);
$node->stop;
done_testing();
