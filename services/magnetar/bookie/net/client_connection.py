"""The client's end of one connection to a bookie, from its hello to its end.

Adds are numbered and pipelined: an add costs a head, the group's body by reference, and one tuple
in a queue. The bookie answers adds in order, many with one frame; any other order breaks the
protocol. Until the bookie's welcome has been verified, only the hello is sent.

One timer per connection enforces all deadlines. It counts ticks of TICK_S while anything is
pending; an add or request that is pending for too many ticks is late and fails, adds from the
oldest on. If no byte arrived since the oldest late one was sent, the connection is closed. An idle
connection is pinged, so that its end is noticed and `writable` is fresh.

When the connection ends, everything pending fails with BookieUnavailable, adds in order. A failed
add or request may have taken effect.

A late add has failed for its caller, but its bytes may still be in the transport's buffer:
`late_bytes` counts them until they are sent.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.bookie.api import BookieError, BookieLate, BookieUnavailable, OnAdded
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.frame_socket import FrameSocket
from magnetar.bookie.net.protocol_v1 import (
    Added,
    AnyFrame,
    Entries,
    Frame,
    FrameDecoder,
    FrameError,
)
from magnetar.bookie.net.settings import RemoteSettings
from magnetar.bookie.packed import PackedEntries
from magnetar.core.cork import cork
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.net.client_connection")

TICK_S: Final = 0.25
REQUESTS_PENDING_MAX: Final = 4096
UNSENT_BYTES_MAX: Final = 128 << 20
"""Bytes in the transport's buffer; above it, requests fail. No other bound counts late requests."""

_Answer = Frame | Entries
_Pending = tuple[OnAdded, int, int, "BookieError | None"]


class ConnectionOwner(Protocol):
    """The client of a bookie, as its connection sees it."""

    settings: RemoteSettings
    hello: messages.Hello
    writable: bool
    """Updated with each frame of the bookie."""

    def opened(self) -> None:
        """The bookie welcomed the connection."""

    def lost(self, connection: "ClientConnection") -> None:
        """The connection ended; its `error` gives the reason."""

    def mismatch(self, welcome: messages.Welcome) -> str:
        """Returns why the welcome is not the expected bookie's; empty if it is."""

    def unavailable(self, why: str) -> BookieUnavailable:
        """Returns the error that names the bookie and the reason."""


class ClientConnection(FrameSocket):
    """One connection to a bookie, and all adds and requests that wait for its answers.

    Created by RemoteBookie, which opens the transport.
    """

    __slots__ = (
        "_add_due",
        "_add_next",
        "_add_oldest",
        "_adds",
        "_decoder",
        "_drained",
        "_heard_tick",
        "_owner",
        "_request_next",
        "_requests",
        "_settled",
        "_tick",
        "_ticking",
        "_timer",
        "closing_text",
        "error",
        "late_bytes",
        "opened",
        "pending_bytes",
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        super().__init__()
        self._owner = owner
        self._decoder = FrameDecoder()
        self.error: BookieUnavailable | None = None
        """Why the connection ended; None while it lives."""
        self.opened = False
        """Whether the bookie has welcomed the connection."""
        self.closing_text = ""
        self.pending_bytes = 0
        self.late_bytes = 0
        """Bytes of late adds that may not have been sent yet."""
        self._adds: deque[_Pending] = deque()
        self._add_next = 1
        self._add_due = 1
        """The number of the add that the bookie must answer next."""
        self._add_oldest = 1
        """The number of the first add in the queue; those before it were answered or failed
        late."""
        self._requests: dict[int, tuple[asyncio.Future[_Answer], int]] = {}
        self._request_next = 1
        self._tick = 0
        self._ticking = False
        self._heard_tick = 0
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._drained: asyncio.Future[None] | None = None

    @property
    def pending(self) -> int:
        """How many adds and requests are not answered yet."""
        return len(self._adds) + len(self._requests)

    def add(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        group: PackedEntries,
        last_add_confirmed: int,
        on_added: OnAdded,
        *,
        recovery: bool,
    ) -> None:
        number = self._add_next
        head = protocol.encode_add(
            number, ledger_id, last_add_confirmed, entry_ids, group, recovery=recovery
        )
        self._add_next = number + 1
        self.pending_bytes += group.body_bytes
        self._adds.append((on_added, group.body_bytes, self._tick, None))
        self._out.append(head)
        self._out += group.body
        if not self._flush_scheduled:
            self._schedule_flush()

    def unsent_bytes(self) -> int:
        """Returns the bytes that the transport holds, and updates `late_bytes`."""
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self.late_bytes = min(self.late_bytes, unsent_bytes)
        return unsent_bytes

    def refuse(self, on_added: OnAdded, error: BookieError) -> None:
        """Fails an add without sending it, after the adds before it."""
        if self._adds:
            self._adds.append((on_added, 0, self._tick, error))
        else:
            self._loop.call_soon(on_added, error)

    async def request(self, kind: int, flags: int, payload: bytes) -> _Answer:
        """Sends a request and returns the answer; raises BookieError."""
        if self.error is not None:
            raise self.error
        if len(self._requests) >= REQUESTS_PENDING_MAX:
            raise BookieUnavailable(
                f"{self._owner} has {REQUESTS_PENDING_MAX} requests to answer already"
            )
        if (unsent_bytes := self.unsent_bytes()) > UNSENT_BYTES_MAX:
            raise BookieUnavailable(f"{self._owner} does not read: {unsent_bytes} bytes are unsent")
        id_ = self._request_next
        self._request_next = id_ + 1
        answered: asyncio.Future[_Answer] = self._loop.create_future()
        self._requests[id_] = (answered, self._tick)
        self._out.append(protocol.encode_frame(kind, flags, id_, payload))
        if not self._flush_scheduled:
            self._schedule_flush()
        return await answered

    async def settled(self) -> None:
        """Returns once the bookie has welcomed the connection, or the connection has ended."""
        await self._settled.wait()

    async def drained(self) -> None:
        """Returns once no add is pending: within their deadline, all are answered or fail."""
        if not self._adds:
            return
        if self._drained is None:
            self._drained = self._loop.create_future()
        await asyncio.shield(self._drained)

    def close(self, error: BookieUnavailable) -> None:
        """Ends the connection: everything pending fails with `error`."""
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._out.clear()
        self._settled.set()
        self._owner.lost(self)
        for answered, _ in self._requests.values():
            if not answered.done():
                answered.set_exception(error)
        self._requests.clear()
        adds = self._adds
        while adds:
            on_added, size, _, refusal = adds.popleft()
            self.pending_bytes -= size
            _complete(on_added, refusal or error)
        self._wake()

    def _wake(self) -> None:
        """Wakes the caller of `drained`."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.error is not None or self._transport is None:
            transport.close()
            return
        hello = messages.encode_hello(self._owner.hello)
        self._transport.write(protocol.encode_frame(protocol.HELLO, 0, 0, hello))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's name
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_tick = self._tick
        decoder = self._decoder
        decoder.received(nbytes)
        try:
            with cork:
                while self.error is None and (frame := decoder.take()) is not None:
                    self._take(frame)
        except FrameError as error:
            self.close(self._owner.unavailable(f"it broke the protocol: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        text = self.closing_text or (str(exc) if exc else "")
        self.close(self._owner.unavailable(f"the connection ended{': ' if text else ''}{text}"))

    def _take(self, frame: AnyFrame) -> None:
        if type(frame) is Added:
            if not self.opened:
                raise FrameError("an answer before the welcome")
            self._owner.writable = not frame.flags & protocol.FLAG_READ_ONLY
            self._added(frame.first, frame.count, None)
            return
        if not isinstance(frame, Frame | Entries):
            raise FrameError("a request from a bookie")
        self._owner.writable = not frame.flags & protocol.FLAG_READ_ONLY
        if isinstance(frame, Frame):
            kind = frame.kind
            if kind == protocol.CLOSING:
                failure = messages.decode_failure(frame.payload)
                self.closing_text = failure.message
                return
            if not self.opened:
                if kind != protocol.WELCOME:
                    raise FrameError(f"a frame of kind {kind} instead of a welcome")
                self._welcomed(messages.decode_welcome(frame.payload))
                return
            if kind == protocol.ADD_FAILED:
                failure = messages.decode_failure(frame.payload)
                self._added(frame.id, 1, messages.error_of(failure))
                return
        elif not self.opened:
            raise FrameError("an answer before the welcome")
        waiting = self._requests.pop(frame.id, None)
        if waiting is None:
            if not 0 <= frame.id < self._request_next:
                raise FrameError(f"an answer to request {frame.id}, which was never made")
            return  # the request failed as late
        if not waiting[0].done():
            waiting[0].set_result(frame)

    def _welcomed(self, welcome: messages.Welcome) -> None:
        wrong = self._owner.mismatch(welcome)
        if wrong:
            self.close(self._owner.unavailable(wrong))
            return
        self.opened = True
        self._owner.opened()
        self._settled.set()
        self._flush()

    def _added(self, first: int, count: int, error: BookieError | None) -> None:
        """The bookie answered `count` adds from number `first` on."""
        end = first + count
        if first != self._add_due or not first < end <= self._add_next:
            raise FrameError(
                f"an answer to adds {first} to {end - 1} where {self._add_due} was due and "
                f"{self._add_next - 1} was the last"
            )
        self._add_due = end
        adds = self._adds
        while self._add_oldest < end and adds:
            on_added, size, _, refusal = adds.popleft()
            self.pending_bytes -= size
            if refusal is None:
                self._add_oldest += 1
                refusal = error
            try:
                on_added(refusal)
            except Exception:
                log.exception("the completion of an add raised")
        while adds and adds[0][3] is not None:
            on_added, _, _, refusal = adds.popleft()
            _complete(on_added, refusal)
        if self._drained is not None and not adds:
            self._wake()

    def _schedule_flush(self) -> None:
        super()._schedule_flush()
        if not self._ticking:
            self._watch()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.opened and self.error is None:
            self._write_out()

    def _watch(self) -> None:
        """Starts to count ticks."""
        if self._timer is not None:
            self._timer.cancel()
        self._ticking = True
        self._timer = self._loop.call_later(TICK_S, self._ticked)

    def _ticked(self) -> None:
        if self.error is not None:
            return
        self._tick += 1
        if not self.pending:
            self._ticking = False
            settings = self._owner.settings
            idle_s = settings.ping_idle_s if self._owner.writable else settings.ping_read_only_s
            self._timer = self._loop.call_later(idle_s, self._idle)
            return
        self._timer = self._loop.call_later(TICK_S, self._ticked)
        if self.opened:
            self._check_deadlines()

    def _idle(self) -> None:
        """Pings a bookie that was sent nothing for long."""
        self._watch()
        id_ = self._request_next
        self._request_next = id_ + 1
        answered: asyncio.Future[_Answer] = self._loop.create_future()
        answered.add_done_callback(_ignore)
        self._requests[id_] = (answered, self._tick)
        self._out.append(protocol.encode_frame(protocol.PING, 0, id_))
        self._flush()

    def _check_deadlines(self) -> None:
        """Fails late adds and requests; closes the connection if the bookie is silent."""
        settings = self._owner.settings
        oldest = self._tick - int(settings.timeout_s / TICK_S) - 1
        late_adds = self._adds and self._adds[0][2] <= oldest
        late = [id_ for id_, (_, tick) in self._requests.items() if tick <= oldest]
        if not late_adds and not late:
            return
        text = f"no answer within {settings.timeout_s:g} s"
        if self._heard_tick <= oldest:
            self.close(BookieLate(f"{self._owner}: {text}, nor anything else"))
            return
        error = BookieLate(f"{self._owner}: {text}")
        for id_ in late:
            answered, _ = self._requests.pop(id_)
            if not answered.done():
                answered.set_exception(error)
        adds = self._adds
        while adds and adds[0][2] <= oldest:
            on_added, size, _, refusal = adds.popleft()
            self.pending_bytes -= size
            self.late_bytes += size
            if refusal is None:
                self._add_oldest += 1
            _complete(on_added, refusal or error)
        self.unsent_bytes()
        if not adds:
            self._wake()


def _complete(on_added: OnAdded, error: BookieError | None) -> None:
    try:
        on_added(error)
    except Exception:
        log.exception("the completion of an add raised")


def _ignore(answered: "asyncio.Future[_Answer]") -> None:
    """Retrieves a ping's exception: it is the connection's, which is reported elsewhere."""
    if not answered.cancelled():
        answered.exception()
