# A wall clock that is wrong: it steps back over partition boundaries, it jumps
# ten years ahead for a while, the server restarts in the middle of that, the
# machine reboots.  No key is lost or claimable early, every row's leaf is the
# lower bound of the partition that it is in, nothing is dropped or made that
# should not be, and idem_status() says what is wrong until the clock is right
# or idemq.accept_clock() says so.
#
# Once with the clock of the test build, once with libfaketime, which moves it
# under the whole server.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IdemqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Without a name for the boot there is no telling the time that passed, and
# only steps of more than a day are found out.
plan skip_all => 'needs /proc/sys/kernel/random/boot_id'
  unless -r '/proc/sys/kernel/random/boot_id';

my $TEN_YEARS = 10 * 365.25 * 86400;

my @conf = (
	'idemq.naptime' => '1s',
	'idemq.partition_interval' => '1s',
	'idemq.premake' => '2');

# ---- the same story for both kinds of clock ------------------------------

# What has been claimed and which partitions have been seen, by server.
my (%claimed, %seen);

# How far ahead of the real time a partition may end, in seconds.
my $far = 600;

# Claims a few keys, each in a transaction of its own.
sub claim_some
{
	my ($node, $when) = @_;
	my $all = $claimed{ $node->name } //= [];
	my @keys = map { 'key-' . (@$all + $_) } 1 .. 5;
	my $answers = $node->safe_psql('postgres', join ';', map { "SELECT idem_claim('$_')" } @keys);

	is($answers, join("\n", ('t') x @keys), "$when: keys are claimed");
	push @$all, @keys;
	return;
}

# One round of maintenance at least, beside those of the worker.
sub maintain
{
	my ($node) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $deadline)
	{
		my ($ret, undef, $stderr) = $node->psql('postgres',
			'SET client_min_messages = notice; CALL idem_maintain()');
		return if $ret == 0 && $stderr !~ /another maintenance round/;
	}
	die 'no round of maintenance could be had';
}

# Time goes by: waits until partitions are made again.
sub let_time_pass
{
	my ($node, $when) = @_;
	my $newest = q{SELECT max(oid::bigint) FROM pg_class WHERE relname LIKE 'processed\_p2%'};
	my $was = $node->safe_psql('postgres', $newest);

	ok( $node->poll_query_until('postgres', "SELECT ($newest) > $was"),
		"$when: partitions go on being made");
	return;
}

# Waits until it is the turn of another partition.
sub next_partition
{
	my ($node, $when) = @_;
	my $current = q{SELECT coalesce(max(leaf::oid::bigint), 0) FROM idemq.partitions WHERE state = 'current'};
	my $was = $node->safe_psql('postgres', $current);

	ok($node->poll_query_until('postgres', "SELECT ($current) <> $was"), "$when: another partition takes the claims");
	return;
}

# All that must be true whatever the clock says.
sub check
{
	my ($node, $when) = @_;
	my $name = $node->name;
	my $keys = join ',', map { "'$_'" } @{ $claimed{$name} };

	maintain($node);
	is( $node->safe_psql('postgres', "SELECT count(*) FROM unnest(ARRAY[$keys]) AS k WHERE idem_claim(k)"),
		'0', "$when: no key can be claimed twice");
	is( $node->safe_psql('postgres', q{SELECT count(DISTINCT key) = count(*) AND count(*) >= } . @{ $claimed{$name} } . q{ FROM idemq.processed}),
		't', "$when: every key is there once");
	is(leaf_errors($node), '', "$when: every row's leaf is the lower bound of the partition that it is in");

	my %there = map { $_ => 1 } split /\n/, $node->safe_psql('postgres',
		q{SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idemq.processed'::regclass});
	is(join(' ', grep { !$there{$_} } keys %{ $seen{$name} }), '', "$when: no partition is gone");
	$seen{$name}{$_} = 1 foreach keys %there;

	my $soon = time + $far;
	is( $node->safe_psql('postgres', "SELECT count(*) FROM idemq.partitions WHERE upper > to_timestamp($soon)"),
		'0', "$when: none is made far ahead");
	return;
}

# The check of the clock in idem_status().
sub clock_is
{
	my ($node, $status, $when) = @_;

	is(status_of($node, 'clock'), $status, "$when: status says $status");
	return;
}

# Step and jump; $set moves the server's clock by so many seconds.
sub story
{
	my ($node, $set, $restart) = @_;
	my $name = $node->name;

	claim_some($node, "$name, at first");
	ok(wait_for_leaves($node), "$name: the worker has made partitions");
	foreach (1 .. 2)
	{
		claim_some($node, "$name, well");
		next_partition($node, "$name, well");
	}
	claim_some($node, "$name, well");
	check($node, "$name, well");
	clock_is($node, 'ok', "$name, well");
	is( $node->safe_psql('postgres', 'SELECT count(DISTINCT leaf) >= 3 FROM idemq.processed'),
		't', "$name: keys are in several partitions");

	# a step back over some boundaries; what is stamped goes on from where it was
	my $newest = $node->safe_psql('postgres', 'SELECT max(claimed_at) FROM idemq.processed');
	$set->($node, -3);
	claim_some($node, "$name, 3 s back");
	is( $node->safe_psql('postgres', "SELECT count(*) FROM idemq.processed WHERE claimed_at > '$newest'"),
		'5', "$name, 3 s back: stamps do not go back");
	let_time_pass($node, "$name, 3 s back");
	claim_some($node, "$name, 3 s back");
	check($node, "$name, 3 s back");

	# ten years for a while, the server restarts in that
	$set->($node, $TEN_YEARS);
	claim_some($node, "$name, ten years ahead");
	check($node, "$name, ten years ahead");
	clock_is($node, 'problem', "$name, ten years ahead");
	let_time_pass($node, "$name, ten years ahead");
	claim_some($node, "$name, later");
	$restart->($node);
	claim_some($node, "$name, restarted ten years ahead");
	let_time_pass($node, "$name, restarted ten years ahead");
	claim_some($node, "$name, restarted ten years ahead");
	check($node, "$name, restarted ten years ahead");
	clock_is($node, 'problem', "$name, restarted ten years ahead");

	# and back
	$set->($node, 0);
	claim_some($node, "$name, right again");
	let_time_pass($node, "$name, right again");
	claim_some($node, "$name, right again");
	check($node, "$name, right again");
	clock_is($node, 'ok', "$name, right again");
	return;
}

# ---- the clock of the test build -----------------------------------------

my $node = idemq_node('test', @conf, 'idemq.retention' => '1h');

if (!is_test_build($node))
{
	$node->stop;
	plan skip_all => 'needs TEST_BUILD=1';
}

story($node, \&set_clock_offset, sub { $_[0]->restart });

# Further back than idem_status() is silent about, and who mends it.
set_clock_offset($node, -300);
claim_some($node, '300 s back');
check($node, '300 s back');
clock_is($node, 'warning', '300 s back');
is( $node->safe_psql('postgres', q{SELECT idemq.accept_clock() < clock_timestamp() - interval '290 s'}),
	't', '300 s back: the clock is accepted');
clock_is($node, 'ok', '300 s back, accepted');
claim_some($node, '300 s back, accepted');
let_time_pass($node, '300 s back, accepted');
claim_some($node, '300 s back, accepted');
is( $node->safe_psql('postgres', q{
SELECT count(*) FROM idemq.processed WHERE claimed_at < clock_timestamp() - interval '290 s'}),
	'10', '300 s back, accepted: keys are stamped with the new time');
check($node, '300 s back, accepted');
set_clock_offset($node, 0);
clock_is($node, 'problem', 'right after it was 300 s back');
claim_some($node, 'right after it was 300 s back');
check($node, 'right after it was 300 s back');
$node->safe_psql('postgres', 'SELECT idemq.accept_clock()');
clock_is($node, 'ok', 'right after it was 300 s back, accepted');
claim_some($node, 'right after it was 300 s back, accepted');
let_time_pass($node, 'right after it was 300 s back, accepted');
check($node, 'right after it was 300 s back, accepted');

# Two hours ahead, and that is right: it was behind before.  Keys that were
# claimed then are stamped with what is now two hours ago, longer than the
# retention, and must stay for one more.
$far = 3 * 3600;
set_clock_offset($node, 7200);
clock_is($node, 'problem', 'two hours ahead');
$node->safe_psql('postgres', 'SELECT idemq.accept_clock()');
clock_is($node, 'ok', 'two hours ahead, accepted');
claim_some($node, 'two hours ahead, accepted');
let_time_pass($node, 'two hours ahead, accepted');
check($node, 'two hours ahead, accepted');
is( $node->safe_psql('postgres', q{SELECT max(claimed_at) > clock_timestamp() + interval '119 min' FROM idemq.processed}),
	't', 'two hours ahead, accepted: keys are stamped with the new time');

# A reboot: the monotonic clock starts anew, so there is nothing to tell how
# long the machine was away.  Three days are more than the retention, and more
# than a day: not believed.
sub reboot
{
	my ($offset) = @_;

	$node->append_conf('postgresql.conf', "idemq.naptime = '1d'\n");
	$node->restart;
	wait_for_quiet($node);
	$node->safe_psql('postgres', qq{
UPDATE idemq.clock SET boot_id = 'another boot', monotonic = monotonic + 1000000000000, high_water = clock_timestamp();
ALTER SYSTEM SET idemq.test_clock_offset = '$offset'});
	$node->append_conf('postgresql.conf', "idemq.naptime = '1s'\n");
	$node->restart;
	return;
}

reboot(3 * 86400);
clock_is($node, 'problem', 'rebooted, three days ahead');
claim_some($node, 'rebooted, three days ahead');
check($node, 'rebooted, three days ahead');
isnt($node->safe_psql('postgres', 'SELECT boot_id FROM idemq.clock'), 'another boot', 'rebooted: the new boot is noted');
let_time_pass($node, 'rebooted, three days ahead');
claim_some($node, 'rebooted, three days ahead');
check($node, 'rebooted, three days ahead');
clock_is($node, 'problem', 'rebooted, three days ahead, later');

# half a day is an ordinary outage: what is past its retention by then goes
reboot(43200);
clock_is($node, 'ok', 'rebooted after half a day');
maintain($node);
maintain($node);
claim_some($node, 'rebooted after half a day');
ok( $node->poll_query_until('postgres', q{
SELECT count(*) = 0 FROM idemq.partitions p
WHERE parent = 'idemq.processed'::regclass AND upper < clock_timestamp() AND state <> 'permanent'
	AND NOT EXISTS (SELECT FROM idemq.processed r WHERE r.tableoid = p.leaf AND r.claimed_at > clock_timestamp())}),
	'rebooted after half a day: partitions that are past their retention go');
is(leaf_errors($node), '', "rebooted after half a day: every row's leaf is right");
$node->stop;

# ---- a retention of seconds, and everybody's clock goes wild -------------

$node = idemq_node('wild', @conf, 'idemq.retention' => '3s');
$node->safe_psql('postgres', q{
CREATE TABLE effect (key text, before timestamptz, after timestamptz, phase int);
CREATE TABLE phase (phase int, offsets int[]);
INSERT INTO phase VALUES (1, '{0,0,0,-2,-7}');
CREATE PROCEDURE claim_on(name text) LANGUAGE plpgsql AS $$
DECLARE
	p phase;
	k text;
	t timestamptz;
BEGIN
	LOOP
		SELECT * INTO p FROM phase;
		EXIT WHEN p.phase = 0;
		PERFORM set_config('idemq.test_clock_offset', p.offsets[1 + (random() * 1000)::int % cardinality(p.offsets)]::text, false);
		k := 'key-' || (random() * 100)::int;
		t := clock_timestamp();
		IF idem_claim(k) THEN
			INSERT INTO effect VALUES (k, t, clock_timestamp(), p.phase);
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.002);	-- sleep: the pace of the traffic
	END LOOP;
END $$});

my @clients;
foreach (1 .. 3)
{
	my $s = session($node);
	send_sql($s, "LOAD 'idemq'; CALL claim_on('$_')");
	push @clients, $s;
}

# keys come back, so expiry is at work
ok( $node->poll_query_until('postgres', q{
SELECT count(*) >= 20 FROM (SELECT FROM effect GROUP BY key HAVING count(*) > 1) e}),
	'wild: keys can be claimed again after the retention');
set_clock_offset($node, -2);
$node->safe_psql('postgres', q{UPDATE phase SET phase = 2});
let_time_pass($node, 'wild, the worker is 2 s behind') foreach 1 .. 2;

# with stamps of ten years ahead partitions stay, but other keys go on
set_clock_offset($node, $TEN_YEARS);
$node->safe_psql('postgres', q{UPDATE phase SET phase = 3});
let_time_pass($node, 'wild, the worker is ten years ahead') foreach 1 .. 2;
$node->safe_psql('postgres', qq{UPDATE phase SET phase = 4, offsets = '{0,-3,$TEN_YEARS}'});
let_time_pass($node, 'wild, everybody is somewhere') foreach 1 .. 2;
set_clock_offset($node, 0);
let_time_pass($node, 'wild, the worker is right');
$node->safe_psql('postgres', q{UPDATE phase SET phase = 0});
foreach my $s (@clients)
{
	my (undef, $stderr) = answer($s);
	is($stderr, '', 'wild: a client had no error');
	$s->quit;
}
is( $node->safe_psql('postgres', q{
SELECT key, before, gap, phase FROM (
	SELECT key, before, phase, after - lag(before) OVER (PARTITION BY key ORDER BY before) AS gap FROM effect) e
WHERE gap < interval '3 s' LIMIT 10}),
	'', 'wild: no key was claimed again within the retention');
is(leaf_errors($node), '', "wild: every row's leaf is the lower bound of the partition that it is in");
$node->stop;

# ---- libfaketime ---------------------------------------------------------

my ($library) = grep { -e } (
	glob('/usr/lib/*/faketime/libfaketime.so.1'),
	map { "$_/faketime/libfaketime.so.1" } qw(/usr/lib /usr/lib64 /usr/local/lib));

SKIP:
{
	skip 'libfaketime is not installed (Debian: package faketime)', 1 unless $library;

	my $file = "$PostgreSQL::Test::Utils::tmp_check/faketime";
	my $write = sub {
		my ($seconds) = @_;

		# renamed into its place, for the server reads it all the time
		open(my $fh, '>', "$file.new") or die "$file.new: $!";
		printf $fh "%+d\n", $seconds;
		close $fh;
		rename "$file.new", $file or die "$file: $!";
	};

	$write->(0);
	my $faked = PostgreSQL::Test::Cluster->new('faketime');
	$faked->init;
	$faked->append_conf('postgresql.conf', idemq_conf(@conf, 'idemq.retention' => '1h'));

	# only the server is to be fooled, and what starts it
	my $start = sub {
		local $ENV{LD_PRELOAD} = $library;
		local $ENV{FAKETIME_TIMESTAMP_FILE} = $file;
		local $ENV{FAKETIME_NO_CACHE} = 1;
		local $ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
		local $ENV{DONT_FAKE_MONOTONIC} = 1;

		$faked->stop;
		$faked->start;
	};
	$start->();
	$faked->safe_psql('postgres', 'CREATE EXTENSION idemq');

	my $set = sub {
		my ($node, $seconds) = @_;

		$write->($seconds);
		ok( $node->poll_query_until('postgres',
				"SELECT abs(extract(epoch FROM clock_timestamp()) - " . (time + $seconds) . ') < 60'),
			"faketime: the server's clock is off by $seconds s");
	};
	story($faked, $set, $start);
	$faked->stop;
}

done_testing();
