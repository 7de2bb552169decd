--
-- idemq.digest: what stands for a scope and a key
--
-- Expected values come from another implementation, Python's hashlib:
--	 h = bytearray(blake2b(len(scope).to_bytes(2, 'big') + scope + key,
--						   digest_size=16, person=b'idemq digest 1').digest())
-- then, if the key begins with its time (a UUID of version 7, a ULID),
--	 h[:4] = (ms & 0x7fffffff | 0x80000000).to_bytes(4, 'big')
-- or else
--	 h[0] &= 0x7f
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemq;
RESET client_min_messages;

-- known answers
SELECT scope, key, idemq.digest(scope, key)
FROM (VALUES ('', ''), ('', 'abc'), ('abc', ''), ('billing', 'payment-42'),
			 ('', '550e8400-e29b-41d4-a716-446655440000')) AS v(scope, key);

-- and of all lengths around the size of a block, 128 bytes
SELECT md5(string_agg(idemq.digest('s', repeat('k', n))::text, ',' ORDER BY n)),
	   count(DISTINCT idemq.digest('s', repeat('k', n)))
FROM generate_series(0, 600) AS n;
SELECT md5(string_agg(idemq.digest(repeat('s', n), 'k')::text, ',' ORDER BY n)),
	   count(DISTINCT idemq.digest(repeat('s', n), 'k'))
FROM generate_series(0, 600) AS n;

-- of scopes around the end of two bytes of length
SELECT n, idemq.digest(repeat('s', n), 'key')
FROM (VALUES (255), (256), (65534), (65535), (65536)) AS v(n);

-- any length, also compressed and out of line
CREATE TEMP TABLE long_text (scope text, key text);
INSERT INTO long_text VALUES (repeat('s', 100000), repeat('k', 3000000));
SELECT idemq.digest(scope, key) FROM long_text;
SELECT idemq.digest(key, scope) FROM long_text;
SELECT idemq.digest(scope, key) = idemq.digest(repeat('s', 100000), repeat('k', 3000000)) FROM long_text;
DROP TABLE long_text;

-- a key that begins with its time has a digest that begins with it
SELECT key, idemq.digest('', key), idemq.digest('billing', key)
FROM (VALUES ('0190163d-8694-739b-aea5-966c26f8ad91'),
			 ('0190163D-8694-739B-AEA5-966C26F8AD91'),
			 ('0190163d-8694-7000-8000-000000000000'),
			 ('ffffffff-ffff-7fff-bfff-ffffffffffff'),
			 ('00000000-0000-7000-9000-000000000000'),
			 ('01ARZ3NDEKTSV4RRFFQ69G5FAV'),
			 ('01arz3ndektsv4rrffq69g5fav'),
			 ('00000000000000000000000000'),
			 ('7ZZZZZZZZZZZZZZZZZZZZZZZZZ')) AS v(key);

-- to the letter: all others are hash, and their first bit is 0
SELECT key, idemq.digest('', key)
FROM (VALUES ('0190163d-8694-439b-aea5-966c26f8ad91'),		-- version 4
			 ('0190163d-8694-639b-aea5-966c26f8ad91'),		-- version 6
			 ('0190163d-8694-839b-aea5-966c26f8ad91'),		-- version 8
			 ('0190163d-8694-739b-7ea5-966c26f8ad91'),		-- variants
			 ('0190163d-8694-739b-cea5-966c26f8ad91'),
			 ('0190163d-8694-739b-aea5-966c26f8ad9'),		-- short, long
			 ('0190163d-8694-739b-aea5-966c26f8ad911'),
			 ('0190163d-8694-739b-aea5-966c26f8ad91 '),
			 ('0190163d8694739baea5966c26f8ad91'),			-- no hyphens
			 ('0190163d_8694-739b-aea5-966c26f8ad91'),		-- one of them another
			 ('0190163d-8694_739b-aea5-966c26f8ad91'),
			 ('0190163d-8694-739b_aea5-966c26f8ad91'),
			 ('0190163d-8694-739b-aea5_966c26f8ad91'),
			 ('0190163-d8694-739b-aea5-966c26f8ad91'),		-- or out of place
			 ('g190163d-8694-739b-aea5-966c26f8ad91'),		-- no hex digit
			 ('0190163d-869g-739b-aea5-966c26f8ad91'),
			 ('0190163d-8694-739g-aea5-966c26f8ad91'),
			 ('0190163d-8694-739b-aeag-966c26f8ad91'),
			 ('0190163d-8694-739b-aea5-966c26f8ad9g'),
			 ('{0190163d-8694-739b-aea5-966c26f8ad91}'),
			 ('id:0190163d-8694-739b-aea5-966c26f8ad91'),
			 ('01ARZ3NDEKTSV4RRFFQ69G5FA'),					-- 25, 27 characters
			 ('01ARZ3NDEKTSV4RRFFQ69G5FAV0'),
			 ('81ARZ3NDEKTSV4RRFFQ69G5FAV'),				-- beyond 48 bits
			 ('ZZZZZZZZZZZZZZZZZZZZZZZZZZ'),
			 ('I1ARZ3NDEKTSV4RRFFQ69G5FAV'),				-- no digits of it
			 ('01ARZ3NDEKTSV4RRFFQ69G5FAL'),
			 ('01ARZ3NDEKTSV4RRFFQ69G5FAo'),
			 ('01ARZ3NDEKTSV4RRFFQ69G5FAu'),
			 ('01ARZ3NDEKTSV4RRFF-69G5FAV')) AS v(key);

-- any character of 26 that is not a digit takes the time away, and no other does
SELECT string_agg(c, '' ORDER BY c COLLATE "C") FILTER (WHERE timed) AS digits,
	   count(*) FILTER (WHERE NOT timed) AS others
FROM (SELECT chr(n) AS c,
			 get_bit(uuid_send(idemq.digest('', overlay('01ARZ3NDEKTSV4RRFFQ69G5FAV' PLACING chr(n) FROM 20))), 7) = 1 AS timed
	  FROM generate_series(1, 300) AS n) AS t;
SELECT string_agg(c, '' ORDER BY c COLLATE "C") FILTER (WHERE timed) AS digits,
	   count(*) FILTER (WHERE NOT timed) AS others
FROM (SELECT chr(n) AS c,
			 get_bit(uuid_send(idemq.digest('', overlay('0190163d-8694-739b-aea5-966c26f8ad91' PLACING chr(n) FROM 30))), 7) = 1 AS timed
	  FROM generate_series(1, 300) AS n) AS t;

-- keys that begin with their times, in the order of these: so are the first 32
-- bits of the digests, and the 96 others tell all keys and scopes apart
CREATE TEMP TABLE timed AS
SELECT n, scope, ms,
	   overlay(overlay(lpad(to_hex(ms), 12, '0') || substr(md5('v7-' || n), 13)
					   PLACING '7' FROM 13) PLACING '8' FROM 17)::uuid::text AS key
FROM generate_series(0, 9999) AS n, (VALUES (''), ('billing')) AS s(scope),
	 LATERAL (SELECT 815 * 2147483648 + n / 3 * 643371) AS t(ms);
SELECT count(*),
	   count(*) FILTER (WHERE first = 2147483648 + ms % 2147483648) AS begin_with_time,
	   count(*) FILTER (WHERE first < before) AS out_of_order,
	   count(DISTINCT rest) AS differ
FROM (SELECT ms, first, rest, lag(first) OVER (ORDER BY n, scope) AS before
	  FROM (SELECT n, scope, ms, ('x0' || left(hex, 8))::bit(36)::bigint AS first, substr(hex, 9) AS rest
			FROM timed, replace(idemq.digest(scope, key)::text, '-', '') AS hex) AS t) AS t;
SELECT ulid.ms, left(idemq.digest('', ulid.key)::text, 8) = left(idemq.digest('', uuid.key)::text, 8) AS as_uuid
FROM (VALUES (1717171717268, '01HZ7PJ14M0000000000000000'), (0, '0000000000ZZZZZZZZZZZZZZZZ'),
			 (281474976710655, '7ZZZZZZZZZ0000000000000000')) AS ulid(ms, key),
	 LATERAL (SELECT (lpad(to_hex(ms), 12, '0') || '7abc8def012345678901')::uuid::text) AS uuid(key);
DROP TABLE timed;

-- keys of one character's difference, at every place, have different digests
SELECT count(*), count(DISTINCT idemq.digest('', k)) AS digests, count(DISTINCT k) AS keys
FROM (VALUES ('0190163d-8694-739b-aea5-966c26f8ad91'), ('01ARZ3NDEKTSV4RRFFQ69G5FAV'), ('payment-42')) AS v(t),
	 LATERAL generate_series(1, length(t)) AS place, generate_series(32, 126) AS code,
	 LATERAL (SELECT overlay(t PLACING chr(code) FROM place)) AS k(k)
WHERE k <> t;

-- claims, rows that come by SQL and the index agree about such keys
BEGIN;
CREATE TEMP TABLE agreed (n int, key text);
INSERT INTO agreed
SELECT n, overlay(overlay(lpad(to_hex(1764547200000 + n / 3), 12, '0') || substr(md5('v7-' || n), 13)
						  PLACING '7' FROM 13) PLACING '8' FROM 17)::uuid::text
FROM generate_series(1, 1000) AS n
UNION ALL SELECT 1000 + n, '01ARZ3NDEKTSV4RRFFQ69G5' || lpad(n::text, 3, '0') FROM generate_series(1, 200) AS n
UNION ALL SELECT 1200 + n, md5(n::text) FROM generate_series(1, 200) AS n;
INSERT INTO idemq.processed SELECT '', key, now(), '-infinity' FROM agreed WHERE n % 3 = 0;
SELECT count(*), count(*) FILTER (WHERE idem_claim(key)) AS first FROM agreed;
SELECT count(*) FILTER (WHERE idem_claim(key)) AS again, count(idem_seen(key)) AS seen FROM agreed;
SELECT count(*) FILTER (WHERE claimed) AS in_scope
FROM unnest((SELECT idem_claim_many(array_agg(key ORDER BY md5(key)), 'other') FROM agreed)) AS claimed;
SET LOCAL enable_seqscan = off;
SELECT count(*), count(DISTINCT digest) FROM agreed,
	LATERAL (SELECT idemq.digest(scope, p.key) FROM idemq.processed AS p
			 WHERE idemq.digest(scope, p.key) = idemq.digest('other', agreed.key)) AS found(digest);
SELECT count(*) FILTER (WHERE idem_forget(key)) AS forgotten FROM agreed;
SELECT count(*) FILTER (WHERE idem_claim(key)) AS anew FROM agreed;
ROLLBACK;

-- the border between scope and key counts
SELECT count(DISTINCT idemq.digest(left(t, n), substr(t, n + 1))) = count(*) AS all_differ
FROM (VALUES ('abcdefgh')) AS v(t), generate_series(0, 8) AS n;
SELECT idemq.digest('', 'a') <> idemq.digest('a', '') AS differ;
SELECT idemq.digest('0190163d-8694-739b-aea5-966c26f8ad91', '') < '80000000-0000-0000-0000-000000000000' AS no_time;

-- bytes are told apart, not what they look like: case, spaces, composed and
-- decomposed, look-alikes
SELECT count(DISTINCT idemq.digest('', k)) = count(*) AS all_differ
FROM (VALUES ('key'), ('Key'), ('KEY'), ('key '), (' key'), ('key  '),
			 (E'key\t'), (E'key\n'), (E'key\r\n'), (E'\\key'), (''), (' '),
			 (convert_from('\x6b65c3a9', 'UTF8')),		-- e with acute
			 (convert_from('\x6b6565cc81', 'UTF8')),	-- e, combining acute
			 (convert_from('\x6b65c389', 'UTF8')),
			 (convert_from('\x6b65c2a0', 'UTF8')),		-- no-break space
			 (convert_from('\x6b65e2808b', 'UTF8')),	-- zero width space
			 (convert_from('\xd0ba6579', 'UTF8'))) AS v(k);	-- Cyrillic k

-- strict
SELECT idemq.digest(NULL, 'key') IS NULL, idemq.digest('', NULL) IS NULL;

-- fit for an index, and for a parallel query
SELECT provolatile, proparallel, proisstrict, prosecdef, prorettype::regtype
FROM pg_proc WHERE oid = 'idemq.digest(text,text)'::regprocedure;

-- an index on it tells keys apart under any collation
CREATE TABLE digest_indexed (scope text COLLATE "C", key text COLLATE "POSIX");
CREATE UNIQUE INDEX ON digest_indexed (idemq.digest(scope, key));
INSERT INTO digest_indexed VALUES ('', 'a'), ('', 'A'), ('a', '');
INSERT INTO digest_indexed VALUES ('', 'a');
\echo :LAST_ERROR_SQLSTATE
DROP TABLE digest_indexed;

-- for the owner only, until somebody is given more
SELECT proname, coalesce(bool_or(grantee = 0), false) AS public_may
FROM pg_proc LEFT JOIN LATERAL aclexplode(proacl) ON true
WHERE proname IN ('digest', 'idem_key', 'idem_fingerprint')
	AND probin LIKE '%idemq'
GROUP BY proname ORDER BY proname;
SELECT count(*) FROM pg_proc
WHERE proname IN ('digest', 'idem_key', 'idem_fingerprint')
	AND probin LIKE '%idemq' AND proacl IS NULL;
SELECT proname FROM pg_proc
WHERE proname IN ('digest', 'idem_key', 'idem_fingerprint')
	AND probin LIKE '%idemq' AND obj_description(oid, 'pg_proc') IS NULL;
