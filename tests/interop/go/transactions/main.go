// Runs transactions of Go's client against a server, one scenario per line of standard input.
//
// Argument: the service URL. A line "NAMESPACE SCENARIO" runs one; the answer is one JSON line: name, error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	patience = 30 * time.Second
	silence  = 500 * time.Millisecond
	timeout  = time.Minute
)

type scenario func(client pulsar.Client, topic string) error

var scenarios = map[string]scenario{
	"commit-and-abort-of-nothing": commitAndAbortOfNothing,
	"consume-and-produce":         consumeAndProduce,
	"ack-and-send":                ackAndSend,
	"abort":                       abort,
	"ack-of-a-chunked-message":    ackOfAChunkedMessage,
	"timeout":                     timesOut,
}

func main() {
	quiet := logrus.New()
	quiet.SetOutput(os.Stderr)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:               os.Args[1],
		EnableTransaction: true,
		OperationTimeout:  patience,
		Logger:            log.NewLoggerWithLogrus(quiet),
	})
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		text := ""
		if err := scenarios[words[1]](client, "persistent://"+words[0]+"/"+words[1]); err != nil {
			text = err.Error()
		}
		answer, _ := json.Marshal(map[string]string{"name": words[1], "error": text})
		fmt.Println(string(answer))
	}
	client.Close()
}

// subscribe attaches a consumer to the topic's subscription "s".
func subscribe(client pulsar.Client, topic string) (pulsar.Consumer, error) {
	return client.Subscribe(pulsar.ConsumerOptions{
		Topic:                          topic,
		SubscriptionName:               "s",
		Type:                           pulsar.Shared,
		SubscriptionInitialPosition:    pulsar.SubscriptionPositionEarliest,
		NackRedeliveryDelay:            time.Second,
		EnableBatchIndexAcknowledgment: true,
	})
}

func send(producer pulsar.Producer, txn pulsar.Transaction, prefix string, count int) error {
	for i := range count {
		message := &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(prefix, i)), Transaction: txn}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := producer.Send(ctx, message)
		cancel()
		if err != nil {
			return fmt.Errorf("send %s%d: %w", prefix, i, err)
		}
	}
	return nil
}

// take receives messages; they must be prefix0, prefix1 and so on.
func take(consumer pulsar.Consumer, prefix string, count int) ([]pulsar.Message, error) {
	taken := []pulsar.Message{}
	for i := range count {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message, err := consumer.Receive(ctx)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%d of %d messages came: %w", i, count, err)
		}
		if found := string(message.Payload()); found != fmt.Sprint(prefix, i) {
			return nil, fmt.Errorf("expected %s%d, found %s", prefix, i, found)
		}
		taken = append(taken, message)
	}
	return taken, nil
}

// silent fails if a message comes.
func silent(consumer pulsar.Consumer) error {
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	if message, err := consumer.Receive(ctx); err == nil {
		return fmt.Errorf("unexpected message: %s", message.Payload())
	}
	return nil
}

func ackAll(consumer pulsar.Consumer, messages []pulsar.Message, txn pulsar.Transaction) error {
	for _, message := range messages {
		if err := consumer.AckWithTxn(message, txn); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
	}
	return nil
}

func ended(end func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return end(ctx)
}

func commitAndAbortOfNothing(client pulsar.Client, _ string) error {
	for _, commits := range []bool{true, false} {
		txn, err := client.NewTransaction(timeout)
		if err != nil {
			return err
		}
		end, state := txn.Abort, pulsar.TxnAborted
		if commits {
			end, state = txn.Commit, pulsar.TxnCommitted
		}
		if err := ended(end); err != nil {
			return err
		}
		if txn.GetState() != state {
			return fmt.Errorf("state %v", txn.GetState())
		}
		if err := ended(end); err == nil {
			return errors.New("an ended transaction was ended again")
		}
	}
	return nil
}

func consumeAndProduce(client pulsar.Client, topic string) error {
	consumer, err := subscribe(client, topic)
	if err != nil {
		return err
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		return err
	}
	txn, err := client.NewTransaction(timeout)
	if err != nil {
		return err
	}
	if err := errors.Join(send(producer, nil, "plain", 10), send(producer, txn, "txn", 10)); err != nil {
		return err
	}
	plain, err := take(consumer, "plain", 10)
	if err != nil {
		return err
	}
	for _, message := range plain {
		consumer.Ack(message)
	}
	if err := errors.Join(silent(consumer), ended(txn.Commit)); err != nil {
		return err
	}
	messages, err := take(consumer, "txn", 10)
	if err != nil {
		return err
	}
	acks, err := client.NewTransaction(timeout)
	if err != nil {
		return err
	}
	if err := errors.Join(ackAll(consumer, messages, acks), ended(acks.Commit)); err != nil {
		return err
	}
	consumer.Close()
	if consumer, err = subscribe(client, topic); err != nil {
		return err
	}
	return silent(consumer)
}

func ackAndSend(client pulsar.Client, topic string) error {
	source, errSource := subscribe(client, topic+"-source")
	sink, errSink := subscribe(client, topic+"-sink")
	input, errInput := client.CreateProducer(pulsar.ProducerOptions{Topic: topic + "-source", DisableBatching: true})
	output, errOutput := client.CreateProducer(pulsar.ProducerOptions{Topic: topic + "-sink", DisableBatching: true})
	if err := errors.Join(errSource, errSink, errInput, errOutput); err != nil {
		return err
	}
	if err := send(input, nil, "in", 10); err != nil {
		return err
	}
	txn, err := client.NewTransaction(timeout)
	if err != nil {
		return err
	}
	messages, err := take(source, "in", 10)
	if err != nil {
		return err
	}
	if err := errors.Join(send(output, txn, "out", 10), ackAll(source, messages, txn), silent(sink)); err != nil {
		return err
	}
	if err := ended(txn.Commit); err != nil {
		return err
	}
	if _, err := take(sink, "out", 10); err != nil {
		return err
	}
	source.Close()
	if source, err = subscribe(client, topic+"-source"); err != nil {
		return err
	}
	return silent(source)
}

func abort(client pulsar.Client, topic string) error {
	consumer, errConsumer := subscribe(client, topic)
	producer, errProducer := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	txn, errTxn := client.NewTransaction(timeout)
	if err := errors.Join(errConsumer, errProducer, errTxn); err != nil {
		return err
	}
	if err := errors.Join(send(producer, nil, "plain", 5), send(producer, txn, "aborted", 5)); err != nil {
		return err
	}
	messages, err := take(consumer, "plain", 5)
	if err != nil {
		return err
	}
	if err := errors.Join(ackAll(consumer, messages, txn), ended(txn.Abort)); err != nil {
		return err
	}
	// Each message comes again, once, and no aborted one.
	seen := map[string]bool{}
	for range messages {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message, err := consumer.Receive(ctx)
		cancel()
		if err != nil {
			return fmt.Errorf("%d came again: %w", len(seen), err)
		}
		if text := string(message.Payload()); seen[text] || !strings.HasPrefix(text, "plain") {
			return fmt.Errorf("unexpected message: %s", text)
		}
		seen[string(message.Payload())] = true
	}
	return silent(consumer)
}

func ackOfAChunkedMessage(client pulsar.Client, topic string) error {
	consumer, errConsumer := subscribe(client, topic)
	producer, errProducer := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 1000,
	})
	txn, errTxn := client.NewTransaction(timeout)
	if err := errors.Join(errConsumer, errProducer, errTxn); err != nil {
		return err
	}
	payload := []byte(strings.Repeat("chunk", 1000))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := producer.Send(ctx, &pulsar.ProducerMessage{Payload: payload}); err != nil {
		return err
	}
	message, err := consumer.Receive(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(ackAll(consumer, []pulsar.Message{message}, txn), ended(txn.Commit)); err != nil {
		return err
	}
	consumer.Close()
	if consumer, err = subscribe(client, topic); err != nil {
		return err
	}
	return silent(consumer)
}

func timesOut(client pulsar.Client, topic string) error {
	consumer, errConsumer := subscribe(client, topic)
	producer, errProducer := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	txn, errTxn := client.NewTransaction(2 * time.Second)
	if err := errors.Join(errConsumer, errProducer, errTxn); err != nil {
		return err
	}
	if err := errors.Join(send(producer, txn, "late", 3), send(producer, nil, "plain", 3)); err != nil {
		return err
	}
	if _, err := take(consumer, "plain", 3); err != nil {
		return err
	}
	if err := ended(txn.Commit); err == nil {
		return errors.New("a transaction was committed after its timeout")
	}
	return silent(consumer)
}
