# pg_upgrade: keys are still refused in the new cluster, and the worker goes on.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

my %conf = ('idemq.naptime' => '1s', 'max_prepared_transactions' => '20');
my $old = idemq_node('old', %conf);

$old->safe_psql('postgres', q{
CREATE ROLE teller;
SELECT idem_grant('teller', 'claim', 'till');
SELECT idem_claim('permanent')});
ok(wait_for_leaves($old), 'the old cluster has partitions');
$old->safe_psql('postgres', q{SELECT idem_claim('day'), idem_claim('day', 'till'), idem_claim('frozen')});
$old->safe_psql('postgres', 'VACUUM FREEZE');
$old->safe_psql('postgres', q{SELECT idem_claim('late'), idem_forget('day', 'till')});
my $partitions = q{SELECT leaf, lower, upper, state FROM idemq.partitions ORDER BY lower};
my $before = $old->safe_psql('postgres', $partitions);
$old->stop;

my $new = PostgreSQL::Test::Cluster->new('new');
$new->init;
$new->append_conf('postgresql.conf', idemq_conf(%conf));

# it writes where it is called
chdir $PostgreSQL::Test::Utils::tmp_check or die "could not change directory: $!";
my $bindir = $new->config_data('--bindir');
$new->command_ok(
	[
		'pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir,
		'-b', $bindir, '-B', $bindir, '-s', $new->host, '-p', $old->port, '-P', $new->port
	],
	'pg_upgrade');
$new->start;

is($new->safe_psql('postgres', $partitions), $before, 'partitions are the same');
is($new->safe_psql('postgres', q{
SELECT idem_claim('permanent'), idem_claim('day'), idem_claim('frozen'), idem_claim('late'), idem_claim('day', 'till'), idem_claim('new')}),
	'f|f|f|f|t|t', 'old keys are refused, new ones are claimed');
is(leaf_errors($new), '', 'rows say where they are');
is($new->safe_psql('postgres', q{SET ROLE teller; SELECT idem_claim('t', 'till')}), 't', 'grants hold');
$new->safe_psql('postgres', q{ALTER SYSTEM SET idemq.premake = 7});
$new->reload;
ok($new->poll_query_until('postgres', q{SELECT max(upper) > now() + interval '6 days' FROM idemq.partitions}), 'the worker goes on');
is($new->safe_psql('postgres', q{SELECT idem_claim('new'), idem_claim('permanent')}), 'f|f', 'and nothing is forgotten');

$new->stop;
done_testing();
