--
-- The outbox: ledgers in turns
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_turn TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_turn SET lc_messages = 'C';
\c regress_idemq_turn
SET timezone = 'UTC';
SET datestyle = 'ISO';
SET client_min_messages = warning;
CREATE EXTENSION idemq;
CREATE FUNCTION get(name text, n integer DEFAULT 100, OUT token bigint, OUT events bigint, OUT ids uuid[]) LANGUAGE sql AS $$
SELECT max(f.token), count(*), array_agg(f.id ORDER BY f.seq) FROM outbox_fetch(name, n, '1 hour') AS f
$$;
CREATE FUNCTION turn() RETURNS bigint LANGUAGE sql AS 'SELECT coalesce(max(turn), 0) FROM idemq.turn';
-- rounds until it is that turn; each is over as soon as something was written in it
CREATE PROCEDURE turn_to(goal bigint, token bigint) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..600 LOOP
		EXIT WHEN turn() >= goal;
		PERFORM outbox_extend(token, '1 hour');
		SET idemq.test_without = 'worker,turn_time';
		CALL public.idem_maintain();
		RESET idemq.test_without;
		EXIT WHEN turn() >= goal;
		PERFORM pg_sleep(0.1);		-- sleep: polls, with a deadline
	END LOOP;
END
$$;
-- rows per table, and what counts
CREATE VIEW rows AS
SELECT turn(), (SELECT count(*) FROM idemq.ledger_0) AS l0, (SELECT count(*) FROM idemq.ledger_1) AS l1, (SELECT count(*) FROM idemq.ledger_2) AS l2,
	(SELECT count(*) FROM idemq.parked_0) AS p0, (SELECT count(*) FROM idemq.parked_1) AS p1, (SELECT count(*) FROM idemq.parked_2) AS p2;
CREATE VIEW positions AS
SELECT s.consumer, p.shard, p.turn, p.start_at, p.open_batches, p.parked_events
FROM idemq._positions AS p JOIN idemq.subscriptions AS s ON s.number = p.consumer ORDER BY 1, 2;

-- nothing was written, so nothing turns
SET idemq.test_without = 'worker,turn_time';
CALL idem_maintain();
CALL idem_maintain();
RESET idemq.test_without;
SELECT * FROM rows;

SELECT outbox_subscribe('ordered', start_at => 'earliest');
SELECT outbox_subscribe('unordered', start_at => 'earliest', ordered => false);
SELECT outbox_subscribe('sharded', start_at => 'earliest', shards => 3);
-- not before half a minute is over
INSERT INTO idemq.turn VALUES (0, now());
CALL idem_maintain();
CALL idem_maintain();
SELECT * FROM rows;
-- nor while there is little, and it is young
UPDATE idemq.turn SET began_at = began_at - interval '1 minute';
CALL idem_maintain();
CALL idem_maintain();
SELECT * FROM rows;
-- after an hour
UPDATE idemq.turn SET began_at = began_at - interval '1 hour';
CALL idem_maintain();
SELECT * FROM rows;
SELECT count(*) FROM idemq.turn;

-- leases, one that is done, and parked events
INSERT INTO idemq.outbox (aggregatetype, aggregateid, not_before)
SELECT 'order', n % 4, CASE WHEN n = 8 THEN now() + interval '1 hour' END FROM generate_series(1, 8) AS n;
SELECT token, events, ids FROM get('ordered', 4) \gset
SELECT action FROM outbox_nack(:token, (:'ids'::uuid[])[2], 'no', '1 hour');
SELECT outbox_ack(:token);
SELECT token, events FROM get('ordered') \gset
SELECT :events AS events;
SELECT token, events FROM get('unordered', 2) \gset u1_
SELECT token, events FROM get('unordered', 2) \gset u2_
SELECT token, events FROM get('unordered', 2) \gset u3_
SELECT outbox_ack(:u2_token);
SELECT consumer, shard, turn, open_batches, parked_events FROM positions;
CREATE TABLE before AS SELECT consumer, shard, start_at::text, open_batches, parked_events FROM positions;
CALL turn_to(2, :token);
SELECT turn, l0 > 0 AS l0, l1 > 0 AS l1, l2 > 0 AS l2, p0, p1, p2 FROM rows;
CALL turn_to(3, :token);
SELECT turn, l0 > 0 AS l0, l1 > 0 AS l1, l2 > 0 AS l2, p0, p1, p2 FROM rows;
CALL turn_to(4, :token);
SELECT turn, l0 > 0 AS l0, l1 > 0 AS l1, l2 > 0 AS l2, p0, p1, p2 FROM rows;
CALL turn_to(8, :token);
SELECT turn, l0 > 0 AS l0, l1 > 0 AS l1, l2 > 0 AS l2, p0, p1, p2 FROM rows;
-- nothing has changed
SELECT consumer, shard, start_at::text, open_batches, parked_events FROM positions EXCEPT SELECT * FROM before;
SELECT outbox_ack(:token), outbox_ack(:u1_token), outbox_ack(:u3_token);
\set VERBOSITY sqlstate
SELECT outbox_ack(:u2_token);
\set VERBOSITY default
SELECT token, events FROM get('unordered') \gset
SELECT outbox_ack(:token);
SELECT state, seq, due > now() + interval '50 minutes' AS due FROM idemq._parked AS p
WHERE NOT EXISTS (SELECT FROM idemq._parked AS d WHERE d.consumer = p.consumer AND d.shard = p.shard AND d.place = p.place AND d.entry > p.entry)
ORDER BY p.consumer, p.place;
-- what nobody needs any more goes
SELECT outbox_unsubscribe('sharded');
SELECT outbox_unsubscribe('unordered');
SELECT outbox_seek('ordered', now());
INSERT INTO idemq.outbox (aggregatetype) VALUES ('order');
SELECT token, events FROM get('ordered') \gset
CALL turn_to(11, :token);
SELECT turn, p0, p1, p2 FROM rows;
SELECT consumer, shard, turn >= 10 AS turn, open_batches, parked_events FROM positions;
SELECT count(DISTINCT consumer) FROM idemq._ledger;

\c :origin
DROP DATABASE regress_idemq_turn WITH (FORCE);
