"""Primitives, pairs, protobuf, and reading any schema."""

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import schema as schemas
from magnetar.client.errors import InvalidConfiguration, SchemaFailed
from magnetar.client.schema import (
    AutoConsumeSchema,
    AvroSchema,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    ProtobufNativeSchema,
    SchemaInfo,
    SchemaType,
    StringSchema,
)
from magnetar.client.schema.auto_consume import schema_of
from magnetar.client.schema.evolution import reason_of
from magnetar.schemas.key_value import split_key_value
from magnetar.schemas.protobuf import root_message

MOMENT = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)

JAVA = [
    ("BooleanSchema", True, b"\x01"),
    ("Int8Schema", -1, b"\xff"),
    ("Int16Schema", 258, b"\x01\x02"),
    ("Int32Schema", -2, b"\xff\xff\xff\xfe"),
    ("Int64Schema", 2**40, struct.pack(">q", 2**40)),
    ("FloatSchema", 1.5, struct.pack(">f", 1.5)),
    ("DoubleSchema", 0.1, struct.pack(">d", 0.1)),
    ("DateSchema", MOMENT, struct.pack(">q", -1)),
    ("TimeSchema", MOMENT, struct.pack(">q", -1)),
    ("TimestampSchema", MOMENT, struct.pack(">q", -1)),
    ("InstantSchema", MOMENT, struct.pack(">qi", -1, 999_000_000)),
    ("LocalDateSchema", date(1970, 1, 3), struct.pack(">q", 2)),
    ("LocalTimeSchema", time(0, 0, 1, 1), struct.pack(">q", 1_000_001_000)),
    ("LocalDateTimeSchema", datetime(1970, 1, 2, 0, 0, 1), struct.pack(">qq", 1, 10**9)),  # noqa: DTZ001
]
"""Values with the bytes of Java's schemas."""


@pytest.mark.parametrize(("name", "value", "data"), JAVA)
def test_primitives_have_javas_bytes(name: str, value: object, data: bytes) -> None:
    schema = getattr(schemas, name)()
    assert schema.encode(value) == data
    assert schema.decode(data, None) == value
    for bad in (data + b"\0", data[1:]):
        with pytest.raises(SchemaFailed, match=schema.info.name):
            schema.decode(bad, None)
    with pytest.raises(SchemaFailed):
        schema.encode("x")
    assert schema_of(schema.info).decode(data, None) == value


@pytest.mark.parametrize(("name", "value"), [("Int8Schema", 128), ("Int64Schema", 2**63)])
def test_numbers_that_do_not_fit(name: str, value: int) -> None:
    with pytest.raises(SchemaFailed, match="does not fit"):
        getattr(schemas, name)().encode(value)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))])))
def test_instants(moment: datetime) -> None:
    schema = schemas.InstantSchema()
    assert schema.decode(schema.encode(moment), None) == moment


@given(st.binary(max_size=20))
def test_any_bytes_are_a_value_or_a_clear_error(data: bytes) -> None:
    for name, value, _ in JAVA:
        try:
            decoded = getattr(schemas, name)().decode(data, None)
        except SchemaFailed:
            continue
        assert isinstance(decoded, type(value))


@dataclass
class Thing:
    a: str
    b: int = 0


# -- pairs -----------------------------------------------------------------------------------------


def test_pairs_in_the_payload() -> None:
    schema = KeyValueSchema(StringSchema(), JsonSchema(Thing))
    pair = KeyValue("k", Thing("x"))
    data = schema.encode(pair)
    assert data == b"\0\0\0\x01k\0\0\0\x0f" + b'{"a":"x","b":0}'
    assert schema.decode(data, None) == pair
    assert schema.encode(KeyValue(None, None)) == b"\xff" * 8  # type: ignore[arg-type]
    assert schema.decode(b"\xff" * 8, None) == KeyValue[Any, Any](None, None)
    for bad in (b"", b"\0\0\0\x05k", data + b"x", b"\xff\xff\xff\xfe" * 2):
        with pytest.raises(SchemaFailed):
            schema.decode(bad, None)


def test_separated_pairs() -> None:
    schema = KeyValueSchema(StringSchema(), AvroSchema(Thing), separated=True)
    pair = KeyValue("k", Thing("x"))
    assert (schema.key_of(pair), schema.encode(pair)) == (b"k", b"\x02x\0")
    assert schema.decode_with_key(b"k", b"\x02x\0", None) == pair
    assert schema.decode_with_key(b"k", None, None) == KeyValue[Any, Any]("k", None)
    key, value = split_key_value(schema.info)
    assert (key.type, value.type) == (SchemaType.STRING, SchemaType.AVRO)
    assert value.data == AvroSchema(Thing).info.data
    assert schema.info.properties["kv.encoding.type"] == "SEPARATED"
    with pytest.raises(InvalidConfiguration):
        KeyValueSchema(schema, StringSchema())


# -- protobuf --------------------------------------------------------------------------------------


def test_protobuf() -> None:
    schema = ProtobufNativeSchema(StringValue)
    assert root_message(schema.info.data) == "google.protobuf.StringValue"
    assert schema.decode(schema.encode(StringValue(value="x")), None).value == "x"
    with pytest.raises(SchemaFailed, match="not a StringValue"):
        schema.encode(Int64Value(value=1))  # type: ignore[arg-type]
    with pytest.raises(SchemaFailed, match="no StringValue"):
        schema.decode(b"\xff", None)
    with pytest.raises(InvalidConfiguration):
        ProtobufNativeSchema(Thing)  # type: ignore[type-var]


# -- any schema ------------------------------------------------------------------------------------


def test_reading_any_schema() -> None:
    auto = AutoConsumeSchema().for_topic()
    writers: list[tuple[Any, Any, Any]] = [
        (StringSchema(), "x", "x"),
        (JsonSchema(Thing), Thing("x"), {"a": "x", "b": 0}),
        (AvroSchema(Thing), Thing("x"), {"a": "x", "b": 0}),
        (KeyValueSchema(StringSchema(), StringSchema()), KeyValue("k", "v"), ("k", "v")),
    ]
    for number, (writer, value, expected) in enumerate(writers):
        version = number.to_bytes(8, "big")
        auto.learn(version, writer.info)
        assert auto.decode_with_key(None, writer.encode(value), version) == expected
    separated = KeyValueSchema(StringSchema(), StringSchema(), separated=True)
    auto.learn(b"s", separated.info)
    assert auto.decode_with_key(b"k", b"v", b"s") == ("k", "v")
    auto.learn(b"p", ProtobufNativeSchema(StringValue).info)
    assert auto.decode(StringValue(value="x").SerializeToString(), b"p").value == "x"
    assert auto.decode(b"raw", None) == b"raw"
    auto.learn(b"e", SchemaInfo(SchemaType.EXTERNAL))
    auto.learn(b"d", SchemaInfo(SchemaType.AVRO, b"{}"))
    for version in (b"e", b"d", b"?"):
        with pytest.raises(SchemaFailed, match="cannot be read"):
            auto.decode(b"", version)
    with pytest.raises(SchemaFailed, match="only reads"):
        auto.encode(1)


# -- evolution -------------------------------------------------------------------------------------


def record(*fields: str) -> SchemaInfo:
    text = f'{{"type":"record","name":"R","fields":[{",".join(fields)}]}}'
    return SchemaInfo(SchemaType.AVRO, text.encode())


A = '{"name":"a","type":"int"}'
B = '{"name":"b","type":"string"}'
NESTED = '{"name":"n","type":{"type":"array","items":{"type":"record","name":"N","fields":[%s]}}}'


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (record(A), record(A, B), "R.b is missing when it was not written, and has no default"),
        (record(A, B), record(A), "R.b is missing when it was not written, and has no default"),
        (
            record(A),
            record(A.replace("int", "string")),
            "R.a is written as string, and read",
        ),
        (record(NESTED % A), record(NESTED % B), "R.n[].a is missing"),
        (record(A), SchemaInfo(SchemaType.STRING), "type AVRO, this one is STRING"),
        (record(A), record('{"name":"a","type":["null","int"]}'), "R.a is written as null, and"),
        (
            KeyValueSchema(StringSchema(), JsonSchema(Thing)).info,
            KeyValueSchema(StringSchema(), StringSchema()).info,
            "value: the topic has a schema of type JSON",
        ),
    ],
)
def test_refusals_name_the_field(old: SchemaInfo, new: SchemaInfo, reason: str) -> None:
    assert reason in reason_of(old, new)


def test_schemas_that_fit_have_no_difference() -> None:
    assert reason_of(record(A), record(A)) == ""
    assert reason_of(record(A), record(A, '{"name":"b","type":"int","default":0}')) == ""
