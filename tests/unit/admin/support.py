"""A broker with a bookie and metadata in memory, and its admin REST without sockets."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
from tests.support.memory_bookie import MemoryBookie

from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.assemble import assemble
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.broker.service import BrokerService
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataStore
from magnetar.settings.broker import BrokerSettings
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry
from magnetar.wire.events import SendRun

BROKER = "127.0.0.1:8080"
NO_BODY = object()


class Peer:
    """A connection that records its calls: the client of producers and consumers."""

    address = "/127.0.0.1:40712"
    client_version = "Pulsar-CPP-v4.2.0"
    protocol_version = 21
    writable = True

    def __init__(self) -> None:
        self.delivered: list[Delivery] = []
        self.closed_consumers: list[int] = []
        self.receipted = asyncio.Event()

    async def is_alive(self) -> bool:
        return True

    def publishing(self, size_bytes: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def send_receipts(
        self,
        producer: Producer,
        run: SendRun,
        ledger_id: int,
        first_entry_id: int,
        *,
        stored: bool = True,
    ) -> None:
        self.receipted.set()

    def send_errors(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        raise error

    def producer_ready(self, producer: Producer) -> None: ...

    def producer_refused(self, producer: Producer, error: MagnetarError) -> None: ...

    def close_producer(
        self, producer: Producer, destination: BrokerRecord | None = None
    ) -> None: ...

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
        self.delivered += deliveries

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None: ...

    def end_of_topic(self, consumer_id: int) -> None: ...

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        self.closed_consumers.append(consumer_id)


@dataclass(slots=True)
class Admin:
    """A broker and a client of its REST."""

    service: BrokerService
    page: MetricsPage
    http: httpx.AsyncClient

    async def call(
        self, method: str, path: str, body: object = NO_BODY, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Sends a request; `~` at the start of the path means /admin/v2."""
        url = "/admin/v2" + path[1:] if path.startswith("~") else path
        if body is NO_BODY:
            return await self.http.request(method, url, headers=headers)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **(headers or {})}
        return await self.http.request(method, url, content=content, headers=headers)

    async def done(self, method: str, path: str, body: object = NO_BODY) -> httpx.Response:
        """Sends a request that must succeed."""
        response = await self.call(method, path, body)
        assert response.status_code < 300, f"{method} {path}: {response.text}"
        return response

    async def topic(self, local: str = "a") -> PersistentTopic:
        topic = await self.service.topics.get_or_open(topic_name(local), create=True)
        assert isinstance(topic, PersistentTopic)
        return topic

    async def publish(
        self, payloads: Sequence[bytes], local: str = "a", producer: Producer | None = None
    ) -> list[Position]:
        """Publishes each payload as an entry; with a producer, as a single run."""
        topic = await self.topic(local)
        entries = [entry(payload, number) for number, payload in enumerate(payloads)]
        if producer is None:
            return [await append(topic, each) for each in entries]
        numbers = list(range(len(entries)))
        ones = [1] * len(entries)
        run = SendRun(producer.producer_id, numbers, numbers, ones, entries, sum(map(len, entries)))
        peer = producer.sink
        assert isinstance(peer, Peer)
        peer.receipted.clear()
        topic.publish(producer, run)
        await asyncio.wait_for(peer.receipted.wait(), 20)
        return []

    async def producer(self, local: str = "a", name: str = "p") -> Producer:
        topic = await self.topic(local)
        producer = Producer(
            1, name, Peer(), epoch=0, generated_name=False, access_mode=AccessMode.SHARED,
            topic_epoch=None, request_id=1, connected_since_ms=1_700_000_000_000,
            metadata=[("team", "x")],
        )  # fmt: skip
        await topic.add_producer(producer)
        return producer

    async def consumer(
        self, subscription: str, kind: SubType, local: str = "a", name: str = "c"
    ) -> Consumer:
        topic = await self.topic(local)
        spec = ConsumerSpec(7, name, kind, metadata={"a": "b"})
        consumer = Consumer(spec, Peer(), self.service.clock)
        attached = await topic.subscribe(SubscribeRequest(subscription, spec), consumer)
        attached.flow(consumer, 1_000)
        return consumer


def metadata(number: int = 0, **fields: object) -> MessageMetadata:
    defaults: dict[str, object] = {
        "producer_name": "p",
        "sequence_id": number,
        "publish_time": 1_700_000_000_000 + number,
    }
    return MessageMetadata(**(defaults | fields))  # type: ignore[arg-type]


def entry(payload: bytes, number: int = 0, **fields: object) -> bytes:
    return build_entry(metadata(number, **fields), payload)


async def append(topic: PersistentTopic, data: bytes) -> Position:
    """Appends an entry to the topic's log; returns once it is durable."""
    done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def appended(ledger_id: int, entry_id: int, error: MagnetarError | None) -> None:
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(Position(ledger_id, entry_id))

    topic.managed_ledger.append([data], appended)
    return await asyncio.wait_for(done, 20)


def topic_name(local: str) -> TopicName:
    return parse_topic(f"persistent://t1/n1/{local}")


async def start_service(
    settings: BrokerSettings | None = None,
    store: MemoryStore | None = None,
    secure: Callable[[MetadataStore, Clock], BrokerSecurity | None] = lambda _store, _clock: None,
) -> BrokerService:
    """Returns a broker with tenant `t1` and namespace `t1/n1`, without a listener."""
    clock = SystemClock()
    store = store or MemoryStore(clock)
    ledgers = LedgerClient(store, LocalBookies([MemoryBookie()]), clock, SINGLE)
    urls = Urls("pulsar://127.0.0.1:6650", f"http://{BROKER}")
    record = BrokerRecord(BROKER, 1, "127.0.0.1", 6650, urls)
    security = secure(store, clock)
    service = assemble(
        settings or BrokerSettings(), store, ledgers, clock, record, security=security
    )
    data = {"serviceUrl": service.http_url, "brokerServiceUrl": service.service_url}
    await service.resources.create_cluster("standalone", data)
    info = {"adminRoles": [], "allowedClusters": ["standalone"]}
    await service.resources.create_tenant("t1", info)
    await service.resources.create_namespace(
        NamespaceName.parse("t1/n1"), default_policies("standalone")
    )
    await service.follow_policies()
    return service


async def stop_service(service: BrokerService) -> None:
    await service.stop()
    await service.ledgers.close()
    await service.store.close()
