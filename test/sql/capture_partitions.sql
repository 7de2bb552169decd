--
-- Capture of partitioned tables: triggers on partitions, rows that move between them; inheritance
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_capture_partitions TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_capture_partitions SET lc_messages = 'C';
\c regress_idemq_capture_partitions
CREATE EXTENSION idemq;
CREATE FUNCTION told(OUT kind text, OUT key text, OUT type text, OUT payload jsonb) RETURNS SETOF record
LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM idemq.outbox RETURNING *)
	SELECT aggregatetype, aggregateid, type, payload FROM gone ORDER BY seq
$$;

-- partitions with columns in another order and others that are gone; one of them is partitioned
CREATE TABLE orders (id int, state text, total int, note text, PRIMARY KEY (id, state)) PARTITION BY LIST (state);
CREATE TABLE orders_new PARTITION OF orders FOR VALUES IN ('new');
CREATE TABLE orders_paid (gone int, note text, total int, also_gone text, state text NOT NULL, id int NOT NULL);
ALTER TABLE orders_paid DROP COLUMN gone, DROP COLUMN also_gone;
ALTER TABLE orders ATTACH PARTITION orders_paid FOR VALUES IN ('paid');
CREATE TABLE orders_old (total int, id int NOT NULL, state text NOT NULL, note text) PARTITION BY RANGE (id);
CREATE TABLE orders_old_1 PARTITION OF orders_old FOR VALUES FROM (0) TO (100);
ALTER TABLE orders ATTACH PARTITION orders_old FOR VALUES IN ('old', 'lost');
SELECT outbox_capture('orders', 'order', '{id}');
INSERT INTO orders VALUES (1, 'new', 10, 'a'), (2, 'paid', 20, 'b'), (3, 'old', 30, 'c');
UPDATE orders SET total = total + 1;
-- directly
INSERT INTO orders_paid (id, state, total) VALUES (4, 'paid', 40);
UPDATE orders_old_1 SET note = 'd';
DELETE FROM orders_new;
-- attached later, made later
CREATE TABLE orders_late (note text, id int NOT NULL, total int, state text NOT NULL);
ALTER TABLE orders ATTACH PARTITION orders_late FOR VALUES IN ('late');
CREATE TABLE orders_other PARTITION OF orders DEFAULT;
CREATE TABLE orders_old_2 PARTITION OF orders_old FOR VALUES FROM (100) TO (200);
INSERT INTO orders VALUES (5, 'late', 50, NULL), (6, 'whatever', 60, NULL), (106, 'old', 70, NULL);
DELETE FROM orders_late;
SELECT * FROM told();
-- renamed and dropped
ALTER TABLE orders RENAME COLUMN note TO remark;
ALTER TABLE orders RENAME COLUMN id TO number;
ALTER TABLE orders DROP COLUMN total;
UPDATE orders SET remark = 'e' WHERE number IN (2, 3);
SELECT * FROM told();

-- a row that moves is updated
UPDATE orders SET state = 'paid' WHERE state = 'whatever';
UPDATE orders SET state = 'old', remark = 'moved' WHERE number = 6;
UPDATE orders SET state = 'lost' WHERE number = 6;
UPDATE orders SET number = 107 WHERE number = 6;
UPDATE orders SET state = CASE state WHEN 'paid' THEN 'new' ELSE 'paid' END;
SELECT * FROM told();
SELECT outbox_capture('orders', 'order', '{number}', '{remark}', with_old => true);
UPDATE orders SET state = 'new';
UPDATE orders SET state = 'old', remark = 'g' WHERE number = 2;
MERGE INTO orders o USING (VALUES (2, 'new'), (3, 'paid'), (4, 'gone'), (7, 'new')) AS v (number, state) ON o.number = v.number
WHEN MATCHED AND v.state = 'gone' THEN DELETE
WHEN MATCHED THEN UPDATE SET state = v.state, remark = 'merged'
WHEN NOT MATCHED THEN INSERT (number, state, remark) VALUES (v.number, v.state, 'new');
SELECT * FROM told();
-- what was asked for and no more, for each set of operations
CREATE FUNCTION is_moves(args bytea) RETURNS boolean LANGUAGE sql AS $$ SELECT encode(args, 'escape') LIKE '%moves%' $$;
CREATE FUNCTION moves(operations text[], condition text DEFAULT NULL) RETURNS TABLE (events text, triggers text)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM outbox_capture('orders', 'order', '{number}', operations => $1, condition => $2);
	DELETE FROM orders;
	DELETE FROM idemq.outbox;
	INSERT INTO orders VALUES (1, 'new', 'a'), (2, 'new', 'b');
	UPDATE orders SET remark = 'in place' WHERE number = 1;
	UPDATE orders SET state = 'paid', remark = 'moves' WHERE number = 1;
	DELETE FROM orders WHERE number = 1;
	INSERT INTO orders VALUES (1, 'new', 'again');
	RETURN QUERY SELECT
		(SELECT string_agg(concat_ws(' ', o.type, o.aggregateid, o.payload->>'remark'), ', ' ORDER BY o.seq) FROM idemq.outbox AS o),
		(SELECT string_agg(replace(t.tgname, 'idemq_capture_', '') || CASE WHEN is_moves(t.tgargs) THEN ' (moves)' ELSE '' END, ', ' ORDER BY t.tgname)
		FROM pg_trigger AS t WHERE t.tgrelid = 'orders'::regclass);
END
$$;
SELECT v.*, m.* FROM (VALUES
	('{insert,update,delete}'::text[], NULL),
	('{insert,update}', NULL), ('{update,delete}', NULL), ('{insert,delete}', NULL),
	('{insert}', NULL), ('{update}', NULL), ('{delete}', NULL), ('{truncate}', NULL),
	('{update}', 'OLD.state <> NEW.state'),
	('{update}', 'OLD.state = NEW.state'),
	('{update}', 'NEW.remark = ''moves'' AND OLD.number = 1'),
	('{insert,update}', 'NEW.remark = ''moves'''),
	('{insert,update}', 'NEW.remark <> ''moves'''),
	('{update,delete}', 'OLD.remark = ''in place'''),
	('{update,delete}', 'OLD.remark <> ''in place'''),
	('{insert,update,delete}', 'current_setting(''x.y'', true) IS NULL')) AS v (operations, condition),
	moves(v.operations, v.condition) AS m;

-- halves of moves that find no other half are what they look like
SELECT outbox_capture('orders', 'order', '{number}');
CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE WHEN NEW.remark = 'swallow' THEN NULL ELSE NEW END;
END
$$;
CREATE TRIGGER swallow BEFORE INSERT ON orders_paid FOR EACH ROW EXECUTE FUNCTION swallow();
DELETE FROM orders;
INSERT INTO orders SELECT i, 'new', CASE WHEN i % 2 = 0 THEN 'swallow' ELSE 'keep' END FROM generate_series(1, 5) AS i;
DELETE FROM idemq.outbox;
BEGIN;
UPDATE orders SET state = 'paid';
INSERT INTO orders VALUES (2, 'new', 'again');
COMMIT;
SELECT key, type, payload->>'state' AS state FROM told();
-- at the end of the transaction, and not if it was undone
INSERT INTO orders SELECT i, 'new', 'swallow' FROM generate_series(11, 16) AS i;
DELETE FROM idemq.outbox;
BEGIN;
UPDATE orders SET state = 'paid' WHERE number = 11;
SELECT count(*) FROM told();
SAVEPOINT a;
UPDATE orders SET state = 'paid' WHERE number = 12;
ROLLBACK TO a;
SAVEPOINT b;
UPDATE orders SET state = 'paid' WHERE number = 13;
RELEASE b;
SELECT key, type FROM told();
SAVEPOINT c;
SAVEPOINT d;
UPDATE orders SET state = 'paid' WHERE number = 14;
RELEASE d;
ROLLBACK TO c;
SAVEPOINT e;
UPDATE orders SET state = 'paid' WHERE number = 15;
RELEASE e;
COMMIT;
SELECT key, type FROM told();
BEGIN;
UPDATE orders SET state = 'paid' WHERE number = 16;
ROLLBACK;
SELECT key, type FROM told();
DROP TRIGGER swallow ON orders_paid;
-- a subtree alone is captured: a row can leave it, and come in
SELECT outbox_uncapture('orders');
DELETE FROM orders;
INSERT INTO orders VALUES (1, 'old', 'a'), (2, 'new', 'b'), (50, 'old', 'c');
SELECT outbox_capture('orders_old', 'old', '{number}');
UPDATE orders SET state = 'new' WHERE number = 1;
UPDATE orders SET state = 'old' WHERE number = 2;
UPDATE orders SET number = 150 WHERE number = 50;
SELECT * FROM told();
-- so is a partition
SELECT outbox_uncapture('orders_old');
SELECT outbox_capture('orders_new', 'new', '{number}');
UPDATE orders SET state = 'paid' WHERE number = 1;
UPDATE orders SET state = 'new' WHERE number = 2;
SELECT * FROM told();

-- captured is one of them, the whole or the part
SELECT outbox_capture('orders');
SELECT outbox_uncapture('orders_new');
SELECT outbox_capture('orders', 'order', '{number}');
SELECT outbox_capture('orders_new');
SELECT outbox_uncapture('orders_new');
SELECT outbox_capture('orders_old');
CREATE TABLE captured (LIKE orders INCLUDING INDEXES);
SELECT outbox_capture('captured');
ALTER TABLE orders ATTACH PARTITION captured FOR VALUES IN ('captured');
SELECT outbox_uncapture('captured');
ALTER TABLE orders ATTACH PARTITION captured FOR VALUES IN ('captured');
-- what is detached is not captured any more
ALTER TABLE orders DETACH PARTITION captured;
INSERT INTO captured VALUES (1, 'captured', 'x');
SELECT * FROM told();

-- triggers inside of triggers, with moves on both levels
CREATE TABLE log (id int, part int) PARTITION BY LIST (part);
CREATE TABLE log_0 PARTITION OF log FOR VALUES IN (0);
CREATE TABLE log_1 PARTITION OF log FOR VALUES IN (1);
SELECT outbox_capture('log', key_columns => '{id}');
CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE log SET part = 1 - part WHERE id = coalesce(NEW.number, OLD.number);
	RETURN NULL;
END
$$;
DELETE FROM orders;
INSERT INTO orders VALUES (1, 'new'), (2, 'new');
INSERT INTO log VALUES (1, 0), (2, 0);
DELETE FROM idemq.outbox;
-- before and after ours, by name
CREATE TRIGGER a_follow AFTER INSERT OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION follow();
CREATE TRIGGER z_follow AFTER INSERT OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION follow();
UPDATE orders SET state = 'paid';
SELECT kind, key, type, count(*) FROM told() GROUP BY 1, 2, 3 ORDER BY 1, 2;
DROP TRIGGER a_follow ON orders;
DROP TRIGGER z_follow ON orders;

-- foreign keys that cascade into moves
CREATE TABLE parents (id int PRIMARY KEY);
CREATE TABLE children (id int, parent int REFERENCES parents ON UPDATE CASCADE ON DELETE SET NULL) PARTITION BY LIST (parent);
CREATE TABLE children_1 PARTITION OF children FOR VALUES IN (1);
CREATE TABLE children_2 PARTITION OF children FOR VALUES IN (2);
CREATE TABLE children_0 PARTITION OF children DEFAULT;
SELECT outbox_capture('children', key_columns => '{id}');
INSERT INTO parents VALUES (1), (3);
INSERT INTO children VALUES (10, 1), (11, 1), (12, 3);
UPDATE parents SET id = 2 WHERE id = 1;
DELETE FROM parents;
SELECT * FROM told();

-- converting a value changes the same table, and makes what is known of it stale: both are told, the inner one first
SET client_min_messages = warning;
CREATE TYPE busy;
CREATE FUNCTION busy_in(cstring) RETURNS busy LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION busy_out(busy) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE busy (input = busy_in, output = busy_out, internallength = 4, passedbyvalue, alignment = int4);
RESET client_min_messages;
CREATE TABLE nest (id int, part int, b busy, t text) PARTITION BY LIST (part);
CREATE TABLE nest_0 PARTITION OF nest FOR VALUES IN (0);
CREATE TABLE nest_1 (t text, b busy, part int, id int);
ALTER TABLE nest ATTACH PARTITION nest_1 FOR VALUES IN (1);
CREATE FUNCTION busy_json(busy) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
	IF busy_out($1)::text <> '0' AND NOT EXISTS (SELECT FROM nest WHERE t = 'nested') THEN
		ANALYZE nest_0;
		ANALYZE nest_1;
		BEGIN
			UPDATE nest SET b = '0', t = 'nested', part = 1 - part WHERE id = 99;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
		ANALYZE nest_0;
		ANALYZE nest_1;
	END IF;
	RETURN to_json(busy_out($1)::text);
END
$$;
CREATE CAST (busy AS json) WITH FUNCTION busy_json(busy);
SELECT outbox_capture('nest', key_columns => '{id}', with_old => true);
INSERT INTO nest VALUES (1, 0, '0', 'x'), (99, 0, '0', 'x');
DELETE FROM idemq.outbox;
UPDATE nest SET b = '2' WHERE id = 1;
UPDATE nest SET t = 'x' WHERE id = 99;
UPDATE nest SET part = 1, b = '3' WHERE id = 1;
UPDATE nest SET t = 'x' WHERE id = 99;
DELETE FROM nest;
SELECT key, type, payload->'before' AS before, payload->'after' AS after FROM told();

-- TRUNCATE of the whole is told once; that of a partition is not
SELECT outbox_capture('children', key_columns => '{id}', operations => '{truncate}');
TRUNCATE children;
TRUNCATE children_1;
TRUNCATE parents CASCADE;
SELECT * FROM told();

-- inheritance: each table by itself
CREATE TABLE animals (id int PRIMARY KEY, name text);
CREATE TABLE cats (claws int) INHERITS (animals);
SELECT outbox_capture('animals');
INSERT INTO animals VALUES (1, 'bird');
INSERT INTO cats VALUES (2, 'tom', 18);
UPDATE animals SET name = upper(name);
SELECT * FROM told();
SELECT outbox_capture('cats', key_columns => '{id}');
UPDATE animals SET name = lower(name);
SELECT * FROM told();
SELECT outbox_uncapture('animals');
UPDATE animals SET name = upper(name);
SELECT * FROM told();

\c :origin
DROP DATABASE regress_idemq_capture_partitions WITH (FORCE);
