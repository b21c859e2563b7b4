"""Records of Python types in JSON and Avro: definitions, values, and errors that name the field."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from enum import Enum
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.client import AvroSchema, JsonSchema, Schema
from magnetar.client.errors import InvalidConfiguration, SchemaFailed
from magnetar.client.schema import Float32, Int32, SchemaInfo, SchemaType
from magnetar.schemas.avro_parse import parse_avro

BOTH = (JsonSchema, AvroSchema)


class Colour(Enum):
    RED = 1
    GREEN = 2


@dataclass
class Line:
    price: float
    count: Int32 = 1


@dataclass
class Order:
    number: int
    name: str
    paid: bool
    raw: bytes
    at: datetime
    day: date
    clock: time
    ref: UUID
    colour: Colour
    note: str | None
    lines: list[Line] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ("a",)
    ratio: Float32 = 0.5
    parent: "Order | None" = None
    created: UUID = field(default_factory=uuid4)


class Struct(msgspec.Struct, rename="camel"):
    first_name: str
    age: int | None = None


class Model(pydantic.BaseModel):
    first_name: str = pydantic.Field(alias="firstName")
    age: Annotated[int, pydantic.Field(ge=0)] = 7
    small: Int32 = 1
    lines: list[Line] = pydantic.Field(default_factory=list)


def order(**changes: Any) -> Order:
    fields = {
        "number": 2**40, "name": "Ann", "paid": True, "raw": b"\x00\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "day": date(1969, 12, 31),
        "clock": time(23, 59, 59, 999_999), "ref": UUID(int=7), "colour": Colour.GREEN,
        "note": None, "lines": [Line(1.5, 2)], "counts": {"x": 1}, "tags": ("b", "c"),
    }  # fmt: skip
    return Order(**{**fields, **changes})


@pytest.mark.parametrize("kind", BOTH)
def test_every_type_of_field(kind: Any) -> None:
    schema = kind(Order)
    sent = order(parent=order())
    assert schema.decode(schema.encode(sent), None) == sent


@pytest.mark.parametrize("kind", BOTH)
def test_structs_and_models(kind: Any) -> None:
    structs: Schema[Struct] = kind(Struct)
    assert structs.decode(structs.encode(Struct("Ann")), None) == Struct("Ann")
    models: Schema[Model] = kind(Model)
    model = Model(firstName="Ann", lines=[Line(2.0)])
    assert models.decode(models.encode(model), None) == model


def definition(schema: Any) -> Any:
    parse_avro(schema.info.data)
    return json.loads(schema.info.data)


def test_the_definition_is_that_of_the_official_clients() -> None:
    @dataclass
    class User:
        name: str | None
        age: Int32
        big: int = 5
        nick: str | None = "x"

    assert definition(AvroSchema(User, namespace="org.shop")) == {
        "type": "record",
        "name": "User",
        "namespace": "org.shop",
        "fields": [
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "age", "type": "int"},
            {"name": "big", "type": "long", "default": 5},
            {"name": "nick", "type": ["string", "null"], "default": "x"},
        ],
    }
    assert definition(JsonSchema(Struct))["fields"] == [
        {"name": "firstName", "type": "string"},
        {"name": "age", "type": ["null", "long"], "default": None},
    ]


def test_a_definition_is_the_same_each_time() -> None:
    assert AvroSchema(Order).info == AvroSchema(Order).info
    created = definition(AvroSchema(Order))["fields"][-1]
    assert created == {"name": "created", "type": {"type": "string", "logicalType": "uuid"}}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": "x"}, "Order.number: 'x' is not an int"),
        ({"number": 2**63}, "Order.number: 9223372036854775808 is not an int of 64 bits"),
        ({"lines": [Line(1.0), Line("dear")]}, "Order.lines[1].price: 'dear' is not a float"),  # type: ignore[arg-type]
        ({"counts": {"a": True}}, "Order.counts['a']: True is not an int"),
        ({"at": datetime(2026, 1, 1)}, "Order.at: datetime"),  # noqa: DTZ001
        ({"note": 3}, "Order.note: 3 is not a str"),
        ({"colour": 1}, "Order.colour: 1 is not a Colour"),
    ],
)
def test_errors_name_the_field(kind: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaFailed) as failed:
        kind(Order).encode(order(**changes))
    assert message in str(failed.value)


def test_json_has_no_nan() -> None:
    with pytest.raises(SchemaFailed, match=r"Line.price: nan is not a number that JSON has"):
        JsonSchema(Line).encode(Line(float("nan")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "Line: [] is not a record"),
        (b"{}", "Line.price is missing in the message, and has no default"),
        (b'{"price":null}', "Line.price: None is not a float"),
        (b'{"price":1,"count":1.5}', "Line.count: 1.5 is not an int"),
    ],
)
def test_bad_json(data: bytes, message: str) -> None:
    with pytest.raises(SchemaFailed) as failed:
        JsonSchema(Line).decode(data, None)
    assert message in str(failed.value)


def test_json_of_others() -> None:
    assert JsonSchema(Line).decode(b'{"price":1,"unknown":[]}', None) == Line(1.0, 1)


def test_a_model_checks_what_it_reads() -> None:
    with pytest.raises(SchemaFailed, match=r"Model cannot be built.*\n.*age"):
        JsonSchema(Model).decode(b'{"first_name":"a","age":-1}', None)


@dataclass
class Pair:
    either: tuple[int, str]


@dataclass
class Wild:
    anything: Any


@dataclass
class Keys:
    by_number: dict[int, str]


@dataclass
class Alike:
    either: str | bytes


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Pair, "Pair.either"), (Wild, "Wild.anything"), (Keys, "Keys.by_number"), (int, "no record")],
)
def test_types_without_a_schema(kind: type, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        AvroSchema(kind)


def test_types_that_are_alike_in_json() -> None:
    with pytest.raises(InvalidConfiguration, match=r"Alike.either.*alike in JSON"):
        JsonSchema(Alike)
    schema = AvroSchema(Alike)
    for value in ("x", b"x"):
        assert schema.decode(schema.encode(Alike(value)), None) == Alike(value)


@dataclass
class Number:
    value: float | int | None
    other: float | int = 3


def test_numbers_keep_their_type_in_a_union() -> None:
    schema = AvroSchema(Number)
    assert definition(schema)["fields"][1]["default"] == 3
    for value in (2**60 + 1, 0.5, None):
        assert schema.decode(schema.encode(Number(value)), None) == Number(value)


# -- versions -------------------------------------------------------------------------------------

V1 = b'{"type":"record","name":"com.Old","fields":[{"name":"price","type":"int"}]}'
V2 = (
    b'{"type":"record","name":"Line","fields":[{"name":"more","type":"string"},'
    b'{"name":"price","type":["null","float"]}]}'
)
V3 = b'{"type":"record","name":"Line","fields":[{"name":"price","type":"string"}]}'


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_avro_is_read_with_the_writers_schema() -> None:
    schema = AvroSchema(Line).for_topic()
    for number, data in enumerate((V1, V2, V3)):
        schema.learn(version(number), SchemaInfo(SchemaType.AVRO, data))
    schema.learn(version(3), SchemaInfo(SchemaType.JSON, V1))
    assert schema.decode(b"\x06", version(0)) == Line(3.0, 1)
    assert schema.decode(b"\x02x\x02\x00\x00\x80\x3f", version(1)) == Line(1.0, 1)
    with pytest.raises(SchemaFailed) as failed:
        schema.decode(b"\x02x\x00", version(1))
    assert "Line.price: None is not a float (written with version 1" in str(failed.value)
    with pytest.raises(SchemaFailed, match=r"Line.price: 'x' is not a float.*version 2"):
        schema.decode(b"\x02x", version(2))
    with pytest.raises(SchemaFailed, match="its schema is JSON, not AVRO"):
        schema.decode(b"", version(3))


def test_versions_of_two_topics_are_not_mixed() -> None:
    schema = AvroSchema(Line)
    first, second = schema.for_topic(), schema.for_topic()
    first.learn(version(0), SchemaInfo(SchemaType.AVRO, V1))
    second.learn(version(0), SchemaInfo(SchemaType.AVRO, V2))
    assert first.decode(b"\x06", version(0)) == Line(3.0)
    assert second.decode(b"\x02x\x02\x00\x00\x80\x3f", version(0)) == Line(1.0)


def test_a_given_definition_is_declared_as_it_is() -> None:
    schema = AvroSchema(Line, definition=V1.replace(b'"int"', b'"double"'))
    assert schema.info.data == V1.replace(b'"int"', b'"double"')
    assert schema.decode(schema.encode(Line(2.5)), None) == Line(2.5)
    with pytest.raises(InvalidConfiguration, match="no Avro schema"):
        AvroSchema(Line, definition="{}")


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_a_value_or_a_clear_error(data: bytes) -> None:
    for schema in (_AVRO, _JSON):
        try:
            value = schema.decode(data, None)
        except SchemaFailed:
            continue
        assert isinstance(value, Order)


_AVRO: Schema[Order] = AvroSchema(Order)
_JSON: Schema[Order] = JsonSchema(Order)


@given(
    st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(),
    st.datetimes(timezones=st.just(UTC)), st.dates(), st.times(), st.uuids(),
    st.lists(st.builds(Line, st.floats(allow_nan=False, allow_infinity=False))),
)  # fmt: skip
def test_values_survive(
    number: int, name: str, raw: bytes, at: datetime, day: date, clock: time, ref: UUID,
    lines: list[Line],
) -> None:  # fmt: skip
    sent = order(
        number=number, name=name, raw=raw, at=at, day=day, clock=clock, ref=ref, lines=lines
    )
    for schema in (_AVRO, _JSON):
        assert schema.decode(schema.encode(sent), None) == sent
