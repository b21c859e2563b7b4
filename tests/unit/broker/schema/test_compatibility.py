"""Strategies and types: what may follow what, and the texts. Answers are Pulsar 4.2.4's."""

import json
from base64 import b64encode

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from magnetar.broker.schema.compatibility import check_all, check_latest, same_schema
from magnetar.broker.schema.validation import check_definition
from magnetar.core.errors import IncompatibleSchema, ServerError
from magnetar.schemas.model import (
    CompatibilityStrategy as Strategy,
)
from magnetar.schemas.model import (
    InvalidSchemaData,
    SchemaInfo,
    SchemaType,
    version_from_bytes,
    version_to_bytes,
)


def avro(*fields: str, kind: SchemaType = SchemaType.AVRO) -> SchemaInfo:
    """A record of fields like `a:int` or `a:int=1`."""
    listed = []
    for text in fields:
        name, _, rest = text.partition(":")
        typed, has_default, default = rest.partition("=")
        listed.append({"name": name, "type": typed})
        if has_default:
            listed[-1]["default"] = json.loads(default)
    tree = {"type": "record", "name": "R", "fields": listed}
    return SchemaInfo(kind, json.dumps(tree).encode())


def key_value(key: SchemaInfo, value: SchemaInfo, **properties: str) -> SchemaInfo:
    data = b"".join(len(part.data).to_bytes(4, "big") + part.data for part in (key, value))
    types = {"key.schema.type": key.type.name, "value.schema.type": value.type.name}
    return SchemaInfo(SchemaType.KEY_VALUE, data, types | properties)


def native(message: str, *fields: str, file: str = "a.proto", imports: bool = False) -> SchemaInfo:
    package, _, local = message.rpartition(".")
    proto = FileDescriptorProto(name=file, package=package)
    root = proto.message_type.add(name=local)
    for number, name in enumerate(fields, 1):
        root.field.add(name=name, number=number, type=5, label=1)
    files = FileDescriptorSet(file=[proto])
    if imports:
        proto.dependency.append("b.proto")
        files = FileDescriptorSet(file=[proto, FileDescriptorProto(name="b.proto", package="b")])
    envelope = {
        "fileDescriptorSet": b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": message,
        "rootFileDescriptorName": file,
    }
    return SchemaInfo(SchemaType.PROTOBUF_NATIVE, json.dumps(envelope).encode())


def of(kind: SchemaType, data: bytes = b"") -> SchemaInfo:
    return SchemaInfo(kind, data)


def fits(existing: SchemaInfo, new: SchemaInfo, strategy: Strategy) -> bool:
    try:
        check_latest(existing, new, strategy)
    except IncompatibleSchema:
        return False
    return True


def fits_all(existing: list[SchemaInfo], new: SchemaInfo, strategy: Strategy) -> bool:
    try:
        check_all(existing, new, strategy)
    except IncompatibleSchema:
        return False
    return True


BASE = avro("a:int")
CHANGES = {
    # the new schema, and whether it fits BASE under BACKWARD and FORWARD
    "same": (BASE, True, True),
    "new field": (avro("a:int", "b:int"), False, True),
    "new field with default": (avro("a:int", "b:int=1"), True, True),
    "field gone": (avro(), True, False),
    "promoted": (avro("a:long"), True, False),
    "changed": (avro("a:string"), False, False),
    "renamed": (avro("b:int"), False, False),
    "renamed with default": (avro("b:int=1"), True, False),
}


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_strategies(change: str, kind: SchemaType) -> None:
    new, backward, forward = CHANGES[change]
    new, old = SchemaInfo(kind, new.data), SchemaInfo(kind, BASE.data)
    expected = {
        Strategy.ALWAYS_COMPATIBLE: True,
        Strategy.ALWAYS_INCOMPATIBLE: change == "same",
        Strategy.BACKWARD: backward,
        Strategy.FORWARD: forward,
        Strategy.FULL: backward and forward,
        Strategy.UNDEFINED: backward and forward,
    }
    assert {strategy: fits(old, new, strategy) for strategy in expected} == expected
    transitive = {
        Strategy.BACKWARD_TRANSITIVE: backward,
        Strategy.FORWARD_TRANSITIVE: forward,
        Strategy.FULL_TRANSITIVE: backward and forward,
        Strategy.ALWAYS_COMPATIBLE: True,
        # Against all versions even the same definition is refused.
        Strategy.ALWAYS_INCOMPATIBLE: False,
    }
    assert {strategy: fits_all([old], new, strategy) for strategy in transitive} == transitive


def test_transitive_strategies_look_at_every_version() -> None:
    first, second = avro("a:int"), avro("a:int", "b:int=1")
    third = avro("b:int=1", 'a:string="x"')
    assert not fits_all([first, second], third, Strategy.BACKWARD_TRANSITIVE)
    chain = [avro("a:int"), avro()]
    # Each step is backward compatible; the last cannot read the first.
    new = avro('a:string="x"')
    assert fits(chain[0], chain[1], Strategy.BACKWARD)
    assert fits(chain[1], new, Strategy.BACKWARD)
    assert not fits_all(chain, new, Strategy.BACKWARD_TRANSITIVE)
    assert fits_all(chain[1:], new, Strategy.BACKWARD_TRANSITIVE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (of(SchemaType.INT32), of(SchemaType.INT64)),
        (of(SchemaType.STRING), of(SchemaType.INT32)),
        (avro("a:int"), avro("a:int", kind=SchemaType.JSON)),
        (of(SchemaType.STRING), avro("a:int")),
        (avro("a:int"), native("m.A")),
    ],
)
def test_the_type_changes_only_where_all_is_compatible(old: SchemaInfo, new: SchemaInfo) -> None:
    for strategy in Strategy:
        for check in (
            lambda s: check_latest(old, new, s),
            lambda s: check_all([old], new, s),
        ):
            if strategy is Strategy.ALWAYS_COMPATIBLE:
                check(strategy)
                continue
            with pytest.raises(IncompatibleSchema) as failure:
                check(strategy)
            assert failure.value.message == (
                f"Incompatible schema: exists schema type {old.type.name}, "
                f"new schema type {new.type.name}"
            )
            assert failure.value.http_status == 409
            assert failure.value.code is ServerError.INCOMPATIBLE_SCHEMA


def test_primitives_are_their_type() -> None:
    for kind in (SchemaType.STRING, SchemaType.INT8, SchemaType.TIMESTAMP, SchemaType.BOOLEAN):
        for strategy in Strategy:
            assert fits(of(kind), of(kind), strategy)
        assert fits_all([of(kind)], of(kind), Strategy.FULL_TRANSITIVE)
        with pytest.raises(
            IncompatibleSchema, match=r"^Schema compatibility strategy is ALWAYS_INCOMPATIBLE$"
        ):
            check_all([of(kind)], of(kind), Strategy.ALWAYS_INCOMPATIBLE)


def test_protobuf_and_external_definitions_are_not_compared() -> None:
    old, new = (avro(f, kind=SchemaType.PROTOBUF) for f in ("a:int", "b:string"))
    assert fits(old, new, Strategy.FULL)
    assert not fits(old, new, Strategy.ALWAYS_INCOMPATIBLE)
    one, other = of(SchemaType.EXTERNAL, b"x"), of(SchemaType.EXTERNAL, b"y")
    assert fits(one, other, Strategy.FULL)
    assert fits(one, other, Strategy.ALWAYS_INCOMPATIBLE)


def test_the_text_shows_both_schemas() -> None:
    with pytest.raises(IncompatibleSchema) as failure:
        check_latest(of(SchemaType.AVRO, b'"int"'), of(SchemaType.AVRO, b'"string"'), Strategy.FULL)
    assert failure.value.message == (
        "Error during schema compatibility check with strategy FULL: "
        'org.apache.avro.SchemaValidationException: Unable to read schema: \n"string"'
        '\nusing schema:\n"int"'
    )


def test_json_schemas_that_are_no_avro() -> None:
    legacy = of(SchemaType.JSON, b'{"type": "object", "id": "urn:a"}')
    current = avro("a:int", kind=SchemaType.JSON)
    with pytest.raises(IncompatibleSchema, match="existing schema is not in valid Avro format"):
        check_latest(legacy, current, Strategy.FULL)
    with pytest.raises(
        IncompatibleSchema, match=r"expected Avro schema format for SchemaType.JSON"
    ):
        check_latest(current, legacy, Strategy.FULL)


def test_protobuf_native_compares_the_root_message() -> None:
    base = native("m.A", "x")
    assert fits(base, native("m.A", "y", "z"), Strategy.FULL)
    assert fits(base, native("m.A", "x", file="other.proto"), Strategy.FULL)
    assert fits_all([base], native("m.A", "y", imports=True), Strategy.FULL_TRANSITIVE)
    for name in ("m.B", "n.A", "A"):
        other = native(name, "x")
        with pytest.raises(IncompatibleSchema) as failure:
            check_latest(base, other, Strategy.BACKWARD)
        assert failure.value.message == (
            "Protobuf root message change is not allowed under the 'BACKWARD' strategy. "
            f"Original message name: 'm.A', new message name: '{name}'."
        )
        assert fits(base, other, Strategy.ALWAYS_COMPATIBLE)
    with pytest.raises(IncompatibleSchema, match=r"^Unknown SchemaCompatibilityStrategy.$"):
        check_latest(base, native("m.A", "y"), Strategy.ALWAYS_INCOMPATIBLE)


def test_key_value_checks_both_parts() -> None:
    text = of(SchemaType.STRING)
    base = key_value(text, avro("a:int"))
    assert fits(base, key_value(text, avro("a:int", "b:int=1")), Strategy.FULL)
    assert not fits(base, key_value(text, avro("a:string")), Strategy.FULL)
    assert fits_all([base], key_value(text, avro("a:long")), Strategy.BACKWARD_TRANSITIVE)
    both = key_value(avro("a:int"), avro("a:int"))
    assert not fits(both, key_value(avro("a:string"), avro("a:int")), Strategy.BACKWARD)
    separated = key_value(text, avro("a:int"), **{"kv.encoding.type": "SEPARATED"})
    assert fits(base, separated, Strategy.FULL)
    with pytest.raises(IncompatibleSchema) as failure:
        check_latest(base, key_value(of(SchemaType.INT32), avro("a:int", "b:int")), Strategy.FULL)
    assert failure.value.message == (
        "Key schemas or Value schemas are different schema type, from key schema type is STRING "
        "and to key schema is INT32, from value schema is AVRO and to value schema is AVRO"
    )


def test_references_too_deep_to_follow_are_an_error_and_no_crash() -> None:
    def chain(kind: str) -> SchemaInfo:
        records = [
            {"type": "record", "name": f"R{i}", "fields": [{"name": "f", "type": f"R{i + 1}"}]}
            for i in range(3_000)
        ]
        last = {"type": "record", "name": "R3000", "fields": [{"name": "f", "type": kind}]}
        return of(SchemaType.JSON, json.dumps([*records, last]).encode())

    check_definition(chain("int"))
    assert not same_schema(chain("int"), chain("long"))
    assert not fits(chain("int"), chain("long"), Strategy.BACKWARD)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (avro("a:int"), of(SchemaType.AVRO, avro("a:int").data.replace(b" ", b"\n ")), True),
        (avro("a:int"), avro("a:int", kind=SchemaType.JSON), False),
        (avro("a:int"), avro("a:long"), False),
        (of(SchemaType.EXTERNAL, b"x"), of(SchemaType.EXTERNAL, b"x"), True),
        (of(SchemaType.EXTERNAL, b"x"), of(SchemaType.EXTERNAL, b"x "), False),
        (native("m.A", "x"), native("m.A", "y"), False),
        (SchemaInfo(SchemaType.INT8, b"", {"k": "v"}), of(SchemaType.INT8), True),
    ],
)
def test_same_schema(a: SchemaInfo, b: SchemaInfo, expected: bool) -> None:
    assert same_schema(a, b) is expected


INVALID = {
    "avro": (of(SchemaType.AVRO, b"{"), "Invalid schema definition data for AVRO schema"),
    "avro union": (
        of(SchemaType.AVRO, b'["int", "null"]'),
        "Avro schema typed [UNION] is not supported",
    ),
    "json": (
        of(SchemaType.JSON, b'{"type": "object"}'),
        "Invalid schema definition data for JSON schema",
    ),
    "protobuf": (
        of(SchemaType.PROTOBUF, b""),
        "Invalid schema definition data for PROTOBUF schema",
    ),
    "string": (
        of(SchemaType.STRING, b"x"),
        "Invalid schema definition data for string schema : 'x'",
    ),
    "int32": (
        of(SchemaType.INT32, b"xyz"),
        (
            "Invalid schema definition data for primitive schemas :length of schema data should "
            "be zero, but 3 bytes is found"
        ),
    ),
    "auto consume": (
        of(SchemaType.AUTO_CONSUME),
        "Schema AUTO_CONSUME is a client-side schema type",
    ),
    "native": (
        of(SchemaType.PROTOBUF_NATIVE, b"xyz"),
        "deserialize ProtobufNative Schema failed",
    ),
    "native, no base64": (
        of(
            SchemaType.PROTOBUF_NATIVE,
            b'{"fileDescriptorSet":"%","rootMessageTypeName":"A","rootFileDescriptorName":"a"}',
        ),
        "deserialize ProtobufNative Schema failed",
    ),
    "key value, cut": (
        of(SchemaType.KEY_VALUE, b"\0\0\0\x05ab"),
        "Invalid schema definition data for KEY_VALUE schema",
    ),
    "key value, value": (
        key_value(of(SchemaType.STRING), of(SchemaType.STRING, b"a")),
        "Invalid schema definition data for string schema : 'a'",
    ),
    "key value, type": (
        SchemaInfo(SchemaType.KEY_VALUE, bytes(8), {"key.schema.type": "FOO"}),
        "Unknown schema type : FOO",
    ),
}


@pytest.mark.parametrize("case", INVALID, ids=str)
def test_invalid_definitions(case: str) -> None:
    schema, text = INVALID[case]
    with pytest.raises(InvalidSchemaData) as failure:
        check_definition(schema)
    assert failure.value.message == text
    assert failure.value.http_status == 422
    assert failure.value.code is ServerError.INCOMPATIBLE_SCHEMA


def test_native_without_its_root_or_imports() -> None:
    whole = json.loads(native("m.A", "x", imports=True).data)
    check_definition(native("m.A", "x", imports=True))
    for key, value, text in [
        ("rootMessageTypeName", "m.B", "protobuf root message descriptor is null"),
        ("rootFileDescriptorName", "z.proto", "deserialize ProtobufNative Schema failed"),
    ]:
        broken = json.dumps(whole | {key: value}).encode()
        with pytest.raises(InvalidSchemaData, match=text):
            check_definition(of(SchemaType.PROTOBUF_NATIVE, broken))
    files = FileDescriptorSet(file=[FileDescriptorProto(name="a.proto", dependency=["a.proto"])])
    looped = whole | {"fileDescriptorSet": b64encode(files.SerializeToString()).decode()}
    with pytest.raises(InvalidSchemaData):
        check_definition(of(SchemaType.PROTOBUF_NATIVE, json.dumps(looped).encode()))


VALID = [
    of(SchemaType.STRING),
    of(SchemaType.STRING, b"null"),
    of(SchemaType.DOUBLE),
    of(SchemaType.EXTERNAL, b"anything"),
    of(SchemaType.AVRO, b'"string"'),
    of(SchemaType.JSON, b'["int", "null"]'),
    avro("a:int", kind=SchemaType.PROTOBUF),
    native("m.A", "x"),
    native("A", "x"),
    key_value(of(SchemaType.STRING), avro("a:int")),
    SchemaInfo(SchemaType.KEY_VALUE, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
]


@pytest.mark.parametrize("schema", VALID, ids=lambda schema: schema.type.name)
def test_valid_definitions(schema: SchemaInfo) -> None:
    check_definition(schema)


def test_versions_on_the_wire() -> None:
    assert version_to_bytes(None) == b""
    assert version_to_bytes(0) == bytes(8)
    assert version_to_bytes(258) == b"\0\0\0\0\0\0\1\2"
    for version in (0, 1, 2**63 - 1):
        assert version_from_bytes(version_to_bytes(version)) == version
    for data in (b"", b"\0", b"\xff" * 8):
        assert version_from_bytes(data) is None
