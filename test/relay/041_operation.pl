# What people who run it meet: --once, --drain, --dry-run, --check, signals,
# secrets, the port with metrics, what it asks of the database when there is
# nothing to do, two relays on one consumer, and how much memory it takes.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use HTTP::Tiny;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Rabbit;
use RelayTest;
use Test::More;
use Time::HiRes qw(time usleep);

skip_without(Rabbit->needs);

my $rabbit = Rabbit->new;
my $node = relay_node('run');

# The words for a database; to stdout unless it says otherwise.
sub args
{
	my ($db, %set) = @_;
	my %all = (
		consumer => 'orders',
		dbname => $node->connstr($db) . ' user=relay',
		to => 'stdout',
		timeout => '3s',
		%set);

	return ({ env => { $rabbit->env } }, map { ("--$_", $all{$_}) } grep { defined $all{$_} } sort keys %all);
}

sub to_rabbit
{
	my ($port) = @_;

	return (to => $rabbit->to($port), exchange => 'orders', 'routing-key' => '{aggregatetype}.{type}.{attempt}');
}

sub proxy
{
	my ($port, $target) = @_;
	my $proxy = program_start('proxy', { talk => 1 }, python('proxy.py'), $port, $target);

	ok(wait_for('the proxy is up', sub { program_output($proxy) =~ /ready/ }), 'a proxy');
	return $proxy;
}

# ---- stdout, --once, --drain, --dry-run, --check -------------------------

relay_database($node, 'modes', 'orders');
my ($status, $out, $err) = relay(args('modes'), '--once');
is($status, 0, '--once, and nothing there');
is($out, '', 'nothing comes out');
emit($node, 'modes', 30, 3);

($status, $out, $err) = relay(args('modes'), '--dry-run');
is($status, 0, '--dry-run');
cmp_ok(scalar(my @shown = split /\n/, $out), '>', 0, 'shows something');
is(consumer_rest($node, 'modes', 'orders') > 0, 1, 'and takes nothing');
($status, $out, $err) = relay(args('modes', to_rabbit()), '--check');
is($status, 4, '--check: the exchange is missing') or diag $err;
($status, $out, $err) = relay(args('modes'), '--check');
is($status, 0, '--check: all is well') or diag $err;
($status, $out, $err) = relay(args('modes', dbname => 'host=/nowhere dbname=modes user=relay'), '--check');
like($status, qr/^[15]$/, '--check: there is no server') or diag $err;
like("$out$err", qr{/nowhere}, 'and says which');

($status, $out, $err) = relay(args('modes'), '--once');
is($status, 0, '--once');
my @lines = json_lines($out);
is(scalar @lines, 30, 'a line of JSON for each event');
my %last;
my @wrong = grep { my $n = $_->{payload}{n}; my $is = $n != ($last{ $_->{aggregateid} } // 0) + 1; $last{ $_->{aggregateid} } = $n; $is } @lines;
is(scalar @wrong, 0, 'in order');
is(consumer_rest($node, 'modes', 'orders'), 0, 'nothing is left');

# what comes while it drains is drained
emit($node, 'modes', 30, 3);
$node->safe_psql('modes', q{SELECT outbox_emit('order', '{"n": 99}', 'later', 'paid', NULL, now() + interval '2 seconds')});
($status, $out, $err) = relay(args('modes'), '--drain');
is($status, 0, '--drain');
is(scalar(json_lines($out)), 31, 'waits for what is not due yet');
is(consumer_rest($node, 'modes', 'orders'), 0, 'nothing is left');

# a log for machines
($status, $out, $err) = relay(args('modes', 'log-format' => 'json'), '--once', '--log-level', 'debug');
is($status, 0, '--log-format json');
is(scalar(grep { !eval { JSON::PP::decode_json($_) } } split /\n/, $err), 0, 'each line is JSON') or diag $err;

# ---- a reader of stdout that goes away -----------------------------------

emit($node, 'modes', 2000, 10);
{
	my @words = args('modes');
	shift @words;
	my $command = join ' ', map { "'$_'" } relay_argv(@words, '--drain');
	my ($first) = split /\n/, `($command; echo "exit \$?" >&2) 2>'@{[work_file('pipe.err')]}' | head -n 1`;
	like($first, qr/^\{/, 'the first line');
	my $text = slurp_file(work_file('pipe.err'));
	like($text, qr/^exit [145]$/m, 'a pipe that breaks is no success') or diag $text;
	cmp_ok(consumer_rest($node, 'modes', 'orders'), '>', 0, 'and nothing is lost');
}
($status, $out) = relay(args('modes'), '--drain');
is($status, 0, 'what was left comes');

# ---- SIGTERM, and a second one -------------------------------------------

$rabbit->declare('orders', 'all', 'order.#');
relay_database($node, 'signals', 'orders');
emit($node, 'signals', 300, 300);
my $port = free_port();
my $proxy = proxy($port, "127.0.0.1:$rabbit->{port}");
my $relay = relay_start('sigterm', args('signals', to_rabbit($port), timeout => '60s', lease => '60s'));
ok(wait_for('all is at the broker', sub { $rabbit->count('all') == 300 }), 'the first events');
ok(consumer_done($node, 'signals', 'orders'), 'acked');

# what is in flight when the signal comes is awaited
is(program_tell($proxy, 'delay'), 'delay', 'confirms do not come');
emit($node, 'signals', 200, 200, at_once => 1);
ok(wait_for('they are out', sub { $node->safe_psql('signals', 'SELECT sum(in_flight) FROM idemq.consumers') > 0 }), 'fetched');
# sleep: they are on their way by now; if not, the test proves less
usleep(500_000);
program_signal($relay, 'TERM');
# sleep: time to do the wrong thing
usleep(1_000_000);
ok(program_lives($relay), 'SIGTERM: it awaits what is in flight');
is(program_tell($proxy, 'go'), 'go', 'they come');
is(program_wait($relay, relay_patience(20)), 0, 'it ends');
is($rabbit->count('all'), 500, 'all was delivered once');
is(consumer_rest($node, 'signals', 'orders'), 0, 'and acked');

$relay = relay_start('second', args('signals', to_rabbit($port), timeout => '60s', lease => '10s'));
emit($node, 'signals', 10, 10);
ok(wait_for('ten more', sub { $rabbit->count('all') == 510 }), 'ten more');
is(program_tell($proxy, 'stall'), 'stall', 'confirms do not come');
emit($node, 'signals', 200, 200);
ok(wait_for('they are out', sub { $node->safe_psql('signals', 'SELECT sum(in_flight) FROM idemq.consumers') > 0 }), 'fetched');
program_signal($relay, 'TERM');
# sleep: the first one is being obeyed
usleep(500_000);
my $begun = time;
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 5, 'a second SIGTERM: work was left');
cmp_ok(time - $begun, '<', relay_patience(3), 'and at once');
is(program_tell($proxy, 'go'), 'go', 'the network is back');
($status) = relay(args('signals', to_rabbit()), '--drain', '--lease', '5s');
is($status, 0, 'what was left is there when its lease is over');
is($node->safe_psql('signals', 'SELECT count(*) FROM idemq.dead_letters'), 0, 'nothing is dead');
my %ids = map { $_->{id} => 1 } $rabbit->take('all');
is(scalar(keys %ids), 710, 'nothing is lost');

# ---- an event that comes back goes before the next of its key ------------

$rabbit->declare('turns', 'turns', 'order.paid.#');
$rabbit->declare('turns', 'turns', 'order.late.2');

# The key's numbers as they come out, with this in the environment.
sub turns
{
	my ($db, %env) = @_;

	relay_database($node, $db, 'orders', "retry_ladder => '300ms'");
	$node->safe_psql($db, q{
SELECT outbox_emit('order', '{"n": 1}', 'k', 'late');
SELECT outbox_emit('order', '{"n": 2}', 'k', 'paid');
SELECT outbox_emit('order', '{"n": 3}', 'k', 'paid')});
	my ($option, @words) = args($db, to_rabbit(), exchange => 'turns');
	my ($code) = relay({ env => { %{ $option->{env} }, %env } }, @words, '--drain');
	is($code, 0, "$db: --drain");
	return join ' ', map { $_->{body} =~ /"n": ?(\d+)/ } $rabbit->take('turns');
}

is(turns('turns'), '1 2 3', 'an event that was rejected at first comes before the next of its key');
isnt(turns('unchained', RELAY_TEST_WITHOUT => 'chain'), '1 2 3', 'it would not without the chain');

# ---- secrets -------------------------------------------------------------

relay_database($node, 'secrets', 'orders');
my $settings = put_file('relay.conf', "# all of it\nconsumer = orders\npassword = $rabbit->{password}\nexchange = 'orders'\n", 0600);
{
	my ($option, @words) = args('secrets', to_rabbit(), settings => $settings, 'backoff-most' => '1s', consumer => undef,
		exchange => undef);
	$relay = relay_start('secrets', @words, '--log-level', 'debug');
}
emit($node, 'secrets', 5, 5);
ok(wait_for('they arrive', sub { $rabbit->count('all') == 5 }), 'settings of a file') or diag program_errors($relay);
$rabbit->take('all');
unlike(slurp_file("/proc/$relay->{pid}/cmdline"), qr/\Q$rabbit->{password}\E/, 'the password is not in the process list');
$rabbit->stop;
emit($node, 'secrets', 5, 5);
ok(wait_for('the breaker opens', sub { program_errors($relay) =~ /retry_in/ }), 'without a broker');
$rabbit->start;
ok(wait_for('they arrive', sub { $rabbit->count('all') == 5 }), 'with one again') or diag program_errors($relay);
$rabbit->take('all');
unlike(program_errors($relay), qr/\Q$rabbit->{password}\E/, 'nor in the log');
unlike(program_errors($relay), qr/"key"/, 'nor are payloads');
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

# ---- idle, metrics -------------------------------------------------------

my $listen = relay_has('metrics') ? '127.0.0.1:' . free_port() : undef;
my $from = -s $node->logfile;
$relay = relay_start('idle', args('secrets', listen => $listen));
emit($node, 'secrets', 40, 4);
ok(consumer_done($node, 'secrets', 'orders'), 'a relay with nothing to do');
is(scalar(json_lines(program_output($relay))), 40, 'after forty events');

# What it answers there.
sub look
{
	return HTTP::Tiny->new(timeout => 5)->get("http://$listen/$_[0]");
}

SKIP:
{
	skip 'this relay has no metrics', 5 unless $listen;
	is(look('healthz')->{status}, 200, '/healthz');
	my $answer = look('metrics');
	is($answer->{status}, 200, '/metrics');
	like($answer->{content}, qr/^\w+\{.*outcome="delivered".*\} 40$/m, 'has counted them') or diag $answer->{content};
	my $sample = qr/[a-z_:]+(?:\{(?:[a-z_]+="[^"]*",?)*\})? [-+0-9.e]+(?:inf)?/i;
	is(scalar(grep { !/^(?:#.*|$sample)$/ } split /\n/, $answer->{content}), 0, 'as Prometheus wants it');
	is(look('secret')->{status}, 404, 'nothing else');
}

# what it asks from when all is quiet
my $calls = qr/(?:statement|execute [^:]*): /;
ok(wait_for('it waits', sub { (slurp_file($node->logfile, $from) =~ /.*$calls(.*)\n/s)[0] =~ /outbox_wait/ }), 'it waits');
$from = -s $node->logfile;
# sleep: nothing happens in this time, which is to be seen
usleep(1_000_000 * relay_patience(8));
my @asked = slurp_file($node->logfile, $from) =~ /$calls(.*)/g;
cmp_ok(scalar(@asked), '<=', 1, 'idle: one CALL outbox_wait at most in eight seconds') or diag join "\n", @asked;
is(scalar(grep { !/^\s*CALL .*outbox_wait/ } @asked), 0, 'and no other query');

# the server goes away and comes back
$node->restart;
emit($node, 'secrets', 10, 4);
ok(wait_for('ten more', sub { json_lines(program_output($relay)) == 50 }), 'a restart of the server is survived')
  or diag program_errors($relay);
SKIP:
{
	skip 'this relay has no metrics', 2 unless $listen;
	is(look('healthz')->{status}, 200, '/healthz again');
	$node->stop;
	ok(wait_for('/healthz', sub { look('healthz')->{status} == 503 }), '/healthz says when there is no server');
	$node->start;
}
program_signal($relay, 'INT');
is(program_wait($relay, relay_patience(20)), 0, 'SIGINT is as good as SIGTERM');

# ---- a reader that is slower than the lease ------------------------------

relay_database($node, 'slow', 'orders');
emit($node, 'slow', 5000, 100, at_once => 1);
{
	my ($option, @words) = args('slow', lease => '3s', timeout => '60s');
	# sleep: longer than the lease, while the pipe is full
	my $slow = program_start('slow', $option, 'sh', '-c', '"$@" | (sleep 8; cat)', 'sh', relay_argv('--drain', @words));
	is(program_wait($slow, relay_patience(60)), 0, 'a reader that is slower than the lease');
	my @got = json_lines(program_output($slow));
	my %ids = map { $_->{id} => 1 } @got;
	is(scalar(keys %ids), 5000, 'gets everything');
	is(scalar @got, 5000, 'once: the lease was kept');
}

# ---- a consumer without order, one that goes away ------------------------

relay_database($node, 'free', 'orders', "ordered => false, max_attempts => 2, retry_ladder => '100ms'");
$node->safe_psql('free', q{
SELECT outbox_emit('order', '{"n": 1}', 'k', repeat('x', 300));
SELECT outbox_emit('order', '{"n": 2}', 'k', 'paid')});
($status, $out, $err) = relay(args('free', to_rabbit()), '--drain');
is($status, 0, 'a consumer without order');
is(join(' ', map { $_->{body} } $rabbit->take('all')), '{"n": 2}', 'a rejected event keeps nobody back');
is($node->safe_psql('free', 'SELECT attempts FROM idemq.dead_letters'), 2, 'and dies');

$relay = relay_start('gone', args('free'));
$node->safe_psql('free', q{SELECT outbox_emit('order', '{"n": 3}', 'k', 'paid')});
ok(wait_for('it is at work', sub { program_output($relay) =~ /"n": ?3/ }), 'a relay at work');
$node->safe_psql('free', q{SELECT outbox_seek('orders', now())});
$node->safe_psql('free', q{SELECT outbox_emit('order', '{"n": 4}', 'k', 'paid')});
ok(wait_for('it goes on', sub { program_output($relay) =~ /"n": ?4/ }), 'outbox_seek does not disturb it');
$node->safe_psql('free', q{SELECT outbox_unsubscribe('orders')});
is(program_wait($relay, relay_patience(90)), 3, 'a consumer that goes away: the relay ends');
like(program_errors($relay), qr/orders.*(?:not exist|no such|unknown|no consumer)/i, 'and says why');

# ---- two relays on one consumer ------------------------------------------

foreach my $shards (1, 4)
{
	my $db = "two_$shards";

	relay_database($node, $db, 'orders', "shards => $shards");
	my @relays = map { relay_start("two-$_", args($db, lease => '5s', batch => 50)) } 1 .. 2;
	emit($node, $db, 1000, 40);
	ok(consumer_done($node, $db, 'orders'), "$db: all was delivered");
	my @got = map { scalar(() = program_output($_) =~ /\n/g) } @relays;
	is($got[0] + $got[1], 1000, "$db: each event once");
	cmp_ok($got[0] < $got[1] ? $got[0] : $got[1], '>', 0, "$db: both were at work") if $shards > 1;

	# one dies, the other has it all
	program_kill($relays[0]);
	emit($node, $db, 200, 40);
	ok(consumer_done($node, $db, 'orders'), "$db: one of them goes on");
	my %seen = map { $_->{id} => 1 } map { json_lines(program_output($_)) } @relays;
	is(scalar(keys %seen), 1200, "$db: with everything");
	program_signal($relays[1], 'TERM');
	is(program_wait($relays[1], relay_patience(20)), 0, "$db: SIGTERM");
}

# ---- memory --------------------------------------------------------------

relay_database($node, 'memory', 'orders');
$node->safe_psql('memory', q{
SELECT outbox_emit_bytes('order', convert_to(repeat('x', 1000000), 'UTF8'), 'k' || i % 50, 'big') FROM generate_series(1, 200) AS i;
SELECT outbox_emit_bytes('order', convert_to(repeat('x', 12000000), 'UTF8'), 'k1', 'bigger');
SELECT outbox_emit('order', '{"small": 1}', 'k' || i % 50, 'small') FROM generate_series(1, 2000) AS i});
$rabbit->declare('big', 'big', '#', 'x-max-length' => 10, 'x-overflow' => 'drop-head');
$relay = relay_start('memory', args('memory', to_rabbit(), exchange => 'big', memory => '8MB', timeout => '30s'));
ok(consumer_done($node, 'memory', 'orders', 120), '200 bodies of 1 MB, and one of 12') or diag program_errors($relay);
my ($peak) = slurp_file("/proc/$relay->{pid}/status") =~ /^VmHWM:\s+(\d+) kB/m;
diag("--memory 8MB: VmHWM $peak kB");
SKIP:
{
	skip 'sanitizers and valgrind need memory of their own', 1 if relay_is_slow();
	cmp_ok($peak, '<', 61440, 'memory is bounded');
}
is($node->safe_psql('memory', 'SELECT count(*) FROM idemq.dead_letters'), 0, 'nothing is dead');
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

relay_clean();
$node->stop;
done_testing();
