"""Loads by official clients on a server, and the figures that they yield.

Every scenario returns rows of figures: {"messages", "rate", "cpu_us", ...}; CPU is the server
process's own, per message. pulsar-perf's "Aggregated" rate is too low for short runs, so the rate
is that of its last interval lines.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.secured import OPEN, Security
from tests.bench.servers import Server, cpu_seconds, memory_mib, shared_memory_mib

Row = dict[str, float | int | str | None]
DRAIN_MESSAGES = 1_000_000
IDLE_TOPICS = 10_000
BACKLOG_TOPICS = 100
BACKLOG_MESSAGES = 1 << 20
CLIENTS = "tests.bench.clients"
IDLE_CONNECTIONS = 10_000


class Load:
    """Runs clients against one server and measures the server meanwhile."""

    def __init__(
        self, server: Server, perf: Path, seconds: int, log: Path, security: Security = OPEN
    ) -> None:
        self.server, self.seconds, self.log, self.security = server, seconds, log, security
        self._perf = perf
        self._topics = 0

    def topic(self, what: str) -> str:
        self._topics += 1
        return f"persistent://public/default/bench-{what}-{os.getpid()}-{self._topics}"

    def run(self, *command: str) -> str:
        environment = {
            **os.environ,
            "PULSAR_HOST": "127.0.0.1",
            "PULSAR_PORT": str(self.server.port),
            "HTTP_PORT": str(self.server.http_port),
            **self.security.environment(),
        }
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}\n")
        return done.stdout

    def measured(self, *command: str) -> tuple[str, Row]:
        before = cpu_seconds(self.server)
        output = self.run(*command)
        resident, peak = memory_mib(self.server)
        row: Row = {"rss_mib": round(resident), "peak_mib": round(peak)}
        row.update(self.cpu_since(before))
        return output, row

    def cpu_since(self, before: dict[str, float]) -> Row:
        """Returns the CPU seconds of all processes, and of each kind if there are several."""
        used = {name: now - before[name] for name, now in cpu_seconds(self.server).items()}
        row: Row = {"cpu_s": round(sum(used.values()), 2)}
        if len(used) > 1:
            for kind in sorted({name.rstrip("0123456789-") for name in used}):
                of_kind = (seconds for name, seconds in used.items() if name.startswith(kind))
                row[f"{kind}_cpu_s"] = round(sum(of_kind), 2)
        return row

    def client(self, module: str, *arguments: str) -> list[str]:
        """The command of a client from `tests/bench/clients`."""
        url = self.security.service_url(self.server.port, self.server.port_tls)
        return [sys.executable, "-m", f"{CLIENTS}.{module}", url, *arguments]

    def perf(self, command: str, *arguments: str) -> list[str]:
        """The command of a load by pulsar-perf."""
        flags = self.security.perf_flags(self.server.port_tls)
        return [str(self._perf), command, *flags, *arguments]

    def python(self, module: str, *arguments: str) -> tuple[dict[str, float], Row]:
        output, row = self.measured(*self.client(module, *arguments))
        figures: dict[str, float] = json.loads(output.strip().splitlines()[-1])
        return figures, row


def _per_message(row: Row, messages: float) -> Row:
    row["messages"] = int(messages)
    for key in [key for key in row if key.endswith("cpu_s")]:
        row[key[:-1] + "us"] = round(float(row[key] or 0) / max(messages, 1) * 1e6, 2)
    return row


def produce(size: int, *flags: str) -> Callable[[Load], Row]:
    """Runs pulsar-perf produce without a rate limit."""

    def scenario(load: Load) -> Row:
        output, row = load.measured(
            *load.perf(
                "produce",
                *("-r", "2000000", "-s", str(size), "-time", str(load.seconds)),
                # pulsar-perf queues without bound otherwise: by bytes, unbatched by messages,
                # because 64 MiB of small ones are more objects than its heap holds.
                *(("-o", "5000") if "-db" in flags else ("-ml", "64M")),
                *flags,
                load.topic("produce"),
            )
        )
        rates = [float(rate) for rate in re.findall(r"produced:.*?---\s+([\d.]+) msg/s", output)]
        sent = re.search(r"Aggregated throughput stats --- (\d+) records sent", output)
        row["rate"] = round(rates[-1]) if rates else None
        row["errors"] = len(re.findall(r"Exception|ERROR", output))
        return _per_message(row, int(sent.group(1)) if sent else 0)

    return scenario


def drain(*flags: str) -> Callable[[Load], Row]:
    """Reads a backlog of a million 100-byte messages by a new consumer."""

    def scenario(load: Load) -> Row:
        topic = load.topic("drain")
        load.python("subscribe", topic, "drain")
        count = str(DRAIN_MESSAGES + 1_000)
        limit = flags or ("-ml", "64M")
        load.run(*load.perf("produce", "-r", "2000000", *limit, "-s", "100", "-m", count, topic))
        consume = ("-ss", "drain", "-sp", "Earliest", "-q", "10000", "-m", str(DRAIN_MESSAGES))
        output, row = load.measured(*load.perf("consume", *consume, topic))
        found = re.search(r"(\d+) records received --- ([\d.]+) msg/s", output)
        row["rate"] = round(float(found.group(2))) if found else None
        return _per_message(row, int(found.group(1)) if found else 0)

    return scenario


def latency(load: Load) -> Row:
    """Publishes 1,000 unbatched 1 KiB messages a second by the official wheel."""
    figures, row = load.python("latency", load.topic("latency"), "1000", "15", "1024")
    row.update(figures)
    return _per_message(row, figures["sent"])


def wheel(mode: str) -> Callable[[Load], Row]:
    """Sends 200,000 messages asynchronously by the official wheel."""

    def scenario(load: Load) -> Row:
        figures, row = load.python("produce", load.topic("wheel"), "200000", "1024", mode)
        row["rate"] = figures["rate"]
        return _per_message(row, figures["messages"])

    return scenario


def transactions(
    messages: int, topics: int, *, at_once: int, count: int, connections: int = 0
) -> Callable[[Load], Row]:
    """Commits transactions of `messages` messages to `topics` topics by a raw client.

    Both servers need `--set transactionCoordinatorEnabled=true`.
    """

    def scenario(load: Load) -> Row:
        numbers = (messages, topics, at_once, count, connections)
        arguments = map(str, (load.topic("txn"), *numbers))
        figures, row = load.python("transactions", *arguments)
        row.update(figures)
        row["cpu_us_per_txn"] = round(float(row["cpu_s"] or 0) / figures["transactions"] * 1e6)
        return row

    return scenario


def perf_transactions(messages: int, topics: int) -> Callable[[Load], Row]:
    """Runs pulsar-perf transaction with one thread: `messages` messages to each topic.

    Both servers need `--set transactionCoordinatorEnabled=true`.
    """

    def scenario(load: Load) -> Row:
        produced = (part for _ in range(topics) for part in ("--topics-p", load.topic("txn")))
        counts = ("-nmp", str(messages), "-nmc", "0")
        output, row = load.measured(
            *load.perf(
                *("transaction", "-time", str(load.seconds), *counts, *produced),
                *("--topics-c", load.topic("consumed")),
            )
        )
        found = re.search(r"(\d+) transaction executed --- ([\d.]+) transaction/s", output)
        if found is None:
            raise SystemExit(f"pulsar-perf printed no result; see {load.log}")
        failed = re.findall(r"(\d+) (?:transaction (?:open|end)|message send) failed", output)
        row["rate"] = round(float(found.group(2)))
        row["failed"] = sum(map(int, failed))
        row["cpu_us_per_txn"] = round(float(row["cpu_s"] or 0) / int(found.group(1)) * 1e6)
        return row

    return scenario


def idle(load: Load) -> Row:
    """Measures ten idle seconds."""
    before = cpu_seconds(load.server)
    time.sleep(10)
    resident, peak = memory_mib(load.server)
    used = float(load.cpu_since(before)["cpu_s"] or 0)
    return {
        "rss_mib": round(resident),
        "pss_mib": round(shared_memory_mib(load.server)),
        "peak_mib": round(peak),
        "cpu_pct": round(used * 10, 2),
    }


def idle_topics(load: Load) -> Row:
    """Measures 10,000 idle topics, each with a subscription and a closed producer."""
    before, _ = memory_mib(load.server)
    started, cpu = time.monotonic(), cpu_seconds(load.server)
    load.python("topics", load.topic("idle"), str(IDLE_TOPICS))
    after, _ = memory_mib(load.server)
    return {
        "kib_per_topic": round((after - before) * 1024 / IDLE_TOPICS, 2),
        "rss_mib": round(after),
        "seconds": round(time.monotonic() - started, 1),
        **load.cpu_since(cpu),
    }


def idle_connections(load: Load) -> Row:
    """Measures connections that have sent CONNECT only."""
    before, _ = memory_mib(load.server)
    cpu = cpu_seconds(load.server)
    clients = subprocess.Popen(
        load.client("idle_connections", str(IDLE_CONNECTIONS)),
        env={**os.environ, **load.security.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert clients.stdout is not None
    figures: Row = json.loads(clients.stdout.readline())
    cpu_s = float(load.cpu_since(cpu)["cpu_s"] or 0)
    after, _ = memory_mib(load.server)
    clients.communicate("end\n")
    return {
        "connect_cpu_ms": round(cpu_s / IDLE_CONNECTIONS * 1e3, 3),
        "connects_per_cpu_s": round(IDLE_CONNECTIONS / cpu_s),
        "kib_per_connection": round((after - before) * 1024 / IDLE_CONNECTIONS, 2),
        "rss_mib": round(after),
        **figures,
    }


def restart(load: Load) -> Row:
    """Restarts with a backlog of 1 GiB in 100 topics; kills Magnetar with -9 before."""
    topic = load.topic("restart")
    names = [f"{topic}-{index}" for index in range(BACKLOG_TOPICS)]
    load.run(*load.client("subscribe_each", "restart", *names))
    load.run(
        *load.perf(
            *("produce", "-r", "2000000", "-ml", "64M", "-s", "1024"),
            *("-t", str(BACKLOG_TOPICS), "-m", str(BACKLOG_MESSAGES), topic),
        )
    )
    load.server.stop()
    return {"ready_s": round(load.server.start(), 3)}


SCENARIOS: dict[str, Callable[[Load], Row]] = {
    "idle": idle,
    "latency": latency,
    "wheel 1 KiB batched": wheel("batched"),
    "wheel 1 KiB unbatched": wheel("unbatched"),
    "1 KiB batched": produce(1024),
    "1 KiB batched, 10 partitions": produce(1024, "-np", "10"),
    "1 KiB unbatched": produce(1024, "-db"),
    "1 KiB unbatched, 10 partitions": produce(1024, "-db", "-np", "10"),
    "100 B batched": produce(100),
    "100 B batched, 10 partitions": produce(100, "-np", "10"),
    "100 B unbatched": produce(100, "-db"),
    "100 B unbatched, 10 partitions": produce(100, "-db", "-np", "10"),
    **{
        f"transactions, {messages} messages, {topics} topics, {at_once} at once": transactions(
            messages, topics, at_once=at_once, count=count
        )
        for at_once, count in ((1, 500), (64, 8_000))
        for messages, topics in ((1, 1), (10, 1), (10, 8), (100, 8))
    },
    "transactions, 1 messages, 1 topics, 64 on one connection": transactions(
        1, 1, at_once=64, count=8_000, connections=1
    ),
    **{
        f"pulsar-perf transaction, {messages} messages, {topics} topics": perf_transactions(
            messages, topics
        )
        for messages in (1, 10, 100)
        for topics in (1, 8)
    },
    "drain batched": drain(),
    "drain unbatched": drain("-db", "-o", "5000"),
    "idle topics": idle_topics,
    "idle connections": idle_connections,
    "restart, 1 GiB in 100 topics": restart,
}
