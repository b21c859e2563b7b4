"""One client's session: which command goes where, and what ends with the connection.

Events of one read are handled in order, on the spot; what must wait (opening a topic, a seek) runs
as a task owned by the session, so that a slow topic holds up nobody else on the connection. A
handler that raises a MagnetarError answers it; anything else that escapes is a bug of ours: it is
logged, and the connection closed, and no other session notices.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.session.attaching import Attaching, Key
from magnetar.broker.session.link import DISCONNECTED, SERVER_REQUEST_ID, Link, Wire
from magnetar.broker.session.refused import send_refusal
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.topic.producer import Producer
from magnetar.core.collecting import collecting
from magnetar.core.errors import (
    MagnetarError,
    ServerError,
    ServiceNotReady,
    TooManyRequests,
    drop_frames,
)
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.wire.commands import CommandType
from magnetar.wire.connection_state import BROKER_ACCEPTS, State
from magnetar.wire.events import AckOne, BadSend, Command, Event, Flow, Send, SendRun
from magnetar.wire.framing import ProtocolError

if TYPE_CHECKING:
    from magnetar.broker.service import BrokerService
    from magnetar.broker.session.consuming import Attachment

log = get_logger("magnetar.session")

COMMANDS_PENDING_MAX: Final = 50_000
"""Commands of one connection that may wait at once (Pulsar: maxConcurrentLookupRequest)."""

TOO_MANY_TEXT: Final = "Too many requests of this connection wait"

CLOSED_PRODUCERS_KEPT_MAX: Final = 1_000

BEFORE_CONNECT: Final = BROKER_ACCEPTS[State.CONNECTING]


class Session:
    """What one connection's client has here: producers, consumers, watchers, pending commands."""

    __slots__ = (
        "__weakref__",
        "_handlers",
        "_listing",
        "_reads_again",
        "closed_producers",
        "connected",
        "consumers",
        "link",
        "pending_attachments",
        "ping_sent",
        "producers",
        "service",
        "tasks",
        "watchers",
        "wire",
    )

    def __init__(self, service: "BrokerService") -> None:
        from magnetar.broker.session.handlers import HANDLERS

        self.service = service
        self.connected = False
        self.producers: dict[int, tuple[Producer, Any]] = {}
        self.closed_producers: deque[int] = deque(maxlen=CLOSED_PRODUCERS_KEPT_MAX)
        self.consumers: dict[int, Attachment] = {}
        self.pending_attachments: dict[Key, Attaching] = {}
        self.watchers: dict[int, Any] = {}
        self.tasks = TaskSet("session")
        self.ping_sent = False
        self._handlers = HANDLERS
        self._listing: asyncio.Lock | None = None
        self._reads_again = asyncio.Event()
        self.link: Link
        self.wire: Wire

    # -- the connection's side -------------------------------------------------------------

    def opened(self, wire: Wire, address: str) -> None:
        self.wire = wire
        self.link = Link(wire, address, self.service.budget, self.service.liveness_timeout_s)
        self.service.session_opened(self)

    def handle(self, events: list[Event]) -> None:
        """Handles what was received; no exception escapes."""
        try:
            for event in events:
                kind = type(event)
                if kind is SendRun:
                    self._send(event)  # type: ignore[arg-type]
                elif kind is AckOne:
                    attachment = self.consumers.get(event.consumer_id)  # type: ignore[union-attr]
                    if attachment is not None:
                        attachment.subscription.ack_one(
                            attachment.consumer,
                            event.ledger_id,  # type: ignore[union-attr]
                            event.entry_id,  # type: ignore[union-attr]
                        )
                    elif not self.connected:
                        raise ProtocolError("ACK before CONNECT")
                elif kind is Flow:
                    attachment = self.consumers.get(event.consumer_id)  # type: ignore[union-attr]
                    if attachment is not None:
                        attachment.subscription.flow(attachment.consumer, event.permits)  # type: ignore[union-attr]
                    elif not self.connected:
                        raise ProtocolError("FLOW before CONNECT")
                elif kind is Command:
                    self._command(event)  # type: ignore[arg-type]
                else:
                    self._odd_send(event)  # type: ignore[arg-type]
        except ProtocolError as error:
            self.broken(error)
        except Exception:
            log.exception("session failed", peer=self.link.address)
            self.wire.close()

    def broken(self, error: ProtocolError) -> None:
        """The stream is unreadable: say why, where the peer can still read, and close."""
        log.info("protocol error", peer=self.link.address, error=str(error))
        self.wire.close()

    @contextlib.asynccontextmanager
    async def listing(self) -> AsyncIterator[None]:
        """For an answer that may be large: one at a time, and while the peer reads its answers.

        So the unread answers of a connection stay within its write buffer and one more, however
        many lists it asks for at once.
        """
        if self._listing is None:
            self._listing = asyncio.Lock()
        async with self._listing:
            while not self.wire.writable:
                self._reads_again.clear()
                await self._reads_again.wait()
            yield

    def drained(self) -> None:
        """The peer reads again."""
        self._reads_again.set()
        for attachment in list(self.consumers.values()):
            attachment.subscription.on_writable(attachment.consumer)
        for watcher in list(self.watchers.values()):
            watcher.send()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone: detach everything that it had."""
        self.link.lost()
        self.wire = DISCONNECTED
        self.service.budget.forget(self.link)
        self.service.session_lost(self)
        for producer, topic in self.producers.values():
            if not producer.closed:
                topic.remove_producer(producer)
        self.producers.clear()
        for attachment in list(self.consumers.values()):
            attachment.detach()
        self.consumers.clear()
        for watcher in self.watchers.values():
            watcher.close()
        self.watchers.clear()
        self.service.tasks.start(self.tasks.stop(), "end-session")
        collecting.closed(self)

    # -- the hot path ----------------------------------------------------------------------

    def _send(self, run: SendRun) -> None:
        found = self._ready_producer(run.producer_id)
        if found is None:
            return
        producer, topic = found
        gate = topic.gate
        if gate is not None:
            gate.publish(producer, run)
            return
        self.link.publishing(run.size_bytes)
        topic.publish(producer, run)

    def _odd_send(self, event: Send | BadSend) -> None:
        if isinstance(event, BadSend):
            if event.producer_id in self.producers:
                self.link.send_error(event.producer_id, event.sequence_id, event.code, event.reason)
            return
        command = event.command
        highest = max(command.highest_sequence_id, command.sequence_id)
        run = SendRun(
            command.producer_id,
            [command.sequence_id],
            [highest],
            [command.num_messages],
            [event.entry],
            len(event.entry),
        )
        error = send_refusal(event, self.service.clock.now_ms())
        if error is None:
            self._send(run)
        elif (found := self._ready_producer(run.producer_id)) is not None:
            producer, topic = found
            topic.refuse(producer, run, error)

    def _ready_producer(self, producer_id: int) -> tuple[Producer, Any] | None:
        """The producer and its topic; None where what it sends is dropped."""
        found = self.producers.get(producer_id)
        if found is None:
            self._unknown_producer(producer_id)
            return None
        producer = found[0]
        if producer.closed or not producer.ready:
            producer.missed = True
            return None  # sent away meanwhile: the client resends to the producer's next life
        return found

    def _unknown_producer(self, producer_id: int) -> None:
        if producer_id in self.closed_producers:
            return  # its last messages were under way when it was closed
        raise ProtocolError(f"SEND for the unknown producer {producer_id}")

    # -- commands --------------------------------------------------------------------------

    def _command(self, command: Command) -> None:
        kind = command.type
        if not self.connected and kind not in BEFORE_CONNECT:
            raise ProtocolError(f"{CommandType.Name(kind)} before CONNECT")  # type: ignore[arg-type]
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolError(f"{CommandType.Name(kind)} is not for a broker")  # type: ignore[arg-type]
        message: Any = command.message
        request_id = getattr(message, "request_id", SERVER_REQUEST_ID)
        try:
            waiting = handler(self, message)
        except MagnetarError as error:
            self.link.error(request_id, error)
            drop_frames(error)
            return
        except ProtocolError:
            raise
        except Exception as error:
            # A bug of ours: it costs this command, not all else on the connection.
            log.exception("command failed", peer=self.link.address)
            self._internal_error(request_id, error)
            return
        if waiting is None:
            return
        if len(self.tasks) >= COMMANDS_PENDING_MAX:
            waiting.close()
            self.link.error(request_id, TooManyRequests(TOO_MANY_TEXT))
            return
        self.tasks.start(self._answered(waiting, request_id), CommandType.Name(kind))  # type: ignore[arg-type]

    async def _answered(self, waiting: Coroutine[Any, Any, None], request_id: int) -> None:
        try:
            await waiting
        except MagnetarError as error:
            self.link.error(request_id, error)
            drop_frames(error)
        except TimeoutError as error:
            self.link.error(request_id, ServiceNotReady("The request timed out, please retry"))
            drop_frames(error)
        except Exception as error:
            log.exception("command failed", peer=self.link.address)
            self._internal_error(request_id, error)

    def _internal_error(self, request_id: int, error: Exception) -> None:
        self.link.error_code(request_id, ServerError.UNKNOWN_ERROR, f"Internal error: {error!r}")

    def attaching(self, what: str, its_id: int) -> Attaching:
        """Marks a producer or consumer as on its way; raises TooManyRequests."""
        if len(self.tasks) >= COMMANDS_PENDING_MAX:
            raise TooManyRequests(TOO_MANY_TEXT)
        return Attaching(self.pending_attachments, (what, its_id))

    def consumer(self, consumer_id: int) -> Consumer | None:
        attachment = self.consumers.get(consumer_id)
        return None if attachment is None else attachment.consumer
