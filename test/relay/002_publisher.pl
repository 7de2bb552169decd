# src/relay/publisher.c between a main thread and a destination that both do as they
# please (publisher_test.c), under the thread sanitizer where there is one.  Needs no server.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Test::More;

use RelayTest;

my $relay = tests_dir() . '/../../src/relay';
my @sources = map { "$relay/$_.c" } qw(publisher clock log text metrics);
my @flags = ('-std=gnu11', '-D_GNU_SOURCE', '-DIDEMQ_VERSION="test"', "-I$relay", @sources, '-pthread');
my $seed = random_seed();
my $rounds = $ENV{RELAY_ROUNDS} || 2000;

# a sanitizer that does not run on this machine is none
my $probe = put_file('probe.c', "int main(void) { return 0; }\n");
my $sanitizer = system("cc -fsanitize=thread -o $probe.bin $probe 2>/dev/null && $probe.bin 2>/dev/null") == 0;
my $program = compile_program('publisher_test.c', ($sanitizer ? '-fsanitize=thread' : ()), @flags);

diag('without a thread sanitizer') unless $sanitizer;
foreach my $try ($seed, $seed + 1)
{
	foreach my $mode (qw(single pipelined))
	{
		my $run = program_start($mode, $program, $try, $rounds, $mode);

		is(program_wait($run, 120), 0, "$mode, seed $try: each comes back once, and in order") or diag(program_errors($run));
		is(program_errors($run), '', 'and the sanitizer has nothing to say');
		note(program_output($run));
	}
}
done_testing();
