--
-- idemq.digest: what stands for a scope and a key
--
-- Expected values come from another implementation, Python's hashlib:
--	 blake2b(len(scope).to_bytes(2, 'big') + scope + key,
--			 digest_size=16, person=b'idemq digest 1').hexdigest()
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

-- the border between scope and key counts
SELECT count(DISTINCT idemq.digest(left(t, n), substr(t, n + 1))) = count(*) AS all_differ
FROM (VALUES ('abcdefgh')) AS v(t), generate_series(0, 8) AS n;
SELECT idemq.digest('', 'a') <> idemq.digest('a', '') AS differ;

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
