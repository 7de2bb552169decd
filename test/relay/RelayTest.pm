# What the tests of the relay share: programs in the background, the relay
# among them, and a database with a consumer whose role may consume and look.
#
# IDEMQ_RELAY=FILE	the program; default: src/relay/idemq-relay
# RELAY_VALGRIND=1	run it under valgrind
# RELAY_SANITIZE=address	it was built with that: no limit to its memory
# RELAY_SEED=n		the same random numbers again
#
# Whatever was built with a sanitizer or runs under valgrind writes its findings
# to its stderr: relay_clean() looks for them.

package RelayTest;

use strict;
use warnings;

use Encode qw(decode encode);
use Exporter 'import';
use File::Basename qw(dirname);
use lib dirname(__FILE__) . '/../t';
use IdemqTest;
use IO::Handle;
use JSON::PP;
use POSIX qw(:sys_wait_h _exit);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  program_start program_tell program_signal program_kill program_wait program_lives program_output program_errors
  wait_for free_port tests_dir work_file put_file python skip_without compile_program random_seed
  relay relay_start relay_argv relay_program relay_has relay_clean relay_is_slow relay_patience
  relay_node relay_database emit consumer_rest consumer_done dead_letters nacked json_lines);

our $PYTHON = '/usr/bin/python3';
my $dir = dirname(__FILE__);
my %running;					# by process id: all that program_start started
my @logs;						# stderr of relays
my $count = 0;

# ---- programs in the background ------------------------------------------

# Starts a program in a process group of its own.  Options before the words of
# the command: env (hash), talk (its stdin is a pipe).
sub program_start
{
	my ($name, @command) = @_;
	my %option = ref $command[0] ? %{ shift @command } : ();
	my $base = work_file(sprintf '%s.%d', $name, ++$count);
	my $program = { name => $name, out => "$base.out", err => "$base.err" };
	my ($read, $write);

	if ($option{talk})
	{
		pipe($read, $write) or die "pipe: $!";
		$write->autoflush(1);
	}
	my $pid = fork;
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		setpgrp;
		$SIG{PIPE} = 'DEFAULT';
		if ($read)
		{
			open STDIN, '<&', $read or _exit(126);
		}
		else
		{
			open STDIN, '<', '/dev/null' or _exit(126);
		}
		open STDOUT, '>', $program->{out} or _exit(126);
		open STDERR, '>', $program->{err} or _exit(126);
		local %ENV = (%ENV, PYTHONUNBUFFERED => 1, PYTHONDONTWRITEBYTECODE => 1, %{ $option{env} // {} });
		delete $ENV{$_} foreach grep { !defined $ENV{$_} } keys %ENV;
		# whatever becomes of us, it does not stay
		exec 'setpriv', '--pdeathsig', 'KILL', @command or _exit(127);
	}
	close $read if $read;
	$program->{pid} = $pid;
	$program->{stdin} = $write;
	$running{$pid} = $program;
	return $program;
}

# Writes a line to it, and waits for its answer, the next line that it prints.
sub program_tell
{
	my ($program, $line) = @_;
	my $lines = () = program_output($program) =~ /\n/g;

	local $SIG{PIPE} = 'IGNORE';
	print { $program->{stdin} } "$line\n";
	my $answer;
	wait_for(
		"$program->{name} answers to \"$line\"",
		sub {
			my @all = program_output($program) =~ /^(.*)\n/gm;
			$answer = $all[$lines];
			return defined $answer || !program_lives($program);
		},
		30) or return '';
	return $answer // '';
}

sub program_signal
{
	my ($program, $signal) = @_;

	return kill $signal, $program->{pid} if program_lives($program);
	return 0;
}

# kill -9, to all of its group.
sub program_kill
{
	my ($program) = @_;

	return unless defined $program;
	kill 'KILL', -$program->{pid} if $running{ $program->{pid} };
	program_wait($program, 30);
	return;
}

# Has it ended?  Then its status is there.
sub program_lives
{
	my ($program) = @_;

	return 0 if defined $program->{status};
	my $got = waitpid($program->{pid}, WNOHANG);
	return 1 if $got == 0;
	$program->{status} = $?;
	delete $running{ $program->{pid} };
	return 0;
}

# Waits for its end; the exit code, "signal N", or "runs" when the time is over.
sub program_wait
{
	my ($program, $seconds) = @_;
	my $end = time + ($seconds // 60);

	while (program_lives($program))
	{
		return 'runs' if time > $end;
		# sleep: until it has ended
		usleep(20_000);
	}
	return 'signal ' . ($program->{status} & 127) if $program->{status} & 127;
	return $program->{status} >> 8;
}

sub program_output { return -e $_[0]->{out} ? slurp_file($_[0]->{out}) : '' }
sub program_errors { return -e $_[0]->{err} ? slurp_file($_[0]->{err}) : '' }

$SIG{TERM} = $SIG{INT} = $SIG{HUP} = sub { exit 143 };

END
{
	local $?;
	foreach my $pid (keys %running)
	{
		kill 'KILL', -$pid;
		waitpid $pid, 0;
	}
}

# ---- small things --------------------------------------------------------

# Waits until the condition is true, with a deadline, and says so if it is not.
sub wait_for
{
	my ($what, $condition, $seconds) = @_;
	my $begun = time;
	my $end = $begun + relay_patience($seconds // 60);

	until ($condition->())
	{
		if (time > $end)
		{
			diag(sprintf 'waited %d s in vain: %s', time - $begun, $what);
			return 0;
		}
		# sleep: between two looks
		usleep(50_000);
	}
	return 1;
}

# A port of 127.0.0.1 that nobody listens on, and that no other test is given.
sub free_port { return PostgreSQL::Test::Cluster::get_free_port() }

sub tests_dir { return $dir }
sub work_file { return "$PostgreSQL::Test::Utils::tmp_check/$_[0]" }
sub python { return ($PYTHON, "$dir/$_[0]") }

sub put_file
{
	my ($name, $text, $mode) = @_;
	my $path = work_file($name);

	open(my $file, '>', $path) or die "$path: $!";
	print $file $text;
	close $file;
	chmod $mode, $path if defined $mode;
	return $path;
}

sub json_lines
{
	# kcat lets bytes through that are no UTF-8
	return map { decode_json(encode('UTF-8', decode('UTF-8', $_))) } grep { /\S/ } split /\n/, $_[0];
}

# Every list of random numbers can be had again.
sub random_seed
{
	my $seed = $ENV{RELAY_SEED} || int(time) % 100_000;

	srand $seed;
	diag("RELAY_SEED=$seed");
	return $seed;
}

# Skips the file unless all of this is there: programs by their path or name,
# Python modules as "python:pika", parts of the relay as "relay:amqp".
sub skip_without
{
	foreach my $what (@_)
	{
		my $there =
			$what =~ /^python:(.*)/ ? system("$PYTHON -c 'import $1' 2>/dev/null") == 0
		  : $what =~ /^relay:(.*)/ ? relay_has($1)
		  : $what =~ m{/} ? -e $what
		  : system("command -v $what >/dev/null 2>&1") == 0;
		plan skip_all => "there is no $what" unless $there;
	}
	return;
}

# Compiles one of our C programs; what is given is for the compiler.
sub compile_program
{
	my ($source, @flags) = @_;
	my $binary = work_file("$source.bin");

	system_or_bail($ENV{CC} || 'cc', '-O1', '-g', '-Wall', '-o', $binary, "$dir/$source", @flags);
	return $binary;
}

# ---- the relay -----------------------------------------------------------

sub relay_program
{
	return $ENV{IDEMQ_RELAY} // "$dir/../../src/relay/idemq-relay";
}

sub relay_is_slow { return $ENV{RELAY_VALGRIND} || $ENV{RELAY_SANITIZE} ? 1 : 0 }

# Under valgrind everything takes its time.
sub relay_patience { return $_[0] * ($ENV{RELAY_VALGRIND} ? 4 : 1) }

# Was it built with this part, of amqp, kafka, http, metrics?
my $version;

sub relay_has
{
	my ($part) = @_;
	my $program = relay_program();
	my %name = (amqp => qr/^RabbitMQ/, kafka => qr/^Kafka/, http => qr/^HTTP/, metrics => qr/^metrics/);

	$version //= `$program --version 2>&1`;
	my ($line) = grep { /$name{$part}/ } split /\n/, $version;
	return defined $line && $line !~ /not built in/;
}

# The words of its command line.
sub relay_argv
{
	my @words = (relay_program(), @_);

	unshift @words, 'valgrind', '-q', '--error-exitcode=99', '--leak-check=full',
	  '--show-leak-kinds=definite', '--errors-for-leak-kinds=definite', "--suppressions=$dir/valgrind.supp"
	  if $ENV{RELAY_VALGRIND};
	return @words;
}

# Starts it; an option hash first, as for program_start.
sub relay_start
{
	my ($name, @args) = @_;
	my %option = ref $args[0] ? %{ shift @args } : ();

	# what the caller's own settings are is no matter here
	my %env = map { $_ => undef } grep { /^IDEMQ_RELAY_/ } keys %ENV;
	my $relay = program_start($name, { %option, env => { %env, %{ $option{env} // {} } } }, relay_argv(@args));
	push @logs, $relay->{err};
	return $relay;
}

# Runs it to its end: exit code, stdout, stderr.
sub relay
{
	my @args = @_;
	my %option = ref $args[0] ? %{ shift @args } : ();
	my $relay = relay_start('relay', \%option, @args);
	my $status = program_wait($relay, relay_patience($option{seconds} // 60));

	program_kill($relay) if $status eq 'runs';
	note(join ' ', 'idemq-relay', @args);
	note("exit $status");
	note(program_errors($relay));
	return ($status, program_output($relay), program_errors($relay));
}

# Neither valgrind nor a sanitizer had anything to say, to no relay so far.
sub relay_clean
{
	my @dirty;
	foreach my $log (@logs)
	{
		my $text = slurp_file($log);
		push @dirty, $1 if $text =~ /^(.*(?:Sanitizer|runtime error:).*\n(?:.*\n){0,30})/m;
		push @dirty, $1 if $text =~ /^(==\d+== .*\n(?:==.*\n){0,30})/m;
		push @dirty, $1 if $text =~ /^(.*(?:Assertion .* failed|malloc\(\)|free\(\)|corrupt).*)/m;
	}
	is(join('', @dirty), '', 'no sanitizer, valgrind or assertion has found anything in ' . @logs . ' relays');
	return;
}

# ---- the database --------------------------------------------------------

# A server whose log has all that the role "relay" asks for.
sub relay_node
{
	my ($name, %conf) = @_;
	my $node = idemq_node($name,
		max_connections => 60,
		restart_after_crash => 'on',
		'idemq.naptime' => '1s',
		%conf);

	$node->safe_psql('postgres', q{
CREATE ROLE relay LOGIN;
ALTER ROLE relay SET log_statement = 'all'});
	return $node;
}

# A database with a consumer of that name; what comes after is for outbox_subscribe.
sub relay_database
{
	my ($node, $db, $consumer, $settings) = @_;

	$settings = $settings ? ", $settings" : '';
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'");
	$node->safe_psql($db, qq{
CREATE EXTENSION idemq;
SELECT outbox_subscribe('$consumer'$settings);
SELECT idem_grant('relay', 'consume');
SELECT idem_grant('relay', 'monitor')});
	return;
}

# Writes this many events, one transaction each (at_once: in one), of so many
# keys: numbers from 1 in each key, in "n", under the key's lock.
sub emit
{
	my ($node, $db, $events, $keys, %option) = @_;
	my $type = $option{type} // 'order';
	my $commit = $option{at_once} ? '' : 'COMMIT;';
	my $payload = $option{payload} // q{jsonb_build_object('n', n, 'key', key)};

	$node->safe_psql($db, qq{
CREATE TABLE IF NOT EXISTS emitted (id uuid PRIMARY KEY, key text, n bigint);
CREATE TABLE IF NOT EXISTS key (key text PRIMARY KEY, n bigint NOT NULL);
DO \$\$
DECLARE
	v_key text;
	v_n bigint;
BEGIN
	FOR i IN 1 .. $events LOOP
		v_key := 'k' || i % $keys;
		INSERT INTO key VALUES (v_key, 1) ON CONFLICT ON CONSTRAINT key_pkey DO UPDATE SET n = key.n + 1
			RETURNING n INTO v_n;
		INSERT INTO emitted SELECT outbox_emit('$type', $payload, key, 'paid', '{"source": "test"}'), key, n
			FROM (SELECT v_key AS key, v_n AS n) AS v;
		$commit
	END LOOP;
END \$\$});
	return;
}

# What a consumer still has to deal with: events that are unread, out or parked.
sub consumer_rest
{
	my ($node, $db, $consumer) = @_;
	my ($ret, $out) = $node->psql($db, qq{
SELECT coalesce(sum(lag_events + in_flight), 0) + (SELECT count(*) FROM idemq.parked WHERE consumer = '$consumer')
FROM idemq.consumers WHERE consumer = '$consumer'});

	return $ret == 0 && length $out ? $out : -1;
}

# Waits until nothing is left.
sub consumer_done
{
	my ($node, $db, $consumer, $seconds) = @_;
	my $rest;

	return 1 if wait_for("nothing is left for $consumer",
		sub { ($rest = consumer_rest($node, $db, $consumer)) eq '0' }, $seconds // 60);
	diag("left: $rest");
	diag($node->safe_psql($db, 'SELECT * FROM idemq.consumers; SELECT * FROM idemq.parked LIMIT 10'));
	return 0;
}

sub dead_letters
{
	my ($node, $db) = @_;

	return $node->safe_psql($db,
		'SELECT type, attempts, error FROM idemq.dead_letters ORDER BY dead_id');
}

# The ids that the role "relay" has named to outbox_nack, by the server's log;
# from: an offset into it.
sub nacked
{
	my ($node, $from) = @_;
	my $log = slurp_file($node->logfile, $from // 0);
	my @ids;
	my $uuid = qr/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/;

	# the statement, and in the next line its parameters
	while ($log =~ /outbox_nack.*\n(?:.*DETAIL.*\n)?/g)
	{
		my $text = $&;
		next if $text =~ /ERROR|STATEMENT/;
		push @ids, $text =~ /($uuid)/g;
	}
	return @ids;
}

1;
