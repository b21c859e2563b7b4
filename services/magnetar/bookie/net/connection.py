"""The bookie's end of one client's connection: frames in, calls of the bookie, answers out.

The client numbers its adds from 1 on, without holes, and the bookie answers in that order: the adds
that become durable in one turn of the loop are answered with one ADDED frame. An add allocates only
its completion. Other requests run as tasks (`requests`).

A fencing request begins before the frames behind it are decoded, so that an add behind it meets the
fence. While a client does not read its answers, nothing is read from it. A malformed frame closes
the connection, and so does a frame that does not grow (`Progress`); a CLOSING frame gives the
reason.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, BookieError, NotPermitted
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.access import Access, Right, only_reads
from magnetar.bookie.net.frame_socket import FrameSocket
from magnetar.bookie.net.protocol_v1 import Add, Frame, FrameDecoder, FrameError
from magnetar.bookie.net.requests import Requests
from magnetar.bookie.net.settings import ServerSettings
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.security.tls.certificates import verified_certificate
from magnetar.wire.progress import Progress

log = get_logger("magnetar.bookie.net.connection")

CLOSE_TIMEOUT_S: Final = 5.0
ONLY_READS: Final = "the client's role may only read"


class ConnectionHost(Protocol):
    """The server, as its connections see it."""

    bookie: Bookie
    cluster: str
    access: Access
    settings: ServerSettings
    state: Callable[[], messages.State]
    add_refusal: BookieError | None
    tasks: TaskSet
    held: bool
    """Whether the bookie has more adds than it should take."""

    @property
    def writable(self) -> bool: ...

    def opened(self, connection: "BookieConnection") -> bool:
        """Returns whether the connection may stay."""

    def lost(self, connection: "BookieConnection") -> None:
        """The connection ended."""

    def added(self) -> None:
        """Adds were handed to the bookie."""

    def receiving(self, change_bytes: int) -> None:
        """The memory that a connection holds for a frame under way changed."""


class BookieConnection(FrameSocket):
    """The bookie's end of one client's connection."""

    __slots__ = (
        "_add_due",
        "_add_next",
        "_adding_count",
        "_decoder",
        "_draining",
        "_early",
        "_heard_at",
        "_held",
        "_held_bytes",
        "_hello_done",
        "_opened_at",
        "_paused",
        "_progress",
        "_requests",
        "_right",
        "_server",
        "_unread_since",
        "certificate",
        "closed",
        "peer",
    )

    def __init__(self, server: ConnectionHost) -> None:
        super().__init__()
        self._server = server
        self._decoder = FrameDecoder()
        self.peer = ""
        self.certificate: bytes | None = None
        """The client's certificate (DER), if TLS verified one."""
        self._right = Right.ALL
        self._hello_done = False
        self._opened_at = self._heard_at = self._loop.time()
        self._progress = Progress(server.settings.frame_stall_s)
        self._held_bytes = 0
        """Memory held for a frame under way, as last reported to the server."""
        self._unread_since: float | None = None
        """When the client fell behind with reading its answers; None while it reads them."""
        self.closed = False
        """Whether the connection has stopped reading and answering."""
        self._draining = False
        self._held = False
        """No frame is decoded: the bookie is full, or a fence must begin first."""
        self._add_next = 1
        self._add_due = 1
        """The number of the add that is answered next; it and those up to `_add_next` are
        pending."""
        self._adding_count = 0
        """How many adds before `_add_due` are durable and not in an ADDED frame yet."""
        self._early: dict[int, BookieError | None] = {}
        self._requests = Requests(self, server.bookie, server.tasks)
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = str(transport.get_extra_info("peername"))
        self.certificate = verified_certificate(transport)
        self._right = self._server.access.of(self.certificate)
        if not self._server.opened(self):
            self._end(messages.CODE_UNAVAILABLE, "the bookie takes no more connections")
        elif self._server.held:
            # Its socket is read from the next turn on, and cannot be paused before.
            self._loop.call_soon(self._hold_if_full)

    def _hold_if_full(self) -> None:
        """Holds a new connection, unless the bookie has got room since: nothing would resume it."""
        if self._server.held:
            self.hold()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's name
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at = self._loop.time()
        self._decoder.received(nbytes)
        if not self._held:
            self._take()
        held_bytes = self._decoder.held_bytes
        if held_bytes != self._held_bytes:
            self._count_held(held_bytes)

    def _count_held(self, held_bytes: int) -> None:
        change = held_bytes - self._held_bytes
        self._held_bytes = held_bytes
        self._server.receiving(change)

    @property
    def held_bytes(self) -> int:
        """Memory held for a frame under way."""
        return self._held_bytes

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._requests.clear()
        self._out.clear()
        self._count_held(0)
        self._server.lost(self)

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        self._update_reading()

    def resume_writing(self) -> None:
        self._unread_since = None
        self._update_reading()
        self._requests.begin()

    def _take(self) -> None:
        """Handles the complete frames, until a fence or the bookie makes the rest wait."""
        decoder = self._decoder
        added = taken = False
        try:
            while not (self.closed or self._draining):
                frame = decoder.take()
                if frame is None:
                    break
                taken = True
                if type(frame) is Add and self._hello_done:
                    self._add(frame)
                    added = True
                elif type(frame) is Frame:
                    self._request(frame)
                    if self._requests.fences_due:
                        self.hold()
                        break
                else:
                    raise FrameError("an answer, or a request before the hello")
        except FrameError as error:
            log.warning("a client sent a malformed frame", peer=self.peer, error=str(error))
            self._end(messages.CODE_BOOKIE_ERROR, f"the connection is closed: {error}")
        except Exception as error:
            # The frame will never be answered: close, so that the client does not wait for it.
            log.exception("handling a frame failed", peer=self.peer)
            self._end(messages.CODE_BOOKIE_ERROR, f"the bookie failed: {error!r}")
        if taken:
            self._progress.restart()  # the unfinished bytes belong to another frame now
        if added:
            self._server.added()

    def resume_soon(self) -> None:
        """`resume` in the next turn of the loop."""
        self._loop.call_soon(self.resume)

    def hold(self) -> None:
        """Handles no frames until `resume`."""
        self._held = True
        self._update_reading()

    def resume(self) -> None:
        """Handles frames again, unless the bookie is full or a fence has not begun."""
        if not self._held or self._server.held or self.closed or self._requests.fences_due:
            return
        self._held = False
        self._take()
        if not self.closed:
            self._count_held(self._decoder.held_bytes)
        self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        rest = self._held or self._draining or self.unread
        if rest != self._paused:
            self._paused = rest
            if rest:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def _add(self, add: Add) -> None:
        number = self._add_next
        if add.id != number:
            raise FrameError(f"add number {add.id} where {number} is due")
        self._add_next = number + 1
        refusal = self._server.add_refusal
        if self._right is not Right.ALL:
            refusal = NotPermitted(ONLY_READS)
        if refusal is not None:
            self._added(number, refusal)
            return
        try:
            self._server.bookie.add_entries(
                add.ledger_id,
                add.entry_ids,
                add.entries,
                last_add_confirmed=add.last_add_confirmed,
                on_added=partial(self._added, number),
                recovery=bool(add.flags & protocol.FLAG_RECOVERY),
            )
        except ValueError as error:
            self._added(number, BookieError(f"an add that no bookie takes: {error}"))

    def _added(self, number: int, error: BookieError | None) -> None:
        """An add completed: it is answered once all adds before it are."""
        if number != self._add_due:
            self._early[number] = error
            return
        self._answer_add(error)
        while self._early and self._add_due in self._early:
            self._answer_add(self._early.pop(self._add_due))

    def _answer_add(self, error: BookieError | None) -> None:
        if error is None:
            self._adding_count += 1
            self._add_due += 1
        else:
            self._answer_added()
            failure = messages.encode_failure(messages.failure_of(error))
            number = self._add_due
            self._add_due += 1
            self._out.append(
                protocol.encode_frame(protocol.ADD_FAILED, self.flags, number, failure)
            )
        if not self._flush_scheduled:
            self._schedule_flush()

    def _answer_added(self) -> None:
        count = self._adding_count
        if count:
            self._adding_count = 0
            self._out.append(protocol.encode_added(self.flags, self._add_due - count, count))

    @property
    def flags(self) -> int:
        """The flags of every answer: whether the bookie is read-only."""
        return 0 if self._server.writable else protocol.FLAG_READ_ONLY

    @property
    def unread(self) -> bool:
        """Whether the client is behind with reading its answers."""
        return self._unread_since is not None

    def _request(self, frame: Frame) -> None:
        kind = frame.kind
        if not self._hello_done:
            if kind != protocol.HELLO:
                raise FrameError(f"a frame of kind {kind} before the hello")
            self._hello(messages.decode_hello(frame.payload))
        elif kind == protocol.PING:
            self.answer(protocol.PONG, frame.id)
        elif kind == protocol.INFO:
            self.answer(protocol.STATE, frame.id, messages.encode_state(self._server.state()))
        elif kind == protocol.HELLO or kind & protocol.ANSWER:
            raise FrameError(f"a frame of kind {kind}, which is no request here")
        elif self._right is not Right.ALL and not only_reads(frame):
            self.fail(frame.id, NotPermitted(ONLY_READS))
        else:
            self._requests.add(frame)

    def _hello(self, hello: messages.Hello) -> None:
        server = self._server
        identity = server.bookie.identity
        version = messages.version_for(hello)
        if self._right is Right.NONE:
            log.warning("a client whose certificate has no right here", peer=self.peer)
            self._end(messages.CODE_BOOKIE_ERROR, "this bookie does not serve the client's role")
        elif hello.bookie != identity:
            self._end(
                messages.CODE_OTHER_BOOKIE,
                f"another incarnation answers here: {identity.bookie_id} {identity.incarnation}, "
                f"not {hello.bookie.bookie_id} {hello.bookie.incarnation}",
            )
        elif hello.cluster and server.cluster and hello.cluster != server.cluster:
            self._end(
                messages.CODE_OTHER_BOOKIE,
                f"here is cluster {server.cluster}, not {hello.cluster}",
            )
        elif version is None:
            self._end(
                messages.CODE_VERSION,
                f"versions {hello.version_min} to {hello.version_max} are not spoken here, but "
                f"{protocol.VERSION_MIN} to {protocol.VERSION_MAX}",
            )
        else:
            self._hello_done = True
            welcome = messages.Welcome(
                identity,
                protocol.BODY_BYTES_MAX,
                server.cluster,
                version,
                hello.features & messages.FEATURES,
            )
            self.answer(protocol.WELCOME, 0, messages.encode_welcome(welcome))

    def answer(self, kind: int, id_: int, payload: bytes = b"") -> None:
        self._answer_added()
        self._out.append(protocol.encode_frame(kind, self.flags, id_, payload))
        self._schedule_flush()

    def answer_parts(self, parts: Sequence[bytes]) -> None:
        """Answers with a whole frame in parts."""
        self._answer_added()
        self._out += parts
        self._schedule_flush()

    def fail(self, id_: int, error: BookieError) -> None:
        self.answer(protocol.FAILED, id_, messages.encode_failure(messages.failure_of(error)))

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._write_out()
        if self._draining:
            self.close_if_drained()

    def _write_out(self) -> None:
        self._answer_added()
        if not self.closed:
            super()._write_out()

    def check_deadlines(self, now: float) -> None:
        """Closes the connection if its client was silent, or did not read, for too long."""
        settings = self._server.settings
        silent_s = now - self._heard_at
        if self._unread_since is not None:
            if now - self._unread_since > settings.unread_timeout_s:
                log.warning("a client does not read its answers", peer=self.peer)
                self.abort()
        elif self._held:
            # The bookie did not read, so the client is not to blame.
            self._heard_at = now
            self._progress.restart()
        elif not self._hello_done and now - self._opened_at > settings.hello_timeout_s:
            self._end(messages.CODE_BOOKIE_ERROR, "no hello in time")
        elif self._progress.stalled(now, self._decoder.unfinished_bytes):
            log.warning("a client does not finish its frame", peer=self.peer)
            self._end(messages.CODE_BOOKIE_ERROR, "a frame did not grow for too long")
        elif silent_s > settings.idle_timeout_s:
            self._end(messages.CODE_BOOKIE_ERROR, "nothing was heard for too long")

    def drain(self, reason: str) -> None:
        """Stops reading, answers the requests that were read, then closes."""
        if self.closed or self._draining:
            return
        self._draining = True
        self._update_reading()
        failure = messages.Failure(messages.CODE_UNAVAILABLE, reason)
        self.answer(protocol.CLOSING, 0, messages.encode_failure(failure))
        self.close_if_drained()

    def close_if_drained(self) -> None:
        if not self._draining or self.closed:
            return
        if self._add_due == self._add_next and not self._requests.pending:
            self._close()

    def refuse(self, reason: str) -> None:
        """Ends the connection because memory is short; the client may connect again."""
        self._end(messages.CODE_UNAVAILABLE, reason)
        self._decoder = FrameDecoder()
        self._count_held(0)

    def _end(self, code: int, message: str) -> None:
        """Sends the reason, and closes without waiting for pending requests."""
        if self.closed:
            return
        failure = messages.encode_failure(messages.Failure(code, message))
        self.answer(protocol.CLOSING, 0, failure)
        self._close()

    def _close(self) -> None:
        """Sends the queued frames, then closes; after CLOSE_TIMEOUT_S it drops the rest."""
        transport = self._transport
        if transport is None:
            return
        self._write_out()
        self.closed = True
        self._requests.clear()
        transport.close()
        self._loop.call_later(CLOSE_TIMEOUT_S, transport.abort)

    def abort(self) -> None:
        """Closes at once."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
