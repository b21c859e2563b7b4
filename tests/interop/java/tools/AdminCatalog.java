import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import picocli.CommandLine;

/** Prints all commands of pulsar-admin with their options, as JSON: "group command" to names of options. */
public final class AdminCatalog {
    private AdminCatalog() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", "http://127.0.0.1:1/");
        Field field = PulsarAdminTool.class.getDeclaredField("commander");
        field.setAccessible(true);
        Map<String, TreeSet<String>> commands = new TreeMap<>();
        add((CommandLine) field.get(new PulsarAdminTool(properties)), "", commands);
        System.out.println(new ObjectMapper().writeValueAsString(commands));
        System.exit(0);
    }

    // An alias is a further key of the same command; its own name is the one that counts.
    private static void add(CommandLine line, String path, Map<String, TreeSet<String>> commands) {
        for (Map.Entry<String, CommandLine> entry : line.getSubcommands().entrySet()) {
            CommandLine command = entry.getValue();
            if (!entry.getKey().equals(command.getCommandName())) {
                continue;
            }
            String name = (path + " " + command.getCommandName()).strip();
            if (!command.getSubcommands().isEmpty()) {
                add(command, name, commands);
                continue;
            }
            TreeSet<String> options = new TreeSet<>();
            command.getCommandSpec().options().forEach(option ->
                    options.add(Arrays.stream(option.names()).max((a, b) -> a.length() - b.length()).orElseThrow()));
            commands.put(name, options);
        }
    }
}
