# A streaming standby.
#
# idem_seen() works there and nothing else does; sessions there hear of new
# partitions.  A synchronous one is promoted in the middle of traffic: what a
# client was told is true, or false, is so on the new primary, and the worker
# looks after the partitions there.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IdemqTest;
use List::Util qw(shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = idemq_node(
	'primary',
	streaming => 1,
	shared_buffers => '16MB',
	'idemq.naptime' => '1s',
	'idemq.partition_interval' => '1s',
	'idemq.premake' => '3',
	'idemq.retention' => '1h');

if (!is_test_build($primary))
{
	$primary->stop;
	plan skip_all => 'needs TEST_BUILD=1';
}

$primary->safe_psql('postgres', q{
CREATE TABLE effect (key text);
WITH c AS MATERIALIZED (SELECT k, idem_claim(k) AS ok FROM unnest('{old,older}'::text[]) AS k)
INSERT INTO effect SELECT k FROM c WHERE ok});
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

sub caught_up
{
	return $primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
}

# ---- what works there ----------------------------------------------------

caught_up();
is( $standby->safe_psql('postgres', q{
SELECT idem_seen('old') IS NOT NULL, idem_seen('new') IS NULL, idem_seen('old', 'scope') IS NULL}),
	't|t|t', 'idem_seen on a standby');
is( $standby->safe_psql('postgres', q{SELECT idem_seen('old')}),
	$primary->safe_psql('postgres', q{SELECT idem_seen('old')}), 'it says the same as on the primary');
foreach my $call (
	q{SELECT idem_claim('%s')}, q{SELECT idem_try_claim('%s')},
	q{SELECT idem_claim_many(ARRAY['%s'])}, q{SELECT idem_claim_many('{}')}, q{SELECT idem_forget('%s')},
	q{CALL idem_maintain()}, q{SELECT idemq.accept_clock()})
{
	foreach my $key ('old', 'new')
	{
		my $sql = sprintf $call, $key;
		my (undef, undef, $stderr) = $standby->psql('postgres', "\\set VERBOSITY verbose\n$sql");
		like($stderr, qr/25006/, "$sql is refused on a standby, with 25006");
	}
}
foreach my $view (qw(idem_status() idemq.partitions idemq.stats))
{
	is($standby->psql('postgres', "SELECT * FROM $view"), 0, "$view can be read on a standby");
}
is( $standby->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idemq%'}),
	'0', 'no worker on a standby');

# ---- sessions there hear of new partitions -------------------------------

# Has a partition made, and puts a key into it.
sub claim_in_new_leaf
{
	my ($key) = @_;
	my $newest = q{SELECT leaf FROM idemq.partitions ORDER BY upper DESC LIMIT 1};
	my $was = $primary->safe_psql('postgres', $newest);

	$primary->poll_query_until('postgres', "SELECT ($newest) <> '$was'::regclass");
	my $leaf = $primary->safe_psql('postgres', $newest);

	# wait for its turn
	$primary->poll_query_until('postgres', "SELECT lower <= clock_timestamp() FROM idemq.partitions WHERE leaf = '$leaf'::regclass");
	is($primary->safe_psql('postgres', "SELECT idem_claim('$key')"), 't', "$key is claimed");
	$primary->safe_psql('postgres', "INSERT INTO effect VALUES ('$key')");
	is( $primary->safe_psql('postgres', "SELECT tableoid >= '$leaf'::regclass FROM idemq.processed WHERE key = '$key'"),
		't', "$key is in a partition that was not there before");
	caught_up();
	return;
}

my $idle = session($standby);
my $open = session($standby);
my $deaf = session($standby);

$deaf->query(q{LOAD 'idemq'; SET idemq.test_without = 'invalidations'});
is($idle->query(q{SELECT idem_seen('fresh') IS NULL}), 't', 'a key that is not there yet');
is($_->query(q{BEGIN; SELECT idem_seen('fresh') IS NULL}), 't', 'nor in an open transaction') foreach $open, $deaf;
claim_in_new_leaf('fresh');
is($idle->query(q{SELECT idem_seen('fresh') IS NOT NULL}), 't', 'a session of the standby sees it in the new partition');
is($open->query(q{SELECT idem_seen('fresh') IS NOT NULL}), 't', 'so does one in the middle of a transaction');
is($deaf->query(q{SELECT idem_seen('fresh') IS NOT NULL}), 'f',
	'without the look for invalidations it does not, and this test sees it');
$_->query('COMMIT') foreach $open, $deaf;
is($deaf->query(q{SELECT idem_seen('fresh') IS NOT NULL}), 't', 'it does in the next transaction');

# and of those that are dropped: no lock on a partition is kept, so replay goes on
$open->query(q{BEGIN});
is($open->query(q{SELECT idem_seen('old') IS NOT NULL}), 't', 'seen in an open transaction of the standby');
my $dropped = $primary->safe_psql('postgres', q{
SELECT leaf FROM idemq.partitions WHERE state = 'closed' ORDER BY lower LIMIT 1});
$primary->safe_psql('postgres', "DROP TABLE $dropped");
caught_up();
is($open->query(q{SELECT idem_seen('fresh') IS NOT NULL}), 't', 'a partition was dropped, and the session goes on');
$open->query('COMMIT');
$_->quit foreach $idle, $open, $deaf;
is($standby->safe_psql('postgres', "SELECT to_regclass('$dropped') IS NULL"), 't', 'the drop was replayed');

# ---- promotion in the middle of traffic ----------------------------------

# keys of the partition that was dropped may be claimed anew
$primary->safe_psql('postgres', q{
DELETE FROM effect WHERE key NOT IN (SELECT key FROM idemq.processed)});
$primary->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'standby'});
$primary->reload;
$primary->poll_query_until('postgres',
	q{SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'standby'});
is($primary->safe_psql('postgres', q{SHOW synchronous_standby_names}), 'standby', 'commits wait for the standby');

my @keys = map { "traffic-$_" } 1 .. 8000;
my @clients = map { start_traffic($primary, "before-$_", shuffle @keys) } 1 .. 4;

# some are open for good, one is prepared
my $lost = session($primary);
$lost->query(q{BEGIN; SELECT idem_claim('open')});
$primary->safe_psql('postgres', q{
BEGIN; SELECT idem_claim('prepared'); INSERT INTO effect VALUES ('prepared'); PREPARE TRANSACTION 'prepared'});
ok( $standby->poll_query_until('postgres', q{SELECT count(*) > 1000 FROM effect WHERE key LIKE 'traffic-%'}),
	'traffic is there');
$primary->stop('immediate');
$standby->promote;
abandon($lost);

my (%yes, %no);
my $twice = 0;
foreach my $client (@clients)
{
	my ($yes, $no) = finish_traffic($client);

	$twice += grep { $yes{$_}++ } keys %$yes;
	$no{$_} = 1 foreach keys %$no;
}
is($twice, 0, 'no key was told true twice');
cmp_ok(scalar keys %yes, '<', scalar @keys, 'the primary went down in the middle of it');
cmp_ok(scalar keys %yes, '>', 500, 'after some traffic');
note scalar(keys %yes) . ' were told true, ' . scalar(keys %no) . ' were told false';

sub seen_count
{
	my $list = join ',', map { "'$_'" } @_;

	return $standby->safe_psql('postgres',
		"SELECT count(*) FROM unnest(ARRAY[$list]::text[]) AS k WHERE idem_seen(k) IS NOT NULL");
}
is(seen_count(keys %yes), scalar keys %yes, 'what was answered true is claimed on the new primary');
is(seen_count(keys %no), scalar keys %no, 'what was answered false as well');
is(effect_errors($standby), '', 'every claim has one effect, every effect its claim');
is($standby->safe_psql('postgres', q{SELECT idem_try_claim('prepared')}), 'busy', 'the prepared one is busy');
is($standby->safe_psql('postgres', q{BEGIN; SELECT idem_claim('open'); ROLLBACK}), 't', 'the open one is given back');

# the same traffic to the end
my %again;
foreach my $client (map { start_traffic($standby, "after-$_", shuffle @keys) } 1 .. 3)
{
	my ($yes) = finish_traffic($client);

	$again{$_}++ foreach keys %$yes;
}
is(scalar(grep { $yes{$_} } keys %again), 0, 'what was answered true is refused on the new primary');
is(scalar(grep { $_ > 1 } values %again), 0, 'no key was told true twice there');
is( $standby->safe_psql('postgres', q{SELECT count(*) FROM effect WHERE key LIKE 'traffic-%'}),
	scalar @keys, 'every key was claimed in the end');
$standby->safe_psql('postgres', q{COMMIT PREPARED 'prepared'});
is($standby->safe_psql('postgres', q{SELECT idem_claim('prepared')}), 'f', 'what is committed there is refused');
is(effect_errors($standby), '', 'every claim has one effect, every effect its claim');
is(leaf_errors($standby), '', "every row's leaf is the lower bound of the partition that it is in");

# ---- the worker there ----------------------------------------------------

my $newest = $standby->safe_psql('postgres', q{SELECT max(upper) FROM idemq.partitions});
ok( $standby->poll_query_until('postgres', "SELECT max(upper) > '$newest' FROM idemq.partitions"),
	'partitions are made on the new primary');
is(status_of($standby, 'worker'), 'ok', 'the worker is well');
is(status_of($standby, 'runway'), 'ok', 'there are partitions for the time to come');
is(status_of($standby, 'clock'), 'ok', 'the clock is believed');

$standby->stop;
done_testing();
