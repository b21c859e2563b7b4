import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/** Sends the lines of a file at a fixed rate, with the defaults of Java's client and ZSTD. */
public final class FixedRate {
    private static final long TICK_NANOS = TimeUnit.MILLISECONDS.toNanos(1);

    private FixedRate() {}

    /** Arguments: URL, topic, file, messages per second, seconds that count, and before them. */
    public static void main(String[] args) throws Exception {
        List<String> lines = Files.readAllLines(Path.of(args[2]), StandardCharsets.US_ASCII);
        byte[][] bodies = lines.stream().map(each -> each.getBytes(StandardCharsets.US_ASCII)).toArray(byte[][]::new);
        int rate = Integer.parseInt(args[3]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
                Producer<byte[]> producer = client.newProducer()
                        .topic(args[1])
                        .compressionType(CompressionType.ZSTD)
                        .create()) {
            run(producer, bodies, rate, Integer.parseInt(args[5]));
            System.out.println("ready");
            in.readLine();
            run(producer, bodies, rate, Integer.parseInt(args[4]));
            System.out.println("done");
            in.readLine();
        }
    }

    private static void run(Producer<byte[]> producer, byte[][] bodies, int rate, int seconds) throws Exception {
        int count = rate * seconds;
        CompletableFuture<MessageId> last = null;
        long began = System.nanoTime();
        for (int sent = 0; sent < count; ) {
            long due = Math.min(count, (System.nanoTime() - began) * rate / 1_000_000_000L);
            for (; sent < due; sent++) {
                last = producer.sendAsync(bodies[sent % bodies.length]);
            }
            LockSupport.parkNanos(TICK_NANOS);
        }
        producer.flush();
        last.get();
    }
}
