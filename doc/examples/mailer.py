#!/usr/bin/python3
"""Sends a mail for each event about an order: a consumer of the outbox.

Start as many of these as you like, and kill them whenever you like.  (One at a
time has work, unless the consumer has more shards; the others stand by.)

Settings, from the environment:

    DATABASE_URL    where PostgreSQL is; see orders.sql and mailer.sql for what must
                    be in it

Every statement is a transaction of its own: a lease is kept in the database and
known by its token, so nothing lives in the connection.

    1. CALL outbox_wait, which sleeps until there is something to fetch
    2. fetch: the events are ours until the lease ends
    3. send each; one that fails is nacked, and comes again later
    4. ack what is left of the lease

If it dies before 4, the lease runs out and the events are handed out again: a
mail can go out twice.  It has the event's id as its own, the same each time.
"""

import logging
import os
import signal

import psycopg2

DATABASE_URL = os.environ.get("DATABASE_URL", "dbname=orders user=mailer")
CONSUMER = "mailer"
LEASE = "30 s"  # longer than a batch can take; outbox_extend() is for the others

log = logging.getLogger("mailer")


def send(message_id, to, text):
    """Where the mail would be sent; raises ValueError if it cannot be."""
    if "@" not in to:
        raise ValueError(f"{to} is no address")
    log.info("sent %s to %s: %s", message_id, to, text)


def handle(cursor, event_id, account, what, payload):
    """Does what an event asks for."""
    cursor.execute("SELECT email FROM customers WHERE account = %s", (account,))
    row = cursor.fetchone()
    if row is None:
        raise ValueError(f"there is no customer {account}")
    send(event_id, row[0], f"order {payload['order']} is {what}")


def handle_batch(cursor, events):
    """Handles the events of one lease, in their order."""
    token = events[0][0]
    withdrawn = set()
    for _, event_id, account, what, payload, attempt in events:
        if event_id in withdrawn:
            continue  # waits behind one that has failed
        try:
            handle(cursor, event_id, account, what, payload)
        except ValueError as error:
            cursor.execute(
                "SELECT action, withdrawn::text[] FROM outbox_nack(%s, %s, %s)",
                (token, event_id, str(error)),
            )
            action, later = cursor.fetchone()
            withdrawn.update(later)
            log.warning("failed %s, attempt %s: %s: %s", event_id, attempt, error, action)
        # Every other error ends the process: the lease runs out, and whoever
        # is there then gets the events.
    cursor.execute("SELECT outbox_ack(%s)", (token,))


def main():
    logging.basicConfig(format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)

    # SIGTERM: finish the batch in hand, then go.
    stopping = []
    signal.signal(signal.SIGTERM, lambda signum, frame: stopping.append(signum))

    db = psycopg2.connect(DATABASE_URL)
    db.autocommit = True  # outbox_wait() must not be in a transaction block
    cursor = db.cursor()
    log.info("ready")

    # Once a second at least the loop looks whether it is to stop.
    while not stopping:
        cursor.execute("CALL outbox_wait(%s, '1 s')", (CONSUMER,))
        cursor.execute(
            "SELECT token, id::text, aggregateid, type, payload, attempt"
            " FROM outbox_fetch(%s, 100, %s)",
            (CONSUMER, LEASE),
        )
        events = cursor.fetchall()
        if events:
            handle_batch(cursor, events)

    db.close()


if __name__ == "__main__":
    main()
