# The whole loop: orders, outbox, relay, RabbitMQ, consumers, effects; and what
# must be true of it afterwards.  Used by 010 and 011.

package Loop;

use strict;
use warnings;

use Exporter 'import';
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use RelayTest;
use Rabbit;

our @EXPORT = qw(loop_database loop_queue loop_payers loop_ledger loop_effects loop_finish loop_check);

my $keys = 60;
my $log_from = 0;

# The tables, and the consumer "orders".
sub loop_database
{
	my ($node, $db, $shards) = @_;

	relay_database($node, $db, 'orders', "shards => $shards, max_attempts => 3, retry_ladder => '200ms'");
	$node->safe_psql($db, qq{
CREATE TABLE accounts (id text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO accounts SELECT 'a' || i, 0 FROM generate_series(0, $keys - 1) AS i;
CREATE TABLE orders (id bigint PRIMARY KEY, account text NOT NULL, n bigint NOT NULL, type text NOT NULL);
CREATE TABLE effects (moment bigserial, event text, id bigint, account text, n bigint, attempt int)});
	$log_from = -s $node->logfile;
	return;
}

# One consumer at a time: the order of effects is that of the queue.
sub loop_queue
{
	my ($rabbit) = @_;

	$rabbit->declare('orders', 'ledger', 'order.paid.#', 'x-single-active-consumer' => JSON::PP::true);
	return;
}

sub loop_payers
{
	my ($conninfo, %option) = @_;

	return program_start('payers', python('payers.py'), $conninfo, $option{orders}, $option{seconds}, 6, $keys,
		$option{poisoned_every}, $option{seed});
}

sub loop_ledger
{
	my ($conninfo, $rabbit) = @_;

	return program_start('ledger', { env => { AMQP_URL => $rabbit->url } }, python('ledger.py'), $conninfo, 'ledger');
}

# How many there are so far, or -1 if the server does not say.
sub loop_effects
{
	my ($node, $db) = @_;
	my ($ret, $out) = $node->psql($db, 'SELECT count(*) FROM effects');

	return $ret == 0 ? $out : -1;
}

# Waits for the payers, and until nothing is on its way any more.
sub loop_finish
{
	my ($node, $db, $rabbit, $payers, $seconds) = @_;

	is(program_wait($payers, relay_patience($seconds)), 0, 'all orders were paid') or diag program_errors($payers);
	diag('payers: ' . program_output($payers));
	ok(consumer_done($node, $db, 'orders', 120), 'the relay has dealt with all events');
	ok(wait_for('the queue is empty', sub { $rabbit->count('ledger') == 0 }, 120), 'the consumers have taken all messages');
	return;
}

# What must not be: a name, and a query that finds it.
my @violations = (
	'an order that was paid has no effect' => q{
SELECT o.* FROM orders AS o LEFT JOIN effects AS e USING (id) WHERE o.type = 'paid' AND e.id IS NULL},

	'an effect has no order that was paid' => q{
SELECT e.* FROM effects AS e LEFT JOIN orders AS o USING (id) WHERE o.id IS NULL OR o.type <> 'paid'
	OR (o.account, o.n) <> (e.account, e.n)},

	'an order has two effects' => q{
SELECT id, count(*) FROM effects GROUP BY id HAVING count(*) > 1},

	'an account came out in another order' => q{
SELECT * FROM (
	SELECT *, lag(n) OVER (PARTITION BY account ORDER BY moment) AS before FROM effects) AS e
WHERE n <= before},

	'an event was delivered at another attempt than the first' => q{
SELECT * FROM effects WHERE attempt <> 1},

	'a poisoned event is no dead letter, or one with another reason' => q{
SELECT o.*, d.attempts, d.error FROM orders AS o LEFT JOIN idemq.dead_letters AS d ON (d.payload->>'order')::bigint = o.id
WHERE o.type = 'nowhere' AND (d.consumer IS DISTINCT FROM 'orders' OR d.attempts <> 3 OR d.error !~ 'NO_ROUTE')},

	'a dead letter was not poisoned' => q{
SELECT d.seq, d.type, d.error FROM idemq.dead_letters AS d LEFT JOIN orders AS o ON (d.payload->>'order')::bigint = o.id
WHERE o.type IS DISTINCT FROM 'nowhere'},

	'a dead letter is there twice' => q{
SELECT id, count(*) FROM idemq.dead_letters GROUP BY id HAVING count(*) > 1},

	'the numbers are wrong, so all of this means nothing' => q{
SELECT a.*, count(o.id), max(o.n) FROM accounts AS a LEFT JOIN orders AS o ON o.account = a.id
GROUP BY a.id HAVING a.n <> count(o.id)},
);

# None of it is there, and what was nacked was poisoned.
sub loop_check
{
	my ($node, $db, %option) = @_;

	for (my $i = 0; $i < @violations; $i += 2)
	{
		my ($name, $sql) = @violations[$i, $i + 1];
		is($node->safe_psql($db, "SELECT * FROM ($sql) AS v LIMIT 20"), '', "not so: $name");
	}

	# the log tells what no table does: which events an attempt was spent on
	my %nacked = map { $_ => 1 } nacked($node, $option{another_log} ? 0 : $log_from);
	my %poisoned = map { $_ => 1 } split /\n/, $node->safe_psql($db, q{
SELECT id FROM idemq.outbox WHERE type = 'nowhere'
UNION SELECT id FROM idemq.dead_letters WHERE type = 'nowhere'});
	is(join(' ', grep { !$poisoned{$_} } sort keys %nacked), '', 'no attempt was spent on an event that was not poisoned');
	cmp_ok(scalar keys %nacked, '>', 0, 'attempts were spent on poisoned ones') if !$option{another_log};
	diag($node->safe_psql($db, q{
SELECT 'orders ' || (SELECT count(*) FROM orders) || ', effects ' || (SELECT count(*) FROM effects)
	|| ', dead letters ' || (SELECT count(*) FROM idemq.dead_letters)}));
	return;
}

1;
