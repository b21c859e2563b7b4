"""The settings of TLS between brokers, bookies and autorecovery."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.settings.field import setting
from magnetar.settings.tls import TLS, TlsSettings, check_pair

if TYPE_CHECKING:
    from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig


@dataclass(frozen=True, kw_only=True)
class BookieClientTlsSettings:
    """The TLS of a process's connections to bookies."""

    bookkeeper_tls: bool = setting(
        False,
        "Whether this process connects to bookies by TLS.",
        group=TLS,
        pulsar="bookkeeperTLSClientAuthentication",
    )
    bookkeeper_tls_cert_file: Path | None = setting(
        None,
        "The certificate (PEM) that this process presents to bookies; unset: `tls_cert_file`.",
        group=TLS,
        pulsar="bookkeeperTLSCertificateFilePath",
    )
    bookkeeper_tls_key_file: Path | None = setting(
        None,
        "The private key (PEM) of `bookkeeper_tls_cert_file`; unset: `tls_key_file`.",
        group=TLS,
        pulsar="bookkeeperTLSKeyFilePath",
    )
    bookkeeper_tls_trust_file: Path | None = setting(
        None,
        "The CA certificates (PEM) that verify bookies; unset: `tls_trust_file`.",
        group=TLS,
        pulsar="bookkeeperTLSTrustCertsFilePath",
    )

    def __post_init__(self) -> None:
        check_pair(self, "bookkeeper_tls_cert_file", "bookkeeper_tls_key_file")

    def config(self, tls: TlsSettings) -> "ClientTlsConfig | None":
        """Returns the TLS of connections to bookies, None if they are plain.

        `tls` has the process's own files.
        """
        if not self.bookkeeper_tls:
            return None
        cert_file, key_file = self.bookkeeper_tls_cert_file, self.bookkeeper_tls_key_file
        if cert_file is None:
            cert_file, key_file = tls.tls_cert_file, tls.tls_key_file
        return tls.client_tls(
            self.bookkeeper_tls_trust_file or tls.tls_trust_file, cert_file, key_file
        )


@dataclass(frozen=True, kw_only=True)
class StorageTlsSettings:
    """The TLS of the ports of bookies and autorecovery."""

    http_tls: bool = setting(
        False,
        "Whether the port of health and metrics has TLS; it requests no client certificates.",
        group=TLS,
        pulsar="httpServerTlsEnable",
    )

    def health_tls(self, tls: TlsSettings) -> "ServerTlsConfig | None":
        """Returns the TLS of the port of health and metrics; None if it is plain.

        `tls` has the process's own files.
        """
        if not self.http_tls:
            return None
        # Kubernetes' probes and Prometheus usually have no certificate.
        return replace(tls.server_tls(), trust_file=None, require_client_cert=False)
