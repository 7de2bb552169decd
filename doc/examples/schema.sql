-- What the example's worker needs in the database.  Run once, as a superuser:
--
--	createdb payments
--	psql -d payments -f schema.sql

CREATE EXTENSION idemq;

CREATE TABLE accounts (
	account text PRIMARY KEY,
	balance numeric(12,2) NOT NULL DEFAULT 0
);

-- No unique constraint on message_id: what keeps a payment from being applied
-- twice is the claim alone, so a second one would show.
CREATE TABLE payments (
	message_id text NOT NULL,
	account text NOT NULL REFERENCES accounts,
	amount numeric(12,2) NOT NULL CHECK (amount > 0 AND amount < 1000000),
	applied_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO accounts (account) VALUES ('alice'), ('bob'), ('carol'), ('dave');

-- The worker's role may do what its transaction does, and claim.
CREATE ROLE billing LOGIN;
GRANT SELECT, UPDATE ON accounts TO billing;
GRANT INSERT ON payments TO billing;
SELECT idem_grant('billing', 'claim');

-- Another service that consumes the same messages into this database gets
-- another scope: its claims and these do not know each other.
ALTER ROLE billing SET idemq.scope = 'billing';
