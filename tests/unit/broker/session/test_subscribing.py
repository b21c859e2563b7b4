"""SUBSCRIBE: its fields, its effects, and the state after a refusal."""

from typing import Any

import pytest
from tests.unit.broker.session.stage import TOPIC, Client, broker, client_of, loaded

from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.core.errors import ServerError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

SUBSCRIBE, SUCCESS, ERROR = CommandType.SUBSCRIBE, CommandType.SUCCESS, CommandType.ERROR
Subscribe = pb.CommandSubscribe
NOWHERE = 2**64 - 1


def subscribe(**fields: Any) -> pb.CommandSubscribe:
    wanted: dict[str, Any] = {"topic": TOPIC, "subscription": "s", "subType": Subscribe.Shared}
    return Subscribe(consumer_id=1, request_id=1, **(wanted | fields))


# -- SUBSCRIBE


async def test_a_subscribe_command_is_decoded_completely() -> None:
    async with client_of() as client:
        command = subscribe(
            subType=Subscribe.Key_Shared,
            consumer_name="c",
            priority_level=3,
            consumer_epoch=7,
            keySharedMeta=pb.KeySharedMeta(
                keySharedMode=pb.STICKY,
                hashRanges=[pb.IntRange(start=0, end=9), pb.IntRange(start=20, end=30)],
                allowOutOfOrderDelivery=True,
            ),
            metadata=[pb.KeyValue(key="m", value="1")],
            subscription_properties=[pb.KeyValue(key="s", value="2")],
        )
        await client.ask(SUBSCRIBE, command, SUCCESS)
        attachment = client.session.consumers[1]
        spec = attachment.consumer.spec
        assert (spec.consumer_id, spec.name, spec.sub_type) == (1, "c", SubType.Key_Shared)
        assert (spec.priority_level, spec.consumer_epoch) == (3, 7)
        assert (spec.durable, spec.read_compacted, spec.has_schema) == (True, False, True)
        ranges = ((0, 9), (20, 30))
        assert spec.key_shared == KeySharedSpec(KeySharedMode.STICKY, ranges, True)
        assert spec.metadata == {"m": "1"}
        assert spec.start_message_id is None
        assert isinstance(attachment.subscription, PersistentSubscription)
        assert attachment.subscription.cursor.properties == {"s": "2"}
        assert client.session.consumer(1) is attachment.consumer
        assert client.session.consumer(2) is None


@pytest.mark.parametrize(
    ("position", "unread"), [(Subscribe.Earliest, 3), (Subscribe.Latest, 0), (None, 0)]
)
async def test_a_new_subscription_begins_where_its_consumer_says(
    position: Any, unread: int
) -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.world.publish(topic, 3)
        fields = {} if position is None else {"initialPosition": position}
        await client.ask(SUBSCRIBE, subscribe(**fields), SUCCESS)
        assert topic.subscriptions["s"].cursor.backlog == unread


@pytest.mark.parametrize(
    ("start", "unread"),
    [(EARLIEST, 3), (LATEST, 0), (None, 0), ("third", 1)],
)
async def test_a_reader_begins_at_its_message_and_leaves_nothing(
    start: Position | str | None, unread: int
) -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        places = await client.world.publish(topic, 3)
        fields: dict[str, Any] = {"durable": False, "subType": Subscribe.Exclusive}
        if start is not None:
            place = places[2] if isinstance(start, str) else start
            message_id = pb.MessageIdData(
                ledgerId=place.ledger_id & NOWHERE, entryId=place.entry_id & NOWHERE
            )
            fields["start_message_id"] = message_id
        await client.ask(SUBSCRIBE, subscribe(**fields), SUCCESS)
        cursor = topic.subscriptions["s"].cursor
        assert (cursor.durable, cursor.backlog) == (False, unread)
        close = pb.CommandCloseConsumer(consumer_id=1, request_id=2)
        await client.ask(CommandType.CLOSE_CONSUMER, close, SUCCESS)
        assert topic.subscriptions == {}


async def test_a_reader_may_begin_so_many_seconds_ago() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.world.publish(topic, 4, every_ms=10_000)
        fields = {"durable": False, "start_message_rollback_duration_sec": 15}
        await client.ask(SUBSCRIBE, subscribe(**fields), SUCCESS)
        assert topic.subscriptions["s"].cursor.backlog == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"subscription": ""}, ServerError.METADATA_ERROR),
        ({"read_compacted": True}, ServerError.NOT_ALLOWED_ERROR),
        (
            {"read_compacted": True, "subType": Subscribe.Key_Shared},
            ServerError.NOT_ALLOWED_ERROR,
        ),
        (
            {
                "read_compacted": True,
                "subType": Subscribe.Exclusive,
                "topic": "non-persistent://public/default/n",
            },
            ServerError.NOT_ALLOWED_ERROR,
        ),
        ({"topic": "nonsense://a/b/c"}, ServerError.INVALID_TOPIC_NAME),
        ({"force_topic_creation": False, "topic": f"{TOPIC}-none"}, ServerError.TOPIC_NOT_FOUND),
    ],
)
async def test_what_cannot_be_had_is_refused_and_leaves_nothing(
    fields: dict[str, Any], code: ServerError
) -> None:
    async with client_of() as client:
        error = await client.ask(SUBSCRIBE, subscribe(**fields), ERROR)
        assert (error.request_id, error.error) == (1, code)
        assert client.session.consumers == {}
        assert client.session.pending_attachments == {}


@pytest.mark.parametrize("sub_type", [Subscribe.Exclusive, Subscribe.Failover])
async def test_a_consumer_with_read_compacted_reads_the_compacted_log(sub_type: Any) -> None:
    async with client_of() as client:
        command = subscribe(subType=sub_type, read_compacted=True)
        await client.ask(SUBSCRIBE, command, SUCCESS)
        consumer = client.session.consumers[1].consumer
        assert consumer.spec.read_compacted
        assert consumer.compacted is not None
        plain = subscribe(subscription="plain", subType=sub_type)
        plain.consumer_id = plain.request_id = 2
        await client.ask(SUBSCRIBE, plain, SUCCESS)
        assert client.session.consumers[2].consumer.compacted is None


async def test_one_without_a_schema_of_its_own_is_known_by_that() -> None:
    async with client_of() as client:
        schema = pb.Schema(name="s", schema_data=b"", type=pb.Schema.AutoConsume)
        await client.ask(SUBSCRIBE, subscribe(schema=schema), SUCCESS)
        assert not client.session.consumers[1].consumer.spec.has_schema


async def test_a_consumer_that_was_sent_away_is_attached_by_the_next_subscribe() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes()
        subscription = topic.subscriptions["s"]
        before = client.session.consumers[1].consumer
        await client.consumes()
        assert subscription.consumers == [before], "it was there still"
        await subscription.seek(EARLIEST)
        assert subscription.consumers == []
        await client.consumes()
        (after,) = subscription.consumers
        assert client.session.consumers[1].consumer is after is not before


async def test_a_repeated_subscribe_before_the_answer_is_refused() -> None:
    async with client_of() as client:
        client.say(SUBSCRIBE, subscribe())
        again = subscribe()
        again.request_id = 2
        error = await client.ask(SUBSCRIBE, again, ERROR)
        assert (error.request_id, error.error) == (2, ServerError.SERVICE_NOT_READY)
        assert (await client.hears(SUCCESS)).request_id == 1
        assert client.session.pending_attachments == {}


async def test_a_consumer_whose_connection_ends_during_its_attach_holds_nothing() -> None:
    async with broker() as w:
        topic = await loaded(w)
        client = Client(w).connect()
        client.say(SUBSCRIBE, subscribe())
        client.socket.closed = True  # as the broker closes it; it is not lost yet
        await client.quiet()
        assert client.session.consumers == {}
        assert topic.subscriptions["s"].consumers == []
        client.session.lost(None)
        other = Client(w).connect()
        await other.consumes()
        assert len(topic.subscriptions["s"].consumers) == 1
