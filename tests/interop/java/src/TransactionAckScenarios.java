import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Transactions of consumers: when their acks count, and what is delivered again. */
final class TransactionAckScenarios {
    private TransactionAckScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("txn-acks-count-after-commit", TransactionAckScenarios::countAfterCommit);
        suite.add("txn-abort-redelivers-once", TransactionAckScenarios::abortRedeliversOnce);
        suite.add("txn-cumulative-acks", TransactionAckScenarios::cumulative);
        suite.add("txn-batch-index-acks", TransactionAckScenarios::batchIndex);
        suite.add("txn-ack-conflict", TransactionAckScenarios::conflict);
        suite.add("txn-acks-survive-unload", TransactionAckScenarios::surviveUnload);
        suite.add("txn-consume-process-produce", TransactionAckScenarios::consumeProcessProduce);
    }

    private static void sendPlain(PulsarClient client, String topic, int count) throws Exception {
        try (Producer<String> producer = TransactionScenarios.producer(client, topic, false)) {
            Context.send(producer, "m", count);
        }
    }

    private static void ackAll(Consumer<String> consumer, List<Message<String>> messages, Transaction txn)
            throws Exception {
        for (Message<String> message : messages) {
            consumer.acknowledgeAsync(message.getMessageId(), txn).get();
        }
    }

    private static void countAfterCommit(Context context) throws Exception {
        PulsarClient client = TransactionScenarios.transactional(context);
        for (SubscriptionType type : SubscriptionType.values()) {
            String topic = context.topic("t-" + type);
            Consumer<String> consumer = TransactionScenarios.consumer(client, topic, type);
            sendPlain(client, topic, 10);
            Transaction txn = TransactionScenarios.begin(client);
            ackAll(consumer, Context.take(consumer, 10), txn);
            context.awaitBacklog(topic, "s", 10);
            txn.commit().get();
            context.awaitBacklog(topic, "s", 0);
            consumer.close();
            try (Consumer<String> again = TransactionScenarios.consumer(client, topic, type)) {
                Context.silent(again);
            }
        }
    }

    private static void abortRedeliversOnce(Context context) throws Exception {
        PulsarClient client = TransactionScenarios.transactional(context);
        for (SubscriptionType type : SubscriptionType.values()) {
            String topic = context.topic("t-" + type);
            try (Consumer<String> consumer = TransactionScenarios.consumer(client, topic, type)) {
                sendPlain(client, topic, 10);
                Transaction txn = TransactionScenarios.begin(client);
                ackAll(consumer, Context.take(consumer, 10), txn);
                Context.silent(consumer);
                txn.abort().get();
                List<Message<String>> again = Context.take(consumer, 10);
                Context.check(new TreeSet<>(Context.values(again)).equals(new TreeSet<>(Context.numbered("m", 10))),
                        type + " " + Context.values(again));
                Context.silent(consumer);
                for (Message<String> message : again) {
                    consumer.acknowledge(message);
                }
                context.awaitBacklog(topic, "s", 0);
            }
        }
    }

    private static void cumulative(Context context) throws Exception {
        PulsarClient client = TransactionScenarios.transactional(context);
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Failover)) {
            String topic = context.topic("t-" + type);
            try (Consumer<String> consumer = TransactionScenarios.consumer(client, topic, type)) {
                sendPlain(client, topic, 10);
                Transaction aborted = TransactionScenarios.begin(client);
                List<Message<String>> messages = Context.take(consumer, 10);
                consumer.acknowledgeCumulativeAsync(messages.get(6).getMessageId(), aborted).get();
                aborted.abort().get();
                context.awaitBacklog(topic, "s", 10);
                List<Message<String>> again = Context.take(consumer, 10);
                Context.check(Context.values(again).equals(Context.numbered("m", 10)), "" + Context.values(again));
                Transaction committed = TransactionScenarios.begin(client);
                consumer.acknowledgeCumulativeAsync(again.get(6).getMessageId(), committed).get();
                committed.commit().get();
                context.awaitBacklog(topic, "s", 3);
            }
        }
    }

    private static void batchIndex(Context context) throws Exception {
        PulsarClient client = TransactionScenarios.transactional(context);
        String topic = context.topic();
        try (Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).enableBatchIndexAcknowledgment(true).subscribe();
                Producer<String> producer = client.newProducer(Schema.STRING).topic(topic)
                        .batchingMaxPublishDelay(Context.UNTIL_FLUSH_SECONDS, TimeUnit.SECONDS).create()) {
            for (int i = 0; i < 10; i++) {
                producer.sendAsync("m" + i);
            }
            producer.flush();
            List<Message<String>> messages = Context.take(consumer, 10);
            Transaction committed = TransactionScenarios.begin(client);
            Transaction aborted = TransactionScenarios.begin(client);
            ackAll(consumer, messages.subList(0, 4), committed);
            ackAll(consumer, messages.subList(4, 8), aborted);
            committed.commit().get();
            aborted.abort().get();
            consumer.close();
            try (Consumer<String> again = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared).enableBatchIndexAcknowledgment(true).subscribe()) {
                List<String> values = Context.values(Context.take(again, 6));
                Context.check(values.equals(List.of("m4", "m5", "m6", "m7", "m8", "m9")), "" + values);
                Context.silent(again);
            }
        }
    }

    private static void conflict(Context context) throws Exception {
        PulsarClient client = TransactionScenarios.transactional(context);
        String topic = context.topic();
        Consumer<String> consumer = TransactionScenarios.consumer(client, topic, SubscriptionType.Shared);
        sendPlain(client, topic, 2);
        List<Message<String>> messages = Context.take(consumer, 2);
        Transaction first = TransactionScenarios.begin(client);
        Transaction second = TransactionScenarios.begin(client);
        ackAll(consumer, messages.subList(0, 1), first);
        try {
            ackAll(consumer, messages.subList(0, 1), second);
            throw new AssertionError("two transactions acked one message");
        } catch (ExecutionException | CompletionException expected) {
            Throwable cause = expected.getCause();
            Context.check(cause instanceof PulsarClientException.TransactionConflictException, "" + cause);
        }
        first.commit().get();
        context.awaitBacklog(topic, "s", 1);
    }

    private static void surviveUnload(Context context) throws Exception {
        PulsarClient client = TransactionScenarios.transactional(context);
        String topic = context.topic();
        Consumer<String> consumer = TransactionScenarios.consumer(client, topic, SubscriptionType.Shared);
        sendPlain(client, topic, 10);
        List<Message<String>> messages = Context.take(consumer, 10);
        Transaction committed = TransactionScenarios.begin(client);
        Transaction aborted = TransactionScenarios.begin(client);
        ackAll(consumer, messages.subList(0, 5), committed);
        ackAll(consumer, messages.subList(5, 10), aborted);
        context.unload(topic);
        Context.silent(consumer);
        committed.commit().get();
        aborted.abort().get();
        context.awaitBacklog(topic, "s", 5);
        List<String> again = Context.values(Context.take(consumer, 5));
        Context.check(new TreeSet<>(again).equals(new TreeSet<>(List.of("m5", "m6", "m7", "m8", "m9"))), "" + again);
        Context.silent(consumer);
    }

    private static void consumeProcessProduce(Context context) throws Exception {
        PulsarClient client = TransactionScenarios.transactional(context);
        String input = context.topic("in");
        String output = context.topic("out");
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(input).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Consumer<String> results = TransactionScenarios.consumer(client, output, SubscriptionType.Exclusive);
        Producer<String> producer = TransactionScenarios.producer(client, output, false);
        sendPlain(client, input, 30);
        int handled = 0;
        int aborted = 0;
        while (handled < 30) {
            Transaction txn = TransactionScenarios.begin(client);
            Message<String> message = Context.take(consumer, 1).get(0);
            producer.newMessage(txn).value("out-" + message.getValue()).send();
            consumer.acknowledgeAsync(message.getMessageId(), txn).get();
            if ((handled + aborted) % 3 == 2) {
                txn.abort().get();
                aborted++;
            } else {
                txn.commit().get();
                handled++;
            }
        }
        List<String> expected = new ArrayList<>(new TreeSet<>(Context.numbered("out-m", 30)));
        List<String> values = new ArrayList<>(Context.values(Context.take(results, 30)));
        values.sort(null);
        Context.check(values.equals(expected), "" + values);
        Context.silent(results);
        context.awaitBacklog(input, "s", 0);
    }
}
