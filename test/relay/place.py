#!/usr/bin/python3
"""Books events from Kafka: place.py CONNINFO BOOTSTRAP TOPIC PARTITION

kcat reads a partition; its place is kept here.  Each message is one
transaction: claim its place (topic, partition, offset), claim its id, write
the effect.  A reader that comes back begins some messages early, which the
claims of places must notice; what the relay has sent twice, those of ids.
"""

import json
import subprocess
import sys
import time

import psycopg2

DSN, BOOTSTRAP, TOPIC, PARTITION = sys.argv[1:]
EARLY = 30


def begin_at(db):
    with db, db.cursor() as cursor:
        cursor.execute('SELECT max("offset") FROM booked WHERE topic = %s AND partition = %s', (TOPIC, PARTITION))
        last = cursor.fetchone()[0]
    return max(0, last - EARLY) if last is not None else 0


def book(db, offset, key, event, value):
    with db, db.cursor() as cursor:
        cursor.execute("SELECT idem_claim(idem_key(%s, %s, %s), 'place')", (TOPIC, PARTITION, str(offset)))
        if not cursor.fetchone()[0]:
            return "seen"
        cursor.execute("SELECT idem_claim(%s, 'event')", (event,))
        first = cursor.fetchone()[0]
        cursor.execute(
            'INSERT INTO booked (topic, partition, "offset", key, event, n, first) VALUES (%s, %s, %s, %s, %s, %s, %s)',
            (TOPIC, PARTITION, offset, key, event, value["n"], first),
        )
    return "booked" if first else "again"


def work():
    db = psycopg2.connect(DSN)
    reader = subprocess.Popen(
        ["kcat", "-C", "-q", "-u", "-b", BOOTSTRAP, "-t", TOPIC, "-p", PARTITION, "-o", str(begin_at(db)),
         "-X", "topic.metadata.refresh.interval.ms=500", "-f", r"%o\t%k\t%h\t%s\n"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    try:
        for line in reader.stdout:
            offset, key, headers, value = line.rstrip("\n").split("\t", 3)
            named = dict(h.split("=", 1) for h in headers.split(",") if "=" in h)
            print(book(db, int(offset), key, named["id"], json.loads(value)), named["id"])
    finally:
        reader.kill()
        reader.wait()
        db.close()


def main():
    while True:
        work()
        # sleep: until kcat may find the partition
        time.sleep(0.3)


if __name__ == "__main__":
    main()
