"""The queue of payments: where it is, and what it looks like.

Settings, from the environment:

    AMQP_URL    where RabbitMQ is
    EXCHANGE    the exchange that the relay publishes to
    QUEUE       the name of the queue
"""

import os

import pika

AMQP_URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2F")
EXCHANGE = os.environ.get("EXCHANGE", "orders")
QUEUE = os.environ.get("QUEUE", "payments")
BINDING = "order.paid"  # the relay's --routing-key '{aggregatetype}.{type}'


def open_channel():
    """Connects, declares exchange and queues, and returns a channel."""
    connection = pika.BlockingConnection(pika.URLParameters(AMQP_URL))
    channel = connection.channel()

    # What a worker rejects goes to a queue of its own instead of nowhere.
    rejected = QUEUE + ".rejected"
    channel.queue_declare(rejected, durable=True)
    channel.queue_declare(
        QUEUE,
        durable=True,
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": rejected,
        },
    )
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, BINDING)
    return channel
