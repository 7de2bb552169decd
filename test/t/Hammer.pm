# The hammer: clients that fight for the same keys (hammer.c), the server that
# they hit, and what must be true afterwards.  Used by the tests 040 to 043.

package Hammer;

use strict;
use warnings;

use Exporter 'import';
use File::Basename qw(dirname);
use POSIX qw(:sys_wait_h _exit);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  hammer_node hammer_database hammer_aim hammer_start hammer_is_running hammer_finish
  hammer_check_told hammer_check_effects hammer_check_leaves hammer_check_log hammer_wait hammer_starve);

my $program;

# Compiles the clients, once.
sub build
{
	return if defined $program;
	$program = "$PostgreSQL::Test::Utils::tmp_check/hammer.bin";
	my %dir;
	foreach my $which (qw(includedir libdir))
	{
		$dir{$which} = `pg_config --$which`;
		chomp $dir{$which};
	}
	system_or_bail($ENV{CC} || 'cc', '-O2', '-o', $program,
		"-I$dir{includedir}", '-I/usr/include/postgresql', dirname(__FILE__) . '/hammer.c',
		"-L$dir{libdir}", '-lpq');
	return;
}

# A server with partitions of one second.
sub hammer_node
{
	my ($name, %conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my %all = (
		'shared_preload_libraries' => "'idemq'",
		'max_connections' => 40,
		'max_prepared_transactions' => 400,
		# the launcher, and one worker
		'max_worker_processes' => 2,
		'max_logical_replication_workers' => 0,
		'deadlock_timeout' => "'20ms'",
		'log_line_prefix' => "'%m [%p] %b '",
		'log_min_messages' => 'warning',
		'log_statement' => 'none',
		'log_connections' => 'off',
		'log_disconnections' => 'off',
		'idemq.naptime' => "'1s'",
		'idemq.partition_interval' => "'1s'",
		'idemq.premake' => 2,
		%conf);

	build();
	$node->init(allows_streaming => 1);
	$node->append_conf('postgresql.conf', "$_ = $all{$_}") foreach sort keys %all;
	$node->start;
	return $node;
}

# A database for a run.
sub hammer_database
{
	my ($node, $db) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql(
		$db, q{
CREATE EXTENSION idemq;
-- nothing in it is unique
CREATE TABLE effect (
	scope text NOT NULL,
	key text NOT NULL,
	delta int NOT NULL DEFAULT 1,
	claimed_at timestamptz,
	written_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX ON effect (key);
CREATE TABLE told (scope text, key text, won int, refused int)});
	return;
}

# Tells the clients where to connect.
sub hammer_aim
{
	my ($node, $db) = @_;
	my $target = "$PostgreSQL::Test::Utils::tmp_check/target";
	open my $file, '>', "$target.new" or die "$target.new: $!";
	print $file $node->connstr($db);
	close $file;
	rename "$target.new", $target or die "$target: $!";
	return $target;
}

# Starts the clients, with the options of hammer.c.
sub hammer_start
{
	my ($node, $db, %options) = @_;
	my $base = "$PostgreSQL::Test::Utils::tmp_check/hammer_$db";
	my $target = hammer_aim($node, $db);

	$options{seed} = $ENV{HAMMER_SEED} if $ENV{HAMMER_SEED};
	my @args = map { "$_=$options{$_}" } sort keys %options;
	note("hammer @args");
	my $pid = fork;
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		open STDOUT, '>', "$base.out" or _exit(2);
		open STDERR, '>', "$base.err" or _exit(2);
		exec($program, $target, "$base.told", @args) or _exit(2);
	}
	return { pid => $pid, base => $base, node => $node, db => $db };
}

sub hammer_is_running
{
	my ($run) = @_;
	return 0 if defined $run->{status};
	return 1 if waitpid($run->{pid}, WNOHANG) == 0;
	$run->{status} = $?;
	return 0;
}

# Waits for the clients; what they counted.
sub hammer_finish
{
	my ($run) = @_;
	if (!defined $run->{status})
	{
		waitpid($run->{pid}, 0);
		$run->{status} = $?;
	}
	my %count = map { split / / } split /\n/, slurp_file("$run->{base}.out");
	my $seconds = ($count{ms} || 1) / 1000;

	is($run->{status}, 0, "$run->{db}: the clients came to an end")
	  or diag slurp_file("$run->{base}.err");
	note(slurp_file("$run->{base}.err"));
	note(join ', ', map { "$_ $count{$_}" } sort keys %count);
	# how often somebody was waited for; the server may have gone through a crash since
	$run->{waits} = $run->{node}->safe_psql($run->{db}, 'SELECT sum(waits) FROM idemq.stats');
	diag(sprintf '%s: %d claims/s (%d), %d transactions/s; of the claims %d%% met another: %d refused, %d busy, %d waits; %d won',
		$run->{db}, $count{claims} / $seconds, $count{claims}, $count{transactions} / $seconds,
		100 * ($count{refused} + $count{busy}) / ($count{claims} || 1),
		$count{refused}, $count{busy},
		$run->{waits} || 0, $count{won});
	return \%count;
}

# Waits until a query says true.
sub hammer_wait
{
	my ($node, $db, $query, $what, $seconds) = @_;
	my $deadline = time + ($seconds || $PostgreSQL::Test::Utils::timeout_default);
	while ($node->safe_psql($db, $query) ne 't')
	{
		return 0 if time > $deadline;
		# sleep: between two looks
		usleep(20_000);
	}
	return 1;
}

# Occupies the only slot for a worker; returns who does.
sub hammer_starve
{
	my ($node, $db, $nap) = @_;
	my $force = $node->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';
	foreach my $attempt (1 .. 10)
	{
		my ($out, $err) = ('', '');
		my $psql = IPC::Run::start(
			[
				'psql', '-XAtq', '-d', $node->connstr($db),
				'-c', "SET application_name = 'starve'", '-c', "SET $force = on",
				# sleep: it is what occupies the slot
				'-c', "SELECT pg_sleep($nap)"
			],
			'>', \$out, '2>', \$err);
		my $has = hammer_wait($node, $db,
			q{SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'parallel worker' AND wait_event = 'PgSleep'},
			'a parallel worker', 1);
		return $psql if $has;
		$node->safe_psql($db,
			q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'starve'});
		eval { $psql->finish };
	}
	fail('the slot of the worker can be occupied');
	return;
}

# What clients were told is what happened.
sub hammer_check_told
{
	my ($run, $node) = @_;
	my $db = $run->{db};
	$node ||= $run->{node};

	$node->safe_psql($db, "COPY told FROM '$run->{base}.told'");
	is( $node->safe_psql(
			$db, 'SELECT scope, key, won FROM told WHERE won > 1 ORDER BY 1, 2 LIMIT 20'),
		'', "$db: no key was won twice");
	is( $node->safe_psql(
			$db, q{
SELECT t.scope, t.key, t.won, t.refused FROM told AS t
WHERE NOT EXISTS (SELECT FROM effect AS e WHERE e.scope = t.scope AND e.key = t.key)
ORDER BY 1, 2 LIMIT 20}),
		'', "$db: every key that was won or refused has an effect");
	return;
}

# Every key has one effect, and one row.
sub hammer_check_effects
{
	my ($run, $node) = @_;
	my $db = $run->{db};
	$node ||= $run->{node};

	# the client that should decide may have ended with its connection
	my @left = split /\n/, $node->safe_psql($db,
		'SELECT gid FROM pg_prepared_xacts WHERE database = current_database()');
	cmp_ok(scalar @left, '<', 4, "$db: hardly a prepared transaction is left");
	$node->safe_psql($db, "ROLLBACK PREPARED '$_'") foreach @left;
	is( $node->safe_psql(
			$db, q{
SELECT scope, key, count(*), min(claimed_at), max(claimed_at) FROM effect WHERE scope <> 'forget'
GROUP BY 1, 2 HAVING count(*) > 1 ORDER BY 1, 2 LIMIT 20}),
		'', "$db: no key has two effects")
	  or diag $node->safe_psql(
		$db, q{
SELECT 'leaf of', p.scope, p.key, p.tableoid::regclass, p.ctid, p.xmin, p.xmax, p.claimed_at,
	e.xmin AS effect_xmin, e.written_at
FROM idemq.processed AS p LEFT JOIN effect AS e USING (scope, key, claimed_at)
WHERE (p.scope, p.key) IN (SELECT scope, key FROM effect WHERE scope <> 'forget'
	GROUP BY 1, 2 HAVING count(*) > 1)
ORDER BY 2, 3, p.claimed_at LIMIT 40});
	is( $node->safe_psql(
			$db, q{
SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;
SELECT scope, key, e.n, p.n
FROM (SELECT scope, key, sum(delta) AS n FROM effect GROUP BY 1, 2) AS e
FULL JOIN (SELECT scope, key, count(*) AS n FROM idemq.processed GROUP BY 1, 2) AS p USING (scope, key)
WHERE coalesce(e.n, 0) <> coalesce(p.n, 0) OR p.n > 1 ORDER BY 1, 2 LIMIT 20}),
		'', "$db: every key that has an effect has one row, and no other has");
	is( $node->safe_psql(
			$db, q{
SELECT e.scope, e.key, e.claimed_at, p.claimed_at
FROM effect AS e JOIN idemq.processed AS p USING (scope, key)
WHERE e.scope <> 'forget' AND e.claimed_at IS DISTINCT FROM p.claimed_at LIMIT 20}),
		'', "$db: a claim sees itself as it is");
	is( $node->safe_psql(
			$db, q{
SELECT p.scope, p.key, idem_seen(p.key, p.scope) FROM idemq.processed AS p
WHERE idem_seen(p.key, p.scope) IS DISTINCT FROM p.claimed_at LIMIT 20}),
		'', "$db: idem_seen finds every key");
	return;
}

# In every leaf heap and index agree.
sub hammer_check_leaves
{
	my ($run, $node) = @_;
	my $db = $run->{db};
	$node ||= $run->{node};

	is( $node->safe_psql(
			$db, q{
SELECT p.tableoid::regclass, p.leaf, q.lower FROM idemq.processed AS p
JOIN idemq.partitions AS q ON q.leaf = p.tableoid
WHERE p.leaf <> coalesce(q.lower, '-infinity') LIMIT 20}),
		'', "$db: every row knows the leaf that it is in");

	is( $node->safe_psql(
			$db, q{
DO $$
DECLARE
	l regclass;
	in_heap bigint;
	in_index bigint;
	plan text;
BEGIN
	CREATE TEMP TABLE differs (leaf regclass, in_heap bigint, in_index bigint, plan text);
	FOR l IN SELECT leaf FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass
	LOOP
		SET LOCAL enable_seqscan = on;
		SET LOCAL enable_indexscan = off;
		SET LOCAL enable_bitmapscan = off;
		EXECUTE format('SELECT count(*) FROM %s', l) INTO in_heap;
		SET LOCAL enable_seqscan = off;
		SET LOCAL enable_indexscan = on;
		EXECUTE format('EXPLAIN SELECT count(scope) FROM %s WHERE idemq.digest(scope, key) >= %L',
			l, '00000000-0000-0000-0000-000000000000') INTO plan;
		EXECUTE format('SELECT count(scope) FROM %s WHERE idemq.digest(scope, key) >= %L',
			l, '00000000-0000-0000-0000-000000000000') INTO in_index;
		EXECUTE format('EXPLAIN (FORMAT JSON) SELECT count(scope) FROM %s WHERE idemq.digest(scope, key) >= %L',
			l, '00000000-0000-0000-0000-000000000000') INTO plan;
		IF in_heap <> in_index OR plan NOT LIKE '%"Index Scan"%' THEN
			INSERT INTO differs VALUES (l, in_heap, in_index, plan);
		END IF;
	END LOOP;
END $$;
SELECT * FROM differs LIMIT 20}),
		'', "$db: index and heap hold the same number of rows");

	SKIP:
	{
		my ($ret) = $node->psql($db, 'CREATE EXTENSION IF NOT EXISTS amcheck');
		skip 'amcheck is not there', 1 if $ret != 0;
		my ($status, $out, $err) = $node->psql(
			$db, q{
SELECT count(bt_index_check(x.indexrelid, true)) > 0 FROM pg_index AS x
JOIN idemq.partitions AS p ON p.leaf = x.indrelid WHERE x.indisvalid});
		is("$status$err", '0', "$db: amcheck finds every row in its index");
	}
	return;
}

# The server and the workers had nothing to complain of.
sub hammer_check_log
{
	my ($node, $allowed) = @_;
	my @bad = grep { !defined $allowed || !/$allowed/ }
	  grep { /PANIC|TRAP|terminated by signal|idemq (?:worker|launcher) (?:ERROR|FATAL|WARNING)/ }
	  split /\n/, slurp_file($node->logfile);
	is(join("\n", @bad[0 .. ($#bad < 9 ? $#bad : 9)]), '', $node->name . ': nothing bad in the log');
	return;
}

1;
