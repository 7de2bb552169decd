--
-- Capture: the payload is what to_jsonb(NEW) gives in a trigger, value by value
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_capture_types TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_capture_types SET lc_messages = 'C';
ALTER DATABASE regress_idemq_capture_types SET timezone = 'UTC';
\c regress_idemq_capture_types
CREATE EXTENSION idemq;
-- the reference: rows as a trigger in PL/pgSQL sees them
CREATE TABLE reference (number bigserial, type text, before jsonb, after jsonb);
CREATE FUNCTION refer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO reference (type, before, after) VALUES (lower(TG_OP), to_jsonb(OLD), to_jsonb(NEW));
	RETURN NULL;
END
$$;
CREATE FUNCTION follow(target regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TRIGGER refer AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION refer()', target);
END
$$;
-- what differs, byte by byte, since the last look; and how much was compared
CREATE FUNCTION differ(with_old boolean DEFAULT false, OUT compared bigint, OUT different bigint) LANGUAGE sql AS $$
	WITH told AS (SELECT row_number() OVER (ORDER BY seq) AS n, type, payload FROM idemq.outbox),
	expected AS (SELECT row_number() OVER (ORDER BY number) AS n, type,
		CASE WHEN with_old THEN jsonb_build_object('before', before, 'after', after) ELSE coalesce(after, before) END AS payload
		FROM reference)
	SELECT count(*), count(*) FILTER (WHERE NOT coalesce(t.type = e.type AND jsonb_send(t.payload) = jsonb_send(e.payload)
			AND pg_column_size(t.payload) = pg_column_size(e.payload), false))
	FROM told AS t FULL JOIN expected AS e USING (n)
$$;

CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy');
CREATE TYPE pair AS (x int, "Y y" text);
CREATE TYPE nested AS (p pair, m mood[], j json);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN positives AS positive[];
CREATE DOMAIN worded AS pair;
CREATE DOMAIN shorty AS varchar(5);
CREATE DOMAIN at AS timestamptz;
CREATE TYPE span AS RANGE (subtype = float8);
-- a type with a cast to json of its own
CREATE TYPE money_of AS (amount numeric, currency text);
SET client_min_messages = warning;
CREATE TYPE label;
CREATE FUNCTION label_in(cstring) RETURNS label LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION label_out(label) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE label (input = label_in, output = label_out, internallength = 4, passedbyvalue, alignment = int4);
RESET client_min_messages;

CREATE TABLE everything (
	id serial PRIMARY KEY,
	b boolean, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, n2 numeric(10,3),
	t text, v varchar(20), c char(5), ch "char", na name, by bytea, u uuid,
	d date, ti time, tz timetz, ts timestamp, tstz timestamptz, iv interval,
	j json, jb jsonb, x xml, bi bit(3), vb varbit, mo mood, mon money, o oid, rc regclass, lsn pg_lsn, tid tid, x8 xid8,
	ip inet, ci cidr, ma macaddr, pt point, bx box, ts_v tsvector, ts_q tsquery, jp jsonpath,
	ia int[], ta text[], da date[], ca pair[], ea mood[], na2 numeric[],
	p pair, ne nested, po positive, pos positives, wo worded, sh shorty, at at,
	ir int4range, sr span, mr int4multirange, sl label,
	"Quoted ""Name" text, "ünïcode" text,
	gen int GENERATED ALWAYS AS (i4 + 1) STORED
);
SELECT outbox_capture('everything'), follow('everything');
INSERT INTO everything DEFAULT VALUES;
INSERT INTO everything (b, i2, i4, i8, f4, f8, n, n2, t, v, c, ch, na, by, u, d, ti, tz, ts, tstz, iv, j, jb, x, bi, vb, mo, mon, o, rc, lsn, tid, x8,
	ip, ci, ma, pt, bx, ts_v, ts_q, jp, ia, ta, da, ca, ea, na2, p, ne, po, pos, wo, sh, at, ir, sr, mr, sl, "Quoted ""Name", "ünïcode")
VALUES
(true, 1, 1, 1, 1.5, 1e300, 1.50, 1.5, 'text', 'var', 'ch', 'c', 'name', '\x00ff', '00000000-0000-0000-0000-000000000001',
	'2026-11-30', '12:00', '12:00+02', '2026-11-30 12:00:00.123456', '2026-11-30 12:00:00.1+02', '1 year 2 days 03:04:05.6',
	'{"a" : 1, "a": 2, "b":[1, null, "x"]}', '{"z": [{"y": 1.10}], "a": "b"}', '<a/>', '101', '10', 'very happy', 12.34, 77, 'pg_class', '16/B374D848', '(1,2)', '12345678901',
	'10.0.0.1', '10.0.0.0/8', '08:00:2b:01:02:03', '(1,2)', '((1,1),(0,0))', 'a fat cat', 'fat & cat', '$.a[*]',
	'{{1,2},{3,NULL}}', '{"a b",NULL,""}', '{2026-11-30,infinity}', '{"(1,a)","(,)"}', '{sad,ok}', '{1.10,NaN}',
	'(1,"a ""b")', '("(2,x)","{ok}","{""k"": 1}")', 5, '{1,2}', '(3,w)', 'abc', '2026-01-01 00:00+00', '[1,5)', '(1.5,)', '{[1,2),[5,)}', '42', 'q', 'ü€😀'),
(false, -32768, -2147483648, -9223372036854775808, 'NaN', '-Infinity', 'NaN', 'NaN', '', '', '', '', '', '', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
	'infinity', '24:00', '00:00-15', '-infinity', 'infinity', '-00:00:01', 'null', 'null', '', '000', '', 'sad', -0.01, 4294967295, 0, '0/0', '(0,0)', '0',
	'::1/64', '::/0', 'ff:ff:ff:ff:ff:ff', '(Infinity,NaN)', '((1,1),(1,1))', '', '', 'strict $', '{}', '{}', '{}', '{}', '{}', '{}',
	'(,)', '(,,)', 1, '{}', '(,)', '', 'infinity', 'empty', 'empty', '{}', '-1', E'\\ " \n \t \x01', ' '),
(NULL, 32767, 2147483646, 9223372036854775807, 1e-20, 0.1, 'Infinity', 0, repeat('long ', 5000), NULL, 'abcde', 'ä', repeat('n', 63), NULL, NULL,
	'0044-03-15 BC', '00:00:00.000001', NULL, '0044-03-15 BC', '0044-03-15 12:00 BC', '1 mon -1 day', '"s"', '"s"', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '[0:1]={1,2}', NULL, NULL, NULL, NULL, '{100000000000000000000.000,-0.0}',
	NULL, NULL, NULL, NULL, NULL, 'abcde', '-infinity', NULL, NULL, NULL, NULL, NULL, NULL),
(NULL, 100, 100, 10000, 100, 1e20, 123456789012345678901234567890.1234567890, 99.9, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	NULL, NULL, NULL, NULL, NULL, NULL, '[1e3, true]', '[]', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO everything (n, jb) SELECT 10 ^ i * (-1) ^ i, jsonb_build_object('k', 10 ^ i) FROM generate_series(-20, 20) AS i;
INSERT INTO everything (n, jb) VALUES (0.000, '1.000'), (1000, 'true'), (-1000.0, '{}'), ('-Infinity', '"x"');
SELECT * FROM differ();

-- numbers and times follow the settings where to_jsonb does
SET timezone = 'America/St_Johns';
SET datestyle = 'SQL, DMY';
SET extra_float_digits = 0;
SET intervalstyle = 'iso_8601';
SET bytea_output = 'escape';
INSERT INTO everything (f4, f8, ts, tstz, d, tz, iv, by, at, ir)
VALUES (0.1, 1 / 3.0, '01/02/2026', '01/02/2026', '01/02/2026', '12:00', '1 day', '\x00ff', '01/02/2026', '[1,3]');
RESET timezone;
RESET datestyle;
RESET extra_float_digits;
RESET intervalstyle;
RESET bytea_output;
SELECT * FROM differ();
SELECT payload->'tstz' AS tstz, payload->'d' AS d, payload->'iv' AS iv FROM idemq.outbox WHERE payload->>'iv' = 'P1D';

-- a cast to json that is made later
CREATE FUNCTION label_json(label) RETURNS json LANGUAGE sql IMMUTABLE AS $$ SELECT '{"label": true}'::json $$;
CREATE CAST (label AS json) WITH FUNCTION label_json(label);
INSERT INTO everything (sl) VALUES ('1');
SELECT * FROM differ();
SELECT payload->'sl' AS sl FROM idemq.outbox ORDER BY seq DESC LIMIT 1;

-- stored away, columns without a place of their own, columns that are gone
UPDATE everything SET t = t || 'x', b = NOT b;
UPDATE everything SET i4 = i4 + 1;
ALTER TABLE everything ADD COLUMN late text DEFAULT 'late', ADD COLUMN later numeric DEFAULT 1.0;
UPDATE everything SET i2 = 1;
ALTER TABLE everything DROP COLUMN jb, DROP COLUMN f4;
ALTER TABLE everything RENAME COLUMN n TO number;
ALTER TABLE everything ALTER COLUMN i2 TYPE text;
UPDATE everything SET i2 = 'two';
DELETE FROM everything;
-- updates that changed nothing were told by PL/pgSQL only
DELETE FROM reference WHERE type = 'update' AND before = after;
SELECT different FROM differ();
SELECT type, count(*) > 40 AS many FROM idemq.outbox GROUP BY type ORDER BY 1;

-- both images
TRUNCATE reference, idemq.outbox;
SELECT outbox_capture('everything', with_old => true);
INSERT INTO everything (t, p, j) VALUES ('t', '(1,2)', '{"a":1}');
UPDATE everything SET p = '(3,4)', sl = '1';
DELETE FROM everything;
SELECT * FROM differ(true);

-- values in other places that are not changed: not a word; nor are they read
CREATE TABLE large (id int PRIMARY KEY, body text, n int);
ALTER TABLE large ALTER COLUMN body SET STORAGE EXTERNAL;
INSERT INTO large VALUES (1, repeat('x', 100000), 1);
SELECT outbox_capture('large', operations => '{update}', columns => '{body}');
TRUNCATE idemq.outbox;
UPDATE large SET n = 2;
UPDATE large SET body = body;
UPDATE large SET body = repeat('x', 100000);
SELECT count(*) FROM idemq.outbox;
UPDATE large SET body = repeat('x', 99999) || 'y';
UPDATE large SET body = NULL;
UPDATE large SET body = '';
SELECT length(payload->>'body') FROM idemq.outbox ORDER BY seq;

-- a table with all the columns that there can be
DO $$
BEGIN
	EXECUTE 'CREATE TABLE broad (id int PRIMARY KEY, ' || (SELECT string_agg(format('c%s int', i), ', ') FROM generate_series(1, 1500) AS i) || ')';
END
$$;
TRUNCATE reference, idemq.outbox;
SELECT outbox_capture('broad', columns => (SELECT array_agg('c' || i) FROM generate_series(1, 1500) AS i));
INSERT INTO broad (id, c1500) VALUES (1, 1);
UPDATE broad SET c1500 = 2;
UPDATE broad SET id = 2;
SELECT type, payload->'c1500' AS last, (SELECT count(*) FROM jsonb_object_keys(payload)) AS keys FROM idemq.outbox ORDER BY seq;
-- and one with none but the key
CREATE TABLE narrow (id int PRIMARY KEY);
SELECT outbox_capture('narrow');
INSERT INTO narrow VALUES (1);
UPDATE narrow SET id = 1;
UPDATE narrow SET id = 2;
SELECT type, payload FROM idemq.outbox WHERE aggregatetype = 'narrow' ORDER BY seq;

\c :origin
DROP DATABASE regress_idemq_capture_types WITH (FORCE);
