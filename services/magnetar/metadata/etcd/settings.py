"""Settings of the connection to etcd: addresses, TLS, user, and deadlines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.core.errors import MetadataError


class MetadataSettingsError(MetadataError):
    """A setting of the store is not valid; the text names the field."""


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Certificates as PEM files. Without `ca_file`, the system's authorities are trusted."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Returns the contents of (CA, key, certificate); raises MetadataSettingsError."""
        if (self.cert_file is None) != (self.key_file is None):
            missing = "cert_file" if self.cert_file is None else "key_file"
            raise MetadataSettingsError(
                f"etcd TLS: {missing} is not set: a client certificate needs cert_file and key_file"
            )
        return (
            _pem(self.ca_file, "ca_file"),
            _pem(self.key_file, "key_file"),
            _pem(self.cert_file, "cert_file"),
        )


def _pem(path: Path | None, field: str) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MetadataSettingsError(
            f"etcd TLS: {field} {path} cannot be read: {error.strerror}"
        ) from error
    if b"-----BEGIN" not in content:
        raise MetadataSettingsError(f"etcd TLS: {field} {path} holds no PEM block")
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """The settings of one etcd cluster. All keys are below `root`, which must not be shared."""

    endpoints: Sequence[str]
    """`host:port` of any number of members; the first that answers is used."""
    root: str = "/magnetar"
    tls: EtcdTls | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    attempt_timeout_s: float = 3.0
    """Timeout of one attempt at one member; the next attempt uses the next member."""
    operation_timeout_s: float = 10.0
    """Deadline of a call with all its attempts; then it raises MetadataUnavailable."""
    keepalive_interval_s: float = 6.0
    """Interval of pings on an idle connection. Servers refuse less than 5 s by default
    (`--grpc-keepalive-min-time`)."""
    keepalive_timeout_s: float = 3.0
    """An unanswered ping closes the connection after this time."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise MetadataSettingsError("etcd endpoints: name at least one host:port")
        for endpoint in self.endpoints:
            if "@" in endpoint:
                raise MetadataSettingsError(
                    "etcd endpoints: a user and a password go into fields of their own"
                )
            host, colon, port = endpoint.rpartition(":")
            if not colon or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
                raise MetadataSettingsError(f"etcd endpoints: {endpoint!r} is not host:port")
        if self.root and (
            not self.root.startswith("/") or self.root.endswith("/") or "//" in self.root
        ):
            raise MetadataSettingsError(f"etcd root: {self.root!r} is not a path like /magnetar/a")
        if bool(self.username) != bool(self.password):
            missing = "password" if self.username else "username"
            raise MetadataSettingsError(f"etcd {missing} is not set: it needs both or none")
