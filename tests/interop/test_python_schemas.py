"""Schemas of the official Python client: registered, checked on change, and found by readers."""

import json
from typing import Any

import httpx
import pulsar
import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    BytesSchema,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from .support import Names, read, take


def record(name: str, **fields: object) -> Any:
    """A record class made at run time, so that two versions can share one name."""
    return type(Record)(name, (Record,), fields)


def version(message: pulsar.Message) -> int:
    """The version that a message was written with: 8 bytes, which the wheel gives as text."""
    return int.from_bytes(message.schema_version().encode("latin-1").rjust(8, b"\0"))


class Inner(Record):  # type: ignore[misc]
    flag = Boolean()


class Person(Record):  # type: ignore[misc]
    name = String()
    age = Integer()
    big = Long()
    tags = Array(String())
    counts = Map(Integer())
    inner = Inner()


def person() -> Person:
    return Person(
        name="Ann", age=7, big=2**40, tags=["a", "b"], counts={"x": 1}, inner=Inner(flag=True)
    )


def registered(admin: httpx.Client, names: Names, local: str = "topic") -> dict[str, object]:
    path = f"/admin/v2/schemas/{names.path}/{local}/schema"
    return dict(admin.get(path).raise_for_status().json())


def test_strings_and_bytes(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    text = names.topic("text")
    consumer = client.subscribe(text, "sub", schema=StringSchema())
    client.create_producer(text, schema=StringSchema()).send("grüß")
    assert take(consumer, 1)[0].value() == "grüß"
    assert registered(admin, names, "text")["type"] == "STRING"

    raw = names.topic("raw")
    consumer = client.subscribe(raw, "sub", schema=BytesSchema())
    client.create_producer(raw, schema=BytesSchema()).send(b"\x00\xff")
    assert take(consumer, 1)[0].value() == b"\x00\xff"
    assert admin.get(f"/admin/v2/schemas/{names.path}/raw/schema").status_code == 404


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_records(
    client: pulsar.Client, admin: httpx.Client, names: Names, schema: type[AvroSchema]
) -> None:
    topic = names.topic()
    consumer = client.subscribe(topic, "sub", schema=schema(Person))
    producer = client.create_producer(topic, schema=schema(Person))
    producer.send(person())
    message = take(consumer, 1)[0]
    value = message.value()
    assert (value.name, value.age, value.big) == ("Ann", 7, 2**40)
    assert (list(value.tags), dict(value.counts)) == (["a", "b"], {"x": 1})
    found = registered(admin, names)
    assert found["type"] == ("AVRO" if schema is AvroSchema else "JSON")
    assert found["version"] == 0
    assert json.loads(str(found["data"]))["name"] == "Person"
    assert version(message) == 0


def test_protobuf(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    topic = names.topic()
    schema = ProtobufNativeSchema(StringValue)
    consumer = client.subscribe(topic, "sub", schema=schema)
    client.create_producer(topic, schema=schema).send(StringValue(value="x"))
    assert take(consumer, 1)[0].value().value == "x"
    assert registered(admin, names)["type"] == "PROTOBUF_NATIVE"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=ProtobufNativeSchema(Int64Value))


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_a_compatible_change_becomes_a_new_version(
    client: pulsar.Client, admin: httpx.Client, names: Names, schema: type[AvroSchema]
) -> None:
    topic = names.topic()
    first = record("Thing", a=String())
    second = record("Thing", a=String(), b=Integer(required_default=True))
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic, schema=schema(first)).send(first(a="one"))
    client.create_producer(topic, schema=schema(second)).send(second(a="two", b=2))
    assert registered(admin, names)["version"] == 1
    # The old version is known already, and does not become a third one.
    client.create_producer(topic, schema=schema(first)).send(first(a="three"))
    assert registered(admin, names)["version"] == 1
    versions = [version(m) for m in take(consumer, 3)]
    assert versions == [0, 1, 0]


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_an_incompatible_change_is_refused(
    client: pulsar.Client, names: Names, schema: type[AvroSchema]
) -> None:
    topic = names.topic()
    first = record("Thing", a=Integer(required=True))
    other = record("Thing", a=String(required=True))
    client.create_producer(topic, schema=schema(first)).send(first(a=1))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema(other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "sub", schema=schema(other))
    client.create_producer(topic, schema=schema(first)).send(first(a=2))


def test_a_new_required_field_is_refused(client: pulsar.Client, names: Names) -> None:
    """The default strategy is FULL: old readers and new ones must both manage."""
    topic = names.topic()
    first = record("Thing", a=String())
    second = record("Thing", a=String(), b=Integer(required=True))
    client.create_producer(topic, schema=AvroSchema(first))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(second))


def test_another_type_of_schema_is_refused(client: pulsar.Client, names: Names) -> None:
    topic = names.topic()
    client.create_producer(topic, schema=AvroSchema(record("Thing", a=String())))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "sub", schema=StringSchema())


def test_a_producer_without_schema_may_use_a_topic_that_has_one(
    client: pulsar.Client, names: Names
) -> None:
    topic = names.topic()
    thing = record("Thing", a=String())
    consumer = client.subscribe(topic, "sub", schema=AvroSchema(thing))
    encoded = AvroSchema(thing).encode(thing(a="raw"))
    client.create_producer(topic).send(encoded)
    assert take(consumer, 1)[0].value().a == "raw"


def test_a_reader_uses_the_writers_schema(client: pulsar.Client, names: Names) -> None:
    topic = names.topic()
    first = record("Thing", a=String())
    second = record("Thing", a=String(), b=Integer(required_default=True))
    client.create_producer(topic, schema=AvroSchema(first)).send(first(a="old"))
    client.create_producer(topic, schema=AvroSchema(second)).send(second(a="new", b=9))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(second))
    old, new = (message.value() for message in read(reader, 2))
    assert (old.a, new.a, new.b) == ("old", "new", 9)


def test_partitions_share_the_schema_of_their_topic(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    admin.put(f"/admin/v2/persistent/{names.path}/topic/partitions", json=2).raise_for_status()
    thing = record("Thing", a=String())
    consumer = client.subscribe(topic, "sub", schema=AvroSchema(thing))
    producer = client.create_producer(topic, schema=AvroSchema(thing))
    for i in range(4):
        producer.send(thing(a=str(i)))
    assert sorted(m.value().a for m in take(consumer, 4)) == ["0", "1", "2", "3"]
    assert registered(admin, names)["version"] == 0


def test_null_values_of_a_schema(client: pulsar.Client, names: Names) -> None:
    topic = names.topic()
    thing = record("Thing", a=String())
    consumer = client.subscribe(topic, "sub", schema=AvroSchema(thing))
    client.create_producer(topic, schema=AvroSchema(thing)).send(None, partition_key="k")
    assert take(consumer, 1)[0].has_null_value()
