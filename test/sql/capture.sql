--
-- Capture: which events the changes of a table are
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_capture TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_capture SET lc_messages = 'C';
ALTER DATABASE regress_idemq_capture SET timezone = 'UTC';
\c regress_idemq_capture
CREATE EXTENSION idemq;
-- what has been told since the last look
CREATE FUNCTION told(OUT kind text, OUT key text, OUT type text, OUT payload jsonb) RETURNS SETOF record
LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM idemq.outbox RETURNING *)
	SELECT aggregatetype, aggregateid, type, payload FROM gone ORDER BY seq
$$;
CREATE FUNCTION triggers(target regclass) RETURNS TABLE (name text, enabled "char", definition text)
LANGUAGE sql AS $$
	SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = target AND NOT tgisinternal ORDER BY 1
$$;

-- the defaults: the table's name, its primary key, all columns, and three operations
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric, note text);
SELECT outbox_capture('orders');
SELECT * FROM triggers('orders');
INSERT INTO orders VALUES (1, 'ann', 10.50, NULL), (2, 'bob', 7, 'gift');
UPDATE orders SET total = total + 1;
DELETE FROM orders WHERE id = 2;
TRUNCATE orders;
SELECT * FROM told();
-- every way of writing
INSERT INTO orders VALUES (1, 'ann', 1), (2, 'bob', 2), (3, 'cy', 3);
INSERT INTO orders VALUES (1, 'eve', 5), (4, 'dan', 4) ON CONFLICT (id) DO UPDATE SET customer = excluded.customer;
INSERT INTO orders VALUES (1, 'eve', 5) ON CONFLICT DO NOTHING;
COPY orders FROM stdin;
5	fay	5	\N
6	gus	6	\N
\.
MERGE INTO orders o USING (VALUES (5, 'x'), (6, NULL), (7, 'new')) AS v (id, note) ON o.id = v.id
WHEN MATCHED AND v.note IS NULL THEN DELETE
WHEN MATCHED THEN UPDATE SET note = v.note
WHEN NOT MATCHED THEN INSERT (id, note) VALUES (v.id, v.note);
WITH gone AS (DELETE FROM orders WHERE id < 3 RETURNING id)
INSERT INTO orders (id) SELECT id + 100 FROM gone ORDER BY id;
SELECT key, type, payload->>'customer' AS customer, payload->>'note' AS note FROM told();
-- what is rolled back is not told
BEGIN;
DELETE FROM orders;
ROLLBACK;
BEGIN;
SAVEPOINT s;
DELETE FROM orders;
ROLLBACK TO s;
UPDATE orders SET note = 'kept' WHERE id = 3;
COMMIT;
SELECT key, type FROM told();
-- an update that changes nothing is none, whatever the statement says
UPDATE orders SET note = note, total = total;
SELECT * FROM told();
-- what looks different is a change
UPDATE orders SET total = 3.00 WHERE id = 3;
UPDATE orders SET total = 3.00 WHERE id = 3;
SELECT key, type, payload->>'total' AS total FROM told();
-- an update of the key carries the new one
UPDATE orders SET id = 33 WHERE id = 3;
SELECT key, type, payload->>'id' AS id FROM told();

-- what is in the event is the row as it was written, whatever other triggers made of it
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.note := 'touched';
	RETURN NEW;
END
$$;
CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION touch();
UPDATE orders SET customer = customer WHERE id = 33;
UPDATE orders SET customer = customer WHERE id = 33;
SELECT key, type, payload->>'note' AS note FROM told();

-- calling again replaces: chosen columns, other operations, both images
SELECT outbox_capture('orders', 'sale', '{customer,id}', '{total,customer}', '{update,delete,truncate}', with_old => true);
SELECT * FROM triggers('orders');
INSERT INTO orders VALUES (50, 'a:b', 1);
UPDATE orders SET id = 51 WHERE id = 50;
UPDATE orders SET total = 2 WHERE id = 51;
UPDATE orders SET customer = NULL WHERE id = 51;
DELETE FROM orders WHERE id = 51;
TRUNCATE orders;
SELECT * FROM told();
SELECT outbox_capture('orders', with_old => true, operations => '{insert,insert}');
INSERT INTO orders VALUES (1);
DELETE FROM orders;
SELECT * FROM told();

-- conditions
SELECT outbox_capture('orders', operations => '{update}',
	condition => 'NEW.total > 100 AND OLD.total IS DISTINCT FROM NEW.total -- large ones');
SELECT outbox_capture('orders', operations => '{update,insert}', condition => '/* all */ NEW.total > 100 OR false');
SELECT * FROM triggers('orders');
INSERT INTO orders VALUES (1, NULL, 100), (2, NULL, 101), (3, NULL, NULL);
UPDATE orders SET total = total + 1;
SELECT key, type, payload->>'total' AS total FROM told();
SELECT outbox_capture('orders', operations => '{delete}', condition => 'OLD.total > 101');
DELETE FROM orders;
SELECT key, type, payload->>'total' AS total FROM told();
SELECT outbox_capture('orders', condition => 'current_setting(''x.capture'', true) = ''on''', operations => '{insert,update,delete,truncate}');
INSERT INTO orders VALUES (1, NULL, 100);
SET x.capture = 'on';
INSERT INTO orders VALUES (2, NULL, 100);
TRUNCATE orders;
RESET x.capture;
SELECT key, type FROM told();
-- a condition sees what its author sees
CREATE SCHEMA mine;
CREATE FUNCTION mine.large(numeric) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 > 5';
SET search_path = mine, public;
SELECT outbox_capture('orders', operations => '{insert}', condition => 'large(NEW.total)');
RESET search_path;
INSERT INTO orders VALUES (1, NULL, 5), (2, NULL, 6);
SELECT key, type FROM told();
DROP FUNCTION mine.large(numeric);

-- the end of it
SELECT outbox_uncapture('orders');
SELECT * FROM triggers('orders');
UPDATE orders SET total = 0;
SELECT * FROM told();
SELECT outbox_uncapture('orders');

-- names that want quoting
CREATE SCHEMA "My ""schema";
CREATE TABLE "My ""schema"."Orders; --" ("The Id" int, "say ""x""" text, "select" text, "é" text, PRIMARY KEY ("The Id", "select"));
SELECT outbox_capture('"My ""schema"."Orders; --"');
INSERT INTO "My ""schema"."Orders; --" VALUES (1, 'a', 'b', 'c');
SELECT * FROM told();
SELECT outbox_capture('"My ""schema"."Orders; --"', 'it''s \ "one"', '{"say \"x\""}', '{select,é,The Id}', condition => 'NEW."say ""x""" <> '')''',
	operations => '{insert}');
INSERT INTO "My ""schema"."Orders; --" VALUES (1, 'a', 'c', 'd'), (1, ')', 'd', 'd');
SELECT * FROM told();
SELECT * FROM triggers('"My ""schema"."Orders; --"');
SELECT outbox_uncapture('"My ""schema"."Orders; --"');

-- keys: several columns, nulls, and a text that does not depend on settings
CREATE TABLE keys (a int, b text, t timestamptz, f float8, i interval, c char(5), d date, y bytea, o boolean, x text[]);
SELECT outbox_capture('keys', 'key', '{a,b}', '{a}');
INSERT INTO keys VALUES (1, 'x'), (1, NULL), (NULL, 'x'), (2, 'a:b\c'), (3, '');
SELECT key, payload FROM told();
SELECT idem_key('2', 'a:b\c');
SELECT outbox_capture('keys', 'key', '{b}', '{a}');
INSERT INTO keys VALUES (1, 'a:b\c'), (2, NULL), (3, '');
SELECT key, payload FROM told();
SELECT outbox_capture('keys', 'key', '{t,f,i,c,d,y,o,x}', '{a}');
INSERT INTO keys VALUES (1, '', '2026-07-01 12:00+02', 0.1, '1 day 2 hours', 'ab', '2026-07-04', '\x00ff', true, '{a,NULL}');
SET datestyle = 'German';
SET timezone = 'Asia/Tokyo';
SET extra_float_digits = -3;
SET intervalstyle = 'iso_8601';
SET bytea_output = 'escape';
INSERT INTO keys VALUES (1, '', '2026-07-01 12:00+02', 0.1, 'P1DT2H', 'ab', '04.07.2026', '\x00ff', true, '{a,NULL}');
SHOW datestyle;
SHOW intervalstyle;
RESET datestyle;
RESET timezone;
RESET extra_float_digits;
RESET intervalstyle;
RESET bytea_output;
SELECT key, count(*) FROM told() GROUP BY key;
DELETE FROM keys;
SELECT count(*) FROM told();

-- columns that are renamed, added and dropped
CREATE TABLE moving (id int PRIMARY KEY, a int, gone int, b int, twice int GENERATED ALWAYS AS (a * 2) STORED);
SELECT outbox_capture('moving');
ALTER TABLE moving DROP COLUMN gone;
ALTER TABLE moving RENAME COLUMN a TO first;
ALTER TABLE moving RENAME COLUMN id TO number;
ALTER TABLE moving ADD COLUMN c text DEFAULT 'c';
ALTER TABLE moving RENAME TO moved;
INSERT INTO moved (number, first) VALUES (1, 1);
UPDATE moved SET c = 'd';
SELECT * FROM told();
SELECT outbox_capture('moved', columns => '{twice,b}', condition => 'NEW.first < 10', operations => '{insert,update}');
ALTER TABLE moved RENAME COLUMN b TO "B";
ALTER TABLE moved RENAME COLUMN first TO a;
UPDATE moved SET c = 'e';
UPDATE moved SET a = 2;
UPDATE moved SET "B" = 3;
SELECT * FROM told();
SELECT * FROM triggers('moved');
-- the server looks after columns that are in use
ALTER TABLE moved DROP COLUMN "B";
ALTER TABLE moved ALTER COLUMN number TYPE bigint;
ALTER TABLE moved ALTER COLUMN c TYPE varchar;
SELECT outbox_uncapture('moved');
ALTER TABLE moved ALTER COLUMN number TYPE bigint;
SELECT outbox_capture('moved', columns => '{"B"}', operations => '{insert,update}');
ALTER TABLE moved DROP COLUMN "B" CASCADE;
SELECT * FROM triggers('moved');

-- definitions read back are what they were
SELECT outbox_capture('orders', 'o', '{id}', '{total,note}', '{update}', 'NEW.total > 1 AND OLD.total < 5 AND true', true);
SELECT definition AS before FROM triggers('orders') WHERE name LIKE 'idemq%' \gset
SELECT outbox_uncapture('orders');
:before;
SELECT definition = :'before' AS same FROM triggers('orders') WHERE name LIKE 'idemq%';
TRUNCATE orders;
INSERT INTO orders VALUES (1, '', 1);
UPDATE orders SET total = 2;
UPDATE orders SET total = 9;
UPDATE orders SET total = 10;
SELECT * FROM told();
-- a trigger by another name is the same
ALTER TRIGGER idemq_capture_update ON orders RENAME TO zzz;
UPDATE orders SET total = 2;
UPDATE orders SET total = 3;
SELECT key, type FROM told();
SELECT outbox_capture('orders');
SELECT name FROM triggers('orders');

-- triggers of our function that are not ours
CREATE TRIGGER strange AFTER INSERT ON keys FOR EACH ROW EXECUTE FUNCTION idemq._capture('x');
SELECT outbox_uncapture('keys');
CREATE TRIGGER strange AFTER INSERT ON keys FOR EACH ROW EXECUTE FUNCTION idemq._capture('x');
INSERT INTO keys DEFAULT VALUES;
\echo :LAST_ERROR_SQLSTATE
DROP TRIGGER strange ON keys;
CREATE TRIGGER strange BEFORE INSERT ON keys FOR EACH ROW EXECUTE FUNCTION idemq._capture('x');
INSERT INTO keys DEFAULT VALUES;
\echo :LAST_ERROR_SQLSTATE
DROP TRIGGER strange ON keys;
SELECT idemq._capture();
\echo :LAST_ERROR_SQLSTATE

-- a change that comes by logical replication fires no trigger: it has been told at its origin
SET session_replication_role = replica;
UPDATE orders SET total = 77;
RESET session_replication_role;
SELECT * FROM told();

-- cause, and numbers in the order of the changes
TRUNCATE orders;
INSERT INTO orders SELECT i, NULL, i FROM generate_series(1, 1000) AS i;
SELECT bool_and(seq = lag + 1) AS in_steps, bool_and(aggregateid::int = before + 1) AS in_order FROM (
	SELECT *, lag(seq) OVER w AS lag, lag(aggregateid::int) OVER w AS before FROM idemq.outbox
	WINDOW w AS (ORDER BY seq)) AS o WHERE lag IS NOT NULL;
SELECT count(*) FROM told();
BEGIN;
SELECT idem_claim('message', 'scope');
UPDATE orders SET total = 0 WHERE id = 1;
COMMIT;
SELECT cause FROM idemq.outbox;

-- a column of the key is not of the chosen ones: no event
SELECT count(*) FROM told();
SELECT outbox_capture('orders', columns => '{note}', operations => '{update}');
UPDATE orders SET id = 5000, total = 1 WHERE id = 1;
SELECT * FROM told();

\c :origin
DROP DATABASE regress_idemq_capture WITH (FORCE);
