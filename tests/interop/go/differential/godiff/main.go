// Runs single actions of Go's client for the differential scenarios: transactions and retry letters, which the
// official Python client does not have.
//
// Argument: the service URL. Each line of standard input is an action in JSON, each line of standard output its
// answer: {"value": …} or {"error": …}. What was opened is kept by its name in "on".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	patience  = 20 * time.Second
	nackDelay = 100 * time.Millisecond
	lineBytes = 1 << 20
)

type letters struct {
	Most    uint32 `json:"most"`
	Dead    string `json:"dead"`
	Initial string `json:"initial"`
}

type action struct {
	Op           string   `json:"op"`
	On           string   `json:"on"`
	Topic        string   `json:"topic"`
	Subscription string   `json:"subscription"`
	Kind         string   `json:"kind"`
	Letters      *letters `json:"letters"`
	Retry        bool     `json:"retry"`
	Payload      string   `json:"payload"`
	Key          string   `json:"key"`
	AfterMs      int64    `json:"after_ms"`
	Transaction  string   `json:"transaction"`
	Which        int      `json:"which"`
	Commits      bool     `json:"commits"`
	Ms           int64    `json:"ms"`
}

type rig struct {
	client       pulsar.Client
	producers    map[string]pulsar.Producer
	consumers    map[string]pulsar.Consumer
	received     map[string][]pulsar.Message
	transactions map[string]pulsar.Transaction
}

var kinds = map[string]pulsar.SubscriptionType{
	"Exclusive":  pulsar.Exclusive,
	"Failover":   pulsar.Failover,
	"Shared":     pulsar.Shared,
	"Key_Shared": pulsar.KeyShared,
}

var actions = map[string]func(*rig, action) (any, error){
	"begin":    (*rig).begin,
	"end":      (*rig).end,
	"producer": (*rig).producer,
	"produce":  (*rig).produce,
	"consumer": (*rig).consumer,
	"receive":  (*rig).receive,
	"forget":   (*rig).forget,
	"ack":      (*rig).ack,
	"through":  (*rig).ackThrough,
	"nack":     (*rig).nack,
	"later":    (*rig).later,
	"close":    (*rig).close,
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
	r := &rig{
		client:       client,
		producers:    map[string]pulsar.Producer{},
		consumers:    map[string]pulsar.Consumer{},
		received:     map[string][]pulsar.Message{},
		transactions: map[string]pulsar.Transaction{},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, lineBytes), lineBytes)
	for lines.Scan() {
		var a action
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			panic(err)
		}
		answer := map[string]any{}
		value, err := actions[a.Op](r, a)
		if err != nil {
			answer["error"] = err.Error()
		} else {
			answer["value"] = value
		}
		line, _ := json.Marshal(answer)
		fmt.Println(string(line))
	}
	client.Close()
}

func within(duration time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), duration)
}

func (r *rig) begin(a action) (any, error) {
	txn, err := r.client.NewTransaction(time.Duration(a.Ms) * time.Millisecond)
	if err != nil {
		return nil, err
	}
	r.transactions[a.On] = txn
	id := txn.GetTxnID()
	return []string{fmt.Sprint(id.MostSigBits), fmt.Sprint(id.LeastSigBits)}, nil
}

func (r *rig) end(a action) (any, error) {
	txn := r.transactions[a.On]
	ctx, cancel := within(patience)
	defer cancel()
	end := txn.Abort
	if a.Commits {
		end = txn.Commit
	}
	err := end(ctx)
	return txn.GetState().String(), err
}

func (r *rig) producer(a action) (any, error) {
	producer, err := r.client.CreateProducer(pulsar.ProducerOptions{
		Topic:           a.Topic,
		Name:            a.On,
		DisableBatching: true,
	})
	if err != nil {
		return nil, err
	}
	r.producers[a.On] = producer
	return "opened", nil
}

func (r *rig) produce(a action) (any, error) {
	message := &pulsar.ProducerMessage{
		Payload: []byte(a.Payload),
		Key:     a.Key,
	}
	if a.Transaction != "" {
		message.Transaction = r.transactions[a.Transaction]
	}
	ctx, cancel := within(patience)
	defer cancel()
	id, err := r.producers[a.On].Send(ctx, message)
	if err != nil {
		return nil, err
	}
	return place(id), nil
}

func place(id pulsar.MessageID) []int64 {
	return []int64{id.LedgerID(), id.EntryID(), int64(id.PartitionIdx()), int64(id.BatchIdx())}
}

func (r *rig) consumer(a action) (any, error) {
	options := pulsar.ConsumerOptions{
		Topic:                          a.Topic,
		SubscriptionName:               a.Subscription,
		Name:                           a.On,
		Type:                           kinds[a.Kind],
		SubscriptionInitialPosition:    pulsar.SubscriptionPositionEarliest,
		NackRedeliveryDelay:            nackDelay,
		EnableBatchIndexAcknowledgment: true,
		AckWithResponse:                true,
		RetryEnable:                    a.Retry,
	}
	if a.Letters != nil {
		options.DLQ = &pulsar.DLQPolicy{
			MaxDeliveries:           a.Letters.Most,
			DeadLetterTopic:         a.Letters.Dead,
			InitialSubscriptionName: a.Letters.Initial,
			// Whether two letters share a batch would depend on time.
			ProducerOptions: pulsar.ProducerOptions{DisableBatching: true},
		}
	}
	consumer, err := r.client.Subscribe(options)
	if err != nil {
		return nil, err
	}
	r.consumers[a.On] = consumer
	return "opened", nil
}

func (r *rig) receive(a action) (any, error) {
	ctx, cancel := within(time.Duration(a.Ms) * time.Millisecond)
	defer cancel()
	message, err := r.consumers[a.On].Receive(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil
		}
		return nil, err
	}
	r.received[a.On] = append(r.received[a.On], message)
	return map[string]any{
		"payload":     string(message.Payload()),
		"topic":       message.Topic(),
		"id":          place(message.ID()),
		"key":         message.Key(),
		"properties":  message.Properties(),
		"redelivered": message.RedeliveryCount(),
	}, nil
}

func (r *rig) forget(a action) (any, error) {
	r.received[a.On] = nil
	return nil, nil
}

func (r *rig) ack(a action) (any, error) {
	consumer, message := r.consumers[a.On], r.received[a.On][a.Which]
	if a.Transaction != "" {
		return "acked", consumer.AckWithTxn(message, r.transactions[a.Transaction])
	}
	return "acked", consumer.Ack(message)
}

func (r *rig) ackThrough(a action) (any, error) {
	return "acked", r.consumers[a.On].AckCumulative(r.received[a.On][a.Which])
}

func (r *rig) nack(a action) (any, error) {
	r.consumers[a.On].Nack(r.received[a.On][a.Which])
	return "sent", nil
}

func (r *rig) later(a action) (any, error) {
	r.consumers[a.On].ReconsumeLater(r.received[a.On][a.Which], time.Duration(a.AfterMs)*time.Millisecond)
	return "sent", nil
}

func (r *rig) close(a action) (any, error) {
	if consumer, found := r.consumers[a.On]; found {
		consumer.Close()
		delete(r.consumers, a.On)
		return "closed", nil
	}
	r.producers[a.On].Close()
	return "closed", nil
}
