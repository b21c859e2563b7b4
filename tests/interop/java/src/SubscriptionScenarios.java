import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.ConsumerInterceptor;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.PulsarClientException.ConsumerBusyException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;

/** Subscription types, who is active, and the ways to receive. */
final class SubscriptionScenarios {
    private SubscriptionScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("types-do-not-mix", SubscriptionScenarios::typesDoNotMix);
        suite.add("failover-tells-who-is-active", SubscriptionScenarios::activeConsumer);
        suite.add("failover-by-priority-on-partitions", SubscriptionScenarios::failoverPriority);
        suite.add("shared-priority-levels", SubscriptionScenarios::sharedPriority);
        suite.add("non-durable-subscription", SubscriptionScenarios::nonDurable);
        suite.add("subscription-properties", SubscriptionScenarios::subscriptionProperties);
        suite.add("stream-over-moves", SubscriptionScenarios::streamOverMoves);
        suite.add("entry-filters", SubscriptionScenarios::entryFilters);
        suite.add("unsubscribe-by-force", SubscriptionScenarios::unsubscribeByForce);
        suite.add("batch-receive", SubscriptionScenarios::batchReceive);
        suite.add("pause-and-start-paused", SubscriptionScenarios::pause);
        suite.add("receiver-queue-of-none", SubscriptionScenarios::zeroQueue);
        suite.add("consumer-stats-and-interceptor", SubscriptionScenarios::statsAndInterceptor);
        suite.add("end-of-a-terminated-topic", SubscriptionScenarios::terminated);
        suite.add("all-types-over-an-unload", SubscriptionScenarios::unload);
    }

    private static ConsumerBuilder<String> builder(Context c, SubscriptionType type) {
        return c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub").subscriptionType(type);
    }

    private static void typesDoNotMix(Context c) throws Exception {
        for (SubscriptionType held : SubscriptionType.values()) {
            try (Consumer<String> consumer = builder(c, held).subscribe()) {
                for (SubscriptionType asked : SubscriptionType.values()) {
                    if (asked != held || held == SubscriptionType.Exclusive) {
                        Context.refused(ConsumerBusyException.class, "", () -> builder(c, asked).subscribe());
                    }
                }
                Context.check(consumer.isConnected(), "the holder was disturbed");
            }
        }
    }

    private static final class Watch implements ConsumerEventListener {
        final AtomicInteger active = new AtomicInteger();
        final AtomicInteger inactive = new AtomicInteger();

        @Override
        public void becameActive(Consumer<?> consumer, int partition) {
            active.incrementAndGet();
        }

        @Override
        public void becameInactive(Consumer<?> consumer, int partition) {
            inactive.incrementAndGet();
        }
    }

    private static void activeConsumer(Context c) throws Exception {
        Watch[] watches = {new Watch(), new Watch()};
        List<Consumer<String>> consumers = new ArrayList<>();
        for (Watch watch : watches) {
            consumers.add(builder(c, SubscriptionType.Failover).consumerEventListener(watch)
                    .consumerName("c" + consumers.size()).subscribe());
        }
        Context.await("someone to be told", () -> watches[0].active.get() + watches[1].active.get() > 0
                && watches[0].inactive.get() + watches[1].inactive.get() > 0);
        Producer<String> producer = c.producer(c.topic());
        Context.send(producer, "m", 4);
        // Which one is active is the server's choice, but it must have been told so.
        List<Message<String>> first = new ArrayList<>();
        Context.await("the first message", () -> {
            java.util.Collections.reverse(consumers);
            java.util.Collections.reverse(java.util.Arrays.asList(watches));
            Message<String> message = consumers.get(0).receive(Context.SILENCE_MILLIS, TimeUnit.MILLISECONDS);
            return message != null && first.add(message);
        });
        first.addAll(Context.take(consumers.get(0), 3));
        Context.same(Context.numbered("m", 4), Context.values(first));
        // The listener has a thread of its own.
        Context.await("the active one to be told", () -> watches[0].active.get() > 0);
        consumers.get(0).acknowledge(first.get(0));
        int toldBefore = watches[1].active.get();
        consumers.get(0).close();
        List<Message<String>> taken = Context.take(consumers.get(1), 3);
        Context.same(Context.numbered("m", 4).subList(1, 4), Context.values(taken));
        Context.await("the one who took over to be told", () -> watches[1].active.get() > toldBefore);
    }

    private static void failoverPriority(Context c) throws Exception {
        String topic = c.partitioned("parts", 4);
        ConsumerBuilder<String> low = c.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("sub")
                .subscriptionType(SubscriptionType.Failover).priorityLevel(1).consumerName("low");
        Consumer<String> second = low.subscribe();
        Consumer<String> first = low.clone().priorityLevel(0).consumerName("first").subscribe();
        Producer<String> producer = c.producer(topic);
        Context.await("the first to be active everywhere", () -> {
            Context.send(producer, "x", 8);
            List<Message<String>> mine = Context.drain(first);
            List<Message<String>> others = Context.drain(second);
            for (Message<String> message : mine) {
                first.acknowledge(message);
            }
            for (Message<String> message : others) {
                second.acknowledge(message);
            }
            return mine.size() >= 8 && others.isEmpty();
        });
        first.close();
        Context.send(producer, "y", 8);
        Context.take(second, 8);
    }

    private static void sharedPriority(Context c) throws Exception {
        Consumer<String> low = builder(c, SubscriptionType.Shared).priorityLevel(1).subscribe();
        Consumer<String> high = builder(c, SubscriptionType.Shared).priorityLevel(0).receiverQueueSize(10).subscribe();
        Producer<String> producer = c.producer(c.topic());
        Context.send(producer, "m", 10);
        Context.same(10, Context.take(high, 10).size());
        Context.silent(low);
        Context.send(producer, "n", 40);
        Context.take(low, 1); // what the higher could not hold
    }

    private static void nonDurable(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        Context.send(producer, "m", 3);
        ConsumerBuilder<String> builder = builder(c, SubscriptionType.Exclusive)
                .subscriptionMode(SubscriptionMode.NonDurable)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        Consumer<String> consumer = builder.subscribe();
        for (Message<String> message : Context.take(consumer, 3)) {
            consumer.acknowledge(message);
        }
        consumer.close();
        Context.same(3, Context.take(builder.subscribe(), 3).size());
    }

    private static void subscriptionProperties(Context c) throws Exception {
        builder(c, SubscriptionType.Shared).subscriptionProperties(Map.of("a", "1", "b", "2")).subscribe().close();
        String stats = c.http("GET", "/admin/v2/" + c.topic().replace("://", "/") + "/stats", "");
        Context.check(stats.contains("\"a\":\"1\"") && stats.contains("\"b\":\"2\""), stats);
    }

    /**
     * Sends in order while the test moves the topics. Messages may come again after a move; none is missing, and the
     * first arrivals of each topic are in order.
     */
    private static void streamOverMoves(Context c) throws Exception {
        int count = 100;
        List<String> topics = List.of(c.topic("t-0"), c.topic("t-1"), c.topic("t-2"), c.topic("t-3"));
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topics(topics).subscriptionName("sub")
                .subscribe();
        ExecutorService senders = Executors.newFixedThreadPool(topics.size());
        List<Future<?>> sending = new ArrayList<>();
        for (String topic : topics) {
            Producer<String> producer = c.producer(topic);
            sending.add(senders.submit(() -> {
                Context.send(producer, "", count);
                return null;
            }));
        }
        senders.shutdown();
        Map<String, Integer> next = new HashMap<>();
        topics.forEach(topic -> next.put(topic, 0));
        while (next.values().stream().anyMatch(each -> each < count)) {
            Message<String> message = Context.take(consumer, 1).get(0);
            consumer.acknowledge(message);
            int number = Integer.parseInt(message.getValue());
            int expected = next.get(message.getTopicName());
            Context.check(number <= expected, message.getTopicName() + ": " + number + " came before " + expected);
            next.put(message.getTopicName(), Math.max(expected, number + 1));
        }
        for (Future<?> each : sending) {
            each.get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS);
        }
    }

    /** The filters are the topic's; the parameters of one subscription are its properties. */
    private static void entryFilters(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        String path = "/admin/v2/" + c.topic().replace("://", "/");
        c.http("POST", path + "/entryFilters", "{\"entryFilterNames\": \"expression\"}");
        Consumer<String> some = builder(c, SubscriptionType.Shared)
                .subscriptionProperties(Map.of("filter.expression", "region = 'eu' OR region IS NULL")).subscribe();
        Consumer<String> all = c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("all")
                .subscribe();
        for (String region : List.of("eu", "us", "")) {
            producer.newMessage().value(region).properties(region.isEmpty() ? Map.of() : Map.of("region", region))
                    .send();
        }
        Context.same(List.of("eu", "us", ""), Context.values(Context.take(all, 3)));
        List<Message<String>> taken = Context.take(some, 2);
        Context.same(List.of("eu", ""), Context.values(taken));
        Context.silent(some);
        for (Message<String> message : taken) {
            some.acknowledge(message);
        }
        c.awaitBacklog(c.topic(), "sub", 0);
        String explained = c.http("GET", path + "/subscription/sub/explain", "");
        Context.check(explained.contains("\"filtered\""), explained);
    }

    private static void unsubscribeByForce(Context c) throws Exception {
        Consumer<String> first = builder(c, SubscriptionType.Shared).subscribe();
        builder(c, SubscriptionType.Shared).subscribe();
        Context.refused(PulsarClientException.class, "", () -> {
            first.unsubscribe();
            return null;
        });
        first.unsubscribe(true);
        Context.await("no subscription", () -> c.http("GET",
                "/admin/v2/" + c.topic().replace("://", "/") + "/subscriptions", "").matches("\\[(\"sub\")?]"));
    }

    private static void batchReceive(Context c) throws Exception {
        Consumer<String> consumer = builder(c, SubscriptionType.Shared).batchReceivePolicy(
                BatchReceivePolicy.builder().maxNumMessages(10).timeout(1, TimeUnit.SECONDS).build()).subscribe();
        Context.send(c.producer(c.topic()), "m", 15);
        // What is less than ten goes out when its second is over.
        Context.await("all in the queue", () -> consumer.getStats().getMsgNumInReceiverQueue() == 15);
        Context.same(10, consumer.batchReceive().size());
        Context.same(5, consumer.batchReceive().size());
    }

    private static void pause(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        Consumer<String> consumer = builder(c, SubscriptionType.Exclusive).startPaused(true).subscribe();
        Context.send(producer, "a", 2);
        Context.silent(consumer);
        consumer.resume();
        Context.same(Context.numbered("a", 2), Context.values(Context.take(consumer, 2)));
    }

    private static void zeroQueue(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        Consumer<String> first = builder(c, SubscriptionType.Shared).receiverQueueSize(0).subscribe();
        Consumer<String> second = builder(c, SubscriptionType.Shared).receiverQueueSize(0).subscribe();
        Context.send(producer, "m", 3);
        for (int i = 0; i < 3; i++) {
            Consumer<String> asking = i == 0 ? first : second;
            Context.same("m" + i, asking.receiveAsync().get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS).getValue());
        }
    }

    private static void statsAndInterceptor(Context c) throws Exception {
        AtomicInteger consumed = new AtomicInteger();
        AtomicInteger acked = new AtomicInteger();
        ConsumerInterceptor<String> interceptor = new ConsumerInterceptor<>() {
            @Override
            public void close() {
            }

            @Override
            public Message<String> beforeConsume(Consumer<String> consumer, Message<String> message) {
                consumed.incrementAndGet();
                return message;
            }

            @Override
            public void onAcknowledge(Consumer<String> consumer, MessageId id, Throwable error) {
                acked.incrementAndGet();
            }

            @Override
            public void onAcknowledgeCumulative(Consumer<String> consumer, MessageId id, Throwable error) {
            }

            @Override
            public void onNegativeAcksSend(Consumer<String> consumer, java.util.Set<MessageId> ids) {
            }

            @Override
            public void onAckTimeoutSend(Consumer<String> consumer, java.util.Set<MessageId> ids) {
            }
        };
        Consumer<String> consumer = builder(c, SubscriptionType.Exclusive).intercept(interceptor).subscribe();
        Context.send(c.producer(c.topic()), "m", 5);
        for (Message<String> message : Context.take(consumer, 5)) {
            consumer.acknowledge(message);
        }
        Context.same(5, consumed.get());
        Context.await("five acks", () -> acked.get() == 5);
        Context.check(consumer.getStats() != null, "no stats");
    }

    private static void terminated(Context c) throws Exception {
        Consumer<String> consumer = builder(c, SubscriptionType.Exclusive).subscribe();
        Producer<String> producer = c.producer(c.topic());
        Context.send(producer, "m", 2);
        c.http("POST", "/admin/v2/" + c.topic().replace("://", "/") + "/terminate", "");
        Context.check(!consumer.hasReachedEndOfTopic(), "the end before the last message");
        for (Message<String> message : Context.take(consumer, 2)) {
            consumer.acknowledge(message);
        }
        Context.await("the end of the topic", consumer::hasReachedEndOfTopic);
        Context.refused(PulsarClientException.class, "", () -> producer.send("late"));
        Context.refused(PulsarClientException.TopicTerminatedException.class, "", () -> c.producer(c.topic()));
    }

    private static void unload(Context c) throws Exception {
        List<Consumer<String>> consumers = new ArrayList<>();
        for (SubscriptionType type : SubscriptionType.values()) {
            consumers.add(builder(c, type).subscriptionName("" + type).subscribe());
        }
        Producer<String> producer = c.producer(c.topic());
        for (int round = 0; round < 3; round++) {
            Context.send(producer, "r" + round + "-", 10);
            for (Consumer<String> consumer : consumers) {
                List<Message<String>> messages = Context.take(consumer, 10);
                Context.same(Context.numbered("r" + round + "-", 10), Context.values(messages));
                for (Message<String> message : messages) {
                    consumer.acknowledge(message);
                }
                c.awaitBacklog(c.topic(), consumer.getSubscription(), 0);
            }
            c.unload(c.topic());
        }
    }
}
