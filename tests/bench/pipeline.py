"""The data pipeline on a large input: publish, offload, and read back from cold storage.

    python -m tests.bench.pipeline [--gib 10] [--partitions 8] [--json]

Runs a cluster of processes on this machine. The official client publishes the flights of `make
demo` and a topic of batched random messages. `magnetar job offload` writes every ledger to files,
and the bookies delete them. Then the official client reads all messages again, through the broker,
and Spark reads the files directly. Both must get the sent messages, byte for byte. Prints rates,
and the CPU of the brokers.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import pulsar
import pyarrow as pa
from tests.bench.pipeline_data import Order, Tally, payloads
from tests.bench.spark import CLOCK_TICKS, MIB, quiet_client, tree_cpu_s
from tests.support.cluster_processes import brokers, running_cluster

from magnetar.cli.demo.flights import load
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Role
from magnetar.core.clock import SystemClock
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.store_url import StoreOptions, open_store

FLIGHTS: Final = "persistent://public/default/flights"
GENERATED: Final = "persistent://public/default/generated"
LEDGER_MB: Final = 256
RECEIVE_TIMEOUT_MS: Final = 60_000
HTTP_TIMEOUT_S: Final = 60.0

T = TypeVar("T")


def broker_cpu_s(cluster: LocalCluster) -> float:
    """CPU seconds of all brokers so far."""
    ticks = 0
    for member in cluster.named(Role.BROKER):
        assert member.process is not None
        stat = Path(f"/proc/{member.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, stat[11:13]))
    return ticks / CLOCK_TICKS


class Steps:
    """Runs the steps one by one and prints the cost of each."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.rows: list[dict[str, Any]] = []

    def run(self, name: str, work: Callable[[], T], size_bytes: int = 0, count: int = 0) -> T:
        wall, cpu, broker = time.perf_counter(), tree_cpu_s(), broker_cpu_s(self._cluster)
        result = work()
        wall, cpu = time.perf_counter() - wall, tree_cpu_s() - cpu
        broker = broker_cpu_s(self._cluster) - broker
        row = {
            "step": name,
            "wall_s": round(wall, 1),
            "cpu_s": round(cpu, 1),
            "broker_cpu_s": round(broker, 2),
            "broker_core_percent": round(100 * broker / wall, 1),
        }
        if size_bytes:
            row |= {
                "mb_per_s": round(size_bytes / wall / 1e6),
                "mb_per_core_s": round(size_bytes / max(cpu, 0.01) / 1e6),
                "messages_per_core_s": round(count / max(cpu, 0.01)),
            }
        self.rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        return result


def request(cluster: LocalCluster, method: str, path: str, document: object) -> None:
    """One admin request; raises urllib's errors."""
    call = urllib.request.Request(  # noqa: S310
        brokers(cluster)[0].http_url + "/admin/v2/" + path,
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    urllib.request.urlopen(call, timeout=HTTP_TIMEOUT_S).close()  # noqa: S310


def publish_flights(cluster: LocalCluster) -> Tally:
    sent = Tally()
    with (
        closing(quiet_client(cluster)) as client,
        closing(
            client.create_producer(FLIGHTS, batching_enabled=True, block_if_queue_full=True)
        ) as producer,
    ):
        for flight in load():
            sent.add(flight.payload)
            producer.send_async(flight.payload, ignored, partition_key=flight.key)
        producer.flush()
    return sent


def ignored(_result: pulsar.Result, _message_id: pulsar.MessageId) -> None:
    """The callback of sends: `flush` raises if a message gets no receipt."""


def publish_generated(cluster: LocalCluster, partitions: int, count: int, size: int) -> Tally:
    """Publishes `count` messages to each partition in turn."""
    sent = Tally()
    failed: list[pulsar.Result] = []

    def receipted(result: pulsar.Result, _message_id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    with ExitStack() as stack:
        client = stack.enter_context(closing(quiet_client(cluster)))
        producers = [
            stack.enter_context(
                closing(
                    client.create_producer(
                        f"{GENERATED}-partition-{index}",
                        batching_enabled=True,
                        batching_max_messages=1000,
                        batching_max_allowed_size_in_bytes=MIB,
                        batching_max_publish_delay_ms=10,
                        max_pending_messages=4000,
                        block_if_queue_full=True,
                    )
                )
            )
            for index in range(partitions)
        ]
        sources = [payloads(index, count, size) for index in range(partitions)]
        for row in zip(*sources, strict=True):
            for producer, payload in zip(producers, row, strict=True):
                sent.add(payload)
                producer.send_async(payload, receipted)
        for producer in producers:
            producer.flush()
    assert not failed, f"{len(failed)} not receipted: {failed[0]}"
    return sent


def consume(cluster: LocalCluster, topic: str, count: int, *, ordered: bool) -> Tally:
    """Reads all messages from the first on, by a new subscription."""
    got, order = Tally(), Order()
    with (
        closing(quiet_client(cluster)) as client,
        closing(
            client.subscribe(
                topic,
                f"again-{time.time_ns()}",
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=5000,
            )
        ) as consumer,
    ):
        for _ in range(count):
            payload = consumer.receive(RECEIVE_TIMEOUT_MS).data()
            got.add(payload)
            if ordered:
                order.check(payload)
    return got


def job(cluster: LocalCluster, store: Path, *words: str) -> dict[str, Any]:
    """Runs `magnetar job offload`; returns its summary, raises if it fails."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "magnetar.cli.main", "job", "offload", "--json"),
            *("--metadata-url", cluster.metadata_url, "--admin-url", brokers(cluster)[0].http_url),
            *("--master", "local[2]", "--no-progress", "--store", store.as_uri(), *words),
        ],
        stdout=subprocess.PIPE,
        check=False,
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    if done.returncode:
        raise RuntimeError(f"offload ended with {done.returncode}: {summary}")
    return summary


def in_spark(cluster: LocalCluster, topic: str) -> Tally:
    """Reads all messages by Spark, in a session of its own."""
    from pyspark.sql import SparkSession

    import magnetar_spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        magnetar_spark.register(spark)
        table = (
            spark.read.format("pulsar")
            .options(**{"metadata.url": cluster.metadata_url, "topic": topic})
            .schema("value binary")
            .load()
        )
        found = table.mapInArrow(tallied, "count long, size long, digest string").collect()
        return Tally().merge(Tally(row["count"], row["size"], int(row["digest"])) for row in found)
    finally:
        spark.stop()


def tallied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields one row per task: the tally of its values."""
    tally = Tally()
    for batch in batches:
        for value in batch.column(0):
            tally.add(memoryview(value.as_buffer()))
    yield pa.RecordBatch.from_pydict(
        {"count": [tally.count], "size": [tally.size_bytes], "digest": [str(tally.digest)]}
    )


async def ledgers_kept(cluster: LocalCluster) -> list[int]:
    """Returns the topics' ledgers that bookies still have."""
    store = await open_store(cluster.metadata_url, SystemClock(), StoreOptions())
    try:
        kept: list[int] = []
        for found in await store.list(managed_ledger_key("public/default/persistent/")):
            for item in decode_managed_ledger(found.key, found.value).ledgers:
                if item.entries and await store.get(ledger_key(item.ledger_id)) is not None:
                    kept.append(item.ledger_id)
        return kept
    finally:
        await store.close()


def compared(steps: Steps, cluster: LocalCluster, given: argparse.Namespace, store: Path) -> None:
    count = int(given.gib * (1 << 30)) // given.size // given.partitions
    request(cluster, "POST", "namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})  # fmt: skip
    request(cluster, "PUT", "persistent/public/default/generated/partitions", given.partitions)
    flights = steps.run("publish flights", lambda: publish_flights(cluster))
    total = count * given.partitions
    size = total * given.size
    sent = steps.run(
        "publish generated",
        lambda: publish_generated(cluster, given.partitions, count, given.size),
        size,
        total,
    )
    if given.warm:
        again = steps.run(
            "official client, warm",
            lambda: consume(cluster, GENERATED, total, ordered=True), size, total,
        )  # fmt: skip
        assert again == sent
    names = ["flights", *(f"generated-partition-{index}" for index in range(given.partitions))]
    for name in names:  # closes the newest ledgers, too
        request(cluster, "POST", f"persistent/public/default/{name}/terminate", None)
    summary = steps.run(
        "offload and release",
        lambda: job(cluster, store, "--topic", FLIGHTS, "--topic", GENERATED,
                    "--threshold", "0", "--deletion-lag", "0"),
        size + flights.size_bytes,
        total + flights.count,
    )  # fmt: skip
    # The job's processes have ended; its summary has the CPU of its executors.
    steps.rows[-1] |= {"cpu_s": summary["metrics"]["executorCpuSeconds"]}
    steps.rows[-1].pop("messages_per_core_s")
    steps.rows[-1].pop("mb_per_core_s")
    print(json.dumps(summary["metrics"]), file=sys.stderr, flush=True)
    kept = asyncio.run(ledgers_kept(cluster))
    assert not kept, f"bookies still have the ledgers {kept}"
    for topic, expected, ordered in ((FLIGHTS, flights, False), (GENERATED, sent, True)):
        got = steps.run(
            f"official client, cold: {topic.rpartition('/')[2]}",
            partial(consume, cluster, topic, expected.count, ordered=ordered),
            expected.size_bytes,
            expected.count,
        )
        assert got == expected, f"{topic}: the client got {got}, sent was {expected}"
        got = steps.run(
            f"Spark, cold: {topic.rpartition('/')[2]}",
            partial(in_spark, cluster, topic),
            expected.size_bytes,
            expected.count,
        )
        assert got == expected, f"{topic}: Spark got {got}, sent was {expected}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=10, help="of generated values")
    parser.add_argument("--size", type=int, default=1024, help="of one value, in bytes")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--warm", action="store_true", help="read by the client before, as well")
    parser.add_argument("--json", action="store_true", help="the rows as one document")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        running_cluster(
            Path(directory), bookies=1, brokers=1, managedLedgerMaxSizePerLedgerMbytes=LEDGER_MB,
            managedLedgerMinLedgerRolloverTimeMinutes=0, managedLedgerDefaultEnsembleSize=1,
            managedLedgerDefaultWriteQuorum=1, managedLedgerDefaultAckQuorum=1,
            managedLedgerMaxEntriesPerLedger=1_000_000,
        ) as cluster,
    ):  # fmt: skip
        store = Path(directory) / "cold"
        store.mkdir()
        steps = Steps(cluster)
        compared(steps, cluster, given, store)
    if given.json:
        print(json.dumps(steps.rows))
    print("what was sent came back, byte for byte", file=sys.stderr)


if __name__ == "__main__":
    main()
