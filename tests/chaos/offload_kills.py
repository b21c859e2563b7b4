"""`magnetar job offload`, killed over and over: `python -m tests.chaos.offload_kills --kills 50`.

A round starts the job on a topic that has grown since, in a session of its own, and kills all of
that session (driver, JVM, Python workers) with SIGKILL: some anywhere, most after the job's first
attempt to write a file. At the end the job runs once more to its end, and then

- every entry is there, byte for byte as the bookies had it before the first job;
- every record of a file has its file, whole, and the bookies have what was not released;
- there is no file that no record names, and no attempt.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
from tests.support.cluster_processes import running_cluster

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.opening import StoreOptions, open_store
from magnetar.metadata.store import EventKind, MetadataStore, Watch
from magnetar.offload.records import ATTEMPTS_PREFIX, JOBS_PREFIX, OffloadRecord
from magnetar.offload.stores import open_object_store
from magnetar.offload.verify import verify_file
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.ledgers import live_files, topic_log
from magnetar_spark.log.planning import Range, Window, ranges_of
from magnetar_spark.log.reading import EntryReader
from magnetar_spark.log.running import run
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.log.topics import log_name

JOB_TIMEOUT_S = 600.0
ANYWHERE = 0.25
"""Of the kills: at any moment of a run, its start included."""
AFTER_ATTEMPT_S_MAX = 2.5
MESSAGES_A_ROUND = 400
RANGE_BYTES = 1 << 20
CLUSTER: dict[str, Any] = {
    "ledger_rollover_min_minutes": 0,
    "ledger_entries_max": 20,
    "retention_minutes": -1,
    "retention_size_mb": -1,
}


@dataclass
class Campaign:
    """One topic of a cluster, a folder as the store, and what the bookies had."""

    metadata_url: str
    topic: str
    folder: Path
    rng: random.Random
    tell: Callable[[str], None] = print
    entries: dict[Position, bytes] = field(default_factory=dict)
    anywhere: float = ANYWHERE
    run_s: float = 20.0
    """How long a run takes, as far as is known."""
    killed: int = 0
    finished: int = 0

    @property
    def name(self) -> str:
        return log_name(parse_topic(self.topic))

    def remember(self) -> None:
        """Takes the entries as they are now; those that are known must be the same."""
        for position, data in self.read().items():
            assert self.entries.setdefault(position, data) == data, f"{position} is another now"

    def read(self) -> dict[Position, bytes]:
        settings = LogSettings(self.metadata_url)
        ranges, bookies = run(self._planned(settings))
        found: dict[Position, bytes] = {}
        with EntryReader(settings, bookies) as reader:
            for each in ranges:
                for entries in reader.read(each):
                    found |= {Position(each.ledger_id, entry): data for entry, data in entries}
        return found

    async def _planned(self, settings: LogSettings) -> tuple[list[Range], list[BookieRegistration]]:
        async with opened_log(settings) as log:
            found = await topic_log(log, parse_topic(self.topic))
            return list(ranges_of(found, Window(), RANGE_BYTES)), list(log.bookies.registrations())

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-m",
            "magnetar.cli.main",
            "job",
            "offload",
            "--topic",
            self.topic,
        ]
        command += ["--metadata-url", self.metadata_url, "--store", self.folder.as_uri()]
        command += ["--threshold", "0", "--master", "local[2]", "--no-progress", *arguments]
        return subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def killed_round(self) -> None:
        """One run that is killed, if it is not faster."""
        lag = self.rng.choice(["0", "0", "-1"])
        process = self.start("--deletion-lag", lag)
        try:
            if self.rng.random() < self.anywhere:
                waited = self.rng.uniform(0, self.run_s)
            else:
                run(self._first_attempt(process))
                waited = self.rng.uniform(0, AFTER_ATTEMPT_S_MAX)
            process.wait(waited)
            self.finished += 1
        except subprocess.TimeoutExpired:
            self.killed += 1
        finally:
            kill_session(process)

    async def _first_attempt(self, process: "subprocess.Popen[bytes]") -> None:
        """Returns when the job has begun a file, or is over."""
        store = await self._store()
        watch = store.watch(ATTEMPTS_PREFIX)
        over = asyncio.ensure_future(asyncio.to_thread(process.wait))
        seen = asyncio.ensure_future(_put(watch))
        try:
            async with asyncio.timeout(JOB_TIMEOUT_S):
                await asyncio.wait([over, seen], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            kill_session(process)
            raise
        finally:
            seen.cancel()
            watch.close()
            await store.close()
            if not over.done():
                over.add_done_callback(lambda _: None)

    async def _store(self) -> MetadataStore:
        return await open_store(self.metadata_url, SystemClock(), StoreOptions())

    def finish(self) -> None:
        """Runs it to its end once no dead job seems alive."""
        run(self._no_job())
        begun = time.monotonic()
        process = self.start("--deletion-lag", self.rng.choice(["0", "-1"]))
        try:
            output, _ = process.communicate(timeout=JOB_TIMEOUT_S)
        finally:
            kill_session(process)
        self.run_s = time.monotonic() - begun
        assert process.returncode == 0, output.decode()

    async def _no_job(self) -> None:
        """Leases of the killed run out by themselves."""
        store = await self._store()
        try:
            watch = store.watch(JOBS_PREFIX)
            left = {record.key for record in await store.list(JOBS_PREFIX)}
            async with asyncio.timeout(JOB_TIMEOUT_S):
                while left:
                    event = await anext(watch)
                    if event.kind is EventKind.DELETE:
                        left.discard(event.record.key)
                    else:
                        left.add(event.record.key)
        finally:
            await store.close()

    def check(self) -> dict[int, OffloadRecord]:
        """What must hold behind a run that went to its end; the live files."""
        found = self.read()
        assert found.keys() >= self.entries.keys(), "entries are lost"
        for position, data in self.entries.items():
            assert found[position] == data, f"{position} is not what it was"
        return run(self._check())

    async def _check(self) -> dict[int, OffloadRecord]:
        store = await self._store()
        try:
            assert not await store.list(ATTEMPTS_PREFIX + self.name), "attempts are left"
            files = await live_files(store, self.name)
            for ledger_id, file in files.items():
                await verify_file(
                    open_object_store(file.store),
                    file.path,
                    ledger_id=ledger_id,
                    last_entry=file.entries - 1,
                    length_bytes=file.length_bytes,
                    checksum=file.checksum,
                )
                there = await store.get(ledger_key(ledger_id)) is not None
                assert there == (not file.released_ms), f"ledger {ledger_id}: {file}"
        finally:
            await store.close()
        named = {self.folder / file.path for file in files.values()}
        assert {path for path in self.folder.rglob("*") if path.is_file()} == named
        return files


async def _put(watch: Watch) -> None:
    async for event in watch:
        if event.kind is EventKind.PUT:
            return


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """Every process of its session, also those that have made groups of their own."""
    while members := _members(process.pid):
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.poll()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _members(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def publish(client: pulsar.Client, topic: str, count: int, rng: random.Random) -> None:
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for _ in range(count):
            producer.send_async(rng.randbytes(rng.randrange(1, 4000)), lambda *_: None)
        producer.flush()


def campaign(
    root: Path, kills: int, seed: int, tell: Callable[[str], None]
) -> dict[int, OffloadRecord]:
    """The long form, with a cluster of its own."""
    rng = random.Random(seed)
    topic = "persistent://public/default/offload-kills"
    with running_cluster(root / "cluster", bookies=3, brokers=1, **CLUSTER) as cluster:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(root / "client.log"))
        with closing(pulsar.Client(cluster.service_url, logger=logger)) as client:
            these = Campaign(cluster.metadata_url, topic, root / "store", rng, tell)
            while these.killed < kills:
                publish(client, topic, MESSAGES_A_ROUND, rng)
                these.remember()
                these.killed_round()
                tell(f"{these.killed} killed, {these.finished} were faster")
            these.finish()
            files = these.check()
    released = sum(bool(file.released_ms) for file in files.values())
    tell(f"{len(these.entries)} entries as they were, {len(files)} files, {released} released")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path, help="where all is kept (default: a new directory)")
    args = parser.parse_args()
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="offload-kills-") as directory:
        tell(f"seed {args.seed}")
        campaign(args.dir or Path(directory), args.kills, args.seed, tell)


if __name__ == "__main__":
    main()
