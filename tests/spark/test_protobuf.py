"""Protobuf messages as rows, against the messages' own contents."""

import pickle
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.protobufs import COLOURS, F, Field, class_of, message, native

from magnetar.core.errors import PersistenceError, PreconditionFailed
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode.payloads import NO_VERSION, Stored, payloads_of
from magnetar_spark.log.schemas import Schema

SIGNED_32: Final = st.integers(-(2**31), 2**31 - 1)
SIGNED_64: Final = st.integers(-(2**63), 2**63 - 1)
UNSIGNED_32: Final = st.integers(0, 2**32 - 1)
UNSIGNED_64: Final = st.integers(0, 2**64 - 1)
VALUES: Final[dict[int, st.SearchStrategy[Any]]] = {
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_INT32: SIGNED_32,
    F.TYPE_SINT32: SIGNED_32,
    F.TYPE_SFIXED32: SIGNED_32,
    F.TYPE_UINT32: UNSIGNED_32,
    F.TYPE_FIXED32: UNSIGNED_32,
    F.TYPE_INT64: SIGNED_64,
    F.TYPE_SINT64: SIGNED_64,
    F.TYPE_SFIXED64: SIGNED_64,
    F.TYPE_UINT64: UNSIGNED_64,
    F.TYPE_FIXED64: UNSIGNED_64,
    F.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    F.TYPE_DOUBLE: st.floats(allow_nan=False),
    F.TYPE_STRING: st.text(max_size=5),
    F.TYPE_BYTES: st.binary(max_size=5),
    F.TYPE_ENUM: st.sampled_from([*COLOURS, 99]),
}
KEYS: Final = [F.TYPE_STRING, F.TYPE_INT32, F.TYPE_UINT64, F.TYPE_BOOL]
Draw = Callable[[st.SearchStrategy[Any]], Any]
SHAPES: Final = ["", "optional", "repeated", "map", "one", "other"]


@st.composite
def fields(draw: st.DrawFn, nested: str = "") -> list[Field]:
    kinds: list[int] = [*VALUES, *([F.TYPE_MESSAGE] if nested else [])]
    names: dict[int, str] = {F.TYPE_ENUM: "t.Colour", F.TYPE_MESSAGE: nested}
    made = []
    for number in draw(st.lists(st.integers(1, 500), min_size=0, max_size=6, unique=True)):
        kind = draw(st.sampled_from(kinds))
        name = names.get(kind, "")
        shape, key = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(KEYS))
        made.append(Field(f"f{number}", number, kind, shape, name, key))
    return made


def fill(draw: Draw, made: Any, within: dict[str, list[Field]], name: str) -> None:
    for field in within[name]:
        if not draw(st.booleans()):
            continue
        count = draw(st.integers(0, 3))
        inner = field.type_name.removeprefix("t.")
        if field.type == F.TYPE_MESSAGE:
            target = getattr(made, field.name)
            if field.shape == "repeated":
                places = [target.add() for _ in range(count)]
            elif field.shape == "map":
                places = [target[draw(VALUES[field.key_type])] for _ in range(count)]
            else:
                target.SetInParent()
                places = [target]
            for place in places:
                fill(draw, place, within, inner)
            continue
        values = VALUES[field.type]
        if field.shape == "repeated":
            getattr(made, field.name).extend(draw(values) for _ in range(count))
        elif field.shape == "map":
            for _ in range(count):
                getattr(made, field.name)[draw(VALUES[field.key_type])] = draw(values)
        else:
            setattr(made, field.name, draw(values))


def expected(made: Any, within: dict[str, list[Field]], name: str) -> dict[str, Any]:
    """Returns the expected row, from the message's own attributes."""

    def one(field: Field, value: Any) -> Any:
        if field.type == F.TYPE_MESSAGE:
            return expected(value, within, field.type_name.removeprefix("t."))
        if field.type == F.TYPE_ENUM:
            return COLOURS.get(value, str(value))
        return value

    row: dict[str, Any] = {}
    for field in within[name]:
        value = getattr(made, field.name)
        tracked = field.shape in ("optional", "one", "other") or field.type == F.TYPE_MESSAGE
        if field.shape == "map":
            row[field.name] = {key: one(field, value[key]) for key in value}
        elif field.shape == "repeated":
            row[field.name] = [one(field, each) for each in value]
        elif tracked and not made.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = one(field, value)
    return row


def decoded(schema: Schema, *values: bytes | None) -> Any:
    return by_versions(schema, {}, *((NO_VERSION, value) for value in values))


def by_versions(
    newest: Schema, known: dict[int, Schema], *values: tuple[int, bytes | None]
) -> list[Any]:
    payloads = payloads_of(newest)
    assert payloads is not None
    payloads = pickle.loads(pickle.dumps(payloads))  # noqa: S301
    raw = pa.array([value for _, value in values], pa.binary())
    versions = pa.array([version for version, _ in values], pa.int64()).to_numpy()
    made = payloads.decode(Stored(raw, raw, versions, known))
    made.validate(full=True)
    assert made.type == payloads.arrow_type
    return list(made.to_pylist(maps_as_pydicts="strict"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_kind_of_field(data: st.DataObject) -> None:
    within = {"Leaf": data.draw(fields()), "Mid": data.draw(fields("t.Leaf"))}
    within["Root"] = data.draw(fields("t.Mid"))
    schema = native(*(message(name, within[name]) for name in ("Root", "Mid", "Leaf")))
    made = class_of(schema)()
    fill(data.draw, made, within, "Root")
    assert decoded(schema, made.SerializeToString(), None, b"") == [
        expected(made, within, "Root"),
        None,
        expected(type(made)(), within, "Root"),
    ]


EXTREMES: Final[dict[int, Sequence[Any]]] = {
    F.TYPE_BOOL: [False, True],
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32), (-(2**31), 0, 2**31 - 1)),
    **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64), (-(2**63), 0, 2**63 - 1)),
    **dict.fromkeys((F.TYPE_UINT32, F.TYPE_FIXED32), (0, 2**32 - 1)),
    **dict.fromkeys((F.TYPE_UINT64, F.TYPE_FIXED64), (0, 2**64 - 1)),
    F.TYPE_FLOAT: [float("-inf"), 0.0, 2.0**127],
    F.TYPE_DOUBLE: [float("-inf"), 0.0, 1e308],
    F.TYPE_STRING: ["", "\0é\U0001f600"],
    F.TYPE_BYTES: [b"", b"\xff\0"],
    F.TYPE_ENUM: [*COLOURS, 2**31 - 1],
}


@pytest.mark.parametrize("shape", ["", "optional", "repeated", "map"])
@pytest.mark.parametrize("kind", EXTREMES)
def test_extremes(kind: int, shape: str) -> None:
    field = Field("a", 1, kind, shape, "t.Colour" if kind == F.TYPE_ENUM else "")
    inner = Field("m", 1, F.TYPE_MESSAGE, "map", "t.R")
    within = {"Root": [inner], "R": [field]}
    schema = native(message("Root", [inner]), message("R", [field]))
    made: Any = class_of(schema)()
    for place, value in enumerate(EXTREMES[kind]):
        target = made.m[str(place)]
        if shape == "repeated":
            target.a.extend([value, value])
        elif shape == "map":
            target.a["k"] = value
        else:
            target.a = value
    assert decoded(schema, made.SerializeToString()) == [expected(made, within, "Root")]


def one(kind: int, shape: str = "", *, number: int = 1, name: str = "a", **of: Any) -> Schema:
    return native(message("R", [Field(name, number, kind, shape, **of)]))


def of_one(schema: Schema, value: Any) -> bytes:
    """Returns the value of the message's only field."""
    made = class_of(schema)()
    (field,) = made.DESCRIPTOR.fields
    if field.is_repeated:
        getattr(made, field.name).extend(value)
    else:
        setattr(made, field.name, value)
    return made.SerializeToString()


COLOUR: Final[dict[str, Any]] = {"type_name": "t.Colour"}


@pytest.mark.parametrize(
    ("older", "value", "newest", "found"),
    [
        (one(F.TYPE_INT32), -5, one(F.TYPE_SINT64), -5),
        (one(F.TYPE_UINT64), 5, one(F.TYPE_INT32), 5),
        (one(F.TYPE_INT64), -5, one(F.TYPE_FIXED64), Decimal(-5)),
        (one(F.TYPE_FLOAT), 0.5, one(F.TYPE_DOUBLE), 0.5),
        (one(F.TYPE_STRING), "é", one(F.TYPE_BYTES), "é".encode()),
        (one(F.TYPE_BYTES), "é".encode(), one(F.TYPE_STRING), "é"),
        (one(F.TYPE_ENUM, **COLOUR), -7, one(F.TYPE_INT32), -7),
        (one(F.TYPE_INT32), -7, one(F.TYPE_ENUM, **COLOUR), "BLUE"),
        (one(F.TYPE_INT32), 3, one(F.TYPE_INT32, "repeated"), [3]),
        (one(F.TYPE_INT32), 0, one(F.TYPE_INT32, "repeated"), []),
        (one(F.TYPE_INT32), 0, one(F.TYPE_INT32, "optional"), 0),
        (one(F.TYPE_INT32), 4, one(F.TYPE_INT32, "optional"), 4),
        (one(F.TYPE_INT32, name="b"), 4, one(F.TYPE_INT32), 4),
        (one(F.TYPE_INT32, number=2), 4, one(F.TYPE_INT32), 0),
        (one(F.TYPE_INT32, number=2), 4, one(F.TYPE_INT32, "optional"), None),
        (one(F.TYPE_INT32, number=2), 4, one(F.TYPE_INT32, "map"), {}),
        (one(F.TYPE_INT32, number=2), 4, one(F.TYPE_ENUM, **COLOUR), "NONE"),
    ],
)
def test_older_messages_have_the_newest_columns(
    older: Schema, value: Any, newest: Schema, found: Any
) -> None:
    assert by_versions(newest, {3: older, 4: newest}, (3, of_one(older, value)), (4, None)) == [
        {"a": found},
        None,
    ]


@pytest.mark.parametrize(
    ("older", "value", "newest"),
    [
        (one(F.TYPE_INT32), 1, one(F.TYPE_STRING)),
        (one(F.TYPE_DOUBLE), 1, one(F.TYPE_FLOAT)),
        (one(F.TYPE_BOOL), True, one(F.TYPE_INT32)),
        (one(F.TYPE_INT32, "repeated"), [1], one(F.TYPE_INT32)),
        (one(F.TYPE_INT32, "repeated"), [1], one(F.TYPE_INT32, "map")),
    ],
)
def test_other_changes_are_refused(older: Schema, value: Any, newest: Schema) -> None:
    with pytest.raises(PersistenceError, match=r"field 1 \('t\.R\.a'\) had another type"):
        by_versions(newest, {0: older}, (0, of_one(older, value)))


def test_a_name_that_left_the_enum_stays() -> None:
    older = one(F.TYPE_ENUM, **COLOUR)
    newest = native(message("R", [Field("a", 1, F.TYPE_ENUM, "", "t.Colour")]), colours={0: "ZERO"})
    values = [(0, of_one(older, 1)), (1, of_one(older, 1)), (0, b""), (1, b"")]
    found = by_versions(newest, {0: older, 1: newest}, *values)
    assert [row["a"] for row in found] == ["RED", "1", "NONE", "ZERO"]


def test_what_does_not_parse_is_an_error() -> None:
    schema = one(F.TYPE_INT32)
    for bad in (b"\x0a\x05a", b"\xff"):
        with pytest.raises(PersistenceError, match="not as its Protobuf schema says"):
            decoded(schema, bad)
    too_large = of_one(one(F.TYPE_UINT64), 2**63)
    with pytest.raises(PersistenceError, match="not as its Protobuf schema says"):
        by_versions(schema, {0: one(F.TYPE_UINT64)}, (0, too_large))
    with pytest.raises(PersistenceError, match="version 7 of the schema is of the type Avro"):
        by_versions(schema, {7: Schema(Wire.Avro, b"{}")}, (7, b""))
    with pytest.raises(PersistenceError, match="version 7 of the schema is not in the registry"):
        by_versions(schema, {}, (7, b""))
    with pytest.raises(PersistenceError, match="cannot be used"):
        by_versions(schema, {7: Schema(Wire.ProtobufNative, b"{}")}, (7, b""))


def test_proto2_knows_what_is_there() -> None:
    schema = native(
        message(
            "R",
            [
                Field("must", 1, F.TYPE_INT32, "required"),
                Field("may", 2, F.TYPE_INT32),
                Field("colour", 3, F.TYPE_ENUM, "", "t.Colour"),
                Field("text", 4, F.TYPE_STRING),
            ],
            proto3=False,
        ),
        proto3=False,
    )
    made: Any = class_of(schema)(must=0, may=0)
    row = {"must": 0, "may": 0, "colour": None, "text": None}
    # A closed enum has no unknown values: this one is an unknown field.
    assert decoded(schema, made.SerializeToString() + b"\x18\x63") == [row]
    for bad in (b"\x10\x01", made.SerializeToString() + b"\x22\x01\xff"):
        with pytest.raises(PersistenceError, match="not as its Protobuf schema says"):
            decoded(schema, bad)


def known(name: str, number: int, kind: str, shape: str = "") -> Field:
    return Field(name, number, F.TYPE_MESSAGE, shape, f"google.protobuf.{kind}")


WELL_KNOWN: Final = native(
    message(
        "R",
        [
            known("at", 1, "Timestamp"),
            known("took", 2, "Duration"),
            known("number", 3, "UInt64Value"),
            known("times", 4, "Timestamp", "repeated"),
            known("texts", 5, "StringValue", "map"),
        ],
    ),
    imports=[timestamp_pb2, duration_pb2, wrappers_pb2],
)


def test_well_known_types() -> None:
    made: Any = class_of(WELL_KNOWN)()
    made.at.FromNanoseconds(-1_000_000_001)
    made.took.FromNanoseconds(-1_500_000_001)
    made.number.value = 2**64 - 1
    made.times.add(seconds=253_402_300_799, nanos=999_999_999)
    made.times.add(seconds=-62_135_596_800)
    made.texts["k"].value = "v"
    made.texts["empty"].SetInParent()
    assert decoded(WELL_KNOWN, made.SerializeToString(), b"") == [
        {
            "at": datetime(1969, 12, 31, 23, 59, 58, 999_999, UTC),
            "took": timedelta(microseconds=-1_500_000),
            "number": Decimal(2**64 - 1),
            "times": [
                datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
                datetime(1, 1, 1, tzinfo=UTC),
            ],
            "texts": {"k": "v", "empty": ""},
        },
        {"at": None, "took": None, "number": None, "times": [], "texts": {}},
    ]
    for field, seconds, nanos in [("at", 2**60, 0), ("at", 0, -1), ("took", 1, -1)]:
        bad: Any = class_of(WELL_KNOWN)()
        getattr(bad, field).MergeFrom(type(getattr(bad, field))(seconds=seconds, nanos=nanos))
        with pytest.raises(PersistenceError, match=r"no (timestamp|duration)"):
            decoded(WELL_KNOWN, bad.SerializeToString())


def test_a_wrapper_as_the_root_has_its_field() -> None:
    of_wrappers = WELL_KNOWN.data.replace(b"t.R", b"google.protobuf.Int64Value").replace(
        b"t.proto", b"google/protobuf/wrappers.proto"
    )
    schema = Schema(Wire.ProtobufNative, of_wrappers)
    assert decoded(schema, wrappers_pb2.Int64Value(value=5).SerializeToString()) == [{"value": 5}]


def test_names_that_messages_have_themselves() -> None:
    schema = one(F.TYPE_INT32, name="SerializeToString")
    assert decoded(schema, b"\x08\x07") == [{"SerializeToString": 7}]


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (one(F.TYPE_MESSAGE, type_name="t.R"), r"'t\.R' contains itself"),
        (one(F.TYPE_MESSAGE, "map", type_name="t.R"), r"'t\.R' contains itself"),
        (
            native(message("R", [known("any", 1, "Struct")]), imports=[struct_pb2]),
            r"'google\.protobuf\.Struct' contains itself",
        ),
        (
            native(
                *(
                    message(
                        f"M{level}",
                        [
                            Field(name, number, F.TYPE_MESSAGE, "", f"t.M{level + 1}")
                            for number, name in enumerate("abcd", 1)
                            if level < 8
                        ],
                    )
                    for level in range(9)
                )
            ),
            "more than 10000 fields",
        ),
        (Schema(Wire.ProtobufNative, b"no"), "no file descriptors"),
        (Schema(Wire.ProtobufNative, one(F.TYPE_INT32).data.replace(b"t.R", b"t.S")), "used"),
        (
            Schema(Wire.ProtobufNative, one(F.TYPE_INT32).data.replace(b"t.proto", b"u.proto")),
            "used",
        ),
    ],
)
def test_what_has_no_columns(schema: Schema, match: str) -> None:
    with pytest.raises(PreconditionFailed, match=match):
        payloads_of(schema)


def test_pairs_of_messages() -> None:
    key, value = one(F.TYPE_STRING), one(F.TYPE_INT32)
    older = one(F.TYPE_INT32, name="b")
    kinds = {f"{part}.schema.type": "PROTOBUF_NATIVE" for part in ("key", "value")}

    def pair(*halves: bytes) -> bytes:
        return b"".join(len(half).to_bytes(4, "big") + half for half in halves)

    def pairs(value: Schema) -> Schema:
        properties = {**kinds, "kv.encoding.type": "INLINE"}
        return Schema(Wire.KeyValue, pair(key.data, value.data), properties)

    data = pair(of_one(key, "k"), of_one(older, 5))
    row = {"key": {"a": "k"}, "value": {"a": 5}}
    found = by_versions(pairs(value), {0: pairs(older), 1: pairs(value)}, (0, data), (1, data))
    assert found == [row, row]


def test_other_protobuf_is_left_as_it_is() -> None:
    """Pulsar's PROTOBUF lists only the numbers of the root's fields."""
    assert payloads_of(Schema(Wire.Protobuf, b"{}")) is None
    assert issubclass(class_of(WELL_KNOWN), Message)
