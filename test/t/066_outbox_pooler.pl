# A consumer behind a transaction pooler: nothing of it lives in the connection.
# Fetch, extend, ack and outbox_wait may each come from another server connection,
# and the hammer goes through the pooler as well as without it.
#
# PGBOUNCER=path	another program than the one on the PATH

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Hammer;
use IdemqTest;
use OutboxHammer;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($program) = grep { defined && -x } $ENV{PGBOUNCER},
  map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
plan skip_all => 'pgbouncer is not installed' unless $program;

my $node = outbox_node('main', 'restart_after_crash' => 'on');
my $db = 'pooled';
my $seconds = $ENV{HAMMER_SECONDS} || 12;

# ---- the pooler ----------------------------------------------------------

my $tmp = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $user = getpwuid($<);
open my $file, '>', "$tmp/pgbouncer.ini" or die "pgbouncer.ini: $!";
print $file qq{
[databases]
* = host=@{[$node->host]} port=@{[$node->port]} user=$user

[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $tmp
auth_type = any
pool_mode = transaction
default_pool_size = 30
max_client_conn = 200
ignore_startup_parameters = extra_float_digits, options
server_lifetime = 2
logfile = $tmp/pgbouncer.log
pidfile = $tmp/pgbouncer.pid
};
close $file;
my $pid = fork;
die "fork: $!" unless defined $pid;
if ($pid == 0)
{
	open STDOUT, '>', "$tmp/out";
	open STDERR, '>&', \*STDOUT;
	exec($program, '-q', "$tmp/pgbouncer.ini") or exit 2;
}
END { kill 'TERM', $pid if $pid; }

my $conninfo = "host=$tmp port=$port user=$user dbname=";

# One statement, through the pooler, from a connection of its own.
sub pooled
{
	my ($sql) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'psql', '-XAtq', '-d', "${conninfo}single", '-c', $sql ], '>', \$out, '2>', \$err);
	chomp $out;
	return $err ne '' ? $err : $out;
}

$node->safe_psql('postgres', 'CREATE DATABASE single');
$node->safe_psql('single', 'CREATE EXTENSION idemq');
outbox_database($node, $db);
my $up = 0;
for (my $until = time + 30; time < $until && !$up; usleep(100_000))    # sleep: until it is up
{
	$up = pooled('SELECT 1') eq '1';
}
ok($up, 'the pooler is there') or diag slurp_file("$tmp/out"), pooled('SELECT 1');

# ---- one by one ----------------------------------------------------------

$node->safe_psql('single', q{
SELECT outbox_subscribe('pooled');
SELECT outbox_emit('order', NULL, 'o', 'event ' || i) FROM generate_series(1, 3) AS i});

# Runs a statement while the server connections that were used before are busy.
my @busy;

sub elsewhere
{
	my ($sql) = @_;
	my ($in, $out, $err) = ("BEGIN;\nSELECT 'pid', pg_backend_pid();\n", '', '');
	my $psql = IPC::Run::start([ 'psql', '-XAtq', '-d', "${conninfo}single", '-f', '-' ], '<', \$in, '>', \$out, '2>', \$err);

	$psql->pump until $out =~ /pid\|(\d+)/;
	push @busy, [ $psql, \$in ];
	return pooled($sql);
}

my $token = elsewhere(q{SELECT max(token) FROM outbox_fetch('pooled')});
like($token, qr/^\d+$/, 'a fetch');
is(elsewhere("SELECT outbox_extend($token, '10 min') > now()"), 't', 'extended by another connection');
is(elsewhere("SELECT outbox_ack($token)"), '3', 'acked by a third');
is(elsewhere(q{CALL outbox_wait('pooled', '100 ms')}), '', 'outbox_wait times out');
$node->safe_psql('single', q{SELECT outbox_emit('order', NULL, 'o', 'event 4')});
is(elsewhere(q{CALL outbox_wait('pooled', '10 min')}), '', 'and returns when there is something');
is(elsewhere(q{SELECT type, outbox_ack(token) FROM outbox_fetch('pooled')}), 'event 4|1', 'which is there');
foreach my $busy (@busy)
{
	${ $busy->[1] } .= "ROLLBACK;\n\\q\n";
	$busy->[0]->finish;
}

# ---- the hammer ----------------------------------------------------------

my $target = "$tmp/target";
open $file, '>', $target or die "$target: $!";
print $file $conninfo . $db;
close $file;
my $run = outbox_start($node, $db, target => $target, seconds => $seconds, long_ms => 2000, outage => 1, kill_ms => 600);
my $count = outbox_finish($run);

outbox_check($run, $count);
cmp_ok($count->{$_}, '>', 0, "there were: $_") foreach qw(written events acks nacks waits crashed);
hammer_check_log($node);

kill 'TERM', $pid;
waitpid $pid, 0;
$pid = 0;
$node->stop;
done_testing();
