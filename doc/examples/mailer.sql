-- What the example's consumer needs in the database, beside what is in
-- orders.sql.  Run once, as a superuser:
--
--	psql -d orders -f mailer.sql

-- The consumer gets every event about an order from now on, and its role may
-- consume for it alone.
SELECT outbox_subscribe('mailer', aggregatetypes => '{order}', max_attempts => 3);
CREATE ROLE mailer LOGIN;
GRANT SELECT ON customers TO mailer;
SELECT idem_grant('mailer', 'consume', 'mailer');
