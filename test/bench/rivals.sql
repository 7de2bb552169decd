/*
 * What people write instead, as well as it can be written.
 *
 * rivals: a database of its own, copied before each measurement.
 */

-- one table, INSERT ... ON CONFLICT DO NOTHING
CREATE TABLE plain (key text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now());

-- the same, with the key compared byte by byte
CREATE TABLE plain_c (key text COLLATE "C" PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now());

-- the same, where all keys are UUIDs
CREATE TABLE plain_uuid (key uuid PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now());

-- a duplicate caught as an error
CREATE TABLE caught (key text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now());

CREATE FUNCTION caught_claim(k text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO caught (key) VALUES (k);
	RETURN true;
EXCEPTION WHEN unique_violation THEN
	RETURN false;
END $$;

-- the correct way over day partitions: a lock on the key until commit, a look
-- into every partition with a snapshot that is newer than the lock, the insertion
CREATE TABLE daily (key text NOT NULL, day date NOT NULL, processed_at timestamptz NOT NULL DEFAULT now())
PARTITION BY RANGE (day);

CREATE FUNCTION daily_claim(k text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(hashtextextended(k, 0));
	IF EXISTS (SELECT FROM daily WHERE key = k) THEN
		RETURN false;
	END IF;
	INSERT INTO daily (key, day) VALUES (k, current_date);
	RETURN true;
END $$;

-- batches, each in one statement
CREATE FUNCTION plain_batches() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	b record;
	n bigint;
	total bigint := 0;
BEGIN
	FOR b IN SELECT keys FROM batches LOOP
		INSERT INTO plain (key) SELECT unnest(b.keys) ON CONFLICT DO NOTHING;
		GET DIAGNOSTICS n = ROW_COUNT;
		total := total + n;
	END LOOP;
	RETURN total;
END $$;
