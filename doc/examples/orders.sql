-- What the example's consumer needs in the database.  Run once, as a superuser:
--
--	createdb orders
--	psql -d orders -f orders.sql

CREATE EXTENSION IF NOT EXISTS idemq;

CREATE TABLE orders (
	id int PRIMARY KEY,
	email text NOT NULL,
	state text NOT NULL
);

-- Who changes orders may write events, and read none.
CREATE ROLE shop LOGIN;
GRANT SELECT, INSERT, UPDATE ON orders TO shop;
SELECT idem_grant('shop', 'emit');

-- The consumer gets every event about an order from now on, and its role may
-- consume for it alone.
SELECT outbox_subscribe('mailer', aggregatetypes => '{order}', max_attempts => 3);
CREATE ROLE mailer LOGIN;
GRANT SELECT ON orders TO mailer;
SELECT idem_grant('mailer', 'consume', 'mailer');
