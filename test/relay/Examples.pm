# doc/examples, as they stand: the shop, the relay, and a worker in some language,
# which is killed and gets everything twice.  Used by 050 and 051.

package Examples;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use RelayTest;
use IdemqTest;
use Rabbit;

our @EXPORT = qw(examples_dir examples_check);

sub examples_dir { return tests_dir() . '/../../doc/examples' }

sub run_sql
{
	my ($node, $db, $file) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'");
	$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $db, '-f', examples_dir() . "/$file" ], $file);
	return;
}

# The words are the worker's command.
sub examples_check
{
	my ($rabbit, @worker) = @_;
	my $node = idemq_node('examples');
	my $orders = 40;
	my $paid = 36;

	run_sql($node, 'orders', 'orders.sql');
	run_sql($node, 'payments', 'schema.sql');
	my %env = (AMQP_URL => $rabbit->url);
	my $url = sub { sprintf 'postgresql:///%s?user=%s&host=%s&port=%d', @_, $node->host, $node->port };
	my $start = sub {
		return program_start('worker', { env => { %env, DATABASE_URL => $url->('payments', 'billing') } }, @worker);
	};
	# logs are on one of them
	my $said = sub { return program_output($_[0]) . program_errors($_[0]) };
	my $lines = sub { my ($program, $word) = @_; my $n = () = $said->($program) =~ /\b$word\b/g; return $n };
	my $applied = sub { return $node->safe_psql('payments', 'SELECT count(*) FROM payments') };
	my $publish = sub {
		my ($status) = relay({ env => { $rabbit->env } }, '--consumer', 'orders', '--drain',
			'--dbname', $node->connstr('orders') . ' user=relay', '--to', $rabbit->to,
			'--exchange', 'orders', '--routing-key', '{aggregatetype}.{type}');
		is($status, 0, 'the relay has published all');
	};

	my $worker = $start->();
	ok(wait_for('the worker is ready', sub { $lines->($worker, 'ready') || !program_lives($worker) }), 'the worker is ready')
	  or diag($said->($worker));
	my $shop = program_start('shop', { env => { DATABASE_URL => $url->('orders', 'shop') } },
		$RelayTest::PYTHON, examples_dir() . '/shop.py', '--orders', $orders);
	is(program_wait($shop), 0, 'the shop has taken all orders') or diag(program_errors($shop));
	$publish->();

	ok(wait_for('some payments', sub { $applied->() >= 5 || !program_lives($worker) }), 'payments are applied')
	  or diag($said->($worker));
	program_kill($worker);
	$worker = $start->();
	ok(wait_for('all payments', sub { $applied->() >= $paid && !$rabbit->count('payments') }), 'killed, and all are applied')
	  or diag($said->($worker));

	# all of it once more
	my $from = $lines->($worker, 'refused');
	$node->safe_psql('orders', q{SELECT outbox_seek('orders', now() - interval '1 hour')});
	$publish->();
	ok(wait_for('refusals', sub { $lines->($worker, 'refused') >= $from + $paid }), 'what comes again is refused')
	  or diag($said->($worker));
	is($applied->(), $paid, 'each payment once');
	is( $node->safe_psql('payments', 'SELECT sum(balance) FROM accounts'),
		$node->safe_psql('orders', 'SELECT sum(amount) FROM orders'),
		'the sum');

	# what can never be applied goes aside
	$node->safe_psql('orders', q{
SELECT outbox_emit('order', body::jsonb, 'alice', 'paid') FROM unnest(ARRAY['{"account": "nobody", "amount": "1.00"}',
	'{"account": "alice", "amount": "much"}', '{"account": "alice"}', '[]', 'null']) AS body;
SELECT outbox_emit_bytes('order', '\xff00', 'alice', 'paid')});
	$publish->();
	ok(wait_for('rejections', sub { $rabbit->count('payments.rejected') == 6 }), 'messages that are no payments are set aside')
	  or diag($said->($worker));
	is($applied->(), $paid, 'and nothing was applied');

	program_signal($worker, 'TERM');
	is(program_wait($worker, 20), 0, 'SIGTERM ends the worker');
	relay_clean();
	$node->stop;
	return;
}

1;
