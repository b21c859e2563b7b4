"""A broker in memory with a manual clock, and messages published at its time."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.broker import RECORD
from tests.support.memory_bookie import MemoryBookie
from tests.unit.ledger.stage import ManualClock, publish

from magnetar.broker.assemble import assemble
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.clock import Clock
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataStore
from magnetar.policies.policy import Policy
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry

Secure = Callable[[MetadataStore, Clock], BrokerSecurity]
"""Makes the security of a broker over its store."""

NAMESPACE = NamespaceName("public", "default")
ENTRIES_PER_LEDGER = 5


def named(local: str) -> TopicName:
    return parse_topic(f"persistent://public/default/{local}")


def message(time_ms: int, size_bytes: int = 1) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=time_ms)
    return build_entry(metadata, b"x" * size_bytes)


class JumpingClock(ManualClock):
    """Its wall clock is wrong by `skew_ms`; the monotonic one is right."""

    def __init__(self) -> None:
        super().__init__()
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self.time_ms + self.skew_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000


class World:
    """A broker in memory with a manual clock."""

    def __init__(
        self, settings: BrokerSettings, bookies: int = 1, secure: Secure | None = None
    ) -> None:
        self.clock = JumpingClock()
        store = MemoryStore(self.clock)
        local = LocalBookies([MemoryBookie(f"b{number}") for number in range(bookies)])
        self.ledgers = LedgerClient(store, local, self.clock, SINGLE)
        security = None if secure is None else secure(store, self.clock)
        self.service = assemble(
            settings, store, self.ledgers, self.clock, RECORD, security=security
        )
        self.upkeep = self.service.upkeep

    async def topic(self, local: str = "t", *subscriptions: str) -> PersistentTopic:
        """Loaded, with these subscriptions, before all messages that it has."""
        topic = await self.service.topics.get_or_open(named(local), create=True)
        assert isinstance(topic, PersistentTopic)
        for name in subscriptions:
            await topic.create_subscription(name, EARLIEST, {})
        return topic

    async def publish(
        self, topic: PersistentTopic, count: int = 1, *, every_ms: int = 1_000, size_bytes: int = 1
    ) -> list[Position]:
        """Messages of now, and so far apart; the time after the last is not over yet."""
        places = []
        for number in range(count):
            if number:
                self.clock.advance(every_ms)
            data = message(self.clock.now_ms(), size_bytes)
            places.append(Position(*await publish(topic.managed_ledger, data)))
        return places

    async def set(self, policy: Policy, value: Any, topic: PersistentTopic | None = None) -> None:
        """On the namespace, or on the topic."""
        if topic is not None:
            await self.service.policies.update(
                topic.name, lambda own: own.having(policy.name, value)
            )
            return
        await self.service.resources.update_policies(
            NAMESPACE, lambda document: {**document, policy.document: value}
        )
        for each in self.service.topics:
            each.policies_changed()  # as `telling` does in a moment

    def stored(self, topic: PersistentTopic) -> tuple[int, int]:
        """(ledgers, bytes)"""
        return len(topic.managed_ledger.ledgers), topic.managed_ledger.bytes_total


@asynccontextmanager
async def world(
    bookies: int = 1, secure: Secure | None = None, **settings: Any
) -> AsyncIterator[World]:
    """Ledgers are rolled over after ENTRIES_PER_LEDGER entries."""
    small = {"ledger_entries_max": ENTRIES_PER_LEDGER, "ledger_rollover_min_minutes": 0}
    made = World(compose(BrokerSettings, **{**small, **settings}), bookies, secure)
    service = made.service
    info = {"adminRoles": [], "allowedClusters": [service.cluster]}
    await service.resources.create_tenant("public", info)
    await service.resources.create_namespace(NAMESPACE, default_policies(service.cluster))
    await service.follow_policies()
    try:
        yield made
    finally:
        await service.stop()
        await service.ledgers.close()
        await service.store.close()
