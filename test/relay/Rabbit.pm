# A private RabbitMQ: its own name, ports, data, log, cookie and configuration,
# on 127.0.0.1.  The program of the package is called without Debian's wrapper,
# which insists on the user and the folders of the system's broker.

package Rabbit;

use strict;
use warnings;

use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

use RelayTest;

my $server = '/usr/lib/rabbitmq/bin/rabbitmq-server';

# What a test needs to have one.
sub needs { return ($server, 'epmd', 'python:pika', 'python:psycopg2', 'relay:amqp') }

# Makes one and starts it; lines for its configuration.
sub new
{
	my ($class, @conf) = @_;
	my $self = bless { port => free_port(), dist => free_port(), epmd => free_port(), password => 'hush' . int rand 1e9 },
	  $class;
	my $dir = $self->{dir} = work_file('rabbit');

	mkdir $dir or die "$dir: $!";
	$self->put('rabbitmq.conf', <<"END");
listeners.tcp.1 = 127.0.0.1:$self->{port}
default_user = relay
default_pass = $self->{password}
disk_free_limit.absolute = 10MB
@{[join "\n", @conf]}
END
	$self->put('enabled_plugins', "[].\n");
	$self->put('advanced.config', "[].\n");
	$self->put('env.conf', '');
	chmod 0700, $dir;
	$self->{epmd_program} = program_start('epmd', 'epmd', '-address', '127.0.0.1', '-port', $self->{epmd});
	return $self->start;
}

sub put
{
	my ($self, $name, $text) = @_;

	open(my $file, '>', "$self->{dir}/$name") or die "$name: $!";
	print $file $text;
	close $file;
	return;
}

# Starts it (again, with what it had), and waits until one can connect.
sub start
{
	my ($self) = @_;
	my @env = $self->environment;

	$self->{program} = program_start('rabbit', '/usr/bin/env', '-i', @env, $server);
	wait_for('RabbitMQ answers', sub { $self->answers || !program_lives($self->{program}) }, 90);
	if (!$self->answers)
	{
		diag(program_output($self->{program}), program_errors($self->{program}));
		BAIL_OUT('RabbitMQ does not start');
	}
	return $self;
}

# What its programs are told.
sub environment
{
	my ($self) = @_;
	my $dir = $self->{dir};

	return (
		"PATH=$ENV{PATH}", 'LANG=C.UTF-8', "HOME=$dir",
		'ERL_EPMD_ADDRESS=127.0.0.1',
		"ERL_EPMD_PORT=$self->{epmd}",
		'ERL_FLAGS=-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none',
		"ERL_CRASH_DUMP=$dir/crash.dump",
		"RABBITMQ_NODENAME=idemq-relay-$self->{port}\@127.0.0.1",
		'RABBITMQ_USE_LONGNAME=true',
		'RABBITMQ_NODE_IP_ADDRESS=127.0.0.1',
		"RABBITMQ_NODE_PORT=$self->{port}",
		"RABBITMQ_DIST_PORT=$self->{dist}",
		"RABBITMQ_MNESIA_BASE=$dir/data",
		"RABBITMQ_LOG_BASE=$dir/log",
		"RABBITMQ_PID_FILE=$dir/pid",
		"RABBITMQ_CONF_ENV_FILE=$dir/env.conf",
		"RABBITMQ_CONFIG_FILE=$dir/rabbitmq.conf",
		"RABBITMQ_ADVANCED_CONFIG_FILE=$dir/advanced.config",
		"RABBITMQ_ENABLED_PLUGINS_FILE=$dir/enabled_plugins");
}

# rabbitmqctl, with these words.
sub ctl
{
	my ($self, @words) = @_;
	my @env = map { /^ERL_FLAGS=/ ? 'ERL_FLAGS=-start_epmd false' : $_ } $self->environment;

	return IPC::Run::run([ '/usr/bin/env', '-i', @env, $server =~ s/-server$/ctl/r, '--longnames', @words ],
		'<', \undef, '>&', $self->{dir} . '/ctl.log');
}

# kill -9.
sub crash
{
	my ($self) = @_;

	program_kill($self->{program});
	return;
}

# A goodbye.
sub stop
{
	my ($self) = @_;

	kill 'TERM', -$self->{program}{pid};
	program_kill($self->{program}) if program_wait($self->{program}, 60) eq 'runs';
	return;
}

sub url
{
	my ($self) = @_;

	return "amqp://relay:$self->{password}\@127.0.0.1:$self->{port}/%2F";
}

# For the relay: --to, without the password, and where the password is.
sub to { return sprintf 'amqp://relay@127.0.0.1:%d/%%2F', $_[1] // $_[0]->{port} }
sub env { return (IDEMQ_RELAY_PASSWORD => $_[0]->{password}) }

# rabbit.py, with these words; what it printed.
sub ask
{
	my ($self, @words) = @_;
	my ($out, $err) = ('', '');
	local $ENV{AMQP_URL} = $self->url;
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;

	my $ok = IPC::Run::run([ python('rabbit.py'), @words ], '<', \undef, '>', \$out, '2>', \$err);
	$self->{error} = $ok ? '' : $err;
	return $ok ? $out : undef;
}

sub answers
{
	my ($self) = @_;
	# a closed port is told faster by ourselves
	return 0 unless IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}, Timeout => 1);
	return defined $self->ask('ready');
}

# Declares a durable topic exchange, a queue, and what binds it.
sub declare
{
	my ($self, $exchange, $queue, $binding, %arguments) = @_;

	defined $self->ask('declare', $exchange, $queue, $binding, encode_json(\%arguments)) or die $self->{error};
	return;
}

# How many messages wait in it.
sub count
{
	my ($self, $queue) = @_;
	my $count = $self->ask('count', $queue);

	return defined $count ? $count + 0 : -1;
}

# Takes all that is there: a hash for each message, with id, type, key, body, headers …
sub take
{
	my ($self, $queue) = @_;
	my $out = $self->ask('take', $queue);

	defined $out or die $self->{error};
	return json_lines($out);
}

1;
