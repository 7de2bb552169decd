# The worker and idem_maintain(): they come back, they drop what has expired
# and nothing else, nobody waits for them, and they run nobody's code.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

# One slot for the launcher, one for a worker.
my $node = idemq_node('main',
	'idemq.naptime' => '1s',
	'idemq.partition_interval' => '1s',
	'max_logical_replication_workers' => '0',
	'max_worker_processes' => '2');

# What a query returns, or the error's number and message, or the messages.
# A round by hand is tried again if the worker is at it.
sub result
{
	my ($sql, $db) = @_;
	my $result;

	foreach (1 .. 1000)
	{
		my ($ret, $out, $err) = $node->psql($db // 'postgres',
			"SET client_min_messages = notice; \\set VERBOSITY verbose\n$sql");

		$result = join "\n", grep { length } ($out, $err);
		last if $result !~ /another maintenance round/ || $sql =~ /-- once/;
	}
	return $result;
}

my $hands = 0;

# A new database in which nothing is claimed, so that the worker keeps away:
# maintenance is by hand, with days for partitions.
sub by_hand
{
	my $db = 'hand' . ++$hands;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql('postgres', "ALTER DATABASE $db SET idemq.partition_interval = '1d'");
	$node->safe_psql($db, 'CREATE EXTENSION idemq');

	# the worker comes once, to note the time; 7425 is the lock for a round
	$node->poll_query_until($db, q{
SELECT current_setting('shared_preload_libraries') = '' OR count(*) = 1
FROM idemq.clock
WHERE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 7425)})
	  or die 'the worker did not come';
	return $db;
}

# Attaches partitions whose time is long over.
sub old_leaves
{
	my ($db, $count) = @_;

	$node->safe_psql($db, qq{
SET timezone = 'UTC';
DO \$\$
BEGIN
	FOR i IN 1 .. $count LOOP
		EXECUTE format('CREATE TABLE idemq.old_%s (LIKE idemq.processed)', i);
		EXECUTE format('CREATE UNIQUE INDEX ON idemq.old_%s (idemq.digest(scope, key))', i);
		EXECUTE format('ALTER TABLE idemq.processed ATTACH PARTITION idemq.old_%s FOR VALUES FROM (%L) TO (%L)',
			i, '2020-01-01'::date + i, '2020-01-02'::date + i);
	END LOOP;
END \$\$});
	return;
}

sub old_count
{
	my ($db) = @_;

	return $node->safe_psql($db, q{SELECT count(*) FROM pg_inherits WHERE inhrelid::regclass::text LIKE 'idemq.old_%'});
}

# The process of the launcher, once it is there and is not this one.
sub launcher
{
	my ($other) = @_;
	my $query = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq launcher'};

	$other //= 0;
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($query) q WHERE pid <> $other")
	  or die 'there is no launcher';
	return $node->safe_psql('postgres', $query);
}

# The worker goes on: its partitions reach further than they do now.
sub worker_goes_on
{
	my ($name) = @_;
	my $upper = $node->safe_psql('postgres', q{SELECT max(upper) FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass});

	return ok($node->poll_query_until('postgres', "SELECT max(upper) > '$upper' FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass"), $name);
}

# It comes back.

$node->safe_psql('postgres', q{SELECT idem_claim('first')});
ok(wait_for_leaves($node), 'the worker makes partitions');
is(status_of($node, 'worker'), 'ok', 'idem_status() is content');

my $launcher = launcher();
$node->safe_psql('postgres', "SELECT pg_terminate_backend($launcher)");
my $again = launcher($launcher);
worker_goes_on('after pg_terminate_backend() of the launcher another one is there');

# A worker that is stuck can be ended: here it waits for the lock on the parent.
# (drop_lock_timeout bounds that; for the test it is an hour.)
my $holder = session($node);
$holder->query(q{BEGIN});
$holder->query(q{LOCK TABLE ONLY idemq.processed IN SHARE UPDATE EXCLUSIVE MODE});
$node->safe_psql('postgres', q{ALTER SYSTEM SET idemq.drop_lock_timeout = '1h'});
$node->reload;
my $stuck = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq worker' AND wait_event_type = 'Lock'};
ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($stuck) q"), 'a worker waits for a lock');
is(result(q{SET lock_timeout = '1s'; SELECT idem_claim('first'), idem_claim('while it waits')}), 'f|t',
	'claims do not wait with it');
my $worker = $node->safe_psql('postgres', $stuck);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $worker"),
	'a worker that waits can be ended');
$holder->query('ROLLBACK');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET idemq.drop_lock_timeout');
$node->reload;
worker_goes_on('the next one goes on');

# Starved: others have all the slots.  Claims go on, into the newest partition.

my $log = -s $node->logfile;
my $hog = session($node);
my $hog_pid = backend_pid($hog);
send_sql($hog, 'SET '
	  . ($node->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode')
	  # sleep: to keep a slot busy until it is cancelled
	  . ' = on; SELECT pg_sleep(3600)');
my $slot = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker'};
ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($slot) q"), 'the slots are full');
ok($node->wait_for_log(qr/WARNING: .*no slot for an idemq worker.*\n.*HINT:  Raise max_worker_processes/, $log), 'the log says so');
ok($node->poll_query_until('postgres', q{
SELECT status = 'problem' AND detail LIKE 'no slot%' FROM idem_status() WHERE check_name = 'worker'}),
	'idem_status() says so');
ok($node->poll_query_until('postgres', q{SELECT status = 'problem' FROM idem_status() WHERE check_name = 'runway'}),
	'the partitions end');
is(result(q{SELECT idem_claim('first'), idem_claim('starved'), idem_claim('starved')}), 'f|t|f', 'claims go on');
is($node->safe_psql('postgres', q{
SELECT tableoid::regclass = (SELECT leaf FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass ORDER BY lower DESC LIMIT 1) FROM idemq.processed WHERE key = 'starved'}),
	't', 'in the newest partition');
is(leaf_errors($node), '', 'rows say where they are');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($hog_pid)");
answer($hog);
$hog->quit;
worker_goes_on('it goes on when there is a slot');
ok($node->poll_query_until('postgres', q{SELECT bool_and(status = 'ok') FROM idem_status() WHERE check_name IN ('worker', 'runway')}),
	'and idem_status() is content');
is(result(q{SELECT idem_claim('starved')}), 'f', 'keys are remembered');

# Expiry: a few a round, and only if it may.

my $db = by_hand();
old_leaves($db, 20);
is(result('SET idemq.expiry = off; CALL idem_maintain()', $db), '', 'a round by hand');
is(old_count($db), '20', 'with expiry off nothing is dropped');
is(result(q{SET idemq.expiry = off; SELECT status FROM idem_status() WHERE check_name = 'expiry'}, $db), 'warning', 'idem_status() says so');
is(result(q{SELECT state FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND leaf = 'idemq.old_1'::regclass}, $db), 'expired', 'idemq.partitions shows them');
$node->safe_psql($db, 'CALL idem_maintain()');
my $left = old_count($db);
cmp_ok($left, '<', 20, 'with expiry on they are dropped');
cmp_ok($left, '>', 5, 'not all of them at once');
$node->safe_psql($db, 'CALL idem_maintain()') foreach 1 .. 5;
is(old_count($db), '0', 'in the end all of them');

# Somebody is in the way: the others go, and nobody waits.

$db = by_hand();
old_leaves($db, 5);
$node->safe_psql($db, 'CALL idem_maintain()');
old_leaves($db, 5);
my $writer = session($node, $db);
$writer->query(q{BEGIN});
$writer->query(q{LOCK TABLE idemq.old_3 IN ROW EXCLUSIVE MODE});
is(result('CALL idem_maintain()', $db), '', 'a round while somebody has claimed in an old partition');
is($node->safe_psql($db, q{SELECT string_agg(leaf::text, ' ') FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'expired'}), 'idemq.old_3',
	'the others are dropped');
$writer->query('COMMIT');
$node->safe_psql($db, 'CALL idem_maintain()');
is(old_count($db), '0', 'it goes when he is done');

old_leaves($db, 3);
$node->safe_psql($db, q{INSERT INTO idemq.processed VALUES ('', 'young', clock_timestamp(), '2020-01-03 00:00+00')});
$node->safe_psql($db, 'CALL idem_maintain()');
is($node->safe_psql($db, q{SELECT string_agg(leaf::text, ' ') FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND lower < '2021-01-01' AND state <> 'permanent'}), 'idemq.old_2',
	'a partition with a young claim stays, whatever its bounds say');
is(result(q{SELECT idem_seen('young') IS NOT NULL}, $db), 't', 'and its key');

# A lock on the parent, which claims never take: partitions are made, and
# dropped later.
$db = by_hand();
old_leaves($db, 3);
my $reader = session($node, $db);
$reader->query(q{BEGIN});
$reader->query(q{LOCK TABLE ONLY idemq.processed IN ACCESS SHARE MODE});
my $maintainer = session($node, $db);
my $maintainer_pid = backend_pid($maintainer);
send_sql($maintainer, q{SET idemq.drop_lock_timeout = '1h'; CALL idem_maintain()});
ok(wait_for_lock($node, $maintainer_pid), 'a round waits for a lock on the parent');
is($node->safe_psql($db, q{SELECT max(upper) > now() + interval '3 days' FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass}), 't',
	'after it has made partitions');
is(result(q{SET lock_timeout = '1s'; SELECT idem_claim('a'), idem_try_claim('b'), idem_claim('a'), idem_forget('b'), idem_seen('a') IS NOT NULL}, $db),
	't|claimed|f|t|t', 'claims do not wait');
is(old_count($db), '3', 'nothing is dropped yet');
like(result('CALL idem_maintain() -- once', $db), qr/NOTICE:  .*another maintenance round is running/, 'two at once: a notice');
$reader->query('COMMIT');
answer($maintainer);
is(old_count($db), '0', 'when he is done they are dropped');

old_leaves($db, 3);
$reader->query(q{BEGIN});
$reader->query(q{LOCK TABLE ONLY idemq.processed IN ACCESS SHARE MODE});
is(result(q{SET idemq.drop_lock_timeout = '10ms'; CALL idem_maintain()}, $db), '', 'idemq.drop_lock_timeout is heeded');
is(old_count($db), '3', 'nothing was dropped');
$reader->quit;

# Who may, and where.

$db = by_hand();
$node->safe_psql($db, q{
CREATE ROLE boss; CREATE ROLE nobody;
SELECT idem_grant('boss', 'admin')});
like(result('BEGIN; CALL idem_maintain(); COMMIT', $db), qr/ERROR:  25001: .*HINT:.*autocommit/s, 'not in a transaction block');
like(result('SET ROLE nobody; CALL idem_maintain()', $db), qr/ERROR:  42501:/, 'not for everybody');
is(result('SET SESSION AUTHORIZATION boss; CALL idem_maintain()', $db), '', 'for an administrator');
is($node->safe_psql($db, q{
SELECT DISTINCT c.relowner = p.relowner FROM idemq.partitions l JOIN pg_class c ON c.oid = l.leaf, pg_class p WHERE p.oid = 'idemq.processed'::regclass}),
	't', 'what is made belongs to the owner of the table');
is(result(q{DO $$ BEGIN CALL idem_maintain(); END $$}, $db), '', 'in a DO block outside of a transaction');
like(result('SET default_transaction_read_only = on; CALL idem_maintain()', $db), qr/ERROR:  25006:/, 'not in a read only transaction');

# Default privileges do not leak, nor does a default access method or tablespace.

$db = by_hand();
is(result(q{
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO nobody, PUBLIC;
SET timezone = 'Asia/Kolkata'; SET datestyle = 'German'; SET search_path = '';
CALL public.idem_maintain()}, $db), '', 'a round under odd settings');
is($node->safe_psql($db, q{
SET timezone = 'UTC';
SELECT DISTINCT c.reloptions, c.relreplident, c.relpersistence, am.amname, to_char(lower, 'HH24:MI'), upper - lower,
	ARRAY(SELECT grantee FROM aclexplode(c.relacl) WHERE grantee <> c.relowner)
FROM idemq.partitions l JOIN pg_class c ON c.oid = l.leaf JOIN pg_am am ON am.oid = c.relam
WHERE l.parent = 'idemq.processed'::regclass AND l.state <> 'permanent'}),
	'{vacuum_truncate=off}|f|p|heap|00:00|1 day|{}', 'partitions are as they must be');

# Bounds, over changes of the interval in both directions.

$db = by_hand();
$node->safe_psql($db, qq{SET idemq.partition_interval = '$_'; SET idemq.premake = 3; CALL idem_maintain()})
  foreach ('1h', '7d', '36h', '1d', '30d');
is($node->safe_psql($db, q{
SELECT count(*) > 5, bool_and(lower = before) FROM (
	SELECT lower, lag(upper) OVER (ORDER BY lower) AS before FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state <> 'permanent') l
WHERE before IS NOT NULL}), 't|t', 'partitions follow one another without a gap');
is($node->safe_psql($db, q{
SELECT count(*) FROM idemq.partitions
WHERE parent = 'idemq.processed'::regclass AND state <> 'permanent' AND extract(epoch FROM upper - '2000-01-01 00:00+00')::bigint % 3600 <> 0}),
	'0', 'at multiples of the interval');

# What an operator can do to partitions.

$db = by_hand();
$node->safe_psql($db, q{
SET timezone = 'UTC';
SELECT format('CREATE TABLE idemq.processed_p%s (a int)', to_char(now(), 'YYYYMMDD')) \gexec
CALL idem_maintain()});
is($node->safe_psql($db, q{SELECT count(*) FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass AND state = 'current' AND leaf::text LIKE '%\_1'}), '1',
	'a name that is taken');

old_leaves($db, 3);
$node->safe_psql($db, 'CREATE VIEW watched AS SELECT * FROM idemq.old_1');
like(result('CALL idem_maintain()', $db), qr/WARNING:  2BP01: .*cannot drop table idemq.old_1 because other objects depend on it/,
	'a view on a partition: a warning');
is(old_count($db), '1', 'the others are dropped');
is(result('SELECT count(*) FROM watched', $db), '0', 'the view is there');
$node->safe_psql($db, 'DROP VIEW watched; CALL idem_maintain()');
is(old_count($db), '0', 'without the view it goes');

$node->safe_psql($db, q{
CREATE TABLE idemq.bare (LIKE idemq.processed);
ALTER TABLE idemq.processed ATTACH PARTITION idemq.bare FOR VALUES FROM ('2100-01-01') TO ('2100-01-02')});
like(result(q{SELECT idem_claim('a')}, $db), qr/ERROR:  55000: partition "bare".*HINT:  Run CREATE UNIQUE INDEX ON idemq.bare/s,
	'a partition without its index: an error that says what to do');
$node->safe_psql($db, q{CREATE UNIQUE INDEX ON idemq.bare (idemq.digest(scope, key))});
is(result(q{SELECT idem_claim('a')}, $db), 't', 'done');
$node->safe_psql($db, 'DROP TABLE idemq.bare');

$node->safe_psql($db, q{
CREATE UNLOGGED TABLE idemq.fleeting (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.fleeting (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.fleeting FOR VALUES FROM ('2100-01-01') TO ('2100-01-02');
CREATE TABLE idemq.rest (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.rest (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.rest DEFAULT});
is(result(q{SET idemq.premake = 9; CALL idem_maintain()}, $db), '', 'a round with an unlogged and a DEFAULT partition');
is(result(q{SELECT idem_claim('b'), idem_claim('a'), idem_claim('b')}, $db), 't|f|f', 'claims go on');
is($node->safe_psql($db, q{SELECT count(*) FROM idemq.processed WHERE tableoid IN ('idemq.fleeting'::regclass, 'idemq.rest'::regclass)}), '0',
	'and not into them');

# The permanent partition is emptied by the same rule, and never dropped.

my $old_row = q{INSERT INTO idemq.processed VALUES ('', 'ancient', '2020-01-01', '-infinity')};
$db = by_hand();
is(result("$old_row; CALL idem_maintain(); CALL idem_maintain(); SELECT idem_seen('ancient') IS NULL", $db), 't', 'the permanent partition is emptied');
is(result(q{INSERT INTO idemq.processed VALUES ('', 'recent', now(), '-infinity'); CALL idem_maintain(); SELECT idem_seen('recent') IS NOT NULL}, $db),
	't', 'not while it has a young claim');
$db = by_hand();
$node->safe_psql($db, $old_row);
old_leaves($db, 2);
$writer = session($node, $db);
$writer->query(q{BEGIN});
$writer->query(q{DELETE FROM idemq.processed_permanent WHERE key = 'nothing'});
is(result('CALL idem_maintain()', $db), '', 'a round while somebody has a lock on it');
is(old_count($db), '0', 'the others are dropped');
is(result(q{SELECT idem_seen('ancient') IS NOT NULL}, $db), 't', 'it is not emptied');
$writer->query('COMMIT');

# Nobody's code is run.
$node->safe_psql($db, q{
GRANT USAGE ON SCHEMA idemq TO nobody; GRANT TRIGGER ON ALL TABLES IN SCHEMA idemq TO nobody; GRANT CREATE ON SCHEMA public TO nobody;
SET SESSION AUTHORIZATION nobody;
CREATE FUNCTION public.trap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN ALTER ROLE nobody SUPERUSER; RETURN NULL; END';
CREATE TRIGGER trap BEFORE TRUNCATE ON idemq.processed_permanent FOR EACH STATEMENT EXECUTE FUNCTION public.trap()});
like(result('CALL idem_maintain()', $db), qr/WARNING:  55000: .*processed_permanent has a trigger on TRUNCATE.*HINT:  Drop the trigger/s,
	'a trigger on TRUNCATE keeps it from being emptied');
is(result(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'nobody'}, $db), 'f', 'and is not run');

# Settings of a database are those of its worker.

foreach (qw(short long))
{
	$db = by_hand();
	$node->safe_psql('postgres', "ALTER DATABASE $db RENAME TO $_");
	$node->safe_psql('postgres', "ALTER DATABASE $_ SET idemq.retention = '1s'") if $_ eq 'short';
	$node->safe_psql($_, q{
CREATE TABLE idemq.yesterday (LIKE idemq.processed);
CREATE UNIQUE INDEX ON idemq.yesterday (idemq.digest(scope, key));
ALTER TABLE idemq.processed ATTACH PARTITION idemq.yesterday FOR VALUES FROM ('2026-01-01') TO ('2026-01-02');
SELECT format('ALTER TABLE idemq.processed DETACH PARTITION idemq.yesterday') \gexec
SELECT format('ALTER TABLE idemq.processed ATTACH PARTITION idemq.yesterday FOR VALUES FROM (%L) TO (%L)', now() - interval '3 days', now() - interval '2 days') \gexec
SELECT idem_claim('a')});
	# the worker drops last: what it drops is gone when the other is made
	$node->poll_query_until($_, q{SELECT count(*) > 3 FROM idemq.partitions WHERE parent = 'idemq.processed'::regclass});
}
ok($node->poll_query_until('short', q{SELECT to_regclass('idemq.yesterday') IS NULL}), 'the retention of the database');
is(result(q{SELECT to_regclass('idemq.yesterday') IS NOT NULL}, 'long'), 't', 'is not that of another');

# Without preload there is no worker, and idem_maintain() does the same.

$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
$node->restart;
$db = by_hand();
is(result(q{SELECT string_agg(check_name || ' ' || status, ', ' ORDER BY check_name) FROM idem_status() WHERE check_name IN ('preload', 'worker')}, $db),
	'preload warning, worker warning', 'without preload idem_status() says so');
is(result(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idemq%'}, $db), '0', 'there is no launcher');
old_leaves($db, 2);
is(result(q{CALL idem_maintain(); SELECT idem_claim('a'), idem_claim('a'), idem_claim('b')}, $db), 't|f|t', 'claims and maintenance go on');
is(old_count($db), '0', 'partitions are dropped');
is($node->safe_psql($db, q{SELECT count(*) FROM idemq.processed WHERE tableoid <> 'idemq.processed_permanent'::regclass}), '2', 'and made');

$node->stop;
done_testing();
