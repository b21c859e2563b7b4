"""The socket of one client: passes received bytes to the decoder, and writes frames in batches.

Frames are written at once. While the cork is held (`core.cork`), small ones are collected, so that
the receipts of a commit, or the answers to one read, cost one system call.

Reading pauses while the client's published bytes without a receipt exceed a bound, so that the data
of a fast producer waits in its TCP window, not in our memory. If the client reads too slowly,
`writable` is false, and dispatchers hand over nothing until the transport's buffer has drained. If
it sends requests without reading the answers, reading pauses beyond UNREAD_BYTES_MAX.

Until a client has completed CONNECT, its receive buffer is small, and with authentication its
frames are bounded by UNPROVEN_FRAME_BYTES_MAX, so that strangers cost little memory.

The broker checks its connections periodically (`check_deadlines`). It closes a connection that has
not completed CONNECT within CONNECT_TIMEOUT_S, or whose unfinished frame has not grown for
FRAME_STALL_S. Between frames, only keep-alive pings count.
"""

import asyncio
from typing import Final, cast

from magnetar.broker.rates.subscribe_rate import host_of
from magnetar.broker.session.session import Session
from magnetar.core.cork import cork
from magnetar.security.api import Peer
from magnetar.security.tls.certificates import verified_certificate
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.framing import ProtocolError
from magnetar.wire.progress import Progress

WRITE_BUFFER_HIGH_BYTES: Final = 4 << 20
WRITE_BUFFER_LOW_BYTES: Final = 1 << 20
UNREAD_BYTES_MAX: Final = 16 << 20
GATHERED_FRAME_BYTES_MAX: Final = 16 << 10
"""Larger frames are written at once, so that `writable` counts them."""
CLOSE_TIMEOUT_S: Final = 5.0
UNKNOWN_PEER: Final = ("unknown", 0)
UNPROVEN_BUFFER_BYTES: Final = 4 * 1024
UNPROVEN_FRAME_BYTES_MAX: Final = 64 * 1024
"""A CONNECT has two tokens at most, of which the largest known have some 20 KB."""
CONNECT_TIMEOUT_S: Final = 10.0
FRAME_STALL_S: Final = 25.0
"""An unfinished frame must grow by `wire.progress.PROGRESS_BYTES_MIN` in this time."""
SWEEP_S: Final = 2.0
"""How often these deadlines are checked."""


class Connection(asyncio.BufferedProtocol):
    """A client's socket; its session never sees the socket itself."""

    __slots__ = (
        "_decoder",
        "_frame_bytes_max",
        "_held",
        "_loop",
        "_opened_at",
        "_out",
        "_progress",
        "_session",
        "_transport",
        "_unread",
        "closed",
        "heard",
        "peer",
        "writable",
    )

    def __init__(self, session: Session, frame_bytes_max: int) -> None:
        self._session = session
        self._frame_bytes_max = frame_bytes_max
        first_bytes_max = frame_bytes_max
        if session.service.security is not None:
            first_bytes_max = min(frame_bytes_max, UNPROVEN_FRAME_BYTES_MAX)
        self._decoder = FrameDecoder(first_bytes_max, UNPROVEN_BUFFER_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._held = False  # reading is paused by the budget
        self._opened_at = self._loop.time()
        self._progress = Progress(FRAME_STALL_S)
        self._unread = False  # reading is paused because the peer does not read
        self.writable = True
        self.closed = False
        self.heard = True
        self.peer = Peer(UNKNOWN_PEER[0])
        """The address of the client, and its certificate if TLS verified one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Opens the session on the connection."""
        # uvloop's transports behave as an asyncio.Transport, but are not registered as one.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
        # The kernel has no address of a peer that has already reset the connection. An exception
        # here would leave the socket open forever, because uvloop does not close it.
        host, port = (transport.get_extra_info("peername") or UNKNOWN_PEER)[:2]
        self.peer = Peer(host, verified_certificate(transport))
        self._session.opened(self, f"/{host}:{port}")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the decoder's buffer, into which the transport receives."""
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Decodes the received bytes and has the session handle the events."""
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
            self._progress.restart()  # the unfinished bytes now belong to another frame
            with cork:
                self._session.handle(events)
            if not self.writable:
                self._check_unread()

    def eof_received(self) -> bool:
        """Closes the connection: clients do not half-close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the session."""
        self.closed = True
        self._out.clear()
        self._session.lost(exc)
        self._transport = None

    def pause_writing(self) -> None:
        """Notes that the transport's buffer is above its high mark."""
        self.writable = False

    def resume_writing(self) -> None:
        """Resumes reading and dispatching: the transport's buffer has drained."""
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

    def send(self, frame: bytes) -> None:
        """Writes one or more whole frames: at once, or when the cork is released."""
        if self.closed:
            return
        out = self._out
        if cork.held and len(frame) <= GATHERED_FRAME_BYTES_MAX:
            if not out:
                cork.on_release(self._flush)
            out.append(frame)
        elif out:
            out.append(frame)
            self._flush()
        else:
            self._transport.write(frame)  # type: ignore[union-attr]  # set when opened

    def send_parts(self, parts: list[bytes]) -> None:
        """Writes frames that are split into parts, in order, after all queued ones."""
        # At once: dispatchers read `writable` before they send more.
        self._out += parts
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        self._out = []
        if self._transport is None or self.closed:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def admit(self) -> None:
        """Accepts frames of full size: the client has completed CONNECT."""
        self._decoder.resize(self._frame_bytes_max)
        self._flush()  # the client waits for CONNECTED and sends nothing before

    def pause_reading(self) -> None:
        """Stops reading until `resume_reading`."""
        self._held = True
        if self._transport is not None and not self._unread and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again, unless the peer does not read its answers."""
        self._held = False
        if self._transport is not None and not self._unread and not self.closed:
            self._transport.resume_reading()

    def check_deadlines(self, now: float) -> None:
        """Closes a connection past a deadline of CONNECT or a frame; `now` is the loop's time."""
        if self.closed:
            return
        connected = self._session.state.connected
        if not connected:
            late = now - self._opened_at > CONNECT_TIMEOUT_S
        elif self._held or self._unread:
            # The rest of the frame may wait in the socket while reading is paused.
            self._progress.restart()
            late = False
        else:
            late = self._progress.stalled(now, self._decoder.unfinished_bytes)
        if late:
            unfinished = "frame" if connected else "CONNECT"
            address = self._session.link.address
            self._session.service.peer_log.info(
                "unfinished, disconnected", host_of(address), peer=address, unfinished=unfinished
            )
            self.close()

    def close(self) -> None:
        """Sends queued frames, then closes; after CLOSE_TIMEOUT_S, unsent ones are dropped."""
        if self.closed or self._transport is None:
            return
        self._flush()
        self.closed = True
        self._transport.close()
        self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
