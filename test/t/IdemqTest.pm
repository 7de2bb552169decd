# What the TAP tests share: a server with idemq, sessions that are sent a
# statement now and asked for its answer later, and looks at the partitions.

package IdemqTest;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use Test::More;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  idemq_conf idemq_node is_test_build
  session send_sql answer abandon backend_pid wait_for_lock
  status_of leaf_errors wait_for_leaves wait_for_quiet
  set_clock_offset stop_walwriter crash wait_for_recovery
  start_traffic finish_traffic effect_errors);

# Lines for postgresql.conf: quiet, unless a test wants it otherwise.
sub idemq_conf
{
	my (%param) = @_;
	my %set = (
		shared_preload_libraries => 'idemq',
		max_prepared_transactions => 20,
		max_connections => 40,
		max_worker_processes => 16,
		autovacuum => 'off',
		checkpoint_timeout => '1h',
		log_statement => 'none',
		client_min_messages => 'warning',
		%param);

	return join '', map { "$_ = '$set{$_}'\n" } sort keys %set;
}

# A server with the extension in the database postgres; settings as pairs.
# "streaming" is no setting: it makes a server that others can follow.
sub idemq_node
{
	my ($name, %param) = @_;
	my $streaming = delete $param{streaming};
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => $streaming ? 1 : 0);
	$node->append_conf('postgresql.conf', idemq_conf(%param));
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idemq');
	return $node;
}

# Does the library have the hooks that most of these tests need?
sub is_test_build
{
	my ($node) = @_;

	return $node->safe_psql('postgres', q{
LOAD 'idemq';
SELECT count(*) FROM pg_settings WHERE name = 'idemq.test_without'}) eq '1';
}

# A session that lives on after an error.
sub session
{
	my ($node, $db) = @_;

	return $node->background_psql($db // 'postgres', on_error_stop => 0);
}

# Sends a statement, and does not wait for what comes of it.
sub send_sql
{
	my ($session, $sql) = @_;

	$session->{stdout} = '';
	$session->{stderr} = '';
	$session->{stdin} .= "$sql\n;\n\\echo answered\n\\warn answered\n";
	$session->{run}->pump_nb while length $session->{stdin};
	return;
}

# Waits for it: what the statement returned, and the messages.
sub answer
{
	my ($session) = @_;

	$session->{run}->pump
	  until $session->{stdout} =~ /^answered\n/m && $session->{stderr} =~ /^answered\n/m;
	my ($out, $err) = ($session->{stdout}, $session->{stderr});
	$session->{stdout} = '';
	$session->{stderr} = '';
	s/^answered\n//m for $out, $err;
	chomp $out;
	return wantarray ? ($out, $err) : $out;
}

# Lets go of a session whose backend is gone.
sub abandon
{
	eval { $_->{run}->kill_kill } foreach @_;
	return;
}

sub backend_pid
{
	my ($session) = @_;

	return $session->query('SELECT pg_backend_pid()');
}

# Waits until a backend waits for a heavyweight lock.
sub wait_for_lock
{
	my ($node, $pid) = @_;

	return $node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
}

# One of the checks of idem_status().
sub status_of
{
	my ($node, $check) = @_;

	return $node->safe_psql('postgres',
		"SELECT status FROM idem_status() WHERE check_name = '$check'");
}

# Rows whose leaf is not the lower bound of the partition that they are in,
# by the catalogs; must be empty.
sub leaf_errors
{
	my ($node) = @_;

	return $node->safe_psql('postgres', q{
SET timezone = 'UTC';
SELECT p.tableoid::regclass, p.key, p.leaf, pg_get_expr(c.relpartbound, c.oid)
FROM idemq.processed p JOIN pg_class c ON c.oid = p.tableoid,
	substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM \(([^)]*)\)') AS lower
WHERE p.leaf <> CASE lower WHEN 'MINVALUE' THEN '-infinity' ELSE trim(lower, '''')::timestamptz END
LIMIT 10});
}

# Waits until the worker has made a partition for the present.
sub wait_for_leaves
{
	my ($node) = @_;

	return $node->poll_query_until('postgres',
		q{SELECT count(*) > 0 FROM idemq.partitions WHERE state = 'current' AND upper > clock_timestamp()});
}

# Waits until no worker is there and the launcher naps.
sub wait_for_quiet
{
	my ($node) = @_;

	return $node->poll_query_until('postgres', q{
SELECT count(*) FILTER (WHERE backend_type = 'idemq worker') = 0
	AND count(*) FILTER (WHERE backend_type = 'idemq launcher' AND wait_event = 'Extension') = 1
FROM pg_stat_activity});
}

# Sets what the test build adds to the wall clock, everywhere, and waits until
# the server has heard of it.  The library must be preloaded.
sub set_clock_offset
{
	my ($node, $seconds) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET idemq.test_clock_offset = '$seconds'");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT setting = '$seconds' FROM pg_settings WHERE name = 'idemq.test_clock_offset'")
	  or die 'the server does not hear of the new clock';
	return;
}

# From here on nobody flushes WAL who does not want it flushed.
sub stop_walwriter
{
	my ($node) = @_;
	my $query = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'};

	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($query) q");
	my $pid = $node->safe_psql('postgres', $query);
	kill 'STOP', $pid or die "could not stop the WAL writer: $!";
	return $pid;
}

# pg_ctl stop -m immediate, and start.  What is in WAL buffers is lost.  A WAL
# writer that was stopped must not live to see the signal to go on.
sub crash
{
	my ($node, $stopped_walwriter) = @_;

	if ($stopped_walwriter)
	{
		my ($postmaster) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');

		# what pg_ctl sends
		kill 'QUIT', $postmaster;
		kill 'KILL', $stopped_walwriter;
	}
	# it may be gone by now
	$node->stop('immediate', fail_ok => 1);
	$node->start;
	return;
}

# Waits until the server has started anew after one of its processes was
# killed; $from is the size of the log before that.
sub wait_for_recovery
{
	my ($node, $from) = @_;

	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $from);
	return $node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
}

# Traffic: one client that claims these keys one after the other, each in a
# transaction of its own, and writes into effect(key) when it is told true.
sub start_traffic
{
	my ($node, $name, @keys) = @_;
	my $stem = "$PostgreSQL::Test::Utils::tmp_check/$name";
	my %traffic = (out => "$stem.out");

	open(my $sql, '>', "$stem.sql") or die "$stem.sql: $!";
	print $sql qq{
WITH c AS MATERIALIZED (SELECT '$_' AS key, idem_claim('$_') AS ok),
	e AS (INSERT INTO effect SELECT key FROM c WHERE ok)
SELECT key, ok FROM c;} foreach @keys;
	close $sql;
	$traffic{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', "$stem.sql" ],
		'>', $traffic{out}, '2>', "$stem.err");
	return \%traffic;
}

# Waits for its end; answers which keys it was told were true, and which false:
# a reference to a hash for each.
sub finish_traffic
{
	my ($traffic) = @_;
	my (%yes, %no);

	$traffic->{run}->finish;
	foreach (split /\n/, slurp_file($traffic->{out}))
	{
		$yes{$1} = 1 if /^([^|]+)\|t$/;
		$no{$1} = 1 if /^([^|]+)\|f$/;
	}
	return (\%yes, \%no);
}

# What must not be after any traffic: a key with two effects, a claim without
# its effect, an effect without its claim.
sub effect_errors
{
	my ($node) = @_;

	return $node->safe_psql('postgres', q{
SELECT key, count(e.key), count(p.key)
FROM (SELECT key, count(*) FROM effect GROUP BY key) e
	FULL JOIN (SELECT key, count(*) FROM idemq.processed GROUP BY key) p USING (key)
WHERE e.count IS DISTINCT FROM 1 OR p.count IS DISTINCT FROM 1
GROUP BY key
LIMIT 10});
}

1;
