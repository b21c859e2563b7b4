"""A broker in memory with one topic, and clients that record what they receive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from tests.support.broker import RECORD
from tests.support.held_store import HeldStore
from tests.unit.broker.subscription.conftest import RecordingSink as ConsumerSink
from tests.unit.broker.subscription.conftest import entry_bytes
from tests.unit.ledger.stage import FaultyBookie, ManualClock, turns

from magnetar.broker.assemble import assemble
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.broker.topic.nonpersistent import NonPersistentTopic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.policies.policy import Policy
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire.events import SendRun

NAMESPACE = NamespaceName("public", "default")
ELSEWHERE = BrokerRecord(
    "other", 1, "10.0.0.2", 6650, Urls("pulsar://10.0.0.2:6650", "http://10.0.0.2:8080")
)

_numbers = count(1)


class ProducerSink:
    """A connection of producers."""

    address = "/127.0.0.1:1"
    client_version = "test"

    def __init__(self) -> None:
        self.alive = True
        self.receipts: list[tuple[list[int], int, int]] = []
        """Sequence ids of a run, its ledger, its first entry."""
        self.errors: list[tuple[list[int], MagnetarError]] = []
        self.sent_away: list[tuple[Producer, BrokerRecord | None]] = []
        self.ready: list[Producer] = []
        self.refused: list[Producer] = []
        self.told: list[str] = []
        """All of these by name, in order."""

    async def is_alive(self) -> bool:
        return self.alive

    def send_receipts(
        self,
        producer: Producer,
        run: SendRun,
        ledger_id: int,
        first_entry_id: int,
        *,
        stored: bool = True,
    ) -> None:
        self.told.append("receipts")
        self.receipts.append((run.sequence_ids, ledger_id, first_entry_id))

    def send_errors(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        self.told.append("errors")
        self.errors.append((run.sequence_ids, error))

    def close_producer(self, producer: Producer, destination: BrokerRecord | None = None) -> None:
        self.told.append("sent away")
        self.sent_away.append((producer, destination))

    def producer_ready(self, producer: Producer) -> None:
        self.ready.append(producer)

    def producer_refused(self, producer: Producer, error: MagnetarError) -> None:
        self.refused.append(producer)

    def publishing(self, size_bytes: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def hold_sign_of_life(
    sink: "ProducerSink | Sink", *, alive: bool
) -> tuple[asyncio.Event, asyncio.Event]:
    """Holds the connection's answer to a liveness check.

    Returns two events: the first is set once the check has begun, and the check answers `alive`
    once the caller sets the second.
    """
    asked, go = asyncio.Event(), asyncio.Event()

    async def is_alive() -> bool:
        asked.set()
        await go.wait()
        return alive

    sink.is_alive = is_alive  # type: ignore[method-assign]
    return asked, go


def new_producer(
    sink: ProducerSink,
    name: str = "",
    mode: AccessMode = AccessMode.SHARED,
    *,
    topic_epoch: int | None = None,
) -> Producer:
    number = next(_numbers)
    return Producer(
        number,
        name or f"producer-{number}",
        sink,
        epoch=0,
        generated_name=not name,
        access_mode=mode,
        topic_epoch=topic_epoch,
        request_id=number,
        connected_since_ms=0,
    )


def run_of(producer: Producer, *texts: str, first: int = 0, batch: int = 1) -> SendRun:
    """The run of a producer: an entry of `batch` messages for each text."""
    entries = [entry_bytes(text, batch=batch if batch > 1 else None) for text in texts]
    ids = list(range(first, first + len(texts)))
    size = sum(map(len, entries))
    return SendRun(producer.producer_id, ids, list(ids), [batch] * len(texts), entries, size)


class Sink(ConsumerSink):
    """A connection of consumers that also notes where they were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.destinations: list[BrokerRecord | None] = []

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        super().close_consumer(consumer_id, destination)
        self.destinations.append(destination)


def request(
    subscription: str = "s",
    name: str = "c",
    sub_type: SubType = SubType.Shared,
    *,
    has_schema: bool = True,
    read_compacted: bool = False,
    **given: Any,
) -> SubscribeRequest:
    spec = ConsumerSpec(
        next(_numbers), name, sub_type, has_schema=has_schema, read_compacted=read_compacted
    )
    return SubscribeRequest(subscription, spec, **{"from_earliest": True, **given})


class Stage:
    """A broker in memory, with a controllable clock, store and bookie."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.clock = ManualClock()
        self.store = HeldStore()
        self.bookie = FaultyBookie()
        self.client = LedgerClient(self.store, LocalBookies([self.bookie]), self.clock, SINGLE)
        self.service = assemble(settings, self.store, self.client, self.clock, RECORD)
        self.factory = self.service.ledgers

    async def topic(self, local: str = "t") -> PersistentTopic:
        name = parse_topic(f"persistent://public/default/{local}")
        topic = await self.service.topics.get_or_open(name, create=True)
        assert isinstance(topic, PersistentTopic)
        return topic

    async def nonpersistent(self, local: str = "t") -> NonPersistentTopic:
        name = parse_topic(f"non-persistent://public/default/{local}")
        topic = await self.service.topics.get_or_open(name, create=True)
        assert isinstance(topic, NonPersistentTopic)
        return topic

    async def attach(
        self,
        topic: PersistentTopic | NonPersistentTopic,
        asked: SubscribeRequest | None = None,
        *,
        permits: int = 1000,
    ) -> tuple[Any, Consumer, Sink]:
        """The subscription, a consumer on it, and its connection."""
        asked, sink = asked or request(), Sink()
        consumer = Consumer(asked.spec, sink, self.clock)
        subscription = await topic.subscribe(asked, consumer)
        if permits:
            subscription.flow(consumer, permits)
        await turns(20)
        return subscription, consumer, sink

    async def producer(
        self,
        topic: PersistentTopic | NonPersistentTopic,
        sink: ProducerSink | None = None,
        **given: Any,
    ) -> tuple[Producer, ProducerSink]:
        sink = sink or ProducerSink()
        producer = new_producer(sink, **given)
        await topic.add_producer(producer)
        return producer, sink

    async def publish(self, topic: PersistentTopic, *texts: str) -> list[tuple[int, int]]:
        """Stored by a producer that leaves again; the positions."""
        producer, sink = await self.producer(topic)
        topic.publish(producer, run_of(producer, *texts))
        while not sink.told:
            await turns(1)
        topic.remove_producer(producer)
        ((_, ledger_id, first),) = sink.receipts
        return [(ledger_id, first + each) for each in range(len(texts))]

    async def set(
        self, policy: Policy, value: Any, topic: PersistentTopic | NonPersistentTopic
    ) -> None:
        """On the namespace, else on the topic, which follows at once."""
        if policy.document:
            kept = {self.service.cluster: value} if policy.by_cluster else value
            await self.service.resources.update_policies(
                NAMESPACE, lambda document: {**document, policy.document: kept}
            )
        else:
            await self.service.policies.update(
                topic.name, lambda own: own.having(policy.name, value)
            )
        topic.policies_changed()


@asynccontextmanager
async def stage(**settings: Any) -> AsyncIterator[Stage]:
    made = Stage(compose(BrokerSettings, **settings))
    service = made.service
    info = {"adminRoles": [], "allowedClusters": [service.cluster]}
    await service.resources.create_tenant("public", info)
    await service.resources.create_namespace(NAMESPACE, default_policies(service.cluster))
    await service.follow_policies()
    try:
        yield made
    finally:
        made.store.away = False
        await service.stop()
        await service.ledgers.close()
        await service.store.close()
