"""One client's session: dispatches its commands and owns everything attached to its connection.

The session handles the events of one read in order, at once. A command that must wait (opening a
topic, a seek) runs as a task of the session, so that a slow topic delays nothing else on the
connection. A handler's MagnetarError is the client's answer. Any other exception is a bug: the
session logs it and answers UnknownError, or closes its own connection; other sessions continue.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from magnetar.broker.cold.compaction import Compaction
from magnetar.broker.explain.refusals import RecentRefusals, Refusal
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.rates.subscribe_rate import host_of
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.session.attachment import Attaching, Attachment, Key
from magnetar.broker.session.budget import PublishBudget
from magnetar.broker.session.link import DISCONNECTED, SERVER_REQUEST_ID, Link, Wire
from magnetar.broker.session.refusal import checked_parts, transaction_of
from magnetar.broker.session.topic_watcher import TopicListWatcher
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.registry import TopicRegistry
from magnetar.broker.transactions.service import Transactions
from magnetar.core.clock import Clock
from magnetar.core.errors import (
    InvalidTopicName,
    MagnetarError,
    ServerError,
    ServiceNotReady,
    TooManyRequests,
    drop_frames,
)
from magnetar.core.garbage import garbage_policy
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName, parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.observe.peer_log import PeerLog
from magnetar.settings.broker import BrokerSettings
from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.connection_state import ConnectionState
from magnetar.wire.events import (
    AckOne,
    BadSend,
    Command,
    Event,
    Flow,
    Send,
    SendRun,
    UncheckedSends,
)
from magnetar.wire.framing import ProtocolError

if TYPE_CHECKING:
    from magnetar.broker.security.broker_security import BrokerSecurity
    from magnetar.broker.security.principal import Principal
    from magnetar.broker.session.access import Access

log = get_logger("magnetar.session")

COMMANDS_PENDING_MAX: Final = 50_000
"""Commands of one connection that may wait at once (Pulsar: maxConcurrentLookupRequest)."""
COMMANDS_PENDING_BYTES_MAX: Final = 16 << 20
"""Size of those commands: a client may fill each with a frame of names and patterns, or hold them
back by not reading its answers. One more is accepted below it."""

_ATTACHING: Final = (CommandType.PRODUCER, CommandType.SUBSCRIBE)

TOO_MANY_TEXT: Final = "Too many requests of this connection wait"

CLOSED_PRODUCERS_KEPT_MAX: Final = 1_000

Handler = Callable[["Session", Any], Coroutine[Any, Any, None] | None]
"""Handles one command; the session runs a returned coroutine as a task."""


@runtime_checkable
class Guarding(Protocol):
    """A handler that checks rights before it does anything."""

    def check(self, session: "Session", command: Any) -> None:
        """Raises AuthorizationError, or ServiceNotReady if that cannot be decided now."""


class Broker(Protocol):
    """The broker as its sessions see it."""

    settings: BrokerSettings
    server_version: str
    record: BrokerRecord
    """This broker's registration, with the addresses that clients reach it by."""
    only_broker: bool
    """Whether clients may use any address by which they reached this broker."""
    stopping: bool
    liveness_timeout_s: float
    budget: PublishBudget
    tasks: TaskSet
    topics: TopicRegistry
    schemas: SchemaRegistry
    compaction: Compaction
    security: "BrokerSecurity | None"
    """None while authentication is off."""
    transactions: Transactions | None
    """None while transactions are off."""
    peer_log: PeerLog

    @property
    def refusals(self) -> RecentRefusals:
        """The clients that were refused lately."""

    @property
    def clock(self) -> Clock:
        """The clock of the broker."""

    def session_opened(self, session: "Session") -> None:
        """Registers a session; may close its connection at once."""

    def session_lost(self, session: "Session") -> None:
        """Forgets a session whose connection is lost."""

    def new_producer_name(self) -> str:
        """Returns a name that no producer of the cluster has had."""


class Session:
    """One connection's producers, consumers, watchers and pending commands."""

    __slots__ = (
        "__weakref__",
        "_handlers",
        "_listing",
        "_pending_bytes",
        "_reads_again",
        "_waiting",
        "access",
        "closed_producers",
        "consumers",
        "link",
        "pending_attachments",
        "ping_sent",
        "producers",
        "service",
        "state",
        "tasks",
        "watchers",
        "wire",
    )

    def __init__(self, service: Broker, handlers: Mapping[int, Handler]) -> None:
        self.service = service
        self.state = ConnectionState()
        self.producers: dict[int, tuple[Producer, Topic]] = {}
        self.closed_producers: deque[int] | None = None
        """The producers that the client closed last. Most connections never close one, and an empty
        deque would be a tenth of their memory."""
        self.consumers: dict[int, Attachment] = {}
        self.pending_attachments: dict[Key, Attaching] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        self.tasks = TaskSet("session")
        self.ping_sent = False
        self._handlers = handlers
        self._listing: asyncio.Lock | None = None
        self._pending_bytes = 0
        self._waiting = 0
        """Commands that wait without a task."""
        self._reads_again: asyncio.Event | None = None
        """Set when the client reads again; exists only once an answer has waited for that."""
        self.access: Access | None = None
        """The client's proof of identity; None while authentication is off."""
        self.link: Link
        self.wire: Wire

    def opened(self, wire: Wire, address: str) -> None:
        """Starts the session on an open connection."""
        self.wire = wire
        self.link = Link(wire, address, self.service.budget, self.service.liveness_timeout_s)
        self.service.session_opened(self)

    def handle(self, events: list[Event]) -> None:
        """Handles the events of one read; no exception escapes.

        Only the rare branches ask `state`: a connection has producers and consumers only while it
        is connected.
        """
        try:
            for event in events:
                if type(event) is SendRun:
                    self._send(event)
                elif type(event) is AckOne:
                    attachment = self.consumers.get(event.consumer_id)
                    if attachment is not None:
                        attachment.subscription.ack_one(
                            attachment.consumer, event.ledger_id, event.entry_id
                        )
                    else:
                        self.state.received(CommandType.ACK)
                elif type(event) is Flow:
                    attachment = self.consumers.get(event.consumer_id)
                    if attachment is not None:
                        attachment.subscription.flow(attachment.consumer, event.permits)
                    else:
                        self.state.received(CommandType.FLOW)
                elif type(event) is Command:
                    self._command(event)
                elif type(event) is UncheckedSends:
                    self._checked_sends(event.run)
                elif type(event) is Send:
                    self._single_send(event)
                elif type(event) is BadSend:
                    self._bad_send(event)
        except ProtocolError as error:
            self.broken(error)
        except Exception:
            log.exception("session failed", peer=self.link.address)
            self.wire.close()

    def broken(self, error: ProtocolError) -> None:
        """Closes the connection of a client that breaks the protocol, and logs why."""
        address = self.link.address
        self.service.peer_log.info(
            "protocol error", host_of(address), peer=address, error=str(error)
        )
        self.wire.close()

    @contextlib.asynccontextmanager
    async def listing(self, kind: int, command: Any) -> AsyncIterator[None]:
        """Admits large answers one at a time, and only while the client reads its answers.

        The unread answers of a connection therefore stay within its write buffer and one more,
        however many lists the client asks for at once. Since a client can delay the answer as long
        as it likes, the right is checked again before; raises AuthorizationError. The command
        checks it once more when its list is complete (`check_again`).
        """
        if self._listing is None:
            self._listing = asyncio.Lock()
        async with self._listing:
            while not self.wire.writable:
                if self._reads_again is None:
                    self._reads_again = asyncio.Event()
                self._reads_again.clear()
                await self._reads_again.wait()
            self.check_again(kind, command)
            yield

    def check_again(self, kind: int, command: Any) -> None:
        """Raises AuthorizationError if the client lost the right to a command that has waited.

        Raises ServiceNotReady if that cannot be decided now.
        """
        handler = self._handlers[kind]
        if isinstance(handler, Guarding):
            handler.check(self, command)

    def drained(self) -> None:
        """Resumes sending: the client reads again."""
        if self._reads_again is not None:
            self._reads_again.set()
        for attachment in list(self.consumers.values()):
            attachment.subscription.on_writable(attachment.consumer)
        for watcher in list(self.watchers.values()):
            watcher.send()

    def lost(self, error: Exception | None) -> None:
        """Detaches everything that the lost connection had."""
        self.state.closed()
        if self.access is not None:
            self.access.closed()
        self.link.lost()
        self.wire = DISCONNECTED
        self.service.budget.forget(self.link)
        self.service.session_lost(self)
        # A copy: the end of a producer completes its CLOSE_PRODUCER, which removes it here.
        for producer, topic in list(self.producers.values()):
            if not producer.closed:
                topic.remove_producer(producer)
        self.producers.clear()
        for attachment in list(self.consumers.values()):
            attachment.detach()
        self.consumers.clear()
        for watcher in list(self.watchers.values()):
            watcher.close()
        self.watchers.clear()
        self.service.tasks.start(self.tasks.stop(), "end-session")
        garbage_policy.closed(self)

    def _send(self, run: SendRun) -> None:
        attached = self._ready_producer(run.producer_id)
        if attached is None:
            return
        producer, topic = attached
        gate = topic.gate
        if gate is None and (run.txn is not None or run.deliver_at_ms):
            gate = topic.gate_of(run)
        if gate is not None:
            gate.publish(producer, run)
            return
        self.link.publishing(run.size_bytes)
        topic.publish(producer, run)

    def _bad_send(self, event: BadSend) -> None:
        if event.producer_id in self.producers:
            self.link.send_error(event.producer_id, event.sequence_id, event.code, event.reason)
        else:
            self.state.received(CommandType.SEND)

    def _single_send(self, event: Send) -> None:
        command = event.command
        highest = max(command.highest_sequence_id, command.sequence_id)
        self._checked_sends(
            SendRun(
                command.producer_id,
                [command.sequence_id],
                [highest],
                [command.num_messages],
                [event.entry],
                len(event.entry),
                transaction_of(command),
            )
        )

    def _checked_sends(self, run: SendRun) -> None:
        """Publishes messages whose metadata the broker must read, or refuses them one by one."""
        for part, error in checked_parts(run):
            if error is None:
                self._send(part)
            elif (attached := self._ready_producer(run.producer_id)) is not None:
                producer, topic = attached
                topic.refuse(producer, part, error)

    def _ready_producer(self, producer_id: int) -> tuple[Producer, Topic] | None:
        """Returns the producer and its topic, None if the broker drops its messages."""
        attached = self.producers.get(producer_id)
        if attached is None:
            self._unknown_producer(producer_id)
            return None
        producer = attached[0]
        if producer.closed or not producer.ready:
            # The broker closed the producer: its client resends to the producer's next instance.
            producer.missed = True
            return None
        return attached

    def producer_closed(self, producer_id: int) -> None:
        """Remembers a producer that the client closed: its last messages may be in flight."""
        if self.closed_producers is None:
            self.closed_producers = deque(maxlen=CLOSED_PRODUCERS_KEPT_MAX)
        self.closed_producers.append(producer_id)

    def _unknown_producer(self, producer_id: int) -> None:
        self.state.received(CommandType.SEND)
        if self.closed_producers is not None and producer_id in self.closed_producers:
            return  # its last messages were in flight when the client closed it
        raise ProtocolError(f"SEND for the unknown producer {producer_id}")

    def _command(self, command: Command) -> None:
        kind = command.type
        self.state.received(kind)
        handler = self._handlers[kind]
        message: Any = command.message
        request_id = getattr(message, "request_id", SERVER_REQUEST_ID)
        try:
            pending = handler(self, message)
        except MagnetarError as error:
            self._refused(kind, message, error)
            self.link.error(request_id, error)
            drop_frames(error)
            return
        except ProtocolError:
            raise
        except Exception as error:
            # A bug. It fails this command and leaves the rest of the connection alone.
            log.exception("command failed", peer=self.link.address)
            self._internal_error(request_id, error)
            return
        if pending is None:
            return
        if self._too_many_wait:
            pending.close()
            self.link.error(request_id, TooManyRequests(TOO_MANY_TEXT))
            return
        size_bytes = message.ByteSize()
        self._pending_bytes += size_bytes
        answered = self._answered(pending, kind, message, request_id, size_bytes)
        self.tasks.start(answered, command_name(kind))

    @property
    def _too_many_wait(self) -> bool:
        """Whether no more commands may wait."""
        return (
            len(self.tasks) + self._waiting >= COMMANDS_PENDING_MAX
            or self._pending_bytes >= COMMANDS_PENDING_BYTES_MAX
        )

    def begin_wait(self, size_bytes: int) -> None:
        """Counts a command that waits for its answer without a task; raises TooManyRequests."""
        if self._too_many_wait:
            raise TooManyRequests(TOO_MANY_TEXT)
        self._waiting += 1
        self._pending_bytes += size_bytes

    def end_wait(self, size_bytes: int) -> None:
        """Undoes `begin_wait`: the command is answered."""
        self._waiting -= 1
        self._pending_bytes -= size_bytes

    async def _answered(
        self,
        pending: Coroutine[Any, Any, None],
        kind: int,
        command: Any,
        request_id: int,
        size_bytes: int,
    ) -> None:
        try:
            await pending
        except MagnetarError as error:
            self._refused(kind, command, error)
            self.link.error(request_id, error)
            drop_frames(error)
        except TimeoutError as error:
            self.link.error(request_id, ServiceNotReady("The request timed out, please retry"))
            drop_frames(error)
        except Exception as error:
            log.exception("command failed", peer=self.link.address)
            self._internal_error(request_id, error)
        finally:
            self._pending_bytes -= size_bytes

    def _refused(self, kind: int, command: Any, error: MagnetarError) -> None:
        """Remembers a refused producer or consumer, for `explain`."""
        if kind not in _ATTACHING or isinstance(error, ServiceNotReady | InvalidTopicName):
            return
        role, consumer = "", kind == CommandType.SUBSCRIBE
        if self.access is not None:
            role = self.principal.original or self.principal.role
        self.service.refusals.record(
            str(parse_topic(command.topic)),
            Refusal(
                "consumer" if consumer else "producer",
                command.consumer_name if consumer else command.producer_name,
                command.subscription if consumer else "",
                role,
                self.link.address,
                error.code.name,
                error.message,
            ),
        )

    def _internal_error(self, request_id: int, error: Exception) -> None:
        self.link.error_code(request_id, ServerError.UNKNOWN_ERROR, internal_error(error))

    def attaching(self, kind: str, id_: int) -> Attaching:
        """Records a producer or consumer that starts to attach; raises TooManyRequests."""
        if self._too_many_wait:
            raise TooManyRequests(TOO_MANY_TEXT)
        return Attaching(self.pending_attachments, (kind, id_))

    @property
    def principal(self) -> "Principal":
        """The roles that the client has proven. Call it only while authentication is on."""
        assert self.access is not None  # noqa: S101 - CONNECT came first
        return self.access.principal

    def subscription_of(self, consumer_id: int) -> tuple[TopicName, str] | None:
        """Returns the topic and subscription of a consumer, None if the connection has none."""
        attachment = self.consumers.get(consumer_id)
        if attachment is None:
            return None
        return attachment.topic.name, attachment.subscription.name

    def consumer(self, consumer_id: int) -> Consumer | None:
        """Returns the consumer of that id, None if the connection has none."""
        attachment = self.consumers.get(consumer_id)
        return None if attachment is None else attachment.consumer


def internal_error(error: Exception) -> str:
    """Returns what a client learns of a bug: its type. The text may have names of others."""
    return f"Internal error, see the broker's log: {type(error).__name__}"
