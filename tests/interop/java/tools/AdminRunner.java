import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs commands of pulsar-admin in one JVM, so that each costs milliseconds instead of a start.
 *
 * <p>Argument: the client's configuration file. Each line of standard input is a JSON array of command line arguments;
 * the answer is one JSON line: code, out, err. What the tool prints is caught, never mixed.
 */
public final class AdminRunner {
    private static final ObjectMapper JSON = new ObjectMapper();

    private AdminRunner() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        setAllowSystemExit(false);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> command = new ArrayList<>(List.of(arguments[0]));
            for (Object part : JSON.readValue(line, List.class)) {
                command.add((String) part);
            }
            out.println(JSON.writeValueAsString(run(command)));
            out.flush();
        }
        System.exit(0);
    }

    private static Map<String, Object> run(List<String> command) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        invoke("resetLastExitCode");
        PulsarAdminTool.execute(command.toArray(new String[0]));
        int code = (int) invoke("getLastExitCode");
        return Map.of("code", code, "out", out.toString(StandardCharsets.UTF_8),
                "err", err.toString(StandardCharsets.UTF_8));
    }

    // The tool's own tests use these; outside its package they have to be called by name.
    private static Object invoke(String name) throws Exception {
        Method method = PulsarAdminTool.class.getDeclaredMethod(name);
        method.setAccessible(true);
        return method.invoke(null);
    }

    private static void setAllowSystemExit(boolean allow) throws Exception {
        Method method = PulsarAdminTool.class.getDeclaredMethod("setAllowSystemExit", boolean.class);
        method.setAccessible(true);
        method.invoke(null, allow);
    }
}
