# A duplicate costs nothing that lasts: no WAL, no transaction id, no dead row.
#
# After one pass that warms up (hint bits, catalog caches), with autovacuum off,
# no checkpoint, a napping launcher and nobody else there, 10,000 duplicates in
# each of three forms leave the server where it was.  What would be counted is
# shown by a claim that is true, and by one that is rolled back.

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
	'idemq.naptime' => '1d',
	max_pred_locks_per_transaction => 1024);

# half of the keys in the permanent partition, half in one of the others
$node->safe_psql('postgres', q{
CREATE VIEW keys AS SELECT 'key-' || i AS k FROM generate_series(1, 10000) AS i;
CREATE PROCEDURE one_by_one(isolation text) LANGUAGE plpgsql AS $$
DECLARE
	key text;
BEGIN
	/* each claim in a transaction of its own */
	FOR i IN 1 .. 10000 LOOP
		key := 'key-' || i;
		IF idem_claim(key) THEN
			RAISE EXCEPTION '% was claimed again', key;
		END IF;
		COMMIT;
		IF current_setting('transaction_isolation') <> isolation THEN
			RAISE EXCEPTION 'isolation level is %', current_setting('transaction_isolation');
		END IF;
	END LOOP;
END $$;
SELECT count(*) FROM keys WHERE idem_claim(k) AND length(k) <= 8});
ok(wait_for_leaves($node), 'the worker has made partitions');
$node->safe_psql('postgres', q{SELECT count(*) FROM keys WHERE idem_claim(k)});
is( $node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT tableoid) FROM idemq.processed}),
	'10000|2', 'keys are in two partitions');
wait_for_quiet($node);

# everything that could grow, in all tables
sub measure
{
	# a backend that is gone from here has reported what it did
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'});
	return $node->safe_psql('postgres', q{
SELECT pg_current_wal_insert_lsn(),
	pg_snapshot_xmax(pg_current_snapshot()),
	(SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE relname LIKE 'processed%'),
	(SELECT sum(n_dead_tup) FROM pg_stat_all_tables),
	(SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_all_tables),
	(SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relname LIKE 'processed%')});
}

my %forms = (
	'idem_claim, one statement' => [ q{SELECT count(*) FROM keys WHERE idem_claim(k)}, '0' ],
	'idem_claim, one by one' => [ q{CALL one_by_one(current_setting('transaction_isolation'))}, '' ],
	'idem_try_claim' => [ q{SELECT count(*) FROM keys WHERE idem_try_claim(k) <> 'duplicate'}, '0' ],
	'idem_claim_many' => [ q{
WITH many AS (SELECT unnest(idem_claim_many(array_agg(k))) AS ok FROM keys)
SELECT count(*) FILTER (WHERE ok) FROM many}, '0' ],
	'idem_seen' => [ q{SELECT count(*) FROM keys WHERE idem_seen(k) IS NULL}, '0' ]);

sub run_form
{
	my ($form, $level) = @_;

	return $node->safe_psql('postgres',
		"SET default_transaction_isolation = '$level'; $forms{$form}[0]");
}

my @levels = ('read committed', 'repeatable read', 'serializable');

# warming pass, after which nothing may happen
run_form($_, 'read committed') foreach sort keys %forms;
measure();
measure();
my $before = measure();

foreach my $level (@levels)
{
	foreach my $form (sort keys %forms)
	{
		is(run_form($form, $level), $forms{$form}[1], "$form, $level: 10,000 duplicates");
		is(measure(), $before, "$form, $level: nothing is left behind");
	}
}

# duplicates in a transaction that writes something else: no more than that
sub xids_of
{
	my ($sql) = @_;
	my $xmax = 'SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint';
	my $from = $node->safe_psql('postgres', $xmax);

	$node->safe_psql('postgres', $sql);
	return $node->safe_psql('postgres', $xmax) - $from;
}

$node->safe_psql('postgres', 'CREATE TABLE t (i int)');
is( xids_of(q{BEGIN; INSERT INTO t VALUES (1); SELECT count(*) FROM keys WHERE idem_claim(k); COMMIT}),
	1, 'duplicates beside a write take no transaction ids of their own, not even of subtransactions');

# what the numbers would show
$before = measure();
is($node->safe_psql('postgres', q{SELECT idem_claim('new')}), 't', 'a new key');
my @was = split /\|/, $before;
my @is = split /\|/, measure();
isnt($is[0], $was[0], 'a claim that is true writes WAL');
is($is[1] - $was[1], 1, 'and takes a transaction id');
is($is[4] - $was[4], 1, 'and is counted as a row');
$node->safe_psql('postgres', q{BEGIN; SELECT idem_claim('given up'); ROLLBACK});
@was = @is;
@is = split /\|/, measure();
is($is[2] - $was[2], 1, 'one that is rolled back leaves a dead row, and is seen to');

$node->stop;
done_testing();
