"""Avro values are decoded with their own schema version, into columns of the newest."""

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import PersistenceError, PreconditionFailed
from magnetar.schemas.avro import can_read
from magnetar.schemas.avro_parse import parse_avro
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode import avro_schema
from magnetar_spark.decode.avro_types import spark_type_of
from magnetar_spark.decode.payloads import NO_VERSION, Stored, payloads_of
from magnetar_spark.log.schemas import Schema

NOW_MS = 1_700_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)
MS = {"type": "long", "logicalType": "timestamp-millis"}
US = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}


def decimal(precision: int, scale: int, **kind: Any) -> dict[str, Any]:
    kind = kind or {"type": "bytes"}
    return {**kind, "logicalType": "decimal", "precision": precision, "scale": scale}


def record(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "t", "type": kind, **more}]}


def schema(definition: Any) -> Schema:
    return Schema(Wire.Avro, msgspec.json.encode(definition))


def encoded(definition: Any, value: Any) -> bytes:
    """Encodes without logical types, as clients of all languages do."""
    out = io.BytesIO()
    plain = fastavro.parse_schema(avro_schema.without_logical_types(definition))
    fastavro.schemaless_writer(out, plain, value)
    return out.getvalue()


def compatible(writer: Any, reader: Any) -> bool:
    """Returns whether the registry accepts the newer version."""
    old, new = (parse_avro(msgspec.json.encode(each)) for each in (writer, reader))
    return can_read(old, new)


def read(writer: Any, reader: Any, *values: Any) -> list[Any]:
    """Reads values of the first version into the columns of the second."""
    payloads = payloads_of(schema(reader))
    assert payloads is not None
    raw = pa.array([encoded(writer, each) for each in values], pa.binary())
    known = {0: schema(writer), 1: schema(reader)}
    stored = Stored(raw, raw, np.zeros(len(values), np.int64), known)
    rows: list[Any] = payloads.decode(stored).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("writer", "reader", "wrote", "wanted"),
    [
        pytest.param("long", MS, NOW_MS, NOW, id="a number becomes a timestamp"),
        pytest.param("long", ["null", MS], NOW_MS, NOW, id="and may be null"),
        pytest.param(["null", "long"], ["null", MS], None, None, id="a null stays null"),
        pytest.param("int", MS, 5000, datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), id="an int, too"),
        pytest.param(["int", MS], MS, NOW_MS, NOW, id="two types of one unit"),
        pytest.param(MS, "long", NOW_MS, NOW_MS, id="a timestamp becomes a number"),
        pytest.param(MS, "double", NOW_MS, float(NOW_MS), id="a timestamp becomes a double"),
        pytest.param(MS, US, NOW_MS, NOW, id="ms become µs: the same time"),
        pytest.param(US, MS, NOW_MS * 1000 + 7, NOW.replace(microsecond=7), id="and back"),
        pytest.param("int", DATE, 10, date(1970, 1, 11), id="a number becomes a date"),
        pytest.param(DATE, "int", 10, 10, id="a date becomes a number"),
        pytest.param(DATE, "long", 10, 10, id="a date becomes a long"),
        pytest.param("bytes", decimal(10, 2), b"\x7b", Decimal("1.23"), id="bytes as a decimal"),
        pytest.param(decimal(10, 2), "bytes", b"\x7b", b"\x7b", id="a decimal as bytes"),
        pytest.param(decimal(10, 2), decimal(10, 3), b"\x7b", Decimal("1.230"), id="more digits"),
        pytest.param(decimal(9, 2), decimal(38, 2), b"\xff", Decimal("-0.01"), id="longer"),
        pytest.param(
            {"type": "array", "items": "long"},
            {"type": "array", "items": MS},
            [NOW_MS],
            [NOW],
            id="in a list",
        ),
        pytest.param(
            {"type": "map", "values": "long"},
            {"type": "map", "values": ["null", MS]},
            {"a": NOW_MS},
            [("a", NOW)],
            id="in a map",
        ),
        pytest.param(
            {"type": "long", "logicalType": "time-micros"}, "long", 7, 7, id="no column of its own"
        ),
        pytest.param(
            {"type": "string", "logicalType": "timestamp-millis"},
            "string",
            "x",
            "x",
            id="a logical type that does not fit",
        ),
    ],
)
def test_a_value_keeps_its_meaning(writer: Any, reader: Any, wrote: Any, wanted: Any) -> None:
    assert compatible(record(writer), record(reader))
    assert read(record(writer), record(reader), {"t": wrote}) == [{"t": wanted}]


@pytest.mark.parametrize(
    ("writer", "reader", "wrote"),
    [
        pytest.param(DATE, MS, 10, id="a date is no timestamp"),
        pytest.param("string", decimal(10, 2), "12", id="a text is no decimal"),
        pytest.param(decimal(10, 2), "string", b"\x7b", id="a decimal is no text"),
    ],
)
def test_a_value_without_a_meaning_is_refused(writer: Any, reader: Any, wrote: Any) -> None:
    with pytest.raises(PersistenceError, match=r"field 't' was .*allowDifferentTopicSchemas"):
        read(record(writer), record(reader), {"t": wrote})


def test_branches_of_two_meanings_are_refused() -> None:
    with pytest.raises(PersistenceError, match="field 't' was int, timestamp-micros"):
        read(record(["int", US]), record(MS), {"t": 5})


def test_digits_that_the_newest_version_has_no_room_for_fail() -> None:
    for reader in (decimal(10, 1), decimal(2, 2)):
        with pytest.raises(PersistenceError, match="not as its Avro schema says"):
            read(record(decimal(10, 2)), record(reader), {"t": b"\x7b"})


@pytest.mark.parametrize(("kind", "value"), [(MS, 2**63 - 1), (US, -(2**63)), (DATE, 2**31 - 1)])
def test_a_time_beyond_the_year_9999_is_refused(kind: Any, value: int) -> None:
    with pytest.raises(PersistenceError, match="not within the years 1 to 9999"):
        read(record(kind), record(kind), {"t": value})


def test_defaults_are_those_of_the_newest_version() -> None:
    inner = {
        "type": "record",
        "name": "I",
        "fields": [
            {"name": "at", "type": MS, "default": 5000},
            {"name": "raw", "type": "bytes", "default": "\u00ff"},
        ],
    }
    reader = record("int")
    reader["fields"] += [
        {"name": "at", "type": MS, "default": NOW_MS},
        {"name": "none", "type": ["null", MS], "default": None},
        {"name": "price", "type": decimal(5, 1), "default": "\u0001\u0000"},
        {"name": "inner", "type": inner, "default": {"raw": "\u00fe"}},
        {"name": "times", "type": {"type": "array", "items": US}, "default": [5]},
    ]
    row = {
        "t": 1,
        "at": NOW,
        "none": None,
        "price": Decimal("25.6"),
        "inner": {"at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "raw": b"\xfe"},
        "times": [datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)],
    }
    assert read(record("int"), reader, {"t": 1}, {"t": 2}) == [row, {**row, "t": 2}]


def test_a_field_is_found_by_its_alias() -> None:
    reader = record(MS)
    reader["fields"][0] |= {"name": "at", "aliases": ["t"]}
    assert read(record("long"), reader, {"t": NOW_MS}) == [{"at": NOW}]


def test_a_record_that_avro_cannot_match_is_refused() -> None:
    renamed = {**record("int"), "name": "Other"}
    with pytest.raises(PersistenceError, match="cannot be read as the newest"):
        read(record("int"), renamed, {"t": 1})


def test_types_of_one_name_in_two_namespaces() -> None:
    def part(field: str, **space: str) -> dict[str, Any]:
        fields = [{"name": field, "type": "int"}]
        return {"type": "record", "name": "X", **space, "fields": fields}

    root = {
        "type": "record",
        "name": "Root",
        "namespace": "a",
        "fields": [
            {"name": "one", "type": part("f")},
            {"name": "two", "type": part("g", namespace="b")},
            {"name": "three", "type": "X"},
            {"name": "four", "type": "b.X"},
        ],
    }
    row = {"one": {"f": 1}, "two": {"g": 2}, "three": {"f": 3}, "four": {"g": 4}}
    assert read(root, root, row) == [row]


def test_named_types_keep_their_logical_type() -> None:
    kind = decimal(10, 2, type="fixed", name="D", size=2)
    root = record(kind)
    root["fields"].append({"name": "again", "type": "D"})
    row = {"t": b"\x00\x7b", "again": b"\xff\xff"}
    assert read(root, root, row) == [{"t": Decimal("1.23"), "again": Decimal("-0.01")}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (["null", "R"], "contains itself"),
        (["int", "string"], "a union of 2 types"),
        ("Unknown", "the type 'Unknown' is unknown"),
        (decimal(50, 2), "more than the 38 digits"),
        ({"type": "array"}, "no Avro schema"),
    ],
)
def test_a_type_without_a_column_says_why(kind: Any, text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        spark_type_of(avro_schema.parse(record(kind)))


def test_versions_are_of_their_topic() -> None:
    """Two topics have the same schemas under different version numbers."""
    old = {"type": "record", "name": "R", "fields": [{"name": n, "type": "int"} for n in "ab"]}
    new = {"type": "record", "name": "R", "fields": [{"name": n, "type": "int"} for n in "ba"]}
    row = {"a": 1, "b": 9}
    payloads = payloads_of(schema(new))
    assert payloads is not None
    for definition, known in ((old, {0: old, 1: new}), (new, {0: new})):
        raw = pa.array([encoded(definition, row)], pa.binary())
        versions = {number: schema(each) for number, each in known.items()}
        found = payloads.decode(Stored(raw, raw, np.zeros(1, np.int64), versions))
        assert found.to_pylist() == [row]


def test_what_says_no_version_is_of_the_newest() -> None:
    payloads = payloads_of(schema(record(MS)))
    assert payloads is not None
    raw = pa.array([encoded(record(MS), {"t": NOW_MS}), None], pa.binary())
    found = payloads.decode(Stored(raw, raw, np.array([NO_VERSION, 7]), {}))
    assert found.to_pylist() == [{"t": NOW}, None]


KINDS: list[Any] = ["int", DATE, "long", MS, US, "float", "double"]


@given(st.data())
def test_what_the_registry_takes_has_the_same_value_or_is_refused(data: st.DataObject) -> None:
    """An independent model: the stored number, in the writer's unit, or else the reader's."""

    writer, reader = (data.draw(st.sampled_from(KINDS)) for _ in range(2))
    number = data.draw(st.integers(-20_000, 20_000))
    below = writer["type"] if isinstance(writer, dict) else writer
    wrote = float(number) if below in ("float", "double") else number
    if not compatible(record(writer), record(reader)):
        return
    was, wanted = (
        each["logicalType"] if isinstance(each, dict) else "" for each in (writer, reader)
    )
    if wanted and "date" in (was, wanted) and was not in ("", wanted):
        with pytest.raises(PersistenceError, match="field 't' was"):
            read(record(writer), record(reader), {"t": wrote})
        return
    (row,) = read(record(writer), record(reader), {"t": wrote})
    if not wanted:
        assert row == {"t": number}
    elif wanted == "date":
        assert (row["t"] - date(1970, 1, 1)).days == number
    else:
        unit_us = 1000 if (was or wanted) == "timestamp-millis" else 1
        assert round((row["t"] - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6) == (
            number * unit_us
        )
