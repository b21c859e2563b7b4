"""Commands of one connection: each costs itself alone, they are bounded, and none outlives it."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.broker.session.stage import TOPIC, Client, broker, client_of, loaded
from tests.unit.wire import frames

from magnetar.broker.session import session as session_module
from magnetar.broker.session.budget import CONNECTION_PENDING_BYTES_HIGH
from magnetar.broker.session.handlers import HANDLERS
from magnetar.broker.session.session import (
    COMMANDS_PENDING_BYTES_MAX,
    TOO_MANY_TEXT,
    Session,
)
from magnetar.core.errors import MetadataError, ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.events import AckOne, BadSend, Flow, Send

SEEK = CommandType.SEEK
INTERNAL = "Internal error, see the broker's log: "


def seek(request_id: int) -> pb.CommandSeek:
    return pb.CommandSeek(consumer_id=1, request_id=request_id, message_publish_time=1)


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Handlers of commands, that a test may replace."""
    handlers = dict(HANDLERS)
    monkeypatch.setattr("magnetar.broker.session.handlers.HANDLERS", handlers)
    return handlers


# -- failures


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MetadataError("refused"), ServerError.METADATA_ERROR, "refused"),
        (TimeoutError(), ServerError.SERVICE_NOT_READY, "The request timed out, please retry"),
        (ValueError("a bug"), ServerError.UNKNOWN_ERROR, INTERNAL + "ValueError"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_command_that_fails_is_answered_and_costs_nothing_else(
    error: Exception, code: ServerError, text: str, at_once: bool, handler: dict[int, Any]
) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise error

    def handles(_session: Session, _command: Any) -> Coroutine[Any, Any, None]:
        if at_once:
            raise error
        return fails()

    handler[SEEK] = handles
    async with client_of() as client:
        client.say(SEEK, seek(5))
        told = await client.hears(CommandType.ERROR)
        if at_once and isinstance(error, TimeoutError):
            code, text = ServerError.UNKNOWN_ERROR, INTERNAL + "TimeoutError"
        assert (told.request_id, told.error, told.message) == (5, code, text)
        assert (await client.produces()).producer_ready
        assert not client.socket.closed


@pytest.mark.parametrize("error", [MetadataError, TimeoutError])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_command_that_was_refused_keeps_nothing_alive(
    error: type[Exception], at_once: bool, handler: dict[int, Any]
) -> None:
    """Garbage of refused requests would wait for the collector, which brokers seldom run."""
    kept: list[weakref.ref[Any]] = []

    class Kept:
        """The parameters of a command."""

    async def fails() -> None:
        thing = Kept()
        kept.append(weakref.ref(thing))
        raised = error("refused")
        await asyncio.sleep(0)
        raise raised

    def refuses(_session: Session, _command: Any) -> None:
        thing = Kept()
        kept.append(weakref.ref(thing))
        raised = error("refused")
        raise raised

    handler[SEEK] = refuses if at_once else lambda *_: fails()
    async with client_of() as client:
        gc.collect()
        gc.disable()
        try:
            client.say(SEEK, seek(1))
            await client.hears(CommandType.ERROR)
            await client.quiet()
            # A bug's traceback is logged, and may stay.
            assert [each() for each in kept] == [None] or (at_once and error is TimeoutError)
        finally:
            gc.enable()


async def test_a_bug_outside_of_any_command_ends_this_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker() as w:
        client, other = Client(w).connect(), Client(w).connect()
        await client.consumes()
        attachment = client.session.consumers[1]
        monkeypatch.setattr(type(attachment.subscription), "flow", None)
        client.handle([Flow(1, 5)])
        assert client.socket.closed
        assert not other.socket.closed


async def test_frames_after_a_malformed_one_are_ignored() -> None:
    async with client_of() as client:
        connect = pb.CommandConnect(client_version="x", protocol_version=21)
        base = pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect)
        client.write(frames.ping(), frames.frame(base.SerializeToString()), frames.ping())
        assert client.kinds() == ["PONG"]
        assert client.socket.closed


@pytest.mark.parametrize("event", [AckOne(1, 1, 1), Flow(1, 1)])
async def test_a_command_before_connect_ends_the_connection(
    event: Any,
) -> None:
    async with broker() as w:
        early = Client(w)
        early.handle([event])
        assert early.socket.closed
        client = Client(w).connect()
        client.handle([event])  # of a closed consumer
        assert client.kinds() == []
        assert not client.socket.closed


# -- bounds


async def test_so_many_commands_may_wait_and_the_next_is_refused(
    handler: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "COMMANDS_PENDING_MAX", 2)
    go_on = asyncio.Event()

    async def waits(session: Session, command: Any) -> None:
        await go_on.wait()
        session.link.success(command.request_id)

    handler[SEEK] = waits
    async with client_of() as client:
        client.say(SEEK, seek(1))
        client.say(SEEK, seek(2))
        await asyncio.sleep(0)
        assert client.told() == []
        client.say(SEEK, seek(3))
        (refused,) = client.told()
        message: Any = refused.message
        assert (message.request_id, message.message) == (3, TOO_MANY_TEXT)
        assert message.error == ServerError.TOO_MANY_REQUESTS
        producer = pb.CommandProducer(topic=TOPIC, producer_id=9, request_id=4)
        subscribe = pb.CommandSubscribe(
            topic=TOPIC,
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=9,
            request_id=5,
        )
        client.say(CommandType.PRODUCER, producer)
        client.say(CommandType.SUBSCRIBE, subscribe)
        refusals: list[Any] = [each.message for each in client.told()]
        assert [(each.request_id, each.error) for each in refusals] == [
            (4, ServerError.TOO_MANY_REQUESTS),
            (5, ServerError.TOO_MANY_REQUESTS),
        ]
        assert client.session.pending_attachments == {}
        go_on.set()
        await client.quiet()
        assert client.kinds() == ["SUCCESS", "SUCCESS"]
        assert (await client.produces(9)).producer_ready


# -- messages


async def test_messages_of_a_closed_producer_are_dropped_and_of_none_end_the_connection() -> None:
    async with client_of() as client:
        await client.produces(1)
        await client.produces(2)
        close = pb.CommandCloseProducer(producer_id=1, request_id=9)
        await client.ask(CommandType.CLOSE_PRODUCER, close, CommandType.SUCCESS)
        client.write(frames.send(1, 0), frames.send(2, 0))
        receipt = await client.hears(CommandType.SEND_RECEIPT)
        assert (receipt.producer_id, receipt.sequence_id) == (2, 0)
        client.write(frames.send(7, 0))
        assert client.socket.closed


async def test_so_many_closed_producers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "CLOSED_PRODUCERS_KEPT_MAX", 2)
    async with client_of() as client:
        for number in (1, 2, 3):
            await client.produces(number)
            close = pb.CommandCloseProducer(producer_id=number, request_id=9)
            await client.ask(CommandType.CLOSE_PRODUCER, close, CommandType.SUCCESS)
        client.write(frames.send(3, 0), frames.send(2, 0))
        assert not client.socket.closed
        client.write(frames.send(1, 0))
        assert client.socket.closed


async def test_a_producer_that_may_not_send_now_is_remembered_as_having_sent() -> None:
    """Its client is disconnected when the topic resumes, and resends."""
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.produces()
        producer, _ = client.session.producers[1]
        topic.suspend()
        assert not producer.missed
        client.write(frames.send(1, 0))
        await client.quiet()
        assert producer.missed
        assert client.told() == []
        assert topic.managed_ledger.entries_total == 0
        assert client.session.link.pending_bytes == 0


async def test_a_message_that_must_not_be_stored_is_refused_and_the_next_one_is_stored() -> None:
    async with client_of() as client:
        await client.produces()
        client.handle([
            BadSend(1, 4, ServerError.CHECKSUM_ERROR, "wrong"),
            BadSend(8, 4, ServerError.CHECKSUM_ERROR, "of no producer here"),
        ])  # fmt: skip
        (told,) = client.told()
        refused: Any = told.message
        assert (refused.producer_id, refused.sequence_id) == (1, 4)
        assert (refused.error, refused.message) == (ServerError.CHECKSUM_ERROR, "wrong")
        client.write(frames.send(1, 5))
        assert (await client.hears(CommandType.SEND_RECEIPT)).sequence_id == 5


@pytest.mark.parametrize(("highest", "told"), [(0, 7), (6, 7), (7, 7), (12, 12)])
@pytest.mark.parametrize("odd", [True, False])
async def test_the_highest_id_of_a_batch_is_never_below_its_first(
    highest: int, told: int, odd: bool
) -> None:
    """Also of one that is parsed, as it may have a time of delivery."""
    data = frames.entry(7, ordering_key=b"\x98\x01" * 3) if odd else None
    command = pb.CommandSend(producer_id=1, sequence_id=7, highest_sequence_id=highest)
    async with client_of() as client:
        await client.produces()
        client.write(frames.send(1, 7, data, highest_sequence_id=highest))
        client.handle([Send(command, data or frames.entry(7))])
        for _ in range(2):
            receipt = await client.hears(CommandType.SEND_RECEIPT)
            assert (receipt.sequence_id, receipt.highest_sequence_id) == (7, told)
        producer, _ = client.session.producers[1]
        assert producer.bytes_in == 2 * len(data or frames.entry(7))


@pytest.mark.parametrize("field", ["txnid_least_bits", "txnid_most_bits"])
async def test_a_message_of_a_transaction_is_refused_behind_the_receipts_before_it(
    field: str,
) -> None:
    within: dict[str, Any] = {field: 3}
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.produces()
        client.write(frames.send(1, 0), frames.send(1, 1, **within), frames.send(1, 2))
        await client.quiet()
        told: list[Any] = [each.message for each in client.told()]
        assert [each.sequence_id for each in told] == [0, 1, 2]
        assert told[1].error == ServerError.NOT_ALLOWED_ERROR
        assert topic.managed_ledger.entries_total == 2
        client.write(frames.send(9, 0, **within))
        assert client.socket.closed, "nobody has such a producer"


# -- the greeting


@pytest.mark.parametrize("exposed", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
async def test_the_handshake_announces_features_and_records_those_of_the_client(
    exposed: bool, wanted: bool
) -> None:
    async with broker(expose_entry_metadata=exposed, message_bytes_max=70_000) as w:
        client = Client(w)
        assert not client.session.state.connected
        connect = pb.CommandConnect(client_version="v", protocol_version=17)
        connect.feature_flags.supports_broker_entry_metadata = wanted
        said = await client.ask(CommandType.CONNECT, connect, CommandType.CONNECTED)
        assert (said.protocol_version, said.max_message_size) == (17, 70_000)
        assert said.server_version == w.service.server_version
        served = {
            "supports_broker_entry_metadata",
            "supports_partial_producer",
            "supports_topic_watchers",
            "supports_get_partitioned_metadata_without_auto_creation",
            "supports_topic_watcher_reconcile",
            "supports_joint_commit",
        }
        assert {field.name for field, value in said.feature_flags.ListFields() if value} == served
        link = client.session.link
        assert link.entry_metadata is (exposed and wanted)
        assert (link.client_version, link.protocol_version) == ("v", 17)
        assert client.session.state.connected


# -- large answers


async def test_large_answers_are_made_one_at_a_time_and_while_the_client_reads() -> None:
    async with client_of() as client:
        session, order = client.session, []

        async def one(name: str, until: asyncio.Event) -> None:
            async with session.listing(CommandType.GET_TOPICS_OF_NAMESPACE, None):
                order.append(name)
                await until.wait()

        first, second = asyncio.Event(), asyncio.Event()
        tasks = [
            asyncio.ensure_future(one("first", first)),
            asyncio.ensure_future(one("second", second)),
        ]
        await client.quiet()
        assert order == ["first"]
        client.socket.writable = False
        first.set()
        await client.quiet()
        session.drained()  # but it is full again by then
        await client.quiet()
        assert order == ["first"]
        client.socket.writable = True
        session.drained()
        await client.quiet()
        assert order == ["first", "second"]
        second.set()
        await asyncio.gather(*tasks)


# -- the end


async def test_of_a_lost_connection_nothing_is_left_at_topics_budget_or_broker() -> None:
    async with broker() as w:
        topic = await loaded(w)
        client, other = Client(w).connect(), Client(w).connect()
        await client.produces(1)
        await client.produces(2)
        await client.consumes(1, permits=10)
        await client.consumes(2, subscription="other")
        watch = pb.CommandWatchTopicList(
            request_id=9, watcher_id=1, namespace="public/default", topics_pattern=".*"
        )
        await client.ask(CommandType.WATCH_TOPIC_LIST, watch, CommandType.WATCH_TOPIC_LIST_SUCCESS)
        session, link = client.session, client.session.link
        link.publishing(CONNECTION_PENDING_BYTES_HIGH + 1)
        assert len(w.service.budget._paused) == 1
        client.session.lost(None)
        assert len(w.service.budget._paused) == 0
        await client.quiet()
        assert w.service.sessions == {other.session}
        assert len(topic.producers) == 0
        assert [each.consumers for each in topic.subscriptions.values()] == [[], []]
        assert (session.producers, session.consumers, session.watchers) == ({}, {}, {})
        assert len(session.tasks) == 0
        assert w.service.topics.news._listeners == {}
        # Nothing that still comes for it reaches its socket.
        client.told()
        link.success(1)
        await w.topic("another")
        assert client.told() == []


async def test_a_command_under_way_ends_with_its_connection(handler: dict[int, Any]) -> None:
    ended = asyncio.Event()

    async def waits(_session: Session, _command: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    handler[SEEK] = waits
    async with client_of() as client:
        client.say(SEEK, seek(1))
        await asyncio.sleep(0)
        client.session.lost(None)
        await ended.wait()
        await client.quiet()
        assert client.told() == []


async def test_large_commands_that_wait_for_the_client_to_read_are_bounded() -> None:
    """Lists wait until the client reads, and each command may be as large as a frame."""
    async with client_of() as client:
        client.socket.writable = False
        pattern = "x" * (1 << 20)
        for number in range(1, 65):
            client.say(
                CommandType.GET_TOPICS_OF_NAMESPACE,
                pb.CommandGetTopicsOfNamespace(
                    namespace="public/default", request_id=number, topics_pattern=pattern
                ),
            )
        refused: list[Any] = [command.message for command in client.told()]
        assert len(refused) == 64 - COMMANDS_PENDING_BYTES_MAX // len(pattern)
        assert {message.message for message in refused} == {TOO_MANY_TEXT}
        client.socket.writable = True
        client.session.drained()
        await client.quiet()
        client.told()
        # All have ended, so there is room again.
        client.say(
            CommandType.GET_TOPICS_OF_NAMESPACE,
            pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=65),
        )
        await client.quiet()
        (answer,) = client.kinds()
        assert answer == "GET_TOPICS_OF_NAMESPACE_RESPONSE"
