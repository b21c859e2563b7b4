"""JSON values, primitives, and the choice of a value's schema: wrong rows are refused."""

import base64
import struct
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.core.errors import PersistenceError, PreconditionFailed
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode.payloads import Stored, payloads_of
from magnetar_spark.log.schemas import Schema, packed, unpacked
from magnetar_spark.offsets import parse_start
from magnetar_spark.values import Values

INT64_MAX = 2**63 - 1


def decoded(
    schema: Schema, values: list[bytes | None], known: dict[int, Schema] | None = None
) -> Any:
    payloads = payloads_of(schema)
    assert payloads is not None
    raw = pa.array(values, pa.binary())
    stored = Stored(raw, raw, np.zeros(len(values), np.int64), known or {})
    return payloads.decode(stored).to_pylist()


def json_schema(*fields: tuple[str, Any]) -> Schema:
    described = [{"name": name, "type": kind} for name, kind in fields]
    return Schema(
        Wire.Json, msgspec.json.encode({"type": "record", "name": "R", "fields": described})
    )


INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"]}]}
DOCUMENT = json_schema(
    ("i", "int"),
    ("l", "long"),
    ("d", "double"),
    ("s", "string"),
    ("q", "boolean"),
    ("b", ["null", "bytes"]),
    ("m", {"type": "map", "values": "long"}),
    ("a", {"type": "array", "items": INNER}),
    ("e", {"type": "enum", "name": "E", "symbols": ["A"]}),
    ("t", {"type": "long", "logicalType": "timestamp-millis"}),
)


def test_a_json_document_is_a_row() -> None:
    document = {
        "i": -(2**31),
        "l": INT64_MAX,
        "d": 5,
        "s": "é",
        "q": True,
        "b": base64.b64encode(b"hello").decode(),
        "m": {"a": 1},
        "a": [{"x": 1}, {"x": None}, {}],
        "e": "A",
        "t": 1_700_000_000_000,
        "more": [1],
    }
    (row, missing, null, none) = decoded(
        DOCUMENT, [msgspec.json.encode(document), b"{}", b"null", None]
    )
    inner = [{"x": 1}, {"x": None}, {"x": None}]
    expected = {**document, "d": 5.0, "b": b"hello", "m": [("a", 1)], "a": inner}
    del expected["more"]
    assert row == expected
    assert missing == dict.fromkeys(expected)
    assert null is none is None


@pytest.mark.parametrize(
    "bad",
    [
        {"i": 1.5},
        {"i": -0.9},
        {"i": 1.0},
        {"i": 2**31},
        {"i": True},
        {"i": "5"},
        {"l": 9007199254740993.0},
        {"l": 2**63},
        {"t": 1.7e12},
        {"d": "5"},
        {"s": 5},
        {"q": 1},
        {"b": "no base64!"},
        {"m": {"a": 1.5}},
        {"a": [{"x": 0.5}]},
        [],
        5,
    ],
)
def test_a_json_value_of_another_type_is_refused(bad: Any) -> None:
    with pytest.raises(PersistenceError, match="not as its JSON schema says"):
        decoded(DOCUMENT, [msgspec.json.encode(bad)])


def test_a_refused_json_value_is_named() -> None:
    with pytest.raises(PersistenceError, match=r"got `float` - at `\$\.a\[0\]\.x`"):
        decoded(DOCUMENT, [b'{"a": [{"x": 0.5}]}'])


def test_bytes_that_are_no_base64_say_how_to_read_them_as_text() -> None:
    """The Python client writes the text itself."""
    with pytest.raises(PersistenceError, match=r"at `\$\.b`.*base64") as raised:
        decoded(DOCUMENT, [b'{"b": "no base64!"}'])
    assert "this field as `string`" in str(raised.value)
    assert "allowDifferentTopicSchemas to true" in str(raised.value)


DAY_S, YEAR_10000_S = 86_400, 253_402_300_800
FIRST_DAY, LAST_DAY = -719_162, 2_932_896


@pytest.mark.parametrize(
    ("kind", "last", "first"),
    [
        (Wire.Timestamp, struct.pack(">q", YEAR_10000_S * 1000 - 1), FIRST_DAY * DAY_S * 1000),
        (Wire.Date, struct.pack(">q", YEAR_10000_S * 1000 - 1), FIRST_DAY * DAY_S * 1000),
        (Wire.LocalDate, struct.pack(">q", LAST_DAY), FIRST_DAY),
        (Wire.Instant, struct.pack(">qi", YEAR_10000_S - 1, 999_999_999), FIRST_DAY * DAY_S),
        (Wire.LocalDateTime, struct.pack(">qq", LAST_DAY, DAY_S * 10**9 - 1), FIRST_DAY),
    ],
)
def test_times_are_of_the_years_1_to_9999(kind: Any, last: bytes, first: int) -> None:
    rest = last[8:]
    (newest, oldest, none) = decoded(
        Schema(kind, b""), [last, struct.pack(">q", first) + bytes(len(rest)), None]
    )
    assert (oldest.year, oldest.month, oldest.day) == (1, 1, 1)
    assert (newest.year, newest.month, newest.day) == (9999, 12, 31)
    if isinstance(newest, datetime):
        assert (newest.hour, newest.second) == (23, 59)
    assert none is None
    beyond = struct.unpack_from(">q", last)[0] + 1
    for number in (beyond, first - 1, INT64_MAX, -(2**63), 31_556_889_864_403_199):
        with pytest.raises(PersistenceError, match=r"years 1 to 9999.*allowDifferentTopicSchemas"):
            decoded(Schema(kind, b""), [None, struct.pack(">q", number) + bytes(len(rest))])


def test_times_before_1970() -> None:
    minus_one = struct.pack(">q", -1)
    timestamp = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    assert decoded(Schema(Wire.Timestamp, b""), [minus_one]) == [timestamp]
    assert decoded(Schema(Wire.Date, b""), [minus_one]) == [date(1969, 12, 31)]


@pytest.mark.parametrize("nanos", [-1, 10**9])
def test_nanoseconds_that_are_none_are_refused(nanos: int) -> None:
    with pytest.raises(PersistenceError, match="nanoseconds"):
        decoded(Schema(Wire.Instant, b""), [struct.pack(">qi", 0, nanos)])


@pytest.mark.parametrize("kind", [Wire.Int64, Wire.String, Wire.Json])
def test_a_value_of_another_kind_of_schema_is_refused(kind: Any) -> None:
    """Eight bytes are a long as well as a double: the registry may accept any newer version."""
    newest = json_schema(("a", "int")) if kind == Wire.Json else Schema(kind, b"")
    older = {0: Schema(Wire.Double, b""), 1: newest}
    with pytest.raises(PersistenceError, match=r"version 0 .* of the type Double"):
        decoded(newest, [b"12345678"], older)
    assert decoded(newest, [None], older) == [None]


def test_a_pair_of_another_encoding_is_refused() -> None:
    """A version may change kv.encoding.type: a SEPARATED value is not an INLINE pair."""
    halves = {"key.schema.type": "STRING", "value.schema.type": "INT32"}
    inline, separated = (
        Schema(Wire.KeyValue, bytes(8), {**halves, "kv.encoding.type": encoding})
        for encoding in ("INLINE", "SEPARATED")
    )
    pair = b"\0\0\0\2ab\0\0\0\4\0\0\0\7"
    assert decoded(inline, [pair], {0: inline}) == [{"key": "ab", "value": 7}]
    for newest, older in ((inline, separated), (separated, inline)):
        with pytest.raises(PersistenceError, match=r"another kv\.encoding\.type"):
            decoded(newest, [pair], {0: older, 1: newest})


@pytest.mark.parametrize("offset", ['{"ledger": 5.7, "entry": 1}', '"5"', "[5.5, 1]", '"5:x"'])
def test_an_offset_that_is_none_is_refused(offset: str) -> None:
    with pytest.raises(PreconditionFailed, match="startingOffsets"):
        parse_start({"startingoffsets": f'{{"t": {offset}}}'})


def avro(*names: str) -> Schema:
    fields = [{"name": name, "type": "int"} for name in names]
    return Schema(Wire.Avro, msgspec.json.encode({"type": "record", "name": "R", "fields": fields}))


def row_of(values: Values, topic: str, data: bytes, version: int) -> dict[str, Any]:
    schema = to_arrow_schema(StructType(values.spark_fields()), timezone="UTC")
    raw = pa.array([data], pa.binary())
    columns = values.columns(topic, schema, raw, raw, np.array([version]))
    return {name: column.to_pylist()[0] for name, column in columns.items()}


ONE_AND_NINE = b"\x02\x12"
A, B = "persistent://public/default/a", "persistent://public/default/b"


def test_each_topic_has_versions_of_its_own() -> None:
    """A task reads ranges of several topics that share only the newest schema."""
    old, new = avro("low", "high"), avro("high", "low")
    values = Values(new, {A: {0: old, 1: new}, B: {0: new}})
    assert row_of(values, A, ONE_AND_NINE, 0) == {"low": 1, "high": 9}
    assert row_of(values, B, ONE_AND_NINE, 0) == {"high": 1, "low": 9}
    assert row_of(values, A, ONE_AND_NINE, 1) == {"high": 1, "low": 9}


def test_all_partitions_have_the_versions_of_their_topic() -> None:
    values = Values(avro("low", "high"), {A: {0: avro("low", "high")}})
    for name in (A, f"{A}-partition-0", f"{A}-partition-7"):
        assert row_of(values, name, ONE_AND_NINE, 0) == {"low": 1, "high": 9}
    with pytest.raises(PersistenceError, match="version 1 of the schema is not in the registry"):
        row_of(values, A, ONE_AND_NINE, 1)


def test_versions_travel_with_each_task() -> None:
    versions = {number: Schema(Wire.Avro, b"x" * 10_000, {"n": str(number)}) for number in range(9)}
    assert unpacked(packed(versions)) == versions
    assert len(packed(versions)) < 1_000
