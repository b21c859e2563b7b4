"""The programs of the official clients: both releases of Java's client, Go's, and the tools."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop import go_programs, java_programs
from tests.interop.java_programs import JavaPrograms, LineProcess

MAIN: Final = "ClientOutcomes"
PERF_LOGGING: Final = """<Configuration status="ERROR">
  <Appenders>
    <Console name="C" follow="true">
      <PatternLayout pattern="%p %m %throwable{short.message}%n"/>
    </Console>
  </Appenders>
  <Loggers>
    <Root level="off"/>
    <Logger name="org.apache.pulsar.testclient" level="info"><AppenderRef ref="C"/></Logger>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class Programs:
    """How to start each program."""

    java: JavaPrograms
    java_4_0: str
    """Class path of the client of Pulsar 4.0."""
    java_4_2: str
    go: Path

    def started(self, directory: Path) -> Iterator[tuple[str, LineProcess]]:
        """Starts the programs, with their files in a directory."""
        logging = directory / "log4j2.xml"
        logging.write_text(PERF_LOGGING)
        conf = directory / "client.conf"
        conf.write_text("tlsEnableHostnameVerification=true\n")
        perf = self.java.command(self.java.tools, "PerfRunner", str(conf))
        # The last of two heap flags counts; the tool's histograms need more than others.
        at = perf.index("-cp")
        perf[at:at] = ["-Xmx1g", f"-Dlog4j2.configurationFile={logging}"]
        commands = {
            "java-4.0": self.java.command(self.java_4_0, MAIN),
            "java-4.2": self.java.command(self.java_4_2, MAIN),
            "go": [str(self.go)],
            "pulsar-admin": self.java.command(self.java.tools, "AdminRunner", str(conf)),
            "pulsar-perf": perf,
        }
        for name, command in commands.items():
            yield name, LineProcess(command, directory / f"{name}.log")


def prepare() -> Programs:
    """Fetches and compiles missing programs; fails without a JDK, with the install command."""
    java = java_programs.prepare()
    sources = java_programs.HERE / "clients"
    return Programs(
        java,
        java_programs.compiled(sources, java_programs.jars("tools"), "4.0"),
        java_programs.compiled(sources, java_programs.jars("client"), "4.2"),
        go_programs.prepare_go("clients"),
    )
