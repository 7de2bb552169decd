# The hammer on the outbox: writers at all isolation levels, with savepoints,
# prepared transactions and transactions that stay open for long, over
# partitions of one second that go as soon as they may; consumers that crash,
# nack, give back, extend, ack in parts and let leases run out.  What was
# committed is delivered, nothing else is, in the order of the row locks, and
# whatever comes again has a reason.  Then the same hammer shows that it would
# have found the bug: without two of the protections.  (own_xid can be taken out
# too, but not every run then loses an event; outbox_own_transaction.spec does.)
#
# HAMMER_SECONDS=20	how long the writers write
# HAMMER_LONG_MS=4000	for how long transactions stay open
# HAMMER_SEED=n		the same random numbers again
# HAMMER_WITHOUT=a,b	which protections to take out, one after the other

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Hammer;
use OutboxHammer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{HAMMER_SECONDS} || 20;
my $long_ms = $ENV{HAMMER_LONG_MS} || 4000;
my $node = outbox_node('outbox');
my $db = 'outbox';

outbox_database($node, $db);
my $run = outbox_start($node, $db, seconds => $seconds, long_ms => $long_ms);
my $count = outbox_finish($run);

outbox_there_was($run, $count, qw(terminated cancelled altered));
outbox_check($run, $count);
cmp_ok($node->safe_psql($db, q{SELECT count(*) FROM idemq.partitions WHERE parent = 'idemq.outbox'::regclass}),
	'<', $seconds, 'partitions that everybody has passed are gone');
cmp_ok($node->safe_psql($db, 'SELECT coalesce(max(turn), 0) FROM idemq.turn'), '>', 0, 'the ledgers have turned');
hammer_check_log($node);

# The same without a protection: something of all this is found.
foreach my $without (split /,/, $ENV{HAMMER_WITHOUT} // 'stragglers,shard_lock')
{
	my @found;
	foreach my $attempt (1 .. 6)
	{
		$db = "without_${without}_$attempt";
		outbox_database($node, $db);
		$run = outbox_start($node, $db,
			seconds => 6, long_ms => 1500, kill_ms => 0, stall_s => 3, without => $without);
		$count = outbox_finish($run);
		my %found = outbox_violations($run);
		@found = grep { $found{$_} ne '' } sort keys %found;
		push @found, 'errors' if $count->{unexpected} > 0;
		diag("without $without: attempt $attempt: $count->{rest} rest, $count->{unexpected} unexpected; "
			  . join('; ', @found));
		$node->safe_psql('postgres', "DROP DATABASE $db WITH (FORCE)");
		last if @found;
	}
	cmp_ok(scalar @found, '>', 0, "the hammer sees that it is without $without");
}

$node->stop;
done_testing();
