"""The ports of a broker: binary and HTTP, each without and with TLS, bound before a slow start.

A broker has at least one port of each protocol. Its id is the host and port of its HTTP address,
the plain one if it has both, as in Pulsar.
"""

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.ownership.records import Urls
from magnetar.observe.listen import bind

if TYPE_CHECKING:
    from magnetar.security.tls.reload import ServerTls


@dataclass(frozen=True, slots=True)
class SecurePort:
    """A bound socket, and the TLS of its connections."""

    socket: socket.socket
    tls: "ServerTls"


@dataclass(slots=True)
class BrokerListeners:
    """The bound sockets of a broker; None for a port that is off."""

    binary: socket.socket | None
    http: socket.socket | None
    binary_tls: SecurePort | None = None
    http_tls: SecurePort | None = None

    def close(self) -> None:
        """Closes all sockets."""
        for plain in (self.binary, self.http):
            if plain is not None:
                plain.close()
        for secure in (self.binary_tls, self.http_tls):
            if secure is not None:
                secure.socket.close()

    @property
    def reached(self) -> socket.socket:
        """The binary port that other brokers probe."""
        if self.binary is not None:
            return self.binary
        assert self.binary_tls is not None  # noqa: S101 - the settings require one of them
        return self.binary_tls.socket

    def urls(self, host: str) -> Urls:
        """Returns the addresses of the ports for clients that reach them at `host`."""
        return Urls(
            service_url=_url("pulsar", host, self.binary),
            http_url=_url("http", host, self.http),
            service_url_tls=_url("pulsar+ssl", host, _socket(self.binary_tls)),
            http_url_tls=_url("https", host, _socket(self.http_tls)),
        )


def bind_all(
    host: str,
    *,
    port: int | None,
    http_port: int | None,
    port_tls: int | None = None,
    http_port_tls: int | None = None,
    tls: "ServerTls | None" = None,
) -> BrokerListeners:
    """Binds the ports that are not off. Raises OSError if one is not available."""
    listeners = BrokerListeners(None, None)
    try:
        listeners.binary = _bind(host, port)
        listeners.http = _bind(host, http_port)
        if tls is not None:
            if (binary := _bind(host, port_tls)) is not None:
                listeners.binary_tls = SecurePort(binary, tls)
            if (http := _bind(host, http_port_tls)) is not None:
                listeners.http_tls = SecurePort(http, tls)
    except OSError:
        listeners.close()
        raise
    return listeners


def _bind(host: str, port: int | None) -> socket.socket | None:
    return None if port is None else bind(host, port)


def _socket(secure: SecurePort | None) -> socket.socket | None:
    return None if secure is None else secure.socket


def _url(scheme: str, host: str, listener: socket.socket | None) -> str:
    return "" if listener is None else f"{scheme}://{host}:{listener.getsockname()[1]}"
