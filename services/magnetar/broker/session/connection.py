"""The socket of one client: bytes into the decoder, what gathered out in one call.

Frames to send are collected and written once per turn of the event loop, so that the receipts of a
commit, or the messages of a dispatch, cost one system call: uvloop does that by itself, without one
more turn of the loop, for asyncio's own loop it is done here. Reading pauses while
what the client published and has not been receipted for exceeds a bound, so that a fast producer
waits in its own TCP window, not in our memory. A reader that is too slow makes `writable` false:
dispatchers hand nothing over until the transport's buffer has drained. One that goes on asking and
does not read the answers is not read from beyond UNREAD_BYTES_MAX.

The broker sweeps its connections (`look`) and closes one that does not finish CONNECT within
CONNECT_TIMEOUT_S, or whose frame under way does not grow for FRAME_STALL_S. Between frames only
keep-alive pings count.
"""

import asyncio
from typing import Final, cast

from magnetar.broker.session.session import Session
from magnetar.core.log import get_logger
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.framing import ProtocolError
from magnetar.wire.progress import Progress

log = get_logger("magnetar.connection")

WRITE_BUFFER_HIGH_BYTES: Final = 4 << 20
WRITE_BUFFER_LOW_BYTES: Final = 1 << 20
UNREAD_BYTES_MAX: Final = 16 << 20
CLOSE_TIMEOUT_S: Final = 5.0
UNKNOWN_PEER: Final = ("unknown", 0)
CONNECT_TIMEOUT_S: Final = 10.0
FRAME_STALL_S: Final = 25.0
"""How long a frame under way may not grow by `wire.progress.PROGRESS_BYTES_MIN`."""
SWEEP_S: Final = 2.0
"""How often connections are held to these deadlines."""


class Connection(asyncio.BufferedProtocol):
    """See the module's text. One session each; the session never sees the socket."""

    __slots__ = (
        "_decoder",
        "_flush_scheduled",
        "_held",
        "_loop",
        "_loop_gathers",
        "_opened_at",
        "_out",
        "_progress",
        "_session",
        "_transport",
        "_unread",
        "closed",
        "heard",
        "writable",
    )

    def __init__(self, session: Session, frame_bytes_max: int) -> None:
        self._session = session
        self._decoder = FrameDecoder(frame_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flush_scheduled = False
        self._loop_gathers = False
        self._held = False  # not read from, for the budget's sake
        self._opened_at = self._loop.time()
        self._progress = Progress(FRAME_STALL_S)
        self._unread = False  # not read from, for what the peer has not read
        self.writable = True
        self.closed = False
        self.heard = True

    # -- asyncio's side --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as asyncio.Transport, but are it in all they do.
        self._transport = cast("asyncio.Transport", transport)
        self._loop_gathers = type(transport).__module__.startswith("uvloop")
        self._transport.set_write_buffer_limits(WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
        # The kernel has no address of a peer that has reset the connection already. An exception
        # here would leave the socket open for ever: uvloop does not close it.
        host, port = (transport.get_extra_info("peername") or UNKNOWN_PEER)[:2]
        self._session.opened(self, f"/{host}:{port}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = True
        if self.closed:
            return
        try:
            events = self._decoder.received(nbytes)
        except ProtocolError as error:
            self._session.handle(error.events)
            self._session.broken(error)
            return
        if events:
            self._progress.restart()  # what is unfinished now belongs to another frame
            self._session.handle(events)
            if not self.writable:
                self._check_unread()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self._session.lost(exc)
        self._transport = None

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._unread:
            self._unread = False
            if not self._held and not self.closed:
                self._transport.resume_reading()  # type: ignore[union-attr]  # set when opened
        self._session.drained()

    def _check_unread(self) -> None:
        transport = self._transport
        if transport is None or self._unread or self.closed:
            return
        if transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._unread = True
            if not self._held:
                transport.pause_reading()

    # -- the session's side ----------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queues a whole frame, or several; it leaves with this turn of the loop."""
        if self._loop_gathers:
            if not self.closed:
                self._transport.write(frame)  # type: ignore[union-attr]  # set when opened
            return
        self._out.append(frame)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def send_parts(self, parts: list[bytes]) -> None:
        """Queues frames given in parts, in order."""
        if self._loop_gathers:
            if not self.closed:
                self._transport.writelines(parts)  # type: ignore[union-attr]
            return
        self._out += parts
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        if not out or self._transport is None or self.closed:
            return
        self._out = []
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def pause_reading(self) -> None:
        self._held = True
        if self._transport is not None and not self._unread and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._held = False
        if self._transport is not None and not self._unread and not self.closed:
            self._transport.resume_reading()

    def look(self, now: float) -> None:
        """Closes a connection that does not finish what it began; `now` is the loop's time."""
        if self.closed:
            return
        if not self._session.connected:
            late = now - self._opened_at > CONNECT_TIMEOUT_S
        elif self._held or self._unread:
            # The rest of the frame may wait in a socket that nobody reads.
            self._progress.restart()
            late = False
        else:
            late = self._progress.stalled(now, self._decoder.unfinished_bytes)
        if late:
            what = "frame" if self._session.connected else "CONNECT"
            log.info("unfinished, disconnected", peer=self._session.link.address, unfinished=what)
            self.close()

    def close(self) -> None:
        """Sends what is queued, then closes; after CLOSE_TIMEOUT_S the rest is dropped."""
        if self.closed or self._transport is None:
            return
        self._flush()
        self.closed = True
        self._transport.close()
        self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
