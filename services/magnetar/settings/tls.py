"""The settings of TLS, under Pulsar's and BookKeeper's keys.

Certificates, keys and CAs are PEM files. `TlsSettings` are those of every process; brokers add
their ports and the connections that they open. TLS is off until a port or a client of it is set.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.security.tls.defaults import PROTOCOLS, REFRESH_S_DEFAULT
from magnetar.settings.choices import TlsProtocol
from magnetar.settings.field import SettingsError, setting, settings_part

if TYPE_CHECKING:
    from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig, TlsOptions

TLS: Final = "TLS"
_PAIRS: Final = (
    ("tls_cert_file", "tls_key_file"),
    ("bookkeeper_tls_cert_file", "bookkeeper_tls_key_file"),
    ("broker_client_cert_file", "broker_client_key_file"),
)


@settings_part
class TlsSettings:
    """The TLS files and options of a process."""

    tls_cert_file: Path | None = setting(
        None,
        "The certificate (PEM) of this process's TLS ports, followed by its chain.",
        group=TLS,
        pulsar="tlsCertificateFilePath",
        aliases=("tlsCertificatePath",),
    )
    tls_key_file: Path | None = setting(
        None,
        "The private key (PEM, not encrypted) of `tls_cert_file`.",
        group=TLS,
        pulsar="tlsKeyFilePath",
    )
    tls_trust_file: Path | None = setting(
        None,
        "The CA certificates (PEM) that verify client certificates; unset: none is requested.",
        group=TLS,
        pulsar="tlsTrustCertsFilePath",
    )
    tls_require_client_cert: bool = setting(
        False,
        "Whether clients of the TLS ports must present a certificate.",
        group=TLS,
        pulsar="tlsRequireTrustedClientCertOnConnect",
        aliases=("tlsClientAuthentication",),
    )
    tls_allow_insecure: bool = setting(
        False,
        "Whether this process accepts every certificate of the servers that it connects to.",
        group=TLS,
        pulsar="tlsAllowInsecureConnection",
    )
    tls_hostname_verification: bool = setting(
        True,
        "Whether a server's certificate must name the host that this process connects to (Pulsar: "
        "false).",
        group=TLS,
        pulsar="tlsHostnameVerificationEnabled",
    )
    tls_protocols: tuple[TlsProtocol, ...] = setting(
        (),
        "The protocols of all TLS connections; unset: TLSv1.2 and TLSv1.3.",
        group=TLS,
        pulsar="tlsProtocols",
        aliases=("tlsEnabledProtocols",),
    )
    tls_ciphers: tuple[str, ...] = setting(
        (),
        "The cipher suites of TLS 1.2, by the names of OpenSSL or IANA; unset: the secure ones.",
        group=TLS,
        pulsar="tlsCiphers",
        aliases=("tlsEnabledCipherSuites",),
    )
    tls_refresh_s: float = setting(
        REFRESH_S_DEFAULT,
        "Interval of the check for changed TLS files; 0: before each new connection (Pulsar: 300).",
        group=TLS,
        unit="s",
        within=(0, 86_400),
        pulsar="tlsCertRefreshCheckDurationSec",
        aliases=("tlsCertFilesRefreshDurationSeconds",),
    )

    @property
    def tls_options(self) -> "TlsOptions":
        """The protocols, ciphers and refresh of all contexts."""
        from magnetar.security.tls.settings import TlsOptions

        return TlsOptions(
            protocols=tuple(self.tls_protocols) or PROTOCOLS,
            ciphers=self.tls_ciphers,
            refresh_s=self.tls_refresh_s,
        )

    def server_tls(self) -> "ServerTlsConfig":
        """Returns the TLS of this process's ports; raises SettingsError if a file is not set."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            raise SettingsError(
                "a TLS port is set: set tls_cert_file (tlsCertificateFilePath) and tls_key_file "
                "(tlsKeyFilePath), too"
            )
        if self.tls_require_client_cert and self.tls_trust_file is None:
            raise SettingsError(
                "tls_require_client_cert (tlsRequireTrustedClientCertOnConnect) is set: set "
                "tls_trust_file (tlsTrustCertsFilePath) to the CAs of the clients, too"
            )
        from magnetar.security.tls.settings import ServerTlsConfig

        return ServerTlsConfig(
            cert_file=self.tls_cert_file,
            key_file=self.tls_key_file,
            trust_file=self.tls_trust_file,
            require_client_cert=self.tls_require_client_cert,
            options=self.tls_options,
        )

    def client_tls(
        self, trust_file: Path | None, cert_file: Path | None, key_file: Path | None
    ) -> "ClientTlsConfig":
        """Returns the TLS of a client of this process with its own files."""
        from magnetar.security.tls.settings import ClientTlsConfig

        return ClientTlsConfig(
            trust_file=trust_file,
            cert_file=cert_file,
            key_file=key_file,
            verify_hostname=self.tls_hostname_verification,
            allow_insecure=self.tls_allow_insecure,
            options=self.tls_options,
        )


@settings_part
class BookieClientTlsSettings(TlsSettings):
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

    def bookie_client_tls(self) -> "ClientTlsConfig | None":
        """Returns the TLS of connections to bookies; None if they are plain."""
        if not self.bookkeeper_tls:
            return None
        cert_file, key_file = self.bookkeeper_tls_cert_file, self.bookkeeper_tls_key_file
        if cert_file is None:
            cert_file, key_file = self.tls_cert_file, self.tls_key_file
        return self.client_tls(
            self.bookkeeper_tls_trust_file or self.tls_trust_file, cert_file, key_file
        )


@settings_part
class StorageTlsSettings(BookieClientTlsSettings):
    """The TLS of the ports of bookies and autorecovery."""

    http_tls: bool = setting(
        False,
        "Whether the port of health and metrics has TLS; it requests no client certificates.",
        group=TLS,
        pulsar="httpServerTlsEnable",
    )

    def health_tls(self) -> "ServerTlsConfig | None":
        """Returns the TLS of the port of health and metrics; None if it is plain."""
        if not self.http_tls:
            return None
        # Kubernetes' probes and Prometheus usually have no certificate.
        return replace(self.server_tls(), trust_file=None, require_client_cert=False)


@settings_part
class BrokerTlsSettings(TlsSettings):
    """The TLS ports of a broker."""

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

    def broker_client(self) -> "ClientTlsConfig | None":
        """Returns the TLS of requests to other brokers; None if they are plain."""
        if not self.broker_client_tls:
            return None
        return self.client_tls(
            self.broker_client_trust_file or self.tls_trust_file,
            self.broker_client_cert_file,
            self.broker_client_key_file,
        )

    @property
    def serves_tls(self) -> bool:
        """Whether a port of the broker has TLS."""
        return self.port_tls is not None or self.http_port_tls is not None


def check_broker_ports(port: int | None, http_port: int | None, tls: BrokerTlsSettings) -> None:
    """Raises SettingsError if a broker has no port for a protocol, or a TLS port without files."""
    if port is None and tls.port_tls is None:
        raise SettingsError("port and port_tls are both off: clients need one of them")
    if http_port is None and tls.http_port_tls is None:
        raise SettingsError("http_port and http_port_tls are both off: admin needs one of them")
    if tls.serves_tls:
        tls.server_tls()
    check_tls(tls)


def check_tls(tls: TlsSettings) -> None:
    """Raises SettingsError if a suite does not exist, or a certificate has no key."""
    try:
        if tls.tls_ciphers:  # the protocols are checked by their type
            from magnetar.security.tls.contexts import check_options

            check_options(tls.tls_options)
    except ValueError as error:
        raise SettingsError(f"tls_ciphers, tls_protocols: {error}") from error
    for cert, key in _PAIRS:
        if (getattr(tls, cert, None) is None) != (getattr(tls, key, None) is None):
            raise SettingsError(f"{cert} and {key} must both be set, or neither")
