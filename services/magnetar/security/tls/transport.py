"""TLS between a socket's transport and a protocol, on memory BIOs.

asyncio and uvloop have TLS of their own. A broker needs more:

- the handshakes of all connections are paced (`pacer`), and the protocol is created only when one
  is complete, so that an unauthenticated peer costs no session;
- each connection takes the context of its own time, so that certificates change without a new
  listener;
- ciphertext is received into one buffer of the loop, and plaintext is decrypted directly into
  the buffer of the protocol (`get_buffer`), as many records as it takes, with one `buffer_updated`
  for all of them. An idle connection holds no buffer.

What a protocol writes is encrypted at once; `writelines` joins its parts, since a record has a cost
of its own. Flow control is that of the socket's transport: its buffer holds the ciphertext.

The peer's close_notify and the end of its stream both end the connection: all protocols here have
frames or lengths, so a cut-off stream is never taken for a whole one.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from magnetar.core.addresses import network_of
from magnetar.core.causes import Causes
from magnetar.core.log import get_logger
from magnetar.security.tls.pacer import Pacer, pacer

log = get_logger("magnetar.security.tls")

PLAIN_BYTES: Final = 64 << 10
"""The most plaintext that a protocol without a buffer of its own receives per call."""
EARLY_BYTES_MAX: Final = 32 << 10
"""Bytes received before a handshake is complete; then reading pauses. A chain of certificates
takes 5 KiB; a client may send data right behind its last message."""
EARLY_READ_BYTES: Final = 16 << 10

LOGGED_NETWORK_BITS: Final = 24
"""A reason is logged once per `causes.REPEAT_S` for each network of this size (IPv4)."""
_CAUSES: Final = Causes()
LEFT: Final = "the client ended the connection during the handshake"

HANDSHAKE_RECORD: Final = 22
"""The first byte of every TLS connection; no frame of a bookie begins with it."""

Factory = Callable[[], asyncio.BaseProtocol]


class TlsSocket(asyncio.BufferedProtocol):
    """The socket's side: ciphertext in and out, the handshake, and the state of TLS."""

    __slots__ = (
        "_buffered",
        "_contexts",
        "_early",
        "_factory",
        "_failed",
        "_hostname",
        "_incoming",
        "_outgoing",
        "_pacer",
        "_plain",
        "_protocol",
        "_pump_scheduled",
        "_queued",
        "_reading",
        "_server_side",
        "_socket",
        "_tls",
        "_verifying",
        "closing",
        "opened",
    )

    def __init__(
        self,
        contexts: "Contexts",
        factory: Factory,
        *,
        server_hostname: str | None = None,
        opened: "asyncio.Future[None] | None" = None,
        plain: bool = False,
    ) -> None:
        """`contexts` provides the context at the handshake. A client names the server's host.

        `opened` is resolved after the protocol's `connection_made`, or fails with the reason.
        """
        self._contexts = contexts
        self._factory = factory
        self._hostname = server_hostname
        self._server_side = opened is None
        self._plain = plain
        self.opened = opened
        self._pacer: Pacer = pacer()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._verifying: ssl.SSLContext | None = None
        self._socket: asyncio.Transport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        self._buffered = False
        self._queued = False
        self._early = False
        self._reading = True
        self._pump_scheduled = False
        self._failed: Exception | None = None
        self.closing = False

    # The socket's transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        self._pacer.begin(self)
        if not self._server_side:
            self._queued = True
            self._pacer.due(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's name
        received = self._pacer.received
        return received if self._protocol is not None else received[:EARLY_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return
        if self._plain and self._pacer.received[0] != HANDSHAKE_RECORD:
            self._serve_plain(self._pacer.received[:nbytes])
            return
        self._plain = False
        self._incoming.write(self._pacer.received[:nbytes])
        if self._protocol is not None:
            self._pump()
            return
        if self._incoming.pending > EARLY_BYTES_MAX and not self._early:
            self._early = True
            self._transport().pause_reading()
        if not self._queued:
            self._queued = True
            self._pacer.now_or_due(self)

    def _serve_plain(self, data: memoryview) -> None:
        """Hands the connection, and its first bytes, to the protocol without TLS."""
        self._pacer.end(self)
        transport, protocol = self._transport(), self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if isinstance(protocol, asyncio.BufferedProtocol):
            while data:
                into = cast("memoryview", protocol.get_buffer(len(data)))
                count = min(len(into), len(data))
                into[:count] = data[:count]
                protocol.buffer_updated(count)
                data = data[count:]
        else:
            cast("asyncio.Protocol", protocol).data_received(bytes(data))

    def eof_received(self) -> bool:
        if self._protocol is not None:
            cast("asyncio.Protocol", self._protocol).eof_received()
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._server_side and self._tls is not None and not (self.closing or self._protocol):
            # Some clients close without an alert if they do not trust the certificate.
            self._pacer.stats.failed += 1
            self._note(_address(self._transport()), LEFT)
        self.closing = True
        self._pacer.end(self)
        protocol, self._protocol = self._protocol, None
        self._tls = None
        if protocol is not None:
            protocol.connection_lost(self._failed or exc)
        if self.opened is not None and not self.opened.done():
            reason = self._failed or exc
            self.opened.set_exception(
                reason or ConnectionResetError("the connection ended in the handshake")
            )

    # The pacer calls these.

    def advance(self) -> None:
        """Computes the next step of the handshake."""
        self._queued = False
        if self.closing or self._protocol is not None:
            return
        if not self._handshake():
            return
        self._pacer.stats.completed += 1
        self._pacer.end(self)
        self._send()
        self._open()

    def _handshake(self) -> bool:
        """Returns whether the handshake is complete."""
        try:
            if self._tls is None:
                context, self._verifying = self._contexts.context, self._contexts.verifying
                self._tls = context.wrap_bio(
                    self._incoming,
                    self._outgoing,
                    server_side=self._server_side,
                    server_hostname=self._hostname,
                )
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._verifying is not None and self._tls is not None and self._outgoing.pending:
                # Our certificate is on its way; the client's, if it has one, follows.
                self._tls.context, self._verifying = self._verifying, None
            self._send()
            if self._early:  # all of it belonged to the handshake
                self._early = False
                self._transport().resume_reading()
            return False
        except (ssl.SSLError, ValueError, OSError) as error:
            self._pacer.stats.failed += 1
            self._send()  # the alert, which gives the peer the reason
            self._fail(error)
            return False
        return True

    def give_up(self, reason: str) -> None:
        """Ends a connection whose handshake is not complete."""
        self._fail(ConnectionAbortedError(reason))

    def _fail(self, error: Exception) -> None:
        self._failed = error
        self.closing = True
        self._pacer.end(self)
        if self._socket is None:
            return
        if self._server_side:
            self._note(_address(self._socket), describe(error))
        self._socket.close()

    def _note(self, peer: str, reason: str) -> None:
        """Counts a client's failed handshake; logs it unless its network had the same one lately.

        A client of ours reports its failure to its caller instead.
        """
        self._pacer.stats.failed_for(reason)
        if _CAUSES.is_new(reason, network_of(peer, LOGGED_NETWORK_BITS)):
            log.info("TLS handshake failed", peer=peer, reason=reason)
        else:
            log.debug("TLS handshake failed", peer=peer, reason=reason)

    def _open(self) -> None:
        """Creates the protocol, and passes it the data that followed the handshake."""
        self._protocol = protocol = self._factory()
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
        protocol.connection_made(TlsTransport(self, self._transport(), self._tls))
        if self.opened is not None and not self.opened.done():
            self.opened.set_result(None)
        self._pump()
        if self._early:
            self._early = False
            if self._reading and not self.closing:
                self._transport().resume_reading()

    def _transport(self) -> asyncio.Transport:
        assert self._socket is not None  # noqa: S101 - only a connected socket gets here
        return self._socket

    # The protocol's transport calls these.

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        """Encrypts and sends."""
        if self.closing or self._tls is None:
            return
        write = self._tls.write
        try:
            written = write(data)
            if written < len(data):
                left = memoryview(data)[written:]
                while left:
                    left = left[write(left) :]
        except ssl.SSLError as error:
            self._broken(error)
            return
        self._send()

    def pause(self) -> None:
        """Stops reading; plaintext that is received already waits, too."""
        self._reading = False
        if not self.closing and self._socket is not None:
            self._socket.pause_reading()

    def resume(self) -> None:
        """Reads again, first what waits here."""
        if self._reading or self.closing or self._socket is None:
            return
        self._reading = True
        self._socket.resume_reading()
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_rest)

    def close(self) -> None:
        """Sends close_notify after the queued data, then closes."""
        if self.closing or self._socket is None:
            return
        self.closing = True
        if self._tls is not None:
            # The error says that the peer has not sent its close_notify, which is not needed.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._send()
        self._socket.close()

    def _send(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _broken(self, error: ssl.SSLError) -> None:
        """The peer broke the protocol, or the connection was tampered with."""
        self._failed = error
        self.closing = True
        self._send()
        if self._socket is not None:
            log.info("TLS failed", peer=_address(self._socket), reason=describe(error))
            self._socket.close()

    def _pump_rest(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _pump(self) -> None:
        """Decrypts all that was received, until the protocol pauses or closes."""
        if self.closing or self._protocol is None:
            return
        ended = False
        try:
            ended = self._pump_buffered() if self._buffered else self._pump_plain()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._broken(error)
            return
        if self._outgoing.pending and not self.closing:
            self._send()  # an answer to a key update
        if ended and not self.closing:
            self.eof_received()
            self.close()

    def _pump_buffered(self) -> bool:
        """Returns whether the peer has ended its stream."""
        tls, protocol, incoming = self._tls, self._protocol, self._incoming
        assert tls is not None  # noqa: S101 - the handshake is complete
        buffered = cast("asyncio.BufferedProtocol", protocol)
        while self._reading and not self.closing and (incoming.pending or tls.pending()):
            buffer = cast("memoryview", buffered.get_buffer(-1))
            filled, room = 0, len(buffer)
            more = True
            try:
                while filled < room and (incoming.pending or tls.pending()):
                    # The memory and not a slice of it, for the first record: most reads have one.
                    into = buffer[filled:] if filled else buffer
                    count: int = tls.read(room - filled, into)  # type: ignore[assignment]
                    if not count:
                        more = False
                        break
                    filled += count
            except ssl.SSLWantReadError:
                if not filled:
                    return False
            if filled:
                buffered.buffer_updated(filled)
            if not more:
                return True
        return False

    def _pump_plain(self) -> bool:
        """Returns whether the peer has ended its stream."""
        tls, incoming = self._tls, self._incoming
        assert tls is not None  # noqa: S101 - the handshake is complete
        while self._reading and not self.closing and (incoming.pending or tls.pending()):
            data = tls.read(PLAIN_BYTES)
            if not data:
                return True
            cast("asyncio.Protocol", self._protocol).data_received(data)
        return False


class TlsTransport(asyncio.Transport):
    """The protocol's side: a transport whose bytes are encrypted."""

    __slots__ = ("_socket", "_tls", "_tls_object", "_transport")

    def __init__(
        self, socket: TlsSocket, transport: asyncio.Transport, tls: ssl.SSLObject | None
    ) -> None:
        super().__init__()
        self._socket = socket
        self._transport = transport
        self._tls_object = tls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns what the socket's transport knows, and `ssl_object` and `sslcontext`."""
        if name == "ssl_object":
            return self._tls_object
        if name == "sslcontext":
            return None if self._tls_object is None else self._tls_object.context
        return self._transport.get_extra_info(name, default)

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        if data:
            self._socket.write(data)

    def writelines(self, list_of_data: "Iterable[bytes | bytearray | memoryview]") -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._socket.pause()

    def resume_reading(self) -> None:
        self._socket.resume()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def is_closing(self) -> bool:
        return self._socket.closing or self._transport.is_closing()

    def close(self) -> None:
        self._socket.close()

    def abort(self) -> None:
        self._socket.closing = True
        self._transport.abort()


class Contexts(Protocol):
    """Has the context for a new connection: `reload.ServerTls` and `ClientTls`."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context that a handshake begins with."""

    @property
    def verifying(self) -> ssl.SSLContext | None:
        """The context that verifies the client, if it is another one (`presenting_context`)."""


def server_factory(tls: Contexts, factory: Factory, *, plain: bool = False) -> Factory:
    """Returns the protocol factory of a TLS listener; `factory` creates the protocol within.

    With `plain`, a client that does not begin with a TLS record is served without TLS. That is for
    the time in which clients are switched to TLS one after the other.
    """
    return lambda: TlsSocket(tls, factory, plain=plain)


async def connect(tls: Contexts, factory: Factory, host: str, port: int) -> None:
    """Opens a TLS connection; returns after the protocol's `connection_made`.

    Raises OSError: ssl.SSLError is one. The caller sets the deadline.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()
    transport, _ = await loop.create_connection(
        lambda: TlsSocket(tls, factory, server_hostname=host, opened=opened), host, port
    )
    try:
        await opened
    except BaseException:
        transport.abort()
        raise


def describe(error: Exception) -> str:
    """Returns the reason of a failed connection in the words of OpenSSL, without our file names."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(error)


def _address(transport: asyncio.BaseTransport) -> str:
    return str((transport.get_extra_info("peername") or ("unknown",))[0])
