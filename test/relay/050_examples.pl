# The example that doc/examples/worker.py is, with shop.py before it.

use strict;
use warnings;

use File::Basename qw(dirname);
use lib dirname(__FILE__);
use Examples;
use Rabbit;
use RelayTest;
use Test::More;

skip_without(Rabbit->needs);
examples_check(Rabbit->new, $RelayTest::PYTHON, examples_dir() . '/worker.py');
done_testing();
