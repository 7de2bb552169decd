#!/usr/bin/env node
// Applies payments from RabbitMQ to PostgreSQL, each exactly once: worker.py in
// JavaScript.
//
//	npm install amqplib pg
//
// Start as many of these as you like, and kill them whenever you like.
//
// Settings, from the environment:
//
//	DATABASE_URL	where PostgreSQL is; see schema.sql for what must be in it
//	AMQP_URL	where RabbitMQ is
//	EXCHANGE	the exchange that the relay publishes to
//	QUEUE		the name of the queue
//
// BEGIN; claim the message's id; if the answer is true, change what there is to
// change; COMMIT; acknowledge.  Whatever dies in between, the next delivery finds
// either nothing, and starts afresh, or the claim, and has only to acknowledge.

import amqp from "amqplib";
import pg from "pg";

const DATABASE_URL = process.env.DATABASE_URL ?? "postgresql://billing@localhost/payments";
const AMQP_URL = process.env.AMQP_URL ?? "amqp://guest:guest@localhost:5672/%2F";
const EXCHANGE = process.env.EXCHANGE ?? "orders";
const QUEUE = process.env.QUEUE ?? "payments";
const BINDING = "order.paid"; // the relay's --routing-key '{aggregatetype}.{type}'
const PREFETCH = 5; // messages that the broker sends ahead of the acknowledgements

// It cannot succeed, however often it is delivered.
class Rejected extends Error {}

// Errors of the data (classes 22 and 23 of SQLSTATE) are the message's fault.
function isRejected(error) {
  return error instanceof Rejected || /^2[23]/.test(error.code ?? "");
}

function parse(message) {
  if (!message.properties.messageId) {
    throw new Rejected("the message has no id");
  }
  let payment;
  try {
    payment = JSON.parse(message.content.toString("utf8"));
  } catch (error) {
    throw new Rejected(error.message);
  }
  if (payment?.account === undefined || payment.amount === undefined) {
    throw new Rejected("account or amount is missing");
  }
  return payment;
}

// Claims and applies one payment, in one transaction; false if it has been
// applied before.
async function applyPayment(db, messageId, { account, amount }) {
  await db.query("BEGIN");
  try {
    const claim = await db.query("SELECT idem_claim($1) AS ours", [messageId]);
    if (claim.rows[0].ours) {
      const change = await db.query(
        "UPDATE accounts SET balance = balance + $1 WHERE account = $2",
        [amount, account],
      );
      if (change.rowCount !== 1) {
        throw new Rejected(`there is no account ${account}`);
      }
      await db.query(
        "INSERT INTO payments (message_id, account, amount) VALUES ($1, $2, $3)",
        [messageId, account, amount],
      );
    }
    await db.query("COMMIT");
    return claim.rows[0].ours;
  } catch (error) {
    if (isRejected(error)) {
      await db.query("ROLLBACK"); // and with it the claim
    }
    throw error;
  }
}

// Handles one delivery, up to its acknowledgement.
async function handle(db, channel, message) {
  const id = message.properties.messageId;
  console.log(`delivered ${id}${message.fields.redelivered ? " (redelivered)" : ""}`);
  try {
    const applied = await applyPayment(db, id, parse(message));
    console.log(`${applied ? "applied" : "refused"} ${id}`);
  } catch (error) {
    if (!isRejected(error)) {
      throw error; // ends the worker; the message is delivered again
    }
    console.log(`rejected ${id}: ${error.message}`);
    channel.reject(message, false);
    return;
  }
  channel.ack(message);
  console.log(`acknowledged ${id}`);
}

function die(error) {
  console.error(error);
  process.exit(1);
}

let stopping = false;

const db = new pg.Client({ connectionString: DATABASE_URL });
db.on("error", die);
await db.connect();

const connection = await amqp.connect(AMQP_URL);
connection.on("error", die);
connection.on("close", () => stopping || die(new Error("the connection to RabbitMQ is gone")));
const channel = await connection.createChannel();
channel.on("error", die);
await channel.assertQueue(`${QUEUE}.rejected`, { durable: true });
await channel.assertQueue(QUEUE, {
  durable: true,
  deadLetterExchange: "",
  deadLetterRoutingKey: `${QUEUE}.rejected`,
});
await channel.assertExchange(EXCHANGE, "topic", { durable: true });
await channel.bindQueue(QUEUE, EXCHANGE, BINDING);
await channel.prefetch(PREFETCH);

// One after the other: there is one connection to the database.
let turn = Promise.resolve();
const { consumerTag } = await channel.consume(QUEUE, (message) => {
  if (message === null) {
    die(new Error("the queue is gone"));
  }
  turn = turn.then(() => stopping || handle(db, channel, message)).catch(die);
});
console.log("ready");

// SIGTERM: finish the message in hand, then go; the others are given back.
process.on("SIGTERM", async () => {
  stopping = true;
  await channel.cancel(consumerTag);
  await turn;
  await channel.close();
  await connection.close();
  await db.end();
});
