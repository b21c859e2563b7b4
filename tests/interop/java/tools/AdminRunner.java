import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.slf4j.LoggerFactory;

/**
 * Runs commands of pulsar-admin in one JVM with one HTTP client, so that each costs milliseconds instead of a start.
 *
 * <p>Argument: the client's configuration file. Each line of standard input is a JSON array of command line arguments;
 * the answer is one JSON line: code, out, err. What the tool prints is caught, never mixed.
 *
 * <p>The tool's parser gives all options their initial values before each command. A tool per command would keep
 * the threads of its client, and fill the heap.
 */
public final class AdminRunner extends PulsarAdminTool {
    private static final ObjectMapper JSON = new ObjectMapper();
    // The tool keeps the streams of its first command.
    private static final ByteArrayOutputStream OUT = new ByteArrayOutputStream();
    private static final ByteArrayOutputStream ERR = new ByteArrayOutputStream();

    private AdminRunner(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        // Lines of the log go to this program's own standard error, not into the answers.
        System.setOut(System.err);
        LoggerFactory.getLogger(AdminRunner.class);
        System.setOut(new Kept(OUT));
        System.setErr(new Kept(ERR));
        Properties properties = new Properties();
        try (InputStream file = new FileInputStream(arguments[0])) {
            properties.load(file);
        }
        AdminRunner runner = new AdminRunner(properties);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<?> command = JSON.readValue(line, List.class);
            out.println(JSON.writeValueAsString(runner.answer(command.toArray(new String[0]))));
            out.flush();
        }
        System.exit(0);
    }

    private Map<String, Object> answer(String[] command) {
        OUT.reset();
        ERR.reset();
        int code = run(command) ? 0 : 1;
        return Map.of("code", code, "out", OUT.toString(StandardCharsets.UTF_8),
                "err", ERR.toString(StandardCharsets.UTF_8));
    }

    /** A stream that stays open: `broker-stats` closes the one it prints to. */
    private static final class Kept extends PrintStream {
        Kept(ByteArrayOutputStream target) {
            super(target, true, StandardCharsets.UTF_8);
        }

        @Override
        public void close() {
            flush();
        }
    }
}
