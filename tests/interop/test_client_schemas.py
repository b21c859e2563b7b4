"""Schemas of our own client, and of the official Python client beside it, in both directions."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import httpx
import pulsar
import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from pulsar import schema as wheel

from magnetar.client import (
    EARLIEST,
    AutoConsumeSchema,
    AvroSchema,
    Client,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    ProtobufNativeSchema,
    StringSchema,
)
from magnetar.client import schema as schemas
from magnetar.client.errors import IncompatibleSchema, SchemaFailed

from .client_rig import take, values
from .support import Names, ServerAddress
from .support import take as take_official

BOTH = [(JsonSchema, wheel.JsonSchema), (AvroSchema, wheel.AvroSchema)]


@pytest.fixture
async def own(server: ServerAddress) -> AsyncIterator[Client]:
    async with Client(server.service_url) as client:
        yield client


class Colour(Enum):
    RED = 1
    GREEN = 2


@dataclass
class Line:
    price: float
    count: schemas.Int32


@dataclass
class Order:
    number: int
    name: str | None
    paid: bool
    colour: Colour
    first: Line
    lines: list[Line] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


class WheelLine(wheel.Record):  # type: ignore[misc]
    price = wheel.Double(required=True)
    count = wheel.Integer(required=True)


class WheelOrder(wheel.Record):  # type: ignore[misc]
    number = wheel.Long(required=True)
    name = wheel.String()
    paid = wheel.Boolean(required=True)
    colour = wheel.CustomEnum(Colour, required=True)
    first = WheelLine(required=True)
    lines = wheel.Array(WheelLine(), required=True)
    counts = wheel.Map(wheel.Long(), required=True)


ORDER = Order(
    2**40, "Ann", True, Colour.GREEN, Line(1.5, 2), [Line(2.0, 1)], {"x": 1}
)  # fmt: skip


def registered(admin: httpx.Client, names: Names) -> dict[str, Any]:
    answer = admin.get(f"/admin/v2/schemas/{names.path}/topic/schema")
    return dict(answer.raise_for_status().json())


@pytest.mark.parametrize(("kind", "official"), BOTH)
async def test_records_go_both_ways(
    own: Client, client: pulsar.Client, topic: str, kind: Any, official: Any
) -> None:
    async with own.consumer(topic, "ours", schema=kind(Order)) as ours:
        theirs = client.subscribe(topic, "theirs")
        async with own.producer(topic, schema=kind(Order)) as producer:
            await producer.send(ORDER)
        assert values(await take(ours, 1)) == [ORDER]
        order = official(WheelOrder).decode(take_official(theirs, 1)[0].data())
        assert (order.number, order.name, order.paid) == (2**40, "Ann", True)
        assert (order.first.price, order.first.count) == (1.5, 2)
        assert [line.price for line in order.lines] == [2.0]
        sent = WheelOrder(
            number=1, paid=False, colour=Colour.RED, first=WheelLine(price=0.5, count=3),
            lines=[WheelLine(price=1.0, count=1)], counts={"y": 2},
        )  # fmt: skip
        raw = client.create_producer(topic)
        raw.send(official(WheelOrder).encode(sent))
        (message,) = await take(ours, 1)
        expected = Order(1, None, False, Colour.RED, Line(0.5, 3), [Line(1.0, 1)], {"y": 2})
        assert message.value == expected


@dataclass
class Plain:
    a: str | None
    b: int


class WheelPlain(wheel.Record):  # type: ignore[misc]
    a = wheel.String(required_default=True)
    b = wheel.Long(required=True)


WheelPlain.__name__ = "Plain"


@pytest.mark.parametrize(("kind", "official"), BOTH)
async def test_both_clients_register_the_same_definition(
    own: Client, client: pulsar.Client, admin: httpx.Client, names: Names, kind: Any, official: Any
) -> None:
    topic = names.topic()
    theirs = client.subscribe(topic, "theirs", schema=official(WheelPlain))
    async with (
        own.producer(topic, schema=kind(Plain)) as producer,
        own.consumer(topic, "ours", schema=kind(Plain)) as ours,
    ):
        await producer.send(Plain("x", 1))
        received = take_official(theirs, 1)[0].value()
        assert (received.a, received.b) == ("x", 1)
        client.create_producer(topic, schema=official(WheelPlain)).send(WheelPlain(a="y", b=2))
        assert values(await take(ours, 2)) == [Plain("x", 1), Plain("y", 2)]
    assert registered(admin, names)["version"] == 0


@dataclass
class Wider:
    a: str | None
    b: int
    c: int = 7


Wider.__name__ = "Plain"


async def test_each_message_is_read_with_its_writers_schema(
    own: Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    writers: list[tuple[Any, Any]] = [
        (AvroSchema(Plain), Plain("x", 1)),
        (AvroSchema(Wider), Wider("y", 2, 3)),
    ]
    for schema, value in writers:
        async with own.producer(topic, schema=schema) as producer:
            await producer.send(value)
    assert registered(admin, names)["version"] == 1
    async with own.reader(topic, EARLIEST, schema=AvroSchema(Wider)) as reader:
        first, second = await reader.read(30), await reader.read(30)
        assert [first.value, second.value] == [Wider("x", 1, 7), Wider("y", 2, 3)]
        assert first.schema_version != second.schema_version
    async with own.reader(topic, EARLIEST, schema=AutoConsumeSchema()) as reader:
        assert (await reader.read(30)).value == {"a": "x", "b": 1}
        assert (await reader.read(30)).value == {"a": "y", "b": 2, "c": 3}


@dataclass
class Narrow:
    a: str | None
    b: int
    c: int


Narrow.__name__ = "Plain"


async def test_refusals_name_the_field(own: Client, topic: str) -> None:
    async with own.producer(topic, schema=JsonSchema(Plain)):
        with pytest.raises(IncompatibleSchema, match=r"Plain\.c is missing .* has no default"):
            await own.producer(topic, schema=JsonSchema(Narrow))
        with pytest.raises(IncompatibleSchema, match=r"Plain\.c is missing .* has no default"):
            await own.consumer(topic, "sub", schema=JsonSchema(Narrow))
        with pytest.raises(IncompatibleSchema, match="type JSON, this one is STRING"):
            await own.producer(topic, schema=StringSchema())


async def test_protobuf_goes_both_ways(
    own: Client, client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    official = wheel.ProtobufNativeSchema(StringValue)
    theirs = client.subscribe(topic, "theirs", schema=official)
    schema = ProtobufNativeSchema(StringValue)
    async with (
        own.consumer(topic, "ours", schema=schema) as ours,
        own.consumer(topic, "any", schema=AutoConsumeSchema()) as anything,
        own.producer(topic, schema=schema) as producer,
    ):
        await producer.send(StringValue(value="x"))
        assert take_official(theirs, 1)[0].value().value == "x"
        client.create_producer(topic, schema=official).send(StringValue(value="y"))
        assert [m.value.value for m in await take(ours, 2)] == ["x", "y"]
        assert [m.value.value for m in await take(anything, 2)] == ["x", "y"]
        with pytest.raises(IncompatibleSchema):
            await own.producer(topic, schema=ProtobufNativeSchema(Int64Value))
    assert registered(admin, names)["type"] == "PROTOBUF_NATIVE"


@pytest.mark.parametrize("separated", [False, True])
async def test_pairs(own: Client, admin: httpx.Client, names: Names, separated: bool) -> None:
    topic = names.topic()
    schema = KeyValueSchema(StringSchema(), AvroSchema(Plain), separated=separated)
    async with (
        own.consumer(topic, "typed", schema=schema) as typed,
        own.consumer(topic, "any", schema=AutoConsumeSchema()) as anything,
        own.producer(topic, schema=schema) as producer,
    ):
        await producer.send(KeyValue("k", Plain("x", 1)))
        (message,) = await take(typed, 1)
        assert message.value == KeyValue("k", Plain("x", 1))
        assert message.key_bytes == (b"k" if separated else None)
        assert values(await take(anything, 1)) == [("k", {"a": "x", "b": 1})]
    found = registered(admin, names)
    assert found["type"] == "KEY_VALUE"
    assert json.loads(found["data"])["value"]["name"] == "Plain"
    assert found["properties"]["kv.encoding.type"] == ("SEPARATED" if separated else "INLINE")


async def test_primitives(own: Client, names: Names) -> None:
    kinds: list[tuple[Any, Any]] = [
        (schemas.BooleanSchema(), True),
        (schemas.Int8Schema(), -1),
        (schemas.Int64Schema(), 2**40),
        (schemas.DoubleSchema(), 0.5),
        (StringSchema(), "grüß"),
    ]
    for kind, value in kinds:
        topic = names.topic(type(kind).__name__)
        async with own.producer(topic, schema=kind) as producer:
            await producer.send(value)
            await producer.send(None, key="k")
        async with own.reader(topic, schema=AutoConsumeSchema()) as reader:
            assert (await reader.read(30)).value == value
        async with own.reader(topic, schema=kind) as typed:
            assert (await typed.read(30)).value == value
            assert (await typed.read(30)).is_null


async def test_a_value_of_another_type_is_refused_before_it_is_sent(
    own: Client, topic: str
) -> None:
    async with own.producer(topic, schema=AvroSchema(Plain)) as producer:
        with pytest.raises(SchemaFailed, match=r"Plain.b: 'x' is not an int"):
            await producer.send(Plain("a", "x"))  # type: ignore[arg-type]
        assert producer.stats.pending_messages == 0
