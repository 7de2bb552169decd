# The relay and a webhook: a server that is slow, wants it later, fails, refuses,
# hangs up halfway, sends elsewhere, has a certificate of its own, and checks
# signatures by itself.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use IPC::Run;
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RelayTest;
use Test::More;

skip_without('relay:http', 'openssl');

my $secret = 'whsec_' . encode_base64('0123456789abcdefghijklmnopqrstuv', '');
my $node = relay_node('http');
my $port = free_port();
my $log = put_file('hooks.jsonl', '');

# Starts a server; what comes after is its certificate and key.
sub start_server
{
	my ($server_port, @tls) = @_;
	my $server = program_start('hooks', python('hook_server.py'), $server_port, $log, $secret, @tls);

	ok(wait_for('the server is up', sub { program_output($server) =~ /ready/ }), 'a server');
	return $server;
}

# What has come since the last time that this was asked.
my $read = 0;
sub requests
{
	my @all = json_lines(slurp_file($log));
	my @new = @all[ $read .. $#all ];

	$read = @all;
	return @new;
}

sub args
{
	my ($db, @more) = @_;

	return ({ env => { IDEMQ_RELAY_SIGNING_SECRET => $secret } },
		'--consumer', 'hooks', '--dbname', $node->connstr($db) . ' user=relay', '--to', "http://127.0.0.1:$port/hook", @more);
}

# Emits one with this wish, and returns its id.
sub wish
{
	my ($db, $json, $key) = @_;

	$key = defined $key ? "'$key'" : 'NULL';
	return $node->safe_psql($db, "SELECT outbox_emit('order', '$json', $key, 'paid', '{\"source\": \"test\"}')");
}

my $server = start_server($port);

# ---- what a request looks like -------------------------------------------

relay_database($node, 'plain', 'hooks', "max_attempts => 1");
emit($node, 'plain', 150, 10);
my ($status, $out, $err) = relay(args('plain', '--drain', '--header', 'X-Shop=one, and two'));
is($status, 0, '--drain');
is($out, '', 'nothing on stdout');
my @requests = requests();
my %emitted = map { split /\|/, $_, 2 } split /\n/, $node->safe_psql('plain', 'SELECT id, key, n FROM emitted');
my (%last, @wrong, %seen);
foreach my $request (@requests)
{
	my ($key, $n) = split /\|/, $emitted{ $request->{event} } // '?|0';
	push @wrong, "$request->{event}: no such event" if $key eq '?';
	push @wrong, "$request->{event}: twice" if $seen{ $request->{event} }++;
	push @wrong, "$key: $n after $last{$key}" if $n < ($last{$key} // 0);
	push @wrong, "$request->{event}: signature" unless $request->{signed};
	$last{$key} = $n;
}
is(scalar @requests, 150, 'as many requests as events');
is("@wrong", '', 'each event once, in order, and signed');
my $headers = $requests[0]{headers};
my $id = $requests[0]{event};
is($requests[0]{method} . ' ' . $requests[0]{path}, 'POST /hook', 'POST');
is($headers->{'idempotency-key'}, $id, 'Idempotency-Key');
is($headers->{'webhook-id'}, $id, 'webhook-id');
like($headers->{'webhook-timestamp'}, qr/^\d{10}$/, 'webhook-timestamp');
is($headers->{'ce-id'}, $id, 'ce-id');
is($headers->{'ce-specversion'}, '1.0', 'ce-specversion');
ok(length($headers->{'ce-type'} // ''), 'ce-type');
ok(length($headers->{'ce-source'} // ''), 'ce-source');
like($headers->{'content-type'}, qr{^application/json}, 'content-type');
is($headers->{'x-shop'}, 'one, and two', '--header');
my %ports = map { $_->{port} => 1 } @requests;
cmp_ok(scalar keys %ports, '<', 60, 'connections are used again');

$node->safe_psql('plain', q{
SELECT outbox_emit('thing', NULL, 'gone', 'deleted');
SELECT outbox_emit_bytes('thing', 'bytes \000 and \377'::bytea, 'bytes', 'put');
SELECT outbox_emit('thing', '{"a": "nasty\r\nX-Injected: 1"}', E'k\r\nX-Injected: 1', E'p\u00e4id\r\nX-Injected: 1',
	'{"X\r\nX-Injected: 1": "1", "Webhook-Id": "2", "Content-Length": "1", "X-Fine": "p\u00e4id"}');
SELECT outbox_emit('thing', '{}', 'evil', 'evil', '{"X-Evil": "1\r\nX-Injected: 2"}')});
($status) = relay(args('plain', '--drain'));
is($status, 0, '--drain: tombstone, bytes, line ends where none should be');
@requests = requests();
is(scalar @requests, 3, 'three requests') or diag dead_letters($node, 'plain');
is(scalar(grep { defined $_->{headers}{'x-injected'} } @requests), 0, 'no header can be smuggled in');
like(dead_letters($node, 'plain'), qr/^evil\|1\|.*X-Evil.*control character/, 'one that tries is dead, with the reason');
ok((grep { decode_base64($_->{base64}) eq "bytes \0 and \xff" } @requests) == 1, 'every byte');
is(scalar(grep { !$_->{signed} } @requests), 0, 'all signed');

# ---- answers -------------------------------------------------------------

relay_database($node, 'answers', 'hooks', "max_attempts => 2, retry_ladder => '100ms'");
my $db = 'answers';

# In trouble twice, then taken: no attempt is spent.  Once, if the answer may be the
# event's own fault: after a second one, with others delivered in between, it
# would be (031).
my $relay = relay_start('relay', args($db, '--timeout', '2s', '--backoff-most', '1s'));
foreach my $do (qw(500 503 429 later away slow half reset 408))
{
	my $from = -s $node->logfile;
	my $times = $do =~ /^(?:500|503|slow|half|reset)$/ ? 1 : 2;
	my $first = wish($db, qq({"do": "$do", "times": $times}), 'a');
	my $after = wish($db, '{"do": "ok"}', 'a');
	my $other = wish($db, '{"do": "created"}', 'b');

	ok(consumer_done($node, $db, 'hooks'), "$do: all was delivered") or diag program_errors($relay);
	@requests = requests();
	my @times = map { $_->{time} } grep { $_->{event} eq $first } @requests;
	my @order = map { $_->{event} } grep { $_->{event} ne $other } @requests;
	is(scalar @times, $times + 1, "$do: it came again");
	is("@order", join(' ', ($first) x ($times + 1), $after), "$do: the next of its key had to wait");
	is(scalar(grep { $_->{event} eq $other } @requests) > 0, 1, "$do: another key was delivered");
	is(join(' ', nacked($node, $from)), '', "$do: no attempt was spent");
	if ($do eq 'later' || $do eq 'away')
	{
		cmp_ok($times[1] - $times[0], '>=', 1.9, "$do: Retry-After was obeyed");
		cmp_ok($times[2] - $times[1], '>=', 1.9, "$do: and again");
	}
}
is(dead_letters($node, $db), '', 'nothing is dead so far');
my $opened = () = program_errors($relay) =~ /the destination takes nothing/g;
my $closed = () = program_errors($relay) =~ /takes events again/g;
is($opened, $closed, 'a line when the breaker opens, and one when it closes') or diag program_errors($relay);
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

# the event is at fault
foreach my $do (qw(400 404 410 422))
{
	my $first = wish($db, qq({"do": "$do"}), 'a');
	my $after = wish($db, '{"do": "empty"}', 'a');

	($status) = relay(args($db, '--drain'));
	is($status, 0, "$do: --drain");
	is(join(' ', map { $_->{event} } requests()), "$first $first $after", "$do: two attempts, then the next of its key");
	like($node->safe_psql($db, "SELECT attempts, error FROM idemq.dead_letters WHERE id = '$first'"), qr/^2\|.*$do/,
		"$do: it is dead, with the reason");
}
is($node->safe_psql($db, q{SELECT count(*) FROM idemq.dead_letters WHERE error ~ '\n'}), 0, 'reasons are one line');

# a redirection is not followed, and is no delivery
my $moved = wish($db, '{"do": "redirect"}', 'a');
$relay = relay_start('redirect', args($db, '--timeout', '2s', '--backoff-most', '1s'));
ok(wait_for('two tries or more', sub { (() = slurp_file($log) =~ /$moved/g) >= 2 }), 'redirect: tried again');
ok(wait_for('a line of the log', sub { program_errors($relay) =~ /answered 302, which is not followed/ }), 'redirect: the log says so')
  or diag program_errors($relay);
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');
@requests = requests();
is(scalar(grep { $_->{path} ne '/hook' } @requests), 0, 'redirect: not followed');
is($node->safe_psql($db, "SELECT count(*) FROM idemq.dead_letters WHERE id = '$moved'"), 0, 'redirect: nor is it dead: it may be the receiver');
cmp_ok(consumer_rest($node, $db, 'hooks'), '>', 0, 'redirect: not delivered')
  or diag($node->safe_psql($db, 'SELECT * FROM idemq.consumers'));

# ---- certificates --------------------------------------------------------

my ($certificate, $key) = map { work_file("tls.$_") } qw(crt key);
system_or_bail('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=hook',
	'-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', $key, '-out', $certificate);
my $tls_port = free_port();
my $tls_server = start_server($tls_port, $certificate, $key);
relay_database($node, 'tls', 'hooks');
my $secured = wish('tls', '{"do": "ok"}');
sub tls_args
{
	my ($to, @more) = @_;
	my @all = args('tls', @more);

	$all[ (grep { $all[$_] eq '--to' } 1 .. $#all)[0] + 1 ] = $to;
	return @all;
}

($status, $out, $err) = relay(tls_args("https://127.0.0.1:$tls_port/hook", '--drain', '--timeout', '10s'));
is($status, 4, 'a certificate that nobody has signed');
like($err, qr/certificate/i, 'is named');
($status, $out, $err) = relay(tls_args("https://127.0.0.1:$tls_port/hook", '--check', '--timeout', '10s'));
is($status, 4, '--check finds it, too');
like("$out$err", qr/certificate/i, 'and names it');
($status, $out, $err) = relay(tls_args("https://localhost:$tls_port/hook", '--drain', '--timeout', '10s', '--tls-ca', $certificate));
is($status, 4, 'a certificate for another name');
is(scalar(requests()), 0, 'nothing was sent');
($status, $out, $err) = relay(tls_args("https://127.0.0.1:$tls_port/hook", '--drain', '--tls-ca', $certificate));
is($status, 0, 'one that is known');
is(join(' ', map { $_->{event} } requests()), $secured, 'it was sent');

# ---- secrets -------------------------------------------------------------

($status, $out, $err) = relay('--consumer', 'hooks', '--to', "http://127.0.0.1:$port/hook", '--drain',
	'--dbname', $node->connstr('plain') . ' user=relay', '--signing-secret', $secret);
is($status, 2, 'a secret on the command line');
unlike($err, qr/\Q$secret\E/, 'is not in the log');
like($err, qr/IDEMQ_RELAY_SIGNING_SECRET/, 'the log says where to put it');
($status, $out, $err) = relay(tls_args("http://user:hush17\@127.0.0.1:$port/hook", '--drain'));
is($status, 2, 'a password within the URL');
unlike($err, qr/hush17/, 'is not in the log');

relay_clean();
program_kill($_) foreach $server, $tls_server;
$node->stop;
done_testing();
