/*
 * The outbox as people write it instead, and the floor that it stands on.
 *
 * log: a database with idemq in it.
 */

-- the columns and the defaults of the log, no partition, no index
CREATE TABLE bare (LIKE idemq.outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS);

-- a queue as in every tutorial, as well as it can be written: taken with SKIP
-- LOCKED in the order of its ids, the others found by a partial index
CREATE TABLE queue
(
	id			bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	status		text NOT NULL DEFAULT 'new',
	taken_at	timestamptz,
	created_at	timestamptz NOT NULL DEFAULT now(),
	aggregatetype text NOT NULL,
	aggregateid	text,
	type		text,
	payload		jsonb
);
CREATE INDEX queue_new ON queue (id) WHERE status = 'new';

-- written in transactions of a thousand events

CREATE PROCEDURE fill_idemq(events int)
LANGUAGE plpgsql AS $$
BEGIN
	FOR b IN 0 .. (events - 1) / 1000 LOOP
		INSERT INTO idemq.outbox (aggregatetype, aggregateid, type, payload)
			SELECT 'order', id, 'paid', payload FROM event
			WHERE n > b * 1000 AND n <= least((b + 1) * 1000, events);
		COMMIT;
	END LOOP;
END $$;

CREATE PROCEDURE fill_queue(events int)
LANGUAGE plpgsql AS $$
BEGIN
	FOR b IN 0 .. (events - 1) / 1000 LOOP
		INSERT INTO queue (aggregatetype, aggregateid, type, payload)
			SELECT 'order', id, 'paid', payload FROM event
			WHERE n > b * 1000 AND n <= least((b + 1) * 1000, events);
		COMMIT;
	END LOOP;
END $$;

-- PgQ's batches are made by its ticker: one for each transaction
CREATE PROCEDURE fill_pgq(events int)
LANGUAGE plpgsql AS $$
BEGIN
	FOR b IN 0 .. (events - 1) / 1000 LOOP
		PERFORM pgq.insert_event_raw('bench', NULL, now(), NULL, NULL, 'paid', data, 'order', id, NULL, NULL)
			FROM event WHERE n > b * 1000 AND n <= least((b + 1) * 1000, events);
		COMMIT;
		PERFORM pgq.ticker('bench');
		COMMIT;
	END LOOP;
END $$;
