# The filter after everything that makes it worthless, and beyond what fits: a
# key that somebody has is refused, whatever the filter is good for.
#
# And when the filter must not be believed, in the middle of a claim: here the
# test is red without the reader's look at the epoch, which is shown.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

my $node = idemq_node(
	'filter',
	streaming => 1,
	restart_after_crash => 'on',
	wal_level => 'logical',
	# rounds are called by hand
	'idemq.naptime' => '1h',
	# nor do they give up at a test point
	'idemq.drop_lock_timeout' => '10min',
	'idemq.expiry' => 'off',
	'idemq.filter_memory' => '4MB');
my $tmp = $PostgreSQL::Test::Utils::tmp_check;

plan skip_all => 'needs the hooks of a test build' unless is_test_build($node);

# Partitions of days in 2001 and later, ten keys in each.
my $make_leaves = q{
CREATE PROCEDURE make_leaves(first int, last int) LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL timezone = 'UTC';
	FOR n IN first .. last LOOP
		EXECUTE format('CREATE TABLE idemq.processed_%s (LIKE idemq.processed)', n);
		EXECUTE format('CREATE UNIQUE INDEX ON idemq.processed_%s (idemq.digest(scope, key))', n);
		EXECUTE format('INSERT INTO idemq.processed_%s SELECT %L, %L || i, %L, %L FROM generate_series(1, 10) AS i',
			n, '', n || '-', date '2001-01-01' + n, date '2001-01-01' + n);
		EXECUTE format('ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_%s FOR VALUES FROM (%L) TO (%L)',
			n, date '2001-01-01' + n, date '2001-01-01' + n + 1);
	END LOOP;
END $$};

# The states of the partitions' lanes.
sub filters
{
	my ($on, $db) = @_;

	return $on->safe_psql($db, q{
SELECT string_agg(DISTINCT filter, ' ' ORDER BY filter) FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass});
}

# Rounds, until the filter covers everything.
sub build
{
	my ($on, $db) = @_;

	foreach (1 .. 100)
	{
		# another round may be running
		$on->psql($db, 'CALL idem_maintain()');
		return 1 if filters($on, $db) eq 'ready';
		# sleep: polls, with a deadline
		select undef, undef, undef, 0.05;
	}
	return 0;
}

# What claims of these keys answer.
sub claims
{
	my ($on, $db, @keys) = @_;

	return $on->safe_psql($db, sprintf q{
SELECT string_agg(idem_claim(k)::text, ' ' ORDER BY n) FROM unnest('{%s}'::text[]) WITH ORDINALITY AS t(k, n)},
		join ',', @keys);
}

# Old keys are refused before and after the filter is built anew.
sub refused
{
	my ($on, $db, $what, @keys) = @_;
	my $no = join ' ', ('false') x @keys;

	isnt(filters($on, $db), 'ready', "$what: not every partition is covered");
	is(claims($on, $db, @keys), $no, "$what: old keys are refused");
	ok(build($on, $db), "$what: it is built");
	is(claims($on, $db, @keys), $no, "$what: old keys are refused");
	return;
}

# ---- in the middle of a claim ---------------------------------------------

# A claim reads the map of lanes; before it reads the bits the lane is taken away
# and cleared, by a builder that dies there.  This happens at both looks, and in
# between the lane is built.
sub claim_over_cleared_lane
{
	my ($key, $without) = @_;
	my ($claimer, @gate) = map { session($node) } 0 .. 3;
	my $pid = backend_pid($claimer);
	my @gate_pids = map { scalar backend_pid($_) } @gate;

	# a closed partition that holds the key
	$node->safe_psql('postgres', "INSERT INTO idemq.processed_1 VALUES ('', '$key', '2001-01-02', '2001-01-02 UTC')");
	ok(build($node, 'postgres'), 'the filter is ready');
	wait_for_quiet($node);
	my $clear = sub {
		my $builder = session($node);
		my $builder_pid = backend_pid($builder);
		$node->safe_psql('postgres', q{
ALTER TABLE idemq.processed_1 DISABLE TRIGGER filter_row;
ALTER TABLE idemq.processed_1 ENABLE ALWAYS TRIGGER filter_row});
		$builder->query_safe(q{SET idemq.test_point = 'filter-cleared'});
		send_sql($builder, 'CALL idem_maintain()');
		wait_for_lock($node, $builder_pid);
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($builder_pid, 10000)");
		abandon($builder);
	};
	my $pass_gate = sub {
		my ($from) = @_;
		send_sql($gate[ $from + 1 ], 'SELECT pg_advisory_lock(7001)');
		wait_for_lock($node, $gate_pids[ $from + 1 ]);
		$gate[$from]->query('SELECT pg_advisory_unlock(7001)');
		answer($gate[ $from + 1 ]);
		wait_for_lock($node, $pid);
	};

	$claimer->query_safe("SET idemq.test_without = '$without'");
	$claimer->query_safe(q{SET idemq.test_point = 'filter-mapped, claim-looked'});
	$gate[0]->query('SELECT pg_advisory_lock(7001)');
	send_sql($claimer, "SELECT idem_claim('$key')");
	wait_for_lock($node, $pid);
	$clear->();
	$pass_gate->(0);
	ok(build($node, 'postgres'), 'the lane is ready again');
	$pass_gate->(1);
	$clear->();
	$gate[2]->query('SELECT pg_advisory_unlock(7001)');
	my $answer = answer($claimer);
	$_->quit foreach $claimer, @gate;
	return $answer;
}

$node->safe_psql('postgres', "$make_leaves; CALL make_leaves(1, 2)");
is(claim_over_cleared_lane('during', ''), 'f', 'a lane that is taken away during a claim: refused');
is(claim_over_cleared_lane('without', 'filter_epoch'), 't', 'without the look at the epoch: claimed twice');

# ---- restart, crash, promotion --------------------------------------------

my @keys = ('1-1', '2-10', 'during', 'claimed');
is(claims($node, 'postgres', 'claimed'), 'true', 'a key is claimed');
$node->restart;
refused($node, 'postgres', 'restart', @keys);

# a builder is killed in the middle
my $builder = session($node);
my $pid = backend_pid($builder);
my $gate = session($node);
$gate->query('SELECT pg_advisory_lock(7001)');
$node->safe_psql('postgres', 'TRUNCATE idemq.processed_2');
$builder->query(q{SET idemq.test_point = 'filter-cleared'});
send_sql($builder, 'CALL idem_maintain()');
wait_for_lock($node, $pid);
my $log = -s $node->logfile;
kill 'KILL', $pid;
wait_for_recovery($node, $log);
abandon($builder, $gate);
@keys = grep { $_ ne '2-10' } @keys;
refused($node, 'postgres', 'crash', @keys);
is(claims($node, 'postgres', '2-10'), 'true', 'crash: a key that was truncated away is not');

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
is(claims($node, 'postgres', 'streamed'), 'true', 'a key is claimed');
$node->wait_for_catchup($standby);
is(filters($standby, 'postgres'), 'none', 'there is no filter on a standby');
is($standby->safe_psql('postgres', q{SELECT idem_seen('streamed') IS NOT NULL}), 't', 'keys are seen there');
$standby->promote;
refused($standby, 'postgres', 'promotion', @keys, '2-10', 'streamed');
$standby->stop;

# ---- dump and restore ------------------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE whole TEMPLATE template0');
$node->safe_psql('postgres', 'CREATE DATABASE rows TEMPLATE template0');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$tmp/dump", $node->connstr('postgres') ], 'pg_dump');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('whole'), "$tmp/dump" ], 'pg_restore');
refused($node, 'whole', 'restore', @keys, '2-10', 'streamed');
$node->command_ok([ 'pg_restore', '--section=pre-data', '--section=post-data', '-d', $node->connstr('rows'), "$tmp/dump" ],
	'pg_restore without rows');
ok(build($node, 'rows'), 'the filter covers the empty partitions');
my @tables = map { ('-t', $_) } split /\n/, $node->safe_psql('rows', q{
SELECT c.relname FROM pg_class AS c JOIN idemq.partitions AS p ON p.leaf = c.oid WHERE p.parent = 'idemq.processed'::regclass});
$node->command_ok([ 'pg_restore', '--data-only', '--disable-triggers', @tables, '-d', $node->connstr('rows'), "$tmp/dump" ],
	'pg_restore --disable-triggers');
isnt(filters($node, 'rows'), 'ready', 'the partitions are not covered now');
is(claims($node, 'rows', @keys, '2-10', 'streamed'), join(' ', ('false') x (@keys + 2)), 'and their keys refused');

# ---- rows from elsewhere ---------------------------------------------------

$node->safe_psql('postgres', q{
CREATE PUBLICATION everything FOR TABLE idemq.processed WITH (publish_via_partition_root = true)});
$node->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('mirror', 'pgoutput')});
ok(build($node, 'whole'), 'the subscriber has a filter');
$node->safe_psql('whole', sprintf q{
CREATE SUBSCRIPTION mirror CONNECTION '%s' PUBLICATION everything
	WITH (create_slot = false, copy_data = false)}, $node->connstr . ' dbname=postgres');
is(claims($node, 'postgres', 'replicated'), 'true', 'a key is claimed');
$node->safe_psql('postgres', q{COPY idemq.processed FROM PROGRAM 'printf "\tcopied\t2001-01-02\t2001-01-02 UTC\n"'});
$node->wait_for_catchup('mirror');
is(filters($node, 'whole'), 'ready', 'the filter covers everything');
is(claims($node, 'whole', 'replicated', 'copied'), 'false false', 'logical replication: refused');
$node->safe_psql('whole', 'DROP SUBSCRIPTION mirror');

# ---- partitions go ---------------------------------------------------------

is(claims($node, 'postgres', 'copied'), 'false', 'before its partition is dropped a key is refused');
$node->safe_psql('postgres', 'DROP TABLE idemq.processed_1; CALL make_leaves(3, 6)');
ok(build($node, 'postgres'), 'its lane is free for another');
is(claims($node, 'postgres', 'copied', '1-1', 'streamed', '3-1', '6-10'), 'true true false false false',
	'drop: the keys of that partition can be claimed, others not');

# ---- more keys than it was made for ----------------------------------------

# Looks that n claims of new keys cost, for each of them.
sub looks
{
	my ($db, $prefix, $n) = @_;
	my $scans = q{SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname LIKE 'processed%'};
	my $before = $node->safe_psql($db, $scans);

	is($node->safe_psql($db, "SELECT count(*) FROM generate_series(1, $n) AS i WHERE idem_claim('$prefix' || i)"), $n, "$n claims");
	return ($node->safe_psql($db, $scans) - $before) / $n;
}

$node->append_conf('postgresql.conf', "idemq.filter_memory = '64kB'");
$node->restart;
looks('postgres', 'many ', 50000);
ok(build($node, 'postgres'), 'it is built, small as it is');
is(claims($node, 'postgres', 'streamed', '3-1', 'many 1', 'many 50000'), join(' ', ('false') x 4),
	'too small: old keys are refused');
cmp_ok(looks('postgres', 'small ', 1000), '>', 0.1, 'too small: claims look into partitions in vain');
my ($status, $hint) = split /\|/, $node->safe_psql('postgres', q{
SELECT status, hint FROM idem_status() WHERE check_name = 'filter'});
is($status, 'warning', 'idem_status() says so');
like($hint, qr/^Set idemq\.filter_memory = \d+MB and restart\.$/, 'and what size would do');
my ($size) = $hint =~ /(\d+MB)/;
$node->append_conf('postgresql.conf', "idemq.filter_memory = '$size'");
$node->restart;
ok(build($node, 'postgres'), 'it is built with that size');
is(status_of($node, 'filter'), 'ok', "idem_status() is content with $size");
cmp_ok(looks('postgres', 'large ', 5000), '<', 0.05, 'and claims do not look in vain');

# ---- more partitions than there are lanes, in two databases ----------------

foreach my $db ('postgres', 'whole')
{
	$node->safe_psql($db, "CALL make_leaves($_, $_ + 49)") foreach map { 101 + 50 * $_ } 0 .. 5;
}
my %covered;
foreach my $db ('postgres', 'whole', 'postgres', 'whole')
{
	$node->safe_psql($db, 'CALL idem_maintain()');
	$covered{$db} = $node->safe_psql($db, q{SELECT count(*) FROM idemq.partitions WHERE filter = 'ready'});
}
is($covered{postgres} + $covered{whole}, 512, 'every lane is used');
foreach my $db ('postgres', 'whole')
{
	cmp_ok($covered{$db}, '>=', 250, "$db: has its share");
	is($node->safe_psql($db, q{
SELECT min(lower) FILTER (WHERE filter = 'ready') > max(lower) FILTER (WHERE filter = 'none') FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass}),
		't', "$db: it is the oldest that are not covered");
	like($node->safe_psql($db, q{SELECT status, hint FROM idem_status() WHERE check_name = 'filter'}),
		qr/^warning\|The filter covers 512 partitions, of all databases together; set a longer/, "$db: idem_status() says so");
	is(claims($node, $db, '101-1', '110-10', '350-1', '400-10', 'streamed'), join(' ', ('false') x 5),
		"$db: all old keys are refused");
}

$node->stop;
done_testing();
