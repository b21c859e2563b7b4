import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MultiplierRedeliveryBackoff;

/** Acknowledging, receipts for it, redelivery, retry and dead letter topics. */
final class AckScenarios {
    private static final SubscriptionType[] ORDERED = {SubscriptionType.Exclusive, SubscriptionType.Failover};
    private static final SubscriptionType[] SHARING = {SubscriptionType.Shared, SubscriptionType.Key_Shared};

    private AckScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("acks-with-receipt", AckScenarios::receipts);
        suite.add("cumulative-ack-with-receipt", AckScenarios::cumulativeReceipts);
        suite.add("acks-of-a-list", AckScenarios::lists);
        suite.add("batch-index-acks", AckScenarios::batchIndex);
        suite.add("cumulative-ack-inside-a-batch", AckScenarios::cumulativeInsideBatch);
        suite.add("batch-is-all-or-nothing-without-index-acks", AckScenarios::wholeBatches);
        suite.add("redelivery-of-ordered-types-keeps-order", AckScenarios::orderedRedelivery);
        suite.add("redelivery-begins-again", AckScenarios::consumerEpoch);
        suite.add("negative-acks-with-backoff", AckScenarios::backoff);
        suite.add("negative-acks-inside-a-batch", AckScenarios::negativeInsideBatch);
        suite.add("ack-timeout", AckScenarios::timeout);
        suite.add("retry-letters", AckScenarios::retryLetters);
        suite.add("retry-letters-and-messages-with-delays", AckScenarios::delays);
        suite.add("dead-letters", AckScenarios::deadLetters);
    }

    private static ConsumerBuilder<String> builder(Context c, SubscriptionType type) {
        return c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub").subscriptionType(type);
    }

    /** Sends "m0".."mN" as one entry. */
    private static void sendBatch(Context c, int count) throws Exception {
        try (Producer<String> producer = c.client.newProducer(Schema.STRING).topic(c.topic())
                .batchingMaxPublishDelay(Context.UNTIL_FLUSH_SECONDS, TimeUnit.SECONDS).create()) {
            for (int i = 0; i < count; i++) {
                producer.sendAsync("m" + i);
            }
            producer.flush();
        }
    }

    private static void receipts(Context c) throws Exception {
        Consumer<String> consumer = builder(c, SubscriptionType.Shared).isAckReceiptEnabled(true).subscribe();
        Context.send(c.producer(c.topic()), "m", 50);
        List<CompletableFuture<Void>> receipts = new ArrayList<>();
        for (Message<String> message : Context.take(consumer, 50)) {
            receipts.add(consumer.acknowledgeAsync(message));
        }
        for (CompletableFuture<Void> receipt : receipts) {
            receipt.get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS);
        }
        c.awaitBacklog(c.topic(), "sub", 0);
    }

    private static void cumulativeReceipts(Context c) throws Exception {
        for (SubscriptionType type : ORDERED) {
            try (Consumer<String> consumer = builder(c, type).subscriptionName("" + type).isAckReceiptEnabled(true)
                    .subscribe()) {
                Context.send(c.producer(c.topic()), "m", 10);
                consumer.acknowledgeCumulativeAsync(Context.take(consumer, 10).get(6))
                        .get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS);
                c.awaitBacklog(c.topic(), "" + type, 3);
            }
        }
        for (SubscriptionType type : SHARING) {
            try (Consumer<String> consumer = builder(c, type).subscriptionName("" + type).subscribe()) {
                MessageId id = c.producer(c.topic()).send("x");
                Context.refused(Exception.class, "", () -> {
                    consumer.acknowledgeCumulative(id);
                    return null;
                });
            }
        }
    }

    private static void lists(Context c) throws Exception {
        Consumer<String> consumer = builder(c, SubscriptionType.Shared).subscribe();
        Context.send(c.producer(c.topic()), "m", 20);
        List<MessageId> ids = new ArrayList<>(Context.take(consumer, 20).stream().map(Message::getMessageId).toList());
        consumer.acknowledge(ids.subList(0, 10));
        c.awaitBacklog(c.topic(), "sub", 10);
        consumer.redeliverUnacknowledgedMessages();
        Messages<String> batch = consumer.batchReceive();
        consumer.acknowledge(batch);
        Context.await("all acked", () -> {
            for (Message<String> message : Context.drain(consumer)) {
                consumer.acknowledge(message);
            }
            return c.backlog(c.topic(), "sub") == 0;
        });
    }

    private static void batchIndex(Context c) throws Exception {
        for (SubscriptionType type : SubscriptionType.values()) {
            ConsumerBuilder<String> builder = builder(c, type).subscriptionName("" + type).isAckReceiptEnabled(true)
                    .enableBatchIndexAcknowledgment(true);
            Consumer<String> consumer = builder.subscribe();
            sendBatch(c, 10);
            List<Message<String>> messages = Context.take(consumer, 10);
            for (int i : new int[] {0, 3, 4, 9}) {
                consumer.acknowledge(messages.get(i));
            }
            consumer.close();
            consumer = builder.subscribe();
            List<Message<String>> left = Context.take(consumer, 6);
            Context.same(List.of("m1", "m2", "m5", "m6", "m7", "m8"), Context.values(left));
            for (Message<String> message : left) {
                consumer.acknowledge(message);
            }
            c.awaitBacklog(c.topic(), "" + type, 0);
            consumer.close();
        }
    }

    private static void cumulativeInsideBatch(Context c) throws Exception {
        ConsumerBuilder<String> builder = builder(c, SubscriptionType.Exclusive).isAckReceiptEnabled(true)
                .enableBatchIndexAcknowledgment(true);
        Consumer<String> consumer = builder.subscribe();
        sendBatch(c, 10);
        consumer.acknowledgeCumulative(Context.take(consumer, 10).get(5));
        consumer.close();
        Context.same(List.of("m6", "m7", "m8", "m9"), Context.values(Context.take(builder.subscribe(), 4)));
    }

    private static void wholeBatches(Context c) throws Exception {
        ConsumerBuilder<String> builder = builder(c, SubscriptionType.Shared).enableBatchIndexAcknowledgment(false);
        Consumer<String> consumer = builder.subscribe();
        sendBatch(c, 4);
        List<Message<String>> messages = Context.take(consumer, 4);
        consumer.acknowledge(messages.get(0));
        consumer.close();
        consumer = builder.subscribe();
        Context.same(Context.numbered("m", 4), Context.values(Context.take(consumer, 4)));
    }

    private static void orderedRedelivery(Context c) throws Exception {
        for (SubscriptionType type : ORDERED) {
            try (Consumer<String> consumer = builder(c, type).subscriptionName("" + type)
                    .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe()) {
                Context.send(c.producer(c.topic()), "m", 20);
                List<Message<String>> messages = Context.take(consumer, 20);
                consumer.acknowledgeCumulative(messages.get(4));
                c.awaitBacklog(c.topic(), "" + type, 15);
                consumer.redeliverUnacknowledgedMessages();
                List<String> expected = Context.numbered("m", 20).subList(5, 20);
                messages = Context.take(consumer, 15);
                Context.same(expected, Context.values(messages));
                consumer.negativeAcknowledge(messages.get(3));
                Context.same(expected, Context.values(Context.take(consumer, 15)));
            }
        }
    }

    /** Each redelivery starts a new epoch: what an older one still brings is not shown. */
    private static void consumerEpoch(Context c) throws Exception {
        for (SubscriptionType type : ORDERED) {
            try (Consumer<String> consumer = builder(c, type).subscriptionName("" + type).receiverQueueSize(10)
                    .subscribe(); Producer<String> producer = c.producer(c.topic())) {
                Context.send(producer, "m", 5);
                for (int round = 0; round < 20; round++) {
                    Context.same("m0", Context.take(consumer, 1).get(0).getValue());
                    // What the client is taking in at the moment of the call it may keep, epoch or not.
                    Context.await("the rest in the queue",
                            () -> consumer.getStats().getMsgNumInReceiverQueue() == 4);
                    consumer.redeliverUnacknowledgedMessages();
                }
                Context.same(Context.numbered("m", 5), Context.values(Context.take(consumer, 5)));
            }
        }
    }

    private static void backoff(Context c) throws Exception {
        Consumer<String> consumer = builder(c, SubscriptionType.Shared).negativeAckRedeliveryBackoff(
                MultiplierRedeliveryBackoff.builder().minDelayMs(50).maxDelayMs(200).multiplier(2).build())
                .subscribe();
        Context.send(c.producer(c.topic()), "m", 1);
        for (int count = 0; count < 4; count++) {
            Message<String> message = Context.take(consumer, 1).get(0);
            Context.same(count, message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
        }
        consumer.acknowledge(Context.take(consumer, 1).get(0));
        Context.silent(consumer);
    }

    private static void negativeInsideBatch(Context c) throws Exception {
        Consumer<String> consumer = builder(c, SubscriptionType.Shared).enableBatchIndexAcknowledgment(true)
                .isAckReceiptEnabled(true).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
        sendBatch(c, 6);
        List<Message<String>> messages = Context.take(consumer, 6);
        // Acks first: each waits for its receipt, and a negative one brings back all that is not acked by then.
        for (int i = 0; i < 6; i += 2) {
            consumer.acknowledge(messages.get(i));
        }
        for (int i = 1; i < 6; i += 2) {
            consumer.negativeAcknowledge(messages.get(i));
        }
        List<Message<String>> again = Context.take(consumer, 3);
        Context.same(Set.of("m1", "m3", "m5"), new TreeSet<>(Context.values(again)));
        Context.check(again.get(0).getRedeliveryCount() >= 1, "not counted");
    }

    private static void timeout(Context c) throws Exception {
        List<Consumer<String>> consumers = new ArrayList<>();
        for (SubscriptionType type : SHARING) {
            consumers.add(builder(c, type).subscriptionName("" + type).isAckReceiptEnabled(true)
                    .ackTimeout(6, TimeUnit.SECONDS).ackTimeoutTickTime(100, TimeUnit.MILLISECONDS).subscribe());
        }
        Context.send(c.producer(c.topic()), "m", 2);
        List<String> kept = new ArrayList<>();
        for (Consumer<String> consumer : consumers) {
            List<Message<String>> messages = Context.take(consumer, 2);
            consumer.acknowledge(messages.get(0));
            kept.add(messages.get(1).getValue());
        }
        for (int i = 0; i < kept.size(); i++) {
            Message<String> again = Context.take(consumers.get(i), 1).get(0);
            Context.same(kept.get(i), again.getValue());
            Context.check(again.getRedeliveryCount() >= 1, "not counted");
        }
    }

    private static void retryLetters(Context c) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2).initialSubscriptionName("kept")
                .build();
        Consumer<String> consumer = builder(c, SubscriptionType.Shared).enableRetry(true).deadLetterPolicy(policy)
                .subscribe();
        MessageId sent = c.client.newProducer(Schema.STRING).topic(c.topic()).enableBatching(false).create()
                .newMessage().value("bad").key("k").property("own", "1").send();
        for (int count = 0; count < 3; count++) {
            Message<String> message = Context.take(consumer, 1).get(0);
            Context.same("bad", message.getValue());
            Context.same("1", message.getProperty("own"));
            if (count > 0) {
                Context.same("" + count, message.getProperty("RECONSUMETIMES"));
                Context.same(c.topic(), message.getProperty("REAL_TOPIC"));
                Context.same("" + sent, message.getProperty("ORIGIN_MESSAGE_ID"));
                Context.check(message.getTopicName().endsWith("topic-sub-RETRY"), message.getTopicName());
            }
            consumer.reconsumeLater(message, Map.of("why", "x"), 0, TimeUnit.SECONDS);
        }
        Consumer<String> dead = c.client.newConsumer(Schema.STRING).topic(c.topic("topic-sub-DLQ"))
                .subscriptionName("kept").subscribe();
        Message<String> letter = Context.take(dead, 1).get(0);
        Context.same("bad", letter.getValue());
        Context.same("k", letter.getKey());
        Context.same("x", letter.getProperty("why"));
        c.awaitBacklog(c.topic(), "sub", 0);
    }

    private static void delays(Context c) throws Exception {
        long tickMillis = 1000;
        for (SubscriptionType type : SHARING) {
            try (Consumer<String> consumer = builder(c, type).subscriptionName("" + type).enableRetry(true)
                    .subscribe();
                    Producer<String> producer = c.client.newProducer(Schema.STRING).topic(c.topic()).create()) {
                long at = System.currentTimeMillis() + 2500;
                producer.newMessage().key("k").value("delayed").deliverAt(at).send();
                producer.newMessage().key("k").value("now").send();
                Message<String> first = Context.take(consumer, 1).get(0);
                Context.same("now", first.getValue());
                long asked = System.currentTimeMillis();
                consumer.reconsumeLater(first, 2500, TimeUnit.MILLISECONDS);
                for (int count = 0; count < 2; count++) {
                    Message<String> message = Context.take(consumer, 1).get(0);
                    boolean letter = message.getValue().equals("now");
                    long due = letter ? asked + 2500 : at;
                    Context.check(System.currentTimeMillis() >= due - tickMillis, "early: " + message.getValue());
                    Context.check(letter == "1".equals(message.getProperty("RECONSUMETIMES")), "not counted");
                    consumer.acknowledge(message);
                }
                c.awaitBacklog(c.topic(), "" + type, 0);
            }
        }
    }

    private static void deadLetters(Context c) throws Exception {
        for (SubscriptionType type : SHARING) {
            DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2)
                    .deadLetterTopic(c.topic("dead-" + type)).initialSubscriptionName("kept").build();
            try (Consumer<String> consumer = builder(c, type).subscriptionName("" + type).deadLetterPolicy(policy)
                    .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe()) {
                c.producer(c.topic()).newMessage().key("k").value("bad").send();
                for (int count = 0; count < 3; count++) {
                    Message<String> message = Context.take(consumer, 1).get(0);
                    Context.same(count, message.getRedeliveryCount());
                    consumer.negativeAcknowledge(message);
                }
                Context.silent(consumer);
                c.awaitBacklog(c.topic(), "" + type, 0);
            }
            try (Consumer<String> dead = c.client.newConsumer(Schema.STRING).topic(c.topic("dead-" + type))
                    .subscriptionName("kept").subscribe()) {
                Context.same("bad", Context.take(dead, 1).get(0).getValue());
            }
        }
    }
}
