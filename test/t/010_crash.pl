# Crashes: a backend that is killed in the middle of a claim, the server that
# is stopped at once, a client that goes away.  What was answered true and
# committed stays claimed, what was open is given back, and a prepared
# transaction goes on blocking its keys until somebody decides.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IdemqTest;
use List::Util qw(shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idemq_node('main', restart_after_crash => 'on', 'idemq.naptime' => '1s');

if (!is_test_build($node))
{
	$node->stop;
	plan skip_all => 'needs TEST_BUILD=1';
}

$node->safe_psql('postgres', q{
CREATE TABLE effect (key text);
SELECT idem_claim('first');
INSERT INTO effect VALUES ('first')});
wait_for_leaves($node);

# ---- a crash while claims are at every stage -----------------------------

my @stages = qw(claim-looked claim-locked claim-leaf-open claim-inserted claim-done claim-released);

sub psql_claim
{
	my ($key) = @_;

	return $node->safe_psql('postgres', qq{
WITH c AS MATERIALIZED (SELECT idem_claim('$key') AS ok), e AS (INSERT INTO effect SELECT '$key' FROM c WHERE ok)
SELECT ok FROM c});
}

sub crash_with_everything_open
{
	my ($how) = @_;
	my @sessions;

	# committed, in one transaction and in two levels of savepoints
	is(psql_claim("$how committed"), 't', "$how: claimed and committed");
	is( $node->safe_psql('postgres', qq{
BEGIN;
SAVEPOINT a;
SELECT idem_claim('$how lost with its savepoint');
ROLLBACK TO a;
SAVEPOINT b;
SELECT idem_claim('$how kept with its savepoint');
INSERT INTO effect VALUES ('$how kept with its savepoint');
RELEASE b;
COMMIT}),
		"t\nt", "$how: claimed in savepoints");

	# prepared
	$node->safe_psql('postgres', qq{
BEGIN;
SELECT idem_claim('$how $_');
INSERT INTO effect VALUES ('$how $_');
PREPARE TRANSACTION '$how $_'}) foreach qw(prepared-commit prepared-rollback);

	# open, idle
	my $idle = session($node);
	is($idle->query(qq{BEGIN; INSERT INTO effect VALUES ('$how idle'); SELECT idem_claim('$how idle')}),
		't', "$how: claimed, not committed");
	my $idle_pid = backend_pid($idle);
	push @sessions, $idle;

	# one forgets what was committed, and does not commit that
	my $forgetful = session($node);
	is($forgetful->query(qq{BEGIN; SELECT idem_forget('$how committed')}), 't', "$how: forgotten, not committed");
	push @sessions, $forgetful;

	# open, at every stage of the claim
	my $gate = session($node);
	$gate->query('SELECT pg_advisory_lock(7001)');
	push @sessions, $gate;
	foreach my $stage (@stages)
	{
		my $s = session($node);
		my $pid = backend_pid($s);

		$s->query("SET idemq.test_point = '$stage'");
		$s->query("BEGIN; INSERT INTO effect VALUES ('$how $stage')");
		send_sql($s, "SELECT idem_claim('$how $stage')");
		wait_for_lock($node, $pid);
		push @sessions, $s;
	}

	if ($how eq 'kill -9')
	{
		my $log = -s $node->logfile;

		kill 'KILL', $idle_pid;
		wait_for_recovery($node, $log);
	}
	elsif ($how eq 'immediate')
	{
		crash($node);
	}
	else
	{
		# a fast stop, which terminates what is open
		$node->restart;
	}
	abandon(@sessions);

	is(psql_claim("$how committed"), 'f', "$how: what was committed stays claimed, and is not forgotten");
	is(psql_claim("$how kept with its savepoint"), 'f', "$how: so does what was claimed in a savepoint");
	is($node->safe_psql('postgres', "SELECT idem_seen('$how lost with its savepoint') IS NULL"),
		't', "$how: what was rolled back is not there");
	foreach my $key ('idle', @stages)
	{
		is($node->safe_psql('postgres', "SELECT idem_seen('$how $key') IS NULL"), 't', "$how: $key is not seen");
		is($node->safe_psql('postgres', "SELECT idem_try_claim('$how $key')"), 'claimed', "$how: $key is given back");
		$node->safe_psql('postgres', "INSERT INTO effect VALUES ('$how $key')");
	}
	return;
}

my @hows = ('kill -9', 'immediate', 'restart');

foreach my $how (@hows)
{
	crash_with_everything_open($how);

	# all that were prepared so far go on blocking
	foreach my $earlier (@hows)
	{
		foreach my $outcome (qw(prepared-commit prepared-rollback))
		{
			is($node->safe_psql('postgres', "SELECT idem_try_claim('$earlier $outcome'), idem_seen('$earlier $outcome') IS NULL"),
				'busy|t', "after $how: $earlier $outcome is busy");
		}
		my ($ret, undef, $stderr) = $node->psql('postgres',
			"\\set VERBOSITY verbose\nSET lock_timeout = '20ms'; SELECT idem_claim('$earlier prepared-commit')");
		like($stderr, qr/55P03/, "after $how: a claim of $earlier prepared-commit waits");
		last if $earlier eq $how;
	}
}

# who waits hears of the decision
foreach my $how (@hows)
{
	my %waiting;

	foreach my $outcome (qw(prepared-commit prepared-rollback))
	{
		my $s = session($node);
		my $pid = backend_pid($s);

		send_sql($s, "SELECT idem_claim('$how $outcome')");
		wait_for_lock($node, $pid);
		$waiting{$outcome} = $s;
	}
	$node->safe_psql('postgres', "COMMIT PREPARED '$how prepared-commit'");
	$node->safe_psql('postgres', "ROLLBACK PREPARED '$how prepared-rollback'");
	is(scalar answer($waiting{'prepared-commit'}), 'f', "$how: prepared and committed after the crash: refused");
	is(scalar answer($waiting{'prepared-rollback'}), 't', "$how: prepared and rolled back after the crash: claimed");
	$node->safe_psql('postgres', "INSERT INTO effect VALUES ('$how prepared-rollback')");
	$_->quit foreach values %waiting;
}
is(effect_errors($node), '', 'every claim has one effect, every effect its claim');
is(leaf_errors($node), '', "every row's leaf is the lower bound of the partition that it is in");

# ---- without a crash: a client and a backend that go away ----------------

foreach my $end ('client', 'backend')
{
	my $holder = session($node);
	my $waiter = session($node);
	my $holder_pid = backend_pid($holder);
	my $waiter_pid = backend_pid($waiter);

	is($holder->query("BEGIN; SELECT idem_claim('gone $end')"), 't', "$end: claimed, not committed");
	send_sql($waiter, "SELECT idem_claim('gone $end')");
	wait_for_lock($node, $waiter_pid);
	if ($end eq 'client')
	{
		abandon($holder);
	}
	else
	{
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($holder_pid)");
		abandon($holder);
	}
	is(scalar answer($waiter), 't', "$end: gone, and the next one has the key");
	$waiter->quit;
	$node->safe_psql('postgres', "INSERT INTO effect VALUES ('gone $end')");
}

# ---- traffic, in which backends are killed -------------------------------

my @keys = map { "traffic-$_" } 1 .. 8000;
my %yes;
my $lost = 0;

foreach my $round (1 .. 3)
{
	my @clients = map { start_traffic($node, "traffic-$round-$_", shuffle @keys) } 1 .. 4;

	# let it get going, then kill somebody in the middle of it
	my $enough = 1000 * $round;
	$node->poll_query_until('postgres', "SELECT count(*) >= $enough FROM effect WHERE key LIKE 'traffic-%'");
	if ($round < 3)
	{
		my $log = -s $node->logfile;
		my $pid = $node->safe_psql('postgres',
			q{SELECT pid FROM pg_stat_activity WHERE query LIKE '%effect%' AND pid <> pg_backend_pid() AND backend_type = 'client backend' LIMIT 1});

		ok($pid && kill('KILL', $pid), "round $round: somebody is killed in the middle of it");
		wait_for_recovery($node, $log);
	}
	foreach my $client (@clients)
	{
		my ($yes) = finish_traffic($client);
		foreach my $key (keys %$yes)
		{
			$lost++ if $yes{$key}++;
		}
	}
	is($lost, 0, "round $round: no key was told true twice");
}
is(effect_errors($node), '', 'traffic: every claim has one effect, every effect its claim');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM effect WHERE key LIKE 'traffic-%'}),
	scalar @keys, 'traffic: every key was claimed in the end');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM effect WHERE NOT idem_claim(key)}),
	$node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'all of them are refused');

# ---- the worker is there again -------------------------------------------

ok( $node->poll_query_until('postgres',
		q{SELECT status = 'ok' FROM idem_status() WHERE check_name = 'worker'}),
	'the worker looks after the partitions again');

$node->stop;
done_testing();
