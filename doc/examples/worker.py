#!/usr/bin/python3
"""Applies payments from RabbitMQ to PostgreSQL, each exactly once.

Start as many of these as you like, and kill them whenever you like.

Settings, from the environment:

    DATABASE_URL    where PostgreSQL is; see schema.sql for what must be in it
    AMQP_URL        where RabbitMQ is; see broker.py

A message is {"account": ..., "amount": ...}; its id is that of the event in the
outbox, which idemq-relay published.  The relay may publish an event twice, and
RabbitMQ delivers a message again whenever it has seen no acknowledgement: because
a worker died, or a connection broke.  So the worker keeps to one order:

    1. BEGIN, and SELECT idem_claim(message id)
    2. if the answer is true: change what there is to change
    3. COMMIT
    4. acknowledge

If it dies before 3, the claim and the change are gone together, and the next
delivery starts afresh.  If it dies between 3 and 4, the next delivery is told
`false`, and all that is left to do is to acknowledge.
"""

import json
import logging
import os
import signal

import psycopg2

from broker import QUEUE, open_channel

DATABASE_URL = os.environ.get("DATABASE_URL", "dbname=payments user=billing")
PREFETCH = 5  # messages that the broker sends ahead of the acknowledgements

log = logging.getLogger("worker")


def apply_payment(db, message_id, account, amount):
    """Claims and applies one payment; False if it has been applied before."""
    # One transaction: "with db" commits at its end, or rolls back if there is
    # an exception, and then the claim is given back as well.
    with db, db.cursor() as cursor:
        cursor.execute("SELECT idem_claim(%s)", (message_id,))
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(
            "UPDATE accounts SET balance = balance + %s WHERE account = %s",
            (amount, account),
        )
        if cursor.rowcount != 1:
            raise ValueError(f"there is no account {account}")
        cursor.execute(
            "INSERT INTO payments (message_id, account, amount) VALUES (%s, %s, %s)",
            (message_id, account, amount),
        )
    return True


def handle(db, channel, delivery, properties, body):
    """Handles one delivery, up to its acknowledgement."""
    message_id = properties.message_id
    log.info("delivered %s%s", message_id, " (redelivered)" if delivery.redelivered else "")
    try:
        if not message_id:
            raise ValueError("the message has no id")
        payment = json.loads(body)
        applied = apply_payment(db, message_id, payment["account"], payment["amount"])
    except (KeyError, TypeError, ValueError, psycopg2.DataError, psycopg2.IntegrityError) as error:
        # It cannot succeed, however often it is delivered.
        log.warning("rejected %s: %s", message_id, str(error).strip())
        channel.basic_reject(delivery.delivery_tag, requeue=False)
        return
    # Every other error ends the worker: the message was not acknowledged, so
    # it is delivered again, to whoever is there.  That holds even where nobody
    # knows whether the COMMIT came through: the next claim will know.

    log.info("%s %s", "applied" if applied else "refused", message_id)
    channel.basic_ack(delivery.delivery_tag)
    log.info("acknowledged %s", message_id)


def main():
    logging.basicConfig(format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)

    # SIGTERM: finish the message in hand, then go.
    stopping = []
    signal.signal(signal.SIGTERM, lambda signum, frame: stopping.append(signum))

    db = psycopg2.connect(DATABASE_URL)
    channel = open_channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    log.info("ready")

    # Once a second at least the loop looks whether it is to stop.
    for delivery, properties, body in channel.consume(QUEUE, inactivity_timeout=1):
        if delivery is not None:
            handle(db, channel, delivery, properties, body)
        if stopping:
            break

    channel.cancel()  # gives back what was sent ahead
    channel.connection.close()
    db.close()


if __name__ == "__main__":
    main()
