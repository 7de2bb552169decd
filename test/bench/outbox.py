"""The rows about the outbox: an event written, captured, fetched, and how soon."""

import os
import subprocess
import threading
import time
from statistics import median

from cluster import PGBIN, say
from workloads import IDEMQ, Row, Sample, Update, cpu_time, timed

BATCH = 1000
PGQ = "PgQ"
SKIP = "SKIP LOCKED"

PAYLOAD = ("jsonb_build_object('order', n, 'customer', n % 9973, 'status', 'paid', 'total', n % 1000 + 0.95,"
           " 'currency', 'EUR', 'lines', jsonb_build_array("
           "jsonb_build_object('sku', 'A-' || n % 4999, 'quantity', 2)))")


def has_pgq():
    """Not every distribution has it for every version of the server."""
    if not PGBIN:
        return False
    share = subprocess.run([PGBIN + "/pg_config", "--sharedir"], check=True, capture_output=True, text=True).stdout
    return os.path.exists(share.strip() + "/extension/pgq.control")


HAS_PGQ = has_pgq()


class Log:
    """A cluster with a database in which idemq, its rivals and their events are."""

    name = "outbox"
    db = "log"

    def __init__(self, setup):
        self.sizes = setup.sizes
        self.cluster = setup.cluster(self.name)
        create_idemq(self.cluster, self.db)
        self.run("CREATE TABLE event (n int PRIMARY KEY, id text NOT NULL, payload jsonb NOT NULL,"
                 " data text NOT NULL)",
                 "INSERT INTO event SELECT n, n % 100000, p, p FROM generate_series(1, {0}) n,"
                 " LATERAL (SELECT {1}) AS t(p)".format(self.sizes.fresh, PAYLOAD),
                 "VACUUM ANALYZE event")
        if HAS_PGQ:
            self.run("CREATE EXTENSION pgq")
        self.cluster.script(self.db, "outbox_rivals.sql")

    def run(self, *statements):
        return self.cluster.run(self.db, *statements)

    def timed(self, sql, expected, warm=None):
        return timed(self.cluster, self.db, sql, expected, warm)

    def empty(self):
        """The log as it is after a while in which nothing was written."""
        empty_log(self.cluster, self.db)

    def new_queue(self):
        """An empty queue of PgQ, and somebody who reads it."""
        self.run("""
            DO $$ BEGIN
                IF EXISTS (SELECT FROM pgq.queue WHERE queue_name = 'bench') THEN
                    PERFORM pgq.drop_queue('bench', true);
                END IF;
                PERFORM pgq.create_queue('bench');
                PERFORM pgq.set_queue_config('bench', 'ticker_max_count', '1');
                PERFORM pgq.register_consumer('bench', 'reader');
            END $$""")


def create_idemq(cluster, db):
    """A database with idemq in it, and partitions for today."""
    cluster.create(db)
    cluster.run(db, "CREATE EXTENSION idemq", "CALL idem_maintain()")


def log_leaf(cluster, db):
    return cluster.run(db, "SELECT leaf::text FROM idemq.partitions WHERE state = 'current'"
                           " AND parent = 'idemq.outbox'::regclass")


def empty_log(cluster, db):
    cluster.run(db, "TRUNCATE ONLY " + log_leaf(cluster, db))


def log_of(setup):
    """Made when it is asked for."""
    if not hasattr(setup, "log"):
        say("filling the database of the outbox")
        setup.log = Log(setup)
    return setup.log


def timed_calls(cluster, db, prepare, work, events):
    """Microseconds per event of what "work" does with a cursor; it must come to so many."""
    conn = cluster.connect(db)
    cur = conn.cursor()
    for sql in prepare:
        cur.execute(sql)
    pid = conn.get_backend_pid()
    cur.execute("SELECT pg_current_wal_insert_lsn()")
    lsn = cur.fetchone()[0]
    cpu = cpu_time(pid)
    start = time.perf_counter()
    got = work(cur)
    spent = time.perf_counter() - start
    sample = Sample(spent * 1e6 / events)
    if cpu is not None:
        sample.cpu = (cpu_time(pid) - cpu) / 1e3 / events
    cur.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", (lsn,))
    sample.wal = float(cur.fetchone()[0]) / events
    conn.close()
    if got != events:
        raise SystemExit("%s: got %s events, not %s" % (db, got, events))
    return sample


class LogRow(Row):
    unit = "µs/event"

    def begin(self):
        self.log = log_of(self.setup)


class Emit(LogRow):
    name = "outbox-emit"
    title = "an event written by a function, all in one statement"
    event = PGQ + ": insert_event"
    raw = PGQ + ": insert_event_raw"
    compare = ((IDEMQ, event, 0.4), (IDEMQ, raw, None)) if HAS_PGQ else ()
    note = "idemq: outbox_emit. The same payload, of about 170 bytes, as jsonb and as text."

    def sides(self):
        return (IDEMQ, self.event, self.raw) if HAS_PGQ else (IDEMQ,)

    def prepare(self, side):
        if side == IDEMQ:
            self.log.empty()
        else:
            self.log.new_queue()

    def measure(self, side):
        call = {
            IDEMQ: "outbox_emit('order', payload, id, 'paid')",
            self.event: "pgq.insert_event('bench', 'paid', data, 'order', id, NULL, NULL)",
            self.raw: "pgq.insert_event_raw('bench', NULL, now(), NULL, NULL, 'paid', data, 'order', id, NULL, NULL)",
        }[side]
        sql = "SELECT count(%s) FROM event WHERE n <= %%d" % call
        n = self.sizes.emitted
        return self.log.timed(sql % n, n, sql % 10)


class Insert(LogRow):
    name = "outbox-insert"
    title = "plain INSERT, a million events in one statement"
    bare = "INSERT, no partition, no index"
    compare = ((IDEMQ, bare, 1.7),)
    note = "The same columns and defaults on both sides."

    def sides(self):
        return IDEMQ, self.bare

    def prepare(self, side):
        if side == IDEMQ:
            self.log.empty()
        else:
            self.log.run("TRUNCATE bare")

    def measure(self, side):
        sql = ("INSERT INTO %s (aggregatetype, aggregateid, type, payload) SELECT 'order', id, 'paid', payload"
               " FROM event WHERE n <= %%d" % ("idemq.outbox" if side == IDEMQ else "bare"))
        n = self.sizes.fresh
        return self.log.timed(sql % n, n, sql % 10)


class Capture(LogRow):
    name = "outbox-capture"
    title = "UPDATE of all rows of a table of six columns, captured"
    unit = "µs/row"
    plain = "UPDATE, no trigger"
    hot, plain_hot = "idemq, fillfactor = 45", "UPDATE, no trigger, fillfactor = 45"
    compare = ((IDEMQ, plain, 2.5), (hot, plain_hot, None))
    note = "With fillfactor = 45 no new entries are made in the primary key (HOT)."

    def sides(self):
        return IDEMQ, self.plain, self.hot, self.plain_hot

    def prepare(self, side):
        options = "WITH (fillfactor = 45)" if side in (self.hot, self.plain_hot) else ""
        self.log.empty()
        self.log.run("DROP TABLE IF EXISTS orders",
                     "CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, status text NOT NULL,"
                     " total numeric(10, 2) NOT NULL, note text, changed_at timestamptz NOT NULL) " + options,
                     "INSERT INTO orders SELECT n, n %% 9973, 'new', n %% 1000 + 0.95, md5(n::text), now()"
                     " FROM generate_series(1, %d) n" % self.sizes.captured, "VACUUM ANALYZE orders")
        if side in (IDEMQ, self.hot):
            self.log.run("SELECT outbox_capture('orders')")

    def measure(self, side):
        return self.log.timed("UPDATE orders SET status = 'paid', changed_at = now()", self.sizes.captured)


class Consume(LogRow):
    name = "outbox-consume"
    title = "fetch and acknowledge, 1,000 at a time, each a transaction, synchronous_commit = on"
    commit = "on"
    compare = ((IDEMQ, SKIP, 0.1),) + (((IDEMQ, PGQ, 1.0),) if HAS_PGQ else ())
    note = ("The rows are read and counted in the server: what sending them costs is the same for all. "
            "PgQ's ticker, which makes its batches, is not counted.")

    def sides(self):
        return (IDEMQ, SKIP) + ((PGQ,) if HAS_PGQ else ())

    def prepare(self, side):
        n = self.sizes.consumed
        if side == IDEMQ:
            self.log.empty()
            self.log.run("SELECT outbox_unsubscribe('bench') FROM idemq.subscriptions WHERE consumer = 'bench'",
                         "SELECT outbox_subscribe('bench')", "CALL fill_idemq(%d)" % n)
        elif side == SKIP:
            self.log.run("TRUNCATE queue", "CALL fill_queue(%d)" % n, "ANALYZE queue")
        else:
            self.log.new_queue()
            self.log.run("SELECT pgq.ticker('bench')", "CALL fill_pgq(%d)" % n)

    def measure(self, side):
        prepare, work = {IDEMQ: (self.IDEMQ_CALLS, self.by_idemq), SKIP: (self.SKIP_CALLS, self.by_skip),
                         PGQ: (self.PGQ_CALLS, self.by_pgq)}[side]
        return timed_calls(self.log.cluster, self.log.db, ("SET synchronous_commit = " + self.commit,) + prepare, work,
                           self.sizes.consumed)

    IDEMQ_CALLS = (
        "PREPARE lease AS SELECT count(*), max(token) FROM outbox_fetch('bench', %d)" % BATCH,
        "PREPARE ack(bigint) AS SELECT outbox_ack($1)")

    def by_idemq(self, cur):
        total = 0
        while total < self.sizes.consumed:
            cur.execute("EXECUTE lease")
            n, token = cur.fetchone()
            if n == 0:
                break
            cur.execute("EXECUTE ack(%d)" % token)
            total += cur.fetchone()[0]
        return total

    SKIP_CALLS = (
        "PREPARE take AS WITH taken AS (UPDATE queue SET status = 'taken', taken_at = now() WHERE id IN"
        " (SELECT id FROM queue WHERE status = 'new' ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED) RETURNING *)"
        " SELECT count(*), array_agg(id)::text FROM taken" % BATCH,
        "PREPARE done(bigint[]) AS DELETE FROM queue WHERE id = ANY ($1)")

    def by_skip(self, cur):
        total = 0
        while total < self.sizes.consumed:
            cur.execute("EXECUTE take")
            n, ids = cur.fetchone()
            if n == 0:
                break
            cur.execute("EXECUTE done('%s')" % ids)
            total += cur.rowcount
        return total

    PGQ_CALLS = (
        "PREPARE batch AS SELECT pgq.next_batch('bench', 'reader')",
        "PREPARE events(bigint) AS SELECT count(*) FROM pgq.get_batch_events($1)",
        "PREPARE finish(bigint) AS SELECT pgq.finish_batch($1)")

    def by_pgq(self, cur):
        total = 0
        while total < self.sizes.consumed:
            # the batch and its events in one transaction
            cur.execute("BEGIN; EXECUTE batch")
            batch, = cur.fetchone()
            if batch is None:
                break
            cur.execute("EXECUTE events(%d)" % batch)
            total += cur.fetchone()[0]
            cur.execute("COMMIT; EXECUTE finish(%d)" % batch)
        return total


class Waiting(Row):
    name = "outbox-waiting"
    title = "one fetch of 100, with 10 million events waiting or 1,000"
    unit = "µs/fetch"
    fetches = 15
    few_events = 1000
    # kind: what a consumer is subscribed with
    kinds = {"": "", ", a type of one in a thousand": ", aggregatetypes => '{rare}'", ", 8 shards": ", shards => 8"}
    many = "idemq, %s waiting%s"
    note = "The first fetch of a consumer, which opens its window: median of 15 of them."

    def __init__(self, setup, sizes):
        self.names = ["10 million" if sizes.waiting == 10000000 else "%d" % sizes.waiting, "1,000"]
        self.where = {}
        for kind in self.kinds:
            for name, db in zip(self.names, ("many", "few")):
                self.where[self.many % (name, kind)] = (db, kind)
        labels = list(self.where)
        self.compare = tuple((labels[i], labels[i + 1], 1.2 if i == 0 else None) for i in (0, 2, 4))
        super().__init__(setup, sizes)

    def sides(self):
        return list(self.where)

    def consumer(self, kind, number, fetch):
        return "c%d_%d_%d" % (list(self.kinds).index(kind), number, fetch)

    def begin(self):
        c = self.setup.cluster("outbox")
        for db, n in ("few", self.few_events), ("many", self.sizes.waiting):
            say("writing %d events that nobody fetches" % n)
            create_idemq(c, db)
            for kind, how in self.kinds.items():
                for number in range(self.sizes.rounds):
                    # one more to warm up with
                    for fetch in range(self.fetches + 1):
                        c.run(db, "SELECT outbox_subscribe('%s'%s)" % (self.consumer(kind, number, fetch), how))
            for first in range(1, n, 100000):
                c.run(db, "INSERT INTO idemq.outbox (aggregatetype, aggregateid, type, payload)"
                          " SELECT CASE WHEN n %% 1000 = 0 THEN 'rare' ELSE 'order' END, n %% 100000, 'paid',"
                          " '{\"status\": \"paid\"}' FROM generate_series(%d, %d) n"
                      % (first, min(first + 99999, n)))
            c.checkpoint()
        self.number = 0

    def run(self, number):
        super().run(number)
        self.number = number + 1

    def measure(self, side):
        return self.fetch(side, self.number)

    def fetch(self, side, number):
        db, kind = self.where[side]
        conn = self.setup.cluster("outbox").connect(db)
        cur = conn.cursor()
        # no disk in it, but for the flush before the window is opened
        cur.execute("SET synchronous_commit = off")
        cur.execute("PREPARE lease(text) AS SELECT count(*), max(token) FROM outbox_fetch($1)")
        for _ in range(8):
            # until the server has made all of its plans, and read what is in front
            cur.execute("EXECUTE lease(%s)", (self.consumer(kind, number, self.fetches),))
            n, token = cur.fetchone()
            if n > 0:
                cur.execute("SELECT outbox_ack(%s)", (token,))
        pid = conn.get_backend_pid()
        spent = []
        cpu = cpu_time(pid)
        for fetch in range(self.fetches):
            start = time.perf_counter()
            cur.execute("EXECUTE lease(%s)", (self.consumer(kind, number, fetch),))
            spent.append(time.perf_counter() - start)
            if kind == "" and cur.fetchone()[0] != 100:
                raise SystemExit("%s: not 100 events" % side)
        sample = Sample(median(spent) * 1e6)
        if cpu is not None:
            sample.cpu = (cpu_time(pid) - cpu) / 1e3 / self.fetches
        conn.close()
        return sample


class ConsumeLoose(Consume):
    name = "outbox-consume-off"
    title = "fetch and acknowledge, 1,000 at a time, each a transaction, synchronous_commit = off"
    commit = "off"
    note = "The same without the disk: if a commit is lost, events are delivered again."


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


class Wake(LogRow):
    name = "outbox-wake"
    title = "from commit to fetch through outbox_wait, 100 events/s"
    unit = "µs, from commit to fetch"
    p50, p99 = "idemq, p50", "idemq, p99"
    sent50, sent99 = "idemq, p50, from COMMIT being sent", "idemq, p99, from COMMIT being sent"
    own50, own99 = "COMMIT itself, p50", "COMMIT itself, p99"
    compare = ((p50, None, 3000), (p99, None, 15000))
    note = ("From the answer to the writer's COMMIT to the answer to the fetch, with the fetch's own commit in it; "
            "synchronous_commit = on.")

    def sides(self):
        return self.p50, self.p99, self.sent50, self.sent99, self.own50, self.own99

    def run(self, number):
        if number == 0:
            self.begin()
        self.log.cluster.checkpoint()
        self.log.empty()
        self.log.run("SELECT outbox_unsubscribe('wake') FROM idemq.subscriptions WHERE consumer = 'wake'",
                     "SELECT outbox_subscribe('wake')")
        sent, answered, fetched = self.listen(100 * self.sizes.wake_seconds)
        values = {
            (self.p50, self.p99): [max(0, fetched[k] - answered[k]) for k in answered],
            (self.sent50, self.sent99): [fetched[k] - sent[k] for k in sent],
            (self.own50, self.own99): [answered[k] - sent[k] for k in sent],
        }
        for (half, most), taken in values.items():
            self.samples[half].append(quantile(taken, 0.5) * 1e6)
            self.samples[most].append(quantile(taken, 0.99) * 1e6)

    def listen(self, events):
        """When COMMIT was sent, and answered, and when the fetch was, by event."""
        sent, answered, fetched = {}, {}, {}
        reader = Thread(self.read, events, fetched)
        conn = self.log.cluster.connect(self.log.db)
        conn.autocommit = False
        cur = conn.cursor()
        begin = time.perf_counter() + 0.5
        for i in range(events):
            time.sleep(max(0, begin + i / 100 - time.perf_counter()))
            cur.execute("SELECT outbox_emit('order', '{}', %s)", (str(i),))
            sent[str(i)] = time.perf_counter()
            conn.commit()
            answered[str(i)] = time.perf_counter()
        conn.close()
        reader.end()
        return sent, answered, fetched

    def read(self, events, fetched):
        conn = self.log.cluster.connect(self.log.db)
        cur = conn.cursor()
        cur.execute("PREPARE lease AS SELECT token, aggregateid FROM outbox_fetch('wake')")
        deadline = time.perf_counter() + 60 + events / 100
        while len(fetched) < events:
            cur.execute("CALL outbox_wait('wake', '5s')")
            cur.execute("EXECUTE lease")
            now = time.perf_counter()
            rows = cur.fetchall()
            for _, key in rows:
                fetched[key] = now
            if rows:
                cur.execute("SELECT outbox_ack(%s)", (rows[0][0],))
            if now > deadline:
                raise SystemExit("%d of %d events came" % (len(fetched), events))
        conn.close()


class Thread(threading.Thread):
    """One whose failure is the failure of whoever waits for it."""

    def __init__(self, work, *args):
        super().__init__(daemon=True)
        self.work = work, args
        self.failure = None
        self.start()

    def run(self):
        work, args = self.work
        try:
            work(*args)
        except BaseException as failure:
            self.failure = failure

    def end(self):
        self.join()
        if self.failure:
            raise self.failure


class UpdateEmit(Update):
    name = "outbox-update"
    title = "claim, emit and UPDATE in one statement, 4 clients, synchronous_commit = on"
    all_three = "idemq: claim, emit and UPDATE in one statement"
    compare = ((all_three, Update.alone, 1.20), (Update.one, Update.alone, None))
    scripts = dict(Update.scripts, **{
        all_three: Update.scripts[Update.one].replace("UPDATE", ", u AS (UPDATE", 1).replace(
            ";\n", " RETURNING id, balance) SELECT outbox_emit('account', jsonb_build_object('id', id,"
            " 'balance', balance), id::text, 'changed') FROM u;\n")})

    def sides(self):
        return self.alone, self.one, self.all_three


class Bodies(LogRow):
    name = "outbox-bodies"
    title = "events with bodies of 1 MB that do not compress"
    unit = "µs/MB"
    written, read = "idemq, outbox_emit_bytes", "idemq, fetched and sent to the client, acknowledged"
    bare = "INSERT, no partition, no index"
    select = "SELECT from that, sent to the client"
    compare = ((written, bare, None), (read, select, None))
    note = "A million divided by it is MB/s."

    def sides(self):
        return self.written, self.bare, self.read, self.select

    def begin(self):
        super().begin()
        if "bodies" not in self.setup.have:
            self.setup.have.add("bodies")
            self.log.run("CREATE TABLE bodies (body bytea)", "ALTER TABLE bodies ALTER body SET STORAGE EXTERNAL",
                         "INSERT INTO bodies SELECT string_agg(decode(md5(b || '-' || n), 'hex'), '')"
                         " FROM generate_series(1, 8) b, generate_series(1, 65536) n GROUP BY b", "VACUUM bodies")

    def source(self):
        return "bodies, generate_series(1, %d)" % (self.sizes.bodies // 8)

    def write(self, side):
        n = self.sizes.bodies // 8 * 8
        if side in (self.written, self.read):
            return self.log.timed("SELECT count(outbox_emit_bytes('file', body)) FROM " + self.source(), n,
                                  "SELECT outbox_emit_bytes('file', '')" if side == self.written else None)
        return self.log.timed("INSERT INTO bare (aggregatetype, body) SELECT 'file', body FROM " + self.source(), n)

    def prepare(self, side):
        self.log.empty()
        self.log.run("TRUNCATE bare")
        if side in (self.read, self.select):
            self.log.run("SELECT outbox_unsubscribe('bodies') FROM idemq.subscriptions WHERE consumer = 'bodies'",
                         "SELECT outbox_subscribe('bodies')")
            self.write(side)

    def measure(self, side):
        if side in (self.written, self.bare):
            return self.write(side)
        n = self.sizes.bodies // 8 * 8
        work = self.fetch_all if side == self.read else self.select_all
        return timed_calls(self.log.cluster, self.log.db, (), work, n)

    def fetch_all(self, cur):
        total = 0
        while total < self.sizes.bodies // 8 * 8:
            sink = Sink()
            cur.copy_expert("COPY (SELECT token, body FROM outbox_fetch('bodies', 10)) TO STDOUT (FORMAT binary)", sink)
            cur.execute("SELECT outbox_ack(%s)", (sink.first_number(),))
            total += cur.fetchone()[0]
            if sink.length < 8 * 1048576:
                break
        return total

    def select_all(self, cur):
        cur.copy_expert("COPY (SELECT seq, body FROM bare ORDER BY seq) TO STDOUT (FORMAT binary)", Sink())
        return cur.rowcount


class Sink:
    """Takes a binary COPY, and remembers the first number in it."""

    def __init__(self):
        self.head = b""
        self.length = 0

    def write(self, data):
        self.length += len(data)
        if len(self.head) < 64:
            self.head += bytes(data[:64])

    def first_number(self):
        # 19 bytes in front of it, 2 say how many columns, 4 how long this is
        return int.from_bytes(self.head[25:33], "big")


class Steady(Row):
    """Half an hour at the same rate, under an old snapshot."""

    name = "outbox-steady"
    title = "2,000 events/s written and consumed, one failing each second, under a snapshot as old as the run"
    once = True
    unit = "µs/event"
    per_second, per_write = 2000, 20
    first, last = "idemq: between two deliveries, first tenth", "idemq: between two deliveries, last tenth"
    call_first, call_last = "idemq: fetch and acknowledge, first tenth", "idemq: fetch and acknowledge, last tenth"
    compare = ((last, first, 1.05), (call_last, call_first, None))

    def sides(self):
        return self.first, self.last, self.call_first, self.call_last

    def run(self, number):
        if number > 0:
            return
        seconds = self.sizes.steady_seconds
        c = self.setup.cluster("steady")
        c.run("postgres", "ALTER SYSTEM SET idemq.naptime = '5s'")
        c.run("postgres", "ALTER SYSTEM SET idemq.partition_interval = '%ds'" % max(5, seconds // 10))
        c.run("postgres", "ALTER SYSTEM SET idemq.outbox_retention = '10s'")
        c.run("postgres", "SELECT pg_reload_conf()")
        create_idemq(c, "steady")
        c.run("steady", "SELECT outbox_subscribe('steady')")
        old = c.connect("steady")
        cur = old.cursor()
        cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cur.execute("SELECT pg_current_xact_id(), count(*) FROM pg_class")
        begin = time.perf_counter()
        self.end = begin + seconds
        self.calls, self.dead, self.turns = [], [], 0
        threads = [Thread(self.write, c, begin), Thread(self.read, c), Thread(self.look, c)]
        for thread in threads:
            thread.end()
        old.close()
        tenth = seconds / 10
        self.curves_title = "outbox-steady: µs per event, fetched and acknowledged, by minute"
        self.curves_linear = True
        minutes = {}
        for at, n, spent, _ in self.calls:
            minutes.setdefault(int((at - begin) / 60) + 1, []).append((n, spent))
        self.curves = {IDEMQ: {m: [sum(s for _, s in part) * 1e6 / sum(n for n, _ in part)]
                               for m, part in sorted(minutes.items())}}
        for between, call, since in (self.first, self.call_first, begin), (self.last, self.call_last, self.end - tenth):
            part = [c for c in self.calls if since <= c[0] < since + tenth]
            events = sum(n for _, n, _, _ in part)
            self.samples[between].append(tenth * 1e6 / events)
            sample = Sample(sum(spent for _, _, spent, _ in part) * 1e6 / events)
            if part[0][3] is not None:
                sample.cpu = sum(cpu for _, _, _, cpu in part) / 1e3 / events
            self.samples[call].append(sample)
        self.note = ("%d minutes, %d events; dead tuples in all tables of idemq at most %d (at most 1000: %s); "
                     "the ledgers turned over %d times."
                     % (seconds // 60, sum(n for _, n, _, _ in self.calls), max(self.dead),
                        "reached" if max(self.dead) <= 1000 else "MISSED", self.turns))
        self.setup.close("steady")

    def write(self, c, begin):
        conn = c.connect("steady")
        cur = conn.cursor()
        cur.execute("PREPARE emit AS SELECT count(outbox_emit('order', %s, (random() * 10000)::int::text, 'paid'))"
                    " FROM generate_series(1, %d) n" % (PAYLOAD, self.per_write))
        turn = 0
        while time.perf_counter() < self.end:
            time.sleep(max(0, begin + turn * self.per_write / self.per_second - time.perf_counter()))
            cur.execute("EXECUTE emit")
            turn += 1

    def read(self, c):
        conn = c.connect("steady")
        cur = conn.cursor()
        cur.execute("PREPARE lease AS SELECT count(*), max(token), (min(id::text) FILTER (WHERE attempt = 1))::uuid"
                    " FROM outbox_fetch('steady', %d)" % BATCH)
        pid = conn.get_backend_pid()
        failed = time.perf_counter()
        while time.perf_counter() < self.end:
            start = time.perf_counter()
            cpu = cpu_time(pid)
            cur.execute("EXECUTE lease")
            n, token, event = cur.fetchone()
            if n == 0:
                cur.execute("CALL outbox_wait('steady', '1s')")
                continue
            if event and start - failed > 1:
                cur.execute("SELECT outbox_nack(%s, %s, 'made to fail', '2s')", (token, event))
                failed = start
            cur.execute("SELECT outbox_ack(%s)", (token,))
            acked = cur.fetchone()[0]
            self.calls.append((start, acked, time.perf_counter() - start, cpu and cpu_time(pid) - cpu))

    def look(self, c):
        conn = c.connect("steady")
        cur = conn.cursor()
        turns = "SELECT coalesce(max(turn), 0) FROM idemq.turn"
        while time.perf_counter() < self.end:
            time.sleep(2)
            cur.execute("SELECT coalesce(sum(s.n_dead_tup), 0)::bigint FROM pg_class AS r"
                        " JOIN pg_stat_all_tables AS s ON s.relid IN (r.oid, r.reltoastrelid)"
                        " WHERE r.relnamespace = 'idemq'::regnamespace")
            self.dead.append(cur.fetchone()[0])
        cur.execute(turns)
        self.turns = cur.fetchone()[0]


ROWS = [Emit, Insert, Capture, Consume, ConsumeLoose, Waiting, Wake, UpdateEmit, Bodies]
FULL_ROWS = [Steady]
