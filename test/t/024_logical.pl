# Logical replication: a publication of all tables does not get in the way of
# the publisher, and keys that arrive on a subscriber are refused there.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

my %conf = ('wal_level' => 'logical', 'idemq.naptime' => '1s');
my $publisher = idemq_node('publisher', streaming => 1, %conf);
my $subscriber = idemq_node('subscriber', %conf);

# Runs a statement that must not fail.
sub returns
{
	my ($node, $sql, $expected, $name) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);

	return is($ret == 0 ? $out : $err, $expected, $name);
}

$publisher->safe_psql('postgres', q{CREATE ROLE teller; SELECT idem_claim('permanent')});
ok(wait_for_leaves($publisher), 'the publisher has partitions');
$publisher->safe_psql('postgres', q{
CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true);
SELECT idem_claim('before'), idem_claim('forgotten')});

returns($publisher, q{SELECT idem_claim('day'), idem_claim('day'), idem_forget('permanent'), idem_forget('forgotten')}, 't|f|t|t',
	'idem_forget() works on a publisher of all tables');
returns($publisher, q{SELECT idem_claim('permanent')}, 't', 'what was forgotten can be claimed');
returns($publisher, q{SELECT idem_grant('teller', 'claim', 'till')}, '', 'so does idem_grant()');
returns($publisher, q{SELECT idem_revoke('teller', 'claim', 'till')}, '', 'and idem_revoke()');
returns($publisher, q{SELECT idemq.accept_clock() IS NOT NULL}, 't', 'and what maintenance writes');
returns($publisher, q{SET idemq.premake = 6; CALL idem_maintain()}, '', 'and maintenance');

$subscriber->safe_psql('postgres', q{SELECT idem_claim('own')});
ok(wait_for_leaves($subscriber), 'the subscriber has partitions');
$subscriber->safe_psql('postgres', sprintf q{
CREATE SUBSCRIPTION mirror CONNECTION '%s' PUBLICATION everything}, $publisher->connstr . ' dbname=postgres');
$subscriber->wait_for_subscription_sync($publisher, 'mirror');
is($subscriber->safe_psql('postgres', q{
SELECT idem_claim('own'), idem_claim('before'), idem_claim('day'), idem_claim('permanent'), idem_claim('forgotten')}),
	'f|f|f|f|t', 'what was copied is refused');

$publisher->safe_psql('postgres', q{SELECT idem_claim('streamed'), idem_claim('streamed', 'other'), idem_forget('before')});
$publisher->wait_for_catchup('mirror');
is($subscriber->safe_psql('postgres', q{
SELECT idem_claim('streamed'), idem_try_claim('streamed', 'other'), idem_seen('before') IS NULL, idem_claim('before'), idem_claim('new')}),
	'f|duplicate|t|t|t', 'what is streamed is refused, what is forgotten is forgotten');
is(leaf_errors($_), '', $_->name . ': rows say where they are') foreach $publisher, $subscriber;
unlike(slurp_file($subscriber->logfile), qr/ERROR/, 'nothing failed on the subscriber');

$subscriber->stop;
$publisher->stop;
done_testing();
