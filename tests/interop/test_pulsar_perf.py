"""The official `pulsar-perf`, unmodified: short runs that end well and whose counts add up."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from .java_programs import JAVA_TEST_TIMEOUT_S, JavaPrograms
from .support import Names, ServerAddress, backlog

RUN_TIMEOUT_S = 240.0
MESSAGES = 20_000
MESSAGES_SINGLE = 2_000
IN_FLIGHT = 1000
HEAP = "-Xmx1g"
MAIN = "org.apache.pulsar.testclient.PulsarPerfTestTool"
LOGGING = """<Configuration status="WARN">
  <Appenders><Console name="C"><PatternLayout pattern="%m%n"/></Console></Appenders>
  <Loggers>
    <Root level="warn"><AppenderRef ref="C"/></Root>
    <Logger name="org.apache.pulsar.testclient" level="info"/>
  </Loggers>
</Configuration>
"""

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)


class Perf:
    """Runs one command of the tool and returns what it logged."""

    def __init__(self, java: JavaPrograms, server: ServerAddress, directory: Path) -> None:
        self._java = java
        self._conf = directory / "client.conf"
        self._conf.write_text(
            f"webServiceUrl={server.http_url}/\nbrokerServiceUrl={server.service_url}/\n"
        )
        self._logging = directory / "log4j2.xml"
        self._logging.write_text(LOGGING)

    def __call__(self, *arguments: str) -> str:
        command = self._java.command(self._java.tools, MAIN, str(self._conf), *arguments)
        # The last of two heap flags counts; the tool's histograms need more than others.
        flags = [HEAP, f"-Dlog4j2.configurationFile={self._logging}"]
        at = command.index("-cp")
        command[at:at] = flags
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout


@pytest.fixture
def perf(java: JavaPrograms, server: ServerAddress, tmp_path: Path) -> Perf:
    return Perf(java, server, tmp_path)


def aggregated(log: str) -> int:
    """The count of records that the tool says it handled in all."""
    found = re.findall(r"Aggregated throughput stats --- +(\d+) records", log)
    assert found, log[-4000:]
    return int(found[-1])


def entered(admin: httpx.Client, names: Names, local: str, kind: str) -> int:
    path = f"/admin/v2/persistent/{names.path}/{local}/{kind}"
    return int(admin.get(path).raise_for_status().json()["msgInCounter"])


def test_producing_consuming_and_reading(perf: Perf, admin: httpx.Client, names: Names) -> None:
    """The tool's producer takes ten seconds at least, so the three of them run at once."""
    base = f"/admin/v2/persistent/{names.path}"
    admin.put(f"{base}/parts/partitions", json=4).raise_for_status()
    for local in ("plain", "single"):
        admin.put(f"{base}/{local}").raise_for_status()
    for local in ("plain", "parts", "single"):
        admin.put(f"{base}/{local}/subscription/sub").raise_for_status()
    runs = {
        "plain": ("-r", "20000", "-m", str(MESSAGES), "-s", "1024"),
        "parts": ("-r", "20000", "-m", str(MESSAGES), "-s", "100", "-mk", "random"),
        "single": ("-r", "1000", "-m", str(MESSAGES_SINGLE), "-s", "100", "-db"),
    }
    with ThreadPoolExecutor(len(runs)) as pool:
        started = {
            local: pool.submit(perf, "produce", *flags, "-o", str(IN_FLIGHT), names.topic(local))
            for local, flags in runs.items()
        }
        sent = {local: aggregated(run.result()) for local, run in started.items()}
        held = {
            "plain": entered(admin, names, "plain", "stats"),
            "parts": entered(admin, names, "parts", "partitioned-stats"),
            "single": entered(admin, names, "single", "stats"),
        }
        for local, count in held.items():
            wanted = MESSAGES_SINGLE if local == "single" else MESSAGES
            assert wanted <= count
            assert sent[local] <= count <= sent[local] + IN_FLIGHT
        entries = admin.get(f"{base}/single/internalStats").json()["numberOfEntries"]
        assert entries == held["single"], "a batch, though batching was off"

        flags = ("-ss", "sub", "-sp", "Earliest")
        consumed = [
            pool.submit(perf, "consume", "-st", kind, "-m", str(held[local]), *flags, topic)
            for local, kind, topic in (
                ("plain", "Exclusive", names.topic("plain")),
                ("parts", "Key_Shared", names.topic("parts")),
            )
        ]
        read = pool.submit(perf, "read", "-n", str(held["single"]), names.topic("single"))
        assert [aggregated(run.result()) for run in consumed] == [held["plain"], held["parts"]]
        assert aggregated(read.result()) == held["single"]
    assert backlog(admin, names.topic("single"), "sub") == entries
