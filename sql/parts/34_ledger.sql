/*
 * Where the consumers are: settings, ledgers, parked events, checkpoints.
 *
 * Ledgers and parked tables are appended to, never updated: the row with the
 * highest entry of a shard counts.  Three of each are used in turn (idemq.turn).
 *
 * The columns of subscriptions, turn and the ledgers are known to the C code by their
 * places: new ones come last.
 */

CREATE TABLE idemq.subscriptions
(
	consumer	text NOT NULL PRIMARY KEY,
	number		int NOT NULL UNIQUE,
	aggregatetypes text[],
	shards		int NOT NULL,
	next_shards	int,
	barrier		pg_snapshot,
	barrier_next xid8,
	barrier_seq	bigint,
	ordered		boolean NOT NULL,
	max_attempts int NOT NULL,
	retry_ladder text NOT NULL,
	created_at	timestamptz NOT NULL
)
USING heap;
COMMENT ON TABLE idemq.subscriptions IS 'the consumers of the outbox; written by outbox_subscribe() and outbox_alter()';
COMMENT ON COLUMN idemq.subscriptions.consumer IS 'its name';
COMMENT ON COLUMN idemq.subscriptions.number IS 'what the ledgers call it; never used again';
COMMENT ON COLUMN idemq.subscriptions.aggregatetypes IS 'the events it wants; NULL: all';
COMMENT ON COLUMN idemq.subscriptions.shards IS 'how many workers can share it in order';
COMMENT ON COLUMN idemq.subscriptions.next_shards IS 'how many there will be when all have reached the barrier';
COMMENT ON COLUMN idemq.subscriptions.barrier IS 'the snapshot up to which the present number of shards counts';
COMMENT ON COLUMN idemq.subscriptions.barrier_next IS 'the next xid, read after the barrier was taken';
COMMENT ON COLUMN idemq.subscriptions.barrier_seq IS 'the last number drawn, read before it was taken';
COMMENT ON COLUMN idemq.subscriptions.ordered IS 'deliver the events of a key in order';
COMMENT ON COLUMN idemq.subscriptions.max_attempts IS 'after how many failures an event is dead';
COMMENT ON COLUMN idemq.subscriptions.retry_ladder IS 'how long to wait after each failure';
COMMENT ON COLUMN idemq.subscriptions.created_at IS 'since when there is this consumer';

CREATE SEQUENCE idemq.subscription_number AS int;
COMMENT ON SEQUENCE idemq.subscription_number IS 'numbers the consumers';

CREATE TABLE idemq.turn
(
	turn		bigint NOT NULL,
	began_at	timestamptz NOT NULL
)
USING heap;
COMMENT ON TABLE idemq.turn IS 'which of the three ledgers is written to: the highest turn modulo 3, 0 without a row';
COMMENT ON COLUMN idemq.turn.turn IS 'counts the turns';
COMMENT ON COLUMN idemq.turn.began_at IS 'when this one began';

CREATE TABLE idemq.checkpoints
(
	taken_at	timestamptz NOT NULL,
	origin		bigint NOT NULL,
	snapshot	pg_snapshot NOT NULL,
	next_xid	xid8 NOT NULL,
	last_seq	bigint NOT NULL
)
USING heap;
COMMENT ON TABLE idemq.checkpoints IS 'positions that outbox_seek() and a start at the earliest event can go to';
COMMENT ON COLUMN idemq.checkpoints.taken_at IS 'when';
COMMENT ON COLUMN idemq.checkpoints.origin IS 'where';
COMMENT ON COLUMN idemq.checkpoints.snapshot IS 'what was visible then';
COMMENT ON COLUMN idemq.checkpoints.next_xid IS 'the next xid, read after the snapshot was taken';
COMMENT ON COLUMN idemq.checkpoints.last_seq IS 'the last number drawn, read before it was taken';
CREATE INDEX checkpoints_taken_at ON idemq.checkpoints (taken_at);

CREATE TABLE idemq.ledger_0
(
	consumer	int NOT NULL,
	shard	int NOT NULL,
	entry	bigint NOT NULL,
	turn	bigint NOT NULL,
	written_at	timestamptz NOT NULL,
	origins	bigint[] NOT NULL,
	replaying	boolean NOT NULL,
	start_at	pg_snapshot NOT NULL,
	start_next	xid8 NOT NULL,
	start_seq	bigint NOT NULL,
	end_at	pg_snapshot,
	end_next	xid8,
	end_seq	bigint,
	end_top	bigint,
	end_lsn	pg_lsn,
	last_seq	bigint NOT NULL,
	batch	bigint,
	first_event	bigint,
	steps	int[],
	parked	boolean NOT NULL,
	token	bigint,
	role	text,
	granted_at	timestamptz,
	until	timestamptz,
	deliveries	int NOT NULL,
	expiries	int NOT NULL,
	open_batches	int NOT NULL,
	open_from	bigint NOT NULL,
	parked_from	bigint NOT NULL,
	next_place	bigint NOT NULL,
	parked_events	bigint NOT NULL,
	next_due	timestamptz
)
USING heap
WITH (toast_tuple_target = 8160, vacuum_truncate = off);
COMMENT ON TABLE idemq.ledger_0 IS 'where each shard of each consumer is; appended to by whoever holds the shard lock';
COMMENT ON COLUMN idemq.ledger_0.consumer IS 'idemq.subscriptions.number';
COMMENT ON COLUMN idemq.ledger_0.shard IS 'from 0';
COMMENT ON COLUMN idemq.ledger_0.entry IS 'counts the rows of the shard; the highest counts';
COMMENT ON COLUMN idemq.ledger_0.turn IS 'the turn that it was written in';
COMMENT ON COLUMN idemq.ledger_0.written_at IS 'when';
COMMENT ON COLUMN idemq.ledger_0.origins IS 'whose xids the snapshots can judge; the last is the present one, or the one that is replayed';
COMMENT ON COLUMN idemq.ledger_0.replaying IS 'what an older origin left is read first';
COMMENT ON COLUMN idemq.ledger_0.start_at IS 'what is visible in it has been dealt with';
COMMENT ON COLUMN idemq.ledger_0.start_next IS 'the next xid, read after start_at was taken';
COMMENT ON COLUMN idemq.ledger_0.start_seq IS 'the last number drawn, read before start_at was taken';
COMMENT ON COLUMN idemq.ledger_0.end_at IS 'the end of the open window; NULL: none is open';
COMMENT ON COLUMN idemq.ledger_0.end_next IS 'as start_next';
COMMENT ON COLUMN idemq.ledger_0.end_seq IS 'as start_seq';
COMMENT ON COLUMN idemq.ledger_0.end_top IS 'the last number drawn, read after end_at was taken';
COMMENT ON COLUMN idemq.ledger_0.end_lsn IS 'up to where WAL must be safe before events of the window are told';
COMMENT ON COLUMN idemq.ledger_0.last_seq IS 'how far the open window was read';
COMMENT ON COLUMN idemq.ledger_0.batch IS 'the entry that the batch of this row began with, when it was handed out first or later; NULL: this row is about none';
COMMENT ON COLUMN idemq.ledger_0.first_event IS 'the first event that is left of the batch, by seq, or by its place if parked; NULL: it is done';
COMMENT ON COLUMN idemq.ledger_0.steps IS 'from each event of the batch to the next';
COMMENT ON COLUMN idemq.ledger_0.parked IS 'the batch came from the parked events: its numbers are places, not seqs';
COMMENT ON COLUMN idemq.ledger_0.token IS 'of the lease; NULL: given back';
COMMENT ON COLUMN idemq.ledger_0.role IS 'who holds the lease';
COMMENT ON COLUMN idemq.ledger_0.granted_at IS 'when the lease began';
COMMENT ON COLUMN idemq.ledger_0.until IS 'when it ends, or not before when the batch is handed out again';
COMMENT ON COLUMN idemq.ledger_0.deliveries IS 'how often the batch was handed out';
COMMENT ON COLUMN idemq.ledger_0.expiries IS 'how many leases of it ran out in a row';
COMMENT ON COLUMN idemq.ledger_0.open_batches IS 'batches of the shard that are not done';
COMMENT ON COLUMN idemq.ledger_0.open_from IS 'none of those began before this entry';
COMMENT ON COLUMN idemq.ledger_0.parked_from IS 'parked events with a place below this were given up';
COMMENT ON COLUMN idemq.ledger_0.next_place IS 'the entry, and place, of the next event that is parked';
COMMENT ON COLUMN idemq.ledger_0.parked_events IS 'how many are parked';
COMMENT ON COLUMN idemq.ledger_0.next_due IS 'when the first of them is due';
ALTER TABLE idemq.ledger_0 ADD CONSTRAINT ledger_0_pkey PRIMARY KEY (consumer, shard, entry);
CREATE INDEX ledger_0_token ON idemq.ledger_0 (token);

CREATE TABLE idemq.ledger_1
(
	LIKE idemq.ledger_0
)
USING heap
WITH (toast_tuple_target = 8160, vacuum_truncate = off);
COMMENT ON TABLE idemq.ledger_1 IS 'where each shard of each consumer is; appended to by whoever holds the shard lock';
ALTER TABLE idemq.ledger_1 ADD CONSTRAINT ledger_1_pkey PRIMARY KEY (consumer, shard, entry);
CREATE INDEX ledger_1_token ON idemq.ledger_1 (token);

CREATE TABLE idemq.ledger_2
(
	LIKE idemq.ledger_0
)
USING heap
WITH (toast_tuple_target = 8160, vacuum_truncate = off);
COMMENT ON TABLE idemq.ledger_2 IS 'where each shard of each consumer is; appended to by whoever holds the shard lock';
ALTER TABLE idemq.ledger_2 ADD CONSTRAINT ledger_2_pkey PRIMARY KEY (consumer, shard, entry);
CREATE INDEX ledger_2_token ON idemq.ledger_2 (token);

CREATE TABLE idemq.parked_0
(
	consumer	int NOT NULL,
	shard	int NOT NULL,
	key	bigint NOT NULL,
	place	bigint NOT NULL,
	entry	bigint NOT NULL,
	seq	bigint NOT NULL,
	rank	bigint NOT NULL,
	parked_at	timestamptz NOT NULL,
	dead_id	bigint,
	state	text NOT NULL,
	attempts	int NOT NULL,
	deliveries	int NOT NULL,
	alone	boolean NOT NULL,
	due	timestamptz,
	first_failed_at	timestamptz,
	error	text
)
USING heap
WITH (vacuum_truncate = off);
COMMENT ON TABLE idemq.parked_0 IS 'events that failed, wait behind one that did, or are not due; appended to by whoever holds the shard lock';
COMMENT ON COLUMN idemq.parked_0.consumer IS 'idemq.subscriptions.number';
COMMENT ON COLUMN idemq.parked_0.shard IS 'from 0';
COMMENT ON COLUMN idemq.parked_0.key IS 'hash of the event''s key; of its number, if it has none';
COMMENT ON COLUMN idemq.parked_0.place IS 'names it among the parked events of the shard: its first entry';
COMMENT ON COLUMN idemq.parked_0.entry IS 'counts the rows of the shard; the highest of a place counts';
COMMENT ON COLUMN idemq.parked_0.seq IS 'the event';
COMMENT ON COLUMN idemq.parked_0.rank IS 'decides the order within a key: seq, or for a replay the last number that was drawn then';
COMMENT ON COLUMN idemq.parked_0.parked_at IS 'when this was written: what is due later counts from here';
COMMENT ON COLUMN idemq.parked_0.dead_id IS 'replayed from this dead letter';
COMMENT ON COLUMN idemq.parked_0.state IS 'retry, delayed or blocked; leased: handed out; done';
COMMENT ON COLUMN idemq.parked_0.attempts IS 'how often it has failed';
COMMENT ON COLUMN idemq.parked_0.deliveries IS 'how often it was handed out';
COMMENT ON COLUMN idemq.parked_0.alone IS 'is handed out alone, since leases of it ran out';
COMMENT ON COLUMN idemq.parked_0.due IS 'not before then; NULL: when those before it are done';
COMMENT ON COLUMN idemq.parked_0.first_failed_at IS 'when it failed for the first time';
COMMENT ON COLUMN idemq.parked_0.error IS 'of the last failure';
ALTER TABLE idemq.parked_0 ADD CONSTRAINT parked_0_pkey PRIMARY KEY (consumer, shard, place, entry);
CREATE INDEX parked_0_key ON idemq.parked_0 (consumer, shard, key, rank, place, entry DESC);
CREATE INDEX parked_0_due ON idemq.parked_0 (consumer, shard, due) WHERE due IS NOT NULL;

CREATE TABLE idemq.parked_1
(
	LIKE idemq.parked_0
)
USING heap
WITH (vacuum_truncate = off);
COMMENT ON TABLE idemq.parked_1 IS 'events that failed, wait behind one that did, or are not due; appended to by whoever holds the shard lock';
ALTER TABLE idemq.parked_1 ADD CONSTRAINT parked_1_pkey PRIMARY KEY (consumer, shard, place, entry);
CREATE INDEX parked_1_key ON idemq.parked_1 (consumer, shard, key, rank, place, entry DESC);
CREATE INDEX parked_1_due ON idemq.parked_1 (consumer, shard, due) WHERE due IS NOT NULL;

CREATE TABLE idemq.parked_2
(
	LIKE idemq.parked_0
)
USING heap
WITH (vacuum_truncate = off);
COMMENT ON TABLE idemq.parked_2 IS 'events that failed, wait behind one that did, or are not due; appended to by whoever holds the shard lock';
ALTER TABLE idemq.parked_2 ADD CONSTRAINT parked_2_pkey PRIMARY KEY (consumer, shard, place, entry);
CREATE INDEX parked_2_key ON idemq.parked_2 (consumer, shard, key, rank, place, entry DESC);
CREATE INDEX parked_2_due ON idemq.parked_2 (consumer, shard, due) WHERE due IS NOT NULL;

/*
 * What counts in turn k is in the tables of k and of the one before (retention): who
 * reads no others does not keep the third from being emptied.
 */

CREATE VIEW idemq._ledger_0 AS SELECT * FROM idemq.ledger_0 UNION ALL SELECT * FROM idemq.ledger_2;
COMMENT ON VIEW idemq._ledger_0 IS 'the ledgers of a turn k with k modulo 3 = 0, and of the one before';
CREATE VIEW idemq._ledger_1 AS SELECT * FROM idemq.ledger_1 UNION ALL SELECT * FROM idemq.ledger_0;
COMMENT ON VIEW idemq._ledger_1 IS 'the ledgers of a turn k with k modulo 3 = 1, and of the one before';
CREATE VIEW idemq._ledger_2 AS SELECT * FROM idemq.ledger_2 UNION ALL SELECT * FROM idemq.ledger_1;
COMMENT ON VIEW idemq._ledger_2 IS 'the ledgers of a turn k with k modulo 3 = 2, and of the one before';

CREATE VIEW idemq._parked_0 AS SELECT * FROM idemq.parked_0 UNION ALL SELECT * FROM idemq.parked_2;
COMMENT ON VIEW idemq._parked_0 IS 'the tables of parked events of a turn k with k modulo 3 = 0, and of the one before';
CREATE VIEW idemq._parked_1 AS SELECT * FROM idemq.parked_1 UNION ALL SELECT * FROM idemq.parked_0;
COMMENT ON VIEW idemq._parked_1 IS 'the tables of parked events of a turn k with k modulo 3 = 1, and of the one before';
CREATE VIEW idemq._parked_2 AS SELECT * FROM idemq.parked_2 UNION ALL SELECT * FROM idemq.parked_1;
COMMENT ON VIEW idemq._parked_2 IS 'the tables of parked events of a turn k with k modulo 3 = 2, and of the one before';

CREATE VIEW idemq._ledger AS
SELECT * FROM idemq.ledger_0 UNION ALL SELECT * FROM idemq.ledger_1 UNION ALL SELECT * FROM idemq.ledger_2;
COMMENT ON VIEW idemq._ledger IS 'the three ledgers';

CREATE VIEW idemq._parked AS
SELECT * FROM idemq.parked_0 UNION ALL SELECT * FROM idemq.parked_1 UNION ALL SELECT * FROM idemq.parked_2;
COMMENT ON VIEW idemq._parked IS 'the three tables of parked events';

CREATE TABLE idemq.dead_letters
(
	dead_id		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	consumer	text NOT NULL,
	seq			bigint NOT NULL,
	created_at	timestamptz NOT NULL,
	id			uuid NOT NULL,
	aggregatetype text NOT NULL,
	aggregateid	text,
	type		text,
	payload		jsonb,
	body		bytea,
	headers		jsonb,
	cause		text,
	attempts	int NOT NULL,
	error		text,
	first_failed_at timestamptz NOT NULL,
	died_at		timestamptz NOT NULL,
	replayed_at	timestamptz
)
USING heap;
CREATE INDEX dead_letters_consumer ON idemq.dead_letters (consumer, died_at);
ALTER TABLE idemq.dead_letters REPLICA IDENTITY FULL;
COMMENT ON TABLE idemq.dead_letters IS 'events that failed too often, with their error; aged out after idemq.dead_retention';
COMMENT ON COLUMN idemq.dead_letters.dead_id IS 'number of the dead letter';
COMMENT ON COLUMN idemq.dead_letters.consumer IS 'for whom it failed';
COMMENT ON COLUMN idemq.dead_letters.seq IS 'number of the event';
COMMENT ON COLUMN idemq.dead_letters.created_at IS 'when the event was written';
COMMENT ON COLUMN idemq.dead_letters.id IS 'the event''s id';
COMMENT ON COLUMN idemq.dead_letters.aggregatetype IS 'what kind of thing it is about';
COMMENT ON COLUMN idemq.dead_letters.aggregateid IS 'which thing it is about';
COMMENT ON COLUMN idemq.dead_letters.type IS 'what happened to it';
COMMENT ON COLUMN idemq.dead_letters.payload IS 'the message, as JSON';
COMMENT ON COLUMN idemq.dead_letters.body IS 'the message, as bytes';
COMMENT ON COLUMN idemq.dead_letters.headers IS 'headers for the broker';
COMMENT ON COLUMN idemq.dead_letters.cause IS 'the claim that it was written with';
COMMENT ON COLUMN idemq.dead_letters.attempts IS 'how often it was tried';
COMMENT ON COLUMN idemq.dead_letters.error IS 'of the last attempt';
COMMENT ON COLUMN idemq.dead_letters.first_failed_at IS 'when it failed for the first time';
COMMENT ON COLUMN idemq.dead_letters.died_at IS 'when it failed for the last time';
COMMENT ON COLUMN idemq.dead_letters.replayed_at IS 'when it was sent again; if it dies again, that is a dead letter of its own';

REVOKE ALL ON idemq.subscriptions, idemq.subscription_number, idemq.turn, idemq.checkpoints,
	idemq.ledger_0, idemq.ledger_1, idemq.ledger_2, idemq._ledger, idemq._ledger_0, idemq._ledger_1, idemq._ledger_2,
	idemq.parked_0, idemq.parked_1, idemq.parked_2, idemq._parked, idemq._parked_0, idemq._parked_1, idemq._parked_2, idemq.dead_letters,
	idemq.dead_letters_dead_id_seq FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('idemq.subscriptions', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.subscription_number', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.turn', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.checkpoints', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.ledger_0', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.ledger_1', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.ledger_2', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.parked_0', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.parked_1', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.parked_2', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.dead_letters', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.dead_letters_dead_id_seq', '');
