"""Every command of the protocol, from a client that has nothing: answered, closed, or silent.

Nothing hangs: a command that carries a request id gets an answer with it, or its own error form.
"""

from collections.abc import AsyncIterator

import pytest
from google.protobuf.message import Message
from tests.support.broker import running_broker
from tests.unit.broker.peer import Peer, peer_of
from tests.unit.wire import frames

from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import FIELD_OF_TYPE, CommandType
from magnetar.wire.connection_state import FROM_CLIENT, KEEP_ALIVE

TOPIC = "persistent://public/default/t"
REQUEST_ID = 77
UNKNOWN_ID = 5

ANSWERS = {
    CommandType.SUBSCRIBE: CommandType.SUCCESS,
    CommandType.PRODUCER: CommandType.PRODUCER_SUCCESS,
    CommandType.UNSUBSCRIBE: CommandType.ERROR,
    CommandType.CLOSE_PRODUCER: CommandType.SUCCESS,
    CommandType.CLOSE_CONSUMER: CommandType.SUCCESS,
    CommandType.PARTITIONED_METADATA: CommandType.PARTITIONED_METADATA_RESPONSE,
    CommandType.LOOKUP: CommandType.LOOKUP_RESPONSE,
    CommandType.CONSUMER_STATS: CommandType.CONSUMER_STATS_RESPONSE,
    CommandType.SEEK: CommandType.ERROR,
    CommandType.GET_LAST_MESSAGE_ID: CommandType.ERROR,
    CommandType.GET_TOPICS_OF_NAMESPACE: CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    CommandType.GET_SCHEMA: CommandType.GET_SCHEMA_RESPONSE,
    CommandType.GET_OR_CREATE_SCHEMA: CommandType.GET_OR_CREATE_SCHEMA_RESPONSE,
    CommandType.AUTH_RESPONSE: CommandType.ERROR,
    CommandType.NEW_TXN: CommandType.ERROR,
    CommandType.ADD_PARTITION_TO_TXN: CommandType.ERROR,
    CommandType.ADD_SUBSCRIPTION_TO_TXN: CommandType.ERROR,
    CommandType.END_TXN: CommandType.ERROR,
    CommandType.END_TXN_ON_PARTITION: CommandType.ERROR,
    CommandType.END_TXN_ON_SUBSCRIPTION: CommandType.ERROR,
    CommandType.TC_CLIENT_CONNECT_REQUEST: CommandType.ERROR,
    CommandType.WATCH_TOPIC_LIST: CommandType.WATCH_TOPIC_LIST_SUCCESS,
    CommandType.WATCH_TOPIC_LIST_CLOSE: CommandType.SUCCESS,
    CommandType.SCALABLE_TOPIC_LOOKUP: CommandType.SCALABLE_TOPIC_UPDATE,
    CommandType.SCALABLE_TOPIC_SUBSCRIBE: CommandType.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
    CommandType.WATCH_SCALABLE_TOPICS: CommandType.WATCH_SCALABLE_TOPICS_UPDATE,
    CommandType.WATCH_TC_ASSIGNMENTS: CommandType.WATCH_TC_ASSIGNMENTS_UPDATE,
    CommandType.PING: CommandType.PONG,
}
SILENT = {
    CommandType.PONG,
    CommandType.ACK,  # without a request id
    CommandType.FLOW,
    CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES,
    CommandType.SCALABLE_TOPIC_CLOSE,
    CommandType.WATCH_SCALABLE_TOPICS_CLOSE,
    CommandType.WATCH_TC_ASSIGNMENTS_CLOSE,
}
CLOSES = set(CommandType.values()) - set(ANSWERS) - SILENT
"""A second CONNECT, a SEND of a producer that never was, and what only a broker says."""

TEXT = {"topic": TOPIC, "namespace": "public/default", "topics_pattern": "public/default/.*"}


def minimal(kind: int) -> bytes:
    """The command with its required fields, and with the request id where it knows one."""
    command = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    message = getattr(command, FIELD_OF_TYPE[kind])
    message.SetInParent()
    _fill(message)
    if kind == CommandType.ACK:
        message.ClearField("request_id")
    if kind == CommandType.SEND:
        return frames.send(UNKNOWN_ID, 0)
    return frames.frame(command.SerializeToString())


def _fill(message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and field.name != "request_id":
            continue
        if field.message_type is not None:
            _fill(getattr(message, field.name))
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, TEXT.get(field.name, "text"))
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"bytes")
        elif field.enum_type is not None:
            setattr(message, field.name, field.enum_type.values[0].number)
        else:
            setattr(message, field.name, REQUEST_ID if field.name == "request_id" else UNKNOWN_ID)


def _named(kinds: object) -> list[object]:
    return [pytest.param(kind, id=CommandType.Name(kind)) for kind in sorted(kinds)]  # type: ignore[call-overload]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with running_broker() as (_, port):
        yield port


@pytest.fixture
async def peer(port: int) -> AsyncIterator[Peer]:
    async with peer_of(port) as peer:
        yield peer


def test_the_lists_here_are_those_of_the_protocol() -> None:
    known = FROM_CLIENT | KEEP_ALIVE | {CommandType.CONNECT}
    assert set(ANSWERS) | SILENT == known - {CommandType.CONNECT, CommandType.SEND}


@pytest.mark.parametrize("kind", _named(ANSWERS))
async def test_a_command_is_answered(peer: Peer, kind: int) -> None:
    peer.write(minimal(kind))
    command = await peer.next()
    assert command is not None, "closed"
    assert CommandType.Name(command.type) == CommandType.Name(ANSWERS[kind])  # type: ignore[arg-type,index]
    asked = pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type
    message: Message = command.message
    if asked is not None and "request_id" in asked.fields_by_name:
        assert message.request_id == REQUEST_ID  # type: ignore[attr-defined]
    for own in ("session_id", "watch_id", "watcher_id"):
        if own in message.DESCRIPTOR.fields_by_name:
            assert getattr(message, own) == UNKNOWN_ID
    assert await peer.is_silent()


@pytest.mark.parametrize("kind", _named(SILENT))
async def test_a_command_without_an_answer_gets_none(peer: Peer, kind: int) -> None:
    peer.write(minimal(kind))
    assert await peer.is_silent()


@pytest.mark.parametrize("kind", _named(CLOSES))
async def test_a_command_in_the_wrong_state_closes_the_connection(peer: Peer, kind: int) -> None:
    peer.write(minimal(kind))
    assert await peer.next() is None


@pytest.mark.parametrize("kind", _named((FROM_CLIENT | CLOSES) - {CommandType.CONNECT}))
async def test_before_connect_nothing_is_answered(port: int, kind: int) -> None:
    async with peer_of(port, connected=False) as peer:
        peer.write(minimal(kind))
        assert await peer.next() is None


async def test_an_ack_before_connect_closes_the_connection(port: int) -> None:
    async with peer_of(port, connected=False) as peer:
        peer.write(frames.ack(UNKNOWN_ID, 1, 1))
        assert await peer.next() is None


async def test_keep_alive_is_answered_before_connect(port: int) -> None:
    async with peer_of(port, connected=False) as peer:
        peer.write(minimal(CommandType.PONG))
        assert await peer.is_silent()
        await peer.connect()


async def test_an_unknown_command_closes_the_connection(peer: Peer) -> None:
    peer.write(frames.frame(b"\x08\x63"))
    assert await peer.next() is None


async def test_commands_before_a_malformed_frame_are_answered(peer: Peer) -> None:
    peer.write(minimal(CommandType.LOOKUP) + b"\xff" * 8)
    command = await peer.next()
    assert command is not None
    assert command.type == CommandType.LOOKUP_RESPONSE
    assert await peer.next() is None


async def test_the_protocol_version_is_the_lower_of_both(port: int) -> None:
    for theirs, agreed in ((15, 15), (21, 21), (99, 21)):
        async with peer_of(port, connected=False) as peer:
            connect = pb.CommandConnect(client_version="x", protocol_version=theirs)
            peer.send(CommandType.CONNECT, connect)
            assert (await peer.until(CommandType.CONNECTED)).protocol_version == agreed


# -- contents of answers


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (CommandType.SEEK, ServerError.METADATA_ERROR),
        (CommandType.NEW_TXN, ServerError.NOT_ALLOWED_ERROR),
        (CommandType.TC_CLIENT_CONNECT_REQUEST, ServerError.NOT_ALLOWED_ERROR),
        (CommandType.AUTH_RESPONSE, ServerError.UNSUPPORTED_VERSION_ERROR),
        (CommandType.UNSUBSCRIBE, ServerError.CONSUMER_NOT_FOUND),
        (CommandType.GET_LAST_MESSAGE_ID, ServerError.CONSUMER_NOT_FOUND),
    ],
)
async def test_the_code_of_a_refusal(peer: Peer, kind: int, code: ServerError) -> None:
    peer.write(minimal(kind))
    error = await peer.until(CommandType.ERROR)
    assert error.error == code
    assert error.message


async def test_a_receipted_ack_of_an_unknown_consumer_is_refused(peer: Peer) -> None:
    ack = pb.CommandAck(consumer_id=UNKNOWN_ID, ack_type=pb.CommandAck.Individual, request_id=9)
    ack.message_id.add(ledgerId=1, entryId=1)
    peer.send(CommandType.ACK, ack)
    answer = await peer.until(CommandType.ACK_RESPONSE)
    assert (answer.request_id, answer.error) == (9, ServerError.CONSUMER_NOT_FOUND)


async def test_scalable_topics_say_so_in_their_own_way(peer: Peer) -> None:
    peer.write(minimal(CommandType.SCALABLE_TOPIC_SUBSCRIBE))
    answer = await peer.until(CommandType.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    assert answer.error == ServerError.NOT_ALLOWED_ERROR
    assert answer.message


@pytest.mark.parametrize(
    "topic", ["://", "persistent://a/b", "nonsense://a/b/c", "persistent://x/y/"]
)
async def test_a_topic_that_is_no_name(peer: Peer, topic: str) -> None:
    peer.send(CommandType.LOOKUP, pb.CommandLookupTopic(topic=topic, request_id=1))
    answer = await peer.until(CommandType.LOOKUP_RESPONSE)
    assert answer.response == pb.CommandLookupTopicResponse.Failed
    peer.send(CommandType.PRODUCER, pb.CommandProducer(topic=topic, producer_id=1, request_id=2))
    error = await peer.until(CommandType.ERROR)
    assert (error.request_id, error.error) == (2, answer.error)


@pytest.mark.parametrize("pattern", ["(", "x" * 51])
async def test_a_pattern_that_cannot_be_used(peer: Peer, pattern: str) -> None:
    for kind, message in (
        (
            CommandType.GET_TOPICS_OF_NAMESPACE,
            pb.CommandGetTopicsOfNamespace(
                request_id=3, namespace="public/default", topics_pattern=pattern
            ),
        ),
        (
            CommandType.WATCH_TOPIC_LIST,
            pb.CommandWatchTopicList(
                request_id=3, watcher_id=1, namespace="public/default", topics_pattern=pattern
            ),
        ),
    ):
        peer.send(kind, message)
        error = await peer.until(CommandType.ERROR)
        assert (error.request_id, error.error) == (3, ServerError.NOT_ALLOWED_ERROR)
