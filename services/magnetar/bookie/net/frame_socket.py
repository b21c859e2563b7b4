"""The socket half that both ends of a bookie connection share: gathers frames, writes them at once.

Frames queued during one turn of the event loop leave in one system call at its end, so that the
adds of a batch, or the receipts of a commit, cost one write.
"""

import asyncio
from typing import Final, cast

WRITE_BUFFER_HIGH_BYTES: Final = 4 << 20
WRITE_BUFFER_LOW_BYTES: Final = 1 << 20


class FrameSocket(asyncio.BufferedProtocol):
    """Base of a connection: queue frames in `_out`, then call `_schedule_flush`."""

    __slots__ = ("_flush_scheduled", "_loop", "_out", "_transport")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flush_scheduled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports implement asyncio.Transport, but are not registered as such.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)

    def eof_received(self) -> bool:
        return False

    def _schedule_flush(self) -> None:
        """Calls `_flush` at the end of this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._write_out()

    def _write_out(self) -> None:
        """Hands the queued frames to the transport."""
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        self._out = []
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
