"""A topic's log in memory, with subscriptions and consumers that record their deliveries."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count

import pytest
from tests.support.memory_bookie import MemoryBookie

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import ConsumerSpec, KeySharedSpec, SubType
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryStore
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, parse_metadata, payload_of

TOPIC = "persistent://public/default/t"


def entry_bytes(
    text: str,
    *,
    key: str | None = None,
    batch: int | None = None,
    time_ms: int = 1_000,
    sequence_id: int = 0,
    chunk: tuple[str, int, int] | None = None,
) -> bytes:
    """An entry as a producer sends it; the payload of a batch is never read, so it is empty."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=time_ms)
    if key is not None:
        metadata.partition_key = key
    if chunk is not None:
        metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = chunk
    if batch is not None:
        metadata.num_messages_in_batch = batch
    return build_entry(metadata, text.encode())


class RecordingSink:
    """A connection that records its calls."""

    def __init__(self) -> None:
        self.writable = True
        self.alive = True
        self.address = "/127.0.0.1:40712"
        self.client_version = "test"
        self.protocol_version = 21
        self.delivered: list[Delivery] = []
        self.epochs: list[int | None] = []
        self.calls = 0
        self.active: list[bool] = []
        self.ended = 0
        self.closed: list[int] = []
        self.on_deliver: Callable[[Sequence[Delivery]], None] | None = None
        self.on_active: Callable[[], None] | None = None

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
        self.calls += 1
        self.delivered.extend(deliveries)
        self.epochs.extend([epoch] * len(deliveries))
        if self.on_deliver is not None:
            self.on_deliver(deliveries)

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None:
        self.active.append(active)
        if self.on_active is not None:
            self.on_active()

    def end_of_topic(self, consumer_id: int) -> None:
        self.ended += 1

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        self.closed.append(consumer_id)

    async def is_alive(self) -> bool:
        return self.alive

    @property
    def positions(self) -> list[tuple[int, int]]:
        return [(each.entry.ledger_id, each.entry.entry_id) for each in self.delivered]

    @property
    def texts(self) -> list[str]:
        return [payload_of(each.entry.data).decode() for each in self.delivered]

    @property
    def keys(self) -> list[str]:
        return [parse_metadata(each.entry.data).partition_key for each in self.delivered]

    def take(self) -> list[str]:
        """What came since the last call."""
        texts = self.texts
        self.delivered.clear()
        self.epochs.clear()
        return texts


_consumer_ids = count(1)


def new_consumer(
    name: str,
    sub_type: SubType,
    *,
    priority: int = 0,
    key_shared: KeySharedSpec | None = None,
    epoch: int | None = None,
) -> tuple[Consumer, RecordingSink]:
    spec = ConsumerSpec(
        next(_consumer_ids),
        name,
        sub_type,
        priority,
        key_shared=key_shared,
        consumer_epoch=epoch,
    )
    sink = RecordingSink()
    return Consumer(spec, sink, SystemClock()), sink


class Rig:
    """One topic and what hangs on it."""

    make_entry = staticmethod(entry_bytes)

    def __init__(self, factory: ManagedLedgerFactory, ledger: ManagedLedger) -> None:
        self.factory = factory
        self.ledger = ledger
        self.clock = SystemClock()
        self.tasks = TaskSet("test")
        self.published: list[tuple[int, int]] = []

    async def publish(self, *entries: bytes) -> list[tuple[int, int]]:
        """Appends the entries as one group, and waits until they are readable."""
        done: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

        def appended(ledger_id: int, first: int, error: MagnetarError | None) -> None:
            assert error is None
            done.set_result((ledger_id, first))

        self.ledger.append(list(entries), appended)
        ledger_id, first = await done
        positions = [(ledger_id, first + index) for index in range(len(entries))]
        self.published += positions
        return positions

    async def publish_texts(self, number: int, *, keys: int = 0) -> list[tuple[int, int]]:
        start = len(self.published)
        return await self.publish(
            *[
                entry_bytes(str(start + each), key=f"k{each % keys}" if keys else None)
                for each in range(number)
            ]
        )

    async def subscription(
        self,
        name: str = "s",
        *,
        limits: SubscriptionLimits | None = None,
        initial: Position = EARLIEST,
        topic: str = TOPIC,
    ) -> PersistentSubscription:
        cursor = await self.ledger.open_cursor(name, initial=initial)
        return PersistentSubscription(
            topic,
            name,
            self.ledger,
            cursor,
            limits=limits or SubscriptionLimits(failover_switch_delay_s=0.0),
            clock=SteadyClock.of(self.clock),
            tasks=self.tasks,
        )

    consumer = staticmethod(new_consumer)

    async def attach(
        self,
        subscription: PersistentSubscription,
        name: str,
        sub_type: SubType,
        permits: int = 1000,
        *,
        priority: int = 0,
        key_shared: KeySharedSpec | None = None,
        epoch: int | None = None,
    ) -> tuple[Consumer, RecordingSink]:
        consumer, sink = self.consumer(
            name, sub_type, priority=priority, key_shared=key_shared, epoch=epoch
        )
        await subscription.add_consumer(consumer)
        if permits:
            subscription.flow(consumer, permits)
        await self.settle()
        return consumer, sink

    async def settle(self) -> None:
        """Lets everything that is ready run: reads of this rig end by themselves."""
        for _ in range(10_000):
            await asyncio.sleep(0)
            if not len(self.tasks):
                break
        else:
            raise AssertionError("reads do not come to an end")
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def open_rig_with(
    settings: ManagedLedgerSettings, bookie: MemoryBookie | None = None
) -> AsyncIterator[Rig]:
    clock = SystemClock()
    store = MemoryStore(clock)
    client = LedgerClient(store, LocalBookies([bookie or MemoryBookie()]), clock, SINGLE)
    factory = ManagedLedgerFactory(store, client, clock, settings)
    rig = Rig(factory, await factory.open("public/default/persistent/t"))
    # Without a cursor nothing would be cached.
    await rig.ledger.open_cursor("keeper", initial=EARLIEST)
    yield rig
    await rig.tasks.stop()
    await factory.close()
    await store.close()


@pytest.fixture(params=["cached", "stored"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """With everything in the cache, and with nothing in it."""
    cache_bytes_max = 64 << 20 if request.param == "cached" else 0
    async for each in open_rig_with(ManagedLedgerSettings(cache_bytes_max=cache_bytes_max)):
        yield each


@pytest.fixture
def make_entry() -> Callable[..., bytes]:
    return entry_bytes


@pytest.fixture
def open_rig() -> Callable[..., AsyncIterator[Rig]]:
    return open_rig_with


@pytest.fixture
def make_consumer() -> Callable[..., tuple[Consumer, RecordingSink]]:
    return new_consumer
