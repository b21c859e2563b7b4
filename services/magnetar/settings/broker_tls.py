"""The settings of a broker's TLS."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.settings.field import SettingsError, setting
from magnetar.settings.tls import TLS, TlsSettings, check_pair

if TYPE_CHECKING:
    from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig


@dataclass(frozen=True, kw_only=True)
class BrokerTlsSettings:
    """The TLS ports of a broker, and its TLS connections to other brokers."""

    port_tls: int | None = setting(
        None,
        "Port of the binary protocol with TLS (usually 6651); 0 takes a free one, unset: none.",
        group=TLS,
        within=(0, 65_535),
        pulsar="brokerServicePortTls",
        off=True,
    )
    http_port_tls: int | None = setting(
        None,
        "Port of the admin REST with TLS (usually 8443); 0 takes a free one, unset: none.",
        group=TLS,
        within=(0, 65_535),
        pulsar="webServicePortTls",
        off=True,
    )

    broker_client_tls: bool = setting(
        False,
        "Whether this broker sends admin requests to other brokers by TLS.",
        group=TLS,
        pulsar="brokerClientTlsEnabled",
    )
    broker_client_trust_file: Path | None = setting(
        None,
        "The CA certificates (PEM) that verify other brokers; unset: `tls_trust_file`.",
        group=TLS,
        pulsar="brokerClientTrustCertsFilePath",
    )
    broker_client_cert_file: Path | None = setting(
        None,
        "The certificate (PEM) that this broker presents to other brokers; unset: none.",
        group=TLS,
        pulsar="brokerClientCertificateFilePath",
    )
    broker_client_key_file: Path | None = setting(
        None,
        "The private key (PEM) of `broker_client_cert_file`.",
        group=TLS,
        pulsar="brokerClientKeyFilePath",
    )

    def __post_init__(self) -> None:
        check_pair(self, "broker_client_cert_file", "broker_client_key_file")

    def client_config(self, tls: TlsSettings) -> "ClientTlsConfig | None":
        """Returns the TLS of requests to other brokers, None if they are plain.

        `tls` has the process's own files.
        """
        if not self.broker_client_tls:
            return None
        return tls.client_tls(
            self.broker_client_trust_file or tls.tls_trust_file,
            self.broker_client_cert_file,
            self.broker_client_key_file,
        )

    def server_config(self, tls: TlsSettings) -> "ServerTlsConfig | None":
        """Returns the TLS of the broker's TLS ports, None if it has none.

        Raises SettingsError if a port is set, and a file that it needs is not.
        """
        if self.port_tls is None and self.http_port_tls is None:
            return None
        return tls.server_tls()

    def check_ports(self, port: int | None, http_port: int | None, tls: TlsSettings) -> None:
        """Raises SettingsError if a protocol has no port, or a TLS port has no files."""
        if port is None and self.port_tls is None:
            raise SettingsError("port and port_tls are both off: clients need one of them")
        if http_port is None and self.http_port_tls is None:
            raise SettingsError("http_port and http_port_tls are both off: admin needs one of them")
        self.server_config(tls)
