package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func produceAndConsume(r *rig) error {
	consumer, producer, err := r.both(pulsar.ConsumerOptions{Topic: r.topic("t")})
	if err != nil {
		return err
	}
	if _, err := send(producer, "m", 20); err != nil {
		return err
	}
	return errors.Join(expect(consumer, numbered("m", 20)), silent(consumer))
}

// batches fills batches whose delay never ends; each comes whole and in order.
func batches(r *rig) error {
	consumer, err := r.subscribe(pulsar.ConsumerOptions{Topic: r.topic("t")})
	if err != nil {
		return err
	}
	producer, err := r.producer(pulsar.ProducerOptions{
		Topic: r.topic("t"), BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Hour,
	})
	if err != nil {
		return err
	}
	ids := make(chan pulsar.MessageID, 30)
	ctx, cancel := within()
	defer cancel()
	for _, text := range numbered("m", 30) {
		message := &pulsar.ProducerMessage{Payload: []byte(text)}
		producer.SendAsync(ctx, message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err == nil {
				ids <- id
			}
		})
	}
	if err := producer.FlushWithCtx(ctx); err != nil {
		return err
	}
	if err := expect(consumer, numbered("m", 30)); err != nil {
		return err
	}
	entries := map[string]int{}
	for range 30 {
		select {
		case id := <-ids:
			entries[fmt.Sprint(id.LedgerID(), ":", id.EntryID())] = int(id.BatchSize())
		case <-ctx.Done():
			return errors.New("receipts are missing")
		}
	}
	if len(entries) != 3 {
		return fmt.Errorf("30 messages in batches of 10 are entries %v", entries)
	}
	return nil
}

func everyCompression(r *rig) error {
	consumer, err := r.subscribe(pulsar.ConsumerOptions{Topic: r.topic("t")})
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("compressible "), 2_000)
	for _, kind := range []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY} {
		producer, err := r.producer(pulsar.ProducerOptions{Topic: r.topic("t"), CompressionType: kind})
		if err != nil {
			return err
		}
		if _, err := sendOne(producer, &pulsar.ProducerMessage{Payload: body}); err != nil {
			return fmt.Errorf("compression %v: %w", kind, err)
		}
		found, err := take(consumer, 1)
		if err != nil || found[0] != string(body) {
			return fmt.Errorf("compression %v: %d bytes came (%v)", kind, len(found), err)
		}
	}
	return nil
}

func partitions(r *rig) error {
	if err := r.put("/admin/v2/persistent/"+r.namespace+"/t/partitions", "4"); err != nil {
		return err
	}
	names, err := r.client.TopicPartitions(r.topic("t"))
	if err != nil || len(names) != 4 {
		return fmt.Errorf("partitions %v (%v)", names, err)
	}
	consumer, producer, err := r.both(pulsar.ConsumerOptions{Topic: r.topic("t"), Type: pulsar.Shared})
	if err != nil {
		return err
	}
	places := map[string]map[int32]bool{}
	for i := range 40 {
		key := fmt.Sprint("key-", i%8)
		message := &pulsar.ProducerMessage{Key: key, Payload: []byte(fmt.Sprintf("m%03d", i))}
		id, err := sendOne(producer, message)
		if err != nil {
			return err
		}
		if places[key] == nil {
			places[key] = map[int32]bool{}
		}
		places[key][id.PartitionIdx()] = true
	}
	used := map[int32]bool{}
	for key, of := range places {
		if len(of) != 1 {
			return fmt.Errorf("%s is in partitions %v", key, of)
		}
		for number := range of {
			used[number] = true
		}
	}
	if len(used) < 2 {
		return fmt.Errorf("all keys are in partitions %v", used)
	}
	return expectSorted(consumer, numbered("m", 40))
}

func seek(r *rig) error {
	consumer, producer, err := r.both(pulsar.ConsumerOptions{Topic: r.topic("t"), StartMessageIDInclusive: true})
	if err != nil {
		return err
	}
	early, err := send(producer, "a", 5)
	if err != nil {
		return err
	}
	if err := expect(consumer, numbered("a", 5)); err != nil {
		return err
	}
	first, err := sendOne(producer, &pulsar.ProducerMessage{Payload: []byte("b000")})
	if err != nil {
		return err
	}
	message, err := receive(consumer)
	if err != nil {
		return err
	}
	if err := same(first.EntryID(), message.ID().EntryID()); err != nil {
		return err
	}
	if err := consumer.Seek(early[3]); err != nil {
		return fmt.Errorf("seek to an id: %w", err)
	}
	if err := expect(consumer, []string{"a003", "a004", "b000"}); err != nil {
		return fmt.Errorf("from an id: %w", err)
	}
	if err := consumer.SeekByTime(message.PublishTime()); err != nil {
		return fmt.Errorf("seek to a time: %w", err)
	}
	found, err := take(consumer, 1)
	// Messages of the same millisecond may come before.
	for err == nil && found[0] != "b000" {
		found, err = take(consumer, 1)
	}
	if err != nil {
		return fmt.Errorf("from a time: %w", err)
	}
	return silent(consumer)
}

func reader(r *rig) error {
	producer, err := r.producer(pulsar.ProducerOptions{Topic: r.topic("t"), DisableBatching: true})
	if err != nil {
		return err
	}
	ids, err := send(producer, "m", 5)
	if err != nil {
		return err
	}
	starts := map[string]pulsar.MessageID{"earliest": pulsar.EarliestMessageID(), "third": ids[2]}
	expected := map[string][]string{"earliest": numbered("m", 5), "third": {"m002", "m003", "m004"}}
	for name, start := range starts {
		made, err := r.client.CreateReader(pulsar.ReaderOptions{
			Topic: r.topic("t"), StartMessageID: start, StartMessageIDInclusive: true,
		})
		if err != nil {
			return err
		}
		found := []string{}
		for made.HasNext() {
			ctx, cancel := within()
			message, err := made.Next(ctx)
			cancel()
			if err != nil {
				return fmt.Errorf("reader from %s: %w", name, err)
			}
			found = append(found, string(message.Payload()))
		}
		made.Close()
		if err := same(expected[name], found); err != nil {
			return fmt.Errorf("reader from %s: %w", name, err)
		}
	}
	return nil
}

func delayed(r *rig) error {
	consumer, producer, err := r.both(pulsar.ConsumerOptions{Topic: r.topic("t"), Type: pulsar.Shared})
	if err != nil {
		return err
	}
	due := time.Now().Add(1500 * time.Millisecond)
	later := &pulsar.ProducerMessage{Payload: []byte("later"), DeliverAt: due}
	if _, err := sendOne(producer, later); err != nil {
		return err
	}
	if _, err := sendOne(producer, &pulsar.ProducerMessage{Payload: []byte("now")}); err != nil {
		return err
	}
	if err := expect(consumer, []string{"now", "later"}); err != nil {
		return err
	}
	// The server rounds by a tick of a second at most; never early by more.
	if early := time.Until(due); early > time.Second {
		return fmt.Errorf("delivered %v early", early)
	}
	return nil
}

func chunkedMessage(r *rig) error {
	consumer, err := r.subscribe(pulsar.ConsumerOptions{Topic: r.topic("t")})
	if err != nil {
		return err
	}
	producer, err := r.producer(pulsar.ProducerOptions{
		Topic: r.topic("t"), DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 10_000,
	})
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("0123456789"), 5_000)
	if _, err := sendOne(producer, &pulsar.ProducerMessage{Payload: body}); err != nil {
		return err
	}
	found, err := take(consumer, 1)
	if err != nil || found[0] != string(body) {
		return fmt.Errorf("%d messages came (%v)", len(found), err)
	}
	return nil
}

func propertiesAndTimes(r *rig) error {
	consumer, producer, err := r.both(pulsar.ConsumerOptions{Topic: r.topic("t")})
	if err != nil {
		return err
	}
	event := time.UnixMilli(1_700_000_000_123)
	sequence := int64(41)
	sent := &pulsar.ProducerMessage{
		Payload: []byte("m"), Key: "k", OrderingKey: "o", EventTime: event, SequenceID: &sequence,
		Properties: map[string]string{"a": "1", "b": ""},
	}
	if _, err := sendOne(producer, sent); err != nil {
		return err
	}
	message, err := receive(consumer)
	if err != nil {
		return err
	}
	return errors.Join(
		same("k", message.Key()), same("o", message.OrderingKey()), same(sent.Properties, message.Properties()),
		same(event.UnixMilli(), message.EventTime().UnixMilli()), same(producer.Name(), message.ProducerName()),
		same(uint32(0), message.RedeliveryCount()),
	)
}
