#!/usr/bin/python3
"""Takes orders, and tells the world of each: an order service.

    shop.py [--orders 300] [--first 1] [--pause 0] [--declined 10]

One order of ten is not taken, because the card is declined.  Prints a line for
each when it is certain what became of it:

    paid 7 dave 60.11
    declined 10

Settings, from the environment:

    DATABASE_URL    where PostgreSQL is; see orders.sql for what must be in it

What the world is to be told is written in the transaction that takes the order,
so it is told if that commits, and never if it does not.  idemq-relay takes it
from there.

A request has a name.  If the connection breaks, nobody knows whether the last
transaction has been committed: the service does the same request again, and
idem_claim() knows.
"""

import argparse
import json
import os
import time

import psycopg2

DATABASE_URL = os.environ.get("DATABASE_URL", "dbname=orders user=shop")
ACCOUNTS = ("alice", "bob", "carol", "dave")


class Declined(Exception):
    """The card was."""


def take(db, order, account, amount, declined):
    """Takes an order, unless it has been taken, in one transaction."""
    # "with db" commits at its end, or rolls back if there is an exception
    with db, db.cursor() as cursor:
        cursor.execute("SELECT idem_claim(%s)", (f"order-{order}",))
        if not cursor.fetchone()[0]:
            return
        cursor.execute("INSERT INTO orders VALUES (%s, %s, %s)", (order, account, amount))
        cursor.execute(
            "UPDATE customers SET orders = orders + 1 WHERE account = %s RETURNING orders",
            (account,),
        )
        number = cursor.fetchone()[0]
        # The event's key is the customer.  It comes after the UPDATE, which
        # locks the customer's row: so events of a customer are in the order of
        # the numbers.  The amount is a string: JSON's numbers are floats in
        # many languages.
        payload = {"order": order, "number": number, "account": account, "amount": amount}
        cursor.execute(
            "SELECT outbox_emit('order', %s, %s, 'paid')", (json.dumps(payload), account)
        )
        if declined:
            raise Declined  # takes back the order, the event, and the claim


class Shop:
    """A connection that is made again when it breaks."""

    def __init__(self):
        self.db = None

    def take(self, *order):
        while True:
            try:
                if self.db is None:
                    self.db = psycopg2.connect(DATABASE_URL)
                return take(self.db, *order)
            except psycopg2.Error as error:
                # 57P..: the server shuts down or starts; no code: it is gone
                if error.pgcode is not None and not error.pgcode.startswith("57P"):
                    raise
                self.db = None
                time.sleep(0.2)  # and then the same request again


def main():
    parser = argparse.ArgumentParser(description="Takes orders.")
    parser.add_argument("--orders", type=int, default=300, help="how many (300)")
    parser.add_argument("--first", type=int, default=1, help="number of the first one (1)")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two orders (0)")
    parser.add_argument("--declined", type=int, default=10, help="one of how many (10)")
    args = parser.parse_args()

    shop = Shop()
    for order in range(args.first, args.first + args.orders):
        account = ACCOUNTS[order % len(ACCOUNTS)]
        amount = f"{1 + order * 37 % 100}.{order * 73 % 100:02d}"
        try:
            shop.take(order, account, amount, args.declined > 0 and order % args.declined == 0)
            print("paid", order, account, amount, flush=True)
        except Declined:
            print("declined", order, flush=True)
        time.sleep(args.pause)


if __name__ == "__main__":
    main()
