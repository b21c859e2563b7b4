import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Produces with Java's client and credentials of many kinds, and prints what an application sees.
 *
 * <p>A line of standard input has requests, separated by the character RS; a request has fields NAME=VALUE, separated
 * by tabs. The requests of a line run at once and are answered by one line: "SCENARIO TAB OUTCOME", separated by RS. An
 * outcome is "ok" or the exception's class and text.
 */
public final class ClientOutcomes {
    private static final int AT_ONCE = 16;
    private static final String SEPARATOR = "\u001e";

    private ClientOutcomes() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<Future<String>> running = new ArrayList<>();
            for (String request : line.split(SEPARATOR)) {
                running.add(pool.submit(() -> outcome(parsed(request))));
            }
            List<String> answers = new ArrayList<>();
            for (Future<String> each : running) {
                answers.add(each.get());
            }
            out.println(String.join(SEPARATOR, answers));
            out.flush();
        }
        // Closing clients takes two seconds for their threads, which nobody has to wait for here.
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, String> parsed(String request) {
        Map<String, String> fields = new HashMap<>();
        for (String field : request.split("\t")) {
            String[] parts = field.split("=", 2);
            fields.put(parts[0], parts[1]);
        }
        return fields;
    }

    private static String outcome(Map<String, String> request) {
        String text = "ok";
        try {
            produce(request);
        } catch (Throwable failure) {
            String name = failure.getClass().getName().replaceAll(".*[.$]", "");
            text = name + ": " + String.valueOf(failure.getMessage()).replaceAll("\\s+", " ");
        }
        return request.get("scenario") + "\t" + text;
    }

    private static void produce(Map<String, String> request) throws Exception {
        int seconds = Integer.parseInt(request.get("seconds"));
        ClientBuilder builder = PulsarClient.builder().serviceUrl(request.get("url"))
                .ioThreads(1).listenerThreads(1)
                .operationTimeout(seconds, TimeUnit.SECONDS)
                .lookupTimeout(seconds, TimeUnit.SECONDS)
                .connectionTimeout(seconds, TimeUnit.SECONDS)
                .enableTlsHostnameVerification(true);
        if (!request.get("trust").isEmpty()) {
            builder.tlsTrustCertsFilePath(request.get("trust"));
        }
        if (!request.get("plugin").isEmpty()) {
            builder.authentication(request.get("plugin"), request.get("parameters"));
        }
        PulsarClient client = builder.build();
        try {
            Producer<byte[]> producer = client.newProducer().topic(request.get("topic")).create();
            producer.send("hello".getBytes(StandardCharsets.UTF_8));
        } finally {
            client.closeAsync();
        }
    }
}
