import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;

/** What a scenario works with: a namespace of its own, clients that are closed with it, and ways to wait and check. */
final class Context {
    static final int PATIENCE_SECONDS = 30;
    static final int SILENCE_MILLIS = 300;
    /** A batch that waits so long is sent by flush, however slow the machine is. */
    static final int UNTIL_FLUSH_SECONDS = 600;
    private static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .followRedirects(HttpClient.Redirect.NORMAL).build();

    final String serviceUrl;
    final String adminUrl;
    final String namespace;
    final PulsarClient client;
    private final List<PulsarClient> opened = new ArrayList<>();

    Context(String serviceUrl, String adminUrl, String namespace) throws Exception {
        this.serviceUrl = serviceUrl;
        this.adminUrl = adminUrl;
        this.namespace = namespace;
        this.client = connect();
    }

    PulsarClient connect() throws Exception {
        return connect(builder());
    }

    PulsarClient connect(ClientBuilder builder) throws Exception {
        PulsarClient made = builder.build();
        opened.add(made);
        return made;
    }

    ClientBuilder builder() {
        return PulsarClient.builder().serviceUrl(serviceUrl).operationTimeout(30, TimeUnit.SECONDS)
                .ioThreads(1).listenerThreads(1);
    }

    String topic() {
        return topic("topic");
    }

    String topic(String local) {
        return "persistent://" + namespace + "/" + local;
    }

    /** Creates a partitioned topic. */
    String partitioned(String local, int partitions) throws Exception {
        http("PUT", "/admin/v2/persistent/" + namespace + "/" + local + "/partitions", "" + partitions);
        return topic(local);
    }

    /** One admin request, which must succeed; returns the body. */
    String http(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(adminUrl + path))
                .header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        check(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
        return answer.body();
    }

    void unload(String topic) throws Exception {
        http("PUT", "/admin/v2/" + topic.replace("://", "/") + "/unload", "");
    }

    /** The subscription's entries that the server holds as not acked; -1 where there is no such subscription. */
    long backlog(String topic, String subscription) throws Exception {
        String stats = http("GET", "/admin/v2/" + topic.replace("://", "/") + "/stats?getPreciseBacklog=true", "");
        int at = stats.indexOf("\"" + subscription + "\":{");
        if (at < 0) {
            return -1;
        }
        String own = stats.substring(at);
        String field = "\"msgBacklog\":";
        String number = own.substring(own.indexOf(field) + field.length());
        return Long.parseLong(number.replaceAll("(?s)[^0-9].*", ""));
    }

    void awaitBacklog(String topic, String subscription, long count) throws Exception {
        await("a backlog of " + count, () -> backlog(topic, subscription) == count);
    }

    Producer<String> producer(String topic) throws Exception {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(false).create();
    }

    static List<MessageId> send(Producer<String> producer, String prefix, int count) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            ids.add(producer.send(prefix + i));
        }
        return ids;
    }

    static List<String> numbered(String prefix, int count) {
        List<String> values = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            values.add(prefix + i);
        }
        return values;
    }

    /** Receives exactly so many, all before one deadline. */
    static <T> List<Message<T>> take(Consumer<T> consumer, int count) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        List<Message<T>> messages = new ArrayList<>();
        while (messages.size() < count) {
            long leftMillis = Math.max(1, (deadline - System.nanoTime()) / 1_000_000);
            Message<T> message = consumer.receive((int) leftMillis, TimeUnit.MILLISECONDS);
            check(message != null, messages.size() + " of " + count + " messages came: " + values(messages));
            messages.add(message);
        }
        return messages;
    }

    static <T> List<Message<T>> read(Reader<T> reader, int count) throws Exception {
        List<Message<T>> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message<T> message = reader.readNext(PATIENCE_SECONDS, TimeUnit.SECONDS);
            check(message != null, i + " of " + count + " messages came");
            messages.add(message);
        }
        return messages;
    }

    /** Receives until nothing comes for a while. */
    static <T> List<Message<T>> drain(Consumer<T> consumer) throws Exception {
        List<Message<T>> messages = new ArrayList<>();
        for (Message<T> message = consumer.receive(SILENCE_MILLIS, TimeUnit.MILLISECONDS); message != null;
                message = consumer.receive(SILENCE_MILLIS, TimeUnit.MILLISECONDS)) {
            messages.add(message);
        }
        return messages;
    }

    static void silent(Consumer<?> consumer) throws Exception {
        Message<?> message = consumer.receive(SILENCE_MILLIS, TimeUnit.MILLISECONDS);
        check(message == null, "unexpected message " + (message == null ? "" : message.getMessageId()));
    }

    static <T> List<T> values(List<Message<T>> messages) {
        return messages.stream().map(Message::getValue).toList();
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void same(Object expected, Object found) {
        check(expected.equals(found), "expected " + expected + ", found " + found);
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (!condition.call()) {
            check(System.nanoTime() < deadline, what + " did not come true in " + PATIENCE_SECONDS + " s");
            Thread.sleep(10);
        }
    }

    /** Fails unless the action throws that exception, whose text must hold `text`. */
    static void refused(Class<? extends Throwable> kind, String text, Callable<?> action) {
        Throwable thrown = null;
        try {
            action.call();
        } catch (CompletionException | ExecutionException wrapped) {
            thrown = wrapped.getCause();
        } catch (Throwable direct) {
            thrown = direct;
        }
        check(thrown != null, "not refused, but should be by " + kind.getSimpleName());
        if (!kind.isInstance(thrown) || !String.valueOf(thrown.getMessage()).contains(text)) {
            throw new AssertionError("not " + kind.getSimpleName() + " with \"" + text + "\"", thrown);
        }
    }

    /** Begins to close all clients. Each takes two seconds for its threads, which nobody has to wait for here. */
    List<CompletableFuture<Void>> close() {
        return opened.stream().filter(each -> !each.isClosed()).map(PulsarClient::closeAsync).toList();
    }
}
