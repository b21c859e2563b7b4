"""Rows to messages, without Spark and brokers: schemas, metadata, batches, partitions."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.core.errors import PreconditionFailed
from magnetar.core.hashing import java_string_hash, murmur3_32
from magnetar.wire._pb.PulsarApi_pb2 import CompressionType
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar.wire.batch import iterate_batch
from magnetar.wire.compression import decompress
from magnetar_spark.decode.payloads import Stored, payloads_of
from magnetar_spark.log.schemas import Schema
from magnetar_spark.sink.batches import OpenBatch
from magnetar_spark.sink.routing import Router
from magnetar_spark.sink.rows import Message, RowCodec
from magnetar_spark.sink.settings import ProducerSettings

DAY = date(2024, 2, 29)
TIME = datetime(2024, 2, 29, 12, 30, 1, 234_000, tzinfo=UTC)
MICROS = datetime(2024, 2, 29, 12, 30, 1, 234_567, tzinfo=UTC)
NTZ = datetime(1969, 12, 31, 23, 59, 59, 1)  # noqa: DTZ001 - it has none
TOPIC = "persistent://public/default/t"


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def messages(
    schema: StructType, *rows: tuple[Any, ...], topic: str | None = TOPIC, kind: str = "avro"
) -> tuple[RowCodec, list[Message]]:
    codec = RowCodec(schema, topic, kind, "a.b.Row")
    arrow = to_arrow_schema(schema, timezone="UTC")
    data = [dict(zip(schema.names, row, strict=True)) for row in rows]
    batch = pa.RecordBatch.from_pylist(data, schema=arrow)
    return codec, list(codec.messages(batch))


def decoded(codec: RowCodec, values: list[bytes | None]) -> Any:
    """Decodes values as the source does."""
    given = codec.codec.schema
    assert given is not None
    schema = Schema(given.kind, given.definition)
    payloads = payloads_of(schema)
    assert payloads is not None
    raw = pa.array(values, pa.binary())
    return payloads.decode(
        Stored(raw, raw, np.zeros(len(values), np.int64), {0: schema})
    ).to_pylist()


@pytest.mark.parametrize(
    ("kind", "values", "number"),
    [
        (StringType(), ["ä", ""], Wire.String),
        (BooleanType(), [True, False], Wire.Bool),
        (ByteType(), [-128, 127], Wire.Int8),
        (ShortType(), [-(2**15), 5], Wire.Int16),
        (IntegerType(), [-(2**31), 5], Wire.Int32),
        (LongType(), [-(2**63), 5], Wire.Int64),
        (FloatType(), [0.5, float("-inf")], Wire.Float),
        (DoubleType(), [1e300, -0.0], Wire.Double),
        (DateType(), [DAY, date(1, 1, 1)], Wire.Date),
        (TimestampType(), [TIME, datetime(1, 1, 1, tzinfo=UTC)], Wire.Timestamp),
        (TimestampNTZType(), [NTZ, NTZ.replace(year=9999)], Wire.LocalDateTime),
    ],
)
def test_a_single_value_is_a_primitive_that_the_source_reads(
    kind: DataType, values: list[Any], number: int
) -> None:
    codec, sent = messages(columns(value=kind), *[(value,) for value in [*values, None]])
    assert codec.codec.schema is not None
    assert codec.codec.schema.kind == number
    assert [message.value is None for message in sent] == [False] * len(values) + [True]
    assert decoded(codec, [message.value for message in sent[:-1]]) == values


def test_bytes_have_no_schema() -> None:
    codec, sent = messages(columns(value=BinaryType()), (b"\x00x",), (None,))
    assert codec.codec.schema is None
    assert [message.value for message in sent] == [b"\x00x", None]


RECORD = columns(
    text=StringType(),
    whole=LongType(),
    real=DoubleType(),
    flag=BooleanType(),
    data=BinaryType(),
    items=ArrayType(StringType()),
    counts=MapType(StringType(), IntegerType()),
    inner=columns(a=IntegerType(), b=columns(c=StringType())),
)
ROW = ("t", 2**40, 0.5, True, b"\xff", ["x", None], {"k": 1, "n": None}, {"a": 1, "b": {"c": "z"}})


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_records_come_back_as_the_source_reads_them(kind: str) -> None:
    empty = (None,) * len(RECORD)
    codec, sent = messages(RECORD, ROW, empty, kind=kind)
    rows = decoded(codec, [message.value for message in sent])
    for row, written in zip(rows, (ROW, empty), strict=True):
        found = dict(row)
        if found["counts"] is not None:
            found["counts"] = dict(found["counts"])
        assert found == dict(zip(RECORD.names, written, strict=True))


def test_logical_types_of_avro_come_back() -> None:
    schema = columns(
        day=DateType(),
        time=TimestampType(),
        price=DecimalType(10, 2),
        times=ArrayType(TimestampType()),
    )
    row = (DAY, MICROS, Decimal("-12.50"), [MICROS, None])
    codec, sent = messages(schema, row)
    assert decoded(codec, [sent[0].value]) == [dict(zip(schema.names, row, strict=True))]


def test_the_definition_is_nullable_where_columns_are_and_names_nested_records_apart() -> None:
    inner = StructType([StructField("x", IntegerType(), nullable=False)])
    schema = StructType(
        [StructField("p", inner, nullable=False), StructField("q", inner, nullable=True)]
    )
    codec, _ = messages(schema)
    assert codec.codec.schema is not None
    definition = json.loads(codec.codec.schema.definition)
    assert (definition["namespace"], definition["name"]) == ("a.b", "Row")
    first, second = definition["fields"]
    assert first["type"]["fields"] == [{"name": "x", "type": "int"}]
    assert "default" not in first
    assert second["type"][0] == "null"
    assert second["default"] is None
    names = [each["namespace"] + each["name"] for each in (first["type"], second["type"][1])]
    assert len(set(names)) == 2


@pytest.mark.parametrize(
    ("schema", "kind", "text"),
    [
        (columns(__key=StringType()), "avro", "no column for the value"),
        (columns(value=StringType(), __key=IntegerType()), "avro", "column __key has the type int"),
        (columns(value=StringType(), __eventTime=DateType()), "avro", "cast it to timestamp"),
        (
            columns(value=StringType(), __messageProperties=MapType(StringType(), LongType())),
            "avro",
            "map<string,string>",
        ),
        (columns(value=StringType(), __mine=StringType()), "avro", "__mine is none of Pulsar"),
        (columns(a=DayTimeIntervalType(), b=LongType()), "avro", "column a.b.Row.a has the type"),
        (columns(a=DecimalType(5, 1)), "json", "decimal(5,1)"),
        (columns(a=MapType(LongType(), LongType())), "avro", "map<bigint,bigint>"),
        (StructType([StructField("not a name", LongType())]), "avro", "'not a name'"),
        (StructType([StructField("a", LongType()), StructField("a", LongType())]), "avro", "same"),
    ],
)
def test_columns_that_cannot_be_written_are_named(schema: StructType, kind: str, text: str) -> None:
    with pytest.raises(PreconditionFailed) as raised:
        RowCodec(schema, TOPIC, kind, "a.b.Row")
    assert text in str(raised.value)


def test_rows_that_cannot_be_written_are_refused() -> None:
    value = columns(value=StringType())
    with pytest.raises(PreconditionFailed, match="name no topic"):
        RowCodec(value, None, "avro", "R")
    for schema, row, text in [
        (value.add("__topic", StringType()), ("v", None), "null in the column __topic"),
        (columns(value=StringType(), __encrypted=BooleanType()), ("v", True), "encrypted"),
        (
            columns(value=StringType(), __messageProperties=MapType(StringType(), StringType())),
            ("v", {"p": None}),
            "property 'p'",
        ),
        (columns(value=StringType(), __eventTime=LongType()), ("v", -1), "before 1970"),
    ]:
        with pytest.raises(PreconditionFailed, match=text):
            messages(schema, row, topic=None if "__topic" in schema.names else TOPIC)
    with pytest.raises(PreconditionFailed, match="NaN"):
        messages(columns(a=DoubleType()), (float("nan"),), kind="json")


def test_metadata_of_rows() -> None:
    schema = columns(
        value=StringType(),
        __key=BinaryType(),
        __eventTime=TimestampType(),
        __messageProperties=MapType(StringType(), StringType()),
        __orderingKey=StringType(),
        __messageId=BinaryType(),
        __topic=StringType(),
    )
    _, (first, second) = messages(
        schema,
        ("v", b"k\xc3\xa4", MICROS, {"a": "b"}, "o", b"id", "elsewhere"),
        ("w", b"\xff", None, None, None, None, None),
    )
    assert first == Message(
        TOPIC, b"v", "kä", False, b"o", int(TIME.timestamp() * 1000), [("a", "b")]
    )
    assert second == Message(TOPIC, b"w", "/w==", True, None, 0, [])


MESSAGES = st.lists(
    st.builds(
        Message,
        topic=st.just(TOPIC),
        value=st.none() | st.binary(max_size=50),
        key=st.none() | st.text(max_size=5),
        key_is_base64=st.just(False),
        ordering_key=st.none() | st.binary(max_size=5),
        event_time_ms=st.integers(0, 2**40),
        properties=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=20,
)


@given(MESSAGES, st.sampled_from(list(CompressionType.values())))
def test_a_batch_has_its_messages_as_they_were(sent: list[Message], compression: int) -> None:
    batch = OpenBatch(TOPIC, ProducerSettings(compression=compression))
    for message in sent:
        batch.add(message)
    built = batch.built()
    plain = decompress(compression, built.payload, built.head.uncompressed_size)
    found = list(iterate_batch(plain, built.head.num_messages_in_batch))
    assert built.count == len(sent)
    for message, one in zip(sent, found, strict=True):
        metadata = one.metadata
        assert metadata is not None
        assert one.payload == (message.value or b"")
        assert metadata.null_value == (message.value is None)
        assert metadata.HasField("partition_key") == (message.key is not None)
        assert metadata.partition_key == (message.key or "")
        assert metadata.event_time == message.event_time_ms
        assert [(each.key, each.value) for each in metadata.properties] == list(message.properties)


def keyed(key: str | None) -> Message:
    return Message(TOPIC, b"", key, False, None, 0, ())


@given(st.text(max_size=20), st.integers(1, 50), st.booleans())
def test_a_key_chooses_the_partition(key: str, partitions: int, murmur: bool) -> None:
    router = Router(ProducerSettings(murmur_hash=murmur), 3)
    hashed = murmur3_32(key.encode()) if murmur else java_string_hash(key)
    assert router.partition(keyed(key), partitions) == hashed % partitions


def test_batches_without_keys_go_in_turn_unless_one_partition_was_chosen() -> None:
    turns = []
    router = Router(ProducerSettings(), 5)
    for _ in range(4):
        turns.append(router.partition(keyed(None), 3))
        router.sent(TOPIC)
    assert turns == [2, 0, 1, 2]
    single = Router(ProducerSettings(round_robin=False), 5)
    single.sent(TOPIC)
    assert single.partition(keyed(None), 3) == 2


def test_a_batch_is_full_by_number_or_size() -> None:
    batch = OpenBatch(TOPIC, ProducerSettings(batch_messages=2, batch_bytes=10))
    assert not batch.add(keyed("12345"))
    assert batch.add(keyed(""))
    large = OpenBatch(TOPIC, ProducerSettings(batch_messages=9, batch_bytes=10))
    assert large.add(keyed("1234567890"))
    alone = OpenBatch(TOPIC, ProducerSettings(batching=False))
    assert alone.add(keyed("k"))
    assert not alone.built().head.HasField("num_messages_in_batch")
    assert alone.built().head.partition_key == "k"
