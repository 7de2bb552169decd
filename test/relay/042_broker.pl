# What RabbitMQ may do besides going away: it blocks its producers, a queue is full,
# its certificate is nobody's, its exchange is deleted, it does not like one message of
# many.  None of it is an event's fault but the last.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Rabbit;
use RelayTest;
use Test::More;

skip_without(Rabbit->needs, 'openssl');

my ($certificate, $key) = map { work_file("tls.$_") } qw(crt key);
system_or_bail('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=broker',
	'-addext', 'subjectAltName=DNS:localhost', '-keyout', $key, '-out', $certificate);
my $tls_port = free_port();
my $rabbit = Rabbit->new("listeners.ssl.1 = 127.0.0.1:$tls_port", "ssl_options.certfile = $certificate",
	"ssl_options.keyfile = $key", 'ssl_options.verify = verify_none', 'max_message_size = 100000');
my $node = relay_node('broker');
my $db = 'shop';

relay_database($node, $db, 'orders', "max_attempts => 2, retry_ladder => '100ms'");
$rabbit->declare('orders', 'all', 'order.#');

sub args
{
	my (%set) = @_;
	my %all = (
		consumer => 'orders',
		dbname => $node->connstr($db) . ' user=relay',
		to => $rabbit->to,
		exchange => 'orders',
		timeout => '3s',
		lease => '8s',
		'backoff-most' => '1s',
		%set);

	return ({ env => { $rabbit->env } }, map { ("--$_", $all{$_}) } grep { defined $all{$_} } sort keys %all);
}

# What is in the queue, as numbers per key, all in order?
sub check_queue
{
	my ($name, $count) = @_;
	my (%last, %seen, @wrong);

	foreach my $message ($rabbit->take('all'))
	{
		my ($n, $k) = ($message->{body} =~ /"n": ?(\d+)/, $message->{body} =~ /"key": ?"(\w+)"/);
		next if $seen{ $message->{id} }++ || !defined $k;
		push @wrong, "$k: $n after $last{$k}" if $n < ($last{$k} // 0);
		$last{$k} = $n;
	}
	is(scalar keys %seen, $count, "$name: all has come");
	is("@wrong", '', "$name: in order");
	return;
}

# ---- a certificate -------------------------------------------------------

my $tls = "amqps://relay\@localhost:$tls_port/%2F";
emit($node, $db, 20, 4);
my ($status, $out, $err) = relay(args(to => $tls), '--drain');
is($status, 4, 'a certificate that nobody has signed');
like($err, qr/certificate/, 'is named');
($status, $out, $err) = relay(args(to => "amqps://relay\@127.0.0.1:$tls_port/%2F", 'tls-ca' => $certificate), '--drain');
is($status, 4, 'a certificate for another name');
is($rabbit->count('all'), 0, 'nothing was sent');
($status, $out, $err) = relay(args(to => $tls, 'tls-ca' => $certificate), '--drain');
is($status, 0, 'one that is known') or diag $err;
check_queue('TLS', 20);

# ---- a broker that blocks ------------------------------------------------

my $relay = relay_start('relay', args());
emit($node, $db, 10, 4);
ok(wait_for('the first', sub { $rabbit->count('all') == 10 }), 'a relay is at work');
ok($rabbit->ctl('set_vm_memory_high_watermark', '0.00001'), 'the broker is out of memory') or diag slurp_file("$rabbit->{dir}/ctl.log");
emit($node, $db, 200, 4);
ok(wait_for('trouble', sub { program_errors($relay) =~ /retry_in/ }), 'the breaker opens') or diag program_errors($relay);
like(program_errors($relay), qr/block|memory/i, 'and says why');
ok($rabbit->ctl('set_vm_memory_high_watermark', '0.6'), 'it has memory again');
ok(consumer_done($node, $db, 'orders'), 'all goes on') or diag program_errors($relay);
check_queue('blocked', 210);

# ---- a queue that is full ------------------------------------------------

$rabbit->declare('full', 'small', 'order.#', 'x-max-length' => 5, 'x-overflow' => 'reject-publish');
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');
$relay = relay_start('full', args(exchange => 'full'));
emit($node, $db, 40, 40);
ok(wait_for('it is full', sub { $rabbit->count('small') >= 5 }), 'a queue is full');
ok(wait_for('trouble', sub { program_errors($relay) =~ /the destination takes nothing.*queue is full/ }), 'the log says so')
  or diag program_errors($relay);
cmp_ok($node->safe_psql($db, 'SELECT count(*) FROM idemq.parked'), '<', 20, 'what is left goes back whole');
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');
($status, $out, $err) = relay(args(exchange => 'full'), '--once');
is($status, 5, '--once does not take that for done') or diag $err;
$relay = relay_start('full2', args(exchange => 'full'));
my %small;
ok(wait_for('all of them', sub { $small{ $_->{id} } = 1 foreach $rabbit->take('small'); return keys %small == 40; }, 90),
	'what did not fit comes later') or diag program_errors($relay);
ok(consumer_done($node, $db, 'orders'), 'nothing is left');
program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');

# ---- an exchange that is deleted -----------------------------------------

$relay = relay_start('deleted', args());
emit($node, $db, 10, 4);
ok(wait_for('the first', sub { $rabbit->count('all') == 10 }), 'a relay is at work');
$rabbit->ask('drop-exchange', 'orders');
emit($node, $db, 50, 4);
ok(wait_for('it is missed', sub { program_errors($relay) =~ /exchange/ || !program_lives($relay) }), 'the exchange is gone');
like(program_errors($relay), qr/exchange .?orders/, 'and missed');
$rabbit->declare('orders', 'all', 'order.#');
# it may have ended, for somebody to look at it
if (!program_lives($relay))
{
	is(program_wait($relay), 4, 'it has ended');
	$relay = relay_start('declared', args());
}
ok(consumer_done($node, $db, 'orders'), 'nothing is left');
check_queue('deleted', 60);
is(join(' ', nacked($node)), '', 'no attempt was spent so far');
is(dead_letters($node, $db), '', 'nothing is dead so far');

# ---- one of many is too large --------------------------------------------

$node->safe_psql($db, q{
INSERT INTO idemq.outbox (aggregatetype, aggregateid, type, payload)
SELECT 'order', 'm' || i, CASE WHEN i = 150 THEN 'large' END,
	CASE WHEN i = 150 THEN jsonb_build_object('large', repeat('x', 150000)) ELSE jsonb_build_object('i', i) END
FROM generate_series(1, 300) AS i});
ok(consumer_done($node, $db, 'orders'), 'one of many is too large');
check_queue('one of many', 299);
like(dead_letters($node, $db), qr/^large\|2\|.*(?:size|large).*$/, 'it is dead, with the reason');
my %nacked = map { $_ => 1 } nacked($node);
is(join(' ', keys %nacked), $node->safe_psql($db, 'SELECT id FROM idemq.dead_letters'), 'and nothing else spent an attempt');

program_signal($relay, 'TERM');
is(program_wait($relay, relay_patience(20)), 0, 'SIGTERM');
relay_clean();
$node->stop;
done_testing();
