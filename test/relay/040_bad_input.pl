# What goes wrong before anything is sent, and bodies that are unusual: a clear
# line and an exit code for each, and nothing lost.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Rabbit;
use RelayTest;
use Test::More;

skip_without(Rabbit->needs);

my $rabbit = Rabbit->new('max_message_size = 100000');
my $node = relay_node('bad');
my $db = 'shop';

relay_database($node, $db, 'orders', "max_attempts => 2, retry_ladder => '100ms'");
$rabbit->declare('orders', 'all', '#');
$node->safe_psql('postgres', q{
CREATE ROLE nobody LOGIN;
CREATE ROLE locked LOGIN PASSWORD 'hush17'});

sub args
{
	my (%set) = @_;
	my %all = (
		consumer => 'orders',
		dbname => $node->connstr($db) . ' user=relay',
		to => $rabbit->to,
		exchange => 'orders',
		'routing-key' => '{aggregatetype}.{type}',
		timeout => '3s',
		%set);

	return ({ env => { $rabbit->env } }, map { ("--$_", $all{$_}) } grep { defined $all{$_} } sort keys %all);
}

# Runs it, expects this exit code and a line on stderr that matches.  Every
# line must be one for people: no full stop, nothing secret.
sub refused
{
	my ($name, $code, $pattern, @words) = @_;
	my ($status, $out, $err) = relay(@words);

	is($status, $code, "$name: exit code") or diag $err;
	like("$out$err", $pattern, "$name: says why");
	unlike($err, qr/hush/, "$name: no secret");
	unlike($err, qr/\bunable\b|\bfailed to\b/i, "$name: as people talk");
	return;
}

# ---- wrong settings: 2 ---------------------------------------------------

refused('no consumer', 2, qr/--consumer/, args(consumer => undef), '--drain');
refused('no destination', 2, qr/--to/, args(to => undef), '--drain');
refused('an unknown option', 2, qr/no-such-thing/, args(), '--no-such-thing', '1');
refused('an unknown scheme', 2, qr/amqp:/, args(to => 'gopher://127.0.0.1/'), '--drain');
refused('an unknown field in a template', 2, qr/\{?nosuch\}?.*aggregatetype/s, args('routing-key' => '{nosuch}'), '--drain');
refused('a template without its end', 2, qr/routing-key/, args('routing-key' => '{type'), '--drain');
refused('a time that is none', 2, qr/lease/, args(lease => 'soon'), '--drain');
refused('a lease that is too short', 2, qr/lease/, args(lease => '0'), '--drain');
refused('a size that is none', 2, qr/memory/, args(memory => '8 elephants'), '--drain');
refused('a password on the command line', 2, qr/IDEMQ_RELAY_PASSWORD/, args(), '--password', 'hush17', '--drain');
refused('a password within the URL', 2, qr/IDEMQ_RELAY_(?:TO|PASSWORD)/, args(to => $rabbit->url), '--drain');
refused('a password within --dbname', 2, qr/pgpass|environment/, args(dbname => $node->connstr($db) . ' user=locked password=hush17'), '--drain');
refused('a password within a URI of --dbname', 2, qr/pgpass|environment/, args(dbname => "postgresql://locked:hush17\@127.0.0.1/$db"), '--drain');
refused('a settings file that is not there', 2, qr/nowhere\.conf/, args(settings => '/nowhere.conf'), '--drain');
my $file = put_file('typo.conf', "# the relay\nleese = 30s\n");
refused('a typo in the settings file', 2, qr/typo\.conf line 2.*lease/, args(settings => $file), '--drain');

# ---- the database refuses: 3 ---------------------------------------------

refused('no such consumer', 3, qr/nosuch/, args(consumer => 'nosuch'), '--drain');
refused('no right', 3, qr/idem_grant|permission|right/i, args(dbname => $node->connstr($db) . ' user=nobody'), '--drain');
refused('no such database', 3, qr/nowhere/, args(dbname => $node->connstr('nowhere') . ' user=relay'), '--drain');
refused('no extension', 3, qr/idemq/, args(dbname => $node->connstr('template1') . ' user=relay'), '--drain');
my $hba = $node->data_dir . '/pg_hba.conf';
my $trust = slurp_file($hba);
append_to_file("$hba.new", "local all locked scram-sha-256\n$trust");
rename "$hba.new", $hba or die;
$node->reload;
ok(wait_for('the server asks for a password', sub { $node->psql($db, '', connstr => $node->connstr($db) . ' user=locked password=no') != 0 }), 'passwords');
{
	my @words = args(dbname => $node->connstr($db) . ' user=locked');
	$words[0]{env}{PGPASSWORD} = 'hushhush';
	refused('a wrong password', 3, qr/password/, @words, '--drain');
}
{
	# the right one, in a file
	my $pgpass = put_file('pgpass', "*:*:*:locked:hush17\n", 0600);
	my @words = args(dbname => $node->connstr($db) . ' user=locked');
	$words[0]{env}{PGPASSFILE} = $pgpass;
	refused('a role without rights, with its password', 3, qr/permission|right|idem_grant/i, @words, '--drain');
}

# ---- the destination refuses: 4 ------------------------------------------

$node->safe_psql($db, q{SELECT outbox_emit('order', '{"n": 1}', 'k', 'paid')});
{
	my @words = args();
	$words[0]{env}{IDEMQ_RELAY_PASSWORD} = 'hushhush';
	refused('a wrong password for the broker', 4, qr/password|ACCESS_REFUSED|login/i, @words, '--drain');
}
refused('no such exchange', 4, qr/nowhere/, args(exchange => 'nowhere'), '--drain');
refused('no such exchange, --check', 4, qr/nowhere/, args(exchange => 'nowhere'), '--check');
refused('no such virtual host', 4, qr/nowhere/, args(to => "amqp://relay\@127.0.0.1:$rabbit->{port}/nowhere"), '--drain');
is($rabbit->count('all'), 0, 'nothing was sent so far');

# nobody there: that is not refused, but it has not drained either
my ($status, $out, $err) = relay(args(to => $rabbit->to(free_port()), timeout => '2s', 'backoff-most' => '1s'), '--drain');
is($status, 5, '--drain and nobody there');
like($err, qr/refused|reach/i, 'says so');
($status) = relay(args(), '--drain');
is($status, 0, 'nothing is lost: it drains now');
is(join(',', map { $_->{body} } $rabbit->take('all')), '{"n": 1}', 'what was there has come');
is(dead_letters($node, $db), '', 'nothing is dead');

# ---- messages ------------------------------------------------------------

$node->safe_psql($db, q{
SELECT outbox_emit('order', '{"n": 1}', 'k', 'paid', '{"source": "test", "nested": {"a": [1, null]}, "number": 7}');
SELECT outbox_emit('order', jsonb_build_object('large', repeat('x', 150000)), 'k', 'large');
SELECT outbox_emit('order', '{"n": 2}', 'k', 'paid');
SELECT outbox_emit_bytes('order', decode(string_agg(lpad(to_hex(i), 2, '0'), ''), 'hex'), 'bytes', 'put')
FROM generate_series(0, 255) AS i;
SELECT outbox_emit_bytes('order', '', 'empty', 'put');
SELECT outbox_emit('order', NULL, 'gone', 'deleted');
SELECT outbox_emit('order', '{"s": "\u00e4\u6f22\ud83d\ude00"}', E'k\u00e4\n\t"''{}', E't\u00e4 "x"');
SELECT outbox_emit('order', '{}', NULL, NULL);
SELECT outbox_emit('order', '{"n": 3}', 'k', repeat('t', 400));
SELECT outbox_emit('order', '{"n": 4}', 'k', 'paid')});
($status, $out, $err) = relay(args(), '--drain');
is($status, 0, '--drain') or diag $err;
# one that the broker does not like takes others down with it, which it may have taken
my %seen;
my @messages = grep { !$seen{ $_->{id} }++ } $rabbit->take('all');
my @k = map { $_->{body} =~ /"n": ?(\d)/ ? $1 : () } @messages;
is("@k", '1 2 4', 'what can be delivered is, in order');
my ($bytes) = grep { ($_->{key} eq 'order.put') && length $_->{base64} } @messages;
is(decode_base64($bytes->{base64}), join('', map { chr } 0 .. 255), 'every byte');
is(scalar(grep { $_->{key} eq 'order.put' && $_->{base64} eq '' } @messages), 1, 'an empty body');
is(scalar(grep { $_->{key} eq 'order.deleted' && $_->{base64} eq '' } @messages), 1, 'a tombstone');
is(scalar(grep { $_->{key} =~ /^order\.t/ } @messages), 1, 'letters of all kinds');
is(scalar(grep { $_->{key} eq 'order.' } @messages), 1, 'no key and no type');
my ($first) = grep { $_->{body} =~ /"n": ?1/ } @messages;
is($first->{type}, 'paid', 'type');
is($first->{delivery_mode}, 2, 'persistent');
like($first->{content_type}, qr{^application/json}, 'content type');
like($first->{timestamp}, qr/^\d{10}$/, 'timestamp');
is($first->{headers}{source}, 'test', 'a header');
is($first->{id}, $node->safe_psql($db, q{SELECT id FROM idemq.outbox WHERE payload = '{"n": 1}' AND headers IS NOT NULL}), 'message-id');
my @dead = split /\n/, dead_letters($node, $db);
is(scalar @dead, 2, 'what is too large, and what has too long a routing key, is dead') or diag "@dead";
like(join("\n", @dead), qr/^large\|2\|.*(?:size|large)/m, 'too large, with the reason');
like(join("\n", @dead), qr/^t{400}\|2\|.*(?:routing key|long)/m, 'too long, with the reason');

my %nacked = map { $_ => 1 } nacked($node);
is(join(' ', sort keys %nacked), join(' ', sort split /\n/, $node->safe_psql($db, 'SELECT id FROM idemq.dead_letters')),
	'nothing else spent an attempt');

relay_clean();
$node->stop;
done_testing();
