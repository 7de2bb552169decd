# What cannot be a request, and what a receiver does to all of them: a head that is too
# large for libcurl and a path that would lead elsewhere are rejected before anything is sent;
# redirects are the receiver's, unless others get through.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RelayTest;
use Test::More;

skip_without('relay:http');

my $node = relay_node('limits');
my $port = free_port();
my $log = put_file('hooks.jsonl', '');
my $server = program_start('hooks', python('hook_server.py'), $port, $log, '');
ok(wait_for('the server is up', sub { program_output($server) =~ /ready/ }), 'a server');

sub args
{
	my ($db, $path, @more) = @_;

	return ('--consumer', 'hooks', '--dbname', $node->connstr($db) . ' user=relay',
		'--to', "http://127.0.0.1:$port$path", '--timeout', '5s', '--backoff-most', '1s', @more);
}

# What has come since the last time.
my $read = 0;
sub requests
{
	my @all = json_lines(slurp_file($log));
	my @new = @all[ $read .. $#all ];

	$read = @all;
	return @new;
}

# ---- too large -----------------------------------------------------------

relay_database($node, 'large', 'hooks', "max_attempts => 1");
$node->safe_psql('large', q{
SELECT outbox_emit('thing', '{}', 'a', 'header', jsonb_build_object('X-Large', repeat('x', 1200000)));
SELECT outbox_emit('thing', '{}', repeat('k', 1000000), 'key');
SELECT outbox_emit('thing', '{}', 'c', 'many', (SELECT jsonb_object_agg('X-' || n, repeat('y', 50000)) FROM generate_series(1, 30) AS n));
SELECT outbox_emit('thing', '{}', 'd', 'small')});
my ($status, $out, $err) = relay(args('large', '/hook', '--drain'));
is($status, 0, 'heads that are too large: --drain') or diag $err;
is(scalar(requests()), 1, 'only the small one was sent');
my $dead = dead_letters($node, 'large');
like($dead, qr/^$_\|1\|its URL and headers have 1[0-9]{6} bytes/m, "$_: dead, with the size") foreach qw(header key many);
unlike($err, qr/takes nothing/, 'the destination is not blamed');

# as part of the URL, where three letters stand for one
relay_database($node, 'url', 'hooks', "max_attempts => 1");
$node->safe_psql('url', q{SELECT outbox_emit('thing', '{}', repeat('/', 400000), 'url')});
($status, $out, $err) = relay(args('url', '/hook?key={aggregateid}', '--drain'));
is($status, 0, 'a URL that is too large: --drain') or diag $err;
like(dead_letters($node, 'url'), qr/^url\|1\|its URL and headers have/, 'dead');
is(scalar(requests()), 0, 'nothing was sent');

# ---- . and .. ------------------------------------------------------------

relay_database($node, 'dots', 'hooks', "max_attempts => 1");
$node->safe_psql('dots', q{
SELECT outbox_emit('thing', '{}', '..', 'up');
SELECT outbox_emit('thing', '{}', '.', 'here');
SELECT outbox_emit('thing', '{}', '...', 'fine');
SELECT outbox_emit('thing', '{}', '../admin', 'escaped');
SELECT outbox_emit('thing', '{}', 'a..b', 'within')});
($status, $out, $err) = relay(args('dots', '/hook/{aggregateid}/put', '--drain'));
is($status, 0, 'dots: --drain') or diag $err;
is(join(' ', sort map { $_->{path} } requests()), '/hook/..%2Fadmin/put /hook/.../put /hook/a..b/put', 'paths of their own');
like(dead_letters($node, 'dots'), qr/^$_\|1\|.*another path/m, "$_: dead") foreach qw(up here);

# ---- redirects -----------------------------------------------------------

relay_database($node, 'moved', 'hooks', "max_attempts => 1, retry_ladder => '100ms', shards => 1");
$node->safe_psql('moved', q{SELECT outbox_emit('order', '{"do": "redirect", "times": 2}', 'k' || n, 'paid') FROM generate_series(1, 4) AS n});
my $from = -s $node->logfile;
my $relay = relay_start('moved', args('moved', '/hook'));
my $count = 0;
ok(wait_for('several tries', sub { $count += requests(); return $count >= 4 }), 'redirects for everything: tried again');
is(join(' ', nacked($node, $from)), '', 'no attempt was spent') or diag program_errors($relay);
is(dead_letters($node, 'moved'), '', 'nothing is dead');
ok(wait_for('a line of the log', sub { program_errors($relay) =~ /answered 302, which is not followed.*--to/ }), 'the log says what to do')
  or diag program_errors($relay);
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

relay_database($node, 'one', 'hooks', "max_attempts => 1, retry_ladder => '100ms', shards => 1");
my $one = $node->safe_psql('one', q{SELECT outbox_emit('order', '{"do": "redirect"}', 'k', 'paid')});
$relay = relay_start('one', args('one', '/hook'));
my $more = 0;
ok(wait_for('it is dead', sub {
		$more++;
		$node->safe_psql('one', qq{SELECT outbox_emit('order', '{"do": "ok"}', 'c' || $more % 5, 'paid')});
		return $node->safe_psql('one', "SELECT count(*) FROM idemq.dead_letters WHERE id = '$one'") }),
	'one alone is redirected: it dies') or diag program_errors($relay);
like(dead_letters($node, 'one'), qr/^paid\|1\|answered 302/, 'with its reason');
ok(consumer_done($node, 'one', 'hooks'), 'the others are delivered') or diag program_errors($relay);
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

# ---- secrets among headers -----------------------------------------------

foreach my $name (qw(X-Auth-Key X-Access-Token tokenid Authorization Proxy-Authorization))
{
	($status, $out, $err) = relay(args('dots', '/hook', '--drain', '--header', "$name=hush17"));
	is($status, 2, "--header $name on the command line");
	unlike($err, qr/hush17/, 'is not in the log');
}
($status, $out, $err) = relay(args('dots', '/hook', '--drain', '--header', 'X-Author=me'));
is($status, 0, 'but X-Author may be there') or diag $err;

# ---- RabbitMQ has headers of its own ---------------------------------------

SKIP:
{
	skip 'not built with RabbitMQ', 2 unless relay_has('amqp');
	relay_database($node, 'copies', 'hooks', "max_attempts => 1");
	$node->safe_psql('copies', q{SELECT outbox_emit('thing', '{}', h, 'put', jsonb_build_object(h, 'x')) FROM unnest(ARRAY['CC', 'BCC', 'Cc']) AS h});
	($status, $out, $err) = relay('--consumer', 'hooks', '--dbname', $node->connstr('copies') . ' user=relay',
		'--to', 'amqp://127.0.0.1:1/', '--exchange', 'orders', '--dry-run');
	is($status, 0, 'headers named CC: --dry-run') or diag $err;
	is(join(' ', sort($out =~ /rejected="its header \\"(\w+)/g)), 'BCC CC', 'those that would close the channel are rejected') or diag $out;
}

relay_clean();
program_kill($server);
$node->stop;
done_testing();
