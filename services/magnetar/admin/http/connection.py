"""An HTTP connection of the admin server: uvicorn's, held to deadlines.

uvicorn bounds only the pause between two requests. Here the head of a request has HEAD_TIMEOUT_S,
counted from the opening of the connection or the first byte of the head. A request's body in
transit, and an answer that the client reads, must make progress in every BODY_STALL_S. A slow
upload that progresses is not cut off, and neither is a handler that takes long.

Beyond CONNECTIONS_MAX, a new connection ends the one that has waited for its client the longest:
between two requests, for the rest of a request, or for the client to read an answer. Clients that
keep connections open therefore cannot keep others, or the probes of Kubernetes, from being served.
"""

import asyncio
from typing import Any, Final, cast

import h11

from magnetar.admin.http.lean_uvicorn import H11Protocol
from magnetar.core.log import get_logger
from magnetar.observe.peer_log import PeerLog
from magnetar.security.tls.certificates import verified_certificate
from magnetar.wire.progress import Progress

_PEER_LOG: Final = PeerLog(get_logger("magnetar.admin"))

HEAD_TIMEOUT_S: Final = 10.0
PEER_CERTIFICATE: Final = "peer_certificate"
"""The key in a request's state of the client certificate (DER) that TLS verified, or None."""
CONNECTIONS_MAX: Final = 1_024
BODY_STALL_S: Final = 25.0
"""How long a body may not grow by `wire.progress.PROGRESS_BYTES_MIN`, or an answer not shrink."""


class HttpConnection(H11Protocol):
    """An HTTP connection with deadlines; the server calls `check_deadlines` once a second."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_since: float | None = None
        self._received_bytes = 0
        self._progress = Progress(BODY_STALL_S)
        self._unread_bytes = 0
        self._unread_since = 0.0
        self._heard_at = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._make_room()
        super().connection_made(cast("asyncio.Transport", transport))
        self._head_since = self.loop.time()
        # Becomes `scope["state"]`: the certificate is the connection's, and each request has it.
        certificate = verified_certificate(transport)
        self.app_state = {**self.app_state, PEER_CERTIFICATE: certificate}

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        self._heard_at = self.loop.time()
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answers a malformed request with 400, if no answer has begun; then closes.

        The request may be malformed behind its head, while its handler runs. uvicorn would let the
        handler answer as well, and log two tracebacks for each such request.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _make_room(self) -> None:
        """Ends the connection that has waited for its client the longest, if there are too many."""
        if len(self.connections) < CONNECTIONS_MAX:
            return
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, HttpConnection) and connection._waits_for_client
        ]
        if waiting:
            longest = min(waiting, key=lambda connection: connection._heard_at)
            # `connection_lost` comes in the next turn of the loop: more connections may come first.
            self.connections.discard(longest)
            longest.transport.abort()

    @property
    def _waits_for_client(self) -> bool:
        """Whether nothing happens on the connection before its client sends or reads more."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        unread = self.transport.get_write_buffer_size() > 0
        return unread or self.conn.their_state is h11.SEND_BODY

    def check_deadlines(self, now: float) -> None:
        """Closes the connection if the client has missed a deadline."""
        reason = self._missed_deadline(now)
        if reason and self.transport is not None:
            host = self.client[0] if self.client else ""
            _PEER_LOG.info(
                "unfinished, disconnected", host, peer=str(self.client), unfinished=reason
            )
            self.transport.abort()

    def _missed_deadline(self, now: float) -> str:
        """Returns the part of the exchange that the client did not finish in time, or ""."""
        if self._answer_unread(now):
            return "reading the answer"
        if self.conn.their_state is h11.SEND_BODY:
            self._head_since = None
            if self.flow.read_paused:
                self._progress.restart()
                return ""
            return "body" if self._progress.stalled(now, self._received_bytes) else ""
        self._progress.restart()
        if self.conn.their_state is not h11.IDLE:
            self._head_since = None
            return ""
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if not begun:
            # Between two requests, where uvicorn's keep-alive timer runs.
            self._head_since = None
        elif self._head_since is None:
            self._head_since = now
        elif now - self._head_since > HEAD_TIMEOUT_S:
            return "head"
        return ""

    def _answer_unread(self, now: float) -> bool:
        """Whether the transport's buffer has not shrunk for too long; it may grow meanwhile."""
        unread_bytes = self.transport.get_write_buffer_size()
        if not unread_bytes or unread_bytes < self._unread_bytes or not self._unread_bytes:
            self._unread_since = now
        self._unread_bytes = unread_bytes
        return now - self._unread_since > BODY_STALL_S
