import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException.ConsumerAssignException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.util.Murmur3_32Hash;

/** Key_Shared: who holds a key, and in which order its messages come. */
final class KeySharedScenarios {
    private static final int HASH_RANGE = 65536;

    private KeySharedScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("key-shared-splits-keys", KeySharedScenarios::splits);
        suite.add("key-shared-batches-by-key", KeySharedScenarios::batches);
        suite.add("key-shared-joins-and-leaves", KeySharedScenarios::joinsAndLeaves);
        suite.add("key-shared-newcomers-wait-for-old-acks", KeySharedScenarios::newcomersWait);
        suite.add("key-shared-sticky-ranges", KeySharedScenarios::sticky);
        suite.add("key-shared-sticky-ranges-overlap", KeySharedScenarios::stickyOverlap);
        suite.add("key-shared-out-of-order-allowed", KeySharedScenarios::outOfOrderAllowed);
    }

    private static ConsumerBuilder<Integer> builder(Context c, String name) {
        return c.client.newConsumer(Schema.INT32).topic(c.topic()).subscriptionName("sub").consumerName(name)
                .subscriptionType(SubscriptionType.Key_Shared);
    }

    private static KeySharedPolicy range(int start, int end) {
        return KeySharedPolicy.stickyHashRange().ranges(Range.of(start, end));
    }

    private static void send(Producer<Integer> producer, int from, int to, int keys) throws Exception {
        for (int i = from; i < to; i++) {
            producer.newMessage().key("key-" + i % keys).value(i).sendAsync();
        }
        producer.flush();
    }

    private static Map<String, Set<Integer>> holders(List<List<Message<Integer>>> received) {
        Map<String, Set<Integer>> holders = new HashMap<>();
        for (int i = 0; i < received.size(); i++) {
            for (Message<Integer> message : received.get(i)) {
                holders.computeIfAbsent(message.getKey(), key -> new HashSet<>()).add(i);
            }
        }
        return holders;
    }

    private static List<List<Message<Integer>>> receiveAll(List<Consumer<Integer>> consumers, int count)
            throws Exception {
        List<List<Message<Integer>>> received = new ArrayList<>();
        consumers.forEach(consumer -> received.add(new ArrayList<>()));
        Context.await(count + " messages", () -> {
            for (int i = 0; i < consumers.size(); i++) {
                received.get(i).addAll(Context.drain(consumers.get(i)));
            }
            return received.stream().mapToInt(List::size).sum() >= count;
        });
        Context.same(count, received.stream().mapToInt(List::size).sum());
        return received;
    }

    private static void splits(Context c) throws Exception {
        List<Consumer<Integer>> consumers = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            consumers.add(builder(c, "c" + i).subscribe());
        }
        send(c.client.newProducer(Schema.INT32).topic(c.topic()).enableBatching(false).create(), 0, 300, 30);
        List<List<Message<Integer>>> received = receiveAll(consumers, 300);
        for (Set<Integer> holding : holders(received).values()) {
            Context.same(1, holding.size());
        }
        for (List<Message<Integer>> part : received) {
            Context.check(!part.isEmpty(), "a consumer got nothing");
            Map<String, Integer> last = new HashMap<>();
            for (Message<Integer> message : part) {
                Integer before = last.put(message.getKey(), message.getValue());
                Context.check(before == null || before < message.getValue(), "out of order " + message.getKey());
            }
        }
    }

    private static void batches(Context c) throws Exception {
        List<Consumer<Integer>> consumers = List.of(builder(c, "a").subscribe(), builder(c, "b").subscribe());
        send(c.client.newProducer(Schema.INT32).topic(c.topic()).batcherBuilder(BatcherBuilder.KEY_BASED).create(),
                0, 200, 20);
        for (Set<Integer> holding : holders(receiveAll(consumers, 200)).values()) {
            Context.same(1, holding.size());
        }
    }

    /** Consumers join and leave with everything acked: whoever holds a key then gets all of it. */
    private static void joinsAndLeaves(Context c) throws Exception {
        Producer<Integer> producer = c.client.newProducer(Schema.INT32).topic(c.topic()).enableBatching(false)
                .create();
        List<Consumer<Integer>> consumers = new ArrayList<>();
        for (int round = 0; round < 6; round++) {
            if (round == 4) {
                consumers.remove(0).close();
            } else {
                consumers.add(builder(c, "c" + round).subscribe());
            }
            send(producer, round * 60, round * 60 + 60, 20);
            List<List<Message<Integer>>> received = receiveAll(consumers, 60);
            for (Set<Integer> holding : holders(received).values()) {
                Context.same(1, holding.size());
            }
            for (int i = 0; i < consumers.size(); i++) {
                for (Message<Integer> message : received.get(i)) {
                    consumers.get(i).acknowledge(message);
                }
            }
            c.awaitBacklog(c.topic(), "sub", 0);
        }
    }

    private static void newcomersWait(Context c) throws Exception {
        Producer<Integer> producer = c.client.newProducer(Schema.INT32).topic(c.topic()).enableBatching(false)
                .create();
        Consumer<Integer> old = builder(c, "old").subscribe();
        send(producer, 0, 40, 20);
        List<Message<Integer>> held = Context.take(old, 40);
        Consumer<Integer> newcomer = builder(c, "new").subscribe();
        send(producer, 40, 80, 20);
        Context.silent(newcomer);
        for (Message<Integer> message : held) {
            old.acknowledge(message);
        }
        List<List<Message<Integer>>> received = receiveAll(List.of(newcomer, old), 40);
        Context.check(!received.get(0).isEmpty(), "the newcomer got no key");
        for (Set<Integer> holding : holders(received).values()) {
            Context.same(1, holding.size());
        }
    }

    private static void sticky(Context c) throws Exception {
        int half = HASH_RANGE / 2;
        List<Consumer<Integer>> consumers = List.of(
                builder(c, "low").keySharedPolicy(range(0, half - 1)).subscribe(),
                builder(c, "high").keySharedPolicy(range(half, HASH_RANGE - 1)).subscribe());
        send(c.client.newProducer(Schema.INT32).topic(c.topic()).enableBatching(false).create(), 0, 200, 50);
        List<List<Message<Integer>>> received = receiveAll(consumers, 200);
        var hash = Murmur3_32Hash.getInstance();
        for (Map.Entry<String, Set<Integer>> entry : holders(received).entrySet()) {
            int slot = hash.makeHash(entry.getKey().getBytes()) % HASH_RANGE;
            Context.same(Set.of(slot < half ? 0 : 1), entry.getValue());
        }
    }

    private static void stickyOverlap(Context c) throws Exception {
        builder(c, "a").keySharedPolicy(range(0, 100)).subscribe();
        Context.refused(ConsumerAssignException.class, "", () -> builder(c, "b").keySharedPolicy(range(100, 200))
                .subscribe());
        builder(c, "b").keySharedPolicy(range(101, 200)).subscribe();
    }

    private static void outOfOrderAllowed(Context c) throws Exception {
        KeySharedPolicy policy = KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true);
        Consumer<Integer> old = builder(c, "old").keySharedPolicy(policy).subscribe();
        Producer<Integer> producer = c.client.newProducer(Schema.INT32).topic(c.topic()).enableBatching(false)
                .create();
        send(producer, 0, 20, 20);
        Context.take(old, 20);
        Consumer<Integer> newcomer = builder(c, "new").keySharedPolicy(policy).subscribe();
        send(producer, 20, 60, 20);
        Context.take(newcomer, 1); // it does not wait, since order was given up
    }
}
