"""The official `pulsar-perf`, unmodified: short runs that end well and whose counts add up."""

import re
import subprocess
from pathlib import Path

import httpx
import pytest

from .java_programs import JAVA_TEST_TIMEOUT_S, JavaPrograms
from .support import Names, ServerAddress, await_backlog

RUN_TIMEOUT_S = 60.0
MESSAGES = 20_000
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
        command.insert(1, f"-Dlog4j2.configurationFile={self._logging}")
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


@pytest.mark.parametrize("partitions", [0, 4])
def test_producing_and_consuming(
    perf: Perf, admin: httpx.Client, names: Names, partitions: int
) -> None:
    topic = names.topic()
    path = f"/admin/v2/persistent/{names.path}/topic"
    if partitions:
        admin.put(f"{path}/partitions", json=partitions).raise_for_status()
    else:
        admin.put(path).raise_for_status()
    admin.put(f"{path}/subscription/sub").raise_for_status()
    count = str(MESSAGES)
    log = perf("produce", "-r", "0", "-m", count, "-s", "1024", "-o", "1000", topic)
    sent = aggregated(log)
    assert sent >= MESSAGES
    stats = admin.get(f"{path}/{'partitioned-stats' if partitions else 'stats'}").json()
    assert stats["msgInCounter"] == sent
    log = perf("consume", "-ss", "sub", "-st", "Shared", "-m", count, "-sp", "Earliest", topic)
    assert aggregated(log) >= MESSAGES


def test_producing_without_batches_at_a_rate(perf: Perf, admin: httpx.Client, names: Names) -> None:
    log = perf("produce", "-r", "1000", "-m", "2000", "-b", "0", "-bd", "-s", "100", names.topic())
    assert aggregated(log) >= 2000
    stats = admin.get(f"/admin/v2/persistent/{names.path}/topic/internalStats").json()
    assert stats["numberOfEntries"] >= 2000


def test_reading(perf: Perf, admin: httpx.Client, names: Names) -> None:
    topic = names.topic()
    admin.put(f"/admin/v2/persistent/{names.path}/topic").raise_for_status()
    admin.put(f"/admin/v2/persistent/{names.path}/topic/subscription/keep").raise_for_status()
    perf("produce", "-r", "0", "-m", "5000", "-s", "100", topic)
    log = perf("read", "-m", "5000", "-i", "1", "earliest" and topic)
    assert aggregated(log) >= 5000
    await_backlog(admin, topic, "keep", await_count(admin, names))


def await_count(admin: httpx.Client, names: Names) -> int:
    """The entries of the topic: what a subscription that nobody uses has for its backlog."""
    stats = admin.get(f"/admin/v2/persistent/{names.path}/topic/internalStats").json()
    return int(stats["numberOfEntries"])
