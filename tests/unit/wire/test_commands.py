"""Commands that are parsed in full: their text is text, however deep in them it is."""

import pytest

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType, _text_fields, parse_command
from magnetar.wire.framing import ProtocolError

TEXT, BROKEN = b"mark", b"m\xff\xfek"
PAIR = pb.KeyValue(key="mark", value="v")
SCHEMA = pb.Schema(name="s", schema_data=b"", type=pb.Schema.String)
PROPERTIES = pb.Schema(
    name="s",
    schema_data=b"",
    type=pb.Schema.String,
    properties=[pb.KeyValue(key="a", value="b"), pb.KeyValue(key="c", value="mark")],
)


def producer(**fields: object) -> pb.BaseCommand:
    whole = {"topic": "t", "producer_id": 1, "request_id": 2} | fields
    return pb.BaseCommand(
        type=pb.BaseCommand.PRODUCER,
        producer=pb.CommandProducer(**whole),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "command",
    [
        producer(topic="mark"),
        producer(producer_name="mark"),
        producer(metadata=[PAIR]),
        producer(metadata=[pb.KeyValue(key="a", value="b"), PAIR]),
        producer(schema=PROPERTIES),
        pb.BaseCommand(
            type=pb.BaseCommand.SUBSCRIBE,
            subscribe=pb.CommandSubscribe(
                topic="t", subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=1,
                request_id=2, schema=PROPERTIES,
            ),
        ),
    ],
)  # fmt: skip
def test_text_is_utf_8_at_any_depth(command: pb.BaseCommand) -> None:
    data = command.SerializeToString()
    number, message = parse_command(data)
    assert number == command.type
    assert TEXT in message.SerializeToString()
    with pytest.raises(ProtocolError, match="text not in UTF-8"):
        parse_command(data.replace(TEXT, BROKEN))


def test_text_is_looked_for_in_all_messages_inside_a_command() -> None:
    pair = (("key", False, None), ("value", False, None))
    fields = _text_fields(pb.CommandProducer.DESCRIPTOR)
    found = {name: (repeated, inside) for name, repeated, inside in fields}
    assert found["topic"] == (False, None)
    assert found["metadata"] == (True, pair)
    schema = found["schema"]
    assert schema == (False, (("name", False, None), ("properties", True, pair)))
    assert "producer_id" not in found
    assert _text_fields(None) == ()


def test_a_command_that_lacks_what_it_must_have_is_refused() -> None:
    for command in (
        pb.BaseCommand(type=pb.BaseCommand.PRODUCER),
        pb.BaseCommand(type=pb.BaseCommand.PING),
        pb.BaseCommand(
            type=pb.BaseCommand.PRODUCER, producer=pb.CommandProducer(topic="t", producer_id=1)
        ),
        pb.BaseCommand(type=pb.BaseCommand.PING, pong=pb.CommandPong()),
    ):
        with pytest.raises(ProtocolError):
            parse_command(command.SerializePartialToString())
    with pytest.raises(ProtocolError, match="cannot be parsed"):
        parse_command(b"\xff")
    ping = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())
    assert parse_command(ping.SerializeToString())[0] == CommandType.PING
