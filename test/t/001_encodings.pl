# Keys in every server encoding: they are told apart byte by byte, nothing that
# the encoding allows raises an error, and what has a UTF-8 form has the digest
# and the fingerprint that it has in a UTF8 database.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# encodings that have no conversion to UTF-8
my %raw = map { $_ => 1 } qw(SQL_ASCII MULE_INTERNAL);

# Known answers, from Python's hashlib, with the first bit cleared: the bytes of
# a key, and its digest in the scope ''.  The second form of src/digest.c has the
# encoding's name in it.
my @known = (
	[ 'UTF8', '636166c3a9', '7e1e3e46-1eb3-a69e-38ea-196742ff1ec5' ],
	[ 'LATIN1', '636166e9', '7e1e3e46-1eb3-a69e-38ea-196742ff1ec5' ],
	[ 'WIN1252', '636166e9', '7e1e3e46-1eb3-a69e-38ea-196742ff1ec5' ],
	[ 'SQL_ASCII', '636166c3a9', '710dad37-7915-47e6-c24f-d98ba27382f0' ],
	[ 'MULE_INTERNAL', '63616681e9', '377d79f0-ed17-e0ca-d850-d004a83b79ea' ],
	[ 'UTF8', 'e288aa', '35a4e498-cd07-851b-0c4a-6585c1a32d9b' ],
	[ 'EUC_JP', 'a2c0', '35a4e498-cd07-851b-0c4a-6585c1a32d9b' ],
	[ 'EUC_JP', 'adfc', '693d0502-ef9d-f4e6-01c6-3023bae65113' ],
	[ 'EUC_TW', '8ea1a1a1', '058f015c-4299-7287-cf86-8e17bdce21d7' ]);

# Different keys that the server converts to the same UTF-8 text
my @twins = (
	[ 'EUC_JP', 'a2c0', 'adfc' ],
	[ 'EUC_TW', 'a1a1', '8ea1a1a1' ],
	[ 'EUC_JIS_2004', 'abe5', 'abe4abe0' ]);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--encoding=UTF8', '--locale=C' ]);
$node->append_conf('postgresql.conf', "client_min_messages = warning\n");
$node->start;

# Makes a database with the extension and, in the table keys, all texts that
# the encoding allows out of many sequences of bytes above 127.
sub create_db
{
	my ($encoding) = @_;
	my $db = lc "enc_$encoding";

	my ($ret, undef, $stderr) = $node->psql('postgres',
		qq(CREATE DATABASE "$db" TEMPLATE template0 ENCODING '$encoding' LOCALE 'C'));

	# an encoding that only clients may have
	return undef
	  if $ret != 0 && $stderr =~ /not a valid (server )?encoding|invalid server encoding/;
	is($ret, 0, "$encoding: database is there") or diag $stderr;

	$node->safe_psql($db, q{
CREATE EXTENSION idemq;

CREATE FUNCTION text_of(b bytea) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN convert_from(b, getdatabaseencoding());
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
	RETURN NULL;
END $$;

-- the UTF-8 form, or NULL if there is none that leads back
CREATE FUNCTION utf8_of(k text) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
	utf8 bytea;
BEGIN
	utf8 := convert_to(k, 'UTF8');
	IF getdatabaseencoding() IN ('SQL_ASCII', 'MULE_INTERNAL')
		OR convert(utf8, 'UTF8', getdatabaseencoding()) <> convert_to(k, getdatabaseencoding())
	THEN
		RETURN NULL;
	END IF;
	RETURN utf8;
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character
		OR undefined_function THEN
	RETURN NULL;
END $$;

CREATE TABLE keys AS
WITH encoding AS (
	SELECT pg_encoding_max_length(encoding) > 1 OR pg_encoding_to_char(encoding) = 'SQL_ASCII' AS long
	FROM pg_database WHERE datname = current_database()
), sequences(b) AS (
	SELECT decode(to_hex(x), 'hex') FROM generate_series(128, 255) x
	UNION ALL
	SELECT decode(to_hex(x) || to_hex(y), 'hex')
	FROM encoding, generate_series(129, 254) x, generate_series(128, 255) y
	WHERE long
	UNION ALL
	SELECT decode(p || to_hex(x) || to_hex(y), 'hex')
	FROM encoding, unnest('{8e,8f,92,e3,8ea1,8ea2,f09f}'::text[]) p,
		generate_series(161, 254) x, generate_series(161, 254) y
	WHERE long AND (94 * x + y) % 7 = 0
)
SELECT k, utf8_of(k) AS utf8
FROM (SELECT text_of(b) FROM sequences) v(k) WHERE k IS NOT NULL;
});
	return $db;
}

# the digest of UTF8 databases is what the others are held against
my $utf8_db = create_db('UTF8');

my @encodings = split /\n/, $node->safe_psql('postgres', q{
SELECT DISTINCT pg_encoding_to_char(i) COLLATE "C" FROM generate_series(0, 99) i
WHERE pg_encoding_to_char(i) <> '' ORDER BY 1});
my $tested = 0;

foreach my $encoding (@encodings)
{
	my $db = $encoding eq 'UTF8' ? $utf8_db : create_db($encoding);
	next unless defined $db;
	$tested++;

	my ($count, $texts, $converted) = split /\|/,
	  $node->safe_psql($db, q{SELECT count(*), count(DISTINCT k COLLATE "C"), count(utf8) FROM keys});
	cmp_ok($count, '>=', 80, "$encoding: there are keys");
	is($count, $texts, "$encoding: they are different");
	cmp_ok($converted, ($raw{$encoding} ? '==' : '>='),
		($raw{$encoding} ? 0 : 80), "$encoding: some have a UTF-8 form");

	# told apart
	is( $node->safe_psql($db, q{
SELECT count(DISTINCT idemq.digest('', k)), count(DISTINCT idemq.digest(k, '')),
	   count(DISTINCT idemq.digest(k, k)), count(DISTINCT idemq.digest('', k || 'x')),
	   count(DISTINCT idem_fingerprint(to_jsonb(k))),
	   count(DISTINCT idem_fingerprint(jsonb_build_object(k, 1))),
	   count(DISTINCT idem_fingerprint(jsonb_build_object(k, 1), k)),
	   count(DISTINCT idem_key(k, 'x') COLLATE "C")
FROM keys}),
		join('|', ($count) x 8),
		"$encoding: keys and fingerprints are told apart");

	# a path of such characters finds its member
	is( $node->safe_psql($db, q{
SELECT count(*) FROM keys
WHERE idem_fingerprint(jsonb_build_object(k, 1), k) = idem_fingerprint('{}', k)}),
		'0', "$encoding: paths lead to members");

	# the same as in UTF8
	is( $node->safe_psql($db, q{SELECT idemq.digest('billing', 'payment-42')}),
		'4ef5f8b7-53f9-b2d3-c45c-36991c1ed64d',
		"$encoding: digest of ASCII is that of UTF8");

	my $rows = $node->safe_psql($db, q{
SELECT encode(utf8, 'hex'), idemq.digest('scope', k), idemq.digest(k, k || 'x'),
	   idem_fingerprint(to_jsonb(k))
FROM keys WHERE utf8 IS NOT NULL});
	$rows =~ s/\|/\t/g;
	$rows .= "\n" if $rows ne '';
	is( $node->safe_psql($utf8_db, q{
CREATE TEMP TABLE remote (utf8 text, in_scope uuid, as_scope uuid, fingerprint text);
COPY remote FROM stdin;
} . $rows . q{\.
SELECT count(*), count(*) FILTER (WHERE in_scope = idemq.digest('scope', k)),
	   count(*) FILTER (WHERE as_scope = idemq.digest(k, k || 'x')),
	   count(*) FILTER (WHERE fingerprint = idem_fingerprint(to_jsonb(k)))
FROM (SELECT *, convert_from(decode(utf8, 'hex'), 'UTF8') AS k FROM remote) r}),
		join('|', ($converted) x 4),
		"$encoding: digests and fingerprints are those of UTF8");

	# what has no UTF-8 form has no digest that a UTF8 key has
	is( $node->safe_psql($db, q{
SELECT count(*)
FROM keys a JOIN keys b ON idemq.digest('', a.k) = idemq.digest('', b.k)
WHERE a.utf8 IS NULL AND b.utf8 IS NOT NULL}),
		'0', "$encoding: keys without UTF-8 form stay apart");

	# members are sorted by their UTF-8 form, which may be of another length
	my ($fingerprint, $with_path, $object) = split /\|/, $node->safe_psql($db, q{
WITH object(o, path) AS (
	SELECT jsonb_object_agg(k || suffix, jsonb_build_array(k, 1.50)) || '{"ab": 1, "abc": {"z": null}}',
		   min(k COLLATE "C") || 'x.0'
	FROM (SELECT * FROM keys WHERE utf8 IS NOT NULL ORDER BY utf8 LIMIT 200) f,
		 unnest('{"",x,xyz}'::text[]) AS suffix
)
SELECT idem_fingerprint(o), idem_fingerprint(o, path, 'abc'),
	   encode(convert_to(json_build_array(o, path)::text, 'UTF8'), 'hex')
FROM object WHERE o IS NOT NULL}) if !$raw{$encoding};
	is( $node->safe_psql($utf8_db, qq{
SELECT idem_fingerprint(j->0) = '$fingerprint', idem_fingerprint(j->0, j->>1, 'abc') = '$with_path'
FROM (SELECT convert_from('\\x$object', 'UTF8')::jsonb) v(j)}),
		't|t', "$encoding: fingerprint of an object is that of UTF8")
	  if !$raw{$encoding};

	foreach my $case (grep { $_->[0] eq $encoding } @known)
	{
		is( $node->safe_psql($db,
				"SELECT idemq.digest('', convert_from('\\x$case->[1]', '$encoding'))"),
			$case->[2], "$encoding: digest of $case->[1] is as ever");
	}
	foreach my $case (grep { $_->[0] eq $encoding } @twins)
	{
		is( $node->safe_psql($db, qq{
SELECT convert_to(a, 'UTF8') = convert_to(b, 'UTF8'),
	   idemq.digest('', a) = idemq.digest('', b),
	   idem_fingerprint(to_jsonb(a)) = idem_fingerprint(to_jsonb(b))
FROM (SELECT convert_from('\\x$case->[1]', '$encoding'), convert_from('\\x$case->[2]', '$encoding')) v(a, b)}),
			't|f|f', "$encoding: $case->[1] and $case->[2] are told apart");
	}

	# claims: each key once, as key and as scope
	is( $node->safe_psql($db, q{SELECT count(*) FROM keys WHERE idem_claim(k)}),
		$count, "$encoding: every key can be claimed");
	is( $node->safe_psql($db, q{SELECT count(*) FROM keys WHERE idem_claim(k)}),
		'0', "$encoding: and only once");
	is( $node->safe_psql($db, q{SELECT count(*) FROM keys WHERE idem_claim('key', k)}),
		$count, "$encoding: every text is a scope of its own");
	is( $node->safe_psql($db, q{SELECT count(*) FROM keys WHERE idem_try_claim(k) = 'duplicate' AND idem_seen(k) IS NOT NULL}),
		$count, "$encoding: every key is known");
	is( $node->safe_psql($db, q{
WITH many AS (SELECT unnest(idem_claim_many(array_agg(k))) AS ok FROM (SELECT k FROM keys LIMIT 1000) v)
SELECT count(*) FILTER (WHERE ok) FROM many}),
		'0', "$encoding: nor in a batch");
	is( $node->safe_psql($db, q{SELECT count(*) FROM keys JOIN idemq.processed p ON p.key = keys.k COLLATE "C" AND p.scope = ''}),
		$count, "$encoding: keys are kept as they are");
	is( $node->safe_psql($db, q{SELECT idem_forget(min(k COLLATE "C")), idem_forget(min(k COLLATE "C")) FROM keys}),
		't|f', "$encoding: a key can be given back");

	$node->safe_psql('postgres', qq(DROP DATABASE "$db")) unless $encoding eq 'UTF8';
}

# 35 in PostgreSQL 15 to 18; later ones may have fewer
cmp_ok($tested, '>=', 30, 'most encodings were tested');

$node->stop;
done_testing();
