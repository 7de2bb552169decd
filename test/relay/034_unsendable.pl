# Events that the server cannot send, because as text they would be longer than
# the 1 GB that it can hold: they end as dead letters, and all others go on.
#
# 120 kB of JSON are enough: a number such as 1e131071 has 9 bytes, and as text
# 131072.  The server needs 1 GB of memory for a second, each time.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RelayTest;
use Test::More;
use Time::HiRes qw(time);

my ($free) = slurp_file('/proc/meminfo') =~ /^MemAvailable:\s+(\d+)/m;
plan skip_all => 'less than 4 GB of memory are free' if ($free // 0) < 4 * 1024 * 1024;

my $node = relay_node('unsendable');
my $huge = q{(SELECT jsonb_agg(('1e' || 131071)::numeric) FROM generate_series(1, 8300))};

sub args
{
	my ($db) = @_;

	return ('--consumer' => 'orders', '--dbname' => $node->connstr($db) . ' user=relay', '--to' => 'stdout', '--drain');
}

# In the middle of others, and of those of its key.
relay_database($node, 'shop', 'orders', "max_attempts => 2, retry_ladder => '100ms'");
$node->safe_psql('shop', qq{
SELECT outbox_emit('order', jsonb_build_object('n', n), 'k' || n % 5, 'paid') FROM generate_series(1, 50) AS n;
SELECT outbox_emit('order', $huge, 'k1', 'huge');
SELECT outbox_emit('order', jsonb_build_object('n', n), 'k' || n % 5, 'paid') FROM generate_series(51, 100) AS n;
});
is($node->psql('shop', q{SET ROLE relay; SELECT payload FROM outbox_fetch('orders', 1000)}),
	3, 'the server cannot send it');

my $begun = time;
my ($status, $out, $err) = relay(args('shop'));
is($status, 0, 'the relay goes on') or diag $err;
cmp_ok(time - $begun, '<', relay_patience(30), 'and not for long');
my @got = json_lines($out);
is(join(' ', sort { $a <=> $b } map { $_->{payload}{n} } @got), join(' ', 1 .. 100), 'all others arrive, once');
like(dead_letters($node, 'shop'), qr/^huge\|2\|.*the database cannot send it: \S/, 'it is dead, and why');
is(consumer_rest($node, 'shop', 'orders'), 0, 'nothing is left');
my @told = $err =~ / warning: (.*?)(?: id=.*)? reason="/g;
is(join('; ', @told), 'there is an event that the database cannot send, looking for it' . '; an event was rejected' x 2,
	'few words about it') or diag $err;

# Two relays, while one holds it, do not take another event for it; so with headers.
relay_database($node, 'two', 'orders', "max_attempts => 1, shards => 4");
$node->safe_psql('two', qq{
SELECT outbox_emit('order', '{}', 'k1', 'huge', jsonb_build_object('x', $huge));
SELECT outbox_emit('order', jsonb_build_object('n', n), 'k' || n % 7, 'paid') FROM generate_series(1, 200) AS n;
});
my @relays = map { relay_start("two$_", args('two')) } 1 .. 2;
is(program_wait($_, relay_patience(60)), 0, 'one of two relays') or diag program_errors($_) foreach @relays;
is(join(' ', sort { $a <=> $b } map { $_->{payload}{n} } map { json_lines(program_output($_)) } @relays),
	join(' ', 1 .. 200), 'all others arrive, once');
like(dead_letters($node, 'two'), qr/^huge\|1\|.*the database cannot send it: [^\n]*$/, 'it alone is dead');
is(consumer_rest($node, 'two', 'orders'), 0, 'nothing is left');

relay_clean();
$node->stop;
done_testing();
