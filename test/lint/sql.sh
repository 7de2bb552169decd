#!/bin/sh
# Each function of sql/parts is taken away from PUBLIC, has a comment and, if
# it is written in SQL or PL/pgSQL, a pinned search_path (or a BEGIN ATOMIC
# body, which is bound when it is made).  Tables and views have a comment.
. "$(dirname "$0")/lint.inc"

ls sql/parts/*.sql >/dev/null 2>&1 || exit 0

found=$(perl - sql/parts/*.sql <<'PERL'
use strict;
use warnings;

my (@made, %revoked, %commented, @relations, %rel_commented);

# splits at commas outside of parentheses and of braces (an array as a default)
sub split_list
{
	my ($list) = @_;
	my ($depth, $item, @items) = (0, '');
	for my $c (split //, $list)
	{
		$depth++ if $c =~ /[({]/;
		$depth-- if $c =~ /[)}]/;
		if ($c eq ',' && $depth == 0) { push @items, $item; $item = ''; next; }
		$item .= $c;
	}
	push @items, $item if $item =~ /\S/;
	return @items;
}

# name and number of arguments that a call gives
sub signature
{
	my ($name, $args) = @_;
	$name = lc $name;
	$name =~ s/^(?:\@extschema\@|public|pg_catalog)\.//;
	my @in = grep { !/^\s*(?:OUT|TABLE)\s/i } split_list($args);
	return "$name/" . scalar @in;
}

my $name_re = qr/[\w.\@"]+/;
my $paren_re;
$paren_re = qr/\((?:[^()]++|(??{$paren_re}))*\)/;

for my $file (@ARGV)
{
	open my $fh, '<', $file or die "$file: $!";
	my $text = do { local $/; <$fh> };

	# statements: quoted bodies and comments hide their semicolons
	my @statements;
	my ($start, $line, $now) = (1, 1, '');
	my $atomic = 0;
	while ($text =~ /\G(--[^\n]*|\/\*.*?\*\/|\$(\w*)\$.*?\$\g2\$|'(?:[^']|'')*'|;|\bBEGIN\s+ATOMIC\b|\bCASE\b|\bEND\b|\s+|\w+|.)/gcsi)
	{
		my $t = $1;
		if ($t =~ /^(?:--|\/\*)/) { $line += ($t =~ tr/\n//); next; }
		if ($t =~ /^BEGIN\s/i) { $atomic = 1 }
		elsif ($atomic && $t =~ /^CASE$/i) { $atomic++ }
		elsif ($atomic && $t =~ /^END$/i) { $atomic-- }
		if ($t eq ';' && !$atomic) { push @statements, [ $start, $now ]; $now = ''; next; }
		$start = $line if $now eq '' && $t =~ /\S/;
		$now .= $t if $now ne '' || $t =~ /\S/;
		$line += ($t =~ tr/\n//);
	}

	for my $s (@statements)
	{
		my ($at, $sql) = @$s;
		if ($sql =~ /^CREATE\s+(?:OR\s+REPLACE\s+)?(FUNCTION|PROCEDURE)\s+($name_re)\s*($paren_re)(.*)/si)
		{
			my ($kind, $name, $args, $rest) = ($1, $2, substr($3, 1, -1), $4);
			# the options, without the body
			(my $options = $rest) =~ s/\$(\w*)\$.*\$\g1\$/BODY/s;
			my ($language) = $options =~ /\bLANGUAGE\s+'?(\w+)/i;
			$language = $options =~ /\b(?:RETURN\b|BEGIN\s+ATOMIC)/i ? 'sql' : '?' unless $language;
			push @made, { where => "$file:$at", name => $name, sig => signature($name, $args),
				language => lc $language,
				pinned => scalar($options =~ /\bSET\s+search_path\s*(?:=|TO)\s*'?"?pg_catalog'?"?\s*,\s*'?"?pg_temp|\bBEGIN\s+ATOMIC\b|\bRETURN\b(?!S)/si) };
		}
		elsif ($sql =~ /^CREATE\s+(?:OR\s+REPLACE\s+)?(TABLE|VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?($name_re)/si)
		{
			push @relations, [ "$file:$at", lc $1, lc $2 ] unless $sql =~ /\bPARTITION\s+OF\b/i;
		}
		elsif ($sql =~ /^REVOKE\s+(?:ALL|EXECUTE)(?:\s+PRIVILEGES)?\s+ON\s+(?:FUNCTION|PROCEDURE|ROUTINE)\s+(.*?)\s+FROM\s+(.*)/si)
		{
			my ($list, $from) = ($1, $2);
			next unless $from =~ /\bPUBLIC\b/i;
			for (split_list($list))
			{
				$revoked{ signature($1, substr($2, 1, -1)) } = 1 if /($name_re)\s*($paren_re)/s;
			}
		}
		elsif ($sql =~ /^COMMENT\s+ON\s+(?:FUNCTION|PROCEDURE|ROUTINE)\s+($name_re)\s*($paren_re)\s+IS\s+'/si)
		{
			$commented{ signature($1, substr($2, 1, -1)) } = 1;
		}
		elsif ($sql =~ /^COMMENT\s+ON\s+(?:TABLE|VIEW)\s+($name_re)\s+IS\s+'/si)
		{
			$rel_commented{ lc $1 } = 1;
		}
	}
}

for my $f (@made)
{
	print "$f->{where}: $f->{name} is not revoked from PUBLIC\n" unless $revoked{ $f->{sig} };
	print "$f->{where}: $f->{name} has no comment\n" unless $commented{ $f->{sig} };
	print "$f->{where}: $f->{name} does not pin search_path = pg_catalog, pg_temp\n"
	  if $f->{language} =~ /^(?:sql|plpgsql)$/ && !$f->{pinned};
	print "$f->{where}: $f->{name}: which language?\n" if $f->{language} eq '?';
}
for my $r (@relations)
{
	print "$r->[0]: $r->[1] $r->[2] has no comment\n" unless $rel_commented{ $r->[2] };
}
PERL
) || found="$found
the script itself failed"
finish "$found" "REVOKE ... FROM PUBLIC, COMMENT ON, SET search_path = pg_catalog, pg_temp"
