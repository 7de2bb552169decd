"""What a claim and an event cost: see test/bench/run, which calls this."""

import argparse
import platform
import re
import sys
import time

import cluster
import more
import outbox
import relay
import report
import workloads
from cluster import say


def arguments():
    parser = argparse.ArgumentParser(prog="test/bench/run", add_help=False)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check-usage", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=re.compile, default=None)
    parser.add_argument("--scale", type=int, default=None)
    parser.add_argument("--filter-memory")
    parser.add_argument("--out", default="idemq-bench")
    args = parser.parse_args()
    if args.scale is None:
        args.scale = 10 if args.full else 0
    return args


def cpu():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def facts(c, args):
    """What the figures depend on."""
    with open("/proc/cpuinfo") as f:
        cores = sum(1 for line in f if line.startswith("processor"))
    shown = {}
    for name in list(cluster.settings(args.filter_memory)) + ["idemq.filter_memory"]:
        shown[name] = c.run("postgres", "SHOW " + name)
    shown["idemq.partition_interval"] = c.run("postgres", "SHOW idemq.partition_interval")
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "server": c.run("postgres", "SELECT version()"),
        "locale": cluster.LOCALE,
        "cpu": "%d x %s" % (cores, cpu()),
        "memory": "%d MB" % cluster.memory_mb(),
        "settings": shown,
        "rounds": args.rounds,
        "quick": args.quick,
        "full": args.full,
    }


def main():
    args = arguments()
    classes = workloads.ROWS + outbox.ROWS + relay.ROWS + (more.ROWS + outbox.FULL_ROWS if args.full else [])
    if args.scale:
        classes = classes + [more.Scale]
    if args.rows:
        classes = [row for row in classes if args.rows.search(row.name)]
    if args.list:
        for row in classes:
            print("%-22s %s" % (row.name, row.title))
    if args.rounds < 1 or not classes:
        print("no rows or no rounds", file=sys.stderr)
        return 2
    if args.check_usage:
        return 0

    for row in classes:
        if relay.missing(row):
            say("left out: %s (%s)" % (row.name, relay.missing(row)))
    classes = [row for row in classes if not relay.missing(row)]
    sizes = workloads.Sizes(args.quick, args.full)
    sizes.scale = args.scale
    sizes.rounds = args.rounds
    setup = workloads.Setup(sizes, args.filter_memory)
    about = facts(setup.main(), args)
    rows = [row(setup, sizes) for row in classes]
    for number in range(args.rounds):
        for row in rows:
            say("round %d of %d: %s" % (number + 1, args.rounds, row.name))
            row.run(number)
            report.write(args.out, about, rows)
    for row in rows:
        row.finish()
    report.write(args.out, about, rows)
    setup.close_all()
    print(report.table(about, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
