"""Avro: parsing, equality, text, and who can read what. The tables' answers are Pulsar 4.2.4's."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.schema.avro_text import avro_text
from magnetar.schemas.avro import avro_equal, can_read
from magnetar.schemas.avro_parse import NESTING_MAX, AvroParseError, Schema, parse_avro


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def parsed(tree: Any) -> Schema:
    return parse_avro(json.dumps(tree).encode())


NODE = record(field("next", ["null", "Node"], default=None), name="Node")
NODE_2 = record(
    field("next", ["null", "Node"], default=None), field("v", "int", default=1), name="Node"
)
NODE_3 = record(field("next", ["null", "Node"], default=None), field("v", "int"), name="Node")

# What was written with the first can be read with the second: yes or no.
READS = {
    "same": (record(field("a", "int")), record(field("a", "int")), True),
    "int to long": ("int", "long", True),
    "int to float": ("int", "float", True),
    "int to double": ("int", "double", True),
    "long to float": ("long", "float", True),
    "long to double": ("long", "double", True),
    "float to double": ("float", "double", True),
    "string to bytes": ("string", "bytes", True),
    "bytes to string": ("bytes", "string", True),
    "long to int": ("long", "int", False),
    "double to float": ("double", "float", False),
    "float to long": ("float", "long", False),
    "int to string": ("int", "string", False),
    "boolean to int": ("boolean", "int", False),
    "null to int": ("null", "int", False),
    "field gone": (record(field("a", "int"), field("b", "int")), record(field("a", "int")), True),
    "field new": (record(field("a", "int")), record(field("a", "int"), field("b", "int")), False),
    "field new with default": (
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int", default=1)),
        True,
    ),
    "field new, null by default": (
        record(),
        record(field("b", ["null", "int"], default=None)),
        True,
    ),
    "field new, nullable only": (record(), record(field("b", ["null", "int"])), False),
    "default of the second branch": (
        record(),
        record(field("b", ["null", "int"], default=1)),
        True,
    ),
    "default of no branch": (record(), record(field("b", ["null", "int"], default="x")), False),
    "default of another type": (record(), record(field("b", "int", default="x")), False),
    "default null for int": (record(), record(field("b", "int", default=None)), False),
    "default for bytes": (record(), record(field("b", "bytes", default="xy")), True),
    "default for an array": (record(), record(field("b", array("int"), default=[1, 2])), True),
    "default for an array, wrong": (
        record(),
        record(field("b", array("int"), default=[1, "x"])),
        False,
    ),
    "default for a map": (record(), record(field("b", mapping("int"), default={"k": 1})), True),
    "default for an enum": (record(), record(field("b", enum("X"), default="X")), True),
    "default for an enum, wrong": (record(), record(field("b", enum("X"), default="Y")), False),
    "default for a record": (
        record(),
        record(field("b", record(field("c", "int"), name="S"), default={"c": 1})),
        True,
    ),
    "default for a record, by its fields' defaults": (
        record(),
        record(field("b", record(field("c", "int", default=1), name="S"), default={})),
        True,
    ),
    "default for a record, incomplete": (
        record(),
        record(field("b", record(field("c", "int"), name="S"), default={})),
        False,
    ),
    "a default without end": (
        record(name="Other"),
        record(field("b", ["R", "null"], default={}), name="R"),
        False,
    ),
    "fields reordered": (
        record(field("a", "int"), field("b", "string")),
        record(field("b", "string"), field("a", "int")),
        True,
    ),
    "field promoted": (record(field("a", "int")), record(field("a", "long")), True),
    "field changed": (record(field("a", "int")), record(field("a", "string")), False),
    "field made nullable": (record(field("a", "int")), record(field("a", ["null", "int"])), True),
    "nullable field made plain": (
        record(field("a", ["null", "int"])),
        record(field("a", "int")),
        False,
    ),
    "field renamed": (record(field("a", "int")), record(field("b", "int")), False),
    "field renamed with alias": (
        record(field("a", "int")),
        record(field("b", "int", aliases=["a"])),
        True,
    ),
    "alias that the writer has beside the field": (
        record(field("a", "int"), field("b", "int")),
        record(field("b", "int", aliases=["a"])),
        False,
    ),
    "record renamed": (record(field("a", "int")), record(field("a", "int"), name="Q"), True),
    "record moved to a namespace": (
        record(field("a", "int")),
        record(field("a", "int"), namespace="n"),
        True,
    ),
    "record to enum": (record(), enum("X", name="R"), False),
    "enum symbol new": (enum("X"), enum("X", "Y"), True),
    "enum symbol gone": (enum("X", "Y"), enum("X"), True),
    "enum symbol gone, with default": (enum("X", "Y"), enum("X", default="X"), True),
    "enum renamed": (enum("X"), enum("X", name="E2"), False),
    "enum renamed with alias": (enum("X"), enum("X", name="E2", aliases=["E"]), True),
    "enum moved to a namespace": (enum("X"), enum("X", namespace="n"), True),
    "enum to string": (enum("X"), "string", False),
    "fixed same": (fixed(4), fixed(4), True),
    "fixed resized": (fixed(4), fixed(5), False),
    "fixed renamed": (fixed(4), fixed(4, name="F2"), False),
    "fixed renamed with alias": (fixed(4), fixed(4, name="F2", aliases=["F"]), True),
    "fixed to bytes": (fixed(4), "bytes", False),
    "array promoted": (array("int"), array("long"), True),
    "array changed": (array("int"), array("string"), False),
    "map promoted": (mapping("int"), mapping("double"), True),
    "map changed": (mapping("long"), mapping("int"), False),
    "array to map": (array("int"), mapping("int"), False),
    "union widened": (array(["null", "int"]), array(["null", "int", "string"]), True),
    "union narrowed": (array(["null", "int", "string"]), array(["null", "int"]), False),
    "union reordered": (array(["null", "int"]), array(["int", "null"]), True),
    "union branch promoted": (array(["null", "int"]), array(["null", "long"]), True),
    "union branch demoted": (array(["null", "long"]), array(["null", "int"]), False),
    "union to its widest": (array(["int", "long"]), array("double"), True),
    "union to one of its branches": (array(["int", "string"]), array("int"), False),
    "plain into union, promoted": (array("int"), array(["null", "double"]), True),
    "plain into union, no branch": (array("boolean"), array(["null", "double"]), False),
    "record into union by shape": (
        array(record(field("a", "int"))),
        array(["null", record(field("a", "int"), name="Q")]),
        True,
    ),
    "record into union, shape differs": (
        array(record(field("a", "int"))),
        array(["null", record(field("b", "int"), name="Q")]),
        False,
    ),
    "record into union by name before shape": (
        array(record(field("a", "int"))),
        array([record(field("a", "int"), name="Q"), record(field("a", "string"))]),
        False,
    ),
    "enum into union, renamed": (array(enum("X")), array(["null", enum("X", name="E2")]), False),
    "recursive, same": (NODE, NODE, True),
    "recursive, field new with default": (NODE, NODE_2, True),
    "recursive, field new": (NODE, NODE_3, False),
    "recursive, field gone": (NODE_3, NODE, True),
    "nested change, deep": (
        record(field("a", array(mapping(record(field("x", "int"), name="S"))))),
        record(field("a", array(mapping(record(field("x", "string"), name="S"))))),
        False,
    ),
    "logical type dropped": (
        record(field("a", {"type": "long", "logicalType": "timestamp-millis"})),
        record(field("a", "long")),
        True,
    ),
    "type used before its definition": (
        record(field("a", "S"), field("b", record(name="S"))),
        record(field("b", record(name="S"))),
        True,
    ),
}


@pytest.mark.parametrize("case", READS, ids=str)
def test_can_read(case: str) -> None:
    writer, reader, expected = READS[case]
    assert can_read(parsed(writer), parsed(reader)) is expected


NOT_AVRO = {
    "nothing": b"",
    "cut": b'{"type": "record"',
    "bare word": b"string",
    "number": b"1",
    "null": b"null",
    "text after it": b'{"type": "string"} x',
    "unknown type": b'{"type": "strange"}',
    "no type": b'{"name": "R", "fields": []}',
    "type within type": b'{"type": {"type": "string"}}',
    "record without name": b'{"type": "record", "fields": []}',
    "record without fields": b'{"type": "record", "name": "R"}',
    "bad name": b'{"type": "record", "name": "R-1", "fields": []}',
    "name of digits": b'{"type": "record", "name": "1R", "fields": []}',
    "empty name": b'{"type": "record", "name": "", "fields": []}',
    "field twice": json.dumps(record(field("a", "int"), field("a", "int"))).encode(),
    "field without type": json.dumps(record({"name": "a"})).encode(),
    "field without name": json.dumps(record({"type": "int"})).encode(),
    "undefined type": json.dumps(record(field("a", "Nowhere"))).encode(),
    "type twice": json.dumps(
        record(field("a", record(name="S")), field("b", enum("X", name="S")))
    ).encode(),
    "enum without symbols": b'{"type": "enum", "name": "E"}',
    "symbol twice": json.dumps(enum("X", "X")).encode(),
    "enum default of no symbol": json.dumps(enum("X", default="Y")).encode(),
    "fixed without size": b'{"type": "fixed", "name": "F"}',
    "array without items": b'{"type": "array"}',
    "map without values": b'{"type": "map"}',
    "union in union": b'["null", ["int"]]',
    "branch twice": b'["int", "int"]',
    "order unknown": json.dumps(record(field("a", "int", order="up"))).encode(),
}


@pytest.mark.parametrize("case", NOT_AVRO, ids=str)
def test_not_avro(case: str) -> None:
    with pytest.raises(AvroParseError):
        parse_avro(NOT_AVRO[case])


AVRO = {
    "primitive": b'"int"',
    "dollar": b'{"type": "record", "name": "Outer$Inner_1", "fields": []}',
    "letters of any script": '{"type": "record", "name": "Größe", "fields": []}'.encode(),
    "error": b'{"type": "error", "name": "E", "fields": []}',
    "default of another type": json.dumps(record(field("a", "int", default="x"))).encode(),
    "empty union": b"[]",
    "by short and by full name": json.dumps(
        record(field("a", record(name="S")), field("b", "S"), field("c", "n.S"), namespace="n")
    ).encode(),
}


@pytest.mark.parametrize("case", AVRO, ids=str)
def test_avro(case: str) -> None:
    schema = parse_avro(AVRO[case])
    assert avro_equal(schema, parse_avro(AVRO[case]))


def test_nesting_is_bounded() -> None:
    parse_avro(b'{"type":"array","items":' * NESTING_MAX + b'"int"' + b"}" * NESTING_MAX)
    for depth in (NESTING_MAX + 1, 100_000):
        with pytest.raises(AvroParseError):
            parse_avro(b'{"type":"array","items":' * depth + b'"int"' + b"}" * depth)


def test_a_hostile_default_ends_quickly() -> None:
    """Each record's default leaves its fields to theirs: 2**60 ways unless they are kept."""
    tree: Any = record(name="R60")
    for i in reversed(range(60)):
        tree = record(
            field("a", tree, default={}), field("b", f"R{i + 1}", default={}), name=f"R{i}"
        )
    assert can_read(parsed(record(name="W")), parsed(record(field("x", tree, default={}))))


EQUAL = record(field("a", "int", doc="d"), doc="d", aliases=["Q"], namespace="n")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (record(field("a", "int"), name="n.R"), True),
        (record(field("a", "int"), namespace="m"), False),
        (record(field("a", "long"), namespace="n"), False),
        (record(field("a", "int", default=1), namespace="n"), False),
        (record(field("a", "int", order="ignore"), namespace="n"), False),
        (record(field("a", "int", extra=1), namespace="n"), False),
        (record(field("a", "int"), namespace="n", extra=1), False),
        (record(field("a", {"type": "int", "logicalType": "date"}), namespace="n"), False),
        (record(field("b", "int"), namespace="n"), False),
    ],
)
def test_equality_leaves_out_documentation_and_aliases(other: Any, expected: bool) -> None:
    assert avro_equal(parsed(EQUAL), parsed(other)) is expected


def test_defaults_that_python_takes_for_equal_differ() -> None:
    one, true = record(field("a", "int", default=1)), record(field("a", "int", default=True))
    assert not avro_equal(parsed(one), parsed(true))


def test_text_is_as_java_prints_it() -> None:
    tree = record(
        field("a", ["null", "string"], doc="x"),
        field("b", array("int"), default=[1, 2], order="ignore"),
        field("e", enum("A", default="A")),
        field("e2", "E"),
        field("m", mapping(fixed(3, name="other.F"))),
        field("u", {"type": "string", "avro.java.string": "String"}),
        name="A",
        namespace="n.s",
        x={"q": [1, {}]},
        aliases=["Z"],
    )
    assert avro_text(parsed(tree)) == (
        "{\n"
        '  "type" : "record",\n'
        '  "name" : "A",\n'
        '  "namespace" : "n.s",\n'
        '  "fields" : [ {\n'
        '    "name" : "a",\n'
        '    "type" : [ "null", "string" ],\n'
        '    "doc" : "x"\n'
        "  }, {\n"
        '    "name" : "b",\n'
        '    "type" : {\n'
        '      "type" : "array",\n'
        '      "items" : "int"\n'
        "    },\n"
        '    "default" : [ 1, 2 ],\n'
        '    "order" : "ignore"\n'
        "  }, {\n"
        '    "name" : "e",\n'
        '    "type" : {\n'
        '      "type" : "enum",\n'
        '      "name" : "E",\n'
        '      "symbols" : [ "A" ],\n'
        '      "default" : "A"\n'
        "    }\n"
        "  }, {\n"
        '    "name" : "e2",\n'
        '    "type" : "E"\n'
        "  }, {\n"
        '    "name" : "m",\n'
        '    "type" : {\n'
        '      "type" : "map",\n'
        '      "values" : {\n'
        '        "type" : "fixed",\n'
        '        "name" : "F",\n'
        '        "namespace" : "other",\n'
        '        "size" : 3\n'
        "      }\n"
        "    }\n"
        "  }, {\n"
        '    "name" : "u",\n'
        '    "type" : {\n'
        '      "type" : "string",\n'
        '      "avro.java.string" : "String"\n'
        "    }\n"
        "  } ],\n"
        '  "x" : {\n'
        '    "q" : [ 1, { } ]\n'
        "  },\n"
        '  "aliases" : [ "Z" ]\n'
        "}"
    )


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


@st.composite
def trees(draw: st.DrawFn, depth: int = 3, used: list[int] | None = None) -> Any:
    used = used if used is not None else []
    kinds = ["primitive"] * 3 + ["array", "map", "union", "record", "enum", "fixed"]
    kind = draw(st.sampled_from(kinds if depth else ["primitive"]))
    if kind == "primitive":
        return draw(st.sampled_from(PRIMITIVES))
    if kind in ("array", "map"):
        inner = draw(trees(depth=depth - 1, used=used))
        return array(inner) if kind == "array" else mapping(inner)
    if kind == "union":
        return draw(st.lists(st.sampled_from(PRIMITIVES), min_size=1, max_size=4, unique=True))
    used.append(1)
    name = f"N{len(used)}"
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("XYZ"), min_size=1, max_size=3, unique=True))
        return enum(*symbols, name=name)
    if kind == "fixed":
        return fixed(draw(st.integers(0, 9)), name=name)
    names = draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True))
    fields = [field(n, draw(trees(depth=depth - 1, used=used))) for n in names]
    return record(*fields, name=name, namespace=draw(st.sampled_from(["", "n", "m.n"])))


@settings(max_examples=200)
@given(trees())
def test_every_schema_reads_itself_and_its_text(tree: Any) -> None:
    schema = parsed(tree)
    assert can_read(schema, schema)
    again = parse_avro(avro_text(schema).encode())
    assert avro_equal(schema, again)
    assert can_read(schema, again)


@settings(max_examples=200)
@given(trees(), trees())
def test_a_field_with_default_may_come_and_go(a: Any, b: Any) -> None:
    before = parsed(record(field("a", array(a)), name="Outer"))
    added = field("z", ["null", array(b)], default=None)
    try:
        after = parsed(record(field("a", array(a)), added, name="Outer"))
    except AvroParseError:  # both drew the same name
        return
    assert can_read(before, after)
    assert can_read(after, before)


@settings(max_examples=200)
@given(trees())
def test_making_a_field_nullable_goes_one_way(tree: Any) -> None:
    if isinstance(tree, list) or tree == "null":
        return
    plain = parsed(record(field("a", tree), name="Outer"))
    nullable = parsed(record(field("a", ["null", tree]), name="Outer"))
    assert can_read(plain, nullable)
    assert not can_read(nullable, plain)
