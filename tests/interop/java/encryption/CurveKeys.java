import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Java's end of messages that are encrypted with keys of elliptic curves.
 *
 * <p>Arguments: service URL, a topic to read, a topic to write, a directory of PEM files, and names of keys. For each key
 * in turn, it prints what a consumer with that private key alone reads, and then writes one message with all keys.
 */
public final class CurveKeys {
    private static final int PATIENCE_S = 30;

    private CurveKeys() {
    }

    private record Keys(Path folder, String own) implements CryptoKeyReader {
        @Override
        public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
            return read(name + ".pub.pem");
        }

        @Override
        public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
            return name.equals(own) ? read(name + ".pem") : null;
        }

        private EncryptionKeyInfo read(String file) {
            try {
                return new EncryptionKeyInfo(Files.readAllBytes(folder.resolve(file)), Map.of());
            } catch (java.io.IOException failed) {
                throw new java.io.UncheckedIOException(failed);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[3]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int at = 4; at < arguments.length; at++) {
                try (Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES)
                        .topic(arguments[1])
                        .subscriptionName(arguments[at])
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .cryptoKeyReader(new Keys(folder, arguments[at]))
                        .subscribe()) {
                    Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
                    System.out.println(arguments[at] + " " + (message == null ? "nothing" : new String(message.getValue(), UTF_8)));
                }
            }
            ProducerBuilder<byte[]> builder =
                    client.newProducer(Schema.BYTES).topic(arguments[2]).cryptoKeyReader(new Keys(folder, ""));
            for (int at = 4; at < arguments.length; at++) {
                builder.addEncryptionKey(arguments[at]);
            }
            try (Producer<byte[]> producer = builder.create()) {
                producer.send("from Java".getBytes(UTF_8));
            }
        }
        // Threads of a closed client would keep the process for a while.
        Runtime.getRuntime().halt(0);
    }
}
