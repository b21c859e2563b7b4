"""Runs the load, does the faults, and judges: the whole campaign.

A cluster of real processes stands behind proxies (`faulty_cluster`); official clients write and
read all topics for the whole time, in processes of their own; the faults of `plan` come one after
another. Then all is healed, the clients finish and every topic is read back from its beginning.
`verify` judges each topic, and the independent checker of `tests/history` what all clients saw.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
from tests.chaos.faulty_cluster import FaultyCluster, Tell
from tests.chaos.plan import KINDS, ROLES, plan
from tests.chaos.recording import Histories, ReadBack, history_path
from tests.chaos.verify import (
    Felt,
    Observations,
    felt,
    missing_of,
    place,
    quantile,
    violations,
)
from tests.chaos.workload import batched, id_text, parse
from tests.history.check import check_files

NAMESPACE = "public/chaos"
ATTACH_TIMEOUT_S = 60.0
FINISH_TIMEOUT_S = 240.0
STALLED_S = 120.0
"""Without a new observation: a consumer comes back from a fault within it."""
QUIET_S = 3.0
"""Without a new observation, before all of them are read and judged."""
KEYED_TOPICS = 2
"""Topics with a Key_Shared subscription."""
MOVED_TOPICS = 2
"""Topics that are deleted and made again."""
READ_TIMEOUT_MS = 20_000
SETTLE_S = 1.0
SETTINGS = {
    # Every minute has its rollovers, deletions of ledgers and moves of cursors.
    "managedLedgerMaxEntriesPerLedger": 400,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "managedLedgerDefaultEnsembleSize": 3,
    "managedLedgerDefaultWriteQuorum": 2,
    "managedLedgerDefaultAckQuorum": 2,
}


@dataclass(slots=True)
class Result:
    """What came of a campaign."""

    observations: Observations
    violations: list[str]
    felt: list[Felt] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        """How long each kind of fault was felt, as markdown."""
        by_kind: dict[str, list[Felt]] = defaultdict(list)
        for one in self.felt:
            role = one.fault.target.rpartition("-")[0]
            by_kind[f"{one.fault.kind} {role}"].append(one)
            by_kind["all"].append(one)
        head = "| fault | times | pause of the worst topic, s: p50 | p99 | greatest "
        head += "| after healing, s: p50 | p99 | greatest |"
        lines = [head, "|---|---|---|---|---|---|---|---|"]
        for kind, some in sorted(by_kind.items()):
            figures = []
            for values in ([x.pause_s for x in some], [x.after_healing_s for x in some]):
                figures += [quantile(values, share) for share in (0.5, 0.99, 1.0)]
            words = " | ".join(f"{figure:.2f}" for figure in figures)
            lines.append(f"| {kind} | {len(some)} | {words} |")
        return "\n".join(lines)


class Campaign:
    """One cluster behind proxies, and its clients."""

    def __init__(self, root: Path, topics: int, rate: float, tell: Tell) -> None:
        self._root = root
        self._rate = rate
        self.topics = [f"persistent://{NAMESPACE}/t{index}" for index in range(topics)]
        self.moved = [f"persistent://{NAMESPACE}/moved{index}" for index in range(MOVED_TOPICS)]
        self.cluster = FaultyCluster(
            root / "cluster", settings=SETTINGS, namespace=NAMESPACE, topics=self.topics, tell=tell
        )
        self._clients: list[subprocess.Popen[str]] = []

    # -- clients

    async def begin_load(self) -> None:
        """Returns once every topic is attached to and written."""
        for what in ("consume", "produce"):
            self._clients.append(await asyncio.to_thread(self._client, what))
        self._clients.append(await asyncio.to_thread(self._churn))
        self._clients.append(await asyncio.to_thread(self._wired))
        async with asyncio.timeout(ATTACH_TIMEOUT_S):
            while True:
                seen = self.seen()
                if all(
                    topic in seen.topics and seen.topics[topic].receipts and seen.topics[topic].got
                    for topic in self.topics
                ):
                    return
                await asyncio.sleep(0.2)

    def _client(self, what: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.chaos.workload", what),
                *("--url", self.cluster.service_url, "--out", str(self._output(what))),
                *("--rate", str(self._rate), *self.topics),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def _churn(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.chaos.churn", "--out", str(self._output("churn"))),
                *("--services", *self.cluster.service_url.removeprefix("pulsar://").split(",")),
                *("--admins", *self.cluster.processes.http_urls, "--topics", *self.topics),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def _wired(self) -> "subprocess.Popen[str]":
        keyed = [topic for topic in self.topics if not batched(topic)][:KEYED_TOPICS]
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.chaos.wired", "--out", str(self._output("wired"))),
                *("--services", *self.cluster.service_url.removeprefix("pulsar://").split(",")),
                *("--admins", *self.cluster.processes.http_urls),
                *("--keyed", *keyed, "--moved", *self.moved),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def _output(self, what: str) -> Path:
        return self._root / f"{what}.log"

    def seen(self) -> Observations:
        seen = Observations()
        for what in ("produce", "consume"):
            with contextlib.suppress(FileNotFoundError):
                text = self._output(what).read_text()
                seen.read(text[: text.rfind("\n") + 1].splitlines())
        with contextlib.suppress(FileNotFoundError):
            text = self._output("churn").read_text()
            seen.read_churn(text[: text.rfind("\n") + 1].splitlines())
        return seen

    async def finish_load(self) -> None:
        """Lets the producers get their last receipts, then the consumers what is left."""
        consume, produce, churn, wired = self._clients
        for client in (churn, wired):
            await asyncio.to_thread(_tell_client, client, "calm\n")
        await asyncio.to_thread(produce.communicate, "stop\n", FINISH_TIMEOUT_S)
        await self._deliveries()
        await asyncio.to_thread(consume.communicate, "stop\n", FINISH_TIMEOUT_S)
        for client in (churn, wired):
            await asyncio.to_thread(client.communicate, "stop\n", FINISH_TIMEOUT_S)
        for client in self._clients:
            if client.returncode:
                raise RuntimeError(f"{client.args!r} ended with status {client.returncode}")

    async def _deliveries(self) -> None:
        """Returns when all is delivered, or nothing comes any more: the end judges what is missing.

        A subscription made at the earliest position reads its whole topic. How long that takes
        depends on the machine, so only a stall ends the wait.
        """
        size, quiet_since = -1, time.monotonic()
        while time.monotonic() - quiet_since < STALLED_S:
            await asyncio.sleep(QUIET_S)
            now = sum(self._output(what).stat().st_size for what in ("consume", "churn"))
            if now != size:
                size, quiet_since = now, time.monotonic()
            elif await asyncio.to_thread(self._delivered):
                return

    def _delivered(self) -> bool:
        """Whether all that was receipted has been got."""
        return all(
            record.receipts.keys() <= set(record.got)
            and all(life.over or not missing_of(record, life) for life in record.lives.values())
            for record in self.seen().topics.values()
        )

    # -- judging

    def read_back(self, observations: Observations) -> None:
        """Every topic from its beginning, by the official client's reader."""
        client = pulsar.Client(
            self.cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        with Histories(self._output("reader"), self.topics) as histories:
            for topic in self.topics:
                record = observations.topics[topic]
                history = ReadBack(histories.of(topic), topic)
                reader = client.create_reader(topic, pulsar.MessageId.earliest)
                history.subscribed()
                while reader.has_message_available():
                    message = reader.read_next(READ_TIMEOUT_MS)
                    history.got(message)
                    name, number = parse(message.data())
                    if name != topic:
                        raise AssertionError(f"{topic} holds a message of {name}")
                    record.stored.append((place(id_text(message.message_id())), number))
                reader.close()
                history.end()
        client.close()

    def result(self, observations: Observations) -> Result:
        """The judgment."""
        ends = [fault.begun for fault in self.cluster.faults[1:]] + [float("inf")]
        return Result(
            observations,
            [*violations(observations), *self._contradictions()],
            [
                felt(fault, observations, until)
                for fault, until in zip(self.cluster.faults, ends, strict=True)
            ],
        )

    def _contradictions(self) -> Iterator[str]:
        """What the clients' histories contradict, topic by topic."""
        logs = [self._output(what) for what in ("produce", "consume", "churn", "wired", "reader")]
        for topic in (*self.topics, *self.moved):
            paths = [history_path(log, topic) for log in logs]
            for finding in check_files(*(path for path in paths if path.exists())):
                yield f"history: {finding}"

    async def stop(self) -> None:
        for client in self._clients:
            if client.poll() is None:
                client.kill()
                client.wait()
        await self.cluster.stop()


def _tell_client(client: "subprocess.Popen[str]", line: str) -> None:
    assert client.stdin is not None
    client.stdin.write(line)
    client.stdin.flush()


async def run(
    root: Path,
    *,
    seconds: float,
    seed: int,
    topics: int,
    rate: float,
    quiet_s: Sequence[float] = (3.0, 8.0),
    lasts_s: Sequence[float] = (0.5, 8.0),
    kinds: Sequence[str] = KINDS,
    roles: Sequence[str] = ROLES,
    tell: Tell = print,
) -> Result:
    """A whole campaign; raises where the cluster or a client cannot go on at all."""
    campaign = Campaign(root, topics, rate, tell)
    begun = time.monotonic()
    try:
        await campaign.cluster.start()
        await campaign.begin_load()
        counts = campaign.cluster.counts
        faults = plan(seed, counts, quiet_s=quiet_s, lasts_s=lasts_s, kinds=kinds, roles=roles)
        await campaign.cluster.disturb(seconds, faults)
        await asyncio.sleep(SETTLE_S)
        await campaign.finish_load()
        observations = campaign.seen()
        await asyncio.to_thread(campaign.read_back, observations)
        result = campaign.result(observations)
        result.seconds = time.monotonic() - begun
        return result
    finally:
        await campaign.stop()
