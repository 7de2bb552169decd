# doc/examples/worker.mjs, with amqplib and pg from npm.

use strict;
use warnings;

use File::Basename qw(dirname);
use File::Copy;
use lib dirname(__FILE__);
use Examples;
use Rabbit;
use RelayTest;
use Test::More;

skip_without(Rabbit->needs, 'node', 'npm');

my $dir = work_file('node');
mkdir $dir or die "$dir: $!";
my $npm = program_start('npm', { env => { npm_config_cache => "$dir/cache", npm_config_update_notifier => 'false' } },
	'npm', 'install', '--prefix', $dir, '--no-audit', '--no-fund', '--loglevel', 'error', 'amqplib', 'pg');
if ((my $status = program_wait($npm, 120)) ne '0')
{
	program_kill($npm);
	note(program_errors($npm));
	plan skip_all => "npm cannot install amqplib and pg ($status)";
}
copy(examples_dir() . '/worker.mjs', "$dir/worker.mjs") or die "$dir/worker.mjs: $!";
examples_check(Rabbit->new, 'node', "$dir/worker.mjs");
done_testing();
