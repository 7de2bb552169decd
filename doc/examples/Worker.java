/*
 * Applies payments from RabbitMQ to PostgreSQL, each exactly once: worker.py in
 * Java (17).  It needs the jars of amqp-client (com.rabbitmq), postgresql
 * (org.postgresql) and, for the JSON, jackson-databind, with what they need:
 *
 *	java -cp 'jars/*' Worker.java
 *
 * Start as many of these as you like, and kill them whenever you like.
 *
 * Settings, from the environment:
 *
 *	JDBC_URL	where PostgreSQL is; see schema.sql for what must be in it
 *	AMQP_URL	where RabbitMQ is
 *	EXCHANGE	the exchange that the relay publishes to
 *	QUEUE		the name of the queue
 *
 * Claim the message's id; if the answer is true, change what there is to change;
 * commit; acknowledge.  Whatever dies in between, the next delivery finds either
 * nothing, and starts afresh, or the claim, and has only to acknowledge.
 */

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Map;

public class Worker {
    /** The relay's --routing-key '{aggregatetype}.{type}'. */
    static final String BINDING = "order.paid";

    /** Messages that the broker sends ahead of the acknowledgements. */
    static final int PREFETCH = 5;

    static final ObjectMapper JSON = new ObjectMapper();

    /** It cannot succeed, however often it is delivered. */
    static class Rejected extends Exception {
        Rejected(String why) {
            super(why);
        }
    }

    record Payment(String account, BigDecimal amount) {}

    static String setting(String name, String otherwise) {
        String value = System.getenv(name);
        return value == null ? otherwise : value;
    }

    static Payment parse(String id, byte[] body) throws IOException, Rejected {
        if (id == null) {
            throw new Rejected("the message has no id");
        }
        try {
            JsonNode json = JSON.readTree(body);
            return new Payment(
                    json.required("account").asText(), new BigDecimal(json.required("amount").asText()));
        } catch (JsonProcessingException | IllegalArgumentException error) {
            throw new Rejected(String.valueOf(error.getMessage()));
        }
    }

    /** Does it in the transaction that is open; false if it has been done before. */
    static boolean claimAndApply(Connection db, String id, Payment payment) throws SQLException, Rejected {
        try (PreparedStatement claim = db.prepareStatement("SELECT idem_claim(?)")) {
            claim.setString(1, id);
            try (ResultSet answer = claim.executeQuery()) {
                answer.next();
                if (!answer.getBoolean(1)) {
                    return false;
                }
            }
        }
        try (PreparedStatement change =
                db.prepareStatement("UPDATE accounts SET balance = balance + ? WHERE account = ?")) {
            change.setBigDecimal(1, payment.amount());
            change.setString(2, payment.account());
            if (change.executeUpdate() != 1) {
                throw new Rejected("there is no account " + payment.account());
            }
        }
        try (PreparedStatement insert =
                db.prepareStatement("INSERT INTO payments (message_id, account, amount) VALUES (?, ?, ?)")) {
            insert.setString(1, id);
            insert.setString(2, payment.account());
            insert.setBigDecimal(3, payment.amount());
            insert.executeUpdate();
        }
        return true;
    }

    /** Claims and applies one payment, in one transaction. */
    static boolean apply(Connection db, String id, Payment payment) throws SQLException, Rejected {
        try {
            boolean applied = claimAndApply(db, id, payment);
            db.commit();
            return applied;
        } catch (Rejected rejected) {
            db.rollback(); // and with it the claim
            throw rejected;
        } catch (SQLException error) {
            // classes 22 and 23 of SQLSTATE, errors of the data, are the message's fault
            if (error.getSQLState() != null && error.getSQLState().matches("2[23].*")) {
                db.rollback();
                throw new Rejected(error.getMessage());
            }
            throw error;
        }
    }

    /** Handles deliveries one after the other, each up to its acknowledgement. */
    static class Consumer extends DefaultConsumer {
        final Connection db;

        Consumer(Channel channel, Connection db) {
            super(channel);
            this.db = db;
        }

        @Override
        public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
            String id = properties.getMessageId();
            System.out.println("delivered " + id + (envelope.isRedeliver() ? " (redelivered)" : ""));
            try {
                try {
                    boolean applied = apply(db, id, parse(id, body));
                    System.out.println((applied ? "applied " : "refused ") + id);
                } catch (Rejected rejected) {
                    System.out.println("rejected " + id + ": " + rejected.getMessage());
                    getChannel().basicReject(envelope.getDeliveryTag(), false);
                    return;
                }
                getChannel().basicAck(envelope.getDeliveryTag(), false);
                System.out.println("acknowledged " + id);
            } catch (IOException | SQLException error) {
                // ends the worker; the message is delivered again
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }

        @Override
        public void handleShutdownSignal(String tag, ShutdownSignalException why) {
            System.err.println("the connection to RabbitMQ is gone: " + why.getMessage());
            Runtime.getRuntime().halt(1);
        }
    }

    public static void main(String[] args) throws Exception {
        Connection db = DriverManager.getConnection(
                setting("JDBC_URL", "jdbc:postgresql://localhost/payments?user=billing"));
        db.setAutoCommit(false);

        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(setting("AMQP_URL", "amqp://guest:guest@localhost:5672/%2F"));
        factory.setAutomaticRecoveryEnabled(false); // whoever started this starts it again
        String exchange = setting("EXCHANGE", "orders");
        String queue = setting("QUEUE", "payments");
        String rejected = queue + ".rejected";
        Channel channel = factory.newConnection().createChannel();

        // What a worker rejects goes to a queue of its own instead of nowhere.
        channel.queueDeclare(rejected, true, false, false, null);
        channel.queueDeclare(queue, true, false, false,
                Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", rejected));
        channel.exchangeDeclare(exchange, "topic", true);
        channel.queueBind(queue, exchange, BINDING);
        channel.basicQos(PREFETCH);
        channel.basicConsume(queue, false, new Consumer(channel, db));
        System.out.println("ready");
    }
}
