"""The TLS of servers and clients: files, protocols, verification. Not the names of settings."""

from dataclasses import dataclass, field
from pathlib import Path

from magnetar.security.tls.defaults import PROTOCOLS, REFRESH_S_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Options of servers and clients."""

    protocols: tuple[str, ...] = PROTOCOLS
    """Adjacent protocols of PROTOCOLS."""
    ciphers: tuple[str, ...] = ()
    """Suites of TLS 1.2 by OpenSSL's or IANA's names; empty: those of the Python interpreter."""
    refresh_s: float = REFRESH_S_DEFAULT
    """Interval of the check for changed files; 0: before each new connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsConfig:
    """The certificate of a server, and the client certificates that it accepts."""

    cert_file: Path
    """PEM: the certificate, then the chain to its CA."""
    key_file: Path
    """PEM, not encrypted."""
    trust_file: Path | None = None
    """PEM: the CAs of client certificates; None: no certificate is requested from clients."""
    require_client_cert: bool = False
    """Whether a handshake without a client certificate fails."""
    options: TlsOptions = field(default_factory=TlsOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsConfig:
    """The servers that a client trusts, and the certificate that it presents."""

    trust_file: Path | None = None
    """PEM: the CAs of servers; None: those of the machine."""
    cert_file: Path | None = None
    """PEM: the client's certificate; None: it presents none."""
    key_file: Path | None = None
    verify_hostname: bool = True
    """Whether the server's certificate must name the host that the client connects to."""
    allow_insecure: bool = False
    """Whether any certificate is accepted; anybody on the path can then read all data."""
    options: TlsOptions = field(default_factory=TlsOptions)
