"""Clusters, databases and keys: what a workload finds when it starts."""

import os
import subprocess
import time

import psycopg2

WORK = os.environ.get("BENCH_WORK", "")
PGBIN = os.environ.get("BENCH_PGBIN", "")
LOCALE = os.environ.get("BENCH_LOCALE", "C.UTF-8")
HERE = os.path.dirname(os.path.abspath(__file__))

# A key, 36 characters: the same for everybody who asks for the same number.
RANDOM_KEY = "md5('{kind}-' || n)::uuid::text"

# A UUID of version 7, as clients make them: a time, in order, and the rest at
# random, so that keys of one millisecond are in no order.
ORDERED_KEY = (
    "overlay(overlay(lpad(to_hex(1764547200000 + {ms}), 12, '0') || substr(md5('v7-' || n), 13)"
    " PLACING '7' FROM 13) PLACING '8' FROM 17)::uuid::text"
)
# ten in each millisecond
DENSE_KEY = ORDERED_KEY.format(ms="n / 10")
# one in each millisecond, and each comes up to a second late
LATE_KEY = ORDERED_KEY.format(ms="n + ('x' || left(md5('late-' || n), 6))::bit(24)::int % 1000")


def memory_mb():
    with open("/proc/meminfo") as f:
        return int(f.readline().split()[1]) // 1024


def say(*words):
    print(time.strftime("[%H:%M:%S]"), *words, flush=True)


def settings(filter_memory):
    """The same for every cluster, and printed."""
    buffers = "2GB" if memory_mb() > 7500 else "%dMB" % max(128, memory_mb() // 4)
    conf = {
        "shared_preload_libraries": "idemq",
        "shared_buffers": buffers,
        "huge_pages": "off",
        "work_mem": "64MB",
        "maintenance_work_mem": "256MB",
        # checkpoints are made by hand, before a measurement
        "checkpoint_timeout": "1d",
        "max_wal_size": "24GB",
        "min_wal_size": "3GB",
        "bgwriter_lru_maxpages": "0",
        "autovacuum": "off",
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
        # the SQL way keeps a lock for each key
        "max_locks_per_transaction": "512",
        "idemq.retention": "120d",
        # maintenance is called by hand, too
        "idemq.naptime": "1h",
    }
    if filter_memory:
        conf["idemq.filter_memory"] = filter_memory
    return conf


class Cluster:
    """A private server, on a unix socket."""

    def __init__(self, name, filter_memory=None):
        self.name = name
        self.data = os.path.join(WORK, "c", name)
        self.socket = os.path.join(WORK, "s", name)
        os.makedirs(self.socket, exist_ok=True)
        subprocess.run(
            [PGBIN + "/initdb", "-D", self.data, "-U", "postgres", "-A", "trust",
             "--locale=C", "-E", "UTF8", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL)
        with open(self.data + "/postgresql.conf", "a") as f:
            f.write("\nlisten_addresses = ''\nunix_socket_directories = '%s'\n" % self.socket)
            f.write("timezone = 'UTC'\n")
            for key, value in settings(filter_memory).items():
                f.write("%s = '%s'\n" % (key, value))
        subprocess.run(
            [PGBIN + "/pg_ctl", "start", "-s", "-w", "-D", self.data, "-l", self.data + ".log"],
            check=True, stdin=subprocess.DEVNULL)

    def stop(self):
        subprocess.run([PGBIN + "/pg_ctl", "stop", "-s", "-w", "-m", "immediate", "-D", self.data])
        subprocess.run(["rm", "-rf", self.data])

    def dsn(self, db):
        return "host=%s dbname=%s user=postgres" % (self.socket, db)

    def connect(self, db):
        conn = psycopg2.connect(self.dsn(db))
        conn.autocommit = True
        return conn

    def run(self, db, *statements):
        """Run statements; the first column of the last one's first row."""
        conn = self.connect(db)
        try:
            cur = conn.cursor()
            for sql in statements:
                cur.execute(sql)
            return cur.fetchone()[0] if cur.description else None
        finally:
            conn.close()

    def script(self, db, name):
        with open(os.path.join(HERE, name)) as f:
            self.run(db, f.read())

    def create(self, db, template=None):
        if template:
            # through the log: no page of the copy needs an image in it later
            strategy = "STRATEGY wal_log" if self.version() >= 150000 else ""
            self.run("postgres", "DROP DATABASE IF EXISTS " + db,
                     "CREATE DATABASE %s TEMPLATE %s %s" % (db, template, strategy))
        else:
            self.run("postgres", "CREATE DATABASE %s TEMPLATE template0 ENCODING 'UTF8' LOCALE '%s'"
                     % (db, LOCALE))

    def version(self):
        return int(self.run("postgres", "SHOW server_version_num"))

    def checkpoint(self):
        self.run("postgres", "CHECKPOINT")


def make_keys(cluster, db, table, expression, n):
    """Keys in a table, read the same way by all."""
    cluster.run(db, "CREATE TABLE %s (n int, k text)" % table,
                "INSERT INTO %s SELECT n, %s FROM generate_series(1, %d) n" % (table, expression, n),
                "VACUUM ANALYZE " + table)


class Partitions:
    """A database with idemq in it, and keys in the days before today."""

    def __init__(self, cluster, db, days, per_day):
        self.cluster = cluster
        self.db = db
        self.days = days
        self.per_day = per_day
        cluster.create(db)
        cluster.run(db, "CREATE EXTENSION idemq", "CALL idem_maintain()")
        conn = cluster.connect(db)
        cur = conn.cursor()
        for day in range(1, days + 1):
            self.make_day(cur, day)
        conn.close()
        self.wait_ready()

    def make_day(self, cur, day):
        """What maintenance would have made so many days ago, filled."""
        cur.execute("SELECT to_char(d, 'YYYYMMDD'), d::text, (d + interval '1 day')::text"
                    " FROM (SELECT date_trunc('day', now() AT TIME ZONE 'UTC')"
                    " AT TIME ZONE 'UTC' - %s * interval '1 day') AS t(d)", (day,))
        suffix, lower, upper = cur.fetchone()
        leaf = "idemq.processed_p" + suffix
        cur.execute("CREATE TABLE %s (LIKE idemq.processed INCLUDING CONSTRAINTS INCLUDING DEFAULTS"
                    " INCLUDING STORAGE) USING heap WITH (vacuum_truncate = off)" % leaf)
        cur.execute(
            "INSERT INTO %s SELECT '', %s, '%s'::timestamptz + n * interval '1 day' / %d, '%s'"
            " FROM generate_series(1, %d) n"
            % (leaf, RANDOM_KEY.format(kind=day), lower, self.per_day + 1, lower, self.per_day))
        cur.execute("CREATE UNIQUE INDEX processed_p%s_digest ON %s (idemq.digest(scope, key))"
                    % (suffix, leaf))
        cur.execute("ALTER TABLE %s REPLICA IDENTITY FULL" % leaf)
        cur.execute("ALTER TABLE idemq.processed ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')"
                    % (leaf, lower, upper))
        cur.execute("VACUUM ANALYZE " + leaf)

    def wait_ready(self):
        """Until the filter covers every partition."""
        deadline = time.time() + 600
        while True:
            self.cluster.run(self.db, "CALL idem_maintain()")
            left = self.cluster.run(
                self.db, "SELECT count(*) FROM idemq.partitions"
                " WHERE parent = 'idemq.processed'::regclass AND filter <> 'ready'")
            if left == 0:
                return
            if time.time() > deadline:
                raise SystemExit("the filter does not get ready: %d partitions left" % left)
            time.sleep(0.2)

    def today(self):
        return self.cluster.run(self.db, "SELECT leaf::text FROM idemq.partitions WHERE state = 'current'"
                                " AND parent = 'idemq.processed'::regclass")

    def empty_today(self):
        """Today's partition as it was at midnight."""
        self.cluster.run(self.db, "TRUNCATE ONLY " + self.today())
        self.wait_ready()
