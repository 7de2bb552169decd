// Applies payments from RabbitMQ to PostgreSQL, each exactly once: worker.py in
// Go.
//
//	go mod init worker && go mod tidy && go run .
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
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	binding  = "order.paid" // the relay's --routing-key '{aggregatetype}.{type}'
	prefetch = 5            // messages that the broker sends ahead of the acknowledgements
)

// errRejected: it cannot succeed, however often it is delivered.
var errRejected = errors.New("rejected")

type payment struct {
	Account string `json:"account"`
	Amount  string `json:"amount"`
}

// setting reads one from the environment.
func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// openChannel declares exchange and queues, and returns a channel.
func openChannel(connection *amqp.Connection, exchange, queue string) (*amqp.Channel, error) {
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	// What a worker rejects goes to a queue of its own instead of nowhere.
	rejected := queue + ".rejected"
	if _, err := channel.QueueDeclare(rejected, true, false, false, false, nil); err != nil {
		return nil, err
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, amqp.Table{
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": rejected,
	}); err != nil {
		return nil, err
	}
	if err := channel.ExchangeDeclare(exchange, "topic", true, false, false, false, nil); err != nil {
		return nil, err
	}
	if err := channel.QueueBind(queue, binding, exchange, false, nil); err != nil {
		return nil, err
	}
	return channel, channel.Qos(prefetch, 0, false)
}

// blame says whose fault an error of the database is: that of data (classes 22
// and 23 of SQLSTATE) is the message's.
func blame(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (strings.HasPrefix(pgErr.Code, "22") || strings.HasPrefix(pgErr.Code, "23")) {
		return fmt.Errorf("%w: %v", errRejected, err)
	}
	return err
}

// apply claims and applies one payment, in one transaction; false if it has been
// applied before.
func apply(ctx context.Context, db *pgx.Conn, id string, p payment) (applied bool, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(ctx) // if it was not committed; and then the claim is given back as well

	if err := tx.QueryRow(ctx, "SELECT idem_claim($1)", id).Scan(&applied); err != nil || !applied {
		return false, blame(err)
	}
	change, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE account = $2",
		p.Amount, p.Account)
	if err != nil {
		return false, blame(err)
	}
	if change.RowsAffected() != 1 {
		return false, fmt.Errorf("%w: there is no account %s", errRejected, p.Account)
	}
	if _, err := tx.Exec(ctx, "INSERT INTO payments (message_id, account, amount) VALUES ($1, $2, $3)",
		id, p.Account, p.Amount); err != nil {
		return false, blame(err)
	}
	return true, tx.Commit(ctx)
}

// handle handles one delivery, up to its acknowledgement.
func handle(ctx context.Context, db *pgx.Conn, delivery amqp.Delivery) error {
	id := delivery.MessageId
	again := ""
	if delivery.Redelivered {
		again = " (redelivered)"
	}
	log.Printf("delivered %s%s", id, again)

	var p payment
	err := json.Unmarshal(delivery.Body, &p)
	if err != nil {
		err = fmt.Errorf("%w: %v", errRejected, err)
	} else if id == "" || p.Account == "" || p.Amount == "" {
		err = fmt.Errorf("%w: id, account or amount is missing", errRejected)
	}
	applied := false
	if err == nil {
		applied, err = apply(ctx, db, id, p)
	}
	if errors.Is(err, errRejected) {
		log.Printf("rejected %s: %v", id, err)
		return delivery.Reject(false)
	}
	if err != nil {
		return err // ends the worker; the message is delivered again
	}
	if applied {
		log.Printf("applied %s", id)
	} else {
		log.Printf("refused %s", id)
	}
	if err := delivery.Ack(false); err != nil {
		return err
	}
	log.Printf("acknowledged %s", id)
	return nil
}

func run() error {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, setting("DATABASE_URL", "dbname=payments user=billing"))
	if err != nil {
		return err
	}
	defer db.Close(ctx)

	connection, err := amqp.Dial(setting("AMQP_URL", "amqp://guest:guest@localhost:5672/%2F"))
	if err != nil {
		return err
	}
	defer connection.Close()
	queue := setting("QUEUE", "payments")
	channel, err := openChannel(connection, setting("EXCHANGE", "orders"), queue)
	if err != nil {
		return err
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}

	// SIGTERM: finish the message in hand, then go; the others are given back.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	log.Print("ready")
	for {
		select {
		case <-stop:
			return nil
		case delivery, open := <-deliveries:
			if !open {
				return errors.New("the connection to RabbitMQ is gone")
			}
			if err := handle(ctx, db, delivery); err != nil {
				return err
			}
		}
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
