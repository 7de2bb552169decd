#!/usr/bin/python3
"""Publishes payments to RabbitMQ, some of them twice.

    producer.py [--payments 300] [--twice 40]

Prints a line for each message that the broker has confirmed:

    published payment-00001 alice 17.32

The message id is what the worker claims.  It names the payment, not the
attempt to send it: whoever sends a payment again, because a confirmation got
lost or a batch job was started twice, must send the same id again.
"""

import argparse
import json

import pika

from broker import QUEUE, open_channel

ACCOUNTS = ("alice", "bob", "carol", "dave")


def payment(number):
    """Makes up a payment: its message id and its content."""
    return (
        f"payment-{number:05d}",
        {
            "account": ACCOUNTS[number % len(ACCOUNTS)],
            # a string: JSON's numbers are floats in many languages
            "amount": f"{1 + number * 37 % 100}.{number * 73 % 100:02d}",
        },
    )


def publish(channel, message_id, content):
    """Publishes one message and returns when the broker has it on disk."""
    channel.basic_publish(
        exchange="",
        routing_key=QUEUE,
        body=json.dumps(content),
        properties=pika.BasicProperties(
            message_id=message_id,
            content_type="application/json",
            delivery_mode=2,  # persistent
        ),
        mandatory=True,  # an error, if there is no such queue
    )
    print("published", message_id, content["account"], content["amount"], flush=True)


def main():
    parser = argparse.ArgumentParser(description="Publishes payments, some of them twice.")
    parser.add_argument("--payments", type=int, default=300, help="how many (300)")
    parser.add_argument("--twice", type=int, default=40, help="how many of them twice (40)")
    args = parser.parse_args()
    if not 0 <= args.twice <= args.payments:
        parser.error("--twice must be between 0 and the number of payments")

    channel = open_channel()
    channel.confirm_delivery()  # from here on basic_publish waits for the broker's word

    # Those that are sent twice are spread over all.  By turns the second one
    # follows at once, so that two workers get the same payment at the same
    # time, or comes at the end.
    twice = [1 + i * args.payments // args.twice for i in range(args.twice)]
    at_once, at_the_end = set(twice[0::2]), twice[1::2]
    for number in range(1, args.payments + 1):
        publish(channel, *payment(number))
        if number in at_once:
            publish(channel, *payment(number))
    for number in at_the_end:
        publish(channel, *payment(number))

    channel.connection.close()


if __name__ == "__main__":
    main()
