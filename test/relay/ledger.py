#!/usr/bin/python3
"""Books payments from RabbitMQ: ledger.py CONNINFO QUEUE, and AMQP_URL.

Each message is one transaction: claim its id, write the effect; then it is
acknowledged.  Comes back from whatever goes wrong at either end, and may be
killed at any time.  The last part of the routing key is the attempt.
"""

import json
import logging
import os
import sys
import time

import pika
import pika.exceptions
import psycopg2

DSN, QUEUE = sys.argv[1:3]
PREFETCH = 100
log = logging.getLogger("ledger")


def book(db, message_id, payment, attempt):
    """True if it was the first time."""
    with db, db.cursor() as cursor:
        cursor.execute("SELECT idem_claim(%s, 'ledger')", (message_id,))
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(
            "INSERT INTO effects (event, id, account, n, attempt) VALUES (%s, %s, %s, %s, %s)",
            (message_id, payment["order"], payment["account"], payment["n"], attempt),
        )
    return True


def work():
    db = psycopg2.connect(DSN, connect_timeout=5)
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        log.info("ready")
        for delivery, properties, body in channel.consume(QUEUE):
            attempt = int(delivery.routing_key.rsplit(".", 1)[1])
            booked = book(db, properties.message_id, json.loads(body), attempt)
            log.info("%s %s", "booked" if booked else "refused", properties.message_id)
            channel.basic_ack(delivery.delivery_tag)
    finally:
        # what was sent ahead goes back, in its place
        db.close()
        if connection.is_open:
            connection.close()


def main():
    logging.basicConfig(format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    while True:
        try:
            work()
        except (psycopg2.Error, pika.exceptions.AMQPError, OSError) as error:
            log.info("again: %s", str(error).strip().split("\n")[0])
        # sleep: between two attempts to connect
        time.sleep(0.3)


if __name__ == "__main__":
    main()
