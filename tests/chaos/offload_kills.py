"""`magnetar job offload`, killed over and over: `python -m tests.chaos.offload_kills --kills 50`.

Rounds (`spark_kills`) start the job on a topic that has grown since, and kill what runs it: all at
once, the driver alone, executors, Python workers; or they stop an executor for so long that its
work is done elsewhere, and wake it. Most strike behind an attempt to write a file. At the end the
job runs once more to its end, and then

- every entry is there, byte for byte as the bookies had it before the first job;
- every record of a file has its file, whole, and the bookies have what was not released;
- there is no file that no record names, and no attempt.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
from tests.chaos.followed import Followed
from tests.chaos.spark_kills import MOMENT_TIMEOUT_S, Order, Rounds, command, wait_until
from tests.chaos.spark_processes import LOCAL, SparkJob
from tests.support.cluster_processes import running_cluster

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import parse_topic
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.ledgers import topic_log
from magnetar.jobs.log.ranges import Range, Window, ranges_of
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.store import EventKind, MetadataStore
from magnetar.metadata.store_url import StoreOptions, open_store
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    JOBS_PREFIX,
    OffloadRecord,
    parse_attempt_key,
)
from magnetar.offload.repository import OffloadRepository
from magnetar.offload.stores import open_object_store
from magnetar.offload.verify import verify_file
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings

JOB_TIMEOUT_S = 600.0
ANYWHERE = 0.25
"""Of the kills: at any moment of a run, its start included."""
STRIKE_S_MAX = 1.0
MESSAGES_A_ROUND = 1000
LEDGER_ENTRIES = 10
RANGE_BYTES = 1 << 20
CLUSTER: dict[str, Any] = {
    "ledger_rollover_min_minutes": 0,
    "ledger_entries_max": LEDGER_ENTRIES,
    "retention_minutes": -1,
    "retention_size_mb": -1,
}


@dataclass
class Campaign:
    """One topic of a cluster, a folder as the store, and what the bookies had."""

    metadata_url: str
    topic: str
    folder: Path
    attempts: Followed
    rng: random.Random
    grow: Callable[[], None]
    """Publishes more to the topic."""
    entries: dict[Position, bytes] = field(default_factory=dict)
    anywhere: float = ANYWHERE
    strike_s_max: float = STRIKE_S_MAX
    """Behind an attempt."""
    run_s: float = 20.0
    """How long a run takes, as far as is known."""
    runs: int = 0
    _seen: int = 0
    _begun_s: float = 0.0

    @property
    def name(self) -> str:
        return log_name(parse_topic(self.topic))

    def remember(self) -> None:
        """Takes the entries that are new, as the bookies have them."""
        last = max(self.entries, default=EARLIEST)
        self.entries |= self.read(Window(Position(last.ledger_id, last.entry_id + 1)))

    def read(self, window: Window) -> dict[Position, bytes]:
        settings = LogSettings(self.metadata_url)
        ranges, bookies = run(self._planned(settings, window))
        found: dict[Position, bytes] = {}
        with EntryReader(settings, bookies) as reader:
            for each in ranges:
                for entries in reader.read(each):
                    found |= {Position(each.ledger_id, entry): data for entry, data in entries}
        return found

    async def _planned(
        self, settings: LogSettings, window: Window
    ) -> tuple[list[Range], list[BookieRegistration]]:
        async with opened_log(settings) as log:
            found = await topic_log(log, parse_topic(self.topic))
            return list(ranges_of(found, window, RANGE_BYTES)), list(log.bookies.registrations())

    def start(self, master: str, conf: Mapping[str, str]) -> SparkJob:
        """A run on what has grown since the last one."""
        self.grow()
        self.remember()
        return self._started(master, conf, self.rng.choice(["0", "0", "-1"]))

    def _started(self, master: str, conf: Mapping[str, str], lag: str) -> SparkJob:
        self.runs += 1
        self._begun_s, self._seen = time.monotonic(), len(self.attempts.keys)
        offload = ["offload", "--topic", self.topic, "--metadata-url", self.metadata_url]
        offload += ["--store", self.folder.as_uri(), "--threshold", "0", "--deletion-lag", lag]
        return SparkJob(self.folder.parent / "jobs", self.runs, master, conf, offload)

    def moment(self, job: SparkJob) -> bool:
        """Mostly behind the next attempt to write a file; at times at any, the start included."""
        if self.rng.random() < self.anywhere:
            waited = self.rng.uniform(0, self.run_s)
        else:
            wait_until(lambda: job.over or len(self.attempts.keys) > self._seen, MOMENT_TIMEOUT_S)
            waited = self.rng.uniform(0, self.strike_s_max)
        over = wait_until(lambda: job.over, waited)
        self._seen = len(self.attempts.keys)
        return not over

    def again(self) -> Callable[[], bool]:
        """Whether a ledger that is being written now was begun again since."""
        under_way, known = run(self._open_ledgers()), len(self.attempts.keys)

        def is_so() -> bool:
            since = {parse_attempt_key(key)[1] for key in self.attempts.keys[known:]}
            return not since.isdisjoint(under_way)

        return is_so

    async def _open_ledgers(self) -> set[int]:
        store = await self._store()
        try:
            attempts = await store.list(ATTEMPTS_PREFIX + self.name)
        finally:
            await store.close()
        return {parse_attempt_key(record.key)[1] for record in attempts}

    async def _store(self) -> MetadataStore:
        return await open_store(self.metadata_url, SystemClock(), StoreOptions())

    def finish(self) -> None:
        """Runs it to its end once no dead job seems alive."""
        run(self._no_job())
        job = self._started(LOCAL, {}, self.rng.choice(["0", "-1"]))
        try:
            assert job.wait() == 0, job.said
        finally:
            job.kill()
        self.run_s = time.monotonic() - self._begun_s

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
        found = self.read(Window())
        assert found.keys() >= self.entries.keys(), "entries are lost"
        for position, data in self.entries.items():
            assert found[position] == data, f"{position} is not what it was"
        return run(self._check())

    async def _check(self) -> dict[int, OffloadRecord]:
        store = await self._store()
        try:
            assert not await store.list(ATTEMPTS_PREFIX + self.name), "attempts are left"
            live = await OffloadRepository(store).files(self.name)
            files = {ledger_id: file.record for ledger_id, file in live.items()}
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


def publish(client: pulsar.Client, topic: str, count: int, rng: random.Random) -> None:
    """Entries of their own, not faster than ledgers are rolled over."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for number in range(count):
            producer.send_async(rng.randbytes(rng.randrange(1, 4000)), lambda *_: None)
            if number % LEDGER_ENTRIES == 0:
                producer.flush()
        producer.flush()


def campaign(order: Order) -> None:
    """The long form, with a cluster of its own."""
    root, rng, tell = order.root, order.rng, order.tell
    topic = "persistent://public/default/offload-kills"
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(root / "client.log"))
    with (
        running_cluster(root / "cluster", bookies=3, brokers=1, **CLUSTER) as cluster,
        closing(pulsar.Client(cluster.service_url, logger=logger)) as client,
        Followed(cluster.metadata_url, ATTEMPTS_PREFIX) as attempts,
    ):

        def grow() -> None:
            publish(client, topic, MESSAGES_A_ROUND, rng)

        these = Campaign(cluster.metadata_url, topic, root / "store", attempts, rng, grow)
        rounds = Rounds(these, rng, lambda: tell(rounds.told()), until=order.until)
        rounds.whole(order.kinds)
        these.finish()
        files = these.check()
        ledgers = [parse_attempt_key(key)[1] for key in attempts.keys]
    released = sum(bool(file.released_ms) for file in files.values())
    tell(f"{len(these.entries)} entries as they were, {len(files)} files, {released} released")
    tell(f"{len(ledgers)} attempts at {len(set(ledgers))} ledgers")


if __name__ == "__main__":
    command("offload-kills", __doc__.partition("\n")[0], campaign)
