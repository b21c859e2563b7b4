"""Runs the load, does the faults, and judges: the whole campaign.

A cluster of real processes stands behind proxies; official clients write and read all topics for
the whole time, in processes of their own; the faults of `plan` come one after another. Then all is
healed, the clients finish and every topic is read back from its beginning. `verify` judges each
topic, and the independent checker of `tests/history` what all clients saw of it.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pulsar
from tests.chaos.plan import ADMIN, KINDS, ROLES, Planned, plan
from tests.chaos.proxy import Direction, Proxy
from tests.chaos.recording import Histories, ReadBack, history_path
from tests.chaos.verify import (
    Fault,
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
from tests.support.cluster_processes import kill_all

from magnetar.cluster.local import state
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Member, Role

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
UNLOAD_TIMEOUT_S = 90.0
BETWEEN_UNLOADS_S = 0.7
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

Tell = Callable[[str], None]


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
        self._tell = tell
        self.topics = [f"persistent://{NAMESPACE}/t{index}" for index in range(topics)]
        self.moved = [f"persistent://{NAMESPACE}/moved{index}" for index in range(MOVED_TOPICS)]
        self.cluster = LocalCluster.create(
            root / "cluster", bookies=3, brokers=2, base="free", name="chaos", settings=SETTINGS
        )
        self._proxies: dict[str, list[Proxy]] = {}
        self._clients: list[subprocess.Popen[str]] = []
        self._faults: list[Fault] = []

    @property
    def service_url(self) -> str:
        """All brokers, by their proxies."""
        hosts = (
            f"{_proxy_host(member)}:{member.ports['port']}"
            for member in self.cluster.named(Role.BROKER)
        )
        return "pulsar://" + ",".join(hosts)

    async def start(self) -> None:
        """The proxies, the cluster behind them, the namespace."""
        etcd = self.cluster.named(Role.ETCD)[0]
        etcd_url = f"etcd:http://{_proxy_host(etcd)}:{etcd.ports['client']}"
        with state.changing(self.cluster.directory) as current:
            for member in current.members:
                if member.role is not Role.ETCD:
                    member.flags = ["--metadata-url", etcd_url]
                    member.flags += ["--advertised-host", _proxy_host(member)]
        for member in self.cluster.members:
            ports = member.ports
            fronts = ("client",) if member.role is Role.ETCD else ("port", "http")
            self._proxies[member.name] = [
                Proxy(_proxy_host(member), ports[kind], member.host) for kind in fronts
            ]
            for proxy in self._proxies[member.name]:
                await proxy.start()
        await asyncio.to_thread(self.cluster.up, self._tell)
        url = f"{self.cluster.http_urls[0]}/admin/v2/namespaces/{NAMESPACE}"
        await asyncio.to_thread(_put, url)

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
                *("--url", self.service_url, "--out", str(self._output(what))),
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
                *("--services", *self.service_url.removeprefix("pulsar://").split(",")),
                *("--admins", *self.cluster.http_urls, "--topics", *self.topics),
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
                *("--services", *self.service_url.removeprefix("pulsar://").split(",")),
                *("--admins", *self.cluster.http_urls),
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

    # -- faults

    async def disturb(self, seconds: float, faults: Iterator[Planned]) -> None:
        """Does one fault after another for this long."""
        end = time.monotonic() + seconds
        for planned in faults:
            await asyncio.sleep(planned.quiet_s)
            if time.monotonic() + planned.lasts_s > end:
                return
            begun = time.monotonic()
            if planned.role == ADMIN:
                target = f"{ADMIN}-{planned.index % len(self.topics)}"
                self._tell(f"{planned.kind} {target} for {planned.lasts_s:.1f} s")
                await self._unload(planned)
            else:
                member = self.cluster.named(Role(planned.role))[planned.index]
                target = member.name
                self._tell(f"{planned.kind} {target} for {planned.lasts_s:.1f} s")
                await self._do(planned, member)
            self._faults.append(Fault(planned.kind, target, begun, time.monotonic()))

    async def _unload(self, planned: Planned) -> None:
        """By the admin REST, again and again: what is refused meanwhile is nothing."""
        topic = self.topics[planned.index % len(self.topics)]
        end = time.monotonic() + planned.lasts_s
        async with httpx.AsyncClient(timeout=UNLOAD_TIMEOUT_S, follow_redirects=True) as client:
            broker = self.cluster.http_urls[planned.index % 2]
            admin = f"{broker}/admin/v2"
            path = topic.replace("persistent://", "persistent/")
            while time.monotonic() < end:
                with contextlib.suppress(httpx.HTTPError):
                    url = f"{admin}/{path}/unload"
                    if planned.kind == "unload-namespace":
                        url = f"{admin}/namespaces/{NAMESPACE}/unload"
                    elif planned.kind == "unload-bundle":
                        bundle = await client.get(f"{broker}/lookup/v2/topic/{path}/bundle")
                        url = f"{admin}/namespaces/{NAMESPACE}/{bundle.text}/unload"
                    await client.put(url)
                await asyncio.sleep(BETWEEN_UNLOADS_S)

    async def _do(self, planned: Planned, member: Member) -> None:
        if planned.kind == "kill":
            await asyncio.to_thread(self.cluster.kill, member.name)
            for proxy in self._proxies[member.name]:
                proxy.refuse()
            await asyncio.sleep(planned.lasts_s)
            for proxy in self._proxies[member.name]:
                await proxy.start()
            await asyncio.to_thread(self.cluster.start, member.name)
            await asyncio.to_thread(self.cluster.wait_ready, [member.name])
        elif planned.kind == "pause":
            self.cluster.pause(member.name)
            await asyncio.sleep(planned.lasts_s)
            self.cluster.resume(member.name)
        else:
            cut = {"cut-in": Direction.IN, "cut-out": Direction.OUT}.get(
                planned.kind, Direction.BOTH
            )
            for proxy in self._proxies[member.name]:
                proxy.set_cut(cut)
            await asyncio.sleep(planned.lasts_s)
            for proxy in self._proxies[member.name]:
                proxy.set_cut(Direction.NONE)

    # -- judging

    def read_back(self, observations: Observations) -> None:
        """Every topic from its beginning, by the official client's reader."""
        client = pulsar.Client(
            self.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
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
        ends = [fault.begun for fault in self._faults[1:]] + [float("inf")]
        return Result(
            observations,
            [*violations(observations), *self._contradictions()],
            [
                felt(fault, observations, until)
                for fault, until in zip(self._faults, ends, strict=True)
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
        for proxies in self._proxies.values():
            for proxy in proxies:
                await proxy.stop()
        kill_all(self.cluster)


def _proxy_host(member: Member) -> str:
    """An address of its own on loopback, for each member."""
    return f"127.0.{1 + list(Role).index(member.role)}.{member.number}"


def _tell_client(client: "subprocess.Popen[str]", line: str) -> None:
    assert client.stdin is not None
    client.stdin.write(line)
    client.stdin.flush()


def _put(url: str) -> None:
    httpx.put(url, json={}, timeout=30).raise_for_status()


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
        await campaign.start()
        await campaign.begin_load()
        counts = {role.value: len(campaign.cluster.named(role)) for role in Role}
        faults = plan(seed, counts, quiet_s=quiet_s, lasts_s=lasts_s, kinds=kinds, roles=roles)
        await campaign.disturb(seconds, faults)
        await asyncio.sleep(SETTLE_S)
        await campaign.finish_load()
        observations = campaign.seen()
        await asyncio.to_thread(campaign.read_back, observations)
        result = campaign.result(observations)
        result.seconds = time.monotonic() - begun
        return result
    finally:
        await campaign.stop()
