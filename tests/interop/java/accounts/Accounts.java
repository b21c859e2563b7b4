import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Transfers between accounts by the official Java client, one role per process.
 *
 * <p>Arguments: role, service URL, namespace, number of accounts, then those of the role. {@code bank} writes orders and
 * reads all accounts; {@code work} carries orders out in transactions. Each line of standard output is one observation;
 * {@code S} says that the role has attached everywhere. Standard input ends the roles.
 */
public final class Accounts {
    /** A transfer. Its text is the message in the topic of orders. */
    record Order(int id, int from, int to, int amount) {
        static Order parse(String text) {
            String[] words = text.split(" ");
            return new Order(Integer.parseInt(words[0]), Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                    Integer.parseInt(words[3]));
        }

        String text() {
            return id + " " + from + " " + to + " " + amount;
        }
    }

    /** Something that fails while brokers are down, and is tried again. */
    interface Attempt<T> {
        T run() throws Exception;
    }

    private static final int OPERATION_TIMEOUT_SECONDS = 10;
    private static final int CONNECTION_TIMEOUT_SECONDS = 3;
    private static final int BACKOFF_SECONDS_MAX = 2;
    private static final int KEEP_ALIVE_SECONDS = 5;
    private static final int RETRY_MILLIS = 200;

    private static final PrintStream OUT = System.out;

    final PulsarClient client;
    final String namespace;
    final int accounts;

    private Accounts(String serviceUrl, String namespace, int accounts) throws Exception {
        this.client = PulsarClient.builder().serviceUrl(serviceUrl).enableTransaction(true)
                .ioThreads(1).listenerThreads(1)
                .operationTimeout(OPERATION_TIMEOUT_SECONDS, TimeUnit.SECONDS)
                .lookupTimeout(OPERATION_TIMEOUT_SECONDS, TimeUnit.SECONDS)
                .connectionTimeout(CONNECTION_TIMEOUT_SECONDS, TimeUnit.SECONDS)
                .keepAliveInterval(KEEP_ALIVE_SECONDS, TimeUnit.SECONDS)
                .maxBackoffInterval(BACKOFF_SECONDS_MAX, TimeUnit.SECONDS).build();
        this.namespace = namespace;
        this.accounts = accounts;
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String serviceUrl = arguments[1];
        Accounts accounts = retried("client", () ->
                new Accounts(serviceUrl, arguments[2], Integer.parseInt(arguments[3])));
        if (arguments[0].equals("bank")) {
            new Bank(accounts, Integer.parseInt(arguments[4])).run(in);
        } else {
            new Worker(accounts, Integer.parseInt(arguments[4])).run(in);
        }
        note("F");
        // Closing a client takes two seconds for its threads, and all observations are written.
        Runtime.getRuntime().halt(0);
    }

    String orders() {
        return "persistent://" + namespace + "/orders";
    }

    String account(int index) {
        return "persistent://" + namespace + "/account-" + index;
    }

    /** Repeats until it succeeds, and notes each failure. */
    static <T> T retried(String stage, Attempt<T> attempt) throws InterruptedException {
        while (true) {
            try {
                return attempt.run();
            } catch (InterruptedException interrupted) {
                throw interrupted;
            } catch (Exception failure) {
                noteFailure(stage, failure);
                Thread.sleep(RETRY_MILLIS);
            }
        }
    }

    static void noteFailure(String stage, Throwable failure) {
        Throwable cause = failure;
        while (cause.getCause() != null && (cause instanceof java.util.concurrent.ExecutionException
                || cause instanceof java.util.concurrent.CompletionException)) {
            cause = cause.getCause();
        }
        String text = String.valueOf(cause.getMessage()).replaceAll("\\s+", " ");
        note("E " + stage + " " + cause.getClass().getSimpleName() + " " + text);
    }

    /** Writes one observation as one whole line. */
    static void note(String line) {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(bytes, 0, bytes.length);
            OUT.flush();
        }
    }
}
