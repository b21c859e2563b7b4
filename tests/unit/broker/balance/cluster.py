"""Brokers of a cluster as the balancer sees them: bundles with loads, owned in memory."""

import asyncio
import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from magnetar.broker.balance.load import Serving
from magnetar.broker.balance.model import BundleLoad, LoadReport
from magnetar.broker.balance.service import Balance, LocalBroker, Reports
from magnetar.broker.topic.api import Topic
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession
from magnetar.settings.balance import BalanceSettings

SETTINGS = BalanceSettings(shedding_rounds=1, split_rounds=1, load_report_interval_min_ms=100)
TTL_S = 60.0


@dataclass
class Process:
    """CPU that follows a wanted load."""

    load: Callable[[], float]
    clock: SystemClock = field(default_factory=SystemClock)
    used_s: float = 0.0
    then_s: float = 0.0
    failures_left: int = 0
    """So many times its figures cannot be read."""

    def cpu_seconds(self) -> float:
        now_s = self.clock.monotonic()
        self.used_s += self.load() * (now_s - self.then_s if self.then_s else 0.0)
        self.then_s = now_s
        return self.used_s

    def memory_bytes(self) -> int:
        if self.failures_left:
            self.failures_left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return 1 << 20

    def memory_limit_bytes(self) -> int:
        return 1 << 30


class Cluster:
    """Which broker owns which bundle, and how busy each bundle is."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock)
        self.owners: dict[str, str] = {}
        self.loads: dict[str, float] = {}
        self.brokers: dict[str, Broker] = {}
        self.done: list[tuple[str, str, str | None]] = []
        self.changed = asyncio.Event()

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                try:
                    async with asyncio.timeout(0.05):
                        await self.changed.wait()
                except TimeoutError:
                    continue

    async def add(
        self,
        broker_id: str,
        settings: BalanceSettings = SETTINGS,
        *,
        interval_s: float | None = 0.05,
    ) -> "Broker":
        broker = Broker(self, broker_id, settings, interval_s)
        self.brokers[broker_id] = broker
        await broker.session.start()
        broker.balance.start()
        return broker

    async def close(self) -> None:
        for broker in list(self.brokers.values()):
            await broker.stop()
        await self.store.close()


class Broker:
    """One broker, which is also what its orders are carried out with."""

    def __init__(
        self,
        cluster: Cluster,
        broker_id: str,
        settings: BalanceSettings,
        interval_s: float | None,
    ) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.draining = False
        self.refuses = False
        self.process = Process(self.load)
        self.session = MetadataSession(cluster.store, TTL_S, cluster.clock, broker_id)
        self.balance = Balance(
            settings,
            cluster.store,
            self.session,
            cluster.clock,
            LocalBroker(
                broker_id=broker_id,
                http_url=f"http://{broker_id}:8080",
                serving=self,
                owner=self,
                living=lambda: [b.broker_id for b in cluster.brokers.values() if not b.draining],
            ),
            Reports(cluster.store),
            process=self.process,
            interval_s=interval_s,
        )
        measure = self.balance.reporter.measure

        async def measured() -> LoadReport:
            """As measured, with the bundles' loads as they are meant to be."""
            report = await measure()
            bundles = tuple(
                BundleLoad(name, topics=2, msg_rate_in=cluster.loads.get(name, 0.0) * 50_000)
                for name in self.owned()
            )
            return LoadReport(
                broker_id=self.broker_id,
                started_ms=report.started_ms,
                updated_ms=report.updated_ms,
                cpu=self.load(),
                bundle_count=len(bundles),
                msg_rate_in=sum(bundle.msg_rate_in for bundle in bundles),
                draining=self.draining,
                bundles=bundles,
            )

        self.balance.reporter.measure = measured  # type: ignore[method-assign]

    def load(self) -> float:
        return sum(self.cluster.loads.get(name, 0.0) for name in self.owned())

    def connections(self) -> int:
        return 0

    def topics(self) -> Iterable[Topic]:
        return ()

    def bundle_of(self, name: TopicName) -> str | None:
        return None

    def owned(self) -> list[str]:
        return [name for name, owner in self.cluster.owners.items() if owner == self.broker_id]

    def owns(self, bundle: str) -> bool:
        return self.cluster.owners.get(bundle) == self.broker_id

    async def unload(self, bundle: str, destination: str | None) -> None:
        if self.refuses:
            raise ServiceNotReady("not now")
        self.cluster.done.append(("unload", bundle, destination))
        assert destination is not None
        self.cluster.owners[bundle] = destination
        self.cluster.tell()

    async def split(self, bundle: str, algorithm: str, *, unload: bool) -> None:
        self.cluster.done.append(("split", bundle, algorithm))
        self.cluster.tell()

    async def stop(self) -> None:
        self.cluster.brokers.pop(self.broker_id, None)
        await self.balance.stop()
        await self.session.stop()

    async def die(self) -> None:
        """Without a word: its lease runs out, as far as everybody else is concerned."""
        self.cluster.brokers.pop(self.broker_id, None)
        lease_id = self.session.lease_id
        await self.balance.stop()
        await self.session._tasks.stop()
        await self.cluster.store.revoke_lease(lease_id)


SERVING: type[Serving] = Broker
