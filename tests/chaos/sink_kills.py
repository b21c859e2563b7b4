"""A copy of a topic by Spark, killed over and over: `python -m tests.chaos.sink_kills --kills 50`.

The rounds are those of `spark_kills`, on a source that grows before each, and brokers die, too. The
query writes exactly once, in micro-batches of some hundred messages and several tasks each. A
strike comes at a random moment after a micro-batch was planned.

Whenever a run has ended or died, the messages that readers of the target get must become those of
whole micro-batches. At the end the query runs once more to its end, and the target has every
message of the source once.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pulsar
from tests.chaos.spark_kills import MOMENT_TIMEOUT_S, Kind, Order, Rounds, command, wait_until
from tests.chaos.spark_processes import LOCAL, SparkJob
from tests.support.cluster_processes import brokers, running_cluster

from magnetar.cluster.local.cluster import LocalCluster

VALUE_BYTES: Final = 200
MESSAGES_A_ROUND: Final = 4_000
PARTITIONS: Final = 2
TRIGGER_BYTES: Final = 60_000
PARTITION_BYTES: Final = 15_000
BATCH_S_MAX: Final = 3.0
"""Strikes come within this time after a micro-batch was planned."""
WHOLE_TIMEOUT_S: Final = 90.0
READ_MS: Final = 30_000
BROKER_SHARE: Final = 0.2
"""Of all kills."""


@dataclass
class Copies:
    """A source, a target, and the query from one to the other."""

    cluster: LocalCluster
    client: pulsar.Client
    root: Path
    rng: random.Random
    messages_a_round: int = MESSAGES_A_ROUND
    source: str = "persistent://public/default/sink-source"
    target: str = "persistent://public/default/sink-target"
    positions: list[tuple[int, int]] = field(default_factory=list)
    """Of the source's messages, by number."""
    runs: int = 0
    checks: int = 0

    def prepare(self) -> None:
        """Creates the target."""
        url = f"{brokers(self.cluster)[0].http_url}/admin/v2/{self.target.replace('://', '/')}"
        httpx.put(f"{url}/partitions", json=PARTITIONS, timeout=30).raise_for_status()

    def grow(self) -> None:
        """Adds messages to the source."""
        first = len(self.positions)
        found: dict[int, tuple[int, int]] = {}

        def sent(number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
            def done(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
                assert result == pulsar.Result.Ok
                found[number] = message_id.ledger_id(), message_id.entry_id()

            return done

        with closing(
            self.client.create_producer(
                self.source,
                batching_enabled=True,
                batching_max_messages=10,
                block_if_queue_full=True,
            )
        ) as producer:
            for number in range(first, first + self.messages_a_round):
                value = f"{number}:".encode().ljust(VALUE_BYTES, b".")
                producer.send_async(value, sent(number), partition_key=f"k{number % 50}")
            producer.flush()
        self.positions += [found[number] for number in sorted(found)]
        assert len(self.positions) == first + self.messages_a_round

    def start(self, master: str, conf: Mapping[str, str]) -> SparkJob:
        """A run on what has grown since the last one."""
        self.check_whole()
        self.grow()
        return self._started(master, conf)

    def _started(self, master: str, conf: Mapping[str, str]) -> SparkJob:
        self.runs += 1
        arguments = {
            "service-url": self.cluster.service_url,
            "metadata-url": self.cluster.metadata_url,
            "admin-url": brokers(self.cluster)[0].http_url,
            "source": self.source,
            "target": self.target,
            "checkpoint": str(self._checkpoint),
            "trigger-bytes": str(TRIGGER_BYTES),
            "partition-bytes": str(PARTITION_BYTES),
        }
        flags = [f"--{name}={value}" for name, value in arguments.items()]
        program = ("tests.chaos.sink_job",)
        return SparkJob(self.root / "jobs", self.runs, master, conf, flags, program)

    @property
    def _checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def _planned(self) -> int:
        return len(self._ends())

    def _ends(self) -> list[tuple[int, int]]:
        """The end of each planned micro-batch in the source."""
        ends = []
        for path in (self._checkpoint / "offsets").glob("[0-9]*"):
            try:
                document = json.loads(path.read_text().splitlines()[-1])
            except (OSError, ValueError, IndexError):
                continue
            ledger, _, entry = document[self.source].partition(":")
            ends.append((int(ledger), int(entry)))
        return ends

    def moment(self, job: SparkJob) -> bool:
        """A random moment after the next micro-batch was planned."""
        planned = self._planned()
        wait_until(lambda: job.over or self._planned() > planned, MOMENT_TIMEOUT_S)
        return not wait_until(lambda: job.over, self.rng.uniform(0, BATCH_S_MAX))

    def again(self) -> Callable[[], bool]:
        """Whether micro-batches were planned since now: the query went on without the executor."""
        planned = self._planned()
        return lambda: self._planned() > planned + 1

    def kill_broker(self) -> None:
        """Kills a broker and starts it again."""
        victim = self.rng.choice(brokers(self.cluster)).name
        self.cluster.kill(victim)
        time.sleep(self.rng.uniform(0, 1))
        self.cluster.start(victim)
        self.cluster.wait_ready([victim])

    def finish(self) -> None:
        """Runs the query to its end."""
        job = self._started(LOCAL, {})
        try:
            assert job.wait() == 0, job.said
        finally:
            job.kill()

    def visible(self) -> list[int]:
        """The numbers that readers of the target get now."""
        numbers = []
        for partition in range(PARTITIONS):
            with closing(
                self.client.create_reader(
                    f"{self.target}-partition-{partition}", pulsar.MessageId.earliest
                )
            ) as reader:
                while reader.has_message_available():
                    numbers.append(int(reader.read_next(READ_MS).data().partition(b":")[0]))
        return numbers

    def check_whole(self) -> None:
        """What readers get becomes whole micro-batches: those of the source up to an offset."""
        ends = [(-1, -1), *self._ends()]
        allowed = {sum(position <= end for position in self.positions) for end in ends}
        seen: list[int] = []

        def is_whole() -> bool:
            seen[:] = sorted(self.visible())
            return len(seen) in allowed and seen == list(range(len(seen)))

        assert wait_until(is_whole, WHOLE_TIMEOUT_S), (
            f"{len(seen)} messages are visible, {len(set(seen))} different; micro-batches end at "
            f"{sorted(allowed)}; twice: {[n for n, c in Counter(seen).items() if c > 1][:20]}; "
            f"missing: {sorted(set(range(max(seen, default=-1) + 1)) - set(seen))[:20]}"
        )
        self.checks += 1

    def check(self) -> int:
        """What must hold after a run that went to its end; the number of messages."""
        assert sorted(self.visible()) == list(range(len(self.positions)))
        return len(self.positions)


SETTINGS: Final[dict[str, Any]] = {
    "ensemble_size": 3,
    "write_quorum": 2,
    "ack_quorum": 2,
    "transactions": True,
    "session_timeout_ms": 2_000,
    "retention_minutes": -1,
    "retention_size_mb": -1,
}


def with_brokers(kinds: list[Kind], rng: random.Random) -> list[Kind]:
    """These kinds, with a share of them replaced by the death of a broker."""
    return [Kind.BROKER if rng.random() < BROKER_SHARE else kind for kind in kinds]


def campaign(order: Order) -> None:
    """The long form, with a cluster of its own."""
    root, rng, tell = order.root, order.rng, order.tell
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(root / "client.log"))
    with (
        running_cluster(root / "cluster", bookies=3, brokers=2, **SETTINGS) as cluster,
        closing(pulsar.Client(cluster.service_url, logger=logger)) as client,
    ):
        these = Copies(cluster, client, root, rng)
        these.prepare()
        rounds = Rounds(
            these,
            rng,
            lambda: tell(rounds.told()),
            kill_broker=these.kill_broker,
            until=order.until,
        )
        rounds.whole(with_brokers(order.kinds, rng))
        these.finish()
        count = these.check()
    tell(
        f"{count} messages copied once each, in {len(these._ends())} micro-batches and "
        f"{these.runs} runs; {these.checks} times only whole micro-batches were visible"
    )


if __name__ == "__main__":
    command("sink-kills", __doc__.partition("\n")[0], campaign)
