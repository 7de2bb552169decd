# What can happen to an outbox beyond its clients: a prepared transaction that is
# committed after a restart, a power cut, a clock that is set back, a consumer
# that is away for long, and copies of the database of every kind.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IdemqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = idemq_node(
	'main',
	streaming => 1,
	'idemq.naptime' => '1s');

if (!is_test_build($node))
{
	$node->stop;
	plan skip_all => 'needs TEST_BUILD=1';
}

# Writes events of these types, one transaction each.
sub emit
{
	my ($where, $db, @types) = @_;

	$where->safe_psql($db, qq{INSERT INTO idemq.outbox (aggregatetype, aggregateid, type) VALUES ('order', 'o', '$_')})
	  foreach @types;
	return;
}

# What a consumer is given, until nothing more comes; it acks all of it.  The
# worker may be at the shard for a moment: then there is nothing, but outbox_wait
# knows better.
sub take
{
	my ($where, $db, $consumer) = @_;
	my @all;
	my $empty = 0;

	while ($empty < 3)
	{
		my $some = $where->safe_psql(
			$db, qq{
WITH f AS MATERIALIZED (SELECT * FROM outbox_fetch('$consumer') WITH ORDINALITY),
	a AS MATERIALIZED (SELECT outbox_ack(token) FROM (SELECT DISTINCT token FROM f) AS t)
SELECT string_agg(type, ' ' ORDER BY ordinality) FROM f, a});

		if ($some eq '')
		{
			$empty++;
			$where->safe_psql($db, qq{CALL outbox_wait('$consumer', '50 ms')});
			next;
		}
		$empty = 0;
		push @all, $some;
	}
	return join ' ', @all;
}

# What it is given, and keeps under a lease.
sub hold
{
	my ($where, $db, $consumer, $lease) = @_;

	return $where->safe_psql($db, qq{SELECT type FROM outbox_fetch('$consumer', 1, '$lease')});
}

# What it is given in the end, when it asks again and again.
sub take_in_time
{
	my ($where, $db, $consumer, $expected) = @_;
	my $got = '';

	foreach (1 .. 200)
	{
		$got .= ($got eq '' ? '' : ' ') . $_ foreach grep { $_ ne '' } take($where, $db, $consumer);
		last if length $got >= length $expected;
		# sleep: between two looks
		select undef, undef, undef, 0.1;
	}
	return $got;
}

# An SQLSTATE.
sub refusal
{
	my ($where, $db, $sql) = @_;
	my ($ret, $out, $err) = $where->psql($db, "\\set VERBOSITY verbose\n$sql");

	return $err =~ /ERROR:\s+([0-9A-Z]{5})/ ? $1 : '';
}

# ---- 32-bit xids ---------------------------------------------------------

is( $node->safe_psql('postgres', q{
SELECT string_agg(attrelid::regclass || '.' || attname, ' ') FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = attrelid
WHERE relnamespace = 'idemq'::regnamespace AND attnum > 0
	AND atttypid IN ('xid'::regtype, 'cid'::regtype, 'txid_snapshot'::regtype, 'xid[]'::regtype)}),
	'', 'no 32-bit xid is stored anywhere');

# ---- COMMIT PREPARED after a restart -------------------------------------

$node->safe_psql('postgres', q{SELECT outbox_subscribe('c')});
$node->safe_psql('postgres', q{
BEGIN;
INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', 'prepared');
PREPARE TRANSACTION 'late'});
emit($node, 'postgres', 'before');
is(take($node, 'postgres', 'c'), 'before', 'a prepared transaction holds nothing up');
$node->restart;
emit($node, 'postgres', 'after');
is(take($node, 'postgres', 'c'), 'after', 'nor does it after a restart');
crash($node);
is(take($node, 'postgres', 'c'), '', 'nothing comes twice after a crash');
$node->safe_psql('postgres', q{COMMIT PREPARED 'late'});
is(take($node, 'postgres', 'c'), 'prepared', 'it is delivered when it is committed');
is(take($node, 'postgres', 'c'), '', 'once');

# ---- an xid that a snapshot shows twice ----------------------------------

# While PREPARE waits for the standby both the backend and the prepared transaction
# count as running.  There is no such standby.
{
	my $preparer = session($node);
	my $reader = session($node);

	$preparer->query(q{SET synchronous_commit = on});
	my $pid = backend_pid($preparer);
	$reader->query(q{SET synchronous_commit = local; SET idemq.test_without = 'flush'});
	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->reload;
	$node->poll_query_until('postgres', q{SELECT setting = 'nobody' FROM pg_settings WHERE name = 'synchronous_standby_names'});
	send_sql($preparer, q{
BEGIN; INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', 'prepared'); PREPARE TRANSACTION 'twice'});
	$node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid")
	  or die 'PREPARE does not wait';
	$reader->query(q{INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', 'other')});
	is($reader->query(q{SELECT type, outbox_ack(token) FROM outbox_fetch('c')}), 'other|1', 'twice: the window before');
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	answer($preparer);
	$node->safe_psql('postgres', q{COMMIT PREPARED 'twice'});
	is(take($node, 'postgres', 'c'), 'prepared', 'twice: it is delivered once');
	$preparer->quit;
	$reader->quit;
}

# ---- a fetch waits for the standby, as long as there is to be one --------

{
	my $reader = session($node);
	my $pid = backend_pid($reader);

	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->reload;
	$node->poll_query_until('postgres', q{SELECT setting = 'nobody' FROM pg_settings WHERE name = 'synchronous_standby_names'});
	$node->safe_psql('postgres', q{
SET synchronous_commit = local; INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', 'unconfirmed')});
	send_sql($reader, q{SET synchronous_commit = local; SELECT type, outbox_ack(token) FROM outbox_fetch('c')});
	ok($node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
		'standby: what it has not confirmed is not handed out');
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	is((answer($reader))[0], 'unconfirmed|1', 'standby: there is to be none any more, so the fetch goes on');
	$reader->quit;
}

# ---- nor is one handed out that was parked when nobody was told of it ----

{
	my $reader = session($node);
	my $pid = backend_pid($reader);

	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->reload;
	$node->poll_query_until('postgres', q{SELECT setting = 'nobody' FROM pg_settings WHERE name = 'synchronous_standby_names'});
	$node->safe_psql('postgres', q{
SET synchronous_commit = local;
INSERT INTO idemq.outbox (aggregatetype, type, not_before) VALUES ('order', 'parked', clock_timestamp() + '1 second')});
	is($reader->query(q{SET synchronous_commit = local; SELECT count(*) FROM outbox_fetch('c')}),
		'0', 'standby: an event that is not due is parked');
	$node->poll_query_until('postgres', q{SELECT clock_timestamp() > max(not_before) FROM idemq.outbox WHERE type = 'parked'});
	send_sql($reader, q{SELECT type, outbox_ack(token) FROM outbox_fetch('c')});
	ok($node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
		'standby: when it is due, it is not handed out before it is confirmed');
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	is((answer($reader))[0], 'parked|1', 'standby: then it is');
	$reader->quit;
}

# ---- a power cut ---------------------------------------------------------

# No worker here: its commits would flush as well.
my $power = idemq_node(
	'power',
	shared_preload_libraries => '',
	wal_writer_delay => '10s',
	wal_writer_flush_after => '1GB',
	bgwriter_lru_maxpages => 0);
$power->safe_psql('postgres', q{SELECT outbox_subscribe('c')});

foreach my $without ('', 'flush')
{
	my $name = $without ? "without $without" : 'power cut';
	my $type = $without ? 'lost' : 'kept';
	my $writer = session($power);
	my $reader = session($power);

	$_->query(q{LOAD 'idemq'; SET synchronous_commit = off}) foreach $writer, $reader;
	$reader->query("SET idemq.test_without = '$without'") if $without;
	# full-page images and first extensions now, not later; all of it is flushed
	emit($power, 'postgres', 'warm');
	is(take($power, 'postgres', 'c'), 'warm', "$name: it is warm");
	my $walwriter = stop_walwriter($power);
	$writer->query(qq{INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', '$type')});
	is($reader->query(q{BEGIN; SELECT type FROM outbox_fetch('c')}), $type, "$name: the event is handed out");
	crash($power, $walwriter);
	abandon($writer, $reader);
	is( $power->safe_psql('postgres', qq{SELECT count(*) FROM idemq.outbox WHERE type = '$type'}),
		$without ? '0' : '1',
		$without ? "$name: it never was, and this test would have seen it" : "$name: and it is still there");
	is(take($power, 'postgres', 'c'), $without ? '' : $type, "$name: it comes again if it is there");
}
$power->stop;

# ---- the clock is set back a year ----------------------------------------

emit($node, 'postgres', 'leased');
$node->safe_psql('postgres', q{SELECT outbox_subscribe('retry', retry_ladder => '3s')});
emit($node, 'postgres', 'failed');
$node->safe_psql('postgres', q{SELECT outbox_subscribe('released', start_at => 'now')});
emit($node, 'postgres', 'back');
is(hold($node, 'postgres', 'c', '1 hour'), 'leased', 'clock: a lease is out');
is( $node->safe_psql('postgres', q{
WITH f AS MATERIALIZED (SELECT * FROM outbox_fetch('retry'))
SELECT n.action FROM f, outbox_nack(f.token, f.id, 'boom') AS n WHERE f.type = 'failed'}),
	'retry', 'clock: an event has failed');
$node->safe_psql('postgres', q{
WITH f AS MATERIALIZED (SELECT * FROM outbox_fetch('released'))
SELECT outbox_release(f.token, NULL, '3 s') FROM f});
set_clock_offset($node, -31536000);
is(take($node, 'postgres', 'c'), 'leased failed back', 'clock: the lease is void, the event comes');
is(take_in_time($node, 'postgres', 'released', 'back'), 'back', 'clock: what was given back for a while comes');
is(take_in_time($node, 'postgres', 'retry', 'failed back'), 'failed back', 'clock: and so does what was to be tried again');
set_clock_offset($node, 0);
emit($node, 'postgres', 'onwards');
is(take($node, 'postgres', $_), 'onwards', "clock: $_ goes on when it is right again") foreach qw(c retry released);

# ---- away for ten partitions ---------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE away');
$node->safe_psql('postgres', qq{ALTER DATABASE away SET idemq.$_}) foreach
  ("partition_interval = '1s'", "premake = 2", "outbox_retention = '1s'");
$node->safe_psql('away', q{CREATE EXTENSION idemq; SELECT outbox_subscribe('c'); SELECT outbox_subscribe('swift')});
my $n = 0;
foreach (1 .. 60 * $PostgreSQL::Test::Utils::timeout_default)
{
	emit($node, 'away', 'e' . ++$n);
	take($node, 'away', 'swift');
	last if $node->safe_psql('away', q{SELECT count(DISTINCT tableoid) >= 10 FROM idemq.outbox}) eq 't';
	# sleep: between two looks
	select undef, undef, undef, 0.2;
}
is(take($node, 'away', 'c'), join(' ', map { "e$_" } 1 .. $n), 'away: ten partitions later all is there, in order');
ok( $node->poll_query_until('away', q{SELECT count(*) = 0 FROM idemq.outbox}),
	'away: then the partitions go');
emit($node, 'away', 'next');
is(take($node, 'away', 'c'), 'next', 'away: and it goes on');

# ---- copies --------------------------------------------------------------

# A database with consumers that are asked in a copy: event one is acked, two and
# three were never handed out.
$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', q{CREATE EXTENSION idemq});
# so that its xids are greater than those of a new cluster, and of what that writes
$node->safe_psql('source', q{
DO $$ BEGIN FOR i IN 1 .. 5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$});
my @modes = qw(continue replay skip);
$node->safe_psql('source', "SELECT outbox_subscribe('$_')") foreach @modes;
emit($node, 'source', 'one');
is(take($node, 'source', $_), 'one', "copies: $_ has taken one") foreach @modes;
emit($node, 'source', qw(two three));

# What a copy says before and after it was adopted.
sub check_copy
{
	my ($what, $where, $db, @adopt) = @_;
	my %expected = (continue => 'two three new', replay => 'two three new', skip => 'new');

	emit($where, $db, 'new');
	is(refusal($where, $db, qq{SELECT * FROM outbox_fetch('$_')}), '55000', "$what: fetch is refused before $_")
	  foreach @modes;
	is(refusal($where, $db, q{SELECT outbox_adopt('skip', 'shrug')}), '22023', "$what: there is no such mode");
	is(refusal($where, $db, q{SELECT outbox_adopt('nobody', 'skip')}), '42704', "$what: there is no such consumer");
	foreach my $mode (@adopt)
	{
		$where->safe_psql($db, qq{SELECT outbox_adopt('$mode', '$mode')});
		is(take($where, $db, $mode), $expected{$mode}, "$what: after $mode");
	}
	emit($where, $db, 'newer');
	is(take($where, $db, $_), 'newer', "$what: and what comes later, after $_") foreach @adopt;
	return;
}

# a template copy: another database of the same cluster
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'source'}),
	'template copy: nobody is connected');
$node->safe_psql('postgres', 'CREATE DATABASE template_copy TEMPLATE source');
check_copy('template copy', $node, 'template_copy', @modes);

# restored into a new cluster, whose xids are lower
my $restored = idemq_node('restored', 'idemq.naptime' => '1s');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/source.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('source') ], 'restored: pg_dump');
$restored->safe_psql('postgres', 'CREATE DATABASE restored');
$restored->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $restored->connstr('restored'), '-f', $dump ], 'restored: psql');
check_copy('restored', $restored, 'restored', 'replay', 'skip');
$restored->stop;

# a physical copy that has a name of its own
$node->backup('copy');
my $physical = PostgreSQL::Test::Cluster->new('physical');
$physical->init_from_backup($node, 'copy');
$physical->append_conf('postgresql.conf', "idemq.instance = 'copy'");
$physical->start;
check_copy('physical copy', $physical, 'source', @modes);
$physical->stop;

# and the source knows nothing of all that
is(take($node, 'source', $_), 'two three', "source: $_ goes on") foreach @modes;

$node->stop;
done_testing();
