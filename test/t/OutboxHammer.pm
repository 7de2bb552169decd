# The hammer on the outbox: writers and consumers (outbox_hammer.c), the
# database that they work in, and what must be true afterwards.  Used by the
# tests 060 to 062, and 066.

package OutboxHammer;

use strict;
use warnings;

use Exporter 'import';
use File::Basename qw(dirname);
use POSIX qw(_exit);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Hammer;

our @EXPORT = qw(
  outbox_node outbox_database outbox_start outbox_finish outbox_violations outbox_check outbox_there_was);

my $program;

# Compiles the clients, once.
sub build
{
	return if defined $program;
	$program = "$PostgreSQL::Test::Utils::tmp_check/outbox_hammer.bin";
	my %dir;
	foreach my $which (qw(includedir libdir))
	{
		$dir{$which} = `pg_config --$which`;
		chomp $dir{$which};
	}
	system_or_bail($ENV{CC} || 'cc', '-O2', '-o', $program,
		"-I$dir{includedir}", '-I/usr/include/postgresql', dirname(__FILE__) . '/outbox_hammer.c',
		"-L$dir{libdir}", '-lpq');
	return;
}

# A server with partitions of one second, which go soon, and ledgers that turn
# in every round.
sub outbox_node
{
	my ($name, %conf) = @_;

	build();
	return hammer_node($name,
		'max_connections' => 60,
		'autovacuum' => 'off',
		'idemq.retention' => "'1d'",
		'idemq.outbox_retention' => "'2s'",
		'idemq.test_without' => "'turn_time'",
		%conf);
}

# A database for a run, with the consumers of outbox_hammer.c.
sub outbox_database
{
	my ($node, $db) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql(
		$db, q{
CREATE EXTENSION idemq;

-- what it is written about: the number of the last event
CREATE TABLE agg (kind text, id text, n bigint NOT NULL, PRIMARY KEY (kind, id)) WITH (fillfactor = 50);
INSERT INTO agg SELECT kind, 'k' || k, 0 FROM unnest('{a,b,r}'::text[]) AS kind, generate_series(0, 29) AS k;
CREATE TABLE captured (id text PRIMARY KEY, n bigint NOT NULL, uid text) WITH (fillfactor = 50);
INSERT INTO captured SELECT 'k' || k, 0 FROM generate_series(0, 19) AS k;
SELECT outbox_capture('captured', 'c', operations => '{update}');

-- what was written
CREATE TABLE hist (uid text PRIMARY KEY, kind text NOT NULL, key text, n bigint NOT NULL,
	cause text, not_before timestamptz);

-- what came of it, in the order of the shard's lock
CREATE SEQUENCE moment;
CREATE TABLE fetched (moment bigint DEFAULT nextval('moment'), consumer text, token bigint, place int, id uuid,
	uid text, event_cause text, attempt int, deliveries int, worker int, until timestamptz,
	got_at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON fetched (token);
CREATE TABLE ended (moment bigint DEFAULT nextval('moment'), consumer text, token bigint, uid text, how text,
	not_before timestamptz);
CREATE TABLE received (consumer text, uid text);

CREATE TABLE consumer (name text, ordered bool, types text[]);
INSERT INTO consumer VALUES ('one', true, NULL), ('three', true, NULL), ('free', false, NULL), ('some', true, '{a,r}');
SELECT outbox_subscribe(name, types, 'now', CASE name WHEN 'three' THEN 3 WHEN 'some' THEN 2 ELSE 1 END,
	ordered, 10, '20ms,100ms') FROM consumer;

CREATE VIEW expected AS
SELECT c.name AS consumer, c.ordered, h.* FROM consumer AS c
JOIN hist AS h ON c.types IS NULL OR h.kind = ANY (c.types);

-- a poisoned one may die of leases that ran out: nobody was there to note it
CREATE VIEW died AS
SELECT consumer, coalesce(payload->>'uid', convert_from(body, 'UTF8')) AS uid, attempts, error
FROM idemq.dead_letters;

CREATE VIEW undelivered AS
SELECT x.consumer, x.uid FROM expected AS x
WHERE NOT EXISTS (SELECT FROM ended AS e WHERE (e.consumer, e.uid) = (x.consumer, x.uid) AND e.how IN ('ack', 'dead'))
	AND NOT EXISTS (SELECT FROM died AS d WHERE (d.consumer, d.uid) = (x.consumer, x.uid))});
	return;
}

# Starts the clients, with the options of outbox_hammer.c; "target" is a file
# with a conninfo, if they are not to go to the node itself.
sub outbox_start
{
	my ($node, $db, %options) = @_;
	my $base = "$PostgreSQL::Test::Utils::tmp_check/outbox_$db";
	my $target = delete $options{target} // hammer_aim($node, $db);

	$options{seed} = $ENV{HAMMER_SEED} if $ENV{HAMMER_SEED};
	my @args = map { "$_=$options{$_}" } sort keys %options;
	note("outbox_hammer @args");
	my $pid = fork;
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		open STDOUT, '>', "$base.out" or _exit(2);
		open STDERR, '>', "$base.err" or _exit(2);
		exec($program, $target, $base, @args) or _exit(2);
	}
	return { pid => $pid, base => $base, node => $node, db => $db };
}

# Waits for the clients; what they counted.
sub outbox_finish
{
	my ($run) = @_;

	if (!defined $run->{status})
	{
		waitpid($run->{pid}, 0);
		$run->{status} = $?;
	}
	my %count = map { split / / } split /\n/, slurp_file("$run->{base}.out");
	note(slurp_file("$run->{base}.err"));
	note(join ', ', map { "$_ $count{$_}" } sort keys %count);
	diag(sprintf '%s: seed %d, %d written, %d committed, %d events handed out in %d fetches, the rest took %d ms',
		$run->{db}, map { $count{$_} // -1 } qw(seed written committed events fetches drain_ms));

	# what consumers have seen
	foreach my $file (glob "$run->{base}.[0-9]*")
	{
		$run->{node}->safe_psql($run->{db}, "COPY received FROM '$file'") if -s $file;
	}
	$run->{node}->safe_psql(
		$run->{db}, q{
CREATE INDEX ON fetched (consumer, uid, moment);
CREATE INDEX ON fetched (token, uid);
CREATE INDEX ON ended (consumer, uid);
CREATE INDEX ON ended (token, uid);
CREATE INDEX ON hist (kind, key);
ANALYZE});
	return \%count;
}

# What must not be: a name, and a query that finds it.
my @violations = (
	'an event is lost' => q{SELECT * FROM undelivered},

	'an event is invented' => q{
SELECT f.consumer, f.uid, f.id, f.token FROM fetched AS f
WHERE NOT EXISTS (SELECT FROM expected AS x WHERE (x.consumer, x.uid) = (f.consumer, f.uid))},

	'a consumer has seen what was not committed for good' => q{
SELECT DISTINCT r.consumer, r.uid FROM received AS r
WHERE NOT EXISTS (SELECT FROM expected AS x WHERE (x.consumer, x.uid) = (r.consumer, r.uid))},

	'an event has two ids, or two events have one' => q{
SELECT f.uid, g.uid, f.id, g.id
FROM (SELECT DISTINCT uid, id FROM fetched) AS f JOIN (SELECT DISTINCT uid, id FROM fetched) AS g
	ON (f.uid = g.uid) <> (f.id = g.id) AND (f.uid = g.uid OR f.id = g.id)},

	'an event was acked twice' => q{
SELECT consumer, uid, count(*) FROM ended WHERE how IN ('ack', 'dead')
GROUP BY 1, 2 HAVING count(*) > 1},

	'an event was handed out after its ack or its death' => q{
SELECT e.consumer, e.uid, e.how, e.moment, f.moment, f.token, f.got_at
FROM ended AS e JOIN fetched AS f USING (consumer, uid)
WHERE e.how IN ('ack', 'dead') AND f.moment > e.moment},

	# the numbers of a key were drawn under its row lock
	'a key came out in another order' => q{
SELECT * FROM (
	SELECT e.consumer, x.kind, x.key, x.n, e.moment,
		lag(x.n) OVER (PARTITION BY e.consumer, x.kind, x.key ORDER BY e.moment) AS before
	FROM ended AS e JOIN expected AS x USING (consumer, uid)
	WHERE x.ordered AND x.key IS NOT NULL AND e.how IN ('ack', 'dead')) AS w
WHERE n < before},

	# all that came before it is done, or comes before it in the same lease
	'an event did not wait for those before it' => q{
SELECT f.consumer, f.uid, f.token, f.moment, w.uid AS before, w.moment AS before_was_done
FROM (
	SELECT f.*, x.kind, x.key, x.n FROM fetched AS f JOIN expected AS x USING (consumer, uid)
	WHERE x.ordered AND x.key IS NOT NULL) AS f
JOIN (
	SELECT x.consumer, x.kind, x.key, x.n, x.uid, e.moment
	FROM expected AS x LEFT JOIN ended AS e
		ON (e.consumer, e.uid) = (x.consumer, x.uid) AND e.how IN ('ack', 'dead')
	WHERE x.ordered AND x.key IS NOT NULL
		AND NOT EXISTS (SELECT FROM died AS d WHERE e.uid IS NULL AND (d.consumer, d.uid) = (x.consumer, x.uid))) AS w
	ON (w.consumer, w.kind, w.key) = (f.consumer, f.kind, f.key)
		AND w.n < f.n AND coalesce(w.moment > f.moment, true)
WHERE NOT EXISTS (SELECT FROM fetched AS g WHERE g.token = f.token AND g.uid = w.uid AND g.place < f.place)},

	'an event came again although nothing had happened to it' => q{
SELECT * FROM (
	SELECT consumer, uid, token, moment, until,
		lead(moment) OVER w AS again, lead(got_at) OVER w AS again_at, lead(token) OVER w AS next
	FROM fetched WINDOW w AS (PARTITION BY consumer, uid ORDER BY moment)) AS f
WHERE again_at < until
	AND NOT EXISTS (SELECT FROM ended AS e WHERE e.token = f.token AND e.uid = f.uid
		AND e.how IN ('nack', 'withdrawn', 'release') AND e.moment < f.again)},

	'an event came before its time' => q{
SELECT consumer, uid, not_before, got_at FROM (
	SELECT x.consumer, x.uid, x.not_before, f.got_at FROM expected AS x JOIN fetched AS f USING (consumer, uid)
	UNION ALL
	SELECT e.consumer, e.uid, e.not_before, f.got_at FROM ended AS e JOIN fetched AS f USING (consumer, uid)
	WHERE f.moment > e.moment) AS t
WHERE got_at < not_before},

	'an attempt is not what was nacked' => q{
SELECT * FROM (
	SELECT f.consumer, f.uid, f.token, f.attempt, f.deliveries,
		(SELECT count(*) FROM ended AS e WHERE (e.consumer, e.uid, e.how) = (f.consumer, f.uid, 'nack')
			AND e.moment < f.moment) AS nacks,
		(SELECT count(*) FROM fetched AS g WHERE (g.consumer, g.uid) = (f.consumer, f.uid) AND g.moment < f.moment
			AND NOT EXISTS (SELECT FROM ended AS e WHERE e.token = g.token AND e.uid = f.uid)) AS ran_out
	FROM fetched AS f) AS f
WHERE attempt < nacks + 1 OR attempt > nacks + 1 + greatest(ran_out - 2, 0)},

	'deliveries are miscounted' => q{
SELECT * FROM (
	SELECT consumer, uid, token, deliveries, moment,
		row_number() OVER (PARTITION BY consumer, uid ORDER BY moment) AS counted
	FROM fetched) AS f
WHERE deliveries <> counted},

	'a cause is not the claim of the transaction' => q{
SELECT DISTINCT f.uid, f.event_cause, x.cause FROM fetched AS f JOIN expected AS x USING (consumer, uid)
WHERE f.event_cause IS DISTINCT FROM x.cause},

	'a dead letter was not poisoned' => q{
SELECT * FROM died WHERE right(uid, 1) <> '!'},

	'a dead letter is missing, or there twice' => q{
SELECT consumer, uid, count(d.uid) FROM ended AS e LEFT JOIN died AS d USING (consumer, uid)
WHERE e.how = 'dead' GROUP BY 1, 2 HAVING count(d.uid) <> 1},

	'a poisoned event was taken for good' => q{
SELECT * FROM ended WHERE how = 'ack' AND right(uid, 1) = '!'},

	# a shard is one lease at a time; which shard it was is known by the key alone
	'a key was out twice' => q{
SELECT f.consumer, f.token, g.token, f.uid, g.uid FROM (
	SELECT f.*, x.kind, x.key FROM fetched AS f JOIN expected AS x USING (consumer, uid)
	WHERE x.ordered AND x.key IS NOT NULL) AS f
JOIN (
	SELECT f.*, x.kind, x.key FROM fetched AS f JOIN expected AS x USING (consumer, uid)
	WHERE x.ordered AND x.key IS NOT NULL) AS g
	ON (f.consumer, f.kind, f.key) = (g.consumer, g.kind, g.key) AND f.token <> g.token
		AND f.moment < g.moment AND g.got_at < f.until
WHERE NOT EXISTS (SELECT FROM ended AS e WHERE e.token = f.token AND e.uid = f.uid AND e.moment < g.moment)},

	'the numbers are wrong, so all of this means nothing' => q{
SELECT a.kind, a.id, a.n, count(h.uid) FROM (SELECT * FROM agg UNION ALL SELECT 'c', id, n FROM captured) AS a
LEFT JOIN hist AS h ON (h.kind, h.key) = (a.kind, a.id)
GROUP BY 1, 2, 3 HAVING a.n <> count(h.uid)},
);

# Looks for all of them: pairs of a name and the first few that were found.
sub outbox_violations
{
	my ($run) = @_;
	my @found;

	for (my $i = 0; $i < @violations; $i += 2)
	{
		my ($name, $sql) = @violations[$i, $i + 1];
		my $rows = $run->{node}->safe_psql($run->{db}, "SELECT * FROM ($sql) AS v LIMIT 20");
		push @found, $name, $rows;
	}
	return @found;
}

# None of it is there.
sub outbox_check
{
	my ($run, $count) = @_;
	my $db = $run->{db};
	my @found = outbox_violations($run);

	is($run->{status}, 0, "$db: the clients came to an end") or diag slurp_file("$run->{base}.err");
	is($count->{unexpected}, 0, "$db: no error but those that were provoked")
	  or diag slurp_file("$run->{base}.err");
	is($count->{rest}, 0, "$db: all was delivered");
	while (my ($name, $rows) = splice @found, 0, 2)
	{
		is($rows, '', "$db: not so: $name");
	}
	return;
}

# The run was one: all of it happened.
sub outbox_there_was
{
	my ($run, $count, @what) = @_;

	cmp_ok($count->{$_}, '>', 0, "$run->{db}: there were: $_")
	  foreach qw(written committed rolled_back prepared resolved savepoints claims fetches empty events acks partial
	  nacks dead withdrawn released extended expired undone replies waits crashed conflicts), @what;
	return;
}

1;
