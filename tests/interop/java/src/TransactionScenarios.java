import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Transactions of producers: what is visible when, on every kind of subscription. */
final class TransactionScenarios {
    private TransactionScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("txn-commit-makes-visible", TransactionScenarios::commitMakesVisible);
        suite.add("txn-abort-hides", TransactionScenarios::abortHides);
        suite.add("txn-open-holds-back-later-messages", TransactionScenarios::openHoldsBack);
        suite.add("txn-over-several-topics", TransactionScenarios::overSeveralTopics);
        suite.add("txn-batches", TransactionScenarios::batches);
        suite.add("txn-timeout-aborts", TransactionScenarios::timeoutAborts);
        suite.add("txn-reader-sees-committed-only", TransactionScenarios::reader);
        suite.add("txn-many-at-once", TransactionScenarios::manyAtOnce);
        suite.add("txn-unload-of-topic", TransactionScenarios::unloadOfTopic);
        suite.add("txn-aborted-stay-hidden-after-unload", TransactionScenarios::abortedAfterUnload);
        suite.add("txn-commit-is-not-repeated", TransactionScenarios::commitIsNotRepeated);
    }

    static PulsarClient transactional(Context context) throws Exception {
        return context.connect(context.builder().enableTransaction(true));
    }

    static Transaction begin(PulsarClient client) throws Exception {
        return begin(client, 60_000);
    }

    static Transaction begin(PulsarClient client, long timeoutMillis) throws Exception {
        return client.newTransaction().withTransactionTimeout(timeoutMillis, TimeUnit.MILLISECONDS).build().get();
    }

    static Producer<String> producer(PulsarClient client, String topic, boolean batching) throws Exception {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(batching)
                .sendTimeout(0, TimeUnit.SECONDS).create();
    }

    static Consumer<String> consumer(PulsarClient client, String topic, SubscriptionType type) throws Exception {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    static void sendAll(Producer<String> producer, Transaction txn, String prefix, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.newMessage(txn).value(prefix + i).send();
        }
    }

    private static void commitMakesVisible(Context context) throws Exception {
        PulsarClient client = transactional(context);
        for (SubscriptionType type : SubscriptionType.values()) {
            String topic = context.topic("t-" + type);
            try (Producer<String> producer = producer(client, topic, false);
                    Consumer<String> consumer = consumer(client, topic, type)) {
                Transaction txn = begin(client);
                sendAll(producer, txn, "m", 10);
                Context.silent(consumer);
                txn.commit().get();
                Context.check(Context.values(Context.take(consumer, 10)).equals(Context.numbered("m", 10)),
                        "not all, or not in order: " + type);
                Context.silent(consumer);
            }
        }
    }

    private static void abortHides(Context context) throws Exception {
        PulsarClient client = transactional(context);
        for (SubscriptionType type : SubscriptionType.values()) {
            String topic = context.topic("t-" + type);
            try (Producer<String> producer = producer(client, topic, false);
                    Consumer<String> consumer = consumer(client, topic, type)) {
                Transaction txn = begin(client);
                sendAll(producer, txn, "aborted", 10);
                txn.abort().get();
                producer.send("plain");
                Context.check(Context.values(Context.take(consumer, 1)).equals(List.of("plain")), "" + type);
                Context.silent(consumer);
            }
        }
    }

    private static void openHoldsBack(Context context) throws Exception {
        PulsarClient client = transactional(context);
        String topic = context.topic();
        Producer<String> producer = producer(client, topic, false);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared);
        producer.send("before");
        Transaction first = begin(client);
        Transaction second = begin(client);
        producer.newMessage(first).value("first").send();
        producer.newMessage(second).value("second").send();
        producer.send("after");
        Context.check(Context.values(Context.take(consumer, 1)).equals(List.of("before")), "before");
        second.commit().get();
        Context.silent(consumer);
        first.commit().get();
        Context.check(Context.values(Context.take(consumer, 3)).equals(List.of("first", "second", "after")), "order");
    }

    private static void overSeveralTopics(Context context) throws Exception {
        PulsarClient client = transactional(context);
        String partitioned = context.partitioned("parts", 4);
        List<Producer<String>> producers = new ArrayList<>();
        List<Consumer<String>> consumers = new ArrayList<>();
        for (String topic : List.of(context.topic("a"), context.topic("b"), partitioned)) {
            producers.add(producer(client, topic, false));
            consumers.add(consumer(client, topic, SubscriptionType.Exclusive));
        }
        for (boolean commits : List.of(false, true)) {
            Transaction txn = begin(client);
            for (Producer<String> producer : producers) {
                sendAll(producer, txn, "" + commits, 8);
            }
            for (Consumer<String> consumer : consumers) {
                Context.silent(consumer);
            }
            (commits ? txn.commit() : txn.abort()).get();
        }
        for (Consumer<String> consumer : consumers) {
            List<String> values = new ArrayList<>(Context.values(Context.take(consumer, 8)));
            values.sort(null);
            Context.check(values.equals(Context.numbered("true", 8)), "" + values);
            Context.silent(consumer);
        }
    }

    private static void batches(Context context) throws Exception {
        PulsarClient client = transactional(context);
        Producer<String> producer = producer(client, context.topic(), true);
        Consumer<String> consumer = consumer(client, context.topic(), SubscriptionType.Shared);
        Transaction aborted = begin(client);
        Transaction committed = begin(client);
        for (int i = 0; i < 100; i++) {
            producer.newMessage(aborted).value("aborted").sendAsync();
            producer.newMessage(committed).value("m" + i).sendAsync();
        }
        producer.flush();
        aborted.abort().get();
        committed.commit().get();
        Context.check(Context.values(Context.take(consumer, 100)).equals(Context.numbered("m", 100)), "batches");
        Context.silent(consumer);
    }

    private static void timeoutAborts(Context context) throws Exception {
        PulsarClient client = transactional(context);
        Producer<String> producer = producer(client, context.topic(), false);
        Consumer<String> consumer = consumer(client, context.topic(), SubscriptionType.Shared);
        Transaction txn = begin(client, 1_000);
        producer.newMessage(txn).value("late").send();
        producer.send("plain");
        Context.check(Context.values(Context.take(consumer, 1)).equals(List.of("plain")), "the timeout freed the topic");
        try {
            txn.commit().get();
            throw new AssertionError("a transaction was committed after its timeout");
        } catch (ExecutionException expected) {
            Context.silent(consumer);
        }
    }

    private static void reader(Context context) throws Exception {
        PulsarClient client = transactional(context);
        String topic = context.topic();
        Producer<String> producer = producer(client, topic, false);
        Transaction committed = begin(client);
        sendAll(producer, committed, "m", 3);
        committed.commit().get();
        Transaction aborted = begin(client);
        sendAll(producer, aborted, "aborted", 3);
        aborted.abort().get();
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            List<String> values = new ArrayList<>();
            while (reader.hasMessageAvailable()) {
                values.add(reader.readNext(Context.PATIENCE_SECONDS, TimeUnit.SECONDS).getValue());
            }
            Context.check(values.equals(Context.numbered("m", 3)), "" + values);
        }
    }

    private static void manyAtOnce(Context context) throws Exception {
        PulsarClient client = transactional(context);
        Producer<String> producer = producer(client, context.topic(), false);
        Consumer<String> consumer = consumer(client, context.topic(), SubscriptionType.Exclusive);
        List<Transaction> open = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            Transaction txn = begin(client);
            open.add(txn);
            producer.newMessage(txn).value("m" + i).sendAsync();
        }
        producer.flush();
        for (int i = 0; i < 100; i++) {
            (i % 3 == 0 ? open.get(i).abort() : open.get(i).commit()).get();
        }
        List<String> expected = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            if (i % 3 != 0) {
                expected.add("m" + i);
            }
        }
        Context.check(Context.values(Context.take(consumer, expected.size())).equals(expected), "many");
        Context.silent(consumer);
    }

    private static void unloadOfTopic(Context context) throws Exception {
        PulsarClient client = transactional(context);
        String topic = context.topic();
        Producer<String> producer = producer(client, topic, false);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Exclusive);
        Transaction txn = begin(client);
        sendAll(producer, txn, "a", 3);
        context.unload(topic);
        sendAll(producer, txn, "b", 3);
        Context.silent(consumer);
        txn.commit().get();
        Context.check(Context.values(Context.take(consumer, 6))
                .equals(List.of("a0", "a1", "a2", "b0", "b1", "b2")), "unload");
    }

    private static void abortedAfterUnload(Context context) throws Exception {
        PulsarClient client = transactional(context);
        String topic = context.topic();
        Producer<String> producer = producer(client, topic, false);
        consumer(client, topic, SubscriptionType.Shared).close();
        Transaction txn = begin(client);
        sendAll(producer, txn, "aborted", 5);
        txn.abort().get();
        producer.send("plain");
        context.unload(topic);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared);
        Context.check(Context.values(Context.take(consumer, 1)).equals(List.of("plain")), "after the unload");
        Context.silent(consumer);
    }

    private static void commitIsNotRepeated(Context context) throws Exception {
        PulsarClient client = transactional(context);
        Producer<String> producer = producer(client, context.topic(), false);
        Transaction txn = begin(client);
        producer.newMessage(txn).value("m").send();
        txn.commit().get();
        try {
            producer.newMessage(txn).value("late").send();
            throw new AssertionError("a message was sent in a transaction that has ended");
        } catch (Exception expected) {
            Consumer<String> consumer = consumer(client, context.topic(), SubscriptionType.Shared);
            producer.send("plain");
            Context.check(Context.values(Context.take(consumer, 2)).equals(List.of("m", "plain")), "late");
        }
    }
}
