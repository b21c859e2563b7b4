package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func exclusive(r *rig) error {
	consumer, producer, err := r.both(pulsar.ConsumerOptions{Topic: r.topic("t"), Type: pulsar.Exclusive})
	if err != nil {
		return err
	}
	if _, err := r.subscribe(pulsar.ConsumerOptions{Topic: r.topic("t"), Type: pulsar.Exclusive}); err == nil {
		return errors.New("a second exclusive consumer was attached")
	}
	if _, err := send(producer, "m", 5); err != nil {
		return err
	}
	if err := expect(consumer, numbered("m", 5)); err != nil {
		return err
	}
	return consumer.Unsubscribe()
}

// failover gives all messages to one consumer, and what that leaves to the other.
func failover(r *rig) error {
	options := pulsar.ConsumerOptions{Topic: r.topic("t"), Type: pulsar.Failover, Name: "a"}
	first, producer, err := r.both(options)
	if err != nil {
		return err
	}
	options.Name = "b"
	second, err := r.subscribe(options)
	if err != nil {
		return err
	}
	if _, err := send(producer, "m", 10); err != nil {
		return err
	}
	consumers := []pulsar.Consumer{first, second}
	parts, err := share(consumers, 10)
	if err != nil {
		return err
	}
	active := 0
	if len(parts[0]) == 0 {
		active = 1
	}
	if len(parts[active]) != 10 {
		return fmt.Errorf("consumers got %d and %d", len(parts[0]), len(parts[1]))
	}
	if err := consumers[active].AckCumulative(parts[active][3]); err != nil {
		return err
	}
	consumers[active].Close()
	return expect(consumers[1-active], numbered("m", 10)[4:])
}

func shared(r *rig) error {
	options := pulsar.ConsumerOptions{Topic: r.topic("t"), Type: pulsar.Shared, ReceiverQueueSize: 5}
	first, producer, err := r.both(options)
	if err != nil {
		return err
	}
	second, err := r.subscribe(options)
	if err != nil {
		return err
	}
	if _, err := send(producer, "m", 40); err != nil {
		return err
	}
	consumers := []pulsar.Consumer{first, second}
	parts, err := share(consumers, 40)
	if err != nil {
		return err
	}
	found := []string{}
	for i, part := range parts {
		if len(part) == 0 {
			return fmt.Errorf("consumers got %d and %d", len(parts[0]), len(parts[1]))
		}
		for _, message := range part {
			found = append(found, string(message.Payload()))
			if err := consumers[i].Ack(message); err != nil {
				return err
			}
		}
	}
	slices.Sort(found)
	return same(numbered("m", 40), found)
}

// keyShared gives each key to one consumer, in order.
func keyShared(r *rig) error {
	options := pulsar.ConsumerOptions{Topic: r.topic("t"), Type: pulsar.KeyShared}
	first, producer, err := r.both(options)
	if err != nil {
		return err
	}
	second, err := r.subscribe(options)
	if err != nil {
		return err
	}
	for i, text := range numbered("m", 60) {
		message := &pulsar.ProducerMessage{Key: fmt.Sprint("key-", i%12), Payload: []byte(text)}
		if _, err := sendOne(producer, message); err != nil {
			return err
		}
	}
	parts, err := share([]pulsar.Consumer{first, second}, 60)
	if err != nil {
		return err
	}
	owner := map[string]int{}
	last := map[string]string{}
	for i, part := range parts {
		for _, message := range part {
			key := message.Key()
			if of, known := owner[key]; known && of != i {
				return fmt.Errorf("both consumers got %s", key)
			}
			owner[key] = i
			if text := string(message.Payload()); text <= last[key] {
				return fmt.Errorf("%s came after %s", text, last[key])
			}
			last[key] = string(message.Payload())
		}
	}
	if len(parts[0]) == 0 || len(parts[1]) == 0 {
		return fmt.Errorf("consumers got %d and %d", len(parts[0]), len(parts[1]))
	}
	return same(12, len(owner))
}

func negativeAcks(r *rig) error {
	consumer, producer, err := r.both(pulsar.ConsumerOptions{
		Topic: r.topic("t"), Type: pulsar.Shared, NackRedeliveryDelay: 200 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if _, err := send(producer, "m", 4); err != nil {
		return err
	}
	for i := range 4 {
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		if i%2 == 0 {
			consumer.Nack(message)
		} else if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	found := []string{}
	for range 2 {
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		if err := same(uint32(1), message.RedeliveryCount()); err != nil {
			return err
		}
		found = append(found, string(message.Payload()))
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	slices.Sort(found)
	return errors.Join(same([]string{"m000", "m002"}, found), silent(consumer))
}

func deadLetters(r *rig) error {
	letters, err := r.subscribe(pulsar.ConsumerOptions{Topic: r.topic("dead")})
	if err != nil {
		return err
	}
	consumer, producer, err := r.both(pulsar.ConsumerOptions{
		Topic: r.topic("t"), Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: r.topic("dead")},
	})
	if err != nil {
		return err
	}
	if _, err := send(producer, "m", 1); err != nil {
		return err
	}
	for range 2 {
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		consumer.Nack(message)
	}
	// The client sends the letter when the message comes a third time, which the application does not see.
	message, err := receive(letters)
	if err != nil {
		return fmt.Errorf("no dead letter: %w", err)
	}
	return errors.Join(
		same("m000", string(message.Payload())),
		same(r.topic("t"), message.Properties()["REAL_TOPIC"]),
		silent(consumer),
	)
}

type order struct {
	ID     int    `json:"id" avro:"id"`
	Status string `json:"status" avro:"status"`
}

const orderSchema = `{"type": "record", "name": "order", "fields": [
	{"name": "id", "type": "int"}, {"name": "status", "type": "string"}]}`

func schema(r *rig) error {
	for _, made := range []pulsar.Schema{
		pulsar.NewJSONSchema(orderSchema, nil), pulsar.NewAvroSchema(orderSchema, nil),
	} {
		topic := r.topic(fmt.Sprint("t-", made.GetSchemaInfo().Type))
		consumer, err := r.subscribe(pulsar.ConsumerOptions{Topic: topic, Schema: made})
		if err != nil {
			return err
		}
		producer, err := r.producer(pulsar.ProducerOptions{Topic: topic, Schema: made})
		if err != nil {
			return err
		}
		sent := order{ID: 7, Status: "paid"}
		if _, err := sendOne(producer, &pulsar.ProducerMessage{Value: &sent}); err != nil {
			return err
		}
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		var found order
		if err := message.GetSchemaValue(&found); err != nil {
			return err
		}
		if err := same(sent, found); err != nil {
			return err
		}
		if len(message.SchemaVersion()) == 0 {
			return errors.New("the message has no schema version")
		}
	}
	return nil
}

func schemaIncompatible(r *rig) error {
	made := pulsar.NewAvroSchema(orderSchema, nil)
	if _, err := r.producer(pulsar.ProducerOptions{Topic: r.topic("t"), Schema: made}); err != nil {
		return err
	}
	other := pulsar.NewAvroSchema(`{"type": "record", "name": "order", "fields": [
		{"name": "id", "type": "string"}]}`, nil)
	if _, err := r.producer(pulsar.ProducerOptions{Topic: r.topic("t"), Schema: other}); err == nil {
		return errors.New("an incompatible schema was accepted")
	}
	return nil
}

// pattern consumes from the topics that there are, and from one that is made later.
func pattern(r *rig) error {
	for _, local := range []string{"seen-a", "seen-b", "other"} {
		producer, err := r.producer(pulsar.ProducerOptions{Topic: r.topic(local), DisableBatching: true})
		if err != nil {
			return err
		}
		if _, err := send(producer, local+"-", 2); err != nil {
			return err
		}
	}
	consumer, err := r.subscribe(pulsar.ConsumerOptions{
		TopicsPattern: r.topic("seen-.*"), Type: pulsar.Shared, AutoDiscoveryPeriod: 200 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	expected := append(numbered("seen-a-", 2), numbered("seen-b-", 2)...)
	if err := expectSorted(consumer, expected); err != nil {
		return err
	}
	late, err := r.producer(pulsar.ProducerOptions{Topic: r.topic("seen-late"), DisableBatching: true})
	if err != nil {
		return err
	}
	if _, err := send(late, "late-", 2); err != nil {
		return err
	}
	return errors.Join(expectSorted(consumer, numbered("late-", 2)), silent(consumer))
}

// streamOverMoves sends in order while the test moves the topics, until it stops that.
//
// Messages may come again after a move; none is missing, and the first arrivals of each topic are in order.
func streamOverMoves(r *rig) error {
	const topics, count = 4, 100
	names := []string{}
	for i := range topics {
		names = append(names, r.topic(fmt.Sprint("t-", i)))
	}
	consumer, err := r.subscribe(pulsar.ConsumerOptions{Topics: names, Type: pulsar.Exclusive})
	if err != nil {
		return err
	}
	failed := make(chan error, topics)
	for _, name := range names {
		producer, err := r.producer(pulsar.ProducerOptions{Topic: name, DisableBatching: true})
		if err != nil {
			return err
		}
		go func() {
			_, err := send(producer, "m", count)
			failed <- err
		}()
	}
	next := map[string]int{}
	expected := numbered("m", count)
	for done := 0; done < topics; {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		message, err := consumer.Receive(ctx)
		cancel()
		if err != nil {
			return fmt.Errorf("received up to %v: %w", next, err)
		}
		topic, text := message.Topic(), string(message.Payload())
		if err := consumer.Ack(message); err != nil {
			return err
		}
		if slices.Contains(expected[:next[topic]], text) {
			continue
		}
		if err := same(expected[next[topic]], text); err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
		if next[topic]++; next[topic] == count {
			done++
		}
	}
	for range topics {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

func missingNamespace(r *rig) error {
	_, err := r.producer(pulsar.ProducerOptions{Topic: "persistent://public/no-such/t"})
	if err == nil {
		return errors.New("a producer was attached in a namespace that is not there")
	}
	return nil
}
