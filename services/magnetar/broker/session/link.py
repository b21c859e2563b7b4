"""Sends to one client: answers, receipts, messages, and requests to reattach.

Topics and subscriptions see a client as its link (`ProducerSink`, `ConsumerSink`). A link encodes
commands and hands them to the connection; it never blocks, and has no effect once the connection is
lost. It also counts the published bytes without a receipt, which bound the memory of a connection.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from google.protobuf.message import Message

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.session.budget import PublishBudget
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.topic.producer import Producer
from magnetar.core.errors import MagnetarError, ServerError
from magnetar.security.api import Peer
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import (
    PING_FRAME,
    MessageFramer,
    encode_ack_response,
    encode_command,
    encode_error,
    encode_receipts,
    encode_send_error,
    encode_success,
    encode_transaction_answer,
)
from magnetar.wire.entry import without_broker_entry_metadata
from magnetar.wire.events import SendRun
from magnetar.wire.message_id import ack_set_words

SERVER_REQUEST_ID: Final = 2**64 - 1
"""The request id of commands that answer no request."""

ACTIVE_CONSUMER_CHANGE_VERSION: Final = 12
CLIENT_VERSION_CHARS_MAX: Final = 256
"""Kept of a client's version, which it names before it has proven who it is."""

_CPP: Final = "Pulsar-CPP"
"""The prefix of the version of the C++ client and of those built on it, such as Python's.

After a checksum error, that client fails only the one message. After any other code it reconnects
and resends the message forever. Its log has the text.

It does not know REACHED_END_OF_TOPIC and closes its connection when it gets one, with everything
that uses it. A consumer that reconnects is a new one, so the client would do so without end.
"""
_ENTRY_METADATA_MAGIC: Final = b"\x0e\x02"


class Wire(Protocol):
    """The connection of a link."""

    closed: bool
    writable: bool
    heard: bool
    peer: Peer
    """The client's address, and its certificate if TLS verified one."""

    def send(self, frame: bytes) -> None:
        """Queues one or more whole frames."""

    def send_parts(self, parts: list[bytes]) -> None:
        """Queues frames that are split into parts, in order."""

    def pause_reading(self) -> None:
        """Stops reading until `resume_reading`."""

    def resume_reading(self) -> None:
        """Reads again."""

    def admit(self) -> None:
        """Accepts frames of full size: the client has completed CONNECT."""

    def close(self) -> None:
        """Sends queued frames, then closes."""


class Disconnected:
    """Replaces the wire of a lost connection: its methods do nothing.

    Objects that outlive the connection (a consumer, a pending command) then do not keep it and its
    buffers in memory.
    """

    closed = True
    writable = False
    heard = False
    peer = Peer("unknown")

    def send(self, frame: bytes) -> None:
        """Drops the frame."""

    def send_parts(self, parts: list[bytes]) -> None:
        """Drops the frames."""

    def pause_reading(self) -> None:
        """Does nothing."""

    def resume_reading(self) -> None:
        """Does nothing."""

    def admit(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


DISCONNECTED: Final = Disconnected()


class Link:
    """A client, as topics and subscriptions see it (`ProducerSink`, `ConsumerSink`)."""

    __slots__ = (
        "_budget",
        "_framers",
        "_liveness_timeout_s",
        "_pauses",
        "_pong",
        "_wire",
        "address",
        "client_version",
        "entry_metadata",
        "listener",
        "pending_bytes",
        "protocol_version",
    )

    def __init__(
        self, wire: Wire, address: str, budget: PublishBudget, liveness_timeout_s: float
    ) -> None:
        self._wire = wire
        self._budget = budget
        self._liveness_timeout_s = liveness_timeout_s
        self._framers: dict[int, MessageFramer] = {}
        self._pong: asyncio.Event | None = None
        self._pauses = 0
        self.address = address
        self.client_version = ""
        self.protocol_version = 0
        self.entry_metadata = False
        self.listener: str | None = None
        """The listener of the client's last look-up here: empty if unnamed, None before the
        first."""
        self.pending_bytes = 0

    def answer(self, kind: "CommandType.ValueType", message: Message) -> None:
        """Sends one command."""
        self._wire.send(encode_command(kind, message))

    def transaction_answer(self, kind: int, request_id: int, txn: tuple[int, int]) -> None:
        """Answers a command of a transaction, which succeeded."""
        self._wire.send(encode_transaction_answer(kind, request_id, txn))

    def success(self, request_id: int) -> None:
        """Sends SUCCESS."""
        self._wire.send(encode_success(request_id))

    def error(self, request_id: int, error: MagnetarError) -> None:
        """Sends ERROR for a refused request."""
        self.error_code(request_id, error.code, error.message)

    def error_code(self, request_id: int, code: ServerError, text: str) -> None:
        """Sends ERROR with a code and a text."""
        self._wire.send(encode_error(request_id, code, text))

    def ack_response(self, consumer_id: int, request_id: int, error: MagnetarError | None) -> None:
        """Sends ACK_RESPONSE; `error` is None if the acknowledgment is durable."""
        if error is None:
            frame = encode_ack_response(consumer_id, request_id)
        else:
            frame = encode_ack_response(consumer_id, request_id, error.code, error.message)
        self._wire.send(frame)

    def publishing(self, size_bytes: int) -> None:
        """Counts bytes that are about to be published; reading pauses above the bound."""
        self.pending_bytes += size_bytes
        self._budget.add(self, size_bytes)

    def published(self, size_bytes: int) -> None:
        """Counts bytes that were answered; reading resumes below the low mark."""
        self.pending_bytes -= size_bytes
        self._budget.subtract(size_bytes)

    @property
    def reading_paused(self) -> bool:
        """Whether reading is paused; the peer's answers may then wait in the socket."""
        return self._pauses > 0

    def pause_reading(self) -> None:
        """Pauses reading for one more reason; each reason ends with a `resume_reading`."""
        self._pauses += 1
        if self._pauses == 1:
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        """Ends one reason to pause reading."""
        self._pauses -= 1
        if not self._pauses:
            self._wire.resume_reading()

    def send_receipts(
        self,
        producer: Producer,
        run: SendRun,
        ledger_id: int,
        first_entry_id: int,
        *,
        stored: bool = True,
    ) -> None:
        """See `ProducerSink.send_receipts`."""
        self.published(run.size_bytes)
        if producer.closed:
            return  # the client has recreated the producer, and resends to the new one
        sequence_ids, highest_ids = run.sequence_ids, run.highest_sequence_ids
        if stored:
            receipts = encode_receipts(
                producer.producer_id, sequence_ids, highest_ids, ledger_id, first_entry_id
            )
        else:
            ids, number = (ledger_id, first_entry_id), producer.producer_id
            receipts = b"".join(
                encode_receipts(number, [sequence_id], [highest_id], *ids)
                for sequence_id, highest_id in zip(sequence_ids, highest_ids, strict=True)
            )
        self._wire.send(receipts)

    def send_errors(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        """See `ProducerSink.send_errors`."""
        self.published(run.size_bytes)
        if producer.closed:
            return
        code = error.code
        if code is ServerError.NOT_ALLOWED_ERROR and self.client_version.startswith(_CPP):
            code = ServerError.CHECKSUM_ERROR
        for sequence_id in run.sequence_ids:
            self.send_error(producer.producer_id, sequence_id, code, error.message)

    def send_error(self, producer_id: int, sequence_id: int, code: ServerError, text: str) -> None:
        """Refuses one message."""
        self._wire.send(encode_send_error(producer_id, sequence_id, code, text))

    def producer_ready(self, producer: Producer) -> None:
        """Sends PRODUCER_SUCCESS; a second one once a producer has its exclusive access."""
        success = pb.CommandProducerSuccess(
            request_id=producer.request_id,
            producer_name=producer.name,
            last_sequence_id=producer.last_sequence_id,
            # Java's client reads the version without checking that the field is set.
            schema_version=producer.schema_version,
            producer_ready=producer.admitted,
        )
        if producer.topic_epoch is not None and producer.admitted:
            success.topic_epoch = producer.topic_epoch
        self.answer(CommandType.PRODUCER_SUCCESS, success)

    def producer_refused(self, producer: Producer, error: MagnetarError) -> None:
        """See `ProducerSink.producer_refused`."""
        self.error(producer.request_id, error)

    def close_producer(self, producer: Producer, destination: BrokerRecord | None = None) -> None:
        """See `ProducerSink.close_producer`."""
        command = pb.CommandCloseProducer(
            producer_id=producer.producer_id, request_id=SERVER_REQUEST_ID
        )
        self._assign(command, destination)
        self.answer(CommandType.CLOSE_PRODUCER, command)

    @property
    def writable(self) -> bool:
        """See `ConsumerSink.writable`."""
        return self._wire.writable

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
        """See `ConsumerSink.deliver`."""
        header = self._framers[consumer_id].header
        parts: list[bytes] = []
        strip = not self.entry_metadata
        for delivery in deliveries:
            entry = delivery.entry
            data = entry.data
            if strip and data.startswith(_ENTRY_METADATA_MAGIC):
                data = without_broker_entry_metadata(data)
            ack_set = delivery.ack_set
            parts.append(
                header(
                    entry.ledger_id,
                    entry.entry_id,
                    len(data),
                    delivery.redelivery_count,
                    () if ack_set is None else ack_set_words(ack_set),
                    epoch,
                )
            )
            parts.append(data)
        self._wire.send_parts(parts)

    def consumer_attached(self, consumer_id: int, partition: int) -> None:
        """Prepares deliveries to a consumer; `partition` is -1 for an unpartitioned topic."""
        self._framers[consumer_id] = MessageFramer(consumer_id, partition)

    def forget_consumer(self, consumer_id: int) -> None:
        """Drops the state of a detached consumer."""
        self._framers.pop(consumer_id, None)

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None:
        """See `ConsumerSink.active_consumer_change`."""
        if self.protocol_version >= ACTIVE_CONSUMER_CHANGE_VERSION:
            self.answer(
                CommandType.ACTIVE_CONSUMER_CHANGE,
                pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active),
            )

    def end_of_topic(self, consumer_id: int) -> None:
        """See `ConsumerSink.end_of_topic`. Has no effect for a client that does not know it."""
        if self.client_version.startswith(_CPP):
            return
        self.answer(
            CommandType.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
        )

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        """See `ConsumerSink.close_consumer`."""
        command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=SERVER_REQUEST_ID)
        self._assign(command, destination)
        self.answer(CommandType.CLOSE_CONSUMER, command)

    def _assign(
        self,
        command: pb.CommandCloseProducer | pb.CommandCloseConsumer,
        destination: BrokerRecord | None,
    ) -> None:
        """Adds the new owner's address (PIP-307) for the listener that the client uses.

        If brokers have several listeners and the client's is unknown, no address is added, and the
        client looks the topic up. Older clients ignore the fields.
        """
        if destination is None or (destination.listeners and self.listener is None):
            return
        urls = destination.reached_by(self.listener or "")
        if urls is not None:
            command.assignedBrokerServiceUrl = urls.service_url
            if urls.service_url_tls:
                command.assignedBrokerServiceUrlTls = urls.service_url_tls

    def ping(self) -> None:
        """Sends PING."""
        self._wire.send(PING_FRAME)

    def ponged(self) -> None:
        """Ends the wait for a PONG."""
        if self._pong is not None:
            self._pong.set()

    async def is_alive(self) -> bool:
        """Pings the peer and waits for the answer; disconnects a silent peer."""
        if self._wire.closed:
            return False
        if self.reading_paused:
            return True  # the PONG would wait in a socket that is not being read
        if self._pong is None:
            self._pong = asyncio.Event()
        self._pong.clear()
        self.ping()
        try:
            async with asyncio.timeout(self._liveness_timeout_s):
                await self._pong.wait()
        except TimeoutError:
            self._wire.close()
            return False
        return not self._wire.closed

    def close(self) -> None:
        """Closes the connection after sending queued frames."""
        self._wire.close()

    def lost(self) -> None:
        """Drops the lost connection, and ends the wait for its PONG."""
        self._wire = DISCONNECTED
        if self._pong is not None:
            self._pong.set()
