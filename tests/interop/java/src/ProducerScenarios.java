import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.PulsarClientException.InvalidMessageException;
import org.apache.pulsar.client.api.PulsarClientException.ProducerBusyException;
import org.apache.pulsar.client.api.PulsarClientException.ProducerFencedException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.interceptor.ProducerInterceptor;

/** Producers: what they send, their names, and who may hold a topic. */
final class ProducerScenarios {
    private ProducerScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("every-compression-batched-and-not", ProducerScenarios::compressions);
        suite.add("every-field-of-a-message", ProducerScenarios::fields);
        suite.add("keys-as-bytes-and-null-keys", ProducerScenarios::binaryKeys);
        suite.add("key-based-batches", ProducerScenarios::keyBasedBatches);
        suite.add("chunked-message", ProducerScenarios::chunks);
        suite.add("too-big-a-message", ProducerScenarios::tooBig);
        suite.add("producer-name-taken", ProducerScenarios::nameTaken);
        suite.add("sequence-ids", ProducerScenarios::sequenceIds);
        suite.add("producer-stats-and-interceptor", ProducerScenarios::statsAndInterceptor);
        suite.add("exclusive-access", ProducerScenarios::exclusive);
        suite.add("wait-for-exclusive-access", ProducerScenarios::waitForExclusive);
        suite.add("exclusive-with-fencing", ProducerScenarios::fencing);
        suite.add("fencing-refuses-those-who-wait", ProducerScenarios::fencingRefusesWaiters);
        suite.add("in-flight-over-an-unload", ProducerScenarios::unload);
        suite.add("initial-subscription-of-a-dead-letter-producer", ProducerScenarios::initialSubscription);
    }

    private static void compressions(Context c) throws Exception {
        Consumer<byte[]> consumer = c.client.newConsumer().topic(c.topic()).subscriptionName("sub").subscribe();
        byte[] payload = "compress me ".repeat(1000).getBytes();
        int sent = 0;
        for (CompressionType type : CompressionType.values()) {
            for (boolean batching : new boolean[] {false, true}) {
                try (Producer<byte[]> producer = c.client.newProducer().topic(c.topic()).compressionType(type)
                        .enableBatching(batching).create()) {
                    for (int i = 0; i < 20; i++) {
                        producer.sendAsync(payload);
                        sent++;
                    }
                    producer.flush();
                }
            }
        }
        for (Message<byte[]> message : Context.take(consumer, sent)) {
            Context.check(java.util.Arrays.equals(payload, message.getData()), "payload differs");
        }
    }

    private static void fields(Context c) throws Exception {
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub")
                .subscribe();
        Producer<String> producer = c.client.newProducer(Schema.STRING).topic(c.topic()).producerName("named")
                .property("p", "q").create();
        MessageId sent = producer.newMessage().value("v").key("k").orderingKey("order".getBytes()).eventTime(7)
                .property("a", "1").properties(Map.of("b", "2")).sequenceId(5).send();
        Message<String> message = Context.take(consumer, 1).get(0);
        Context.same("v", message.getValue());
        Context.same("k", message.getKey());
        Context.same("order", new String(message.getOrderingKey()));
        Context.same(7L, message.getEventTime());
        Context.same(Map.of("a", "1", "b", "2"), message.getProperties());
        Context.same(5L, message.getSequenceId());
        Context.same("named", message.getProducerName());
        Context.same(c.topic(), message.getTopicName());
        Context.same(0, message.getRedeliveryCount());
        Context.check(Math.abs(message.getPublishTime() - System.currentTimeMillis()) < 60_000, "publish time");
        Context.same(0, message.getMessageId().compareTo(sent));
    }

    private static void binaryKeys(Context c) throws Exception {
        Consumer<byte[]> consumer = c.client.newConsumer().topic(c.topic()).subscriptionName("sub").subscribe();
        for (boolean batching : new boolean[] {false, true}) {
            Producer<byte[]> producer = c.client.newProducer().topic(c.topic()).enableBatching(batching).create();
            producer.newMessage().keyBytes(new byte[] {0, (byte) 0xff}).value(null).send();
            producer.newMessage().value(new byte[0]).send();
            List<Message<byte[]>> messages = Context.take(consumer, 2);
            Context.check(messages.get(0).hasBase64EncodedKey(), "the key is not marked as bytes");
            Context.check(messages.get(0).getKeyBytes()[1] == (byte) 0xff, "the key differs");
            Context.check(messages.get(0).getValue() == null, "null became a value");
            Context.check(!messages.get(1).hasKey(), "a key from nowhere");
            Context.same(0, messages.get(1).getData().length);
        }
    }

    private static void keyBasedBatches(Context c) throws Exception {
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub")
                .subscribe();
        Producer<String> producer = c.client.newProducer(Schema.STRING).topic(c.topic())
                .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxPublishDelay(Context.UNTIL_FLUSH_SECONDS, TimeUnit.SECONDS).create();
        for (int i = 0; i < 12; i++) {
            producer.newMessage().key("k" + i % 3).value("" + i).sendAsync();
        }
        producer.flush();
        List<String> keys = new ArrayList<>();
        for (Message<String> message : Context.take(consumer, 12)) {
            keys.add(message.getKey());
        }
        for (int i = 0; i < 12; i++) {
            Context.same(keys.get(i - i % 4), keys.get(i));
        }
    }

    private static void chunks(Context c) throws Exception {
        Consumer<byte[]> consumer = c.client.newConsumer().topic(c.topic()).subscriptionName("sub").subscribe();
        Producer<byte[]> producer = c.client.newProducer().topic(c.topic()).enableChunking(true)
                .enableBatching(false).create();
        byte[] big = new byte[12 * 1024 * 1024];
        for (int i = 0; i < big.length; i++) {
            big[i] = (byte) (i * 31 >> 5);
        }
        MessageId id = producer.send(big);
        producer.send("small".getBytes());
        List<Message<byte[]>> messages = Context.take(consumer, 2);
        Context.check(java.util.Arrays.equals(big, messages.get(0).getData()), "the chunks differ");
        long backlog = c.backlog(c.topic(), "sub");
        consumer.acknowledge(messages.get(1));
        c.awaitBacklog(c.topic(), "sub", backlog - 1);
        consumer.redeliverUnacknowledgedMessages();
        Context.check(java.util.Arrays.equals(big, Context.take(consumer, 1).get(0).getData()), "the second time");
        consumer.seek(id);
        Context.same("small", new String(Context.take(consumer, 1).get(0).getData()));
        consumer.acknowledge(id);
        consumer.close();
        c.awaitBacklog(c.topic(), "sub", 1);
    }

    private static void tooBig(Context c) throws Exception {
        Producer<byte[]> producer = c.client.newProducer().topic(c.topic()).enableBatching(false).create();
        Context.refused(InvalidMessageException.class, "exceeds", () -> producer.send(new byte[6 * 1024 * 1024]));
        producer.send(new byte[1]);
    }

    private static void nameTaken(Context c) throws Exception {
        ProducerBuilder<byte[]> builder = c.client.newProducer().topic(c.topic()).producerName("one");
        Producer<byte[]> first = builder.create();
        Context.refused(ProducerBusyException.class, "Producer with name 'one' is already connected to topic",
                () -> c.connect().newProducer().topic(c.topic()).producerName("one").create());
        first.close();
        builder.create().send(new byte[1]);
    }

    private static void sequenceIds(Context c) throws Exception {
        Producer<byte[]> producer = c.client.newProducer().topic(c.topic()).initialSequenceId(99).create();
        Context.same(99L, producer.getLastSequenceId());
        producer.send(new byte[1]);
        producer.newMessage().sequenceId(200).send();
        Context.same(200L, producer.getLastSequenceId());
        Producer<byte[]> fresh = c.client.newProducer().topic(c.topic()).create();
        Context.same(-1L, fresh.getLastSequenceId());
    }

    private static void statsAndInterceptor(Context c) throws Exception {
        AtomicInteger acknowledged = new AtomicInteger();
        ProducerInterceptor interceptor = new ProducerInterceptor() {
            @Override
            public void close() {
            }

            @Override
            public boolean eligible(Message message) {
                return true;
            }

            @Override
            public Message beforeSend(Producer producer, Message message) {
                return message;
            }

            @Override
            public void onSendAcknowledgement(Producer producer, Message message, MessageId id, Throwable error) {
                if (error == null) {
                    acknowledged.incrementAndGet();
                }
            }
        };
        Producer<byte[]> producer = c.client.newProducer().topic(c.topic()).intercept(interceptor).create();
        for (int i = 0; i < 10; i++) {
            producer.sendAsync(new byte[10]);
        }
        producer.flush();
        Context.await("ten receipts", () -> acknowledged.get() == 10);
        Context.await("the stats", () -> producer.getStats().getTotalMsgsSent()
                + producer.getStats().getNumMsgsSent() >= 10);
        Context.check(producer.isConnected(), "not connected");
    }

    private static void exclusive(Context c) throws Exception {
        ProducerBuilder<byte[]> exclusive = c.client.newProducer().topic(c.topic())
                .accessMode(ProducerAccessMode.Exclusive);
        Producer<byte[]> holder = exclusive.create();
        Context.refused(ProducerFencedException.class, "", exclusive::create);
        Context.refused(ProducerBusyException.class, "Topic has an existing exclusive producer",
                () -> c.client.newProducer().topic(c.topic()).create());
        c.unload(c.topic());
        holder.send(new byte[1]);
        Context.refused(ProducerFencedException.class, "", exclusive::create);
        holder.close();
        Producer<byte[]> shared = c.client.newProducer().topic(c.topic()).create();
        Context.refused(ProducerFencedException.class, "", exclusive::create);
        shared.close();
        exclusive.create().send(new byte[1]);
    }

    private static void waitForExclusive(Context c) throws Exception {
        ProducerBuilder<byte[]> builder = c.client.newProducer().topic(c.topic())
                .accessMode(ProducerAccessMode.WaitForExclusive);
        Producer<byte[]> first = builder.create();
        CompletableFuture<Producer<byte[]>> second = builder.createAsync();
        try {
            second.get(Context.SILENCE_MILLIS, TimeUnit.MILLISECONDS);
            throw new AssertionError("it did not wait");
        } catch (TimeoutException expected) {
            first.send(new byte[1]);
        }
        Context.refused(ProducerBusyException.class, "", () -> c.client.newProducer().topic(c.topic()).create());
        first.close();
        second.get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS).send(new byte[1]);
    }

    private static void fencing(Context c) throws Exception {
        Producer<byte[]> old = c.client.newProducer().topic(c.topic()).accessMode(ProducerAccessMode.Exclusive)
                .create();
        old.send(new byte[1]);
        Producer<byte[]> winner = c.connect().newProducer().topic(c.topic())
                .accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        winner.send(new byte[1]);
        Context.refused(PulsarClientException.class, "", () -> old.send(new byte[1]));
        winner.send(new byte[1]);
        Producer<byte[]> third = c.connect().newProducer().topic(c.topic())
                .accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        third.send(new byte[1]);
        Context.refused(PulsarClientException.class, "", () -> winner.send(new byte[1]));
    }

    private static void fencingRefusesWaiters(Context c) throws Exception {
        c.client.newProducer().topic(c.topic()).accessMode(ProducerAccessMode.Exclusive).create();
        CompletableFuture<Producer<byte[]>> waiting = c.connect().newProducer().topic(c.topic())
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        Context.await("the waiting producer", () -> c.http("GET",
                "/admin/v2/" + c.topic().replace("://", "/") + "/stats", "").contains("\"waitingPublishers\":1"));
        c.connect().newProducer().topic(c.topic()).accessMode(ProducerAccessMode.ExclusiveWithFencing).create()
                .send(new byte[1]);
        try {
            waiting.get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS);
            throw new AssertionError("the one who waited was let in");
        } catch (ExecutionException refusal) {
            Context.check(refusal.getCause() instanceof ProducerFencedException, "" + refusal.getCause());
        }
    }

    private static void unload(Context c) throws Exception {
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub")
                .subscribe();
        Producer<String> producer = c.client.newProducer(Schema.STRING).topic(c.topic()).blockIfQueueFull(true)
                .create();
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int i = 0; i < 3000; i++) {
            receipts.add(producer.sendAsync("" + i));
            if (i % 1000 == 500) {
                c.unload(c.topic());
            }
        }
        for (CompletableFuture<MessageId> receipt : receipts) {
            receipt.get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS);
        }
        List<String> firstSeen = new ArrayList<>();
        java.util.Set<String> seen = new java.util.HashSet<>();
        while (seen.size() < 3000) {
            Message<String> message = Context.take(consumer, 1).get(0);
            if (seen.add(message.getValue())) {
                firstSeen.add(message.getValue());
            }
            consumer.acknowledge(message);
        }
        Context.same(Context.numbered("", 3000), firstSeen);
    }

    private static void initialSubscription(Context c) throws Exception {
        // Only the dead letter producer sets it; the wire field is the producer's.
        org.apache.pulsar.client.api.DeadLetterPolicy policy = org.apache.pulsar.client.api.DeadLetterPolicy.builder()
                .maxRedeliverCount(1).deadLetterTopic(c.topic("dead")).initialSubscriptionName("kept").build();
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub")
                .subscriptionType(org.apache.pulsar.client.api.SubscriptionType.Shared).deadLetterPolicy(policy)
                .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
        c.producer(c.topic()).send("bad");
        for (int i = 0; i < 2; i++) {
            consumer.negativeAcknowledge(Context.take(consumer, 1).get(0));
        }
        Context.await("the dead letter topic", () -> consumer.receive(100, TimeUnit.MILLISECONDS) == null
                && c.http("GET", "/admin/v2/persistent/" + c.namespace, "")
                        .contains("\"" + c.topic("dead") + "\""));
        c.awaitBacklog(c.topic("dead"), "kept", 1);
    }
}
