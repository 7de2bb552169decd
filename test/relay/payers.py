#!/usr/bin/python3
"""Pays orders: payers.py CONNINFO ORDERS SECONDS WRITERS KEYS POISONED_EVERY SEED

Each order is a transaction: the account's number goes up by one, the order
gets that number, and an event tells of it.  One in eight is rolled back; it
had a number of its own from -1 downwards.  Every POISONED_EVERYth has a type
that the broker knows no way for.  A writer whose connection breaks off comes
back, and looks whether its last order is there, before it pays it again.

The orders are spread over that many seconds.  Prints a line at the end.
"""

import json
import random
import sys
import threading
import time

import psycopg2

dsn, orders, seconds, writers, keys, poisoned_every, seed = sys.argv[1], *map(int, sys.argv[2:])
lock = threading.Lock()
counts = {"committed": 0, "rolled back": 0, "again": 0}


def pay(db, number, account, kind):
    """One order, not yet committed."""
    with db.cursor() as cursor:
        cursor.execute("UPDATE accounts SET n = n + 1 WHERE id = %s RETURNING n", (account,))
        n = cursor.fetchone()[0]
        cursor.execute("INSERT INTO orders (id, account, n, type) VALUES (%s, %s, %s, %s)", (number, account, n, kind))
        cursor.execute(
            "SELECT outbox_emit('order', %s, %s, %s)",
            (json.dumps({"order": number, "account": account, "n": n}), account, kind),
        )


def is_there(db, number):
    with db.cursor() as cursor:
        cursor.execute("SELECT FROM orders WHERE id = %s", (number,))
        found = cursor.rowcount == 1
    db.rollback()
    return found


def count(what):
    with lock:
        counts[what] += 1


def write(writer, begun):
    dice = random.Random(seed * 1000 + writer)
    db = None
    doubt = False
    number = writer + 1
    while number <= orders:
        # sleep: until the order is due
        time.sleep(max(0, begun + seconds * number / orders - time.monotonic()))
        account = f"a{dice.randrange(keys)}"
        kind = "nowhere" if poisoned_every and number % poisoned_every == 0 else "paid"
        undone = dice.randrange(8) == 0
        while True:
            try:
                if db is None:
                    db = psycopg2.connect(dsn, connect_timeout=5)
                if doubt and is_there(db, number):
                    doubt = False
                    count("committed")
                    break
                doubt = False
                if undone:
                    pay(db, -number, account, kind)
                    db.rollback()
                    count("rolled back")
                    undone = False
                    continue
                pay(db, number, account, kind)
                doubt = True
                db.commit()
                doubt = False
                count("committed")
                break
            except psycopg2.Error:
                count("again")
                try:
                    if db is not None:
                        db.close()
                except psycopg2.Error:
                    pass
                db = None
                # sleep: between two attempts to connect
                time.sleep(0.2)
        number += writers
    if db is not None:
        db.close()


def main():
    begun = time.monotonic()
    threads = [threading.Thread(target=write, args=(w, begun)) for w in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
