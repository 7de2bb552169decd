"""The rows that only "make bench-full" has."""

import os
import shutil
import socket
import subprocess
import time

from cluster import RANDOM_KEY, WORK, Cluster, Partitions, say
from workloads import (IDEMQ, PLAIN, PLAIN_C, PLAIN_EMPTY, TABLES, WARM_CLAIM, Fresh, Many, OrderedLate, Row,
                       claim_all, insert_all, pgbench, timed)


class Others(Row):
    name = "others"
    title = "fresh keys, a million in one statement: other ways"
    uuid = "ON CONFLICT, uuid key, table empty before"
    caught = "unique_violation caught in PL/pgSQL, table empty before"
    compare = ((IDEMQ, uuid, None), (IDEMQ, caught, None))
    tables = {uuid: "plain_uuid", caught: "caught"}

    def sides(self):
        return IDEMQ, self.uuid, self.caught

    def begin(self):
        self.setup.days(30)
        self.setup.empties()

    def prepare(self, side):
        if side == IDEMQ:
            self.setup.want_today("main", "empty")
        else:
            self.setup.want_empty(self.tables[side])

    def measure(self, side):
        c, n = self.setup.main(), self.sizes.fresh
        if side == IDEMQ:
            self.setup.today["main"] = "fresh"
            return claim_all(c, "fresh", n)
        self.setup.empty[self.tables[side]] = "fresh"
        if side == self.uuid:
            return timed(c, "empties", "INSERT INTO plain_uuid (key) SELECT k::uuid FROM fresh"
                         " ON CONFLICT DO NOTHING", n)
        return timed(c, "empties", "SELECT count(*) FILTER (WHERE caught_claim(k)) FROM fresh", n)


class TenPercent(Fresh):
    name = "duplicates-10%"
    title = "a million keys in one statement, a tenth of them duplicates of today"
    compare = ((IDEMQ, PLAIN, None), (IDEMQ, PLAIN_C, None))
    note = None

    def sides(self):
        return IDEMQ, PLAIN, PLAIN_C

    def prepare(self, side):
        super().prepare(side)
        where = " WHERE n % 10 = 0"
        if side == IDEMQ:
            claim_all(self.setup.main(), "fresh", self.sizes.fresh // 10, None, where)
        else:
            insert_all(self.setup.main(), side, "fresh", self.sizes.fresh // 10, None, where)

    def measure(self, side):
        c, n = self.setup.main(), self.sizes.fresh
        if side == IDEMQ:
            self.setup.today["main"] = "fresh"
            return claim_all(c, "fresh", n, n - n // 10)
        self.setup.copied[TABLES[side][1]] = "fresh"
        return insert_all(c, side, "fresh", n, n - n // 10)


class Many10(Many):
    name = "many-10"
    title = "idem_claim_many, 10 at a time"
    size = 10
    compare = ((IDEMQ, Many.rival, None),)


class Many100(Many):
    name = "many-100"
    title = "idem_claim_many, 100 at a time"
    size = 100
    compare = ((IDEMQ, Many.rival, None),)


class Behind(Row):
    name = "partitions"
    title = "fresh keys, a million in one statement, by the number of partitions"
    names = {"idemq, 1 partition": 0, "idemq, 7 partitions": 6, "idemq, 30 partitions": 29,
             "idemq, 90 partitions": 89}
    compare = tuple((side, "idemq, 1 partition", None) for side in list(names)[1:])

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


class Clients(Row):
    """One claim, one transaction, through pgbench."""

    unit = "µs/transaction"
    clients = 1
    commit = "on"
    loose = "idemq, idemq.durable_claims = off"

    def sides(self):
        return (IDEMQ, PLAIN_EMPTY) if self.commit == "on" else (IDEMQ, self.loose, PLAIN_EMPTY)

    def begin(self):
        self.setup.days(30)

    def prepare(self, side):
        if side == PLAIN_EMPTY:
            self.setup.want_empty("plain")
        else:
            self.setup.want_today("main", "empty")

    def measure(self, side):
        script = "\\set key random(1, 9223372036854775807)\n"
        options = "-c synchronous_commit=" + self.commit
        if side == PLAIN_EMPTY:
            self.setup.empty["plain"] = "clients"
            db, script = "empties", script + "INSERT INTO plain (key) VALUES (:key) ON CONFLICT DO NOTHING;\n"
        else:
            self.setup.today["main"] = "clients"
            db, script = "idemq", script + "SELECT idem_claim(:key);\n"
        if side == self.loose:
            options += " -c idemq.durable_claims=off"
        os.environ["PGOPTIONS"] = options
        try:
            return pgbench(self.setup.main(), db, script, self.clients, self.sizes.seconds)
        finally:
            del os.environ["PGOPTIONS"]


def clients_row(clients, commit):
    sides = (IDEMQ,) if commit == "on" else (IDEMQ, Clients.loose)
    return type("Clients%d%s" % (clients, commit), (Clients,), {
        "name": "clients-%d-%s" % (clients, commit),
        "title": "one claim per transaction, %d clients, synchronous_commit = %s" % (clients, commit),
        "clients": clients, "commit": commit,
        "compare": tuple((side, PLAIN_EMPTY, None) for side in sides)})


# Debian's one program of Redis looks at its name; so the package that has no
# service in it is enough
REDIS = shutil.which("redis-check-rdb") or shutil.which("redis-server")


class Redis:
    """A private Redis on a unix socket, and as much of its protocol as SET needs."""

    def __init__(self, name, *options):
        self.dir = os.path.join(WORK, "s", name)
        os.makedirs(self.dir)
        path = os.path.join(self.dir, "redis.sock")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", path, "--dir", self.dir, "--save", "", *options],
            executable=REDIS, stdout=subprocess.DEVNULL)
        deadline = time.time() + 20
        while not os.path.exists(path):
            if time.time() > deadline or self.process.poll() is not None:
                raise SystemExit("redis-server does not start")
            time.sleep(0.05)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)

    def claim(self, key):
        self.socket.sendall(b"*6\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\n1\r\n$2\r\nNX\r\n$2\r\nEX\r\n$6\r\n604800\r\n"
                            % (len(key), key))
        answer = self.socket.recv(64)
        while not answer.endswith(b"\r\n"):
            answer += self.socket.recv(64)
        return answer.startswith(b"+OK")

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()


class OneClient(Row):
    name = "redis"
    title = "one Python client, one claim after the other, each its own transaction"
    unit = "µs/claim"
    insert = "ON CONFLICT, text key, table empty before"
    redis = "Redis SET NX EX, in memory"
    logged = "Redis SET NX EX, appendfsync always"
    note = ("Redis is here for scale only: it takes no part in the application's transaction, so an effect "
            "can be lost or applied twice.")
    compare = ((IDEMQ, insert, None),) + (((IDEMQ, redis, None), (IDEMQ, logged, None)) if REDIS else ())

    def sides(self):
        return (IDEMQ, self.insert) + ((self.redis, self.logged) if REDIS else ())

    def begin(self):
        self.setup.days(30)
        self.setup.empties()

    def prepare(self, side):
        if side == IDEMQ:
            self.setup.want_today("main", "empty")
        elif side == self.insert:
            self.setup.want_empty("plain")

    def measure(self, side):
        keys = ["%032x-%03d" % (i * 0x9E3779B97F4A7C15, len(self.samples[side])) for i in range(self.sizes.client)]
        if side in (self.redis, self.logged):
            extra = ("--appendonly", "yes", "--appendfsync", "always") if side == self.logged else ()
            server = Redis("r%d" % time.monotonic_ns(), *extra)
            keys = [key.encode() for key in keys]
            start = time.perf_counter()
            claimed = sum(server.claim(key) for key in keys)
            spent = time.perf_counter() - start
            server.close()
        else:
            if side == IDEMQ:
                self.setup.today["main"] = "client"
                db, sql = "idemq", "EXECUTE claim('%s')"
                prepare = "PREPARE claim(text) AS SELECT idem_claim($1)"
            else:
                self.setup.empty["plain"] = "client"
                db, sql = "empties", "EXECUTE claim('%s')"
                prepare = "PREPARE claim(text) AS INSERT INTO plain (key) VALUES ($1) ON CONFLICT DO NOTHING"
            conn = self.setup.main().connect(db)
            cur = conn.cursor()
            cur.execute(prepare)
            claimed = 0
            start = time.perf_counter()
            for key in keys:
                cur.execute(sql % key)
                claimed += cur.fetchone()[0] if cur.description else cur.rowcount
            spent = time.perf_counter() - start
            conn.close()
        if claimed != len(keys):
            raise SystemExit("%s: %d of %d claimed" % (side, claimed, len(keys)))
        return spent * 1e6 / len(keys)


class Scale(Row):
    """Grown step by step; each step measured as often as there are rounds."""

    name = "scale"
    title = "fresh keys, by the number of live keys in 30 partitions, or in one table"
    steps = (1, 3, 10, 30, 100)
    small = "idemq"
    large = "idemq, more filter_memory"

    def __init__(self, setup, sizes):
        self.unit = "µs"
        self.curves = {}
        self.steps = [s for s in self.steps if s <= sizes.scale]
        self.million = 1000 if sizes.quick else 1000000
        self.claims = 1000 if sizes.quick else 100000
        self.next = 0
        super().__init__(setup, sizes)
        self.note = ("More filter_memory: %s." % self.memory()
                     + (" A million is a thousand here." if sizes.quick else ""))

    def memory(self):
        return "%dMB" % max(128, 4 * self.sizes.scale)

    def sides(self):
        return [self.label(s, side) for s in self.steps for side in (self.small, self.large, PLAIN)]

    @staticmethod
    def label(step, side):
        return "%s, %d million" % (side, step)

    def run(self, number):
        # all of it in the last round: nothing else needs its clusters
        self.rounds = number + 1

    def finish(self):
        """Grow and measure."""
        s = self.setup
        clusters = {self.small: Cluster("scale", s.filter_memory), self.large: Cluster("scalemore", self.memory()),
                    PLAIN: Cluster("scaleplain")}
        s.clusters.update({c.name: c for c in clusters.values()})
        for side in (self.small, self.large):
            Partitions(clusters[side], "idemq", 30, 1)
        clusters[PLAIN].create("idemq")
        clusters[PLAIN].script("idemq", "rivals.sql")
        self.curves = {side: {} for side in clusters}
        have = 0
        for step in self.steps:
            share = step * self.million // 30
            for side, c in clusters.items():
                say("scale: %s, up to %d million" % (side, step))
                self.grow(c, side, have, share)
            have = share
            for _ in range(self.rounds):
                for side, c in clusters.items():
                    c.run("idemq", "DROP TABLE IF EXISTS keys",
                          "CREATE TABLE keys AS SELECT n, %s AS k FROM generate_series(%d, %d) n"
                          % (RANDOM_KEY.format(kind="scale"), self.next + 1, self.next + self.claims),
                          "VACUUM ANALYZE keys")
                    c.checkpoint()
                    sql = ("INSERT INTO plain (key) SELECT k FROM keys ON CONFLICT DO NOTHING" if side == PLAIN
                           else "SELECT count(*) FILTER (WHERE idem_claim(k)) FROM keys")
                    value = timed(c, "idemq", sql, self.claims, None if side == PLAIN else WARM_CLAIM)
                    self.samples[self.label(step, side)].append(value)
                    self.curves[side].setdefault(step, []).append(value)
                self.next += self.claims
        for c in clusters.values():
            s.close(c.name)

    def grow(self, c, side, have, share):
        if side == PLAIN:
            c.run("idemq", "INSERT INTO plain SELECT md5(d || '-' || n)::uuid::text, now()"
                  " FROM generate_series(30, 1, -1) d, generate_series(%d, %d) n" % (have + 2, share + 1))
        else:
            conn = c.connect("idemq")
            cur = conn.cursor()
            cur.execute("SELECT leaf::text, lower::text FROM idemq.partitions WHERE state = 'closed'"
                        " AND parent = 'idemq.processed'::regclass ORDER BY lower")
            for day, (leaf, lower) in zip(range(30, 0, -1), cur.fetchall()):
                cur.execute("INSERT INTO %s SELECT '', %s, '%s', '%s' FROM generate_series(%d, %d) n"
                            % (leaf, RANDOM_KEY.format(kind=day), lower, lower, have + 2, share + 1))
            conn.close()
        c.run("idemq", "VACUUM")
        c.checkpoint()


ROWS = [Others, OrderedLate, TenPercent, Many10, Many100, Behind]
ROWS += [clients_row(clients, commit) for commit in ("on", "off") for clients in (1, 4, 16)]
ROWS += [OneClient]
