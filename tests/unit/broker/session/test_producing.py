"""PRODUCER and CLOSE_PRODUCER, and the schemas that come with them."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.broker.session.stage import TOPIC, Client, broker, client_of, loaded
from tests.unit.wire import frames

from magnetar.broker.lifecycle.quota import PULSAR_TEXT
from magnetar.broker.session.refusal import checked_parts
from magnetar.broker.topic.producer import AccessMode
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.core.errors import ServerError
from magnetar.core.names import parse_topic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.policies.admission import AUTO_SUBSCRIPTION_CREATION, ENCRYPTION_REQUIRED
from magnetar.policies.lifecycle import BACKLOG_QUOTA
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.events import SendRun

PRODUCER, READY = CommandType.PRODUCER, CommandType.PRODUCER_SUCCESS
SUCCESS, ERROR = CommandType.SUCCESS, CommandType.ERROR
LIGHT = "non-persistent://public/default/n"


def producer(request_id: int = 1, producer_id: int = 1, **more: Any) -> pb.CommandProducer:
    fields = {"topic": TOPIC} | more
    return pb.CommandProducer(producer_id=producer_id, request_id=request_id, **fields)


def close(request_id: int, producer_id: int = 1) -> pb.CommandCloseProducer:
    return pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)


class Stalled:
    """Appends to a log that are completed on the test's command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls: list[Any] = []
        append = ManagedLedger.append

        def held(ledger: ManagedLedger, entries: Sequence[bytes], on_done: Any) -> None:
            self._calls.append(lambda: append(ledger, list(entries), on_done))

        monkeypatch.setattr(ManagedLedger, "append", held)

    def go_on(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


# -- PRODUCER


async def test_a_producer_command_is_decoded_completely() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        success = await client.produces(
            3,
            producer_name="p",
            user_provided_producer_name=True,
            epoch=4,
            producer_access_mode=pb.Exclusive,
            metadata=[pb.KeyValue(key="m", value="1")],
            encrypted=True,
        )
        assert (success.request_id, success.producer_name) == (3, "p")
        assert (success.producer_ready, success.topic_epoch) == (True, 0)
        (known,) = topic.producers
        assert (known.producer_id, known.name, known.generated_name) == (3, "p", False)
        assert (known.epoch, known.access_mode) == (4, AccessMode.EXCLUSIVE)
        assert (known.metadata, known.encrypted) == ({"m": "1"}, True)
        assert known.connected_since_ms == client.session.service.clock.now_ms()
        assert client.session.producers[3] == (known, topic)
        plain = await client.produces(4, topic=f"{TOPIC}2", user_provided_producer_name=False)
        (known, _) = client.session.producers[4]
        assert (known.generated_name, known.name) == (True, plain.producer_name)
        assert plain.producer_name not in ("", "p")
        assert (known.topic_epoch, known.encrypted) == (None, False)


async def test_a_producer_with_an_epoch_of_before_is_fenced() -> None:
    async with client_of() as client:
        exclusive: dict[str, Any] = {"producer_access_mode": pb.Exclusive}
        await client.produces(1, producer_name="p", **exclusive)
        await client.ask(CommandType.CLOSE_PRODUCER, close(2), SUCCESS)
        await client.produces(1, producer_name="q", **exclusive)
        await client.ask(CommandType.CLOSE_PRODUCER, close(2), SUCCESS)
        command = producer(5, producer_name="p", topic_epoch=0, **exclusive)
        error = await client.ask(PRODUCER, command, ERROR)
        assert (error.request_id, error.error) == (5, ServerError.PRODUCER_FENCED)
        assert client.session.producers == {}


async def test_generated_names_are_unique() -> None:
    async with client_of() as client:
        names = [(await client.produces(number)).producer_name for number in range(1, 5)]
        assert len(set(names)) == 4


@pytest.mark.parametrize("full", [True, False])
async def test_a_topic_above_its_backlog_quota_admits_no_producer(full: bool) -> None:
    async with client_of() as client:
        topic = await client.world.topic("t", "s")
        await client.world.publish(topic, 3, size_bytes=1_000)
        limit = 1_000 if full else 10_000
        quota = {"limitSize": limit, "limitTime": -1, "policy": "producer_exception"}
        await client.world.set(BACKLOG_QUOTA, {"destination_storage": quota})
        if not full:
            assert (await client.produces()).producer_ready
            return
        error = await client.ask(PRODUCER, producer(), ERROR)
        assert error.error == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
        assert error.message == PULSAR_TEXT
        assert (len(topic.producers), client.session.producers) == (0, {})
        assert client.session.pending_attachments == {}
        await client.consumes(topic=LIGHT)
        assert (await client.produces(2, topic=LIGHT)).producer_ready


@pytest.mark.parametrize("by", ["policy", "broker"])
@pytest.mark.parametrize("encrypted", [True, False])
async def test_required_encryption_admits_only_encrypting_producers(
    encrypted: bool, by: str
) -> None:
    async with client_of(encryption_required=by == "broker") as client:
        await client.world.set(ENCRYPTION_REQUIRED, by == "policy")
        command = producer(encrypted=encrypted)
        if encrypted:
            assert (await client.ask(PRODUCER, command, READY)).producer_ready
        else:
            error = await client.ask(PRODUCER, command, ERROR)
            assert error.error == ServerError.METADATA_ERROR


# -- its first subscription


async def test_the_first_subscription_of_a_producer_has_all_that_it_sends() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.world.publish(topic, 2)
        for number in (1, 2):  # the second finds it there
            await client.produces(number, initial_subscription_name="first")
        assert list(topic.subscriptions) == ["first"]
        cursor = topic.subscriptions["first"].cursor
        assert (cursor.durable, cursor.backlog) == (True, 2)
        await client.produces(3, topic=LIGHT, initial_subscription_name="first")
        assert not client.session.producers[3][1].subscriptions
        await client.produces(4, topic=f"{TOPIC}2")
        assert client.session.producers[4][1].subscriptions == {}


@pytest.mark.parametrize("there", [True, False])
async def test_without_auto_creation_a_producer_creates_no_subscription(there: bool) -> None:
    async with client_of() as client:
        topic = await client.world.topic("t", *(["first"] if there else []))
        value = {"allowAutoSubscriptionCreation": False}
        await client.world.set(AUTO_SUBSCRIPTION_CREATION, value)
        command = producer(initial_subscription_name="first")
        if there:
            await client.ask(PRODUCER, command, READY)
        else:
            error = await client.ask(PRODUCER, command, ERROR)
            assert error.error == ServerError.NOT_ALLOWED_ERROR
            assert len(topic.producers) == 0
        assert len(topic.subscriptions) == there


async def test_a_dead_letter_topic_keeps_its_messages_without_a_named_subscription() -> None:
    letters = f"{TOPIC}-s-DLQ"
    async with client_of() as client:
        for number in (1, 2):
            await client.produces(number, topic=letters)
        topic = await client.world.topic("t-s-DLQ")
        assert list(topic.subscriptions) == ["dlq"]
        await client.world.publish(topic, 2)
        cursor = topic.subscriptions["dlq"].cursor
        assert (cursor.durable, cursor.backlog) == (True, 2)
        # A user who deletes it, or subscribed before, decides what is kept.
        await topic.delete_subscription("dlq")
        await client.produces(3, topic=letters)
        assert not topic.subscriptions
        own = await client.world.topic("own-DLQ", "mine")
        await client.produces(4, topic=own.full_name)
        assert list(own.subscriptions) == ["mine"]
        await client.world.service.resources.create_partitioned(parse_topic(f"{TOPIC}-p-DLQ"), 2)
        part = f"{TOPIC}-p-DLQ-partition-"
        await client.produces(5, topic=f"{part}0", initial_subscription_name="x")
        await client.produces(6, topic=f"{part}1")
        parts = [list(client.session.producers[n][1].subscriptions) for n in (5, 6)]
        assert parts == [["x"], ["dlq"]]
        await client.produces(7, topic=TOPIC)
        await client.produces(8, topic=f"{LIGHT}-DLQ")
        for number in (7, 8):
            assert not client.session.producers[number][1].subscriptions


async def test_two_producers_at_once_share_the_subscription_of_a_dead_letter_topic() -> None:
    async with client_of() as client:
        for number in (1, 2):
            client.say(PRODUCER, producer(number, number, topic=f"{TOPIC}-DLQ"))
        for _ in range(2):
            await client.hears(READY)
        assert list(client.session.producers[1][1].subscriptions) == ["dlq"]
        assert len(client.session.producers[1][1].producers) == 2


@pytest.mark.parametrize("by", ["policy", "setting"])
async def test_dead_letters_are_not_kept_if_that_is_switched_off(by: str) -> None:
    off = {"dead_letter_subscription": ""} if by == "setting" else {}
    async with client_of(**off) as client:
        value = {"allowAutoSubscriptionCreation": by == "setting"}
        await client.world.set(AUTO_SUBSCRIPTION_CREATION, value)
        await client.produces(topic=f"{TOPIC}-DLQ")
        assert not client.session.producers[1][1].subscriptions


# -- pending commands


async def test_published_bytes_count_against_the_budget_until_their_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client_of() as client:
        await client.produces()
        link, budget = client.session.link, client.session.service.budget
        stalled = Stalled(monkeypatch)
        counts = []
        for number in range(2):
            client.write(frames.send(1, number))
            counts.append(link.pending_bytes)
        assert 0 < counts[0] < counts[1] == budget.pending_bytes
        stalled.go_on()
        await client.quiet()
        assert client.kinds() == ["SEND_RECEIPT", "SEND_RECEIPT"]
        assert (link.pending_bytes, budget.pending_bytes) == (0, 0)


# -- closing


async def test_a_producer_that_closes_has_its_receipts_first_and_sends_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.produces()
        stalled = Stalled(monkeypatch)
        client.write(frames.send(1, 0), frames.send(1, 1))
        client.say(CommandType.CLOSE_PRODUCER, close(2))
        client.write(frames.send(1, 2))
        again = producer(3)
        error = await client.ask(PRODUCER, again, ERROR)
        assert (error.request_id, error.error) == (3, ServerError.SERVICE_NOT_READY)
        await client.quiet()
        assert client.told() == []
        assert len(topic.producers) == 1
        stalled.go_on()
        await client.quiet()
        assert client.kinds() == ["SEND_RECEIPT", "SEND_RECEIPT", "SUCCESS"]
        assert (len(topic.producers), topic.managed_ledger.entries_total) == (0, 2)
        assert client.session.producers == {}
        client.write(frames.send(1, 3))
        assert not client.socket.closed, "it was under way when the producer was closed"
        assert (await client.produces()).producer_ready


async def test_a_producer_that_closes_twice_is_answered_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client_of() as client:
        await client.produces()
        stalled = Stalled(monkeypatch)
        client.write(frames.send(1, 0))
        client.say(CommandType.CLOSE_PRODUCER, close(2))
        client.say(CommandType.CLOSE_PRODUCER, close(3))
        stalled.go_on()
        await client.quiet()
        told: list[Any] = [each.message for each in client.told()]
        answered = [each.request_id for each in told if isinstance(each, pb.CommandSuccess)]
        assert sorted(answered) == [2, 3]
        assert client.session.producers == {}


async def test_a_disconnected_consumer_reattaches_and_its_late_close_leaves_the_new_one() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.produces()
        (before, _) = client.session.producers[1]
        topic.producers.close_all()
        assert client.kinds() == ["CLOSE_PRODUCER"]
        await client.produces()
        (after, _) = client.session.producers[1]
        assert after is not before
        assert list(topic.producers) == [after]
        topic.producers.close_all()
        await client.ask(CommandType.CLOSE_PRODUCER, close(3), SUCCESS)
        assert client.session.producers == {}


@pytest.mark.parametrize("how", ["closed", "lost"])
async def test_a_producer_that_ends_while_it_attaches_is_removed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker() as w:
        topic = await loaded(w)
        client = Client(w).connect()
        reached, go_on, add = asyncio.Event(), asyncio.Event(), ProducerRegistry.add

        async def slowly(self: ProducerRegistry, one: Any) -> None:
            await add(self, one)
            reached.set()
            await go_on.wait()

        monkeypatch.setattr(ProducerRegistry, "add", slowly)
        client.say(PRODUCER, producer(producer_name="n"))
        await reached.wait()
        assert len(topic.producers) == 1
        if how == "closed":
            client.say(CommandType.CLOSE_PRODUCER, close(2))
        else:
            client.session.lost(None)
        await client.quiet()
        assert len(topic.producers) == 0
        assert (client.session.producers, client.session.pending_attachments) == ({}, {})
        assert client.kinds() == (["SUCCESS"] if how == "closed" else [])


async def test_a_producer_whose_connection_is_closing_is_removed() -> None:
    async with broker() as w:
        topic = await loaded(w)
        client = Client(w).connect()
        client.say(PRODUCER, producer())
        client.socket.closed = True  # as the broker closes it; it is not lost yet
        await client.quiet()
        assert (len(topic.producers), client.session.producers) == (0, {})
        client.session.lost(None)


async def test_a_repeated_producer_is_answered_with_the_newer_request() -> None:
    async with client_of() as client:
        first = await client.produces(1, producer_name="p")
        client.say(PRODUCER, producer(9, producer_name="p"))
        (told,) = client.told()
        again: Any = told.message
        assert (again.request_id, again.producer_name) == (9, first.producer_name)
        client.say(PRODUCER, producer(10, producer_id=2))
        error = await client.ask(PRODUCER, producer(11, producer_id=2), ERROR)
        assert (error.request_id, error.error) == (11, ServerError.SERVICE_NOT_READY)
        assert (await client.hears(READY)).request_id == 10


# -- schemas


def schema(text: str, kind: Any = pb.Schema.Json) -> pb.Schema:
    return pb.Schema(
        name="s",
        schema_data=text.encode(),
        type=kind,
        properties=[pb.KeyValue(key="k", value="v")],
    )


def record_of(*fields: str) -> str:
    optional = {"type": ["null", "string"], "default": None}
    listed = [{"name": each, **optional} for each in fields]
    return json.dumps({"type": "record", "name": "r", "fields": listed})


async def get_schema(client: Client, topic: str = TOPIC, **fields: Any) -> Any:
    ask = pb.CommandGetSchema(request_id=7, topic=topic, **fields)
    return await client.ask(CommandType.GET_SCHEMA, ask, CommandType.GET_SCHEMA_RESPONSE)


async def make_schema(client: Client, wanted: pb.Schema, topic: str = TOPIC) -> Any:
    ask = pb.CommandGetOrCreateSchema(request_id=8, topic=topic, schema=wanted)
    kind = CommandType.GET_OR_CREATE_SCHEMA_RESPONSE
    return await client.ask(CommandType.GET_OR_CREATE_SCHEMA, ask, kind)


async def test_a_schema_comes_back_as_it_was_given_by_its_version_or_as_the_newest() -> None:
    async with client_of() as client:
        await loaded(client.world)
        older, newer = schema(record_of("a")), schema(record_of("a", "b"))
        first = (await client.produces(1, schema=older)).schema_version
        made = await make_schema(client, newer)
        assert (made.request_id, made.HasField("error_code")) == (8, False)
        assert made.schema_version != first
        assert (await make_schema(client, older)).schema_version == first
        for version, expected in ((first, older), (made.schema_version, newer), (None, newer)):
            fields = {} if version is None else {"schema_version": version}
            found = await get_schema(client, **fields)
            assert (found.request_id, found.HasField("error_code")) == (7, False)
            assert found.schema.schema_data == expected.schema_data
            assert (found.schema.type, found.schema.name) == (
                pb.Schema.Json,
                "public/default/t",
            )
            assert [(each.key, each.value) for each in found.schema.properties] == [("k", "v")]
            assert found.schema_version == (version or made.schema_version)


async def test_the_schema_of_a_partition_is_its_topics() -> None:
    async with client_of() as client:
        await client.world.service.topics.create_partitioned(parse_topic(TOPIC), 2, {})
        await client.produces(1, topic=f"{TOPIC}-partition-1", schema=schema(record_of("a")))
        found = await get_schema(client, f"{TOPIC}-partition-0")
        assert found.schema.name == "public/default/t"
        assert found.schema.schema_data == record_of("a").encode()


async def test_a_missing_schema_is_answered_in_its_own_form() -> None:
    async with client_of() as client:
        await loaded(client.world)
        for fields, code in (
            ({}, ServerError.TOPIC_NOT_FOUND),
            ({"schema_version": b""}, ServerError.INCOMPATIBLE_SCHEMA),
            ({"topic": "nonsense://a/b/c"}, ServerError.INVALID_TOPIC_NAME),
        ):
            found = await get_schema(client, **fields)
            assert (found.request_id, found.error_code) == (7, code)
            assert found.error_message
            assert not found.HasField("schema")
        found = await make_schema(client, schema(record_of("a")), f"{TOPIC}-none")
        assert (found.request_id, found.error_code) == (8, ServerError.TOPIC_NOT_FOUND)
        assert found.error_message
        found = await make_schema(client, schema("no json"))
        assert found.error_code
        nothing = await make_schema(client, schema("", pb.Schema.Type.Value("None")))
        assert (nothing.HasField("error_code"), nothing.schema_version) == (False, b"")
        assert (await get_schema(client)).error_code == ServerError.TOPIC_NOT_FOUND


async def test_a_consumer_whose_schema_does_not_fit_is_refused() -> None:
    async with client_of() as client:
        await client.produces(1, schema=schema(record_of("a")))
        subscribe = pb.CommandSubscribe(
            topic=TOPIC,
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=5,
            schema=pb.Schema(name="s", schema_data=b"", type=pb.Schema.Int32),
        )
        error = await client.ask(CommandType.SUBSCRIBE, subscribe, ERROR)
        assert (error.request_id, error.error) == (5, ServerError.INCOMPATIBLE_SCHEMA)
        assert client.session.consumers == {}
        subscribe.schema.CopyFrom(schema(record_of("a")))
        await client.ask(CommandType.SUBSCRIBE, subscribe, SUCCESS)


async def test_a_producer_whose_schema_does_not_fit_is_refused() -> None:
    async with broker() as w:
        client = Client(w).connect()
        await client.produces(1, schema=schema(record_of("a")))
        wrong = pb.Schema(name="s", schema_data=b"", type=pb.Schema.Int32)
        error = await client.ask(PRODUCER, producer(5, 2, schema=wrong), ERROR)
        assert (error.request_id, error.error) == (5, ServerError.INCOMPATIBLE_SCHEMA)
        assert set(client.session.producers) == {1}


async def test_a_broker_that_requires_encryption_stores_nothing_plain() -> None:
    async with client_of(encryption_required=True) as client:
        topic = await loaded(client.world)
        await client.produces(1, encrypted=True)
        client.write(frames.send(1, 0))
        error = await client.hears(CommandType.SEND_ERROR)
        assert error.message == "Messages must be encrypted"
        assert topic.managed_ledger.entries_total == 0


def checked(*entries: bytes) -> list[tuple[list[int], tuple[int, ...], tuple[int, ...], bool]]:
    """Each part's sequence ids, delivery times and delays, and whether it is refused."""
    count = len(entries)
    ids = list(range(count))
    run = SendRun(1, ids, ids, [1] * count, list(entries))
    return [
        (part.sequence_ids, part.deliver_at_ms, part.delays_ms, error is not None)
        for part, error in checked_parts(run)
    ]


def test_sends_are_split_by_their_delivery_times_and_unreadable_ones_refused() -> None:
    plain = [frames.entry(), frames.entry(deliver_at_time=-5)]
    late = [frames.entry(deliver_at_time=7), frames.entry(deliver_at_time=9)]
    unreadable = b"\x00\x00\x00\x02\xff\xff"
    assert checked(*plain) == [([0, 1], (), (), False)]
    assert checked(*late) == [([0, 1], (7, 9), (6, 8), False)]
    assert checked(*late, *plain, unreadable, unreadable, *late) == [
        ([0, 1], (7, 9), (6, 8), False),
        ([2, 3], (), (), False),
        ([4], (), (), True),
        ([5], (), (), True),
        ([6, 7], (7, 9), (6, 8), False),
    ]
