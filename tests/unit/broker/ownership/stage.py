"""Ownerships of several brokers over one metadata store: no sockets, no topics, no real time.

The network is a table: a broker's address takes connections, refuses them, or does not answer.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import looptime
from tests.support.brokers import View
from tests.support.held_store import HeldStore

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.api import Inside
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.ownership.records import (
    BrokerRecord,
    OwnershipRecord,
    Urls,
    decode_ownership,
    ownership_key,
)
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.ownership.split_algorithms import TopicLoad
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession, SessionListener

TTL_S: Final = 8.0
NAMESPACE: Final = NamespaceName("public", "default")
QUARTERS: Final = [
    Bundle(NAMESPACE, 0x00000000, 0x40000000),
    Bundle(NAMESPACE, 0x40000000, 0x80000000),
    Bundle(NAMESPACE, 0x80000000, 0xC0000000),
    Bundle(NAMESPACE, 0xC0000000, 0xFFFFFFFF),
]
FIRST: Final = QUARTERS[0]
TOPICS: Final = [parse_topic(f"persistent://public/default/t{at}") for at in range(16)]

Test = Callable[[], Coroutine[Any, Any, None]]


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on a loop of its own, whose time passes only when nothing is ready."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
            runner.run(test(*arguments, **named))

    return run


def topic_in(bundle: Bundle) -> TopicName:
    """A topic of the bundle."""
    return next(topic for topic in TOPICS if topic in bundle)


def topics_in(bundle: Bundle) -> list[TopicName]:
    return [topic for topic in TOPICS if topic in bundle]


async def settle() -> None:
    """Returns when every watch has delivered."""
    await asyncio.sleep(0.001)


async def settled(task: "asyncio.Future[Any]") -> bool:
    """Whether the task ends without the passing of time."""
    await settle()
    return task.done()


class LoopClock:
    """The loop's time."""

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass
class OpenTopic:
    name: TopicName
    ring_position: int


@dataclass
class Topics:
    """Open topics, one of each of TOPICS; records the calls in order."""

    asked: list[tuple[str, Any]] = field(default_factory=list)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is clear, topics do not close."""
    closing_now: set[Bundle] = field(default_factory=set)
    closed_at_once: int = 0
    told: list[BrokerRecord | None] = field(default_factory=list)
    loaded: list[TopicLoad] = field(default_factory=list)
    at_close: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.closing.set()

    def suspend(self) -> None:
        self.asked.append(("suspend", None))

    def resume(self) -> None:
        self.asked.append(("resume", None))

    def abandon(self, inside: Inside) -> None:
        self.asked.append(("abandon", _inside(inside)))

    async def drain(self, bundle: Bundle) -> None:
        self.asked.append(("drain", bundle))
        self.closing_now.add(bundle)
        self.closed_at_once = max(self.closed_at_once, len(self.closing_now))
        try:
            self.at_close()
            await self.closing.wait()
        finally:
            self.closing_now.discard(bundle)

    def dismiss(self, inside: Inside, destination: BrokerRecord | None) -> None:
        self.asked.append(("dismiss", _inside(inside)))
        self.told.append(destination)

    def loads(self, inside: Inside) -> list[TopicLoad]:
        self.asked.append(("loads", _inside(inside)))
        return self.loaded


def _inside(inside: Inside) -> list[TopicName]:
    return [topic for topic in TOPICS if inside(OpenTopic(topic, bundle_hash(str(topic))))]


@dataclass
class Broker:
    """One process."""

    ownership: ClusterOwnership
    session: MetadataSession
    view: View
    topics: Topics
    store: "Store"

    @property
    def id(self) -> str:
        return self.ownership.brokers.own.broker_id

    @property
    def record(self) -> OwnershipRecord:
        """Its claim of any bundle, under the lease that it has now."""
        return OwnershipRecord.of(self.ownership.brokers.own)

    def owned(self) -> set[Bundle]:
        return set(self.ownership.owned())

    async def take(self, *bundles: Bundle) -> None:
        for bundle in bundles:
            assert await self.ownership.claims.acquire(bundle) is not None
        await settle()

    async def lose_lease(self) -> None:
        """The store ends the lease; returns before the broker hears of it."""
        await self.store.revoke_lease(self.view.leases[-1].id)

    async def die(self) -> None:
        """The process ends without a word to the store, where its lease stays."""
        await self.ownership.stop()
        await self.session._tasks.stop()
        if self.session._watchdog is not None:
            self.session._watchdog.cancel()

    async def stop(self) -> None:
        self.view.running.set()
        await self.ownership.stop()
        await self.session.stop()


class Store(HeldStore):
    """One whose leases run in the loop's time."""

    def __init__(self) -> None:
        super().__init__()
        self._leases.clock = LoopClock()

    async def owners(self) -> dict[str, OwnershipRecord]:
        """By the range of their bundle."""
        return {
            record.key.rpartition("/")[2]: decode_ownership(record.key, record.value)
            for record in await self.list("/ownership/")
        }

    async def own(self, bundle: Bundle, owner: OwnershipRecord, **how: Any) -> int:
        """Writes a claim, as another process would."""
        return await self.put(ownership_key(bundle), encode(owner), **how)

    async def cut(self, *edges: int) -> None:
        """The namespace has bundles with these edges, and 0 and the end."""
        policies = default_policies("standalone")
        bounds = [f"0x{edge:08x}" for edge in (0, *edges, 0xFFFFFFFF)]
        policies["bundles"] = {"boundaries": bounds, "numBundles": len(bounds) - 1}
        await self.put(namespace_key(NAMESPACE), encode(policies))


Address = Literal["takes", "refuses", "silent"]


class Stage:
    """A store with one namespace of four bundles; brokers come by `broker`."""

    def __init__(self) -> None:
        self.store = Store()
        self.brokers: list[Broker] = []
        self.addresses: dict[str, Address] = {}
        """By host; one that is not here takes connections."""
        self.connections: list[str] = []
        self._starts = 0

    async def __aenter__(self) -> "Stage":
        loop = asyncio.get_running_loop()
        loop.create_connection = self._connect  # type: ignore[method-assign, assignment]
        await self.store.cut(0x40000000, 0x80000000, 0xC0000000)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.away = False
        for broker in self.brokers:
            await broker.stop()
        await self.store.close()

    async def broker(self, host: str, before: SessionListener | None = None) -> Broker:
        """Starts a broker; returns once all know it. The session notifies `before` first."""
        self._starts += 1
        view, clock, topics = View(self.store), LoopClock(), Topics()
        session = MetadataSession(view, TTL_S, clock, host)
        urls = Urls(f"pulsar://{host}:6650", f"http://{host}:8080")
        own = BrokerRecord(f"{host}:8080", self._starts, host, 6650, urls)
        if before is not None:
            session.add_listener(before)
        ownership = ClusterOwnership(view, session, own, topics, clock)
        await ownership.start()
        await session.start()
        self.brokers.append(broker := Broker(ownership, session, view, topics, self.store))
        await settle()
        topics.asked.clear()
        return broker

    async def pair(self) -> tuple[Broker, Broker]:
        return await self.broker("a"), await self.broker("b")

    async def _connect(self, _: object, host: str, port: int) -> tuple[Any, None]:
        self.connections.append(host)
        match self.addresses.get(host, "takes"):
            case "refuses":
                raise ConnectionRefusedError(f"{host}:{port}")
            case "silent":
                await asyncio.Event().wait()
        return _Connection(), None


class _Connection:
    def abort(self) -> None:
        """Nothing was sent."""
