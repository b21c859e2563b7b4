import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.PulsarClientException.TopicDoesNotExistException;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Lookup, partitions, patterns that watch for topics, and what is refused. */
final class TopicScenarios {
    private TopicScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("lookup-by-http", TopicScenarios::httpLookup);
        suite.add("pattern-sees-a-new-topic-at-once", TopicScenarios::patternWatch);
        suite.add("pattern-forgets-a-deleted-topic", TopicScenarios::patternDeletion);
        suite.add("pattern-over-both-domains", TopicScenarios::patternDomains);
        suite.add("list-of-topics", TopicScenarios::topicList);
        suite.add("partitions-grow-under-clients", TopicScenarios::growth);
        suite.add("routing-and-hashing", TopicScenarios::routing);
        suite.add("partitions-of-a-topic-without-making-it", TopicScenarios::partitionsOnly);
        suite.add("missing-tenant-and-namespace", TopicScenarios::missing);
        suite.add("non-persistent-topic", TopicScenarios::nonPersistent);
        suite.add("transactions-commit-or-are-refused", TopicScenarios::transactions);
        suite.add("several-connections-per-broker", TopicScenarios::connections);
    }

    private static void httpLookup(Context c) throws Exception {
        PulsarClient http = c.connect(c.builder().serviceUrl(c.adminUrl));
        String parts = c.partitioned("parts", 2);
        Context.same(2, http.getPartitionsForTopic(parts, true).get().size());
        for (String topic : List.of(c.topic(), parts)) {
            Consumer<String> consumer = http.newConsumer(Schema.STRING).topic(topic).subscriptionName("sub")
                    .subscribe();
            Producer<String> producer = http.newProducer(Schema.STRING).topic(topic).create();
            Context.send(producer, "m", 6);
            Context.same(new TreeSet<>(Context.numbered("m", 6)),
                    new TreeSet<>(Context.values(Context.take(consumer, 6))));
        }
        Consumer<String> pattern = http.newConsumer(Schema.STRING).topicsPattern(c.namespace + "/t.*")
                .subscriptionName("pattern").subscribe();
        c.producer(c.topic()).send("x");
        Context.same("x", Context.take(pattern, 1).get(0).getValue());
        Context.refused(PulsarClientException.class, "", () -> http.newProducer().topic("public/no-such/t").create());
    }

    private static Consumer<String> pattern(Context c, String pattern, RegexSubscriptionMode mode) throws Exception {
        return c.client.newConsumer(Schema.STRING).topicsPattern(Pattern.compile(c.namespace + "/" + pattern))
                .patternAutoDiscoveryPeriod(10, TimeUnit.MINUTES).subscriptionName("sub").subscriptionTopicsMode(mode)
                .subscriptionType(SubscriptionType.Shared).subscribe();
    }

    private static void awaitSubscription(Context c, String topic) throws Exception {
        Context.await("the subscription of " + topic, () -> c.http("GET",
                "/admin/v2/" + topic.replace("://", "/") + "/subscriptions", "").equals("[\"sub\"]"));
    }

    /** Discovery by polling is ten minutes away: only the watch can bring the new topics. */
    private static void patternWatch(Context c) throws Exception {
        c.producer(c.topic("seen-a"));
        c.producer(c.topic("other"));
        Consumer<String> consumer = pattern(c, "seen-.*", RegexSubscriptionMode.PersistentOnly);
        Context.send(c.producer(c.topic("seen-a")), "a", 2);
        Context.send(c.producer(c.topic("other")), "o", 2);
        Context.same(Context.numbered("a", 2), Context.values(Context.take(consumer, 2)));
        Producer<String> late = c.producer(c.topic("seen-late"));
        awaitSubscription(c, c.topic("seen-late"));
        Context.send(late, "l", 2);
        Context.same(Context.numbered("l", 2), Context.values(Context.take(consumer, 2)));
        String parts = c.partitioned("seen-parts", 2);
        Producer<String> partitioned = c.producer(parts);
        awaitSubscription(c, parts + "-partition-0");
        awaitSubscription(c, parts + "-partition-1");
        Context.send(partitioned, "p", 4);
        Context.same(Set.copyOf(Context.numbered("p", 4)), Set.copyOf(Context.values(Context.take(consumer, 4))));
        Context.silent(consumer);
    }

    private static void patternDeletion(Context c) throws Exception {
        for (String local : List.of("seen-a", "seen-b")) {
            c.producer(c.topic(local)).close();
        }
        Consumer<String> consumer = pattern(c, "seen-.*", RegexSubscriptionMode.PersistentOnly);
        c.http("DELETE", "/admin/v2/persistent/" + c.namespace + "/seen-b?force=true", "");
        Context.send(c.producer(c.topic("seen-a")), "a", 2);
        Context.same(Context.numbered("a", 2), Context.values(Context.take(consumer, 2)));
        Producer<String> again = c.producer(c.topic("seen-b"));
        awaitSubscription(c, c.topic("seen-b"));
        Context.send(again, "b", 2);
        Context.same(Context.numbered("b", 2), Context.values(Context.take(consumer, 2)));
    }

    private static void patternDomains(Context c) throws Exception {
        String fleeting = "non-persistent://" + c.namespace + "/x-fleeting";
        Producer<String> both = c.client.newProducer(Schema.STRING).topic(fleeting).create();
        Producer<String> kept = c.producer(c.topic("x-kept"));
        for (RegexSubscriptionMode mode : RegexSubscriptionMode.values()) {
            try (Consumer<String> consumer = c.client.newConsumer(Schema.STRING)
                    .topicsPattern(c.namespace + "/x-.*").subscriptionName("" + mode).subscriptionTopicsMode(mode)
                    .subscribe()) {
                both.send("f");
                kept.send("k");
                Set<String> expected = new TreeSet<>();
                if (mode != RegexSubscriptionMode.PersistentOnly) {
                    expected.add("f");
                }
                if (mode != RegexSubscriptionMode.NonPersistentOnly) {
                    expected.add("k");
                }
                Context.same(expected, new TreeSet<>(Context.values(Context.take(consumer, expected.size()))));
                Context.silent(consumer);
            }
        }
    }

    private static void topicList(Context c) throws Exception {
        List<String> topics = List.of(c.topic("a"), c.topic("b"), c.partitioned("parts", 2));
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topics(topics).subscriptionName("sub")
                .subscribe();
        for (String topic : topics) {
            Context.send(c.producer(topic), topic, 4);
        }
        Set<String> expected = new TreeSet<>();
        topics.forEach(topic -> expected.addAll(Context.numbered(topic, 4)));
        Context.same(expected, new TreeSet<>(Context.values(Context.take(consumer, 12))));
    }

    private static void growth(Context c) throws Exception {
        String parts = c.partitioned("parts", 2);
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(parts).subscriptionName("sub")
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
        Producer<String> producer = c.client.newProducer(Schema.STRING).topic(parts).enableBatching(false)
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
        Context.send(producer, "m", 4);
        Context.take(consumer, 4);
        c.http("POST", "/admin/v2/persistent/" + c.namespace + "/parts/partitions", "4");
        Set<String> used = new TreeSet<>();
        List<String> sent = new ArrayList<>();
        List<String> received = new ArrayList<>();
        Context.await("the new partitions to be used", () -> {
            for (int i = 0; i < 4; i++) {
                sent.add("n" + sent.size());
                producer.send(sent.get(sent.size() - 1));
            }
            for (Message<String> message : Context.drain(consumer)) {
                used.add(message.getTopicName());
                received.add(message.getValue());
            }
            return used.size() == 4;
        });
        Context.await("all messages", () -> {
            received.addAll(Context.values(Context.drain(consumer)));
            return received.size() == sent.size();
        });
        Context.same(new TreeSet<>(sent), new TreeSet<>(received));
    }

    private static void routing(Context c) throws Exception {
        String parts = c.partitioned("parts", 4);
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(parts).subscriptionName("sub")
                .subscribe();
        for (HashingScheme scheme : HashingScheme.values()) {
            Producer<String> producer = c.client.newProducer(Schema.STRING).topic(parts).enableBatching(false)
                    .hashingScheme(scheme).create();
            Set<String> partitions = new TreeSet<>();
            for (int i = 0; i < 10; i++) {
                producer.newMessage().key("key").value("" + i).send();
            }
            Context.take(consumer, 10).forEach(message -> partitions.add(message.getTopicName()));
            Context.same(1, partitions.size());
        }
        Producer<String> single = c.client.newProducer(Schema.STRING).topic(parts).enableBatching(false)
                .messageRoutingMode(MessageRoutingMode.SinglePartition).create();
        Context.send(single, "s", 8);
        Set<String> partitions = new TreeSet<>();
        Context.take(consumer, 8).forEach(message -> partitions.add(message.getTopicName()));
        Context.same(1, partitions.size());
    }

    private static void partitionsOnly(Context c) throws Exception {
        String topic = c.topic("never");
        Context.refused(TopicDoesNotExistException.class, "",
                () -> c.client.getPartitionsForTopic(topic, false).get());
        Context.same("[]", c.http("GET", "/admin/v2/persistent/" + c.namespace, ""));
        String parts = c.partitioned("parts", 3);
        Context.same(3, c.client.getPartitionsForTopic(parts, false).get().size());
        c.producer(c.topic());
        Context.same(List.of(c.topic()), c.client.getPartitionsForTopic(c.topic(), false).get());
    }

    private static void missing(Context c) throws Exception {
        for (String topic : List.of("no-such-tenant/ns/t", "public/no-such-namespace/t")) {
            Context.refused(TopicDoesNotExistException.class, "",
                    () -> c.client.newProducer().topic(topic).create());
            Context.refused(TopicDoesNotExistException.class, "",
                    () -> c.client.newConsumer().topic(topic).subscriptionName("sub").subscribe());
        }
        Context.refused(PulsarClientException.InvalidTopicNameException.class, "",
                () -> c.client.newProducer().topic("a/b").create());
    }

    private static void nonPersistent(Context c) throws Exception {
        String topic = "non-persistent://" + c.namespace + "/topic";
        List<Consumer<String>> consumers = new ArrayList<>();
        for (SubscriptionType type : SubscriptionType.values()) {
            consumers.add(c.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("" + type)
                    .subscriptionType(type).subscribe());
        }
        Producer<String> producer = c.client.newProducer(Schema.STRING).topic(topic).create();
        Context.send(producer, "m", 5);
        for (Consumer<String> consumer : consumers) {
            for (Message<String> message : Context.take(consumer, 5)) {
                consumer.acknowledge(message);
            }
        }
    }

    /** Where there is a coordinator a transaction commits; where there is none the client is told so, soon. */
    private static void transactions(Context c) throws Exception {
        try {
            c.connect(c.builder().enableTransaction(true)).newTransaction().withTransactionTimeout(5, TimeUnit.SECONDS)
                    .build().thenCompose(Transaction::commit).get(Context.PATIENCE_SECONDS, TimeUnit.SECONDS);
        } catch (PulsarClientException refusal) {
            Context.check(refusal.getMessage().contains("doesn't enable the transaction coordinator"), "" + refusal);
        }
    }

    private static void connections(Context c) throws Exception {
        PulsarClient many = c.connect(c.builder().connectionsPerBroker(4));
        List<Producer<String>> producers = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            producers.add(many.newProducer(Schema.STRING).topic(c.topic()).create());
        }
        Consumer<String> consumer = many.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub")
                .subscribe();
        for (Producer<String> producer : producers) {
            producer.send("x");
        }
        Context.take(consumer, 12);
    }
}
