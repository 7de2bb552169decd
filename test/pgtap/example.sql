-- How to test an exactly-once handler of your own with pgTAP: copy this file.
--
--		pg_prove -d test_database example.sql
--
-- Everything happens in one transaction, which is rolled back at the end: claims
-- too are undone by that, so tests do not disturb each other and can be run again.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS idemq;
RESET client_min_messages;

BEGIN;
SELECT plan(21);

-- ---- what is tested: a table, and the handler of a message -----------------
--
-- In your project this is in the database already.

CREATE TABLE account (id integer PRIMARY KEY, balance numeric NOT NULL CHECK (balance >= 0));
CREATE TABLE payment (account integer NOT NULL REFERENCES account, amount numeric NOT NULL);

CREATE FUNCTION handle_payment(message_id text, payload jsonb) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
	IF NOT idem_claim(message_id, 'payments') THEN
		RETURN 'duplicate';
	END IF;
	INSERT INTO payment VALUES ((payload ->> 'account')::integer, (payload ->> 'amount')::numeric);
	UPDATE account SET balance = balance + (payload ->> 'amount')::numeric
	WHERE id = (payload ->> 'account')::integer;
	RETURN 'handled';
END
$$;

INSERT INTO account VALUES (1, 100), (2, 0);

-- ---- the first delivery has its effect -------------------------------------

SELECT is(handle_payment('m-1', '{"account": 1, "amount": 10}'), 'handled', 'the first delivery is handled');
SELECT is(balance, 110::numeric, 'the payment is booked') FROM account WHERE id = 1;
SELECT isnt(idem_seen('m-1', 'payments'), NULL, 'the message is known from then on');

-- ---- the second has none, and is no error ----------------------------------

SELECT lives_ok($$ SELECT handle_payment('m-1', '{"account": 1, "amount": 10}') $$, 'a redelivery is no error');
SELECT is(handle_payment('m-1', '{"account": 1, "amount": 10}'), 'duplicate', 'a redelivery is refused');
SELECT is(balance, 110::numeric, 'nothing is booked twice') FROM account WHERE id = 1;
SELECT is(count(*), 1::bigint, 'there is one payment') FROM payment;
-- not even with another content: it is the id that counts
SELECT is(handle_payment('m-1', '{"account": 2, "amount": 99}'), 'duplicate', 'the id decides, not the content');
SELECT is(balance, 0::numeric, 'the other account is untouched') FROM account WHERE id = 2;

-- ---- a failure gives the message back --------------------------------------
--
-- throws_ok runs the handler in a subtransaction, as a worker that dies or
-- rolls back would: the claim goes together with the effect.

SELECT throws_ok($$ SELECT handle_payment('m-2', '{"account": 2, "amount": -5}') $$, '23514', NULL, 'an overdraft fails');
SELECT is(idem_seen('m-2', 'payments'), NULL, 'the message was not claimed');
SELECT is_empty('SELECT * FROM payment WHERE account = 2', 'nothing was booked');
SELECT is(handle_payment('m-2', '{"account": 2, "amount": 5}'), 'handled', 'it can be handled when it comes again');

-- ---- a batch that holds a message twice ------------------------------------

SELECT results_eq(
	$$ SELECT handle_payment(id, '{"account": 1, "amount": 1}') FROM unnest('{m-3,m-4,m-3}'::text[]) AS id $$,
	ARRAY['handled', 'handled', 'duplicate'], 'twice in one batch is handled once');

-- ---- other consumers of the same message -----------------------------------

SELECT is(idem_claim('m-1', 'mails'), true, 'another scope handles the same message for itself');
SELECT is(idem_try_claim('m-1', 'mails'), 'mine', 'once');

-- ---- an operator gives a message back --------------------------------------

SELECT is(idem_forget('m-3', 'payments'), true, 'forgotten');
SELECT is(handle_payment('m-3', '{"account": 1, "amount": 1}'), 'handled', 'and handled again, on purpose');

-- ---- messages without an id of their own -----------------------------------

SELECT is(idem_fingerprint('{"b": 2, "a": 1.0}'), idem_fingerprint('{"a": 1, "b": 2}'), 'equal content has one fingerprint');
SELECT isnt(idem_key('order', '4', '2'), idem_key('order', '42'), 'composite keys do not run into each other');

-- ---- the application's role may claim, and no more -------------------------

CREATE ROLE example_application;
DO $$ BEGIN PERFORM idem_grant('example_application', 'claim', 'payments'); END $$;
SET LOCAL ROLE example_application;
SELECT throws_ok($$ SELECT idem_claim('m-5', 'mails') $$, '42501', NULL, 'the scope of others is theirs');
RESET ROLE;

SELECT * FROM finish();
ROLLBACK;
