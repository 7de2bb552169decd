"""The rows about idemq-relay: its rate beside a bare loop's, and how soon an event is at the broker."""

import json
import os
import subprocess
import time

from cluster import WORK
from outbox import PAYLOAD, Thread, create_idemq, empty_log, quantile
from workloads import Row, Sample

RELAY = os.environ.get("BENCH_RELAY", "")
LOOPS = os.environ.get("BENCH_LOOPS", "")
AMQP_URL = os.environ.get("AMQP_URL", "")
BROKER_PORT = os.environ.get("BROKER_PORT", "")
BROKER_PASSWORD = os.environ.get("BROKER_PASSWORD", "")

EXCHANGE = "bench"
QUEUE = "bench"
RABBIT = ("--to", "amqp://demo@127.0.0.1:%s/%%2F" % BROKER_PORT, "--exchange", EXCHANGE)


class Events:
    """A cluster with events, and the same events in files for the bare loops."""

    db = "relay"

    def __init__(self, setup):
        self.sizes = setup.sizes
        self.cluster = setup.cluster("relay")
        create_idemq(self.cluster, self.db)
        self.run("CREATE TABLE event (n int PRIMARY KEY, payload jsonb NOT NULL)",
                 "INSERT INTO event SELECT n, p FROM generate_series(1, %d) n, LATERAL (SELECT %s) AS t(p)"
                 % (max(self.sizes.relayed, self.sizes.produced), PAYLOAD), "VACUUM ANALYZE event")

    def run(self, *statements):
        return self.cluster.run(self.db, *statements)

    def write(self, n, keys, consumer="bench"):
        """An empty log, a new consumer, and so many events for it."""
        empty_log(self.cluster, self.db)
        self.subscribe(consumer)
        self.run("INSERT INTO idemq.outbox (aggregatetype, aggregateid, type, payload)"
                 " SELECT 'order', n %% %d, 'paid', payload FROM event WHERE n <= %d ORDER BY n" % (keys, n))
        self.cluster.checkpoint()

    def subscribe(self, consumer):
        self.run("SELECT outbox_unsubscribe(consumer) FROM idemq.subscriptions",
                 "SELECT outbox_subscribe('%s')" % consumer)

    def file(self, n, keys):
        """The same events for a bare loop."""
        name = os.path.join(WORK, "out", "events-%d-%d" % (n, keys))
        if not os.path.exists(name):
            self.write(n, keys)
            conn = self.cluster.connect(self.db)
            with open(name, "w") as f:
                conn.cursor().copy_expert(
                    "COPY (SELECT id, aggregatetype, aggregateid, type, seq,"
                    " (extract(epoch FROM created_at) * 1000000)::bigint, payload FROM idemq.outbox ORDER BY seq)"
                    " TO STDOUT", f)
            conn.close()
        return name


def events_of(setup):
    """Made when they are asked for."""
    if not hasattr(setup, "relay_events"):
        setup.relay_events = Events(setup)
    return setup.relay_events


def relay_command(events, destination, *more):
    return [RELAY, "--consumer", "bench", "--dbname", events.cluster.dsn(events.db), *destination, "--log-level",
            "warning", *more]


def run_program(command, timeout=600):
    """Its output; fails if it does."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          text=True, timeout=timeout, env=dict(os.environ, IDEMQ_RELAY_PASSWORD=BROKER_PASSWORD))
    if done.returncode:
        raise SystemExit("%s: exit status %d\n%s" % (command[0], done.returncode, done.stderr[-2000:]))
    return done.stdout


def start_relay(command):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, IDEMQ_RELAY_PASSWORD=BROKER_PASSWORD))


def end_relay(relay):
    """Tells it to stop; fails if it had another reason to."""
    relay.terminate()
    _, said = relay.communicate(timeout=60)
    if relay.returncode:
        raise SystemExit("idemq-relay: exit status %d\n%s" % (relay.returncode, said[-2000:]))


def channel():
    """A channel, with the exchange and the queue there."""
    import pika
    opened = pika.BlockingConnection(pika.URLParameters(AMQP_URL)).channel()
    opened.exchange_declare(EXCHANGE, "topic", durable=True)
    opened.queue_declare(QUEUE, durable=True)
    opened.queue_bind(QUEUE, EXCHANGE, "#")
    return opened


class Rate(Row):
    """The relay, and a loop in C that publishes the same messages and reads no database."""

    unit = "µs/event"
    keys = 1000
    at_most = None
    window = None
    note = ("The relay from its start until its consumer has nothing left, so with connecting, leases and acks; the loop "
            "from its first message to the last confirm.")

    def __init__(self, setup, sizes):
        self.relay = "idemq-relay, %s keys" % format(self.keys, ",")
        self.loop = "bare loop, %s in flight" % format(self.window, ",")
        self.relay_one = "idemq-relay, one key"
        self.loop_one = self.one_loop_name()
        self.compare = ((self.relay, self.loop, self.at_most), (self.relay_one, self.loop_one, None))
        super().__init__(setup, sizes)

    def one_loop_name(self):
        return "bare loop, one in flight"

    def sides(self):
        return self.relay, self.loop, self.relay_one, self.loop_one

    def begin(self):
        self.events = events_of(self.setup)
        self.shapes = (self.sizes.relayed, self.keys), (self.sizes.relayed_one, 1)

    def shape(self, side):
        """How many events, and of how many keys."""
        return self.shapes[side in (self.relay_one, self.loop_one)]

    def prepare(self, side):
        n, keys = self.shape(side)
        if side.startswith("idemq"):
            self.events.write(n, keys)
        else:
            self.file = self.events.file(n, keys)
        self.clear()

    def clear(self):
        """Takes what is at the destination."""

    def measure(self, side):
        n, keys = self.shape(side)
        if side.startswith("idemq"):
            spent = self.run_relay(relay_command(self.events, self.destination(side)))
        else:
            spent = float(run_program(self.loop_command(side)))
        self.check(n)
        return Sample(spent * 1e6 / n)

    def run_relay(self, command):
        """Seconds until the consumer has nothing left, all acknowledged."""
        conn = self.events.cluster.connect(self.events.db)
        cur = conn.cursor()
        start = time.perf_counter()
        relay = start_relay(command)
        left = None
        while left != 0:
            time.sleep(0.02)
            cur.execute("SELECT sum(lag_events + in_flight) FROM idemq.consumers")
            left = cur.fetchone()[0]
            if relay.poll() is not None or time.perf_counter() - start > 600:
                break
        spent = time.perf_counter() - start
        conn.close()
        end_relay(relay)
        if left != 0:
            raise SystemExit("%s: %s events are left" % (self.name, left))
        return spent

    def check(self, n):
        """All of them must be there."""


class RabbitRate(Rate):
    name = "relay-rabbitmq"
    title = "events published to RabbitMQ, persistent, mandatory, confirmed"
    window = 1000
    at_most = 1.43

    def clear(self):
        opened = channel()
        opened.queue_purge(QUEUE)
        opened.connection.close()

    def destination(self, side):
        return RABBIT

    def loop_command(self, side):
        return [LOOPS + "/publish_rabbitmq", "127.0.0.1", BROKER_PORT, "demo", BROKER_PASSWORD, EXCHANGE,
                str(1 if side == self.loop_one else self.window), self.file]

    def check(self, n):
        opened = channel()
        got = opened.queue_declare(QUEUE, passive=True).method.message_count
        opened.connection.close()
        if got != n:
            raise SystemExit("RabbitMQ has %d messages, not %d" % (got, n))


class KafkaRate(Rate):
    name = "relay-kafka"
    title = "events produced to librdkafka's mock of Kafka, idempotent, acks=all"
    window = 1000
    wide = 10000
    at_most = 1.25
    mock = None
    note = Rate.note + "  1,000 in flight is what the relay has with its --batch as it is."

    def __init__(self, setup, sizes):
        self.relay_wide = "idemq-relay, --batch 10000"
        self.loop_wide = "bare loop, 10,000 in flight"
        super().__init__(setup, sizes)
        self.compare += ((self.relay_wide, self.loop_wide, None),)

    def sides(self):
        return super().sides() + (self.relay_wide, self.loop_wide)

    def one_loop_name(self):
        return "bare loop, one key"

    def begin(self):
        super().begin()
        self.shapes = (self.sizes.produced, self.keys), (self.sizes.produced, 1)
        self.mock = subprocess.Popen([LOOPS + "/kafka_mock", "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True)
        self.servers = self.mock.stdout.readline().split()[1]
        self.mock.stdin.write("topic outbox.event.order 12\n")
        self.mock.stdin.flush()
        if self.mock.stdout.readline().strip() != "ok":
            raise SystemExit("the mock of Kafka makes no topic")

    def finish(self):
        self.mock.stdin.close()
        self.mock.wait()

    def destination(self, side):
        many = str(self.wide if side == self.relay_wide else self.window)
        return ("--to", "kafka://" + self.servers, "--in-flight", many, "--batch", many)

    def loop_command(self, side):
        # one key: in one partition, in its order, with as many in flight
        many = str(self.wide if side == self.loop_wide else self.window)
        return [LOOPS + "/publish_kafka", self.servers, many, self.file]


class Latency(Row):
    name = "relay-latency"
    title = "from commit to a consumer of RabbitMQ, 100 events/s"
    unit = "µs, from commit to arrival"
    p50, p99 = "idemq-relay, p50", "idemq-relay, p99"
    off50, off99 = "idemq-relay, its synchronous_commit = off, p50", "idemq-relay, its synchronous_commit = off, p99"
    own50, own99 = "COMMIT itself, p50", "COMMIT itself, p99"
    rabbit50, rabbit99 = "RabbitMQ alone, p50", "RabbitMQ alone, p99"
    compare = ((p50, None, 5000), (p99, None, None), (off50, None, None))
    note = ("From the answer to the writer's COMMIT until a consumer in Python has the message; RabbitMQ alone: the same "
            "consumer, from basic_publish of that message by Python.")

    def sides(self):
        return self.p50, self.p99, self.off50, self.off99, self.rabbit50, self.rabbit99, self.own50, self.own99

    def begin(self):
        self.events = events_of(self.setup)

    def run(self, number):
        if number == 0:
            self.begin()
        n = 100 * self.sizes.wake_seconds
        sent, answered, arrived = self.through_relay(n, "")
        _, off_answered, off_arrived = self.through_relay(n, " options='-c synchronous_commit=off'")
        alone_sent, _, alone = self.listen(n, self.by_rabbit)
        values = {
            (self.p50, self.p99): [max(0, arrived[k] - answered[k]) for k in answered],
            (self.off50, self.off99): [max(0, off_arrived[k] - off_answered[k]) for k in off_answered],
            (self.own50, self.own99): [answered[k] - sent[k] for k in sent],
            (self.rabbit50, self.rabbit99): [alone[k] - alone_sent[k] for k in alone_sent],
        }
        for (half, most), taken in values.items():
            self.samples[half].append(quantile(taken, 0.5) * 1e6)
            self.samples[most].append(quantile(taken, 0.99) * 1e6)

    def through_relay(self, n, options):
        """As listen(), with a relay in between."""
        self.events.cluster.checkpoint()
        empty_log(self.events.cluster, self.events.db)
        self.events.subscribe("bench")
        command = relay_command(self.events, RABBIT)
        command[command.index("--dbname") + 1] += options
        relay = start_relay(command)
        times = self.listen(n, self.by_relay)
        end_relay(relay)
        return times

    def listen(self, n, write):
        """When COMMIT was sent, and answered, and when the message came, by event."""
        opened = channel()
        opened.queue_purge(QUEUE)
        sent, answered, arrived = {}, {}, {}
        # one in front, until which all have connected
        writer = Thread(write, n + 1, sent, answered)
        deadline = time.perf_counter() + 60 + n / 100
        for _, _, body in opened.consume(QUEUE, auto_ack=True, inactivity_timeout=1):
            now = time.perf_counter()
            if body is not None:
                arrived[json.loads(body)["n"]] = now
            if len(arrived) == n + 1:
                break
            if now > deadline:
                raise SystemExit("%d of %d events came" % (len(arrived), n + 1))
        opened.connection.close()
        writer.end()
        del sent[0], answered[0], arrived[0]
        return sent, answered, arrived

    @staticmethod
    def paced(n):
        begin = time.perf_counter()
        for i in range(n):
            # the first one has two seconds for itself
            time.sleep(max(0, begin + (2 + i / 100 if i else 0) - time.perf_counter()))
            yield i

    def by_relay(self, n, sent, answered):
        conn = self.events.cluster.connect(self.events.db)
        conn.autocommit = False
        cur = conn.cursor()
        for i in self.paced(n):
            cur.execute("SELECT outbox_emit('order', %s, %s, 'paid')", (json.dumps({"n": i}), str(i)))
            sent[i] = time.perf_counter()
            conn.commit()
            answered[i] = time.perf_counter()
        conn.close()

    def by_rabbit(self, n, sent, answered):
        import pika
        opened = channel()
        for i in self.paced(n):
            sent[i] = answered[i] = time.perf_counter()
            opened.basic_publish(EXCHANGE, "order.paid", json.dumps({"n": i}), pika.BasicProperties(delivery_mode=2))
        opened.connection.close()


class Idle(Row):
    name = "relay-idle"
    title = "what an idle relay asks the database, in a minute"
    unit = "statements"
    relay = "idemq-relay, idle"
    waits = "of them CALL outbox_wait"
    once = True
    note = "After its first ten seconds; outbox_wait's time-out is a minute."

    def sides(self):
        return self.relay, self.waits

    def run(self, number):
        if number > 0:
            return
        events = events_of(self.setup)
        events.subscribe("bench")
        events.run("DROP ROLE IF EXISTS idler", "CREATE ROLE idler LOGIN", "SELECT idem_grant('idler', 'consume', 'bench')",
                   "ALTER ROLE idler SET log_statement = 'all'")
        command = relay_command(events, RABBIT if BROKER_PORT else ("--to", "stdout"))
        command[command.index("--dbname") + 1] = events.cluster.dsn(events.db).replace("postgres", "idler")
        relay = start_relay(command)
        time.sleep(1 if self.sizes.quick else 10)
        log = events.cluster.data + ".log"
        start = os.path.getsize(log)
        time.sleep(2 if self.sizes.quick else 60)
        with open(log) as f:
            f.seek(start)
            asked = [line for line in f if "statement: " in line or "execute " in line]
        end_relay(relay)
        self.samples[self.relay].append(len(asked))
        self.samples[self.waits].append(sum("outbox_wait" in line for line in asked))


ROWS = [RabbitRate, KafkaRate, Latency, Idle]


def missing(row):
    """What a row cannot do without, and is not there; None if it can run."""
    if row not in ROWS:
        return None
    if not RELAY:
        return "idemq-relay was not built"
    if row in (RabbitRate, Latency) and not BROKER_PORT:
        return "no RabbitMQ"
    if row is KafkaRate and not os.path.exists(LOOPS + "/kafka_mock"):
        return "no librdkafka"
    return None
