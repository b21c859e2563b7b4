"""Renderings of messages: plain, `--format`, `--json`; on a terminal without control characters."""

import datetime
import json
import unicodedata
from argparse import ArgumentTypeError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.messages.input import Item, json_item
from magnetar.cli.messages.render import Renderer, parse_format
from magnetar.cli.messages.summary import Summary, size_text
from magnetar.client.errors import SchemaFailed
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.client.schema.api import BYTES, Schema
from magnetar.schemas.model import SchemaInfo
from magnetar.wire._pb import PulsarApi_pb2 as pb


class Constant(Schema[Any]):
    """Decodes every payload to the same value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def info(self) -> SchemaInfo | None:
        return None

    def encode(self, value: Any) -> bytes:
        raise SchemaFailed("only reads")

    def decode(self, data: bytes, version: bytes | None) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Source:
    """What an entry knows of its topic."""

    def __init__(self, schema: Schema[Any]) -> None:
        self.topic = "persistent://public/default/t"
        self.partition = 2
        self.schema = schema


class Entry:
    """An entry of a single message."""

    redelivery_count = 0
    batch_size = 0
    first_chunk: MessageId | None = None
    ledger_id, entry_id = 7, 3

    def __init__(self, metadata: pb.MessageMetadata, schema: Schema[Any]) -> None:
        self.metadata = metadata
        self.source = Source(schema)


def message(data: bytes, schema: Schema[Any] = BYTES, **fields: Any) -> Message[Any]:
    properties = fields.pop("properties", {})
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=4, publish_time=9, **fields)
    for name, value in properties.items():
        metadata.properties.add(key=name, value=value)
    return Message(data, Entry(metadata, schema))


def renderer(**options: Any) -> Renderer:
    plain = {"json": False, "output": "text", "form": "", "key_delimiter": None}
    return Renderer(**{**plain, "delimiter": b"\n", "terminal": False, **options})


def test_values() -> None:
    assert renderer()(message(b"a\0b")) == b"a\0b\n"
    assert renderer(output="hex")(message(b"hi")) == b"6869\n"
    assert renderer(output="base64", delimiter=b"")(message(b"hi")) == b"aGk="
    assert renderer(key_delimiter=b"|")(message(b"v", partition_key="k")) == b"k|v\n"
    assert renderer()(message(b"", Constant({"n": 1}))) == b'{"n":1}\n'
    assert renderer()(message(b"", Constant("ä"))) == "ä\n".encode()


def test_format() -> None:
    form = renderer(form=r"%t %p %o %T %k %K %s %S %h%%\n")
    sent = message(b"hi", partition_key="k", properties={"a": "b", "c": "d"})
    assert form(sent) == b"persistent://public/default/t 2 7:3:2 9 k 1 hi 2 a=b,c=d%\n"
    assert renderer(form="%K%S")(message(b"", null_value=True)) == b"-1-1"
    for text in ("%", "%y", "a%"):
        with pytest.raises(ArgumentTypeError, match="is not one of"):
            parse_format(text)


@given(st.binary())
def test_a_terminal_gets_no_control_characters(data: bytes) -> None:
    shown = renderer(terminal=True, delimiter=b"")(message(data)).decode()
    assert not [char for char in shown if unicodedata.category(char) == "Cc" and char not in "\t\n"]


def test_json() -> None:
    sent = message(
        b"v", partition_key="k", properties={"a": "b"}, event_time=5, ordering_key=b"o",
        schema_version=b"\0\0\0\0\0\0\0\2",
    )  # fmt: skip
    assert json.loads(renderer(json=True)(sent)) == {
        "topic": "persistent://public/default/t",
        "id": "7:3:2",
        "key": "k",
        "orderingKeyBase64": "bw==",
        "properties": {"a": "b"},
        "eventTime": 5,
        "publishTime": 9,
        "producer": "p",
        "sequenceId": 4,
        "schemaVersion": 2,
        "value": "v",
    }
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    record = renderer(json=True)(message(b"", Constant({"at": at, "raw": b"\xff"})))
    assert json.loads(record)["value"] == {"at": "2026-01-02T00:00:00Z", "raw": "/w=="}
    assert json.loads(renderer(json=True)(message(b"", null_value=True)))["value"] is None


@given(
    st.none() | st.binary(),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.just("v"), max_size=2),
)
def test_produce_reads_what_consume_prints(
    value: bytes | None, key: str | None, properties: dict[str, str]
) -> None:
    fields: dict[str, Any] = {"properties": properties}
    if key is not None:
        fields["partition_key"] = key
    if value is None:
        fields["null_value"] = True
    printed = renderer(json=True)(message(value or b"", **fields))
    assert printed.count(b"\n") == 1
    assert json_item(printed, 1) == Item(value, key=key, properties=properties, line=1)


def test_values_that_cannot_be_decoded_are_counted() -> None:
    broken = message(b"\xff", Constant(SchemaFailed("no such field")))
    render = renderer()
    assert render(broken) == b"\xff\n"
    assert (render.unreadable, render.reason) == (
        1,
        "no such field (topic persistent://public/default/t)",
    )
    document = json.loads(renderer(json=True)(broken))
    assert document["valueBase64"] == "/w=="
    assert "no such field" in document["error"]


def test_the_summary() -> None:
    summary = Summary("sent", messages=1, bytes=3 << 20, notes=["2 failed"])
    line = summary.line(2.0, interrupted=True)
    assert line == "1 message sent, 3.0 MiB in 2.00 s (0 msg/s); 2 failed; interrupted"
    assert size_text(1023) == "1023 B"
    assert size_text(1 << 50) == "1024.0 TiB"
