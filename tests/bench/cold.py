"""Compares catch-up reads of cold data with those from bookies: one topic, the official client.

    python -m tests.bench.cold [--mib 256] [--size 1024] [--batched] [--s3] [--json FILE]

Runs a cluster of processes on this machine. A consumer first drains the topic from the bookies,
with the entry cache off. Then the ledgers are moved to a folder (or to moto's S3 server), the
bookies delete them, and a consumer drains the topic again through a broker that was just started,
so that the import of Arrow is included. Prints the rate, and the CPU of broker, bookies and client
per message. The goal: a cold drain has at least half the rate of a warm one.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pulsar
from tests.support.cluster_processes import running_cluster
from tests.support.offload_files import move
from tests.support.s3 import running_s3

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Role
from magnetar.core.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.store_url import open_store
from magnetar.offload.file_layout import ROW_GROUP_BYTES
from magnetar.offload.stores import FILESYSTEM, StoreSpec

MIB = 1 << 20
TOPIC = "persistent://public/default/cold"
LOG_NAME = "public/default/persistent/cold"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """The figures of one drain."""

    source: str
    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    broker_us: float
    bookies_us: float
    client_us: float


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def cpu_of(cluster: LocalCluster, role: Role) -> float:
    return sum(cpu_s(each.process.pid) for each in cluster.named(role) if each.process is not None)


@contextmanager
def client_of(cluster: LocalCluster) -> Iterator[pulsar.Client]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(cluster.directory / "client.log"))
    with closing(pulsar.Client(cluster.service_url, logger=logger)) as client:
        yield client


def publish(cluster: LocalCluster, count: int, size: int, *, batched: bool) -> None:
    payload = os.urandom(size)
    with client_of(cluster) as client:
        producer = client.create_producer(
            TOPIC,
            batching_enabled=batched,
            batching_max_messages=100,
            batching_max_publish_delay_ms=5,
            max_pending_messages=2000,
            block_if_queue_full=True,
        )
        for _ in range(count):
            producer.send_async(payload, lambda *_: None)
        producer.flush()
        producer.close()


def drain(cluster: LocalCluster, source: str, count: int, size: int) -> Row:
    roles = (Role.BROKER, Role.BOOKIE)
    before = [*(cpu_of(cluster, role) for role in roles), time.process_time()]
    with client_of(cluster) as client:
        started = time.perf_counter()
        reader = client.create_reader(
            TOPIC, pulsar.MessageId.earliest, receiver_queue_size=5000, reader_name=source
        )
        for _ in range(count):
            reader.read_next(60_000)
        seconds = time.perf_counter() - started
        reader.close()
    after = [*(cpu_of(cluster, role) for role in roles), time.process_time()]
    costs = [(end - begin) * 1e6 / count for begin, end in zip(before, after, strict=True)]
    return Row(source, count, seconds, count / seconds, count * size / seconds / 1e6, *costs)


async def move_all(cluster: LocalCluster, spec: StoreSpec) -> int:
    """Moves all closed ledgers; the open one stays on the bookies."""
    clock = SystemClock()
    store = await open_store(cluster.metadata_url, clock)
    bookies = RegisteredBookies(store, clock, client="bench")
    await bookies.start()
    ledgers = LedgerClient(store, bookies, clock)
    try:
        key = managed_ledger_key(LOG_NAME)
        stored = await store.get(key)
        assert stored is not None
        items = [i for i in decode_managed_ledger(key, stored.value).ledgers if i.closed_ms]
        for item in items:
            await move(store, ledgers, LOG_NAME, item.ledger_id, spec, group_bytes=ROW_GROUP_BYTES)
        return len(items)
    finally:
        await ledgers.close()
        await bookies.stop()
        await store.close()


def table(rows: list[Row]) -> str:
    lines = [
        "| source | msg/s | MB/s | broker µs | bookies µs | client µs |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.source} | {row.messages_per_s:,.0f} | {row.mb_per_s:.1f} | {row.broker_us:.1f} "
        f"| {row.bookies_us:.1f} | {row.client_us:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--batched", action="store_true", help="100 messages an entry")
    parser.add_argument("--s3", action="store_true", help="files on moto's S3 server")
    parser.add_argument("--json", type=Path, help="also as JSON, to this file")
    given = parser.parse_args()
    count = given.mib * MIB // given.size
    with ExitStack() as opened:
        root = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="cold-bench-")))
        spec = StoreSpec(FILESYSTEM, str(root / "cold"))
        if given.s3:
            spec = opened.enter_context(running_s3(root))
        cluster = opened.enter_context(
            running_cluster(
                root,
                bookies=1,
                brokers=1,
                ensemble_size=1,
                write_quorum=1,
                ack_quorum=1,
                ledger_rollover_min_minutes=0,
                ledger_size_max_mb=64,
                retention_minutes=-1,
                retention_size_mb=-1,
                cache_size_mb=0,
                offload_driver=spec.driver,
                offload_folder=spec.bucket,
            )
        )
        publish(cluster, count, given.size, batched=given.batched)
        rows = [drain(cluster, "warm", count, given.size)]
        cluster_restart(cluster)
        publish(cluster, 1, given.size, batched=False)  # in a new ledger: all others are closed
        moved = asyncio.run(move_all(cluster, spec))
        rows.append(drain(cluster, "cold", count, given.size))
        rows.append(drain(cluster, "cold again", count, given.size))
        print(table(rows))
        ratio = rows[1].messages_per_s / rows[0].messages_per_s
        print(f"{moved} ledgers in files; cold at {ratio:.2f} of warm")
        if given.json:
            given.json.write_text(json.dumps([asdict(row) for row in rows]))


def cluster_restart(cluster: LocalCluster) -> None:
    """Restarts the broker, which closes the newest ledger and empties its caches."""
    (broker,) = cluster.named(Role.BROKER)
    cluster.stop(broker.name)
    cluster.start(broker.name)
    cluster.wait_ready([broker.name])


if __name__ == "__main__":
    main()
