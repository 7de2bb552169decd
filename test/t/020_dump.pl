# Dump and restore: old keys are still refused, grants come along, new
# partitions are made after the first claim, and nothing conflicts, however
# long the restore takes while the worker is awake.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemqTest;

$ENV{PGCLIENTENCODING} = 'UTF8';

# The database ticks only tells the time: one partition a second.
my $node = idemq_node('main', 'idemq.naptime' => '1s', 'idemq.premake' => '2');
$node->safe_psql('postgres', q{CREATE ROLE teller; CREATE ROLE watcher; CREATE ROLE stranger});
$node->safe_psql('postgres', 'CREATE DATABASE ticks');
$node->safe_psql('postgres', q{ALTER DATABASE ticks SET idemq.partition_interval = '1s'});
$node->safe_psql('ticks', 'CREATE EXTENSION idemq');
$node->safe_psql('ticks', q{SELECT idem_claim('tick')});

my $tmp = $PostgreSQL::Test::Utils::tmp_check;

# Waits until the launcher has been to every database since now.
sub wait_for_launcher
{
	foreach (1 .. 2)
	{
		my $upper = $node->safe_psql('ticks', q{SELECT coalesce(max(upper), '-infinity') FROM idemq.partitions WHERE isfinite(lower)});

		$node->poll_query_until('ticks', "SELECT max(upper) > '$upper' FROM idemq.partitions WHERE isfinite(lower)")
		  or die 'the worker is not there';
	}
	return;
}

sub leaves
{
	my ($db) = @_;

	return $node->safe_psql($db, q{SELECT string_agg(leaf::text, ' ' ORDER BY lower) FROM idemq.partitions});
}

# Runs a program that may say nothing.
sub quiet_ok
{
	my ($name, @command) = @_;

	return $node->command_checks_all(\@command, 0, [qr/^$/], [qr/^$/], $name);
}

my $source_leaves;

# A database in use: claims in the permanent partition and in others, and grants.
sub make_db
{
	my ($db, $options, $schema) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0 " . ($options // ''));
	$node->safe_psql($db, ($schema ? "CREATE SCHEMA $schema; " : '') . 'CREATE EXTENSION idemq' . ($schema ? " SCHEMA $schema; GRANT USAGE ON SCHEMA $schema TO PUBLIC" : ''));
	my $path = 'SET search_path = public' . ($schema ? ", $schema" : '');
	$node->safe_psql($db, "$path; SELECT idem_claim('permanent')");
	$node->poll_query_until($db, 'SELECT count(*) >= 3 FROM idemq.partitions');
	$node->safe_psql($db, qq{
$path;
SELECT idem_claim('day'), idem_claim('cl\xc3\xa9'), idem_claim('day', 'stra\xc3\x9fe');
SELECT idem_grant('teller', 'claim', 'till'), idem_grant('watcher', 'monitor')});
	return;
}

# What a restored database must answer.
sub check_db
{
	my ($what, $db, $schema) = @_;
	my $path = 'SET search_path = public' . ($schema ? ", $schema" : '');

	is(leaves($db), $source_leaves, "$what: partitions are those of the source, and none is made before the first claim");
	is($node->safe_psql($db, qq{
$path;
SELECT idem_claim('permanent'), idem_claim('day'), idem_claim('cl\xc3\xa9'), idem_claim('day', 'stra\xc3\x9fe'),
	idem_try_claim('permanent'), idem_seen('day') IS NOT NULL}),
		'f|f|f|f|duplicate|t', "$what: old keys are refused");
	is(leaf_errors_in($db), '', "$what: rows say where they are");
	is($node->safe_psql($db, q{
SELECT string_agg(concat_ws('-', role, capability, object), ' ' ORDER BY role) FROM idemq.grants}),
		'teller-claim-till watcher-monitor', "$what: grants are there");
	is($node->safe_psql($db, qq{$path; SET ROLE teller; SELECT idem_claim('t', 'till')}), 't', "$what: and hold");
	my ($ret, $out, $err) = $node->psql($db, qq{$path; SET ROLE teller; SELECT idem_claim('t', 'other')});
	like($err, qr/permission denied/, "$what: no more than they say");
	($ret, $out, $err) = $node->psql($db, qq{$path; SET ROLE stranger; SELECT idem_claim('t', 'till')});
	like($err, qr/permission denied/, "$what: nor for others");
	is($node->safe_psql($db, "$path; SET ROLE watcher; SELECT count(*) > 5 FROM idem_status()"), 't', "$what: monitor too");

	# partitions of another length have not been made yet
	$node->safe_psql('postgres', "ALTER DATABASE $db SET idemq.premake = 6");
	is($node->safe_psql($db, "$path; SELECT idem_claim('new')"), 't', "$what: new keys are claimed");
	ok($node->poll_query_until($db, q{SELECT max(upper) > now() + interval '5 days' FROM idemq.partitions}),
		"$what: partitions are made then");
	is($node->safe_psql($db, "$path; SELECT idem_claim('new'), idem_claim('newer'), idem_claim('day')"), 'f|t|f',
		"$what: and nothing is forgotten");
	$node->safe_psql('postgres', "ALTER DATABASE $db RESET idemq.premake");
	return;
}

sub leaf_errors_in
{
	my ($db) = @_;

	return $node->safe_psql($db, q{
SET timezone = 'UTC';
SELECT p.tableoid::regclass, p.key, p.leaf FROM idemq.processed p JOIN idemq.partitions l ON l.leaf = p.tableoid
WHERE p.leaf <> l.lower});
}

make_db('source');
$source_leaves = leaves('source');
quiet_ok('pg_dump', 'pg_dump', '-f', "$tmp/plain.sql", $node->connstr('source'));
quiet_ok('pg_dump -Fc', 'pg_dump', '-Fc', '-f', "$tmp/custom.dump", $node->connstr('source'));

# Plain.
$node->safe_psql('postgres', 'CREATE DATABASE plain TEMPLATE template0');
quiet_ok('psql', 'psql', '-Xq', '-o', "$tmp/out", '-v', 'ON_ERROR_STOP=1', '-f', "$tmp/plain.sql", '-d', $node->connstr('plain'));

# Custom, in parallel.
$node->safe_psql('postgres', 'CREATE DATABASE custom TEMPLATE template0');
quiet_ok('pg_restore -j 2', 'pg_restore', '-j', '2', '-d', $node->connstr('custom'), "$tmp/custom.dump");

# LATIN1 into UTF8.
make_db('latin', "ENCODING 'LATIN1' LOCALE 'C'");
quiet_ok('pg_dump of LATIN1', 'pg_dump', '-f', "$tmp/latin.sql", $node->connstr('latin'), '--encoding=LATIN1');
like(slurp_file("$tmp/latin.sql"), qr/^\tcl\xe9\t/m, 'the dump is in LATIN1');
$node->safe_psql('postgres', q{CREATE DATABASE utf8 TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'});
quiet_ok('psql into UTF8', 'psql', '-Xq', '-o', "$tmp/out", '-v', 'ON_ERROR_STOP=1', '-f', "$tmp/latin.sql", '-d', $node->connstr('utf8'));

# In a schema of its own, with a name that wants quoting.
make_db('elsewhere', '', '"My x"');
quiet_ok('pg_dump of another schema', 'pg_dump', '-Fc', '-f', "$tmp/schema.dump", $node->connstr('elsewhere'));
$node->safe_psql('postgres', 'CREATE DATABASE schema TEMPLATE template0');
quiet_ok('pg_restore of another schema', 'pg_restore', '-d', $node->connstr('schema'), "$tmp/schema.dump");
wait_for_launcher();
check_db('plain', 'plain');
check_db('custom', 'custom');
check_db('LATIN1 into UTF8', 'utf8');
check_db('another schema', 'schema', '"My x"');

# Over a database that was in use, and has partitions that the dump has not.
quiet_ok('pg_restore --clean', 'pg_restore', '--clean', '-d', $node->connstr('custom'), "$tmp/custom.dump");
wait_for_launcher();
check_db('--clean', 'custom');
quiet_ok('pg_restore --clean --if-exists', 'pg_restore', '--clean', '--if-exists', '-d', $node->connstr('custom'), "$tmp/custom.dump");
check_db('--clean --if-exists', 'custom');

# As --clean does it, in a script that takes its time: after each step the
# launcher goes round.  The database was in use before.
quiet_ok('pg_restore to a script', 'pg_restore', '--clean', '-f', "$tmp/clean.sql", "$tmp/custom.dump");
my $restore = session($node, 'custom');
my ($pauses, $errors) = (0, '');
foreach my $step (split /^--\n-- (?=Name: |Data for Name: )/m, slurp_file("$tmp/clean.sql"))
{
	# psql in restricted mode would not take commands of ours
	$step =~ s/^\\(?:un)?restrict .*$//mg;
	# rows come from a file, which a session's standard input cannot carry
	if ($step =~ s/^COPY (.*) FROM stdin;\n(.*?)^\\\.\n/\\copy $1 FROM '$tmp\/rows'\n/ms)
	{
		unlink "$tmp/rows";
		append_to_file("$tmp/rows", $2);
	}
	send_sql($restore, "-- $step");
	$errors .= (answer($restore))[1];
	if ($step =~ /^(?:CREATE EXTENSION.* idemq|CREATE TABLE idemq|ALTER TABLE.*ATTACH PARTITION)/m
		&& $pauses < 5)
	{
		wait_for_launcher();
		$pauses++;
	}
}
$restore->quit;
is($errors, '', 'slow restore: no error');
is($pauses, 5, 'slow restore: there were pauses');
check_db('slow restore', 'custom');

# DROP EXTENSION takes everything along, and it can be made again.
$node->safe_psql('plain', 'DROP EXTENSION idemq');
is($node->safe_psql('plain', q{
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'idemq'}),
	'0', 'DROP EXTENSION leaves nothing');
wait_for_launcher();
$node->safe_psql('plain', 'CREATE EXTENSION idemq');
is($node->safe_psql('plain', q{SELECT idem_claim('permanent'), idem_claim('permanent')}), 't|f', 'and it begins anew');
ok($node->poll_query_until('plain', q{SELECT max(upper) > now() FROM idemq.partitions}), 'with new partitions');
is($node->safe_psql('plain', q{SELECT idem_claim('permanent'), idem_claim('day')}), 'f|t', 'and remembers');

$node->stop;
done_testing();
