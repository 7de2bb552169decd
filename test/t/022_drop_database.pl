# DROP DATABASE, CREATE DATABASE ... TEMPLATE and DROP EXTENSION while the
# worker is at work, every second in every database.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

my $node = idemq_node('main',
	'idemq.naptime' => '1s',
	'idemq.partition_interval' => '1s',
	'idemq.retention' => '2s',
	'idemq.premake' => '2');

# Waits until the worker has made another partition.
sub worker_goes_on
{
	my ($db, $name) = @_;
	my $upper = $node->safe_psql($db, q{SELECT coalesce(max(upper), '-infinity') FROM idemq.partitions WHERE isfinite(lower)});

	return ok($node->poll_query_until($db, "SELECT max(upper) > '$upper' FROM idemq.partitions WHERE isfinite(lower)"), $name);
}

# Runs a statement that must neither fail nor hang.
sub runs
{
	my ($db, $sql, $name) = @_;
	my $limit = $PostgreSQL::Test::Utils::timeout_default;
	my ($ret, undef, $err) = $node->psql($db, "SET statement_timeout = '${limit}s';\n$sql");

	is($ret, 0, $name // $sql) or diag $err;
	return;
}

$node->safe_psql('postgres', q{SELECT idem_claim('a')});
$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', q{ALTER DATABASE source SET idemq.retention = '1d'});
$node->safe_psql('source', 'CREATE EXTENSION idemq');
$node->safe_psql('source', q{SELECT idem_claim('kept')});
worker_goes_on('source', 'the worker is at work');

foreach my $i (1 .. 4)
{
	runs('postgres', "CREATE DATABASE copy$i TEMPLATE source", "a copy of a database that is looked after, $i");
	is($node->safe_psql("copy$i", qq{ALTER DATABASE copy$i SET idemq.retention = '1d'; SELECT idem_claim('kept'), idem_claim('new')}),
		'f|t', 'keys are remembered in it');
	worker_goes_on("copy$i", 'it is looked after');
	is($node->safe_psql("copy$i", q{SELECT idem_claim('kept'), idem_claim('new')}), 'f|f', 'and goes on');
	runs('postgres', "DROP DATABASE copy$i");
}

foreach my $i (1 .. 4)
{
	runs('source', 'DROP EXTENSION idemq', "DROP EXTENSION while it is looked after, $i");
	runs('source', 'CREATE EXTENSION idemq');
	is($node->safe_psql('source', q{SELECT idem_claim('kept'), idem_claim('kept')}), 't|f', 'it begins anew');
	worker_goes_on('source', 'and is looked after');
}

# A worker that has to wait: other databases can be dropped meanwhile, and its
# own as well, with force.
$node->safe_psql('postgres', q{CREATE DATABASE other});
$node->safe_psql('source', q{ALTER DATABASE source SET idemq.drop_lock_timeout = '1h'});
my $holder = session($node, 'source');
$holder->query('BEGIN');
$holder->query('LOCK TABLE ONLY idemq.processed IN SHARE UPDATE EXCLUSIVE MODE');
ok($node->poll_query_until('postgres', q{
SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq worker' AND wait_event_type = 'Lock'}),
	'a worker waits for a lock');
runs('postgres', 'DROP DATABASE other', 'another database is dropped meanwhile');
runs('postgres', 'DROP DATABASE source WITH (FORCE)', 'so is its own, with force');
abandon($holder);
worker_goes_on('postgres', 'the launcher goes on');

SKIP:
{
	skip 'no test build', 2 unless is_test_build($node);

	# the same with a worker that holds the locks for a drop
	$node->safe_psql('postgres', 'CREATE DATABASE locked');
	$node->safe_psql('locked', q{
CREATE EXTENSION idemq;
ALTER DATABASE locked SET idemq.test_point = 'maintain-locked'});
	my $gate = session($node, 'locked');
	$gate->query('SELECT pg_advisory_lock(7001)');
	$node->safe_psql('locked', q{SELECT idem_claim('a')});
	ok($node->poll_query_until('postgres', q{
SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq worker' AND wait_event = 'advisory'}),
		'a worker has locked a partition');
	runs('postgres', 'DROP DATABASE locked WITH (FORCE)', 'its database is dropped');
	abandon($gate);
	worker_goes_on('postgres', 'the launcher goes on');
}

unlike(slurp_file($node->logfile), qr/PANIC|terminated by signal|TRAP/, 'nothing broke');

$node->stop;
done_testing();
