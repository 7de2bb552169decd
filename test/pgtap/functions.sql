-- The functions: arguments, results, volatility and so on, comments, rights.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS idemq;
RESET client_min_messages;

BEGIN;
SELECT * FROM no_plan();

-- what interface users rely on
CREATE TEMP TABLE wanted (name text, types text[], arguments text, returns text, kind "char", volatility text, parallel "char");
INSERT INTO wanted VALUES
	('idem_claim', '{text,text}', 'key text, scope text DEFAULT NULL::text', 'boolean', 'f', 'volatile', 'u'),
	('idem_try_claim', '{text,text}', 'key text, scope text DEFAULT NULL::text', 'text', 'f', 'volatile', 'u'),
	('idem_claim_many', '{text[],text}', 'keys text[], scope text DEFAULT NULL::text', 'boolean[]', 'f', 'volatile', 'u'),
	('idem_seen', '{text,text}', 'key text, scope text DEFAULT NULL::text', 'timestamp with time zone', 'f', 'volatile', 'u'),
	('idem_forget', '{text,text}', 'key text, scope text DEFAULT NULL::text', 'boolean', 'f', 'volatile', 'u'),
	('idem_key', '{text[]}', 'VARIADIC parts text[]', 'text', 'f', 'immutable', 's'),
	('idem_fingerprint', '{jsonb,text[]}', 'payload jsonb, VARIADIC paths text[] DEFAULT ''{}''::text[]', 'text', 'f', 'immutable', 's'),
	('idem_grant', '{regrole,text,text}', 'role regrole, capability text, object text DEFAULT NULL::text', 'void', 'f', 'volatile', NULL),
	('idem_revoke', '{regrole,text,text}', 'role regrole, capability text, object text DEFAULT NULL::text', 'void', 'f', 'volatile', NULL),
	('outbox_emit', '{text,jsonb,text,text,jsonb,timestamp with time zone}', 'aggregatetype text, payload jsonb, aggregateid text DEFAULT NULL::text, '
		'type text DEFAULT NULL::text, headers jsonb DEFAULT NULL::jsonb, not_before timestamp with time zone DEFAULT NULL::timestamp with time zone',
		'uuid', 'f', 'volatile', 'u'),
	('outbox_emit_bytes', '{text,bytea,text,text,jsonb,timestamp with time zone}', 'aggregatetype text, body bytea, aggregateid text DEFAULT NULL::text, '
		'type text DEFAULT NULL::text, headers jsonb DEFAULT NULL::jsonb, not_before timestamp with time zone DEFAULT NULL::timestamp with time zone',
		'uuid', 'f', 'volatile', 'u'),
	('outbox_capture', '{regclass,text,text[],text[],text[],text,boolean}',
		'target regclass, aggregatetype text DEFAULT NULL::text, key_columns text[] DEFAULT NULL::text[], columns text[] DEFAULT NULL::text[], '
		'operations text[] DEFAULT ''{insert,update,delete}''::text[], condition text DEFAULT NULL::text, with_old boolean DEFAULT false',
		'void', 'f', 'volatile', 'u'),
	('outbox_uncapture', '{regclass}', 'target regclass', 'void', 'f', 'volatile', 'u'),
	('outbox_subscribe', '{text,text[],text,integer,boolean,integer,text}', 'consumer text, aggregatetypes text[] DEFAULT NULL::text[], start_at text DEFAULT ''now''::text, '
		'shards integer DEFAULT 1, ordered boolean DEFAULT true, max_attempts integer DEFAULT NULL::integer, retry_ladder text DEFAULT NULL::text', 'void', 'f', 'volatile', 'u'),
	('outbox_alter', '{text,text[],integer,boolean,integer,text}', 'consumer text, aggregatetypes text[] DEFAULT NULL::text[], shards integer DEFAULT NULL::integer, '
		'ordered boolean DEFAULT NULL::boolean, max_attempts integer DEFAULT NULL::integer, retry_ladder text DEFAULT NULL::text', 'void', 'f', 'volatile', 'u'),
	('outbox_unsubscribe', '{text}', 'consumer text', 'void', 'f', 'volatile', 'u'),
	('outbox_seek', '{text,timestamp with time zone}', 'consumer text, to_time timestamp with time zone', 'void', 'f', 'volatile', 'u'),
	('outbox_adopt', '{text,text}', 'consumer text, mode text', 'void', 'f', 'volatile', 'u'),
	('outbox_fetch', '{text,integer,interval}', 'consumer text, max_events integer DEFAULT 100, lease interval DEFAULT ''00:01:00''::interval, '
		'OUT token bigint, OUT id uuid, OUT seq bigint, OUT aggregatetype text, OUT aggregateid text, OUT type text, OUT payload jsonb, OUT body bytea, '
		'OUT headers jsonb, OUT cause text, OUT attempt integer, OUT deliveries integer, OUT created_at timestamp with time zone', 'SETOF record', 'f', 'volatile', 'u'),
	('outbox_ack', '{bigint,uuid[]}', 'token bigint, ids uuid[] DEFAULT NULL::uuid[]', 'integer', 'f', 'volatile', 'u'),
	('outbox_nack', '{bigint,uuid,text,interval}', 'token bigint, id uuid, error text, retry_in interval DEFAULT NULL::interval, '
		'OUT action text, OUT attempt integer, OUT retry_at timestamp with time zone, OUT withdrawn uuid[]', 'record', 'f', 'volatile', 'u'),
	('outbox_release', '{bigint,uuid[],interval}', 'token bigint, ids uuid[] DEFAULT NULL::uuid[], retry_in interval DEFAULT NULL::interval', 'integer', 'f', 'volatile', 'u'),
	('outbox_extend', '{bigint,interval}', 'token bigint, lease interval', 'timestamp with time zone', 'f', 'volatile', 'u'),
	('outbox_wait', '{text,interval}', 'IN consumer text, IN timeout interval DEFAULT ''00:01:00''::interval', NULL, 'p', NULL, NULL),
	('dead_letter_replay', '{text,text,text,text,timestamp with time zone,bigint[],integer}', 'consumer text DEFAULT NULL::text, aggregatetype text DEFAULT NULL::text, type text DEFAULT NULL::text, '
		'error_like text DEFAULT NULL::text, died_before timestamp with time zone DEFAULT NULL::timestamp with time zone, ids bigint[] DEFAULT NULL::bigint[], max_events integer DEFAULT 1000', 'integer', 'f', 'volatile', 'u'),
	('dead_letter_discard', '{text,text,text,text,timestamp with time zone,bigint[],integer}', 'consumer text DEFAULT NULL::text, aggregatetype text DEFAULT NULL::text, type text DEFAULT NULL::text, '
		'error_like text DEFAULT NULL::text, died_before timestamp with time zone DEFAULT NULL::timestamp with time zone, ids bigint[] DEFAULT NULL::bigint[], max_events integer DEFAULT 1000', 'integer', 'f', 'volatile', 'u'),
	('idem_maintain', '{}', '', NULL, 'p', NULL, NULL),
	('idem_status', '{}', 'OUT check_name text, OUT status text, OUT detail text, OUT hint text', 'SETOF record', 'f', 'stable', NULL);
CREATE TEMP VIEW made AS
SELECT p.*, n.nspname, p.oid::regprocedure::text AS signature, l.lanname
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_language AS l ON l.oid = p.prolang
JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idemq';

SELECT functions_are((SELECT extnamespace::regnamespace::name FROM pg_extension WHERE extname = 'idemq'),
	(SELECT array_agg(name::name) FROM wanted) || (SELECT coalesce(array_agg(DISTINCT p.proname), '{}') FROM pg_proc AS p
		WHERE p.pronamespace = (SELECT extnamespace FROM pg_extension WHERE extname = 'idemq') AND p.oid NOT IN (SELECT oid FROM made)),
	'the public functions are these');
SELECT has_function(name::name, types::name[], format('%s(%s)', name, array_to_string(types, ', '))) FROM wanted ORDER BY name;
SELECT is(pg_get_function_arguments(m.oid), w.arguments, w.name || ': arguments') FROM wanted AS w JOIN made AS m ON m.proname = w.name ORDER BY w.name;
SELECT is(pg_get_function_result(m.oid), w.returns, w.name || ': result') FROM wanted AS w JOIN made AS m ON m.proname = w.name ORDER BY w.name;
SELECT is(m.prokind, w.kind, w.name || ': function or procedure') FROM wanted AS w JOIN made AS m ON m.proname = w.name ORDER BY w.name;
SELECT volatility_is(name::name, types::name[], volatility, format('%s is %s', name, volatility)) FROM wanted WHERE volatility IS NOT NULL ORDER BY name;
SELECT is(m.proparallel, w.parallel, w.name || ': parallel safety') FROM wanted AS w JOIN made AS m ON m.proname = w.name WHERE w.parallel IS NOT NULL ORDER BY w.name;
-- a NULL is an error, never an answer
SELECT isnt_strict(name::name, types::name[], name || ' is not strict') FROM wanted ORDER BY name;

-- who runs what with whose rights
SELECT ok(NOT m.prosecdef, m.signature || ' runs with the rights of its caller') FROM made AS m
WHERE m.proname IN ('idem_claim', 'idem_try_claim', 'idem_claim_many', 'idem_seen', 'idem_forget', 'idem_key', 'idem_fingerprint', 'idem_maintain', 'idem_status',
	'outbox_emit', 'outbox_emit_bytes', 'outbox_capture', 'outbox_uncapture')
ORDER BY m.signature;
SELECT ok('search_path=pg_catalog, pg_temp' = ANY (m.proconfig), m.signature || ' has a pinned search_path') FROM made AS m
WHERE m.prosecdef OR m.lanname <> 'c' ORDER BY m.signature;
-- it ends transactions, which a SET clause forbids
SELECT is(m.proconfig, NULL, m.signature || ' has no settings') FROM made AS m WHERE m.proname IN ('idem_maintain', 'outbox_wait');
SELECT is(m.proowner, (SELECT extowner FROM pg_extension WHERE extname = 'idemq'), m.signature || ' belongs to the owner of the extension')
FROM made AS m ORDER BY m.signature;

-- nobody else may, unless it was granted
SELECT isnt(m.proacl, NULL, m.signature || ' has no default privileges') FROM made AS m ORDER BY m.signature;
SELECT is_empty(format('SELECT privilege_type FROM aclexplode(%L::aclitem[]) WHERE grantee = 0', m.proacl), m.signature || ' is not for PUBLIC')
FROM made AS m ORDER BY m.signature;

-- each has a comment that says something
SELECT cmp_ok(length(obj_description(m.oid, 'pg_proc')), '>=', 15, m.signature || ' has a comment') FROM made AS m ORDER BY m.signature;

-- what is internal is named so, or in the schema idemq
SELECT is_empty('SELECT signature FROM made WHERE nspname = ''idemq'' AND proname !~ ''^_'' AND proname NOT IN (''digest'', ''accept_clock'')',
	'in the schema idemq only the digest and accept_clock() are for others');

-- the digest: what every index relies on
SELECT function_returns('idemq', 'digest', '{text,text}'::name[], 'uuid', 'idemq.digest returns uuid');
SELECT volatility_is('idemq', 'digest', '{text,text}'::name[], 'immutable', 'idemq.digest is immutable');
SELECT is_strict('idemq', 'digest', '{text,text}'::name[], 'idemq.digest is strict');

SELECT * FROM finish();
ROLLBACK;
