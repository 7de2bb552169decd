--
-- idem_claim_many
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_many TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_many SET lc_messages = 'C';
\c regress_idemq_many
CREATE EXTENSION idemq;

-- element by element, in the order of the array
SELECT idem_claim_many('{a,b,c}');
SELECT idem_claim_many('{a,b,c}');
SELECT idem_claim_many('{x,a,y,b,z}');
SELECT idem_claim_many(ARRAY['z', 'new', 'y']);
-- twice in the array: true once, the first of them
SELECT idem_claim_many('{d,d,e,d,e,f}');
SELECT idem_claim_many('{d,g,d,g}');

-- forms of arguments
SELECT idem_claim_many(keys => '{n}'), idem_claim_many(scope => 's', keys => '{n,n2}'),
	idem_claim_many('{n,n2}', scope => 's'), idem_claim_many('{n,n2}', NULL), idem_claim_many('{n,n3}', '');
SET idemq.scope = 's';
SELECT idem_claim_many('{n,n2,n3}');
RESET idemq.scope;
SELECT idem_claim_many(array_agg('agg-' || i ORDER BY i)) FROM generate_series(1, 5) AS i;
SELECT idem_claim_many(ARRAY['v1', 'v2']::varchar[]::text[]);

-- arrays of all shapes
SELECT idem_claim_many('{}'), idem_claim_many('{}'::text[]) = '{}' AS empty;
SELECT idem_claim_many('[5:7]={l1,l2,l1}'), idem_claim_many('[-3:-2]={l1,l3}');
SELECT idem_claim_many('[5:5]={l4}') = '{t}' AS lower_bound_one;
SELECT idem_claim_many('{{a,b},{c,d}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many('{{a}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many('{{{NULL}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many(NULL);
\echo :LAST_ERROR_SQLSTATE

-- every element is checked before the first claim
SELECT idem_claim_many('{q1,q2,NULL}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many('{q1,q2,""}');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many(ARRAY['q1', 'q2', repeat('q', 1025)]);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim_many('{q1,q2}', repeat('s', 256));
\echo :LAST_ERROR_SQLSTATE
CREATE FUNCTION attempt_many(keys text[]) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN idem_claim_many(keys);
EXCEPTION WHEN null_value_not_allowed OR invalid_parameter_value OR program_limit_exceeded THEN
	RETURN SQLSTATE;
END
$$;
SELECT attempt_many('{NULL,q1}'), attempt_many('{q1,q2,NULL}'), attempt_many('{q2,""}'),
	attempt_many(ARRAY['q1', repeat('q', 1025)]), attempt_many('{q1,q2}');

-- transaction, savepoint
BEGIN;
SELECT idem_claim('t1'), idem_claim_many('{t1,t2,t3}'), idem_claim('t2'), idem_try_claim('t3');
SAVEPOINT s;
SELECT idem_claim_many('{t3,t4}');
ROLLBACK TO s;
SELECT idem_claim_many('{t3,t4}');
ROLLBACK;
SELECT idem_claim_many('{t1,t2,t3,t4}');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idem_claim_many('{t4,t5}'), idem_claim_many('{t5,t6}');
COMMIT;

-- one statement that handles a batch
CREATE TABLE effects (key text);
WITH message (keys) AS (VALUES ('{m1,m2,m1,t1}'::text[])),
	claim AS MATERIALIZED (SELECT keys, idem_claim_many(keys) AS fresh FROM message)
INSERT INTO effects SELECT m.key FROM claim, unnest(keys, fresh) AS m (key, fresh) WHERE m.fresh;
SELECT * FROM effects ORDER BY key;

-- a large one
BEGIN;
SELECT cardinality(answers) AS answers, cardinality(array_positions(answers, true)) AS claimed,
	array_position(answers, false) AS first_refused
FROM idem_claim_many((SELECT array_agg('large-' || i % 20000 ORDER BY i) FROM generate_series(1, 25000) AS i)) AS answers;
SELECT count(*) < 200 AS few_locks FROM pg_locks WHERE pid = pg_backend_pid();
COMMIT;
SELECT count(*) FROM idemq.processed WHERE key LIKE 'large-%';
SELECT true = ANY (idem_claim_many(array_agg('large-' || i))) AS any_fresh FROM generate_series(0, 19999) AS i;
-- keys that are toasted and compressed in the array
SELECT idem_claim_many(ARRAY[repeat('k', 1024), repeat('k', 1023), repeat('k', 1024)]);
CREATE TABLE batches (keys text[]);
INSERT INTO batches SELECT array_agg(repeat(md5(i::text), 30)) FROM generate_series(1, 300) AS i;
SELECT cardinality(array_positions(idem_claim_many(keys), true)) FROM batches;
SELECT cardinality(array_positions(idem_claim_many(keys), false)) FROM batches;

\c :origin
DROP DATABASE regress_idemq_many WITH (FORCE);
