import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.apache.pulsar.common.policies.data.OffloadedReadPriority;
import org.apache.pulsar.common.stats.AnalyzeSubscriptionBacklogResult;

/**
 * Runs scenarios of Java's admin client, one per line of standard input: what it reads into classes of its own, and so
 * what a server may answer.
 *
 * <p>Arguments: service URL, admin URL. A line "NAMESPACE SCENARIO" runs one; the answer is one JSON line: name, error.
 */
public final class AdminScenarios {
    /** One thing to try; it fails by throwing. */
    interface Scenario {
        void run(AdminScenarios with) throws Exception;
    }

    private static final int SILENCE_MILLIS = 500;
    private static final Map<String, Scenario> SCENARIOS = new TreeMap<>();

    private final PulsarClient client;
    private final PulsarAdmin admin;
    private final String namespace;
    private final String topic;

    private AdminScenarios(PulsarClient client, PulsarAdmin admin, String namespace) {
        this.client = client;
        this.admin = admin;
        this.namespace = namespace;
        this.topic = "persistent://" + namespace + "/topic";
    }

    private static void add(String name, Scenario scenario) {
        SCENARIOS.put(name, scenario);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        add("reset-into-a-batch", AdminScenarios::resetIntoABatch);
        add("stats-of-a-subscription-with-properties", AdminScenarios::statsOfASubscriptionWithProperties);
        add("analyze-a-backlog-in-parts", AdminScenarios::analyzeABacklogInParts);
        add("offload-policies", AdminScenarios::offloadPolicies);
        add("properties-of-a-message", AdminScenarios::propertiesOfAMessage);
        add("topic-epoch", AdminScenarios::topicEpoch);
        add("schemas-after-deletion", AdminScenarios::schemasAfterDeletion);
        add("applied-policies", AdminScenarios::appliedPolicies);
        add("examine-past-the-end", AdminScenarios::examinePastTheEnd);
        add("policies-of-a-partition-are-refused", AdminScenarios::policiesOfAPartitionAreRefused);
        add("bookies", AdminScenarios::bookies);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1])
                        .readTimeout(20, TimeUnit.SECONDS).requestTimeout(20, TimeUnit.SECONDS).build()) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] request = line.split(" ");
                String error = run(new AdminScenarios(client, admin, request[0]), SCENARIOS.get(request[1]));
                out.println(new ObjectMapper().writeValueAsString(Map.of("name", request[1], "error", error)));
                out.flush();
            }
        }
        System.exit(0);
    }

    private static String run(AdminScenarios with, Scenario scenario) {
        try {
            scenario.run(with);
            return "";
        } catch (Throwable failure) {
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            return trace.toString();
        }
    }

    private static void same(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private void resetIntoABatch() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .batchingMaxPublishDelay(10, TimeUnit.MINUTES).create()) {
            for (int i = 0; i < 5; i++) {
                sent.add(producer.sendAsync(("b" + i).getBytes(StandardCharsets.UTF_8)));
            }
            producer.flush();
        }
        MessageIdAdv first = (MessageIdAdv) sent.get(0).get();
        MessageIdAdv third = (MessageIdAdv) sent.get(2).get();
        same(first.getEntryId(), third.getEntryId());
        same(2, third.getBatchIndex());
        admin.topics().resetCursor(topic, "s", third);
        same(List.of("b2", "b3", "b4"), received());
        admin.topics().resetCursor(topic, "s", third, true);
        same(List.of("b3", "b4"), received());
        admin.topics().resetCursor(topic, "s", sent.get(4).get(), true);
        same(List.of(), received());
        admin.topics().resetCursor(topic, "s", first);
        same(List.of("b0", "b1", "b2", "b3", "b4"), received());
    }

    /** What the subscription delivers now; nothing is acknowledged. */
    private List<String> received() throws Exception {
        List<String> found = new ArrayList<>();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            for (Message<byte[]> message = consumer.receive(SILENCE_MILLIS, TimeUnit.MILLISECONDS); message != null;
                    message = consumer.receive(SILENCE_MILLIS, TimeUnit.MILLISECONDS)) {
                found.add(text(message));
            }
        }
        return found;
    }

    private void statsOfASubscriptionWithProperties() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        admin.topics().updateSubscriptionProperties(topic, "s", Map.of("team", "payments"));
        same(Map.of(), admin.topics().getInternalStats(topic).cursors.get("s").properties);
        same(Map.of("team", "payments"),
                admin.topics().getStats(topic).getSubscriptions().get("s").getSubscriptionProperties());
        String partitioned = topic + "-parts";
        admin.topics().createPartitionedTopic(partitioned, 2);
        admin.topics().createSubscription(partitioned, "s", MessageId.earliest);
        admin.topics().updateSubscriptionProperties(partitioned, "s", Map.of("team", "payments"));
        same(2, admin.topics().getPartitionedInternalStats(partitioned).partitions.size());
        admin.topics().getInternalInfo(topic);
    }

    private void analyzeABacklogInParts() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        List<MessageId> sent = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int i = 0; i < 10; i++) {
                sent.add(producer.send(new byte[] {(byte) i}));
            }
        }
        AnalyzeSubscriptionBacklogResult all =
                admin.topics().analyzeSubscriptionBacklog(topic, "s", Optional.empty());
        same(10L, all.getEntries());
        AnalyzeSubscriptionBacklogResult rest =
                admin.topics().analyzeSubscriptionBacklog(topic, "s", Optional.of(sent.get(4)));
        same(6L, rest.getEntries());
        MessageIdAdv last = (MessageIdAdv) sent.get(9);
        same(last.getLedgerId() + ":" + last.getEntryId(), rest.getLastMessageId());
    }

    private void offloadPolicies() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        OffloadPolicies wanted = OffloadPolicies.builder().managedLedgerOffloadDriver("aws-s3")
                .s3ManagedLedgerOffloadBucket("cold").s3ManagedLedgerOffloadRegion("eu-west-1")
                .s3ManagedLedgerOffloadServiceEndpoint("http://minio:9000").managedLedgerOffloadThresholdInBytes(0L)
                .managedLedgerOffloadedReadPriority(OffloadedReadPriority.BOOKKEEPER_FIRST).build();
        admin.namespaces().setOffloadPolicies(namespace, wanted);
        admin.topicPolicies().setOffloadPolicies(topic, wanted);
        for (OffloadPolicies found : List.of(admin.namespaces().getOffloadPolicies(namespace),
                admin.topicPolicies().getOffloadPolicies(topic))) {
            same("cold", found.getS3ManagedLedgerOffloadBucket());
            same("eu-west-1", found.getS3ManagedLedgerOffloadRegion());
            same("http://minio:9000", found.getS3ManagedLedgerOffloadServiceEndpoint());
            same(0L, found.getManagedLedgerOffloadThresholdInBytes());
            same(OffloadedReadPriority.BOOKKEEPER_FIRST, found.getManagedLedgerOffloadedReadPriority());
        }
        OffloadPolicies threads = OffloadPolicies.builder().managedLedgerOffloadDriver("aws-s3")
                .s3ManagedLedgerOffloadBucket("cold").s3ManagedLedgerOffloadRegion("eu-west-1")
                .managedLedgerOffloadMaxThreads(7).build();
        try {
            admin.namespaces().setOffloadPolicies(namespace, threads);
            throw new AssertionError("managedLedgerOffloadMaxThreads has an effect, or is dropped");
        } catch (PulsarAdminException refused) {
            same(412, refused.getStatusCode());
            same(true, refused.getMessage().contains("managedLedgerOffloadMaxThreads"));
        }
    }

    private void propertiesOfAMessage() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        MessageIdAdv sent;
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            sent = (MessageIdAdv) producer.newMessage().value(new byte[] {1}).property("k", "v").key("key").send();
        }
        for (Message<byte[]> found : List.of(admin.topics().peekMessages(topic, "s", 1).get(0),
                admin.topics().getMessagesById(topic, sent.getLedgerId(), sent.getEntryId()).get(0),
                admin.topics().examineMessage(topic, "earliest", 1))) {
            same("v", found.getProperty("k"));
            same("key", found.getKey());
            same(true, found.getPublishTime() > 0);
        }
    }

    private void topicEpoch() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        same(true, admin.topics().getStats(topic).getTopicEpoch() == null);
        for (long epoch = 0; epoch < 2; epoch++) {
            try (Producer<byte[]> producer = client.newProducer().topic(topic)
                    .accessMode(ProducerAccessMode.Exclusive).create()) {
                same(epoch, admin.topics().getStats(topic).getTopicEpoch());
            }
        }
    }

    private void schemasAfterDeletion() throws Exception {
        same(List.of(), admin.schemas().getAllSchemas(topic));
        admin.schemas().createSchema(topic, Schema.STRING.getSchemaInfo());
        same(1, admin.schemas().getAllSchemas(topic).size());
        admin.schemas().deleteSchema(topic);
        same(List.of(), admin.schemas().getAllSchemas(topic));
        same(true, admin.schemas().getSchemaMetadata(topic).info != null);
        same(2, admin.schemas().getSchemaMetadata(topic).index.size());
    }

    private void appliedPolicies() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        same(1000L, admin.topicPolicies().getDelayedDeliveryPolicy(topic, true).getTickTime());
        same(true, admin.topicPolicies().getPersistence(topic, true).getBookkeeperEnsemble() > 0);
        same(1, admin.topicPolicies().getReplicatorDispatchRate(topic, true).getRatePeriodInSecond());
        same("", admin.topicPolicies().getEntryFiltersPerTopic(topic, true).getEntryFilterNames());
        same(true, admin.topicPolicies().getDispatchRate(topic, true) != null);
        same(true, admin.topicPolicies().getSubscribeRate(topic, true) != null);
        same(true, admin.topicPolicies().getInactiveTopicPolicies(topic, true) != null);
        same(true, admin.topicPolicies().getRetention(topic, true) != null);
        same(0, admin.topicPolicies().getSubscriptionTypesEnabled(topic).size());
        same(0, admin.namespaces().getSubscriptionTypesEnabled(namespace).size());
    }

    private void examinePastTheEnd() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (String each : List.of("m0", "m1", "m2")) {
                producer.send(each.getBytes(StandardCharsets.UTF_8));
            }
        }
        same("m2", text(admin.topics().examineMessage(topic, "earliest", 99)));
        same("m1", text(admin.topics().examineMessage(topic, "latest", 2)));
    }

    private void policiesOfAPartitionAreRefused() throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        for (String name : List.of(topic + "-partition-0", topic + "-none-partition-3")) {
            try {
                admin.topicPolicies().setMaxProducers(name, 5);
                throw new AssertionError("a partition has policies of its own: " + name);
            } catch (PulsarAdminException.PreconditionFailedException refused) {
                same("Not allowed to set/get topic policy for a partition", refused.getHttpError());
            }
        }
        try {
            admin.topicPolicies().setMaxProducers(topic, -1);
            throw new AssertionError("less than 0 producers");
        } catch (PulsarAdminException.PreconditionFailedException refused) {
            same("maxProducers must be 0 or more", refused.getHttpError());
        }
    }

    private void bookies() throws Exception {
        same(true, admin.bookies().getBookies().getBookies().size() > 0);
        admin.bookies().getBookiesRackInfo();
    }
}
