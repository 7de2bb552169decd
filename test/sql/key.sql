--
-- idem_key: composite keys
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemq;
RESET client_min_messages;

-- the format never changes: a line that differs here is a bug
SELECT idem_key('payment-42');
SELECT idem_key('order', '42');
SELECT idem_key('a:b', 'c'), idem_key('a', 'b:c'), idem_key('a', 'b', 'c');
SELECT idem_key('a\', ':b'), idem_key('a\\:', 'b'), idem_key('\', '\');
SELECT idem_key(''), idem_key('', ''), idem_key('', '', ''), idem_key(' ', ' ');
SELECT idem_key(E'line\nfeed', E'tab\t');
SELECT idem_key(VARIADIC ARRAY['a', 'bc']), idem_key(VARIADIC '{x}'), idem_key(VARIADIC '[5:6]={a,b}');

-- a single part without colon and backslash is its own key
SELECT idem_key(k) = k FROM (VALUES ('550e8400-e29b-41d4-a716-446655440000')) AS v(k);

-- unambiguous: no two of all the lists of up to three parts with up to three
-- bytes, made of a letter, the separator and the escape character
WITH RECURSIVE part(p) AS (
	VALUES ('')
	UNION ALL
	SELECT p || c FROM part, (VALUES ('a'), (':'), ('\')) AS v(c) WHERE length(p) < 3
), list(l) AS (
	SELECT ARRAY[p] FROM part
	UNION ALL
	SELECT ARRAY[a.p, b.p] FROM part a, part b
	UNION ALL
	SELECT ARRAY[a.p, b.p, c.p] FROM part a, part b, part c
)
SELECT count(*), count(DISTINCT idem_key(VARIADIC l) COLLATE "C") AS keys FROM list;

-- any length
SELECT length(k), md5(k) = md5(repeat('\:', 1000000) || ':' || repeat('x', 1000000)) AS same
FROM idem_key(repeat(':', 1000000), repeat('x', 1000000)) AS k;
SELECT length(idem_key(VARIADIC array_agg('p'::text))) FROM generate_series(1, 100000);

-- nulls
SELECT idem_key(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_key('a', NULL, 'b');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_key(VARIADIC NULL);
\echo :LAST_ERROR_SQLSTATE

-- no parts, and too many dimensions
SELECT idem_key(VARIADIC '{}');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY sqlstate
SELECT idem_key();
\set VERBOSITY default
SELECT idem_key(VARIADIC '{{a,b},{c,d}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_key(VARIADIC '{{NULL}}');
\echo :LAST_ERROR_SQLSTATE

SELECT provolatile, proparallel, proisstrict, prosecdef, prorettype::regtype
FROM pg_proc WHERE oid = 'idem_key(text[])'::regprocedure;
