import java.io.BufferedReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Carries orders out: the ack of the order, the debit and the credit are one transaction.
 *
 * <p>One transaction in {@link #ABORT_ONE_IN} is aborted on purpose. Observations: {@code C id millis} for a commit that
 * succeeded, {@code X id} for an abort on purpose, {@code U id} for a commit without an answer. A line on standard input
 * ends the role.
 */
final class Worker {
    private static final int TRANSACTION_TIMEOUT_SECONDS = 15;
    private static final int ANSWER_TIMEOUT_SECONDS = 20;
    private static final int ABORT_ONE_IN = 10;
    private static final int POLL_MILLIS = 200;
    private static final int RECEIVER_QUEUE_MESSAGES = 5;

    private final Accounts accounts;
    private final int threads;
    private final List<Producer<String>> producers = new ArrayList<>();
    private volatile boolean working = true;

    Worker(Accounts accounts, int threads) {
        this.accounts = accounts;
        this.threads = threads;
    }

    void run(BufferedReader in) throws Exception {
        for (int i = 0; i < accounts.accounts; i++) {
            String topic = accounts.account(i);
            producers.add(Accounts.retried("producer", () -> accounts.client.newProducer(Schema.STRING).topic(topic)
                    .enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create()));
        }
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Consumer<String> consumer = Accounts.retried("consumer", () -> accounts.client.newConsumer(Schema.STRING)
                    .topic(accounts.orders()).subscriptionName("workers").subscriptionType(SubscriptionType.Shared)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .receiverQueueSize(RECEIVER_QUEUE_MESSAGES)
                    .negativeAckRedeliveryDelay(1, TimeUnit.SECONDS).subscribe());
            Thread thread = new Thread(() -> work(consumer), "worker-" + i);
            running.add(thread);
            thread.start();
        }
        Accounts.note("S");
        in.readLine();
        working = false;
        for (Thread thread : running) {
            thread.join();
        }
    }

    private void work(Consumer<String> consumer) {
        Random random = new Random();
        while (working) {
            try {
                Message<String> message = consumer.receive(POLL_MILLIS, TimeUnit.MILLISECONDS);
                if (message != null) {
                    carryOut(consumer, message, random.nextInt(ABORT_ONE_IN) > 0);
                }
            } catch (Exception failure) {
                Accounts.noteFailure("receive", failure);
            }
        }
    }

    private void carryOut(Consumer<String> consumer, Message<String> message, boolean commit) {
        Accounts.Order order = Accounts.Order.parse(message.getValue());
        Transaction txn = null;
        String stage = "begin";
        try {
            txn = answer(accounts.client.newTransaction()
                    .withTransactionTimeout(TRANSACTION_TIMEOUT_SECONDS, TimeUnit.SECONDS).build());
            stage = "parts";
            answer(CompletableFuture.allOf(
                    producers.get(order.from()).newMessage(txn).value(order.id() + " debit " + order.amount()).sendAsync(),
                    producers.get(order.to()).newMessage(txn).value(order.id() + " credit " + order.amount()).sendAsync(),
                    consumer.acknowledgeAsync(message.getMessageId(), txn)));
            stage = commit ? "commit" : "abort";
            answer(commit ? txn.commit() : txn.abort());
            Accounts.note(commit ? "C " + order.id() + " " + System.currentTimeMillis() : "X " + order.id());
        } catch (Exception failure) {
            Accounts.noteFailure(stage, failure);
            if (stage.equals("commit")) {
                Accounts.note("U " + order.id());
            } else if (txn != null) {
                abort(txn);
            }
            // Ignored if the transaction did commit: the order is acked then.
            consumer.negativeAcknowledge(message);
        }
    }

    private static void abort(Transaction txn) {
        try {
            answer(txn.abort());
        } catch (Exception failure) {
            Accounts.noteFailure("abort", failure);
        }
    }

    private static <T> T answer(CompletableFuture<T> future) throws Exception {
        return future.get(ANSWER_TIMEOUT_SECONDS, TimeUnit.SECONDS);
    }
}
