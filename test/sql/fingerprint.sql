--
-- idem_fingerprint: a key for messages that bring none
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemq;
RESET client_min_messages;

-- the format never changes: a line that differs here is a bug (the expected
-- values come from another implementation, in Python)
SELECT p, idem_fingerprint(p)
FROM (VALUES ('null'::jsonb), ('true'), ('false'), ('0'), ('1'), ('-1'),
			 ('1200'), ('-0.05'),
			 ('123456789012345678901234567890.0123456789'),
			 ('""'), ('"a"'), ('[]'), ('{}'), ('[[]]'), ('[1]'), ('["1"]'),
			 ('{"a": 1, "bb": [true, null, {"c": "d"}]}')) AS v(p);
SELECT idem_fingerprint('1e130000'), idem_fingerprint('1e-16000');
SELECT idem_fingerprint('{"order": {"id": 42, "lines": [{"sku": "x"}, {"sku": "y"}]}}',
						'order.id', 'order.lines.1.sku', 'order.gone');

-- equal values, equal fingerprints
SELECT a = b AS equal, idem_fingerprint(a) = idem_fingerprint(b) AS same
FROM (VALUES ('1'::jsonb, '1.0'::jsonb), ('1', '1e0'), ('10', '1e1'),
			 ('10000', '1.00e4'), ('0', '-0'), ('0', '0.000'), ('0', '-0e5'),
			 ('0.1', '1e-1'), ('100000000', '1e8'), ('0.00010', '0.0001'),
			 ('-1.50', '-15e-1'), ('12345678.9', '12345678.900000'),
			 ('{"a": 1, "b": 2}', '{"b": 2, "a": 1.0}'),
			 ('{"a": 1, "a": 2}', '{"a": 2}'),
			 ('{"aa": {"y": [], "x": {}}, "b": 1}', '{"b":1,"aa":{"x":{},"y":[]}}'),
			 ('"\u0041"', '"A"'), (' [ 1 , 2 ] ', '[1,2]')) AS v(a, b);

-- different values, different fingerprints
SELECT count(*), count(DISTINCT idem_fingerprint(p)) AS fingerprints
FROM (VALUES ('null'::jsonb), ('true'), ('false'), ('0'), ('1'), ('-1'),
			 ('10'), ('0.1'), ('1000'), ('10000'), ('0.0001'), ('1.0001'),
			 ('"null"'), ('"true"'), ('"0"'), ('"1"'), ('"1e0"'), ('""'),
			 (' " "'), ('"a"'), ('"A"'), ('"a "'),
			 ('[]'), ('{}'), ('[null]'), ('[[]]'), ('[{}]'), ('[1]'), ('[[1]]'),
			 ('[1, 2]'), ('[2, 1]'), ('[12]'), ('[[1], 2]'), ('[[1, 2]]'), ('[1, [2]]'),
			 ('["a", "b"]'), ('["ab"]'), ('["", "ab"]'), ('["ab", ""]'), ('["a,b"]'),
			 ('{"a": null}'), ('{"a": 1}'), ('{"b": 1}'), ('{"a": "1"}'), ('{"": 1}'),
			 ('{"a": {"b": 1}}'), ('{"a": 1, "b": 1}'), ('["a", 1]'), ('[["a", 1]]'),
			 ('{"a": [1, {"b": 2}]}'), ('{"a": [1], "b": 2}')) AS v(p);

-- numbers of all sizes
SELECT count(DISTINCT idem_fingerprint(to_jsonb(x)))
FROM (SELECT ('1e' || n)::numeric FROM generate_series(-200, 200) AS n
	  UNION ALL
	  SELECT ('-12e' || n)::numeric FROM generate_series(-200, 200) AS n) AS v(x);
SELECT count(*) FROM generate_series(0, 200) AS n
WHERE idem_fingerprint(to_jsonb(('1' || repeat('0', n))::numeric)) <>
	  idem_fingerprint(to_jsonb(('1e' || n)::numeric * 1.000));

-- with paths: only what they lead to
SELECT idem_fingerprint(a, 'id', 'amount') = idem_fingerprint(b, 'id', 'amount') AS same
FROM (VALUES ('{"id": 1, "amount": 5, "sent": "10:00"}'::jsonb,
			  '{"id": 1, "amount": 5.00, "sent": "10:01", "retry": true}'::jsonb),
			 ('{"id": 1, "amount": 5}', '{"id": 1, "amount": 6}'),
			 ('{"id": 1, "amount": 5}', '{"id": 5, "amount": 1}')) AS v(a, b);

-- their order and names count; absent is not null; a path is not the whole
SELECT count(*), count(DISTINCT f) AS fingerprints
FROM (VALUES (idem_fingerprint('{"a": 1, "b": 1}')),
			 (idem_fingerprint('{"a": 1, "b": 1}', 'a')),
			 (idem_fingerprint('{"a": 1, "b": 1}', 'b')),
			 (idem_fingerprint('{"a": 1, "b": 1}', 'a', 'b')),
			 (idem_fingerprint('{"a": 1, "b": 1}', 'b', 'a')),
			 (idem_fingerprint('{"a": 1, "b": 1}', 'a', 'a')),
			 (idem_fingerprint('{"a": null}', 'a')),
			 (idem_fingerprint('{}', 'a')),
			 (idem_fingerprint('{"a": {"b": 1}}', 'a.b')),
			 (idem_fingerprint('{"a.b": 1}', 'a\.b')),
			 (idem_fingerprint('{"a\\b": 1}', 'a\\b')),
			 (idem_fingerprint('1')),
			 (idem_fingerprint('"a"'))) AS v(f);
-- no path at all is the whole
SELECT idem_fingerprint('{"a": 1}', VARIADIC '{}') = idem_fingerprint('{"a": 1}') AS same;

-- which paths lead somewhere
SELECT d, p,
	   CASE idem_fingerprint(d, p)
		   WHEN idem_fingerprint('{}', p) THEN 'nothing'
		   ELSE 'something'
	   END AS found
FROM (VALUES ('{"a": {"b": [10, {"c": 1}]}}'::jsonb, 'a'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.0'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.1.c'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.2'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.00'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.01'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.-1'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.+1'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b. 1'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.4294967296'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a.b.0.c'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'a\.b'),
			 ('{"a": {"b": [10, {"c": 1}]}}', 'A'),
			 ('[1, 2]', '0'),
			 ('[1, 2]', 'a'),
			 ('{"0": 1}', '0'),
			 ('{"00": 1}', '00'),
			 ('{"a": null}', 'a'),
			 ('{"a": null}', 'a.b'),
			 ('1', '0'),
			 ('"a"', 'a'),
			 ('{"a.b": 1}', 'a\.b'),
			 ('{"a.b": 1}', 'a.b'),
			 ('{"\\": {".": 1}}', '\\.\.')) AS v(d, p);

-- large, and deep
SELECT idem_fingerprint(jsonb_agg(n)) = idem_fingerprint(jsonb_agg(n::numeric(12, 3))) AS same
FROM generate_series(1, 100000) AS n;
SELECT idem_fingerprint(jsonb_object_agg('member' || n, repeat('x', 5000))) =
	   idem_fingerprint(jsonb_object_agg('member' || n, repeat('x', 5000) ORDER BY n DESC)) AS same
FROM generate_series(1, 2000) AS n;
SELECT idem_fingerprint((repeat('[', 1000) || repeat(']', 1000))::jsonb) <>
	   idem_fingerprint((repeat('[', 999) || repeat(']', 999))::jsonb) AS differ;
-- also when most of it is not read
SELECT idem_fingerprint((repeat('{"a":', 1000) || '1' || repeat('}', 1000))::jsonb,
						array_to_string(array_fill('a'::text, ARRAY[1000]), '.')) <>
	   idem_fingerprint((repeat('{"a":', 1000) || '2' || repeat('}', 1000))::jsonb,
						array_to_string(array_fill('a'::text, ARRAY[1000]), '.')) AS differ;

-- nulls
SELECT idem_fingerprint(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint(NULL, 'a');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', 'a', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', VARIADIC NULL);
\echo :LAST_ERROR_SQLSTATE

-- paths that cannot be meant
SELECT idem_fingerprint('{}', '');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', 'a', 'a..b');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', '.a');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', 'a.');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', 'a\b');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', 'a\');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_fingerprint('{}', VARIADIC '{{a,b},{c,d}}');
\echo :LAST_ERROR_SQLSTATE

SELECT provolatile, proparallel, proisstrict, prosecdef, prorettype::regtype
FROM pg_proc WHERE oid = 'idem_fingerprint(jsonb,text[])'::regprocedure;
