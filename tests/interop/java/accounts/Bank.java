import java.io.BufferedReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Writes orders at a steady rate, and reads all accounts as a subscription does.
 *
 * <p>Observations: {@code O id from to amount} for the receipt of an order, {@code A account ledger:entry text} for an
 * entry of an account, {@code D count} once every order has its receipt. The first line of standard input ends the
 * orders, the second one the role.
 */
final class Bank {
    private static final int AMOUNT_MAX = 100;
    private static final int POLL_MILLIS = 200;

    private final Accounts accounts;
    private final int ordersPerSecond;
    private volatile boolean ordering = true;
    private volatile boolean reading = true;

    Bank(Accounts accounts, int ordersPerSecond) {
        this.accounts = accounts;
        this.ordersPerSecond = ordersPerSecond;
    }

    void run(BufferedReader in) throws Exception {
        List<String> topics = new ArrayList<>();
        for (int i = 0; i < accounts.accounts; i++) {
            topics.add(accounts.account(i));
        }
        Consumer<String> audit = Accounts.retried("audit", () -> accounts.client.newConsumer(Schema.STRING)
                .topics(topics).subscriptionName("audit").subscriptionType(SubscriptionType.Failover)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
        // No send timeout: the client repeats an order until it has the receipt; deduplication drops the copies.
        Producer<String> producer = Accounts.retried("teller", () -> accounts.client.newProducer(Schema.STRING)
                .topic(accounts.orders()).enableBatching(false).sendTimeout(0, TimeUnit.SECONDS)
                .blockIfQueueFull(true).create());
        Thread reader = new Thread(() -> read(audit), "audit");
        Thread teller = new Thread(() -> order(producer), "teller");
        reader.start();
        teller.start();
        Accounts.note("S");
        in.readLine();
        ordering = false;
        teller.join();
        in.readLine();
        reading = false;
        reader.join();
    }

    private void order(Producer<String> producer) {
        Random random = new Random(1);
        AtomicInteger receipts = new AtomicInteger();
        long begun = System.nanoTime();
        int id = 0;
        try {
            while (ordering) {
                int from = random.nextInt(accounts.accounts);
                int to = (from + 1 + random.nextInt(accounts.accounts - 1)) % accounts.accounts;
                Accounts.Order order = new Accounts.Order(id++, from, to, 1 + random.nextInt(AMOUNT_MAX));
                producer.sendAsync(order.text()).whenComplete((position, failure) -> {
                    if (failure == null) {
                        receipts.incrementAndGet();
                        Accounts.note("O " + order.text());
                    } else {
                        Accounts.noteFailure("order", failure);
                    }
                });
                long due = begun + id * 1_000_000_000L / ordersPerSecond;
                TimeUnit.NANOSECONDS.sleep(Math.max(0, due - System.nanoTime()));
            }
            producer.flush();
        } catch (Exception failure) {
            Accounts.noteFailure("teller", failure);
        }
        Accounts.note("D " + receipts.get());
    }

    private void read(Consumer<String> audit) {
        while (reading) {
            try {
                Message<String> message = audit.receive(POLL_MILLIS, TimeUnit.MILLISECONDS);
                if (message != null) {
                    String topic = message.getTopicName();
                    MessageIdAdv id = (MessageIdAdv) message.getMessageId();
                    Accounts.note("A " + topic.substring(topic.lastIndexOf('-') + 1) + " " + id.getLedgerId() + ":"
                            + id.getEntryId() + " " + message.getValue());
                    audit.acknowledgeAsync(message);
                }
            } catch (Exception failure) {
                Accounts.noteFailure("audit", failure);
            }
        }
    }
}
