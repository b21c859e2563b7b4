import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Runs scenarios of the official Java client against a server, one per line of standard input.
 *
 * <p>Arguments: service URL, admin URL. A line "NAMESPACE SCENARIO" runs one scenario with a client of its own and
 * prints one JSON line: name, ok, millis, error. The line "list" prints all names. Nothing else is printed.
 */
public final class InteropSuite {
    /** One thing to try; it fails by throwing. */
    interface Scenario {
        void run(Context context) throws Exception;
    }

    private static final int CLOSE_SECONDS = 40;

    private final Map<String, Scenario> scenarios = new LinkedHashMap<>();
    private final List<CompletableFuture<Void>> closing = new ArrayList<>();

    void add(String name, Scenario scenario) {
        if (scenarios.put(name, scenario) != null) {
            throw new IllegalStateException("two scenarios are called " + name);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        InteropSuite suite = new InteropSuite();
        ProducerScenarios.register(suite);
        SubscriptionScenarios.register(suite);
        KeySharedScenarios.register(suite);
        AckScenarios.register(suite);
        ReaderScenarios.register(suite);
        TopicScenarios.register(suite);
        SchemaScenarios.register(suite);
        TransactionScenarios.register(suite);
        TransactionAckScenarios.register(suite);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(line.equals("list")
                    ? String.join(" ", suite.scenarios.keySet())
                    : suite.run(arguments[0], arguments[1], line.split(" ")));
            out.flush();
        }
        CompletableFuture.allOf(suite.closing.toArray(new CompletableFuture<?>[0]))
                .get(CLOSE_SECONDS, TimeUnit.SECONDS);
        System.exit(0);
    }

    private String run(String serviceUrl, String adminUrl, String[] request) {
        long start = System.nanoTime();
        String error = "";
        try {
            Context context = new Context(serviceUrl, adminUrl, request[0]);
            try {
                scenarios.get(request[1]).run(context);
            } finally {
                closing.addAll(context.close());
            }
        } catch (Throwable failure) {
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            error = trace.toString();
        }
        long millis = (System.nanoTime() - start) / 1_000_000;
        return "{\"name\": \"" + request[1] + "\", \"ok\": " + error.isEmpty() + ", \"millis\": " + millis
                + ", \"error\": \"" + escape(error) + "\"}";
    }

    private static String escape(String text) {
        StringBuilder escaped = new StringBuilder();
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                escaped.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                escaped.append(String.format("\\u%04x", (int) c));
            } else {
                escaped.append(c);
            }
        }
        return escaped.toString();
    }
}
