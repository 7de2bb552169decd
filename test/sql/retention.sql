--
-- The outbox: making its partitions, and letting them go
--
\set origin :DBNAME
CREATE DATABASE regress_idemq_retention TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idemq_retention SET lc_messages = 'C';
\c regress_idemq_retention
SET timezone = 'UTC';
SET datestyle = 'ISO';
SET client_min_messages = warning;
CREATE EXTENSION idemq;
-- calls it until it has had its effect: a round of the worker may be running
CREATE PROCEDURE maintain_until(condition text) LANGUAGE plpgsql AS $$
DECLARE
	done boolean;
BEGIN
	FOR i IN 1..600 LOOP
		CALL public.idem_maintain();
		EXECUTE 'SELECT ' || condition INTO done;
		EXIT WHEN done;
		PERFORM pg_sleep(0.1);		-- sleep: polls, with a deadline
	END LOOP;
END
$$;
CREATE VIEW leaves AS SELECT * FROM idemq.partitions WHERE parent = 'idemq.outbox'::regclass;
CREATE PROCEDURE make(name text, lower timestamptz, upper timestamptz) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TABLE idemq.%I (LIKE idemq.outbox INCLUDING CONSTRAINTS INCLUDING DEFAULTS)', name);
	EXECUTE format('CREATE INDEX ON idemq.%I (seq)', name);
	EXECUTE format('CREATE INDEX ON idemq.%I (xid, seq)', name);
	EXECUTE format('ALTER TABLE idemq.outbox ATTACH PARTITION idemq.%I FOR VALUES FROM (%L) TO (%L)', name, lower, upper);
END
$$;
-- an old event
CREATE PROCEDURE emit(lower timestamptz, type text DEFAULT 'order', key text DEFAULT NULL, at timestamptz DEFAULT NULL, due timestamptz DEFAULT NULL) LANGUAGE sql AS $$
INSERT INTO idemq.outbox (leaf, created_at, aggregatetype, aggregateid, not_before) VALUES (lower, coalesce(at, lower), type, key, due)
$$;
-- how many rows, by partition
CREATE VIEW kept AS
SELECT l.leaf, l.state, count(o.tableoid) AS events FROM leaves AS l LEFT JOIN idemq.outbox AS o ON o.tableoid = l.leaf
WHERE l.upper < now() GROUP BY 1, 2, l.lower ORDER BY l.lower;

-- at first there is the permanent one
SELECT leaf, lower, upper, state, filter FROM leaves;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('order');
SELECT tableoid::regclass, leaf FROM idemq.outbox;

-- making: names, bounds, indexes
CALL maintain_until('max(upper) >= now() + interval ''4 days'' FROM leaves');
SELECT count(*) BETWEEN 5 AND 6 AS enough, max(upper) >= now() + interval '4 days' AS ahead,
	bool_and(follows IS NOT false) AS gapless, bool_and(upper - lower = interval '1 day') AS days,
	bool_and(leaf::text = to_char(lower, '"idemq.outbox_p"YYYYMMDD')) AS named
FROM (SELECT *, lag(upper) OVER (ORDER BY lower) = lower AS follows FROM leaves WHERE state <> 'permanent') AS l;
SELECT state, count(*) >= 1 AS some FROM leaves GROUP BY 1 ORDER BY 1;
SELECT DISTINCT c.reloptions, c.relreplident, a.amname FROM leaves AS l JOIN pg_class AS c ON c.oid = l.leaf JOIN pg_am AS a ON a.oid = c.relam;
SELECT DISTINCT regexp_replace(pg_get_indexdef(i.indexrelid), '\d{8}', 'N', 'g') AS index, i.indisvalid
FROM leaves JOIN pg_index AS i ON i.indrelid = leaves.leaf WHERE state <> 'permanent' ORDER BY 1;
SELECT DISTINCT conname FROM leaves JOIN pg_constraint ON conrelid = leaf AND contype = 'c' ORDER BY 1;
-- the index names that are taken are left to their owners
CREATE TABLE idemq.in_the_way (a integer);
SELECT format('CREATE INDEX %I ON idemq.in_the_way (a)', to_char(max(upper), '"outbox_p"YYYYMMDD"_xid"')) FROM leaves \gexec
SET idemq.premake = 5;
CALL maintain_until('max(upper) >= now() + interval ''5 days'' FROM leaves');
SELECT count(*) FROM leaves WHERE leaf::text LIKE '%\_1';
RESET idemq.premake;
DROP TABLE idemq.in_the_way;
-- hours
SELECT max(upper) AS edge FROM leaves \gset
SET idemq.partition_interval = '1h';
SET idemq.premake = 140;
CALL maintain_until('max(upper) >= now() + interval ''140 hours'' FROM leaves');
SELECT count(*) > 10 AS many, bool_and(leaf::text = to_char(lower, '"idemq.outbox_p"YYYYMMDD"_"HH24MISS')) AS named
FROM leaves WHERE lower >= :'edge';
RESET idemq.partition_interval;
RESET idemq.premake;

-- the permanent partition is emptied when another one is there and it is time
SELECT * FROM kept;
UPDATE idemq.outbox SET created_at = '2001-01-01';
CALL maintain_until('NOT EXISTS (SELECT FROM idemq.outbox_permanent)');
SELECT * FROM kept;

-- without a consumer: by time alone, by the bounds and by the newest event
CALL make('o_old', '2001-01-01', '2001-01-02');
CALL make('o_empty', '2001-01-02', '2001-01-03');
CALL make('o_served', '2001-01-03', '2001-01-04');
CALL make('o_recent', date_trunc('day', now()) - interval '1 day', date_trunc('day', now()));
CALL emit('2001-01-01');
CALL emit('2001-01-03');
CALL emit('2001-01-03', at => now());
SELECT * FROM kept;
CALL maintain_until('to_regclass(''idemq.o_empty'') IS NULL');
SELECT * FROM kept;
DROP TABLE idemq.o_served, idemq.o_recent;

-- a consumer holds what it has not read
SELECT outbox_subscribe('late');
CALL make('o_1', '2001-01-01', '2001-01-02');
CALL make('o_2', '2001-01-02', '2001-01-03');
CALL make('o_3', '2001-01-03', '2001-01-04');
CALL emit('2001-01-01', key => '1');
CALL emit('2001-01-01', key => '2');
CALL emit('2001-01-02', key => '3');
CALL emit('2001-01-03', key => '4');
CREATE FUNCTION get(name text, n integer DEFAULT 100, OUT token bigint, OUT events bigint, OUT ids uuid[]) LANGUAGE sql AS $$
SELECT max(f.token), count(*), array_agg(f.id ORDER BY f.seq) FROM outbox_fetch(name, n) AS f
$$;
SELECT outbox_subscribe('early', start_at => 'earliest');
CALL idem_maintain();
SELECT * FROM kept;
-- in a lease of a window that it has not read to the end: nothing goes
SELECT token, events FROM get('early', 2) \gset
SELECT outbox_ack(:token), :events AS events;
SELECT token, events, ids FROM get('early') \gset
-- all of the window is read, and two are in a lease: what is before them goes
SELECT :events AS events;
CALL idem_maintain();
SELECT * FROM kept;
-- the other consumer has them in a lease of its own, and acknowledges
SELECT token, events FROM get('late') \gset late_
CALL idem_maintain();
SELECT * FROM kept;
SELECT outbox_ack(:late_token);
CALL maintain_until('to_regclass(''idemq.o_1'') IS NULL');
SELECT * FROM kept;
-- one is acknowledged, one fails: it is parked, and holds its partition
SELECT outbox_ack(:token, (:'ids'::uuid[])[1:1]);
SELECT action, attempt FROM outbox_nack(:token, (:'ids'::uuid[])[2], 'no');
CALL maintain_until('to_regclass(''idemq.o_2'') IS NULL');
SELECT * FROM kept;
-- it is given up
SELECT outbox_seek('early', now());
CALL maintain_until('to_regclass(''idemq.o_3'') IS NULL');
SELECT * FROM kept;

-- hand-made positions: a transaction that was running, and one that came later
CREATE PROCEDURE stand(start_at text, origins bigint[] DEFAULT NULL, replaying boolean DEFAULT false) LANGUAGE sql AS $$
INSERT INTO idemq.ledger_0 (consumer, shard, entry, turn, written_at, origins, replaying, start_at, start_next, start_seq, last_seq,
	parked, deliveries, expiries, open_batches, open_from, parked_from, next_place, parked_events)
SELECT consumer, shard, entry + 1, 0, now(), coalesce(stand.origins, l.origins), stand.replaying, stand.start_at::pg_snapshot,
	start_next, start_seq, last_seq, parked, deliveries, expiries, 0, entry + 1, parked_from, next_place, 0
FROM idemq._ledger AS l WHERE consumer = (SELECT number FROM idemq.subscriptions WHERE subscriptions.consumer = 'early') ORDER BY entry DESC LIMIT 1
$$;
CALL make('o_4', '2001-01-04', '2001-01-05');
CALL emit('2001-01-04');
SELECT xid AS xid, xid::text::bigint + 1 AS above FROM idemq.outbox \gset
SELECT outbox_unsubscribe('late');
CALL stand(format('%s:%s:%s', :xid, :above, :xid), ARRAY[idemq._outbox_origin()]);
CALL idem_maintain();
SELECT * FROM kept;
CALL stand(format('%s:%s:', :xid, :xid));
CALL idem_maintain();
SELECT * FROM kept;
-- those that cannot judge
CALL stand(format('%s:%s:', :above, :above), '{1}');
CALL idem_maintain();
SELECT * FROM kept;
CALL stand(format('%s:%s:', :above, :above), ARRAY[idemq._outbox_origin()], true);
CALL idem_maintain();
SELECT * FROM kept;
-- what is of another origin than the position judges was given up
CALL stand(format('%s:%s:', :xid, :xid));
UPDATE idemq.outbox SET origin = 1;
CALL maintain_until('to_regclass(''idemq.o_4'') IS NULL');
SELECT * FROM kept;
-- of one that it judges
CALL make('o_5', '2001-01-05', '2001-01-06');
CALL emit('2001-01-05');
UPDATE idemq.outbox SET origin = 1;
SELECT xid AS xid, xid::text::bigint + 1 AS above FROM idemq.outbox \gset
CALL stand(format('%s:%s:', :xid, :xid), ARRAY[1, idemq._outbox_origin()]);
CALL idem_maintain();
SELECT * FROM kept;
CALL stand(format('%s:%s:', :above, :above), ARRAY[1, idemq._outbox_origin()]);
CALL maintain_until('to_regclass(''idemq.o_5'') IS NULL');
SELECT * FROM kept;
-- a shard without a position
CALL make('o_6', '2001-01-06', '2001-01-07');
CALL emit('2001-01-06');
UPDATE idemq.subscriptions SET shards = 2;
CALL idem_maintain();
SELECT * FROM kept;
SELECT outbox_unsubscribe('early');
-- a view on it: a warning, and the others go on
CREATE VIEW watched AS SELECT seq FROM idemq.o_6;
CALL make('o_7', '2001-01-07', '2001-01-08');
CALL idem_maintain();
SELECT * FROM kept;
DROP VIEW watched;
CALL maintain_until('to_regclass(''idemq.o_6'') IS NULL');
SELECT * FROM kept;
-- what was detached is not ours
CALL make('o_8', '2001-01-08', '2001-01-09');
CALL emit('2001-01-08');
ALTER TABLE idemq.outbox DETACH PARTITION idemq.o_8;
CALL idem_maintain();
SELECT count(*) FROM idemq.o_8;
DROP TABLE idemq.o_8;

-- an idle consumer that wants something else is moved along
CALL make('o_9', '2001-01-09', '2001-01-10');
SELECT outbox_subscribe('rare', aggregatetypes => '{rare}');
SELECT outbox_subscribe('stopped');
SELECT outbox_subscribe('sharded', aggregatetypes => '{rare}', shards => 3);
CALL emit('2001-01-09', key => '1');
CREATE VIEW moved AS
SELECT s.consumer, p.shard, p.start_seq = (SELECT last_value FROM idemq.outbox_seq) AS moved
FROM idemq._positions AS p JOIN idemq.subscriptions AS s ON s.number = p.consumer ORDER BY 1, 2;
SELECT * FROM moved;
SET idemq.outbox_retention = '1s';
CALL maintain_until('count(*) = 4 FROM moved WHERE moved');
RESET idemq.outbox_retention;
SELECT * FROM moved;
SELECT * FROM kept;
SELECT outbox_unsubscribe('stopped');
CALL maintain_until('to_regclass(''idemq.o_9'') IS NULL');
SELECT * FROM kept;

-- checkpoints: the first one shows nothing
SELECT taken_at, snapshot, next_xid, last_seq, origin = idemq._outbox_origin() AS here FROM idemq.checkpoints ORDER BY taken_at LIMIT 1;
SELECT count(*) FROM idemq.checkpoints;
-- one a minute, if there is anything new
CALL idem_maintain();
SELECT count(*) FROM idemq.checkpoints;
UPDATE idemq.checkpoints SET taken_at = taken_at - interval '1 hour' WHERE isfinite(taken_at);
CALL maintain_until('count(*) = 3 FROM idemq.checkpoints');
UPDATE idemq.checkpoints SET taken_at = taken_at - interval '1 hour' WHERE isfinite(taken_at);
CALL idem_maintain();
SELECT count(*) FROM idemq.checkpoints;
INSERT INTO idemq.outbox (aggregatetype) VALUES ('order');
CALL maintain_until('count(*) = 4 FROM idemq.checkpoints');
SELECT taken_at > now() - interval '1 minute' AS recent, pg_snapshot_xmax(snapshot) <= next_xid AS next,
	last_seq = (SELECT last_value FROM idemq.outbox_seq) AS last
FROM idemq.checkpoints ORDER BY taken_at DESC LIMIT 1;
-- they go when the log holds nothing from before the next one, and the retention is over
INSERT INTO idemq.checkpoints SELECT '2001-01-01'::timestamptz + n * interval '1 hour', 1, '3:3:', '3', 0 FROM generate_series(0, 1199) AS n;
CALL make('o_10', '2001-01-10', '2001-01-11');
CALL emit('2001-01-10', at => now());
SELECT min(taken_at) FROM idemq.checkpoints;
CALL maintain_until('isfinite(min(taken_at)) FROM idemq.checkpoints');
SELECT min(taken_at) FROM idemq.checkpoints;
DROP TABLE idemq.o_10;
CALL maintain_until('count(*) <= 1 FROM idemq.checkpoints WHERE taken_at < ''2002-01-01''');
SELECT count(*) FILTER (WHERE taken_at < '2002-01-01') <= 1 AS aged_out, count(*) >= 4 AS kept FROM idemq.checkpoints;

-- dead letters
INSERT INTO idemq.dead_letters (consumer, seq, created_at, id, aggregatetype, aggregateid, attempts, first_failed_at, died_at)
SELECT 'rare', n, '2001-01-01', gen_random_uuid(), 'rare', n, 5, '2001-01-01', CASE WHEN n > 1200 THEN now() ELSE '2001-01-01' END
FROM generate_series(1, 2100) AS n;
SELECT dead_letter_replay('rare', ids => ARRAY(SELECT dead_id FROM idemq.dead_letters WHERE seq = 1));
CALL maintain_until('count(*) = 1 FROM idemq.dead_letters WHERE died_at < now() - interval ''1 year''');
SELECT count(*) FILTER (WHERE died_at < now() - interval '1 year') AS old, count(*) FILTER (WHERE replayed_at IS NOT NULL) AS replayed, count(*)
FROM idemq.dead_letters;
SELECT token, events FROM get('rare') \gset
SELECT outbox_ack(:token), :events AS events;
CALL maintain_until('count(*) = 0 FROM idemq.dead_letters WHERE died_at < now() - interval ''1 year''');
SELECT count(*) FROM idemq.dead_letters;
SET idemq.dead_retention = '1s';
UPDATE idemq.dead_letters SET died_at = now() - interval '2 seconds';
CALL maintain_until('count(*) = 0 FROM idemq.dead_letters');
SELECT count(*) FROM idemq.dead_letters;
RESET idemq.dead_retention;

\c :origin
DROP DATABASE regress_idemq_retention WITH (FORCE);
