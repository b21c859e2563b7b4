"""Topics with a schema: columns of values, each read with its own version."""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pulsar
import pyarrow as pa
import pytest
from google.protobuf import duration_pb2, empty_pb2, timestamp_pb2
from pulsar.schema import (
    Array,
    AvroSchema,
    BytesSchema,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    Schema,
    String,
    StringSchema,
)
from pyspark.sql import SparkSession
from tests.spark.conftest import Log
from tests.spark.protobufs import F, Field, class_of, message, native
from tests.support.cluster_processes import brokers

from magnetar.core.errors import PersistenceError, PreconditionFailed
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode.builders import Numbers
from magnetar_spark.decode.payloads import Stored, payloads_of
from magnetar_spark.log import schemas
from magnetar_spark.table import METADATA_TYPES


class Inner(Record):  # type: ignore[misc]
    name = String()
    sizes = Array(Integer())


class Flight(Record):  # type: ignore[misc]
    number = Integer()
    miles = Long()
    delay = Float()
    price = Double()
    carrier = String()
    tags = Map(String())
    inner = Inner()


def flight(number: int) -> Flight:
    return Flight(
        number=number,
        miles=number * 10**10,
        delay=number / 2,
        price=number / 4,
        carrier=None if number == 3 else f"c{number}",
        tags={"a": str(number)},
        inner=Inner(name="n", sizes=list(range(number))),
    )


def publish(client: pulsar.Client, topic: str, schema: Schema, values: list[Any]) -> None:
    with closing(client.create_producer(topic, schema=schema)) as producer:
        for value in values:
            producer.send(value)


def values_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in METADATA_TYPES} for row in rows]


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_records_are_columns(log: Log, client: pulsar.Client, topic: str, kind: Any) -> None:
    publish(client, topic, kind(Flight), [flight(number) for number in range(5)])
    rows = values_of(log.rows(topic))
    assert rows == [
        {
            "number": number,
            "miles": number * 10**10,
            "delay": number / 2,
            "price": number / 4,
            "carrier": None if number == 3 else f"c{number}",
            "tags": {"a": str(number)},
            "inner": {"name": "n", "sizes": list(range(number))},
        }
        for number in range(5)
    ]
    few = log.rows(topic, columns=("number", "__entryId"))
    assert [set(row) for row in few] == [{"number", "__entryId"}] * 5
    raw = log.rows(topic, allowDifferentTopicSchemas="true")
    assert all(isinstance(row["value"], bytes) for row in raw)


def test_text_and_bytes(log: Log, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, StringSchema(), ["a", "", "é"])
    assert values_of(log.rows(topic)) == [{"value": "a"}, {"value": ""}, {"value": "é"}]
    publish(client, f"{topic}-b", BytesSchema(), [b"\xff"])
    assert values_of(log.rows(f"{topic}-b")) == [{"value": b"\xff"}]
    with pytest.raises(PreconditionFailed, match="allowDifferentTopicSchemas"):
        log.rows("", topics=f"{topic},{topic}-b")


def test_older_messages_have_the_columns_of_the_newest_version(
    log: Log, client: pulsar.Client, topic: str
) -> None:
    base = f"{brokers(log.cluster)[0].http_url}/admin/v2"

    def written(fields: str, data: bytes) -> None:
        definition = f'{{"type":"record","name":"R","fields":[{fields}]}}'
        body = {"type": "AVRO", "schema": definition, "properties": {}}
        path = topic.replace("persistent://", "schemas/")
        httpx.post(f"{base}/{path}/schema", json=body, timeout=30).raise_for_status()
        raw = AvroSchema(None, json.loads(definition))
        with closing(client.create_producer(topic, schema=raw)) as producer:
            producer.send({"a": int.from_bytes(data), **({"b": "x"} if "b" in fields else {})})

    written('{"name":"a","type":"int"}', b"\x01")
    written('{"name":"a","type":"int"},{"name":"b","type":"string","default":"d"}', b"\x02")
    assert values_of(log.rows(topic)) == [{"a": 1, "b": "d"}, {"a": 2, "b": "x"}]


def upload(log: Log, topic: str, schema: schemas.Schema) -> None:
    base = f"{brokers(log.cluster)[0].http_url}/admin/v2"
    body = {"type": "PROTOBUF_NATIVE", "schema": schema.data.decode(), "properties": {}}
    path = topic.replace("persistent://", "schemas/")
    httpx.post(f"{base}/{path}/schema", json=body, timeout=30).raise_for_status()


FIRST = native(
    message("R", [Field("id", 1, F.TYPE_INT32), Field("title", 2, F.TYPE_STRING, "optional")])
)
SECOND = native(
    message(
        "R",
        [
            Field("id", 1, F.TYPE_INT64),
            Field("name", 2, F.TYPE_STRING, "optional"),
            Field("size", 3, F.TYPE_UINT64),
            Field("colour", 4, F.TYPE_ENUM, "", "t.Colour"),
            Field("parts", 5, F.TYPE_MESSAGE, "repeated", "t.Part"),
            Field("by_key", 6, F.TYPE_MESSAGE, "map", "t.Part"),
            Field("at", 7, F.TYPE_MESSAGE, "", "google.protobuf.Timestamp"),
            Field("took", 8, F.TYPE_MESSAGE, "", "google.protobuf.Duration"),
            Field("nothing", 9, F.TYPE_MESSAGE, "", "google.protobuf.Empty"),
            Field("raw", 10, F.TYPE_BYTES),
        ],
    ),
    message("Part", [Field("weight", 1, F.TYPE_DOUBLE), Field("count", 2, F.TYPE_UINT32)]),
    imports=[timestamp_pb2, duration_pb2, empty_pb2],
)
COLUMNS = {
    "id": "bigint",
    "name": "string",
    "size": "decimal(20,0)",
    "colour": "string",
    "parts": "array<struct<weight:double,count:bigint>>",
    "by_key": "map<string,struct<weight:double,count:bigint>>",
    "at": "timestamp",
    "took": "interval day to second",
    "nothing": "struct<>",
    "raw": "binary",
}


def second_message() -> Any:
    made: Any = class_of(SECOND)(id=2**40, size=2**64 - 1, colour=99, raw=b"\0")
    made.parts.add(weight=0.5)
    made.by_key["k"].count = 2**32 - 1
    made.at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    made.took.FromTimedelta(timedelta(hours=-30))
    made.nothing.SetInParent()
    return made


def test_protobuf_messages_are_columns_in_spark(
    spark: SparkSession, log: Log, client: pulsar.Client, topic: str
) -> None:
    old_message = class_of(FIRST)(id=-1, title="x")
    for schema, made in ((FIRST, old_message), (SECOND, second_message())):
        upload(log, topic, schema)
        publish(client, topic, ProtobufNativeSchema(type(made)), [made])
    table = spark.read.format("pulsar").options(**log.options(topic)).load()
    assert dict(table.dtypes[:10]) == COLUMNS
    assert table.columns[10] == "__key"
    shown = table.orderBy("id").select(*COLUMNS).withColumn("at", table["at"].cast("string"))
    old, new = [row.asDict(recursive=True) for row in shown.collect()]
    assert old == {
        "id": -1,
        "name": "x",
        "size": Decimal(0),
        "colour": "NONE",
        "parts": [],
        "by_key": {},
        "at": None,
        "took": None,
        "nothing": None,
        "raw": b"",
    }
    assert new == {
        "id": 2**40,
        "name": None,
        "size": Decimal(2**64 - 1),
        "colour": "99",
        "parts": [{"weight": 0.5, "count": 0}],
        "by_key": {"k": {"weight": 0.0, "count": 2**32 - 1}},
        "at": "2026-01-02 00:00:00",
        "took": timedelta(hours=-30),
        "nothing": {},
        "raw": b"\0",
    }


def test_a_message_that_contains_itself_has_no_columns(
    log: Log, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, BytesSchema(), [b""])
    upload(log, topic, native(message("R", [Field("r", 1, F.TYPE_MESSAGE, "", "t.R")])))
    with pytest.raises(PreconditionFailed, match=r"the type 't\.R' contains itself; set allow"):
        log.rows(topic)
    raw = log.rows(topic, allowDifferentTopicSchemas="true")
    assert [row["value"] for row in raw] == [b""]


def decoded(schema: schemas.Schema, values: list[bytes | None], keys: list[bytes | None]) -> Any:
    payloads = payloads_of(schema)
    assert payloads is not None
    versions: Numbers = pa.array([0] * len(values), pa.int64()).to_numpy()
    stored = Stored(
        pa.array(values, pa.binary()), pa.array(keys, pa.binary()), versions, {0: schema}
    )
    return payloads.decode(stored).to_pylist()


def test_primitives_and_pairs() -> None:
    long_schema = schemas.Schema(Wire.Int64, b"")
    assert decoded(long_schema, [b"\0" * 7 + b"\5", None, b"\xff" * 8], [None] * 3) == [5, None, -1]
    with pytest.raises(PersistenceError, match="8 bytes"):
        decoded(long_schema, [b"\0"], [None])
    pair = schemas.Schema(
        Wire.KeyValue,
        b"\0\0\0\0\0\0\0\0",
        {
            "key.schema.type": "STRING",
            "value.schema.type": "INT32",
            "kv.encoding.type": "INLINE",
        },
    )
    inline = b"\0\0\0\2ab\0\0\0\4\0\0\0\7"
    assert decoded(pair, [inline, None], [None, None]) == [
        {"key": "ab", "value": 7},
        {"key": None, "value": None},
    ]
    with pytest.raises(PersistenceError, match="shorter"):
        decoded(pair, [inline[:-1]], [None])
    separated = schemas.Schema(
        Wire.KeyValue, pair.data, {**pair.properties, "kv.encoding.type": "SEPARATED"}
    )
    assert decoded(separated, [b"\0\0\0\7"], [b"k"]) == [{"key": "k", "value": 7}]
