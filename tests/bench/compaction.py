"""Compaction of many messages over many keys, against a reference computed apart.

    python -m tests.bench.compaction [--messages 10000000] [--keys 1000000] [--json]

Runs a cluster of processes on this machine. The official client publishes batches of small messages
whose keys follow Zipf's law; every tenth is a tombstone. Then `magnetar job compact` runs in a
process of its own in `local[2]`, with bounded memory of the driver. A table has the number of the
latest message of each key; the messages in the artifact's files must match it exactly. Then a tenth
more is published, and compacted with the artifact.

Prints time, CPU, and the peak memory of the job's processes together (driver, JVM, Python workers),
as proportional set size.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import numpy as np
import pulsar
from numpy.typing import NDArray
from tests.bench.spark import CLOCK_TICKS, MIB, quiet_client
from tests.support.cluster_processes import brokers, running_cluster

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.compaction.records import CompactionRecord, compaction_key, decode_compaction
from magnetar.core.clock import SystemClock
from magnetar.metadata.store_url import open_store
from magnetar.offload.file_format import EntryFile
from magnetar.offload.stores import open_object_store
from magnetar.wire.batch import messages_of

TOPIC: Final = "persistent://public/default/compacted"
LEDGER: Final = "public/default/persistent/compacted"
CHUNK: Final = 100_000
TOMBSTONES: Final = 0.1
VALUE_BYTES: Final = 32
SAMPLE_S: Final = 0.25
MASTER: Final = "local[2]"


class Keys:
    """Draws keys by Zipf's law with exponent 1, and records the latest message of each."""

    def __init__(self, keys: int, seed: int = 7) -> None:
        self._rng = np.random.default_rng(seed)
        weights = np.cumsum(1.0 / np.arange(1, keys + 1))
        self._below = weights / weights[-1]
        self.latest: NDArray[np.int64] = np.full(keys, -1, np.int64)
        """By key: the number of its latest message; the lowest bit is 1 if that has a value."""
        self.sent = 0

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        keys = np.searchsorted(self._below, self._rng.random(count)).astype(np.int64)
        alive = self._rng.random(count) >= TOMBSTONES
        numbers = np.arange(self.sent, self.sent + count, dtype=np.int64)
        np.maximum.at(self.latest, keys, numbers << 1 | alive)
        self.sent += count
        return keys, alive

    @property
    def living(self) -> int:
        return int(((self.latest >= 0) & (self.latest & 1 == 1)).sum())


def produce(cluster: LocalCluster, keys: Keys, messages: int) -> None:
    padding = b"." * (VALUE_BYTES - 8)
    with (
        closing(quiet_client(cluster)) as client,
        closing(
            client.create_producer(
                TOPIC,
                batching_enabled=True,
                batching_max_messages=1000,
                batching_max_publish_delay_ms=10,
                max_pending_messages=20_000,
                block_if_queue_full=True,
                compression_type=pulsar.CompressionType.LZ4,
            )
        ) as producer,
    ):
        while messages > 0:
            count = min(CHUNK, messages)
            first = keys.sent
            drawn, alive = keys.draw(count)
            for number, (key, has_value) in enumerate(
                zip(drawn.tolist(), alive.tolist(), strict=True), first
            ):
                value = number.to_bytes(8) + padding if has_value else b""
                producer.send_async(value, _sent, partition_key=f"key-{key}")
            messages -= count
        producer.flush()


def _sent(result: Any, _id: Any) -> None:
    if result != pulsar.Result.Ok:
        raise RuntimeError(f"a message was refused: {result}")


@dataclass
class Sampled:
    """The descendants of a process, sampled while it runs."""

    pid: int
    peak_bytes: int = 0
    cpu_s: float = 0.0
    """CPU of the living processes, and of the children that they waited for."""
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            pids = list(_tree(self.pid))
            self.peak_bytes = max(self.peak_bytes, sum(map(_memory, pids)))
            self.cpu_s = max(self.cpu_s, sum(map(_ticks, pids)) / CLOCK_TICKS)

    def stop(self) -> None:
        self._over.set()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:
            continue
        for child in below:
            yield from _tree(int(child))


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def compact(cluster: LocalCluster, folder: Path, memory: str) -> dict[str, Any]:
    """Runs the job; returns its summary and its cost."""
    command = [
        *(sys.executable, "-m", "magnetar.cli.main", "job", "compact", "--topic", TOPIC),
        *("--metadata-url", cluster.metadata_url, "--admin-url", brokers(cluster)[0].http_url),
        *("--store", folder.as_uri(), "--master", MASTER, "--parallelism", "2"),
        *("--conf", f"spark.driver.memory={memory}", "--json", "--no-progress"),
    ]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
        sampled = Sampled(job.pid)
        watching = threading.Thread(target=sampled.watch)
        watching.start()
        output, _ = job.communicate()
        sampled.stop()
        watching.join()
    if job.returncode:
        raise RuntimeError(f"the job ended with {job.returncode}: {output.decode()}")
    document: dict[str, Any] = json.loads(output)
    return document | {
        "wall_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(sampled.cpu_s, 1),
        "peak_mib": sampled.peak_bytes >> 20,
    }


async def check(cluster: LocalCluster, keys: Keys) -> CompactionRecord:
    """Raises AssertionError if the artifact differs from the table."""
    store = await open_store(cluster.metadata_url, SystemClock())
    try:
        stored = await store.get(compaction_key(LEDGER))
    finally:
        await store.close()
    assert stored is not None
    record = decode_compaction(stored.key, stored.value)
    files = open_object_store(record.store)
    seen = np.zeros(len(keys.latest), np.bool_)
    for each in record.files:
        file = await EntryFile.open(files, each.path)
        for group in file.groups:
            for entry in await file.read_group(group.number):
                for single, value in messages_of(entry.data)[1]:
                    if single is None or single.compacted_out:
                        continue
                    key = int(single.partition_key.removeprefix("key-"))
                    assert keys.latest[key] == int.from_bytes(value[:8]) << 1 | 1, key
                    assert not seen[key], f"key {key} is there twice"
                    seen[key] = True
    assert int(seen.sum()) == keys.living, (int(seen.sum()), keys.living)
    return record


def rows(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    keys = Keys(args.keys)
    with running_cluster(
        folder / "cluster",
        bookies=args.bookies,
        brokers=1,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        retention_minutes=-1,
        retention_size_mb=-1,
    ) as cluster:
        for name, messages in (
            ("whole", args.messages),
            ("a tenth more", args.messages // 10),
        ):
            began = time.perf_counter()
            produce(cluster, keys, messages)
            produced_s = time.perf_counter() - began
            done = compact(cluster, folder / "store", args.memory)
            record = asyncio.run(check(cluster, keys))
            metrics = done["metrics"]
            yield {
                "step": name,
                "published": messages,
                "publish_s": round(produced_s, 1),
                "keys": keys.living,
                "read": metrics["messagesRead"],
                "kept": metrics["messagesKept"],
                "files": len(record.files),
                "artifact_mib": round(record.length_bytes / MIB, 1),
                "wall_s": done["wall_s"],
                "cpu_s": done["cpu_s"],
                "messages_per_cpu_s": round(metrics["messagesRead"] / max(done["cpu_s"], 0.1)),
                "peak_mib": done["peak_mib"],
                "equal": True,
            }


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.compaction", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--bookies", type=int, default=1)
    parser.add_argument("--memory", default="1g", help="of the driver's JVM")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for row in rows(args, Path(folder)):
            found.append(row)
            if not args.json:
                print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        if args.json:
            print(json.dumps({"cores": os.cpu_count(), "steps": found}))


if __name__ == "__main__":
    main()
