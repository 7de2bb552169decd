# Settings, --help and --version.  Needs no server: nothing comes as far as that.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use PostgreSQL::Test::Utils;
use Test::More;

use RelayTest;

my @fine = ('--consumer', 'orders', '--to', 'stdout');

# Exit code 2 and this line.
sub refused
{
	my ($name, $line, @args) = @_;
	my ($status, $out, $err) = relay(@args);

	is($status, 2, "$name: exit code 2");
	like($err, $line, "$name: the line");
	is($out, '', "$name: nothing on stdout");
	return;
}

my ($status, $out, $err) = relay('--help');
is($status, 0, '--help');
is($err, '', '--help says nothing else');
like($out, qr/^  --$_\b/m, "--help tells of --$_")
  foreach qw(consumer dbname to in-flight timeout backoff-most batch lease memory once drain dry-run check settings
  log-format log-level listen help version);
like($out, qr/^Exit codes:/m, '--help tells of exit codes');
is(scalar(grep { length > 130 } split /\n/, $out), 0, 'its lines are short');
is((relay('-?'))[1], $out, '-? is the same');

# the manual knows what --help knows, and nothing that is not there
my $manual = slurp_file(tests_dir() . '/../../doc/idemq-relay.1');
my %told = map { $_ => 1 } $manual =~ /--([a-z][a-z-]+)/g;
my @settings = $out =~ /^  --([a-z-]+)/mg;
is(join(' ', grep { !$told{$_} } @settings), '', 'the manual tells of all of them');
SKIP:
{
	skip 'not all parts are built in', 1 if grep { !relay_has($_) } qw(amqp kafka http);
	delete @told{@settings};
	is(join(' ', sort keys %told), '', 'and of no others');
}

($status, $out, $err) = relay('--version');
is($status, 0, '--version');
like($out, qr/^idemq-relay \d+\.\d+\.\d+\n/, 'its version');
like($out, qr/^$_ +\S/m, "tells of $_") foreach qw(RabbitMQ Kafka HTTP stdout metrics libpq);

# what is wrong, and with what
refused('nothing', qr/--consumer and --to are missing; see idemq-relay --help/);
refused('no consumer', qr/--consumer is missing/, '--to', 'stdout');
refused('no destination', qr/--to is missing/, '--consumer', 'orders');
refused('an unknown destination', qr/--to begins with none of amqp:/, '--consumer', 'orders', '--to', 'ftp://x');
refused('a slip', qr/--cosumer: there is no such setting; did you mean --consumer\?/, '--cosumer', 'x');
refused('a name of nothing', qr/--frobnicate: there is no such setting; see/, '--frobnicate');
refused('an argument', qr/"orders" is not a setting/, 'orders');
refused('no value', qr/--consumer needs a value: --consumer NAME/, '--consumer');
refused('another name for a value', qr/--consumer needs a value/, '--consumer', '--to', 'stdout');
refused('not a number', qr/--batch: "many" is not a whole number/, @fine, '--batch', 'many');
refused('half a number', qr/--batch: "1.5" is not a whole number/, @fine, '--batch', '1.5');
refused('too little', qr/--batch: "0" is not between 1 and 100000/, @fine, '--batch', '0');
refused('too much', qr/--batch: "99999999999999999999"/, @fine, '--batch', '99999999999999999999');
refused('no time', qr/--lease: "soon" is not a time, as 200ms/, @fine, '--lease', 'soon');
refused('a wrong unit', qr/--lease: "5 weeks" is not a time/, @fine, '--lease', '5 weeks');
refused('too short a time', qr/--lease: "1ms" is not between 1s and 1d/, @fine, '--lease', '1ms');
refused('no size', qr/--memory: "64 bits" is not a size/, @fine, '--memory', '64 bits');
refused('no choice', qr/--log-format: "xml" is not one of text or json/, @fine, '--log-format', 'xml');
refused('two modes', qr/--once and --drain do not go together/, @fine, '--once', '--drain');
refused('neither on nor off', qr/--once: "perhaps" is neither on nor off/, @fine, '--once=perhaps');
refused('no connection string', qr/--dbname is not a connection string: .*"hots"/, @fine, '--dbname', 'hots=x');
refused('something behind stdout', qr/--to stdout takes nothing/, '--consumer', 'orders', '--to', 'stdout:x');
refused('no port', qr/--listen: "here" is not ADDRESS:PORT/, @fine, '--listen', 'here');
refused('a wrong setting, for machines', qr/^\{"time":"[^"]+Z","level":"error","message":"--batch: \\"x\\" is not a whole number"\}$/,
	@fine, '--log-format', 'json', '--batch', 'x');

# secrets, and nothing of them is told
foreach my $secret (
	[ '--dbname', 'host=x password=hush' ],
	[ '--dbname', 'postgresql://relay:hush@x/shop' ],
	[ '--dbname', 'sslpassword=hush' ],
	[ '--dbname', 'password=hush nonsense' ],
	[ '--to', 'amqp://relay:hush@broker/' ],
	[ '--to', 'https://relay:hu@sh@host/' ],
	[ '--to=amqp://relay:hush@broker/' ])
{
	($status, $out, $err) = relay(@$secret);
	is($status, 2, "refused: @$secret");
	like($err, qr/holds a secret, .*IDEMQ_RELAY_(DBNAME|TO)\b.*--settings/, 'where it may stand');
	unlike($err, qr/hu@?sh/, 'it is not told');
}
SKIP:
{
	skip 'built without RabbitMQ', 4 unless relay_has('amqp');
	($status, $out, $err) = relay('--consumer', 'orders', '--to', 'amqp://relay@broker/', '--password', 'hush');
	is($status, 2, 'refused: --password');
	like($err, qr/--password is a secret, .*IDEMQ_RELAY_PASSWORD/, 'where it may stand');
	unlike($err, qr/hush/, 'it is not told');
	refused('of another destination', qr/--exchange is a setting of RabbitMQ, which is not where --to leads/,
		@fine, '--exchange', 'orders');
}
SKIP:
{
	skip 'built without Kafka', 3 unless relay_has('kafka');
	($status, $out, $err) = relay('--consumer', 'orders', '--to', 'kafka://broker', '--kafka', 'sasl.password=hush');
	is($status, 2, 'refused: --kafka sasl.password');
	like($err, qr/sasl\.password holds a secret, .*IDEMQ_RELAY_KAFKA.*kafka\.sasl\.password/, 'where it may stand');
	unlike($err, qr/hush/, 'it is not told');
	refused('no pair', qr/--kafka: a key, "=" and a value are wanted/, '--to', 'kafka://broker', '--kafka', 'acks');
}

# environment and file; what is last wrong tells which of them counts
my $file = put_file('relay.conf', <<'EOF', 0600);
# a remark
consumer = orders	# another
to = 'stdout'

batch = 'it''s'
EOF
refused('a file', qr/relay\.conf line 5: batch: "it's" is not a whole number/, '--settings', $file);
refused('the environment before the file', qr/^idemq-relay: IDEMQ_RELAY_BATCH: "env" is not/,
	{ env => { IDEMQ_RELAY_BATCH => 'env' } }, '--settings', $file);
refused('the command line before both', qr/^idemq-relay: --batch: "argument" is not/,
	{ env => { IDEMQ_RELAY_BATCH => 'env' } }, '--settings', $file, '--batch', 'argument');
refused('a file by the environment', qr/relay\.conf line 5/, { env => { IDEMQ_RELAY_SETTINGS => $file } });
refused('no file', qr/the settings file "\S+nowhere" cannot be read: No such file/, '--settings', work_file('nowhere'));
refused('a folder', qr/the settings file "\S+" cannot be read: Is a directory/, '--settings', tests_dir());
refused('a variable of nothing', qr/IDEMQ_RELAY_BACTH: there is no such setting; did you mean IDEMQ_RELAY_BATCH\?/,
	{ env => { IDEMQ_RELAY_BACTH => 1 } }, @fine);

foreach my $wrong (
	[ 'no sense', 'consumer', qr/line 1: "name = value" is wanted/ ],
	[ 'no end of quotes', "\nconsumer = 'orders", qr/line 2: "name = value" is wanted; a value may stand/ ],
	[ 'an unknown name', 'consummer = x', qr/line 1: there is no such setting; did you mean consumer\?/ ],
	[ 'underscores', 'in_flight = x', qr/line 1: in-flight: "x" is not a whole number/ ],
	[ 'a file in a file', 'settings = x', qr/line 1: a settings file cannot name another/ ],
	[ 'parts', 'batch.size = 1', qr/line 1: "batch" has no parts/ ],
	[ 'zero bytes', "consumer = \0x", qr/line 1: there is a zero byte/ ])
{
	my $path = put_file('wrong.conf', "$wrong->[1]\n", 0600);
	refused("a file with $wrong->[0]", $wrong->[2], @fine, '--settings', $path);
}

# a variable that is empty is not set, and services of Kubernetes are no settings
refused('what does no harm', qr/^idemq-relay: --batch/,
	{ env => { IDEMQ_RELAY_LEASE => '', IDEMQ_RELAY_SERVICE_HOST => '10.0.0.1', IDEMQ_RELAY_PORT_80_TCP => 'x' } },
	@fine, '--batch', 'x');

# secrets in a file that everybody can read
$file = put_file('open.conf', "dbname = 'password=hush'\nbatch = x\n", 0644);
refused('an open file', qr/everybody on this machine can read a secret in the settings file: chmod 600 it/,
	@fine, '--settings', $file);

# templates
SKIP:
{
	skip 'built without RabbitMQ', 9 unless relay_has('amqp');
	my @amqp = ('--consumer', 'orders', '--to', 'amqp://relay@broker/', '--exchange', 'orders', '--routing-key');
	refused('a field of nothing', qr/there is no field "colour"; fields are \{id\}/, @amqp, '{colour}');
	refused('no end of braces', qr/a \{ has no \}/, @amqp, 'a{type');
	refused('no beginning of braces', qr/a \} has no \{/, @amqp, 'a}');
}

relay_clean();
done_testing();
