"""`magnetar job compact`, killed over and over: `python -m tests.chaos.compact_kills --kills 50`.

The rounds are those of `spark_kills`, on a topic that grows before each; Spark does the work, in
parts of 16 MiB. Strikes are behind the attempt's start or behind a file's coming into being. At the
end the job runs once more to its end, and then

- the artifact has of each key the value that was sent last, once, and no key whose last is none;
- every file in the store is one that the topic's record names, live or retired;
- there is no attempt.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import pulsar
from tests.chaos.followed import Followed
from tests.chaos.spark_kills import MOMENT_TIMEOUT_S, Order, Rounds, command, wait_until
from tests.chaos.spark_processes import LOCAL, SparkJob
from tests.spark.conftest import Log
from tests.support.cluster_processes import running_cluster
from tests.support.compact_rig import Batch, CompactRig, write
from tests.support.compaction import messages

from magnetar.compaction.records import ATTEMPTS_PREFIX, JOBS_PREFIX
from magnetar.metadata.store import MetadataStore

KEYS: Final = 1_500
VALUE_BYTES: Final = 16 << 10
BATCH: Final = 8
BATCHES_A_ROUND: Final = 150
TOMBSTONES: Final = 0.1
BEHIND_A_FILE: Final = 0.5
BEHIND_A_FILE_S_MAX: Final = 0.3
BEHIND_THE_START_S_MAX: Final = 6.0
GIVEN_UP_S: Final = 15.0
"""What becomes of an executor that made no file yet is not to be seen from here."""


@dataclass
class Compactions:
    """One topic, and what was sent last of each key."""

    rig: CompactRig
    client: pulsar.Client
    topic: str
    attempts: Followed
    rng: random.Random
    latest: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    _begun: int = 0
    _files: frozenset[str] = frozenset()

    def grow(self) -> None:
        batches: list[Batch] = [
            [self._message() for _ in range(BATCH)] for _ in range(BATCHES_A_ROUND)
        ]
        write(self.client, self.topic, batches)

    def _message(self) -> tuple[str | None, bytes]:
        key = f"k{self.rng.randrange(KEYS)}"
        if self.rng.random() < TOMBSTONES:
            self.latest.pop(key, None)
            return key, b""
        value = self.rng.randbytes(VALUE_BYTES)
        self.latest[key] = crc32(value)
        return key, value

    def start(self, master: str, conf: Mapping[str, str]) -> SparkJob:
        """A run on what has grown since the last one."""
        self.grow()
        return self._started(master, conf)

    def _started(self, master: str, conf: Mapping[str, str]) -> SparkJob:
        self.runs += 1
        self._begun, self._files = len(self.attempts.keys), frozenset(self.rig.files())
        options = self.rig.log.options("")
        compact = ["compact", "--topic", self.topic, "--store", self.rig.folder.as_uri()]
        compact += ["--metadata-url", options["metadata.url"], "--admin-url", options["admin.url"]]
        compact += ["--always-spark"]
        return SparkJob(self.rig.folder.parent / "jobs", self.runs, master, conf, compact)

    def moment(self, job: SparkJob) -> bool:
        """Behind the attempt's start, or behind the next file."""
        wait_until(lambda: job.over or len(self.attempts.keys) > self._begun, MOMENT_TIMEOUT_S)
        if self.rng.random() < BEHIND_A_FILE:
            known = self._files
            wait_until(lambda: job.over or self.rig.files() != known, MOMENT_TIMEOUT_S)
            waited = self.rng.uniform(0, BEHIND_A_FILE_S_MAX)
        else:
            waited = self.rng.uniform(0, BEHIND_THE_START_S_MAX)
        over = wait_until(lambda: job.over, waited)
        self._files = frozenset(self.rig.files())
        return not over

    def again(self) -> Callable[[], bool]:
        """Whether a part was written for the second time since now."""
        before = self._written_twice()
        return lambda: self._written_twice() > before

    def _written_twice(self) -> int:
        """Files are named by their parts: `{folder}/{part}-{…}`."""
        parts = Counter(path.rpartition("-")[0] for path in self.rig.files())
        return sum(count - 1 for count in parts.values())

    def finish(self) -> None:
        """Runs it to its end; no dead job seems alive, as it would not a minute later."""
        self.rig.in_store(_end_leases)
        job = self._started(LOCAL, {})
        try:
            assert job.wait() == 0, job.said
        finally:
            job.kill()

    def check(self) -> int:
        """What must hold behind a run that went to its end; how many keys have a value."""
        left = [
            (key, value)
            for _, _, key, value in messages(self.rig.artifact(self.topic))
            if key is not None and value is not None
        ]
        found = {key: crc32(value) for key, value in left}
        assert len(found) == len(left), "a key is there twice"
        assert found == self.latest
        record = self.rig.record(self.topic)
        assert record is not None
        named = {file.path for file in record.files} | {file.path for file in record.retired}
        unknown = self.rig.files() - named
        assert not unknown, f"files that nothing names: {sorted(unknown)}"
        assert not self.rig.in_store(_attempts), "attempts are left"
        return len(found)


async def _end_leases(store: MetadataStore) -> None:
    for stored in await store.list(JOBS_PREFIX):
        await store.delete(stored.key)


async def _attempts(store: MetadataStore) -> list[str]:
    return [stored.key for stored in await store.list(ATTEMPTS_PREFIX)]


def campaign(order: Order) -> None:
    """The long form, with a cluster of its own."""
    root, rng, tell = order.root, order.rng, order.tell
    topic = "persistent://public/default/compact-kills"
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(root / "client.log"))
    with (
        running_cluster(root / "cluster", bookies=3, brokers=1) as cluster,
        closing(pulsar.Client(cluster.service_url, logger=logger)) as client,
        Followed(cluster.metadata_url, ATTEMPTS_PREFIX) as attempts,
    ):
        rig = CompactRig(Log(cluster), cluster, root / "store")
        these = Compactions(rig, client, topic, attempts, rng)
        these.grow()
        rounds = Rounds(these, rng, lambda: tell(rounds.told()), GIVEN_UP_S, order.until)
        rounds.whole(order.kinds)
        these.finish()
        keys = these.check()
    tell(f"{keys} keys with the values that were sent last, {len(rig.files())} files, all named")


if __name__ == "__main__":
    command("compact-kills", __doc__.partition("\n")[0], campaign)
