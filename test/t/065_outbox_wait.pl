# outbox_wait: it sleeps without a snapshot, wakes when there is something to be
# had and not before, and ends when it is told to.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IdemqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = idemq_node('main', 'idemq.naptime' => '1s');
my $patience = $PostgreSQL::Test::Utils::timeout_default;

# An SQLSTATE, and the hint.
sub refusal
{
	my ($sql) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql", on_error_stop => 0);

	return $err =~ /ERROR:\s+([0-9A-Z]{5})(?:.*HINT:\s+([^\n]*))?/s ? ($1, $2) : ('', '');
}

# Puts somebody to sleep; returns the session when it sleeps.
sub sleeper
{
	my ($consumer, $timeout, $before) = @_;
	my $session = session($node);

	$session->query($before) if $before;
	my $pid = backend_pid($session);
	$session->{pid} = $pid;
	send_sql($session, "CALL outbox_wait('$consumer', '$timeout')");
	$node->poll_query_until('postgres', qq{
SELECT state = 'active' AND wait_event_type = 'Extension' AND query ~ 'outbox_wait' FROM pg_stat_activity WHERE pid = $pid})
	  or die 'nobody sleeps';
	return $session;
}

# Does it still sleep?
sub sleeps
{
	my ($session) = @_;

	return $node->safe_psql('postgres', qq{
SELECT state = 'active' AND query ~ 'outbox_wait' FROM pg_stat_activity WHERE pid = $session->{pid}}) eq 't';
}

# It wakes now, long before its time, and without an error.
sub wakes
{
	my ($session, $name) = @_;
	my $begun = time;
	my (undef, $err) = answer($session);
	my $took = time - $begun;

	is($err, '', "$name: it wakes");
	note(sprintf '%s: %.0f ms', $name, 1000 * $took);
	cmp_ok($took, '<', 60, "$name: not by its own timeout");
	$session->quit;
	return;
}

sub emit
{
	my ($type, $id) = @_;

	$node->safe_psql('postgres', q{INSERT INTO idemq.outbox (aggregatetype, aggregateid, type) VALUES ('order', }
		  . ($id ? "'$id'" : 'NULL') . qq{, '$type')});
	return;
}

# Fetches, and keeps it; the token.
sub fetch
{
	my ($consumer, $lease) = @_;

	return $node->safe_psql('postgres', "SELECT max(token) FROM outbox_fetch('$consumer', 100, '" . ($lease // '1 hour') . "')");
}

sub ack
{
	my ($token) = @_;

	return $node->safe_psql('postgres', "SELECT outbox_ack($token)");
}

$node->safe_psql('postgres', q{SELECT outbox_subscribe(c) FROM unnest('{c,d}'::text[]) AS c});
$node->safe_psql('postgres', q{SELECT outbox_subscribe('some', '{invoice}')});

# ---- bad input -----------------------------------------------------------

my ($state, $hint) = refusal(q{BEGIN; CALL outbox_wait('c', '1 s')});
is($state, '25001', 'not in a transaction block');
like($hint, qr/autocommit/, 'which the hint explains');
is((refusal(q{CALL outbox_wait('nobody', '1 s')}))[0], '42704', 'no such consumer');
is((refusal(q{CALL outbox_wait(NULL, '1 s')}))[0], '22023', 'no consumer');
is((refusal(qq{CALL outbox_wait('c', $_)}))[0], '22023', "timeout $_") foreach (q{'0'}, q{'-1 s'}, 'NULL');
is((refusal(q{DO $$ BEGIN CALL outbox_wait('c', '10 ms'); END $$}))[0], '', 'from PL/pgSQL outside of a block it goes');
is((refusal(q{CREATE FUNCTION waits() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL outbox_wait('c', '10 ms'); END $$; SELECT waits()}))[0],
	'25001', 'in a function it does not');

# ---- time-out ------------------------------------------------------------

my $begun = time;
$node->safe_psql('postgres', q{CALL outbox_wait('c', '300 ms')});
cmp_ok(time - $begun, '>=', 0.3, 'a time-out is a normal return, and not early');

# ---- no snapshot ---------------------------------------------------------

my $session = sleeper('c', '10 min');
my $watched = 0;
my $held = 0;
# for longer than one look
for (my $until = time + 2.5; time < $until; usleep(20_000))    # sleep: between two looks
{
	$watched++;
	$held++ if $node->safe_psql('postgres', qq{
SELECT backend_xmin IS NOT NULL OR backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = $session->{pid}}) eq 't';
}
cmp_ok($held, '<', $watched / 5, "it sleeps without a snapshot ($held of $watched looks met it awake)");
my $xid = $node->safe_psql('postgres', 'SELECT txid_current()');
usleep(2_500_000);    # sleep: two looks more, of somebody for whom nothing comes
cmp_ok($node->safe_psql('postgres', 'SELECT txid_current()') - $xid, '<=', 2, 'and uses up no xids');

# ---- what wakes it -------------------------------------------------------

ok(sleeps($session), 'it still sleeps');
emit('one', 'k');
wakes($session, 'a commit');
my $token = fetch('c');

# the lease is out: nothing is to be had by somebody else
$session = sleeper('c', '10 min');
emit('two', 'k');
ok(sleeps($session), 'an ordered shard with a lease out has nothing');
ack($token);
wakes($session, 'an ack');

$token = fetch('c');
$session = sleeper('c', '10 min');
$node->safe_psql('postgres', "SELECT outbox_release($token)");
wakes($session, 'a release');
ack(fetch('c'));

emit('three', 'k');
$token = fetch('c', '1500 ms');
$session = sleeper('c', '10 min');
wakes($session, 'the end of a lease');
$token = fetch('c');
my $id = $node->safe_psql('postgres', q{SELECT id FROM idemq.outbox WHERE type = 'three'});
$node->safe_psql('postgres', "SELECT outbox_nack($token, '$id', 'boom', '1500 ms')");
$session = sleeper('c', '10 min');
ok(sleeps($session), 'what has failed is not to be had before it is due');
wakes($session, 'the time when it is due');
$token = fetch('c');
isnt($token, '', 'and then it is there');
ack($token);

$node->safe_psql('postgres', q{
INSERT INTO idemq.outbox (aggregatetype, aggregateid, type, not_before) VALUES ('order', 'k', 'later', clock_timestamp() + interval '1500 ms')});
is(fetch('c'), '', 'nor what is to come later');
$session = sleeper('c', '10 min');
wakes($session, 'not_before');
$token = fetch('c');
isnt($token, '', 'and then it is there');
ack($token);

$node->safe_psql('postgres', q{
BEGIN; INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', 'prepared'); PREPARE TRANSACTION 'p'});
$session = sleeper('c', '10 min');
ok(sleeps($session), 'a prepared transaction wakes nobody');
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
wakes($session, 'COMMIT PREPARED');
ack(fetch('c'));

my $writer = session($node);
$writer->query(q{BEGIN; INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', 'rolled back')});
$session = sleeper('c', '10 min');
$writer->query('ROLLBACK');
$writer->query(q{BEGIN; SAVEPOINT s; INSERT INTO idemq.outbox (aggregatetype, type) VALUES ('order', 'rolled back'); ROLLBACK TO s; COMMIT});
emit('not for him');
wakes($session, 'among others');
ack(fetch('c'));
$session = sleeper('some', '10 min');
emit('not for him');
usleep(1_200_000);    # sleep: he has looked, and found nothing
ok(sleeps($session), 'an event of another type wakes nobody for good');
$node->safe_psql('postgres', q{COPY idemq.outbox (aggregatetype, type) FROM PROGRAM 'printf "invoice\tcopied\n"'});
wakes($session, 'COPY');
$writer->quit;

# what is left of a window
ack(fetch('c'));
emit("left $_") foreach 1 .. 3;
is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox_fetch('d', 1)}), '1', 'one of several is fetched');
$node->safe_psql('postgres', q{SELECT outbox_subscribe('u', ordered => false, start_at => 'now')});
emit("more $_") foreach 1 .. 3;
is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox_fetch('u', 1)}), '1', 'one of several is fetched');
$begun = time;
$node->safe_psql('postgres', q{CALL outbox_wait('u', '10 min')});
cmp_ok(time - $begun, '<', 60, 'it returns at once if more of the window is left');
$node->safe_psql('postgres', q{CALL outbox_wait('c', '10 min')});
pass('the same for an ordered consumer');

# how long it takes, in the usual case
ack(fetch('c'));
my @took;
foreach my $n (1 .. 30)
{
	$session = sleeper('c', '10 min');
	$begun = time;
	emit("timed $n");
	answer($session);
	push @took, 1000 * (time - $begun);
	$session->quit;
	ack(fetch('c'));
}
@took = sort { $a <=> $b } @took;
diag(sprintf 'from before psql starts for the INSERT to the return of outbox_wait: median %.0f ms, worst %.0f ms',
	$took[$#took / 2], $took[-1]);

# ---- what ends it --------------------------------------------------------

$session = sleeper('c', '10 min', q{SET statement_timeout = '500ms'});
my (undef, $err) = answer($session);
like($err, qr/statement timeout/, 'statement_timeout ends it');
$session->quit;

$session = sleeper('c', '10 min');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($session->{pid})");
(undef, $err) = answer($session);
like($err, qr/user request/, 'a cancel ends it');
is($session->query('SELECT 1'), '1', 'and the session goes on');
$session->quit;

$session = sleeper('c', '10 min');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($session->{pid})");
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $session->{pid}"),
	'pg_terminate_backend ends it');
abandon($session);

$session = sleeper('c', '10 min');
abandon($session);
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $session->{pid}"),
	'a client that is killed ends it');

$session = sleeper('c', '10 min');
$begun = time;
$node->stop('fast');
cmp_ok(time - $begun, '<', $patience, 'a shutdown ends it');
abandon($session);

# ---- without preload -----------------------------------------------------

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->start;
$session = session($node);
my $pid = backend_pid($session);
send_sql($session, q{CALL outbox_wait('c', '10 min')});
$node->poll_query_until('postgres', "SELECT state = 'active' AND wait_event IS NOT NULL FROM pg_stat_activity WHERE pid = $pid");
emit('without preload');
wakes($session, 'without preload');
isnt(fetch('c'), '', 'and then it is there');

$node->stop;
done_testing();
