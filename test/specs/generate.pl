#!/usr/bin/perl
#
# Writes the specs of pairs, pair_*.spec, into the folder that it is in:
#
#	perl test/specs/generate.pl
#
# One spec for each pair of verbs, both orders, three isolation levels, and
# every way in which the first transaction can end.  The output is committed;
# run this again after a change here, and look at the difference.

use strict;
use warnings;
use File::Basename;

my $folder = dirname(__FILE__);

my %level = (
	rc => 'READ COMMITTED',
	rr => 'REPEATABLE READ',
	ser => 'SERIALIZABLE');
my @levels = qw(rc rr ser);

my %call = (
	claim => "SELECT idem_claim('k') AS claim;",
	try => "SELECT idem_try_claim('k') AS try;",
	# a step cannot have a closing brace in it
	many => "SELECT idem_claim_many(ARRAY['k','m']) AS many;",
	forget => "SELECT idem_forget('k') AS forget;");

my %name = (
	claim => 'idem_claim',
	try => 'idem_try_claim',
	many => 'idem_claim_many',
	forget => 'idem_forget',
	expiry => 'expiry');

# How the first transaction ends: what decides, and what comes after b's answer.
my %ends = (
	commit => [ ['a_commit'], [] ],
	rollback => [ ['a_rollback'], [] ],
	to => [ ['a_to'], ['a_commit'] ],
	# a savepoint that is released decides nothing
	release => [ [ 'a_release', 'a_rollback' ], [] ]);

my $setup = <<'END';
setup { CREATE EXTENSION IF NOT EXISTS idemq; }
setup
{
	-- a round of the worker may be at it
	LOCK TABLE ONLY idemq.processed IN ACCESS EXCLUSIVE MODE;
	DO $$
	DECLARE
		leaf regclass;
	BEGIN
		-- attached, detached: all but what belongs to the extension
		FOR leaf IN SELECT oid FROM pg_class AS c
			WHERE relnamespace = 'idemq'::regnamespace AND relkind = 'r'
				AND relname ~ '^processed_' AND NOT EXISTS (SELECT FROM pg_depend
					WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
		LOOP
			EXECUTE format('DROP TABLE %s', leaf);
		END LOOP;
	END $$;
	TRUNCATE idemq.processed_permanent;
LEAVES}
END

sub leaves
{
	my $text = '';
	while (my ($name, $from, $to) = splice @_, 0, 3)
	{
		$text .= <<"END";
	CREATE TABLE idemq.processed_$name (LIKE idemq.processed);
	CREATE UNIQUE INDEX processed_${name}_digest ON idemq.processed_$name (idemq.digest(scope, key));
	ALTER TABLE idemq.processed ATTACH PARTITION idemq.processed_$name
		FOR VALUES FROM ('$from-01-01 00:00+00') TO ('$to-01-01 00:00+00');
END
	}
	return $text;
}

sub setup_with
{
	my $more = shift;
	my $text = $setup;
	my $leaves = leaves(@_) . $more;
	$text =~ s/LEAVES/$leaves/;
	return $text;
}

sub write_spec
{
	my ($name, $text) = @_;
	open my $out, '>', "$folder/$name.spec" or die "$folder/$name.spec: $!";
	print $out $text;
	close $out or die $!;
}

# What must be, for the header.
my %rule = (
	claim => 'is true if the key is free in the end, else false',
	try => 'does not wait: busy while a is open, then claimed if the key is free in the end, else duplicate',
	many => 'answers for k as idem_claim, and is not harmed for m, which is free unless a has claimed it',
	forget => 'is true if the key is taken in the end, else false');

sub order_permutations
{
	my ($first, $second) = @_;
	my $text = "\n# a: $name{$first}, b: $name{$second}\n";
	my @before = $first eq 'forget' ? ('c_hold') : ();

	for my $l (@levels)
	{
		my $a = "a_${first}_$l";
		my @again = $second eq 'try' ? ('b_try') : ();

		for my $end (qw(commit rollback to release))
		{
			my ($decides, $after) = @{ $ends{$end} };

			$text .= join(' ', 'permutation', @before, "b_$l", $a, "b_$second",
				@$decides, @again, @$after, 'b_commit', 'c_rows') . "\n";
		}
		for my $end (qw(a_commit_prepared a_rollback_prepared))
		{
			my @wait = $second eq 'try' ? ('b_try') : ('c_wait(*)', "b_$second(*)");
			$text .= join(' ', 'permutation', @before, "b_$l", $a, 'a_prepare', @wait,
				$end, @again, 'b_commit', 'c_rows') . "\n";
		}
		$text .= join(' ', 'permutation', @before, "b_$l", $a, 'a_commit', "b_$second",
			'b_commit', 'c_rows') . "\n";
	}
	return $text;
}

sub pair
{
	my ($one, $two) = @_;
	my @verbs = $one eq $two ? ($one) : ($one, $two);
	my $text = <<"END";
# Written by generate.pl: change it there.
#
# $name{$one} against $name{$two}, in @{[ $one eq $two ? 'one order' : 'both orders' ]}.
#
# a is first, and its transaction is undecided when b comes.  Who must win: a
# if it commits, b if a rolls back, rolls back to a savepoint (b then goes on
# while a is still open), or rolls back a prepared transaction.  The isolation
# level makes no difference: b has its snapshot before a begins, and in the
# last permutation of each level a has committed between b's snapshot and b's
# call.  The answer is about now, and never a serialization failure.
#
# The two write to different partitions (b's clock is 30 years ahead), so no
# index stands between them.
#
END
	for my $v (@verbs)
	{
		$text .= "# b's $name{$v} $rule{$v}.\n";
	}
	$text .= "# Where a forgets, c has claimed the key before.\n"
		if grep { $_ eq 'forget' } @verbs;
	$text .= "\n" . setup_with('', qw(a 2020 2050 b 2050 2200));

	$text .= "\nsession a\nsetup { LOAD 'idemq'; }\n";
	for my $v (@verbs)
	{
		$text .= "step a_${v}_$_ { BEGIN ISOLATION LEVEL $level{$_}; SAVEPOINT s; $call{$v} }\n"
			for @levels;
	}
	$text .= <<'END';
step a_commit { COMMIT; }
step a_rollback { ROLLBACK; }
step a_to { ROLLBACK TO s; }
step a_release { RELEASE s; }
step a_prepare { PREPARE TRANSACTION 'idemq_a'; }
step a_commit_prepared { COMMIT PREPARED 'idemq_a'; }
step a_rollback_prepared { ROLLBACK PREPARED 'idemq_a'; }

session b
setup { LOAD 'idemq'; SET idemq.test_clock_offset = 946080000; }
END
	$text .= "# DO takes the snapshot, quietly\n";
	$text .= "step b_$_ { BEGIN ISOLATION LEVEL $level{$_}; DO 'BEGIN END'; }\n" for @levels;
	$text .= "step b_$_ { $call{$_} }\n" for @verbs;
	$text .= "step b_commit { COMMIT; }\n\nsession c\n";
	$text .= "step c_hold { SELECT idem_claim('k') AS held; }\n"
		if grep { $_ eq 'forget' } @verbs;
	$text .= <<'END' if "@verbs" ne 'try';
# isolationtester does not see who waits for a prepared transaction.  This step
# is launched before b's and ends when b waits.
step c_wait
{
	DO $$
	BEGIN
		FOR i IN 1..6000 LOOP
			EXIT WHEN EXISTS (SELECT FROM pg_locks AS l, pg_stat_activity AS s
				WHERE l.pid = s.pid AND s.datname = current_database()
					AND l.locktype = 'transactionid' AND NOT l.granted);
			PERFORM pg_stat_clear_snapshot();
			PERFORM pg_sleep(0.01);	-- sleep: polls for b's wait, with a deadline
		END LOOP;
	END $$;
}
END
	$text .= "step c_rows { SELECT key, count(*) FROM idemq.processed GROUP BY key ORDER BY key; }\n";
	$text .= order_permutations($one, $two);
	$text .= order_permutations($two, $one) if $one ne $two;
	write_spec("pair_${one}_$two", $text);
}

# A verb against expiry.
sub pair_expiry
{
	my ($v) = @_;
	my $forgets = $v eq 'forget';
	my $text = <<"END";
# Written by generate.pl: change it there.
#
# $name{$v} against expiry.
#
# The key k is in a partition that is past the retention of m, which maintains.
# Who must win:
#  - m is stopped when it has found the partition expired and holds no lock:
END
	$text .= $forgets ? <<'END' : <<'END';
#    the forget gives k back, and its lock keeps the partition until the round
#    that comes after its end, whatever that end is; m does not wait for it.
END
#    k is still refused, nobody waits, and m drops the partition although the
#    transaction that was refused is still open.
END
	$text .= <<'END';
#  - m is stopped when it has the locks for the drop: m wins, and who comes
END
	$text .= $v eq 'try' ? <<'END' : <<'END';
#    is told busy, then (it is gone) claimed.
END
#    waits for the end of the drop, then finds k free.
END
	$text .= <<'END';
#  - m comes while the transaction is open: it does not wait.
#  - a reader of the whole table is open: m leaves the partition alone.
#  - somebody holds a lock on the parent alone: m queues there, no longer than
#    idemq.drop_lock_timeout, and gives up; meanwhile the call goes on.

END
	# in the same block, or a round of the worker drops the empty partition
	$text .= setup_with(<<'END', qw(old 2001 2002 a 2020 2050));
	INSERT INTO idemq.processed (scope, key, claimed_at, leaf)
	VALUES ('', 'k', now() - interval '1 hour', '2001-01-01 00:00+00');
END
	$text .= <<'END';
# a round of the worker may be at it when we want ours
setup
{
	CREATE OR REPLACE PROCEDURE maintain() LANGUAGE plpgsql AS $$
	BEGIN
		WHILE EXISTS (SELECT FROM pg_locks AS l, pg_database AS d
			WHERE l.database = d.oid AND d.datname = current_database()
				AND l.locktype = 'advisory' AND l.objsubid = 7425)
		LOOP
			PERFORM pg_sleep(0.01);	-- sleep: polls for the end of the worker's round
		END LOOP;
		CALL idem_maintain();
	END $$;
}

session a
setup { LOAD 'idemq'; }
END
	$text .= "# DO takes the snapshot, quietly\n";
	$text .= "step a_$_ { BEGIN ISOLATION LEVEL $level{$_}; DO 'BEGIN END'; }\n" for @levels;
	$text .= <<"END";
step a_$v { $call{$v} }
step a_commit { COMMIT; }
@{[ $forgets ? 'step a_rollback { ROLLBACK; }' : '' ]}
session m
setup { LOAD 'idemq'; SET idemq.retention = '1min'; RESET idemq.test_point; }
step m_scanned { SET idemq.test_point = 'maintain-scanned'; }
step m_locked { SET idemq.test_point = 'maintain-locked'; }
step m_round { CALL maintain(); }
step m_patient { SET idemq.drop_lock_timeout = '500ms'; }
step m_hasty { RESET idemq.drop_lock_timeout; }

session r
step r_read { BEGIN; SELECT key FROM idemq.processed ORDER BY key; }
step r_parent { BEGIN; LOCK TABLE ONLY idemq.processed IN ACCESS SHARE MODE; }
step r_commit { COMMIT; }

session c
step c_stop { DO 'BEGIN PERFORM pg_advisory_lock(7001); END'; }
step c_go { DO 'BEGIN PERFORM pg_advisory_unlock(7001); END'; }
step c_leaves { SELECT count(*) AS expired FROM pg_inherits WHERE inhrelid = to_regclass('idemq.processed_old'); }
step c_rows { SELECT key, count(*) FROM idemq.processed GROUP BY key ORDER BY key; }

END
	for my $l (@levels)
	{
		my $p = sub { $text .= join(' ', 'permutation', @_) . "\n" };
		if ($forgets)
		{
			for my $end (qw(a_commit a_rollback))
			{
				$p->("a_$l", qw(c_stop m_scanned m_round a_forget c_go c_leaves),
					$end, qw(m_round c_leaves c_rows));
				$p->("a_$l", qw(a_forget m_round c_leaves), $end, qw(m_round c_leaves c_rows));
			}
		}
		else
		{
			$p->("a_$l", qw(c_stop m_scanned m_round), "a_$v", qw(c_go c_leaves a_commit c_rows));
			$p->("a_$l", "a_$v", qw(m_round c_leaves), "a_$v", qw(a_commit c_rows));
		}
		$p->("a_$l", qw(c_stop m_locked m_round), "a_$v", 'c_go',
			($v eq 'try' ? ('a_try') : ()), qw(c_leaves a_commit c_rows));
		$p->("a_$l", qw(r_read m_round c_leaves), "a_$v", qw(a_commit r_commit c_rows));
		$p->("a_$l", qw(m_patient r_parent m_round), "a_$v", qw(m_hasty c_leaves a_commit r_commit c_rows));
	}
	write_spec("pair_${v}_expiry", $text);
}

my @verbs = qw(claim try many forget);
for my $i (0 .. $#verbs)
{
	pair($verbs[$i], $verbs[$_]) for $i .. $#verbs;
	pair_expiry($verbs[$i]);
}

# Two claims of one key, one of them stopped at a point.
sub points
{
	my $text = <<'END';
# Written by generate.pl: change it there.
#
# Two claims of one key: a is stopped at each point inside its claim, b comes.
# Never two true, whichever way the first ends.  Who must win:
#  - claim-looked: a has nothing, so b does not wait and is first.
#  - claim-locked, claim-probed, claim-leaf-open, claim-inserted: a has the key
#    lock.  b waits for it, then for a's transaction.  (This is what goes wrong
#    without the key lock: b would not find a's row, which is not there yet, or
#    not in the index.)
#  - claim-done, claim-released: b finds a's row, and waits for its transaction.
#
# b writes to another partition than a (its clock is 30 years ahead), d to the
# same.

END
	$text .= setup_with('', qw(a 2020 2050 b 2050 2200));
	$text .= "\nsession a\nsetup { LOAD 'idemq'; RESET idemq.test_point; }\n";
	my @points = qw(looked locked probed leaf-open inserted done released);
	for my $p (@points)
	{
		(my $step = "a_at_$p") =~ tr/-/_/;
		$text .= "step $step { SET idemq.test_point = 'claim-$p'; }\n";
	}
	$text .= "# DO takes the snapshot, quietly\n";
	$text .= "step a_$_ { BEGIN ISOLATION LEVEL $level{$_}; DO 'BEGIN END'; }\n" for @levels;
	$text .= <<'END';
step a_claim { SELECT idem_claim('k') AS a; }
step a_commit { COMMIT; }
step a_rollback { ROLLBACK; }

END
	for my $s (qw(b d))
	{
		$text .= "session $s\nsetup { LOAD 'idemq';" .
			($s eq 'b' ? ' SET idemq.test_clock_offset = 946080000;' : '') . " }\n";
		$text .= "step ${s}_$_ { BEGIN ISOLATION LEVEL $level{$_}; DO 'BEGIN END'; }\n"
			for @levels;
		$text .= <<"END";
step ${s}_try { SELECT idem_try_claim('k') AS $s; }
step ${s}_claim { SELECT idem_claim('k') AS $s; }
step ${s}_commit { COMMIT; }
step ${s}_rollback { ROLLBACK; }

END
	}
	$text .= <<'END';
session c
step c_stop { DO 'BEGIN PERFORM pg_advisory_lock(7001); END'; }
step c_go { DO 'BEGIN PERFORM pg_advisory_unlock(7001); END'; }
step c_rows { SELECT key, count(*) FROM idemq.processed GROUP BY key ORDER BY key; }

END
	for my $p (@points)
	{
		(my $at = "a_at_$p") =~ tr/-/_/;
		for my $l (@levels)
		{
			for my $end (qw(commit rollback))
			{
				for my $s (qw(b d))
				{
					my @p = ('c_stop', $at, "a_$l", 'a_claim', "${s}_$l");
					if ($p eq 'looked')
					{
						push @p, "${s}_claim", 'c_go', "${s}_$end", 'a_commit';
					}
					else
					{
						push @p, "${s}_try", "${s}_claim", 'c_go', "a_$end", "${s}_commit";
					}
					$text .= join(' ', 'permutation', @p, 'c_rows') . "\n";
				}
			}
		}
	}
	write_spec('race_points', $text);
}
points();
