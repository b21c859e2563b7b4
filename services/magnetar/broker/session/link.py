"""Everything that one connection is told: answers, receipts, messages, and requests to reattach.

A link is what topics and subscriptions know of a client (`ProducerSink`, `ConsumerSink`). It
encodes and hands over to the connection, blocks nowhere, and after the connection is gone every
call is harmless. It also keeps the count of published bytes that wait for their receipt, which
bounds the memory that one connection can claim.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from google.protobuf.message import Message

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.session.budget import PublishBudget
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.topic.producer import Producer, PublishRun
from magnetar.core.errors import MagnetarError, ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PING_FRAME, MessageFramer, encode_command, encode_receipts
from magnetar.wire.entry import without_broker_entry_metadata
from magnetar.wire.message_id import ack_set_words

SERVER_REQUEST_ID: Final = 2**64 - 1
"""The request id of commands that answer no request."""

BROKER_ENTRY_METADATA_VERSION: Final = 18
ACTIVE_CONSUMER_CHANGE_VERSION: Final = 12

_CPP: Final = "Pulsar-CPP"
"""How the version of the C++ client begins, and of those built on it, Python's among them. It fails
a message alone only for a checksum error; after any other code it reconnects and sends the message
again, for ever. Its log has the text."""
_ENTRY_METADATA_MAGIC: Final = b"\x0e\x02"


class Wire(Protocol):
    """What a link needs of its connection."""

    closed: bool
    writable: bool
    heard: bool

    def send(self, frame: bytes) -> None: ...

    def send_parts(self, parts: list[bytes]) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


class Disconnected:
    """The wire of a lost connection: every call is harmless.

    It takes the place of the connection in whatever outlives it (a consumer, a command under way),
    so that these do not keep the connection and its buffers.
    """

    closed = True
    writable = False
    heard = False

    def send(self, frame: bytes) -> None:
        """Drops the frame."""

    def send_parts(self, parts: list[bytes]) -> None:
        """Drops the frames."""

    def pause_reading(self) -> None:
        """Nothing is read any more."""

    def resume_reading(self) -> None:
        """Nothing is read any more."""

    def close(self) -> None:
        """It is closed."""


DISCONNECTED: Final = Disconnected()


class Link:
    """One client, as topics and subscriptions know it (`ProducerSink`, `ConsumerSink`)."""

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
        """The listener that the client named in its last look-up here; empty for none."""
        self.pending_bytes = 0

    # -- answers ---------------------------------------------------------------------------

    def answer(self, kind: "CommandType.ValueType", message: Message) -> None:
        """Sends one command."""
        self._wire.send(encode_command(kind, message))

    def success(self, request_id: int) -> None:
        self.answer(CommandType.SUCCESS, pb.CommandSuccess(request_id=request_id))

    def error(self, request_id: int, error: MagnetarError) -> None:
        """The ERROR command."""
        self.error_code(request_id, error.code, error.message)

    def error_code(self, request_id: int, code: ServerError, text: str) -> None:
        command = pb.CommandError(request_id=request_id, error=int(code), message=text)  # type: ignore[arg-type]
        self.answer(CommandType.ERROR, command)

    # -- producers -------------------------------------------------------------------------

    def publishing(self, size_bytes: int) -> None:
        """Counts what is about to be appended; reading pauses above the bound."""
        self.pending_bytes += size_bytes
        self._budget.took(self, size_bytes)

    def published(self, size_bytes: int) -> None:
        """Counts what was answered; reading goes on below the low mark."""
        self.pending_bytes -= size_bytes
        self._budget.gave_back(size_bytes)

    @property
    def reading_paused(self) -> bool:
        """Whether we do not read from it: it cannot be blamed for its silence then."""
        return self._pauses > 0

    def pause_reading(self) -> None:
        """For one more reason; each ends with a `resume_reading`."""
        self._pauses += 1
        if self._pauses == 1:
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            self._wire.resume_reading()

    def send_receipts(
        self, producer: Producer, run: PublishRun, ledger_id: int, first_entry_id: int
    ) -> None:
        self.published(run.size_bytes)
        if producer.closed:
            return  # the client has another life of this producer, and resends to that one
        sequence_ids, highest_ids = run.sequence_ids, run.highest_sequence_ids
        if ledger_id >= 0:
            receipts = encode_receipts(
                producer.producer_id, sequence_ids, highest_ids, ledger_id, first_entry_id
            )
        else:  # a non-persistent topic has no positions: every message is -1:-1
            receipts = b"".join(
                encode_receipts(producer.producer_id, [sequence_id], [highest_id], -1, -1)
                for sequence_id, highest_id in zip(sequence_ids, highest_ids, strict=True)
            )
        self._wire.send(receipts)

    def send_errors(self, producer: Producer, run: PublishRun, error: MagnetarError) -> None:
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
        self.answer(
            CommandType.SEND_ERROR,
            pb.CommandSendError(
                producer_id=producer_id,
                sequence_id=sequence_id,
                error=int(code),  # type: ignore[arg-type]
                message=text,
            ),
        )

    def producer_ready(self, producer: Producer) -> None:
        """PRODUCER_SUCCESS; a second one for a producer that waited for exclusive access."""
        success = pb.CommandProducerSuccess(
            request_id=producer.request_id,
            producer_name=producer.name,
            last_sequence_id=-1,
            # Java's client reads the version without asking whether it is there.
            schema_version=producer.schema_version,
            producer_ready=producer.admitted,
        )
        if producer.topic_epoch is not None and producer.admitted:
            success.topic_epoch = producer.topic_epoch
        self.answer(CommandType.PRODUCER_SUCCESS, success)

    def producer_refused(self, producer: Producer, error: MagnetarError) -> None:
        self.error(producer.request_id, error)

    def close_producer(self, producer: Producer, destination: BrokerRecord | None = None) -> None:
        command = pb.CommandCloseProducer(
            producer_id=producer.producer_id, request_id=SERVER_REQUEST_ID
        )
        self._assign(command, destination)
        self.answer(CommandType.CLOSE_PRODUCER, command)

    # -- consumers -------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return self._wire.writable

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
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
        """Call before the consumer may be sent anything; `partition` is -1 for a whole topic."""
        self._framers[consumer_id] = MessageFramer(consumer_id, partition)

    def forget_consumer(self, consumer_id: int) -> None:
        self._framers.pop(consumer_id, None)

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None:
        if self.protocol_version >= ACTIVE_CONSUMER_CHANGE_VERSION:
            self.answer(
                CommandType.ACTIVE_CONSUMER_CHANGE,
                pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=active),
            )

    def end_of_topic(self, consumer_id: int) -> None:
        self.answer(
            CommandType.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
        )

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=SERVER_REQUEST_ID)
        self._assign(command, destination)
        self.answer(CommandType.CLOSE_CONSUMER, command)

    def _assign(
        self,
        command: pb.CommandCloseProducer | pb.CommandCloseConsumer,
        destination: BrokerRecord | None,
    ) -> None:
        """Names the new owner (PIP-307), at the address that the client can reach.

        Where brokers have several listeners and it is not known by which this client came, it is
        told nothing, and looks up. Clients that do not know the fields pass over them.
        """
        if destination is None or (destination.listeners and self.listener is None):
            return
        urls = destination.reached_by(self.listener or "")
        if urls is not None:
            command.assignedBrokerServiceUrl = urls.service_url
            if urls.service_url_tls:
                command.assignedBrokerServiceUrlTls = urls.service_url_tls

    # -- liveness --------------------------------------------------------------------------

    def ping(self) -> None:
        self._wire.send(PING_FRAME)

    def ponged(self) -> None:
        if self._pong is not None:
            self._pong.set()

    async def is_alive(self) -> bool:
        """Pings and waits for the answer; a peer that stays silent is disconnected."""
        if self._wire.closed:
            return False
        if self.reading_paused:
            return True  # its pong would wait in a socket that we do not read
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
        self._wire.close()

    def lost(self) -> None:
        """Drops the lost connection, and ends the wait for its PONG."""
        self._wire = DISCONNECTED
        if self._pong is not None:
            self._pong.set()
