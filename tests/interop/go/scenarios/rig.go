package main

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// rig is what a scenario works with: a namespace of its own, and clients that are closed with it.
type rig struct {
	client    pulsar.Client
	adminURL  string
	namespace string
	consumers []pulsar.Consumer
	producers []pulsar.Producer
}

func (r *rig) topic(local string) string {
	return "persistent://" + r.namespace + "/" + local
}

func (r *rig) close() {
	for _, consumer := range r.consumers {
		consumer.Close()
	}
	for _, producer := range r.producers {
		producer.Close()
	}
}

// subscribe attaches a consumer to the subscription "s", from the first message on.
func (r *rig) subscribe(options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	options.SubscriptionName = "s"
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	consumer, err := r.client.Subscribe(options)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	r.consumers = append(r.consumers, consumer)
	return consumer, nil
}

func (r *rig) producer(options pulsar.ProducerOptions) (pulsar.Producer, error) {
	producer, err := r.client.CreateProducer(options)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	r.producers = append(r.producers, producer)
	return producer, nil
}

// both attaches a consumer and a producer that sends each message by itself.
func (r *rig) both(options pulsar.ConsumerOptions) (pulsar.Consumer, pulsar.Producer, error) {
	consumer, err := r.subscribe(options)
	if err != nil {
		return nil, nil, err
	}
	producer, err := r.producer(pulsar.ProducerOptions{Topic: options.Topic, DisableBatching: true})
	return consumer, producer, err
}

func (r *rig) put(path string, body string) error {
	request, err := http.NewRequest(http.MethodPut, r.adminURL+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return same(204, response.StatusCode)
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func same(expected any, found any) error {
	if !reflect.DeepEqual(expected, found) {
		return fmt.Errorf("expected %v, found %v", expected, found)
	}
	return nil
}

func numbered(prefix string, count int) []string {
	texts := []string{}
	for i := range count {
		texts = append(texts, fmt.Sprintf("%s%03d", prefix, i))
	}
	return texts
}

func sendOne(producer pulsar.Producer, message *pulsar.ProducerMessage) (pulsar.MessageID, error) {
	ctx, cancel := within()
	defer cancel()
	return producer.Send(ctx, message)
}

// send sends prefix000, prefix001 and so on, one by one.
func send(producer pulsar.Producer, prefix string, count int) ([]pulsar.MessageID, error) {
	ids := []pulsar.MessageID{}
	for _, text := range numbered(prefix, count) {
		id, err := sendOne(producer, &pulsar.ProducerMessage{Payload: []byte(text)})
		if err != nil {
			return nil, fmt.Errorf("send %s: %w", text, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func receive(consumer pulsar.Consumer) (pulsar.Message, error) {
	ctx, cancel := within()
	defer cancel()
	return consumer.Receive(ctx)
}

// take receives and acknowledges so many messages; it returns their texts in the order of arrival.
func take(consumer pulsar.Consumer, count int) ([]string, error) {
	texts := []string{}
	for i := range count {
		message, err := receive(consumer)
		if err != nil {
			return texts, fmt.Errorf("%d of %d messages came: %w", i, count, err)
		}
		texts = append(texts, string(message.Payload()))
		if err := consumer.Ack(message); err != nil {
			return texts, fmt.Errorf("ack: %w", err)
		}
	}
	return texts, nil
}

// expect takes messages, which must be these and in this order.
func expect(consumer pulsar.Consumer, expected []string) error {
	found, err := take(consumer, len(expected))
	if err != nil {
		return err
	}
	return same(expected, found)
}

// expectSorted takes messages, which must be these in any order.
func expectSorted(consumer pulsar.Consumer, expected []string) error {
	found, err := take(consumer, len(expected))
	sort.Strings(found)
	if err != nil {
		return err
	}
	return same(expected, found)
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

// share takes so many messages from consumers that share them; it returns what each of them got.
func share(consumers []pulsar.Consumer, count int) ([][]pulsar.Message, error) {
	parts := make([][]pulsar.Message, len(consumers))
	deadline := time.After(patience)
	for came := 0; came < count; came++ {
		select {
		case message := <-consumers[0].Chan():
			parts[0] = append(parts[0], message.Message)
		case message := <-consumers[1].Chan():
			parts[1] = append(parts[1], message.Message)
		case <-deadline:
			return nil, fmt.Errorf("%d of %d messages came", came, count)
		}
	}
	return parts, nil
}
