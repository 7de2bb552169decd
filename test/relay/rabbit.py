#!/usr/bin/python3
"""Asks a RabbitMQ (AMQP_URL): ready | declare EXCHANGE QUEUE BINDING ARGUMENTS
| count QUEUE | take QUEUE | drop-exchange NAME

take prints a line of JSON for each message, and acknowledges all at the end.
"""

import base64
import json
import os
import sys

import pika


def plain(value):
    """What JSON can hold of a field table."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, (int, float, str, bool)) or value is None:
        return value
    return str(value)


def take(channel, queue):
    tag = None
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            break
        tag = method.delivery_tag
        print(json.dumps({
            "id": properties.message_id,
            "type": properties.type,
            "content_type": properties.content_type,
            "timestamp": properties.timestamp,
            "delivery_mode": properties.delivery_mode,
            "headers": plain(properties.headers or {}),
            "exchange": method.exchange,
            "key": method.routing_key,
            "body": body.decode("latin-1"),
            "base64": base64.b64encode(body).decode(),
        }))
    if tag is not None:
        channel.basic_ack(tag, multiple=True)


def main():
    verb, *words = sys.argv[1:]
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = connection.channel()
    if verb == "declare":
        exchange, queue, binding, arguments = words
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(queue, durable=True, arguments=json.loads(arguments))
        channel.queue_bind(queue, exchange, binding)
    elif verb == "drop-exchange":
        channel.exchange_delete(words[0])
    elif verb == "count":
        print(channel.queue_declare(words[0], passive=True).method.message_count)
    elif verb == "take":
        take(channel, words[0])
    elif verb != "ready":
        sys.exit(f"no such verb: {verb}")
    connection.close()


if __name__ == "__main__":
    main()
