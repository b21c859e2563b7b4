"""Topics that are opened, unloaded, deleted and fenced while clients come and go."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.broker import HOST, running_broker
from tests.support.late_store import LateStore
from tests.support.raw_client import RawClient, Refused

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError, PersistenceError, ServerError, TopicNotFound
from magnetar.core.names import parse_topic
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import LedgerItem, decode_managed_ledger
from magnetar.metadata.records import encode
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"
WAIT_S = 20.0
NAME = parse_topic(TOPIC)
NOT_READY = int(ServerError.SERVICE_NOT_READY)


async def attached(client: RawClient, topic: str = TOPIC) -> int:
    """A producer, asked for again as often as a client would while the topic moves."""
    while True:
        try:
            return await client.producer(topic)
        except Refused as refused:
            if refused.code != NOT_READY:
                raise


async def test_who_attaches_while_a_topic_is_unloaded_gets_one_that_takes_messages() -> None:
    store = LateStore()
    async with running_broker(store=store) as (service, port):
        client = await RawClient.connect(HOST, port)
        first = await client.producer(TOPIC)
        client.send(first, 0, b"a")
        await client.receipted(first, 1)
        store.hold()
        unloading = asyncio.ensure_future(service.topics.unload(NAME))
        await store.landed.wait()
        attaching = asyncio.ensure_future(attached(client))
        for _ in range(20):
            await asyncio.sleep(0)
        store.answering.set()
        await unloading
        second = await attaching
        client.send(second, 0, b"b")
        await client.receipted(second, 1)
        assert client.send_errors == {}
        await client.close()


async def test_messages_under_way_at_an_unload_get_their_receipts() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"a")
        await client.receipted(producer, 1)
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        for number in range(1, 50):
            client.send(producer, number, b"a")
        async with asyncio.timeout(WAIT_S):
            while not topic.managed_ledger.pending_appends:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await service.topics.unload(NAME)
        await client.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC))
        assert client.closed_by_server == [producer]
        again = await service.topics.get_or_open(NAME, create=False)
        assert isinstance(again, PersistentTopic)
        last = again.managed_ledger.last_confirmed
        assert max(client.receipts[producer].values()) == last, "stored, and not receipted"
        await client.close()


async def test_who_may_create_a_topic_does_not_inherit_the_answer_of_who_may_not() -> None:
    async with running_broker() as (service, _):
        asking = asyncio.ensure_future(service.topics.get_or_open(NAME, create=False))
        await asyncio.sleep(0)
        topic = await service.topics.get_or_open(NAME, create=True)
        assert service.topics.loaded(NAME) is topic
        with pytest.raises(TopicNotFound):
            await asking


async def test_a_topic_that_another_owner_fenced_is_opened_again() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"a")
        await client.receipted(producer, 1)
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        context = service.ledgers._context
        other = ManagedLedgerFactory(context.store, context.ledgers, context.clock)
        ledger = await other.open(topic.managed_ledger.name)
        await ledger.set_properties({"other": "1"})
        await other.abandon()
        client.send(producer, 1, b"b")
        while not (client.closed_by_server or client.send_errors):
            client.on_receipt.clear()
            await asyncio.wait_for(client.on_receipt.wait(), WAIT_S)
        again = await attached(client)
        client.send(again, 1, b"b")
        await client.receipted(again, 1)
        await client.close()


async def test_a_log_whose_topic_could_not_be_opened_is_read_again_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_broker(compose(BrokerSettings, entry_metadata=("index",))) as (
        service,
        port,
    ):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"a")
        await client.receipted(producer, 1)
        await service.topics.unload(NAME)

        async def unreadable(*_: object) -> None:
            raise PersistenceError("no bookie answers")

        with monkeypatch.context() as patched:
            patched.setattr(ManagedLedger, "read_entry", unreadable)
            with pytest.raises(PersistenceError):
                await service.topics.get_or_open(NAME, create=False)
        assert not service.ledgers.opened, "another owner may write before this one asks again"
        again = await service.topics.get_or_open(NAME, create=False)
        assert isinstance(again, PersistentTopic)
        assert again.managed_ledger.entries_total == 1
        await client.close()


async def test_a_topic_that_cannot_be_opened_can_be_deleted() -> None:
    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"a")
        await client.receipted(producer, 1)
        topic = service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        await service.topics.unload(NAME)
        await client.close()
        key = f"/managed-ledgers/{topic.managed_ledger.name}"
        record = await service.store.get(key)
        assert record is not None
        # An unfinished ledger before the last: no owner leaves that, and no opening gets over it.
        stored = decode_managed_ledger(key, record.value)
        broken = replace(stored, ledgers=(LedgerItem(0, 1), LedgerItem(1, 1)))
        await service.store.put(key, encode(broken))
        with pytest.raises(MagnetarError):
            await service.topics.get_or_open(NAME, create=False)
        await service.topics.delete(NAME, force=True)
        assert not await service.topics.exists(NAME)


async def test_a_producer_creates_no_topic_where_that_is_switched_off() -> None:
    async with running_broker(compose(BrokerSettings, auto_topic_creation=False)) as (
        service,
        port,
    ):
        client = await RawClient.connect(HOST, port)
        with pytest.raises(Refused) as refused:
            await client.producer(TOPIC)
        assert refused.value.code == ServerError.TOPIC_NOT_FOUND
        assert not await service.topics.exists(NAME)
        # Partitions of a topic that is declared may come at any time.
        await service.resources.create_partitioned(NAME, 2)
        await client.producer(TOPIC + "-partition-1")
        await client.close()


async def test_no_partitions_are_declared_in_a_namespace_that_does_not_exist() -> None:
    settings = compose(BrokerSettings, auto_topic_creation_type="partitioned")
    async with running_broker(settings) as (service, port):
        client = await RawClient.connect(HOST, port)
        answer = await client.request(
            CommandType.PARTITIONED_METADATA,
            pb.CommandPartitionedTopicMetadata(topic="persistent://public/absent/t"),
        )
        assert answer.error == ServerError.TOPIC_NOT_FOUND
        assert not await service.resources.partitions(parse_topic("persistent://public/absent/t"))
        await client.close()
