/* How far the consumers are, and what is held up. */

CREATE FUNCTION idemq._consumers(
	OUT consumer text, OUT number int, OUT shard int, OUT ordered boolean, OUT last_seq bigint, OUT lag_events bigint,
	OUT lag interval, OUT delivered bigint, OUT acked bigint, OUT retried bigint, OUT dead bigint,
	OUT in_flight bigint, OUT retrying bigint, OUT blocked bigint, OUT last_progress timestamptz, OUT lease text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idemq_consumers'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idemq._consumers() IS 'serves the view idemq.consumers';

CREATE VIEW idemq.consumers AS
SELECT c.consumer, c.shard, c.ordered, c.last_seq, c.lag_events,
	c.lag, c.delivered, c.acked, c.retried, c.in_flight, c.retrying, c.blocked, c.dead, c.last_progress,
	CASE WHEN c.lease IS NOT NULL THEN 'lease' WHEN l.pid IS NOT NULL THEN 'backend'
		WHEN l.gid IS NOT NULL THEN 'prepared' END AS held_by_kind,
	coalesce(c.lease, l.pid::text, l.gid) AS held_by
FROM idemq._consumers() AS c
LEFT JOIN (
	SELECT k.classid::bigint AS number, k.objid::bigint AS shard, k.pid, p.gid
	FROM pg_catalog.pg_locks AS k
	LEFT JOIN pg_catalog.pg_locks AS x ON k.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.granted
		AND x.virtualtransaction = k.virtualtransaction
	LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = x.transactionid
	/* the class SHARD of src/lock.h */
	WHERE k.locktype = 'advisory' AND k.objsubid = 7427 AND k.granted
		AND k.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
) AS l ON l.number = c.number AND l.shard = c.shard;
COMMENT ON VIEW idemq.consumers IS
'how far each shard of each consumer is; the counters count since the server started, whatever became of the transactions, and are null without shared_preload_libraries';
COMMENT ON COLUMN idemq.consumers.consumer IS 'the consumer';
COMMENT ON COLUMN idemq.consumers.shard IS 'from 0; events of one key are in one shard';
COMMENT ON COLUMN idemq.consumers.ordered IS 'events of a key are delivered in order';
COMMENT ON COLUMN idemq.consumers.last_seq IS 'how far the log was read; single events of longer transactions may come later';
COMMENT ON COLUMN idemq.consumers.lag_events IS 'estimate of how many wait to be handed out, by the numbers drawn; what is in flight or parked not counted';
COMMENT ON COLUMN idemq.consumers.lag IS 'age of the oldest event that is not dealt with; what is parked not counted';
COMMENT ON COLUMN idemq.consumers.delivered IS 'events handed out, each time counted';
COMMENT ON COLUMN idemq.consumers.acked IS 'events acknowledged';
COMMENT ON COLUMN idemq.consumers.retried IS 'failures after which an event is tried again';
COMMENT ON COLUMN idemq.consumers.in_flight IS 'events under a lease that is good';
COMMENT ON COLUMN idemq.consumers.retrying IS 'events that have failed and wait for their time; see idemq.parked';
COMMENT ON COLUMN idemq.consumers.blocked IS 'events that wait behind one of their key; see idemq.parked';
COMMENT ON COLUMN idemq.consumers.dead IS 'events that became dead letters';
COMMENT ON COLUMN idemq.consumers.last_progress IS 'when something changed last: a fetch that found something, an ack, a step over events for others';
COMMENT ON COLUMN idemq.consumers.held_by_kind IS 'lease: a worker has events; backend, prepared: a transaction has fetched or acknowledged, and is open';
COMMENT ON COLUMN idemq.consumers.held_by IS 'the role of the lease that ends last, and when; the process id; the name of the prepared transaction';

CREATE VIEW idemq.parked AS
SELECT p.consumer, p.shard, p.seq, e.id, e.aggregatetype, e.aggregateid, p.dead_id, p.state, p.attempts, p.due,
	CASE WHEN p.ordered AND p.state <> 'leased' AND p.first_place <> p.place THEN p.first_seq END AS blocked_by,
	p.first_failed_at, p.error
FROM (
	SELECT s.consumer, s.ordered, q.*, first_value(q.place) OVER of_key AS first_place, first_value(q.seq) OVER of_key AS first_seq
	FROM (
		SELECT DISTINCT ON (r.consumer, r.shard, r.place) r.consumer AS number, r.shard, r.place, r.key, r.rank, r.seq, r.dead_id,
			CASE WHEN r.state = 'blocked' AND r.due IS NOT NULL THEN 'delayed' ELSE r.state END AS state,
			r.attempts, r.due, r.first_failed_at, r.error
		FROM idemq._parked AS r
		ORDER BY r.consumer, r.shard, r.place, r.entry DESC
	) AS q
	JOIN idemq.subscriptions AS s ON s.number = q.number
	CROSS JOIN LATERAL (
		SELECT g.parked_from FROM idemq._ledger AS g
		WHERE g.consumer = q.number AND g.shard = q.shard ORDER BY g.entry DESC LIMIT 1
	) AS g
	WHERE q.state <> 'done' AND q.place >= g.parked_from
	WINDOW of_key AS (PARTITION BY q.number, q.shard, q.key ORDER BY q.rank, q.place)
) AS p
LEFT JOIN LATERAL (
	SELECT o.id, o.aggregatetype, o.aggregateid FROM idemq.outbox AS o WHERE p.dead_id IS NULL AND o.seq = p.seq
	UNION ALL
	SELECT d.id, d.aggregatetype, d.aggregateid FROM idemq.dead_letters AS d WHERE d.dead_id = p.dead_id
	LIMIT 1
) AS e ON true;
COMMENT ON VIEW idemq.parked IS 'events that have failed, wait behind one that has, were given back, or are not due yet';
COMMENT ON COLUMN idemq.parked.consumer IS 'the consumer';
COMMENT ON COLUMN idemq.parked.shard IS 'its shard';
COMMENT ON COLUMN idemq.parked.seq IS 'the event''s number';
COMMENT ON COLUMN idemq.parked.id IS 'the event''s id; null: its partition is gone';
COMMENT ON COLUMN idemq.parked.aggregatetype IS 'what kind of thing it is about';
COMMENT ON COLUMN idemq.parked.aggregateid IS 'which thing it is about';
COMMENT ON COLUMN idemq.parked.dead_id IS 'the dead letter that it is replayed from';
COMMENT ON COLUMN idemq.parked.state IS 'retry: has failed; blocked: waits behind another one; delayed: is handed out when it is due; leased: a worker has it';
COMMENT ON COLUMN idemq.parked.attempts IS 'how often it has failed';
COMMENT ON COLUMN idemq.parked.due IS 'when it is handed out again';
COMMENT ON COLUMN idemq.parked.blocked_by IS 'number of the event of its key that it waits for';
COMMENT ON COLUMN idemq.parked.first_failed_at IS 'when it failed for the first time';
COMMENT ON COLUMN idemq.parked.error IS 'of the last failure';

REVOKE ALL ON FUNCTION idemq._consumers() FROM PUBLIC;
REVOKE ALL ON idemq.consumers, idemq.parked FROM PUBLIC;
