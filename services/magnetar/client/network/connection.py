"""One connection to a broker: frames out, events to their owners, requests with deadlines.

A request is answered by its id. Receipts, messages and closures go to the producer or consumer of
their id. Frames written in one turn of the loop leave in one write. Keep-alive: after
`keep_alive_s` without a command from the broker, or PROGRESS_BYTES_MIN of one, the client sends
PING; after as much time again without either, it closes the connection. When the connection is
lost, waiting requests fail with `Disconnected`, and every producer and consumer is notified, once.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from google.protobuf.message import Message

from magnetar.client.errors import ClientError, Disconnected, OperationTimeout, server_error
from magnetar.client.network.answers import ANSWER_OF
from magnetar.core.log import get_logger
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.client_decoder import Answer, ClientDecoder, Delivery, Receipt
from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.encoder import PING_FRAME, PONG_FRAME, encode_command
from magnetar.wire.framing import FRAME_OVERHEAD_BYTES_MAX, MESSAGE_BYTES_MAX_DEFAULT, ProtocolError
from magnetar.wire.progress import PROGRESS_BYTES_MIN

log = get_logger("magnetar.client.connection")

WRITE_BUFFER_HIGH_BYTES: Final = 1024 * 1024
"""Above this, frames wait in the connection's own list until the broker has read some."""

# Read from the enum once: its attributes are computed on every access.
_PING: Final = int(CommandType.PING)
_PONG: Final = int(CommandType.PONG)
_ERROR: Final = int(CommandType.ERROR)
_SEND_ERROR: Final = int(CommandType.SEND_ERROR)
_CONNECTED: Final = int(CommandType.CONNECTED)
_AUTH_CHALLENGE: Final = int(CommandType.AUTH_CHALLENGE)
_CLOSE_PRODUCER: Final = int(CommandType.CLOSE_PRODUCER)
_CLOSE_CONSUMER: Final = int(CommandType.CLOSE_CONSUMER)
_PRODUCER_SUCCESS: Final = int(CommandType.PRODUCER_SUCCESS)
_REACHED_END_OF_TOPIC: Final = int(CommandType.REACHED_END_OF_TOPIC)
_ACTIVE_CONSUMER_CHANGE: Final = int(CommandType.ACTIVE_CONSUMER_CHANGE)
_WATCH_TOPIC_UPDATE: Final = int(CommandType.WATCH_TOPIC_UPDATE)
_TOPIC_MIGRATED: Final = int(CommandType.TOPIC_MIGRATED)
_ACK_RESPONSE: Final = int(CommandType.ACK_RESPONSE)
_NO_REQUEST: Final = 2**64 - 1


class ProducerLink(Protocol):
    """What a connection calls of a producer that is attached to it."""

    def on_receipt(self, receipt: Receipt) -> None:
        """A message is stored."""

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """A message is refused."""

    def on_closed(self, redirect: str) -> None:
        """The broker closed the producer; `redirect` is the URL of the next broker, or empty."""

    def on_disconnected(self) -> None:
        """The connection is lost."""


class ConsumerLink(Protocol):
    """What a connection calls of a consumer that is attached to it."""

    def on_delivery(self, delivery: Delivery) -> None:
        """An entry arrived."""

    def on_closed(self, redirect: str) -> None:
        """The broker closed the consumer; `redirect` is the URL of the next broker, or empty."""

    def on_disconnected(self) -> None:
        """The connection is lost."""

    def on_end_of_topic(self) -> None:
        """The topic is terminated, and everything in it was delivered."""

    def on_active_change(self, active: bool) -> None:
        """The consumer became the active one of its Failover subscription, or another did."""


class WatcherLink(Protocol):
    """What a connection calls of a watcher of topics."""

    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        """Topics were created or deleted."""

    def on_disconnected(self) -> None:
        """The connection is lost."""


class Connection(asyncio.BufferedProtocol):
    """A connection to one broker, shared by producers, consumers and requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str, keep_alive_s: float) -> None:
        self._loop = loop
        self.address = address
        """The broker's URL, for errors and logs."""
        self._keep_alive_s = keep_alive_s
        self._decoder = ClientDecoder()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flush_due = False
        self._paused = False
        self._waiting: dict[int, tuple[asyncio.Future[Message], str, int]] = {}
        """The unanswered requests by id: the future, the topic, and the type of the command."""
        self._request_ids = itertools.count(1)
        self._producers: dict[int, ProducerLink] = {}
        self._consumers: dict[int, ConsumerLink] = {}
        self._watchers: dict[int, WatcherLink] = {}
        self.greeting: asyncio.Future[pb.CommandConnected] = loop.create_future()
        """CONNECTED, or the error that the broker sent in its place."""
        self.on_challenge: Callable[[pb.CommandAuthChallenge], None] | None = None
        self.closed = False
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the transport is closed."""
        self._heard_at = loop.time()
        self._unfinished_bytes = 0
        """Received since `_heard_at`, of a frame that is not complete."""
        self._keep_alive: asyncio.TimerHandle | None = None
        self.max_message_bytes = MESSAGE_BYTES_MAX_DEFAULT
        self.protocol_version = 0
        self.features = pb.FeatureFlags()

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        self._heard_at = self._loop.time()
        self._keep_alive = self._loop.call_later(self._keep_alive_s, self._check_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"The connection was lost: {exc}" if exc else "The broker closed the connection")
        if not self.ended.done():
            self.ended.set_result(None)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._schedule_flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            events = self._decoder.received(nbytes)
        except ProtocolError as error:
            log.warning("broker violated the protocol", broker=self.address, error=str(error))
            self.abort(f"The broker violated the protocol: {error}")
            return
        self._unfinished_bytes += nbytes
        if events or self._unfinished_bytes >= PROGRESS_BYTES_MIN:
            self._heard_at, self._unfinished_bytes = self._loop.time(), 0
        consumers, producers = self._consumers, self._producers
        for event in events:
            if type(event) is Delivery:
                consumer = consumers.get(event.consumer_id)
                if consumer is not None:
                    consumer.on_delivery(event)
            elif type(event) is Receipt:
                producer = producers.get(event.producer_id)
                if producer is not None:
                    producer.on_receipt(event)
            elif type(event) is Answer:
                self._answer(event.type, event.message)

    # -- writing -------------------------------------------------------------------------------

    def write(self, frame: bytes) -> None:
        """Sends a frame, with all others of this turn of the loop; dropped once closed."""
        if not self.closed:
            self._out.append(frame)
            if not self._flush_due:
                self._schedule_flush()

    def write_parts(self, parts: tuple[bytes, ...]) -> None:
        """Sends a frame that consists of several pieces."""
        if not self.closed:
            self._out += parts
            if not self._flush_due:
                self._schedule_flush()

    def _schedule_flush(self) -> None:
        if self._out and not self._flush_due and not self._paused:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._out and not self._paused and self._transport is not None and not self.closed:
            out, self._out = self._out, []
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    # -- requests ------------------------------------------------------------------------------

    def next_request_id(self) -> int:
        """Returns a request id that was not used on this connection."""
        return next(self._request_ids)

    def start_request(
        self, command_type: int, message: Any, topic: str = ""
    ) -> asyncio.Future[Message]:
        """Sends a command with a new request id; the future has its answer."""
        request_id = message.request_id = next(self._request_ids)
        future: asyncio.Future[Message] = self._loop.create_future()
        if self.closed:
            future.set_exception(
                Disconnected("The connection is closed", topic=topic, broker=self.address)
            )
            return future
        self._waiting[request_id] = (future, topic, int(command_type))
        future.add_done_callback(lambda _: self._waiting.pop(request_id, None))
        self.write(encode_command(command_type, message))
        return future

    async def request(
        self, command_type: int, message: Any, timeout_s: float, topic: str = ""
    ) -> Any:
        """Sends a command and returns its answer; raises the broker's error."""
        future = self.start_request(command_type, message, topic)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            name = command_name(command_type)
            raise OperationTimeout(
                f"{name} was not answered in {timeout_s:g} s", topic=topic, broker=self.address
            ) from None

    # -- owners --------------------------------------------------------------------------------

    def attach_producer(self, producer_id: int, producer: ProducerLink) -> None:
        """Sends the producer its receipts from now on."""
        self._producers[producer_id] = producer

    def detach_producer(self, producer_id: int) -> None:
        """Ends `attach_producer`."""
        self._producers.pop(producer_id, None)

    def attach_consumer(self, consumer_id: int, consumer: ConsumerLink) -> None:
        """Sends the consumer its messages from now on."""
        self._consumers[consumer_id] = consumer

    def detach_consumer(self, consumer_id: int) -> None:
        """Ends `attach_consumer`."""
        self._consumers.pop(consumer_id, None)

    def attach_watcher(self, watcher_id: int, watcher: WatcherLink) -> None:
        """Sends the watcher its updates from now on."""
        self._watchers[watcher_id] = watcher

    def detach_watcher(self, watcher_id: int) -> None:
        """Ends `attach_watcher`."""
        self._watchers.pop(watcher_id, None)

    @property
    def idle(self) -> bool:
        """Whether nothing uses the connection."""
        return not (self._producers or self._consumers or self._watchers or self._waiting)

    # -- end -----------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Closes the connection at once; what was written may be lost."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def close(self) -> None:
        """Closes the connection after what was written has left."""
        self._paused = False
        self._flush()
        if self._transport is not None:
            self._transport.close()
        elif not self.ended.done():
            self.ended.set_result(None)
        self._end("The client closed the connection")

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._out.clear()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        waiting, self._waiting = self._waiting, {}
        for future, topic, _ in waiting.values():
            if not future.done():
                future.set_exception(Disconnected(reason, topic=topic, broker=self.address))
        if not self.greeting.done():
            self.greeting.set_exception(Disconnected(reason, broker=self.address))
            self.greeting.exception()
        owners: list[ProducerLink | ConsumerLink | WatcherLink] = [
            *self._producers.values(),
            *self._consumers.values(),
            *self._watchers.values(),
        ]
        self._producers.clear()
        self._consumers.clear()
        self._watchers.clear()
        for owner in owners:
            owner.on_disconnected()

    # -- incoming ------------------------------------------------------------------------------

    def _check_keep_alive(self) -> None:
        silent_s = self._loop.time() - self._heard_at
        if silent_s >= 2 * self._keep_alive_s:
            log.warning("broker is silent, closing", broker=self.address, silent_s=silent_s)
            self.abort(f"The broker was silent for {silent_s:.0f} s")
            return
        if silent_s >= self._keep_alive_s:
            self.write(PING_FRAME)
        due_s = self._keep_alive_s - silent_s if silent_s < self._keep_alive_s else 0.0
        self._keep_alive = self._loop.call_later(
            due_s or self._keep_alive_s, self._check_keep_alive
        )

    def _answer(self, number: int, message: Any) -> None:
        handler = _HANDLERS.get(number)
        if handler is not None:
            handler(self, message)
            return
        request_id = getattr(message, "request_id", None)
        if request_id is not None and (future := self._waiting_for(number, request_id)) is not None:
            future.set_result(message)

    def _waiting_for(self, number: int, request_id: int) -> asyncio.Future[Message] | None:
        """Returns who waits for an answer of this type; another type ends the connection."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting[0].done():
            return None
        future, _, command_type = waiting
        if ANSWER_OF.get(command_type, number) != number:
            wrong = f"{command_name(command_type)} was answered with {command_name(number)}"
            log.warning("broker violated the protocol", broker=self.address, error=wrong)
            self.abort(f"The broker violated the protocol: {wrong}")
            return None
        return future

    def _on_ping(self, message: pb.CommandPing) -> None:
        self.write(PONG_FRAME)

    def _on_pong(self, message: pb.CommandPong) -> None:
        """Any command counts as a sign of life."""

    def _on_connected(self, connected: pb.CommandConnected) -> None:
        if connected.max_message_size > 0:
            self.max_message_bytes = connected.max_message_size
            self._decoder.resize(connected.max_message_size + FRAME_OVERHEAD_BYTES_MAX)
        self.protocol_version = connected.protocol_version
        self.features.CopyFrom(connected.feature_flags)
        if not self.greeting.done():
            self.greeting.set_result(connected)

    def _on_error(self, error: pb.CommandError) -> None:
        if not self.greeting.done():
            self.greeting.set_exception(self._error(error.error, error.message))
            return
        waiting = self._waiting.get(error.request_id)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(self._error(error.error, error.message, waiting[1]))
        elif error.request_id == _NO_REQUEST:
            log.warning("broker sent an error", broker=self.address, error=error.message)

    def _error(self, code: int, text: str, topic: str = "") -> ClientError:
        return server_error(code, text, topic=topic, broker=self.address)

    def _on_challenge(self, challenge: pb.CommandAuthChallenge) -> None:
        if self.on_challenge is not None:
            self.on_challenge(challenge)

    def _on_send_error(self, error: pb.CommandSendError) -> None:
        producer = self._producers.get(error.producer_id)
        if producer is not None:
            producer.on_send_error(error)

    def _on_close_producer(self, closing: pb.CommandCloseProducer) -> None:
        producer = self._producers.pop(closing.producer_id, None)
        if producer is not None:
            producer.on_closed(closing.assignedBrokerServiceUrl)

    def _on_close_consumer(self, closing: pb.CommandCloseConsumer) -> None:
        consumer = self._consumers.pop(closing.consumer_id, None)
        if consumer is not None:
            consumer.on_closed(closing.assignedBrokerServiceUrl)

    def _on_producer_success(self, success: pb.CommandProducerSuccess) -> None:
        """A producer that waits for exclusive access gets a second answer when it has it."""
        future = self._waiting_for(_PRODUCER_SUCCESS, success.request_id)
        if future is not None and success.producer_ready:
            future.set_result(success)

    def _on_end_of_topic(self, end: pb.CommandReachedEndOfTopic) -> None:
        consumer = self._consumers.get(end.consumer_id)
        if consumer is not None:
            consumer.on_end_of_topic()

    def _on_active_change(self, change: pb.CommandActiveConsumerChange) -> None:
        consumer = self._consumers.get(change.consumer_id)
        if consumer is not None:
            consumer.on_active_change(change.is_active)

    def _on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        watcher = self._watchers.get(update.watcher_id)
        if watcher is not None:
            watcher.on_topics_changed(update)

    def _on_topic_migrated(self, migrated: pb.CommandTopicMigrated) -> None:
        log.error(
            "topic was migrated to another cluster, which this client does not follow: "
            "connect a client to that cluster",
            broker=self.address,
            cluster=migrated.brokerServiceUrlTls or migrated.brokerServiceUrl,
        )

    def _on_ack_response(self, response: pb.CommandAckResponse) -> None:
        future = self._waiting_for(_ACK_RESPONSE, response.request_id)
        if future is None:
            return
        if response.HasField("error"):
            topic = self._waiting[response.request_id][1]
            future.set_exception(self._error(response.error, response.message, topic))
        else:
            future.set_result(response)


_HANDLERS: Final[dict[int, Callable[[Connection, Any], None]]] = {
    _PING: Connection._on_ping,
    _PONG: Connection._on_pong,
    _ERROR: Connection._on_error,
    _SEND_ERROR: Connection._on_send_error,
    _CONNECTED: Connection._on_connected,
    _AUTH_CHALLENGE: Connection._on_challenge,
    _CLOSE_PRODUCER: Connection._on_close_producer,
    _CLOSE_CONSUMER: Connection._on_close_consumer,
    _PRODUCER_SUCCESS: Connection._on_producer_success,
    _REACHED_END_OF_TOPIC: Connection._on_end_of_topic,
    _ACTIVE_CONSUMER_CHANGE: Connection._on_active_change,
    _WATCH_TOPIC_UPDATE: Connection._on_topics_changed,
    _TOPIC_MIGRATED: Connection._on_topic_migrated,
    _ACK_RESPONSE: Connection._on_ack_response,
}
