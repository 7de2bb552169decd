# The relay and Kafka: librdkafka's mock cluster as a server, kcat as the
# client that knows nothing of the relay, and readers that keep their place with
# idem_claim.  Errors are injected, brokers go down, the relay and the readers are
# killed.
#
# RELAY_SEED=n	the same random numbers again

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RelayTest;
use Test::More;
use Time::HiRes qw(time usleep);

skip_without('relay:kafka', 'kcat', 'pkg-config', 'python:psycopg2');
plan skip_all => 'there is no librdkafka-dev' if system('pkg-config --exists rdkafka') != 0;

random_seed();
my $partitions = 3;
my $mock_program = compile_program('kafka_mock.c', split ' ', `pkg-config --cflags --libs rdkafka`);
my $mock = program_start('mock', { talk => 1 }, $mock_program, 3);
ok(wait_for('the cluster is up', sub { program_output($mock) =~ /^bootstrap (\S+)\n/ }), 'the cluster is up');
my ($bootstrap) = program_output($mock) =~ /^bootstrap (\S+)/;
my $node = relay_node('kafka');

sub mock
{
	my ($command) = @_;

	is(program_tell($mock, $command), 'ok', "cluster: $command");
	return;
}

# All that is in a topic: a hash for each message, of each partition in its order.
sub topic
{
	my ($name) = @_;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(
		[ 'kcat', '-C', '-q', '-e', '-J', '-b', $bootstrap, '-t', $name, '-o', 'beginning' ],
		'<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(60));

	$ok or diag $err;
	my @all = sort { $a->{partition} <=> $b->{partition} || $a->{offset} <=> $b->{offset} } json_lines($out);
	foreach my $message (@all)
	{
		my @headers = @{ $message->{headers} // [] };
		$message->{named} = {@headers};
		$message->{id} = $message->{named}{id};
	}
	return @all;
}

# The events that were emitted are in the topic, in the order of their keys;
# returns how many messages there were.
sub check_topic
{
	my ($db, $name) = @_;
	my @messages = topic($name);
	my %first;
	my (@wrong, @strangers);
	my %last;
	my %partition;
	my %emitted = map { split /\|/, $_, 2 } split /\n/, $node->safe_psql($db, 'SELECT id, key, n FROM emitted');

	foreach my $message (@messages)
	{
		my ($key, $n) = split /\|/, $emitted{ $message->{id} } // '';
		if (!defined $n || $key ne $message->{key})
		{
			push @strangers, $message->{id};
			next;
		}
		next if $first{ $message->{id} }++;
		push @wrong, "$key: $n after $last{$key}" if $n < ($last{$key} // 0);
		push @wrong, "$key in two partitions" if $message->{partition} != ($partition{$key} //= $message->{partition});
		$last{$key} = $n;
	}
	is(scalar(keys %first), scalar(keys %emitted), "$db: all that was emitted is in the topic")
	  or diag('lost: ' . join ', ', map { "$_ $emitted{$_}" } grep { !$first{$_} } sort keys %emitted);
	is("@strangers", '', "$db: nothing else is");
	is(join(', ', @wrong[ 0 .. ($#wrong > 9 ? 9 : $#wrong) ]), '', "$db: in the order of its keys");
	return scalar @messages;
}

sub args
{
	my ($db, @more) = @_;

	return ('--consumer', 'orders', '--dbname', $node->connstr($db) . ' user=relay', '--to', "kafka://$bootstrap", @more);
}

# ---- what a message looks like -------------------------------------------

relay_database($node, 'plain', 'orders');
mock("topic outbox.event.order $partitions");
emit($node, 'plain', 400, 20);
my ($status, $out, $err) = relay(args('plain', '--drain'));
is($status, 0, '--drain');
is($out, '', 'nothing on stdout');
is(check_topic('plain', 'outbox.event.order'), 400, 'no message twice');
my ($message) = topic('outbox.event.order');
is($message->{named}{source}, 'test', 'a header of the event');
like($message->{payload}, qr/^\{.*"n": ?\d+.*\}$/, 'the payload');

$node->safe_psql('plain', q{
SELECT outbox_emit('thing', NULL, 'gone', 'deleted');
SELECT outbox_emit_bytes('thing', 'bytes \000 and \377'::bytea, 'bytes', 'put');
SELECT outbox_emit('thing', '{"unkeyed": true}')});
($status) = relay(args('plain', '--drain'));
is($status, 0, '--drain: tombstone, bytes, no key');
my %thing = map { $_->{key} // '' => $_ } topic('outbox.event.thing');
ok(exists $thing{gone} && !defined $thing{gone}{payload}, 'a tombstone has no value');
like($thing{bytes}{payload} // '', qr/^bytes .* and /, 'bytes');
like($thing{''}{payload} // '', qr/unkeyed/, 'no key');
my ($raw) = (run_command([ 'kcat', '-C', '-q', '-e', '-b', $bootstrap, '-t', 'outbox.event.thing', '-f', '%s|' ]))[0];
ok(index($raw, "bytes \0 and \xff") >= 0, 'every byte');

# another topic
$node->safe_psql('plain', q{SELECT outbox_emit('thing', '{}', 'x', 'put')});
($status) = relay(args('plain', '--drain', '--topic', 'things.{type}'));
is($status, 0, '--topic');
is(scalar(topic('things.put')), 1, 'a topic by a template');

# ---- errors, brokers that go down, kill -9 -------------------------------

my $db = 'errors';
relay_database($node, $db, 'orders', 'shards => 2');
$node->safe_psql($db, q{
CREATE TABLE booked (topic text, partition int, "offset" bigint, key text, event text, n bigint, first bool,
	moment bigserial)});
mock("topic errors.order $partitions");
mock("leader errors.order $_ @{[$_ + 1]}") foreach 0 .. $partitions - 1;

# One request at a time: the mock does not look at sequence numbers as a broker does, so it takes a set although it
# did not take the one before it, which librdkafka then believes to be there.
my @args = args($db, '--topic', 'errors.{aggregatetype}', '--lease', '8s', '--timeout', '4s', '--backoff-most', '2s',
	'--batch', 200, '--kafka', 'max.in.flight.requests.per.connection=1');
my $relay = relay_start('relay', @args);
my @readers;
sub start_reader
{
	my ($partition) = @_;

	$readers[$partition] = program_start("reader-$partition", python('place.py'), $node->connstr($db), $bootstrap,
		'errors.order', $partition);
	return;
}
start_reader($_) foreach 0 .. $partitions - 1;

my $writer = fork;
die "fork: $!" unless defined $writer;
if ($writer == 0)
{
	foreach (1 .. 40)
	{
		emit($node, $db, 50, 25);
		# sleep: so that they come for as long as there are errors
		usleep(200_000);
	}
	POSIX::_exit(0);
}

# Waits until readers have booked something new.
my $booked = 0;
sub progress
{
	my ($after) = @_;

	ok(wait_for('new messages', sub {
		my $now = $node->safe_psql($db, 'SELECT count(*) FROM booked');
		return 0 if $now < $booked + 30 && $now < 2000;
		$booked = $now;
		return 1;
	}, 90), "it goes on after: $after") or diag program_errors($relay);
	return;
}

progress('the start');
# what a broker says when it is not the leader, did not get through to its replicas, is full of requests
mock('errors 0 6 6 7 19 20 7');
progress('errors');
mock('rtt 1 300');
mock('rtt 2 100');
mock('down 2');
mock('leader errors.order 1 3');
program_kill($readers[ int rand $partitions ]);
progress('a broker that went down');
mock('up 2');
mock('leader errors.order 0 2');
program_kill($relay);
$relay = relay_start('relay', @args);
progress('kill -9 of the relay');
mock("rtt $_ 0") foreach 1, 2;

# all of them for longer than lease, timeout and back-off
mock("down $_") foreach 1 .. 3;
emit($node, $db, 10, 25);
ok(wait_for('the breaker opens', sub { program_errors($relay) =~ /retry_in|takes nothing|breaker/ }), 'the breaker is open');
my $end = time + relay_patience(13);
# sleep: as long as they are to be away
usleep(100_000) while time < $end;
mock("up $_") foreach 1 .. 3;
foreach my $partition (0 .. $partitions - 1)
{
	program_kill($readers[$partition]);
	start_reader($partition);
}
waitpid $writer, 0;
is($?, 0, 'all was written');
ok(consumer_done($node, $db, 'orders', 90), 'all was delivered') or diag program_errors($relay);
check_topic($db, 'errors.order');
ok(wait_for('the readers', sub { $node->safe_psql($db, 'SELECT count(*) FROM booked WHERE first') == 2010 }, 60),
	'each event has one effect')
  or diag $node->safe_psql($db, 'SELECT count(*), count(*) FILTER (WHERE first) FROM booked');
is($node->safe_psql($db, q{
SELECT count(*) FROM (
	SELECT n, lag(n) OVER (PARTITION BY key ORDER BY moment) AS before FROM booked WHERE first) AS b WHERE n < before}),
	0, 'effects come in the order of their keys');
is(join(' ', nacked($node)), '', 'no attempt was spent');
is(dead_letters($node, $db), '', 'nothing is dead');
program_kill($_) foreach @readers;
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

# ---- what is too large ---------------------------------------------------

$db = 'large';
relay_database($node, $db, 'orders', "max_attempts => 2, retry_ladder => '100ms'");
emit($node, $db, 20, 2);
$node->safe_psql($db, q{SELECT outbox_emit('order', jsonb_build_object('large', repeat('x', 50000)), 'k0', 'large')});
emit($node, $db, 20, 2);
mock("topic large.order 1");
($status, $out, $err) = relay(args($db, '--topic', 'large.order', '--kafka', 'message.max.bytes=20000', '--drain'));
is($status, 0, '--drain with a message that is too large');
check_topic($db, 'large.order');
like(dead_letters($node, $db), qr/^large\|2\|.*(?:MSG_SIZE_TOO_LARGE|too large)/i, 'it is dead, with the reason');

# ---- what the relay itself cannot send -----------------------------------

# those behind it wait, though Kafka could have several of a key under way
$db = 'unfit';
relay_database($node, $db, 'orders', "max_attempts => 2, retry_ladder => '100ms'");
$node->safe_psql($db, q{SELECT outbox_emit('order', '{}', 'k0', 'unfit', '[1]')});
emit($node, $db, 5, 1);
mock("topic unfit.order 1");
($status, $out, $err) = relay(args($db, '--topic', 'unfit.order', '--drain'));
is($status, 0, '--drain with headers that are none');
is(check_topic($db, 'unfit.order'), 5, 'those behind it are sent once, after it has died');
like(dead_letters($node, $db), qr/^unfit\|2\|.*headers/, 'it is dead, with the reason');

# ---- a broker that does not take a set -----------------------------------

# it does not say which of them; all have to be sent one by one, and none is at fault
$db = 'sets';
relay_database($node, $db, 'orders', "max_attempts => 1");
emit($node, $db, 100, 20, at_once => 1);
mock("topic sets.order 1");
mock('errors 0 10');
my $from = -s $node->logfile;
($status, $out, $err) = relay(args($db, '--topic', 'sets.order', '--kafka', 'linger.ms=50', '--drain'));
is($status, 0, '--drain with a refusal of a set in which nothing is at fault');
check_topic($db, 'sets.order');
is(join(' ', nacked($node, $from)), '', 'no attempt was spent');

# ---- wrong settings ------------------------------------------------------

($status, $out, $err) = relay(args('plain', '--kafka', 'no.such.thing=1', '--drain'));
is($status, 2, 'a setting that librdkafka does not know');
like($err, qr/no\.such\.thing/, 'is named');
($status, $out, $err) = relay(args('plain', '--kafka', 'sasl.password=hush17', '--drain'));
is($status, 2, 'a secret on the command line');
unlike($err, qr/hush17/, 'is not in the log');

relay_clean();
program_kill($mock);
$node->stop;
done_testing();
