"""The rows of "make bench": each one idemq and what people write instead."""

import os
import re
import subprocess
import time

from cluster import (DENSE_KEY, LATE_KEY, PGBIN, RANDOM_KEY, WORK, Cluster, Partitions, make_keys, say)


class Sizes:
    """How much of everything."""

    def __init__(self, quick, full):
        self.quick = quick
        self.full = full
        self.fresh = 20000 if quick else 1000000
        self.per_day = 2000 if quick else 100000
        self.half = 10000 if quick else 500000      # keys in a partition, for false probes
        self.probed = 5000 if quick else 100000     # claims that false probes are counted over
        self.duplicates = 5000 if quick else 300000
        self.batched = 10000 if quick else 300000
        self.daily = 1000 if quick else 10000
        self.built = 10                             # partitions built anew
        self.seconds = 1 if quick else 30 if full else 12
        self.client = 500 if quick else 20000       # claims of one client, one by one
        # the outbox
        self.emitted = 5000 if quick else 200000
        self.captured = 5000 if quick else 200000
        self.consumed = 10000 if quick else 200000
        self.waiting = 100000 if quick else 10000000
        self.wake_seconds = 1 if quick else 8
        self.relayed = 2000 if quick else 50000
        self.produced = 20000 if quick else 200000
        self.relayed_one = 200 if quick else 3000   # of one key, so one after the other
        self.bodies = 8 if quick else 96
        self.steady_seconds = 20 if quick else 1800


class Sample(float):
    """Microseconds per key, how many of them the backend had a processor, and bytes of WAL per key."""

    cpu = None
    wal = None


def cpu_time(pid):
    """Nanoseconds of processor time that a process has had; None where nobody counts them."""
    try:
        with open("/proc/%d/schedstat" % pid) as f:
            return int(f.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def timed(cluster, db, sql, expected, warm=None):
    """
    Microseconds per key of a statement that must answer, or change, that many;
    (answer, keys) where these are not the same.
    """
    expected, n = expected if isinstance(expected, tuple) else (expected, expected)
    conn = cluster.connect(db)
    cur = conn.cursor()
    if warm:
        cur.execute(warm)
    pid = conn.get_backend_pid()
    cur.execute("SELECT pg_current_wal_insert_lsn()")
    lsn = cur.fetchone()[0]
    cpu = cpu_time(pid)
    start = time.perf_counter()
    cur.execute(sql)
    spent = time.perf_counter() - start
    sample = Sample(spent * 1e6 / n)
    if cpu is not None:
        sample.cpu = (cpu_time(pid) - cpu) / 1e3 / n
    got = cur.fetchone()[0] if cur.description else cur.rowcount
    cur.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", (lsn,))
    sample.wal = float(cur.fetchone()[0]) / n
    conn.close()
    if got != expected:
        raise SystemExit("%s: got %s, not %s, from %s" % (db, got, expected, sql))
    return sample


class Setup:
    """Clusters and databases, made when somebody asks for them."""

    def __init__(self, sizes, filter_memory=None):
        self.sizes = sizes
        self.filter_memory = filter_memory
        self.clusters = {}
        self.partitions = {}
        self.today = {}             # what is in today's partition
        self.copied = {}            # what is in a table of the copy
        self.empty = {}             # what is in a table of the database of empty ones
        self.have = set()

    def cluster(self, name):
        if name not in self.clusters:
            say("starting the cluster", name)
            self.clusters[name] = Cluster(name, self.filter_memory)
        return self.clusters[name]

    def main(self):
        return self.cluster("main")

    # -- idemq, with so many days behind it

    def days(self, n, per_day=None, cluster=None):
        """A database "idemq" with so many partitions of earlier days; the cluster is its own."""
        name = cluster or ("main" if n == 30 else "days%d" % n)
        if name not in self.partitions:
            c = self.cluster(name)
            say("filling %d partitions in %s" % (n, name))
            self.partitions[name] = Partitions(c, "idemq", n, per_day or self.sizes.per_day)
            self.keys(c, "idemq")
            c.run("idemq", "CREATE FUNCTION bench_floor(key text, scope text DEFAULT '') RETURNS boolean"
                           " AS 'idemq_bench_floor' LANGUAGE C")
            self.today[name] = "empty"
        return self.partitions[name]

    def keys(self, cluster, db):
        make_keys(cluster, db, "fresh", RANDOM_KEY.format(kind="fresh"), self.sizes.fresh)
        make_keys(cluster, db, "ordered", DENSE_KEY, self.sizes.fresh)
        if self.sizes.full:
            make_keys(cluster, db, "late", LATE_KEY, self.sizes.fresh)
        make_keys(cluster, db, "old", RANDOM_KEY.format(kind=30), min(self.sizes.per_day, self.sizes.duplicates))

    def batches(self, cluster, db, size):
        cluster.run(db, "DROP TABLE IF EXISTS batches", "CREATE TABLE batches (keys text[])",
                    "ALTER TABLE batches ALTER keys SET STORAGE EXTERNAL",
                    "INSERT INTO batches SELECT array_agg(k ORDER BY n) FROM fresh WHERE n <= %d"
                    " GROUP BY (n - 1) / %d" % (self.sizes.batched, size),
                    "VACUUM ANALYZE batches")

    def want_today(self, name, what):
        """Today's partition "empty", or with all keys of a table in it: "fresh" or "ordered"."""
        p = self.partitions[name]
        if self.today[name] == what:
            return
        p.empty_today()
        if what != "empty":
            p.cluster.run(p.db, "SELECT count(*) FROM %s WHERE idem_claim(k)" % what)
        self.today[name] = what

    # -- the rivals

    def rivals(self):
        """One table with the keys of thirty days, grown as it would have grown."""
        if "rivals" in self.have:
            return
        self.have.add("rivals")
        c = self.main()
        c.create("rivals")
        c.script("rivals", "rivals.sql")
        for table in ("plain", "plain_c"):
            say("filling the rival's table", table)
            c.run("rivals", "INSERT INTO %s SELECT md5(d || '-' || n)::uuid::text, now() - d * interval '1 day'"
                  " FROM generate_series(30, 1, -1) d, generate_series(1, %d) n" % (table, self.sizes.per_day),
                  "VACUUM ANALYZE " + table)
        self.keys(c, "rivals")

    def want_copy(self, table, what):
        """A copy of it: "full" as it is, or with all "fresh" keys in it, too."""
        self.rivals()
        if self.copied.get(table) == what:
            return
        if self.copied.get(table) != "full":
            self.main().create("rivals_run", "rivals")
            self.copied = {"plain": "full", "plain_c": "full"}
        if what == "fresh":
            self.main().run("rivals_run", "INSERT INTO %s (key) SELECT k FROM fresh ON CONFLICT DO NOTHING" % table)
        self.copied[table] = what

    def empties(self):
        """The rivals' tables without a key in them."""
        if "empties" not in self.have:
            self.have.add("empties")
            self.main().create("empties")
            self.main().script("empties", "rivals.sql")
            self.keys(self.main(), "empties")

    def want_empty(self, table, what="empty"):
        self.empties()
        if self.empty.get(table) != what:
            self.main().run("empties", "TRUNCATE " + table)
            if what != "empty":
                self.main().run("empties", "INSERT INTO %s (key) SELECT k FROM %s" % (table, what))
        self.empty[table] = what

    def close(self, name):
        """Done with a cluster."""
        c = self.clusters.pop(name, None)
        if c:
            c.stop()
            self.partitions.pop(name, None)

    def close_all(self):
        for name in list(self.clusters):
            self.close(name)


class Row:
    """Sides that are measured side by side, and what is compared."""

    name = title = None
    unit = "µs"
    compare = ()        # (side, other side or None, at most or None)
    once = False        # the same every time: measured in the first round only
    note = None

    def __init__(self, setup, sizes):
        self.setup = setup
        self.sizes = sizes
        self.samples = {side: [] for side in self.sides()}

    def sides(self):
        """Their names, in the order of the first round."""
        raise NotImplementedError

    def begin(self):
        """Before the first round."""

    def measure(self, side):
        raise NotImplementedError

    def prepare(self, side):
        """Right before it is measured, after a checkpoint."""

    def finish(self):
        """After the last round."""

    def run(self, number):
        if number == 0:
            self.begin()
        elif self.once:
            return
        sides = list(self.sides())
        turn = number % len(sides)
        for side in sides[turn:] + sides[:turn]:
            for c in self.setup.clusters.values():
                c.checkpoint()
            self.prepare(side)
            self.samples[side].append(self.measure(side))


IDEMQ = "idemq"
PLAIN = "ON CONFLICT, text key"
PLAIN_C = 'ON CONFLICT, text key COLLATE "C"'
PLAIN_EMPTY = "ON CONFLICT, text key, table empty before"
PLAIN_C_EMPTY = 'ON CONFLICT, text key COLLATE "C", table empty before'
FLOOR = "floor (bare C: digest, heap, B-tree)"

# side: database and table
TABLES = {
    PLAIN: ("rivals_run", "plain"),
    PLAIN_C: ("rivals_run", "plain_c"),
    PLAIN_EMPTY: ("empties", "plain"),
    PLAIN_C_EMPTY: ("empties", "plain_c"),
}

WARM_CLAIM = "SELECT idem_claim('warm-' || n) FROM generate_series(1, 3) n"


def make_floor(cluster):
    cluster.run("idemq", "DROP TABLE IF EXISTS floor",
                "CREATE TABLE floor (LIKE idemq.processed) WITH (vacuum_truncate = off)",
                "CREATE UNIQUE INDEX floor_digest ON floor (idemq.digest(scope, key))")


def claim_all(cluster, keys, n, expected=None, where=""):
    """Claims of keys in one statement; all of them are to be true."""
    return timed(cluster, "idemq", "SELECT count(*) FILTER (WHERE idem_claim(k)) FROM %s%s" % (keys, where),
                 (n if expected is None else expected, n), WARM_CLAIM)


def floor_all(cluster, keys, n):
    return timed(cluster, "idemq", "SELECT count(*) FILTER (WHERE bench_floor(k)) FROM " + keys, n)


def insert_all(cluster, side, keys, n, expected=None, where=""):
    db, table = TABLES[side]
    return timed(cluster, db, "INSERT INTO %s (key) SELECT k FROM %s%s ON CONFLICT DO NOTHING"
                 % (table, keys, where), (n if expected is None else expected, n),
                 "INSERT INTO %s (key) SELECT 'warm-' || n FROM generate_series(1, 3) n ON CONFLICT DO NOTHING"
                 % table)


class Fresh(Row):
    name = "fresh"
    title = "fresh keys, a million in one statement, 30 days behind"
    compare = ((IDEMQ, PLAIN, 0.70), (IDEMQ, PLAIN_C, None), (IDEMQ, PLAIN_EMPTY, None), (IDEMQ, FLOOR, 1.25))
    note = ("All but the floor and the empty table hold the keys of 30 days before. "
            "The digest is BLAKE2b on both sides.")

    def sides(self):
        return IDEMQ, PLAIN, FLOOR, PLAIN_C, PLAIN_EMPTY

    def begin(self):
        self.setup.days(30)

    def prepare(self, side):
        if side == IDEMQ:
            self.setup.want_today("main", "empty")
        elif side == FLOOR:
            make_floor(self.setup.main())
        elif side == PLAIN_EMPTY:
            self.setup.want_empty("plain")
        else:
            self.setup.want_copy(TABLES[side][1], "full")

    def measure(self, side):
        c, n = self.setup.main(), self.sizes.fresh
        if side == IDEMQ:
            self.setup.today["main"] = "fresh"
            return claim_all(c, "fresh", n)
        if side == FLOOR:
            return floor_all(c, "fresh", n)
        if side == PLAIN_EMPTY:
            self.setup.empty["plain"] = "fresh"
        else:
            self.setup.copied[TABLES[side][1]] = "fresh"
        return insert_all(c, side, "fresh", n)


class Bytes(Row):
    name = "bytes"
    title = "heap and index after a million keys of 36 characters"
    unit = "bytes/key"
    keys = "fresh"
    heap, index = "idemq, heap", "idemq, index"
    plain_heap, plain_index = PLAIN_EMPTY + ", heap", PLAIN_EMPTY + ", index"
    compare = ((IDEMQ, None, 125), (IDEMQ, PLAIN_EMPTY, None))
    note = "The filter apart: see the row bits."
    once = True

    def sides(self):
        return IDEMQ, self.heap, self.index, PLAIN_EMPTY, self.plain_heap, self.plain_index

    def begin(self):
        self.setup.days(30)

    def prepare(self, side):
        if side in (IDEMQ, self.heap, self.index):
            self.setup.want_today("main", self.keys)
        else:
            self.setup.want_empty("plain", self.keys)

    def measure(self, side):
        if side in (IDEMQ, self.heap, self.index):
            db, table = "idemq", self.setup.days(30).today()
        else:
            db, table = "empties", "plain"
        total = "pg_total_relation_size('%s')" % table
        index = "pg_indexes_size('%s')" % table
        size = {self.heap: total + " - " + index, self.plain_heap: total + " - " + index,
                self.index: index, self.plain_index: index}.get(side, total)
        return float(self.setup.main().run(db, "SELECT (%s) / count(*)::float FROM ONLY %s" % (size, table)))


class BytesOrdered(Bytes):
    name = "bytes-ordered"
    title = "heap and index after a million time-ordered keys (UUIDv7)"
    keys = "ordered"
    compare = ((IDEMQ, PLAIN_EMPTY, None),)
    note = None


class DuplicateToday(Row):
    name = "duplicate-today"
    title = "duplicates of today"
    compare = ((IDEMQ, PLAIN, 0.65), (IDEMQ, PLAIN_C, None))
    keys = "fresh"

    def sides(self):
        return IDEMQ, PLAIN, PLAIN_C

    def begin(self):
        self.setup.days(30)

    def prepare(self, side):
        # and see that each row's hint bits are set
        if side == IDEMQ:
            self.setup.want_today("main", "fresh")
            self.setup.main().run("idemq", "SELECT count(*) FROM idemq.processed")
        else:
            self.setup.want_copy(TABLES[side][1], "fresh")
            self.setup.main().run("rivals_run", "SELECT count(*) FROM " + TABLES[side][1])

    def measure(self, side):
        c, n = self.setup.main(), self.count()
        where = " WHERE n <= %d" % n
        if side == IDEMQ:
            return claim_all(c, self.keys, n, 0, where)
        return insert_all(c, side, self.keys, n, 0, where)

    def count(self):
        return self.sizes.duplicates


class DuplicateOld(DuplicateToday):
    name = "duplicate-30-days"
    title = "duplicates of thirty days ago"
    compare = ((IDEMQ, PLAIN, 0.75), (IDEMQ, PLAIN_C, None))
    keys = "old"

    def count(self):
        return min(self.sizes.per_day, self.sizes.duplicates)


class Many(Row):
    name = "many"
    title = "idem_claim_many, 1,000 at a time"
    size = 1000
    rival = "ON CONFLICT from unnest, text key"
    compare = ((IDEMQ, rival, 0.55),)

    def sides(self):
        return IDEMQ, self.rival

    def begin(self):
        self.setup.days(30)
        self.setup.rivals()

    def prepare(self, side):
        if side == IDEMQ:
            self.setup.want_today("main", "empty")
            self.setup.main().run("idemq", """
                CREATE OR REPLACE FUNCTION idemq_batches() RETURNS bigint LANGUAGE plpgsql AS $$
                DECLARE
                    b record;
                    total bigint := 0;
                BEGIN
                    FOR b IN SELECT keys FROM batches LOOP
                        total := total + cardinality(array_remove(idem_claim_many(b.keys), false));
                    END LOOP;
                    RETURN total;
                END $$""")
        else:
            self.setup.want_copy("plain", "full")
        self.setup.batches(self.setup.main(), "idemq" if side == IDEMQ else "rivals_run", self.size)

    def measure(self, side):
        c, n = self.setup.main(), self.sizes.batched
        if side == IDEMQ:
            self.setup.today["main"] = "batches"
            return timed(c, "idemq", "SELECT idemq_batches()", n, WARM_CLAIM)
        self.setup.copied["plain"] = "batches"
        return timed(c, "rivals_run", "SELECT plain_batches()", n, "SELECT count(*) FROM batches")


class Ordered(Row):
    name = "ordered"
    title = "time-ordered keys (UUIDv7), a million in one statement"
    compare = ((IDEMQ, PLAIN_EMPTY, 1.0), (IDEMQ, PLAIN_C_EMPTY, None), (IDEMQ, FLOOR, None))
    note = "Ten keys in each millisecond, these in no order."
    keys = "ordered"

    def sides(self):
        return IDEMQ, PLAIN_EMPTY, PLAIN_C_EMPTY, FLOOR

    def begin(self):
        self.setup.days(30)

    def prepare(self, side):
        if side == IDEMQ:
            self.setup.want_today("main", "empty")
        elif side == FLOOR:
            make_floor(self.setup.main())
        else:
            self.setup.want_empty(TABLES[side][1])

    def measure(self, side):
        c, n = self.setup.main(), self.sizes.fresh
        if side == IDEMQ:
            self.setup.today["main"] = self.keys
            return claim_all(c, self.keys, n)
        if side == FLOOR:
            return floor_all(c, self.keys, n)
        self.setup.empty[TABLES[side][1]] = self.keys
        return insert_all(c, side, self.keys, n)


class OrderedLate(Ordered):
    name = "ordered-late"
    title = "time-ordered keys (UUIDv7) that come out of order, a million in one statement"
    compare = ((IDEMQ, PLAIN_EMPTY, None), (IDEMQ, PLAIN_C_EMPTY, None), (IDEMQ, FLOOR, None))
    note = "A key in each millisecond, with a time that is up to a second ahead of its place."
    keys = "late"


class Flat(Row):
    name = "flat"
    title = "fresh keys, a million in one statement, 90 partitions or 1"
    compare = (("idemq, 90 partitions", "idemq, 1 partition", 1.10),)

    names = {"idemq, 90 partitions": 89, "idemq, 1 partition": 0}

    def sides(self):
        return tuple(self.names)

    def begin(self):
        for days in self.names.values():
            self.setup.days(days)

    def prepare(self, side):
        self.setup.want_today("days%d" % self.names[side], "empty")

    def measure(self, side):
        name = "days%d" % self.names[side]
        self.setup.today[name] = "fresh"
        return claim_all(self.setup.clusters[name], "fresh", self.sizes.fresh)


def pgbench(cluster, db, script, clients, seconds):
    """Mean latency of a transaction, in microseconds."""
    path = os.path.join(WORK, "out", "script.sql")
    with open(path, "w") as f:
        f.write(script)
    out = subprocess.run(
        [PGBIN + "/pgbench", "-h", cluster.socket, "-U", "postgres", "-n", "-M", "prepared", "-f", path,
         "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds), db],
        check=True, capture_output=True, text=True).stdout
    if not re.search(r"number of failed transactions: 0 ", out):
        raise SystemExit(out)
    return float(re.search(r"latency average = ([0-9.]+) ms", out).group(1)) * 1000


SET_KEY = r"""
\set key random(1, 9223372036854775807)
\set id random(1, 100000)
"""


class Update(Row):
    name = "update"
    title = "claim and UPDATE in one statement, 4 clients, synchronous_commit = on"
    unit = "µs/transaction"
    one = "idemq: claim and UPDATE in one statement"
    two = "idemq: BEGIN, claim, UPDATE, COMMIT, each a round trip"
    alone = "UPDATE alone"
    turns = 6
    compare = ((one, alone, 1.10), (two, alone, None))
    scripts = {
        alone: SET_KEY + "UPDATE account SET balance = balance + 1 WHERE id = :id;\n",
        one: SET_KEY + "WITH c AS MATERIALIZED (SELECT idem_claim(:key) AS ok)"
        " UPDATE account SET balance = balance + 1 FROM c WHERE c.ok AND id = :id;\n",
        two: SET_KEY + "BEGIN;\nSELECT idem_claim(:key);\n"
        "UPDATE account SET balance = balance + 1 WHERE id = :id;\nCOMMIT;\n",
    }

    def sides(self):
        return self.alone, self.one, self.two

    def begin(self):
        self.setup.days(30)

    def prepare(self, side):
        self.setup.want_today("main", "empty")
        self.setup.main().run("idemq", "DROP TABLE IF EXISTS account",
                              "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL)"
                              " WITH (fillfactor = 50)",
                              "INSERT INTO account SELECT n, 0 FROM generate_series(1, 100000) n",
                              "VACUUM ANALYZE account")

    def run(self, number):
        # short turns, for what a disk does changes from one second to the next
        if number == 0:
            self.begin()
        turns = {side: [] for side in self.sides()}
        self.setup.main().checkpoint()
        self.prepare(None)
        for turn in range(self.turns):
            sides = list(turns)
            for side in sides[turn % 3:] + sides[:turn % 3]:
                turns[side].append(self.measure(side))
        for side, values in turns.items():
            self.samples[side].append(sum(values) / len(values))

    def measure(self, side):
        self.setup.today["main"] = "updates"
        return pgbench(self.setup.main(), "idemq", self.scripts[side], 4, max(1, self.sizes.seconds // self.turns))


class Daily(Row):
    name = "sql"
    title = "fresh keys in one statement, against the correct SQL way over 31 partitions"
    way = "PL/pgSQL: lock, look into 31 partitions, insert"
    compare = ((IDEMQ, way, 0.08),)

    def sides(self):
        return IDEMQ, self.way

    def begin(self):
        self.setup.days(30)
        c = self.setup.main()
        if "daily" in self.setup.have:
            return
        self.setup.have.add("daily")
        say("filling the partitions of the SQL way")
        c.create("daily")
        c.script("daily", "rivals.sql")
        c.run("daily", """
            DO $$ BEGIN
                FOR d IN 0..30 LOOP
                    EXECUTE format('CREATE TABLE daily_%%s PARTITION OF daily FOR VALUES FROM (%%L) TO (%%L)',
                        d, current_date - d, current_date - d + 1);
                    INSERT INTO daily SELECT md5(d || '-' || n)::uuid::text, current_date - d
                        FROM generate_series(1, %d) n WHERE d > 0;
                    EXECUTE format('CREATE UNIQUE INDEX ON daily_%%s (key)', d);
                END LOOP;
            END $$""" % self.sizes.per_day, "VACUUM ANALYZE daily")
        make_keys(c, "daily", "fresh", RANDOM_KEY.format(kind="fresh"), self.sizes.daily)

    def prepare(self, side):
        if side == IDEMQ:
            self.setup.want_today("main", "empty")
        else:
            self.setup.main().run("daily", "TRUNCATE daily_0")

    def measure(self, side):
        n = self.sizes.daily
        where = "FROM fresh WHERE n <= %d" % n
        if side == IDEMQ:
            self.setup.today["main"] = "daily"
            return timed(self.setup.main(), "idemq", "SELECT count(*) FILTER (WHERE idem_claim(k)) " + where,
                         n, WARM_CLAIM)
        return timed(self.setup.main(), "daily", "SELECT count(*) FILTER (WHERE daily_claim(k)) " + where,
                     n, "SELECT daily_claim('warm-' || n) FROM generate_series(1, 8) n")


class Build(Row):
    name = "build"
    title = "building the filter"
    unit = "µs/key"
    compare = ((IDEMQ, None, 1.0),)

    def sides(self):
        return (IDEMQ,)

    def begin(self):
        self.setup.days(30)

    def measure(self, side):
        # another version of the trigger's row: the filter does not trust the lane
        p = self.setup.days(30)
        conn = p.cluster.connect("idemq")
        cur = conn.cursor()
        cur.execute("SELECT leaf::text FROM idemq.partitions WHERE state = 'closed'"
                    " AND parent = 'idemq.processed'::regclass ORDER BY lower LIMIT %s", (self.sizes.built,))
        for leaf, in cur.fetchall():
            cur.execute("ALTER TABLE %s DISABLE TRIGGER filter_row" % leaf)
            cur.execute("ALTER TABLE %s ENABLE ALWAYS TRIGGER filter_row" % leaf)
        spent = []
        for _ in range(2):
            start = time.perf_counter()
            cur.execute("CALL idem_maintain()")
            spent.append(time.perf_counter() - start)
        conn.close()
        p.wait_ready()
        return (spent[0] - spent[1]) * 1e6 / (self.sizes.built * self.sizes.per_day)


class Probes(Row):
    name = "probes"
    title = "false probes of a fresh claim, 30 partitions of half a million keys"
    unit = "probes/claim"
    compare = ((IDEMQ, None, 0.05),)
    note = "Index scans that the server counted while none of the keys was there."

    def sides(self):
        return (IDEMQ,)

    def begin(self):
        self.setup.days(30, self.sizes.half, "half")

    def prepare(self, side):
        self.setup.want_today("half", "empty")

    def measure(self, side):
        self.setup.today["half"] = "fresh"
        c = self.setup.clusters["half"]
        count = ("SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes WHERE schemaname = 'idemq'"
                 " AND relname LIKE 'processed%'")
        before = c.run("idemq", count)
        c.run("idemq", "SELECT count(*) FROM (SELECT idem_claim(k) FROM fresh WHERE n <= %d) t"
              % self.sizes.probed, "SELECT pg_stat_force_next_flush()", "SELECT 1")
        return (c.run("idemq", count) - before) / self.sizes.probed


class Bits(Row):
    name = "bits"
    title = "memory of the filter, 30 partitions of half a million keys"
    unit = "bits/key"
    note = "All of idemq.filter_memory, by the keys of the row probes."
    once = True

    def sides(self):
        return (IDEMQ,)

    def begin(self):
        self.setup.days(30, self.sizes.half, "half")

    def measure(self, side):
        return float(self.setup.clusters["half"].run(
            "idemq", "SELECT 8.0 * pg_size_bytes(current_setting('idemq.filter_memory')) / count(*)"
            " FROM idemq.processed"))


ROWS = [Fresh, Bytes, DuplicateToday, DuplicateOld, Many, Ordered, BytesOrdered, Flat, Update, Daily, Build, Probes,
        Bits]
