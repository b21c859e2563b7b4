"""What a link sends: receipts, refusals, messages, new owners, and pings."""

import asyncio
from typing import Any, cast

import pytest
from tests.unit.broker.session.stage import Socket
from tests.unit.ledger.cluster import virtual

from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.broker.session.budget import CONNECTION_PENDING_BYTES_HIGH, PublishBudget
from magnetar.broker.session.link import ACTIVE_CONSUMER_CHANGE_VERSION, SERVER_REQUEST_ID, Link
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.core.errors import MetadataError, NotAllowed, ServerError
from magnetar.managed_ledger.entry import Entry
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.entry import build_entry, with_broker_entry_metadata
from magnetar.wire.events import Command, SendRun

TIMEOUT_S = 5.0


class Stage:
    """A link over a socket, and a producer and messages of it."""

    def __init__(self, version: str = "java") -> None:
        self.socket = Socket()
        self.budget = PublishBudget()
        self.link = Link(self.socket, "/127.0.0.1:1", self.budget, TIMEOUT_S)
        self.link.client_version = version
        self.link.protocol_version = 21
        self.producer = Producer(
            3,
            "p",
            self.link,
            epoch=0,
            generated_name=False,
            access_mode=AccessMode.SHARED,
            topic_epoch=None,
            request_id=8,
            connected_since_ms=0,
        )

    def told(self) -> list[Any]:
        told = [each.message for each in self.socket.commands]
        self.socket.commands.clear()
        return told


def run_of(*sequence_ids: int, size_bytes: int = 10) -> SendRun:
    many = list(sequence_ids)
    return SendRun(
        3, many, [each + 5 for each in many], [1] * len(many), [b"x"] * len(many), size_bytes
    )


def entry_of(entry_id: int, *, stamped: bool = False) -> Entry:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    data = build_entry(metadata, b"text")
    return Entry(7, entry_id, with_broker_entry_metadata(data, 5, 9) if stamped else data)


# -- producers


def test_each_message_of_a_run_gets_a_receipt_with_the_next_place() -> None:
    stage = Stage()
    stage.link.publishing(10)
    stage.link.send_receipts(stage.producer, run_of(4, 5), 7, 900)
    assert [
        (
            each.producer_id,
            each.sequence_id,
            each.highest_sequence_id,
            each.message_id.ledgerId,
            each.message_id.entryId,
        )
        for each in stage.told()
    ] == [(3, 4, 9, 7, 900), (3, 5, 10, 7, 901)]
    assert (stage.link.pending_bytes, stage.budget.pending_bytes) == (0, 0)


def test_messages_without_storage_have_no_place() -> None:
    stage = Stage()
    stage.link.publishing(10)
    stage.link.send_receipts(stage.producer, run_of(4, 5), 0, 0, stored=False)
    assert [
        (each.sequence_id, each.message_id.ledgerId, each.message_id.entryId)
        for each in stage.told()
    ] == [(4, 0, 0), (5, 0, 0)]


def test_a_closed_producer_gets_no_receipt_and_frees_its_bytes() -> None:
    stage = Stage()
    stage.producer.closed = True
    for answer in (
        lambda run: stage.link.send_receipts(stage.producer, run, 7, 0),
        lambda run: stage.link.send_errors(stage.producer, run, MetadataError("no")),
    ):
        stage.link.publishing(10)
        answer(run_of(4))
        assert stage.told() == []
        assert (stage.link.pending_bytes, stage.budget.pending_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("version", "error", "code"),
    [
        ("java", NotAllowed("no"), ServerError.NOT_ALLOWED_ERROR),
        ("Pulsar-CPP-v3.7.1", NotAllowed("no"), ServerError.CHECKSUM_ERROR),
        ("Pulsar-CPP-v3.7.1", MetadataError("no"), ServerError.METADATA_ERROR),
        ("x-Pulsar-CPP", NotAllowed("no"), ServerError.NOT_ALLOWED_ERROR),
    ],
)
def test_each_message_of_a_run_is_refused_with_the_code_that_its_client_takes_for_final(
    version: str, error: MetadataError | NotAllowed, code: ServerError
) -> None:
    stage = Stage(version)
    stage.link.publishing(10)
    stage.link.send_errors(stage.producer, run_of(4, 5), error)
    told = stage.told()
    assert [(each.producer_id, each.sequence_id, each.error) for each in told] == [
        (3, 4, code),
        (3, 5, code),
    ]
    assert told[0].message == "no"
    assert stage.link.pending_bytes == 0


@pytest.mark.parametrize(
    ("ready", "suspended", "epoch", "told"),
    [
        (True, False, None, (True, False)),
        (True, False, 4, (True, True)),
        (False, True, 4, (True, True)),
        (False, False, 4, (False, False)),
    ],
)
def test_a_producer_is_notified_whether_it_may_send_and_of_its_epoch(
    ready: bool, suspended: bool, epoch: int | None, told: tuple[bool, bool]
) -> None:
    stage = Stage()
    producer = stage.producer
    producer.ready, producer.suspended, producer.topic_epoch = ready, suspended, epoch
    producer.schema_version = b"\x07"
    stage.link.producer_ready(producer)
    (success,) = stage.told()
    assert (success.producer_ready, success.HasField("topic_epoch")) == told
    assert success.topic_epoch == (4 if told[1] else 0)
    assert (success.request_id, success.producer_name, success.schema_version) == (8, "p", b"\x07")
    assert (success.HasField("last_sequence_id"), success.last_sequence_id) == (True, -1)


def test_reading_pauses_for_the_first_reason_and_resumes_after_the_last() -> None:
    stage = Stage()
    link, socket = stage.link, stage.socket
    link.pause_reading()
    link.pause_reading()
    assert (socket.reading, link.reading_paused) == (False, True)
    link.resume_reading()
    assert (socket.reading, link.reading_paused) == (False, True)
    link.resume_reading()
    assert (socket.reading, link.reading_paused) == (True, False)
    link.publishing(CONNECTION_PENDING_BYTES_HIGH)
    assert socket.reading
    link.publishing(1)
    assert not socket.reading
    link.published(CONNECTION_PENDING_BYTES_HIGH + 1)
    assert socket.reading


# -- consumers


@pytest.mark.parametrize("wants_stamps", [True, False])
def test_a_message_carries_its_id_redelivery_count_and_ack_set(wants_stamps: bool) -> None:
    stage = Stage()
    stage.link.entry_metadata = wants_stamps
    stage.link.consumer_attached(6, 2)
    plain, stamped = entry_of(300), entry_of(301, stamped=True)
    deliveries = [
        Delivery(plain, 1),
        Delivery(stamped, 3, 4, 0b101),
    ]
    stage.link.deliver(6, deliveries, 11)
    first, second = cast("list[Command]", list(stage.socket.commands))
    message: Any = first.message
    assert (message.consumer_id, message.consumer_epoch) == (6, 11)
    place = message.message_id
    assert (place.ledgerId, place.entryId, place.partition) == (7, 300, 2)
    assert (message.redelivery_count, list(message.ack_set)) == (0, [])
    assert first.payload == plain.data
    message = second.message
    assert (message.redelivery_count, list(message.ack_set)) == (4, [0b101])
    assert second.payload == (stamped.data if wants_stamps else plain.data)
    stage.socket.commands.clear()
    stage.link.consumer_attached(6, -1)
    stage.link.deliver(6, deliveries[:1], None)
    (command,) = stage.told()
    assert not command.HasField("consumer_epoch")
    assert not command.message_id.HasField("partition") or command.message_id.partition == -1


@pytest.mark.parametrize("below", [0, 1])
def test_only_clients_that_support_the_command_get_active_consumer_changes(below: int) -> None:
    stage = Stage()
    stage.link.protocol_version = ACTIVE_CONSUMER_CHANGE_VERSION - below
    stage.link.active_consumer_change(6, active=True)
    stage.link.active_consumer_change(6, active=False)
    assert [(each.consumer_id, each.is_active) for each in stage.told()] == (
        [] if below else [(6, True), (6, False)]
    )


PLAIN = Urls("pulsar://other:6650", "http://other", "pulsar+ssl://other:6651")
INNER = Urls("pulsar://inner:6650", "http://inner")


def record(**listeners: Urls) -> BrokerRecord:
    return BrokerRecord("other:80", 1, "other", 6650, PLAIN, listeners=listeners)


@pytest.mark.parametrize(
    ("destination", "listener", "told"),
    [
        (None, None, ("", "")),
        (record(), None, (PLAIN.service_url, PLAIN.service_url_tls)),
        (record(), "", (PLAIN.service_url, PLAIN.service_url_tls)),
        (record(inner=INNER), None, ("", "")),
        (record(inner=INNER), "", (PLAIN.service_url, PLAIN.service_url_tls)),
        (record(inner=INNER), "inner", (INNER.service_url, "")),
        (record(inner=INNER), "outer", ("", "")),
    ],
)
def test_a_disconnected_client_gets_the_new_owners_reachable_address(
    destination: BrokerRecord | None, listener: str | None, told: tuple[str, str]
) -> None:
    stage = Stage()
    stage.link.listener = listener
    stage.link.close_producer(stage.producer, destination)
    stage.link.close_consumer(6, destination)
    producer, consumer = stage.told()
    assert (producer.producer_id, consumer.consumer_id) == (3, 6)
    for each in (producer, consumer):
        assert each.request_id == SERVER_REQUEST_ID
        assert (each.assignedBrokerServiceUrl, each.assignedBrokerServiceUrlTls) == told
        assert each.HasField("assignedBrokerServiceUrlTls") is bool(told[1])


def test_the_end_of_a_topic_and_a_refused_producer_carry_their_ids() -> None:
    stage = Stage()
    stage.link.end_of_topic(6)
    stage.link.producer_refused(stage.producer, MetadataError("why"))
    end, refused = stage.told()
    assert end.consumer_id == 6
    assert (refused.request_id, refused.error, refused.message) == (8, 1, "why")


def test_a_client_that_would_close_its_connection_is_not_told_the_end_of_a_topic() -> None:
    stage = Stage("Pulsar-CPP-v4.2.0")
    stage.link.end_of_topic(6)
    assert stage.told() == []


# -- liveness


def test_a_peer_is_asked_and_lives_if_it_answers_in_time() -> None:
    async def scenario() -> None:
        stage = Stage()
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(stage.link.is_alive())
        second = asyncio.ensure_future(stage.link.is_alive())
        await asyncio.sleep(TIMEOUT_S * 0.9)
        pings = [each.type for each in stage.socket.commands]
        assert pings == [CommandType.PING] * 2
        stage.link.ponged()
        assert (await first, await second) == (True, True)
        begun = loop.time()
        # The answer to the last question is no answer to this one.
        assert not await stage.link.is_alive()
        assert loop.time() - begun == pytest.approx(TIMEOUT_S)
        assert stage.socket.closed
        assert not await stage.link.is_alive()
        assert loop.time() - begun == pytest.approx(TIMEOUT_S)

    virtual(scenario())


def test_a_peer_that_is_not_read_from_is_not_asked_and_counts_as_alive() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.link.pause_reading()
        assert await stage.link.is_alive()
        assert not stage.socket.commands
        stage.link.resume_reading()
        assert not await stage.link.is_alive()
        closed = Stage()
        closed.socket.closed = True
        closed.link.pause_reading()
        assert not await closed.link.is_alive()

    virtual(scenario())


def test_waiters_for_a_pong_learn_at_once_that_the_connection_is_lost() -> None:
    async def scenario() -> None:
        stage = Stage()
        asked = asyncio.ensure_future(stage.link.is_alive())
        await asyncio.sleep(1)
        stage.link.lost()
        assert not await asked
        assert asyncio.get_running_loop().time() == pytest.approx(1)
        assert not stage.socket.closed, "it is lost already"

    virtual(scenario())


def test_after_the_connection_is_lost_every_call_has_no_effect() -> None:
    async def scenario() -> None:
        stage = Stage()
        link = stage.link
        link.ponged()
        link.consumer_attached(6, -1)
        link.lost()
        link.ping()
        link.success(1)
        link.deliver(6, [Delivery(entry_of(1), 1)], None)
        link.pause_reading()
        link.resume_reading()
        link.publishing(10)
        link.send_receipts(stage.producer, run_of(1), 7, 0)
        assert not link.writable
        assert not await link.is_alive()
        link.close()
        assert not stage.socket.commands
        assert (stage.socket.closed, stage.socket.reading) == (False, True)
        assert link.pending_bytes == 0

    virtual(scenario())


def test_a_link_is_writable_and_closed_as_its_connection_is() -> None:
    stage = Stage()
    assert stage.link.writable
    stage.socket.writable = False
    assert not stage.link.writable
    stage.link.close()
    assert stage.socket.closed
