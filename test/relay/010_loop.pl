# The loop, and everything in it killed: orders are paid by concurrent writers,
# two relays bring their events to RabbitMQ, consumers book them.  Relays,
# consumers, broker and PostgreSQL are killed with kill -9 or restarted at
# random, and the network breaks between each of the relays and the broker, and
# between them and the database, for longer than every timeout.
#
# In the end every order has one effect, in the order of its account; nothing
# that was rolled back has any; no attempt was spent on anything but what the
# broker knew no way for.
#
# RELAY_ORDERS=6000		20000 is the long run
# RELAY_SECONDS=75		how long orders come in
# RELAY_ROUNDS=1		how often each trouble comes
# RELAY_SEED=n			the same random numbers again

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use List::Util qw(shuffle);
use Loop;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Rabbit;
use RelayTest;
use Test::More;
use Time::HiRes qw(time usleep);

skip_without(Rabbit->needs);

my $orders = $ENV{RELAY_ORDERS} || 6000;
my $seconds = $ENV{RELAY_SECONDS} || 75;
my $rounds = $ENV{RELAY_ROUNDS} || 1;
my $seed = random_seed();
my $rabbit = Rabbit->new;
my $node = relay_node('loop');
my $db = 'shop';

# longer than the lease, the timeout and the back-off
my $long_cut = 11;

loop_database($node, $db, 2);
loop_queue($rabbit);

# the network: each relay has its own way to both ends
my %proxy;
foreach my $relay (qw(one two))
{
	foreach my $end (qw(broker database))
	{
		my $port = free_port();
		my $target = $end eq 'broker' ? "127.0.0.1:$rabbit->{port}" : $node->host . '/.s.PGSQL.' . $node->port;
		my $program = program_start("proxy-$relay-$end", { talk => 1 }, python('proxy.py'), $port, $target);
		ok(wait_for('the proxy is up', sub { program_output($program) =~ /ready/ }), "proxy $relay $end");
		$proxy{$relay}{$end} = { port => $port, program => $program };
	}
}

my (%relay, @ledgers, %ended);

sub start_relay
{
	my ($name) = @_;

	$relay{$name} = relay_start("relay-$name", { env => { $rabbit->env } },
		'--consumer', 'orders',
		'--dbname', "host=127.0.0.1 port=$proxy{$name}{database}{port} dbname=$db user=relay",
		'--to', $rabbit->to($proxy{$name}{broker}{port}),
		'--exchange', 'orders', '--routing-key', '{aggregatetype}.{type}.{attempt}',
		'--lease', '6s', '--timeout', '3s', '--backoff-most', '2s', '--batch', 300);
	return;
}

sub network
{
	my ($end, $how, @relays) = @_;

	is(program_tell($proxy{$_}{$end}{program}, $how), $how, "network of relay $_ to the $end: $how") foreach @relays;
	return;
}

# Lets time pass while the network is broken.
sub let_pass
{
	my $end = time + relay_patience($_[0]);

	# sleep: as long as the network is to be broken
	usleep(100_000) while time < $end;
	return;
}

# Starts the server after a kill -9.  What the dead postmaster leaves behind takes
# a moment to go, and PostgreSQL::Test gives up when a start fails.
sub start_server
{
	ok(wait_for('the server starts', sub {
		return system_log('pg_ctl', '-s', '-w', '-D', $node->data_dir, '-l', $node->logfile, 'start') == 0;
	}), 'the server is up again');
	$node->_update_pid(1);
	return;
}

sub children
{
	my ($parent) = @_;
	my @pids;

	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open(my $file, '<', $stat) or next;
		my $line = <$file> // '';
		push @pids, $1 if $line =~ /^(\d+) \(.*\) \S+ (\d+)/ && $2 == $parent;
	}
	return @pids;
}

my $any = sub { (qw(one two))[ int rand 2 ] };
my %trouble = (
	'kill -9 of a relay' => sub {
		my $name = $any->();
		program_kill($relay{$name});
		start_relay($name);
	},
	'kill -9 of both relays' => sub {
		program_kill($_) foreach values %relay;
		start_relay($_) foreach sort keys %relay;
	},
	'a relay is frozen for longer than its lease' => sub {
		my $name = $any->();
		program_signal($relay{$name}, 'STOP');
		let_pass($long_cut);
		program_signal($relay{$name}, 'CONT');
	},
	'SIGTERM to a relay' => sub {
		my $name = $any->();
		program_signal($relay{$name}, 'TERM');
		is(program_wait($relay{$name}, relay_patience(20)), 0, 'it finished what it had');
		program_kill($relay{$name});
		start_relay($name);
	},
	'kill -9 of a consumer' => sub {
		my $i = int rand 2;
		program_kill($ledgers[$i]);
		$ledgers[$i] = loop_ledger($node->connstr($db), $rabbit);
	},
	'kill -9 of the broker' => sub {
		$rabbit->crash;
		$rabbit->start;
	},
	'restart of the broker' => sub {
		$rabbit->stop;
		$rabbit->start;
	},
	'kill -9 of a backend of a relay' => sub {
		my $from = -s $node->logfile;
		my $pid = $node->safe_psql('postgres',
			q{SELECT coalesce((SELECT pid FROM pg_stat_activity WHERE usename = 'relay' LIMIT 1), 0)});
		kill 'KILL', $pid if $pid;
		ok(!$pid || $node->poll_query_until('postgres', 'SELECT true'), 'the server came back by itself');
	},
	'kill -9 of the server' => sub {
		my @pids = children($node->{_pid});
		my $pid = $node->{_pid};
		$node->kill9;
		kill 'KILL', @pids;
		start_server();
	},
	'restart of the server' => sub {
		$node->restart;
	},
	'the network to the broker stalls, for both' => sub {
		network('broker', 'stall', qw(one two));
		let_pass($long_cut);
		network('broker', 'go', qw(one two));
	},
	'the network to the broker is late, for one' => sub {
		my $name = $any->();
		network('broker', 'delay', $name);
		let_pass($long_cut);
		network('broker', 'go', $name);
	},
	'the network to the database stalls, for both' => sub {
		network('database', 'stall', qw(one two));
		let_pass($long_cut);
		network('database', 'go', qw(one two));
	},
	'the network to the database stalls, for one' => sub {
		my $name = $any->();
		network('database', 'stall', $name);
		let_pass($long_cut);
		network('database', 'go', $name);
	},
	'all connections are reset' => sub {
		network($_, 'cut', qw(one two)) foreach qw(broker database);
		let_pass(1);
		network($_, 'go', qw(one two)) foreach qw(broker database);
	});

start_relay($_) foreach qw(one two);
@ledgers = map { loop_ledger($node->connstr($db), $rabbit) } 1 .. 2;
my $payers = loop_payers($node->connstr($db),
	orders => $orders, seconds => $seconds, poisoned_every => 150, seed => $seed);

my $seen = 0;
foreach my $round (1 .. $rounds)
{
	foreach my $name (shuffle sort keys %trouble)
	{
		# all is at work when it comes
		ok(wait_for('new effects', sub { loop_effects($node, $db) > $seen + 20 || !program_lives($payers) }, 60),
			"before: $name: there are new effects");
		note($name);
		$trouble{$name}->();
		# a relay comes back from everything by itself
		foreach my $relay (sort keys %relay)
		{
			ok(program_lives($relay{$relay}), "after: $name: relay $relay is there")
			  or diag(program_errors($relay{$relay})), start_relay($relay);
		}
		wait_for('the server answers', sub { ($seen = loop_effects($node, $db)) >= 0 });
	}
}

loop_finish($node, $db, $rabbit, $payers, $seconds + 120);
loop_check($node, $db);

# nothing is left for one that drains
my ($status) = relay({ env => { $rabbit->env } }, '--consumer', 'orders', '--drain',
	'--dbname', $node->connstr($db) . ' user=relay', '--to', $rabbit->to, '--exchange', 'orders',
	'--routing-key', '{aggregatetype}.{type}.{attempt}');
is($status, 0, '--drain has nothing to do');

foreach my $name (sort keys %relay)
{
	program_signal($relay{$name}, 'TERM');
	is(program_wait($relay{$name}, relay_patience(20)), 0, "relay $name: SIGTERM");
}
relay_clean();
$node->stop;
done_testing();
