# Claims in prepared transactions: they block their keys from PREPARE on, over
# a restart, until COMMIT PREPARED (then refused) or ROLLBACK PREPARED (then
# free); with savepoints inside, and with idem_forget.

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
	'idemq.naptime' => '1s',
	'idemq.partition_interval' => '1s',
	'idemq.retention' => '1h');

# What a session says of a key now.
sub try_claim
{
	my ($key) = @_;

	# rolled back, so that asking changes nothing
	return $node->safe_psql('postgres', "BEGIN; SELECT idem_try_claim('$key'); ROLLBACK");
}

# A session that claims (or forgets) a key, and waits.
sub waiting
{
	my ($call) = @_;
	my $s = session($node);
	my $pid = backend_pid($s);

	send_sql($s, "SELECT $call");
	ok(wait_for_lock($node, $pid), "$call waits");
	return $s;
}

my $script = q{
BEGIN ISOLATION LEVEL %2$s;
SELECT idem_claim('%1$s plain');
SELECT idem_claim('%1$s plain');
SELECT idem_try_claim('%1$s plain');
SAVEPOINT a;
SELECT idem_claim('%1$s released');
SAVEPOINT b;
SELECT idem_claim('%1$s rolled back');
SELECT idem_claim('%1$s released');
ROLLBACK TO b;
SELECT idem_try_claim('%1$s again');
RELEASE a;
SAVEPOINT c;
SELECT idem_claim('%1$s again');
SELECT idem_forget('%1$s again');
SELECT idem_claim('%1$s again');
SELECT idem_claim_many(ARRAY['%1$s many 1', '%1$s many 2', '%1$s many 1', '%1$s plain']);
ROLLBACK TO c;
SELECT idem_claim_many(ARRAY['%1$s many 2', '%1$s many 2']);
SELECT idem_forget('%1$s old');
PREPARE TRANSACTION '%1$s'};
my $said = join "\n",
  qw(t f mine t t f claimed f t t), '{t,t,f,f}', '{t,f}', 't';

my @held = ('plain', 'released', 'again', 'many 2', 'old');
my @free = ('rolled back', 'many 1');
my %levels = (commit => 'SERIALIZABLE', rollback => 'READ COMMITTED');
my %before_restart;

foreach my $outcome (qw(commit rollback))
{
	$node->safe_psql('postgres', "SELECT idem_claim('$outcome old')");
	is($node->safe_psql('postgres', sprintf $script, $outcome, $levels{$outcome}),
		$said, "$outcome: claims in the transaction that is prepared");
}

foreach my $when ('before the restart', 'after the restart', 'after a crash')
{
	foreach my $outcome (qw(commit rollback))
	{
		is(try_claim("$outcome $_"), 'busy', "$outcome, $when: $_ is busy") foreach @held;
		is(try_claim("$outcome $_"), 'claimed', "$outcome, $when: $_ is free") foreach @free;
		is($node->safe_psql('postgres', "SELECT idem_seen('$outcome plain') IS NULL, idem_seen('$outcome old') IS NOT NULL"),
			't|t', "$outcome, $when: what is not decided is not seen");
	}
	$node->restart if $when eq 'before the restart';
	crash($node) if $when eq 'after the restart';
}

# others wait for the decision, also for that about the one that was forgotten
my %answers = (
	commit => { plain => 'f', released => 'f', again => 'f', 'many 2' => 'f', old => 't' },
	rollback => { plain => 't', released => 't', again => 't', 'many 2' => 't', old => 'f' });

foreach my $outcome (qw(commit rollback))
{
	my %session = map { $_ => waiting("idem_claim('$outcome $_')") } @held;
	my $forgetful = waiting("idem_forget('$outcome many 2')");

	$node->safe_psql('postgres', "\U$outcome\E PREPARED '$outcome'");
	foreach my $key (@held)
	{
		next if $key eq 'many 2';
		is(scalar answer($session{$key}), $answers{$outcome}{$key}, "$outcome prepared: $key");
		$session{$key}->quit;
	}
	# two waited for the same one, who comes first is not said
	my $claimed = answer($session{'many 2'});
	my $forgotten = answer($forgetful);
	my $seen = $node->safe_psql('postgres', "SELECT idem_seen('$outcome many 2') IS NOT NULL");
	like("$claimed $forgotten $seen",
		$outcome eq 'commit' ? qr/^(f t f|t t t)$/ : qr/^(t f t|t t f)$/,
		"$outcome prepared: many 2, claimed by one and forgotten by another");
	$session{'many 2'}->quit;
	$forgetful->quit;
}

# ---- in the way of maintenance -------------------------------------------

# A prepared transaction that claimed in a partition whose time is over: it is
# not dropped, others go, and claims do not wait.
$node->safe_psql('postgres', q{SELECT idem_claim('wake')});
ok(wait_for_leaves($node), 'the worker has made partitions');
$node->safe_psql('postgres', q{
BEGIN;
SELECT idem_claim('long');
SELECT idem_claim('given up');
PREPARE TRANSACTION 'long'});
my $held_leaf = $node->safe_psql('postgres', q{
SELECT relation::regclass FROM pg_locks
WHERE mode = 'RowExclusiveLock' AND relation::regclass::text LIKE 'idemq.processed%' AND relation::regclass::text NOT LIKE '%digest'
	AND pid IS NULL});
like($held_leaf, qr/^idemq\.processed_p\d+_\d+$/, 'it holds its partition');
my $leaf_oid = $node->safe_psql('postgres', "SELECT '$held_leaf'::regclass::oid");

# all that there are now, older ones and younger ones, go; this one does not
my $others = $node->safe_psql('postgres',
	"SELECT string_agg(leaf::oid::text, ',') FROM idemq.partitions WHERE state <> 'permanent' AND leaf <> $leaf_oid");
$node->append_conf('postgresql.conf', q{idemq.retention = '1s'});
$node->reload;
ok( $node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_class WHERE oid IN ($others)"),
	'all other partitions are dropped when their time is over');
is(try_claim('long'), 'busy', 'its key is busy');
is($node->safe_psql('postgres', q{SET lock_timeout = '2s'; SELECT idem_claim('in between')}), 't', 'others claim');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE oid = $leaf_oid"), '1', 'its partition is there');
$node->restart;
is($node->safe_psql('postgres', q{SET lock_timeout = '2s'; SELECT idem_claim('after the restart')}), 't', 'others claim after a restart');
$node->safe_psql('postgres', 'CALL idem_maintain()');
is(try_claim('long'), 'busy', 'its key is busy after a restart and maintenance');
$node->safe_psql('postgres', q{COMMIT PREPARED 'long'});
ok( $node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_class WHERE oid = $leaf_oid"),
	'its partition goes when it has committed');
is(leaf_errors($node), '', "every row's leaf is the lower bound of the partition that it is in");

$node->stop;
done_testing();
