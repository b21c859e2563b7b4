import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Pattern;
import org.apache.pulsar.testclient.PerfClientUtils;
import org.apache.pulsar.testclient.PulsarPerfTestTool;

/**
 * Runs commands of pulsar-perf in one JVM, so that each costs less than a start.
 *
 * <p>Argument: the client's configuration file. Each line of standard input is a JSON array of command line arguments;
 * the answer is one JSON line: code, out. The tool sleeps before it exits, so the code is 0 as soon as it has sent its
 * messages and 1 as soon as it logs an error; -1 if neither happens. The log must go to standard output ("follow" of the
 * appender), with the level before the text.
 */
public final class PerfRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int DEADLINE_SECONDS = 20;
    private static final String SENT = "DONE (reached the maximum number";
    private static final Pattern FAILED = Pattern.compile("(?m)^ERROR .*\\R");
    /** The command that started a thread, directly or not. */
    private static final InheritableThreadLocal<Run> CURRENT = new InheritableThreadLocal<>();

    private PerfRunner() {
    }

    /** Ends a thread of a command in place of the process. */
    private static final class Exit extends Error {
        private static final long serialVersionUID = 1L;
    }

    /** A command: what it printed, and the code of its end. */
    private static final class Run {
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();
        private final CompletableFuture<Integer> code = new CompletableFuture<>();

        synchronized void print(byte[] bytes, int offset, int length) {
            out.write(bytes, offset, length);
            // The text of an error ends its line.
            if (printed().contains(SENT)) {
                code.complete(0);
            } else if (FAILED.matcher(printed()).find()) {
                code.complete(1);
            }
        }

        synchronized String printed() {
            return out.toString(StandardCharsets.UTF_8);
        }
    }

    /** Gives each command its own output. */
    private static final class OutputOfCommands extends OutputStream {
        @Override
        public void write(int value) {
            write(new byte[] {(byte) value}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            if (CURRENT.get() != null) {
                CURRENT.get().print(bytes, offset, length);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(new PrintStream(new OutputOfCommands(), true, StandardCharsets.UTF_8));
        PerfClientUtils.setExitProcedure(status -> {
            CURRENT.get().code.complete(status);
            throw new Exit();
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> command = new ArrayList<>(List.of(arguments[0]));
            for (Object part : JSON.readValue(line, List.class)) {
                command.add((String) part);
            }
            out.println(JSON.writeValueAsString(run(command)));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> run(List<String> command) throws Exception {
        Run run = new Run();
        Thread thread = new Thread(() -> {
            CURRENT.set(run);
            try {
                PulsarPerfTestTool.main(command.toArray(new String[0]));
                run.code.complete(0);
            } catch (Exit ended) {
                return;
            } catch (Throwable failure) {
                failure.printStackTrace(System.out);
                run.code.complete(1);
            }
        }, "perf");
        thread.start();
        int code;
        try {
            code = run.code.get(DEADLINE_SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            code = -1;
        }
        return Map.of("code", code, "out", run.printed());
    }
}
