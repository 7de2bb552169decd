-- What the example's order service needs in the database.  Run once, as a
-- superuser:
--
--	createdb orders
--	psql -d orders -f orders.sql

CREATE EXTENSION idemq;

CREATE TABLE customers (
	account text PRIMARY KEY,
	email text NOT NULL,
	orders int NOT NULL DEFAULT 0
);

CREATE TABLE orders (
	id int PRIMARY KEY,
	account text NOT NULL REFERENCES customers,
	amount numeric(12,2) NOT NULL
);

INSERT INTO customers (account, email)
	SELECT name, name || '@example.com' FROM unnest('{alice,bob,carol,dave}'::text[]) AS name;

-- The service claims the requests that it is sent, and may write events; it
-- can read none.
CREATE ROLE shop LOGIN;
GRANT SELECT, UPDATE ON customers TO shop;
GRANT INSERT ON orders TO shop;
SELECT idem_grant('shop', 'claim');
SELECT idem_grant('shop', 'emit');

-- The relay's consumer gets every event about an order from now on, and its
-- role may consume for it alone; "monitor" is for idemq-relay --drain.
SELECT outbox_subscribe('orders', aggregatetypes => '{order}', max_attempts => 3);
CREATE ROLE relay LOGIN;
SELECT idem_grant('relay', 'consume', 'orders');
SELECT idem_grant('relay', 'monitor');
