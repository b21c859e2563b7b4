"""The settings of TLS of every process, under Pulsar's and BookKeeper's keys.

Certificates, keys and CAs are PEM files. TLS is off until a port or a client of it is set: those of
brokers are in `broker_tls`, those of bookies in `storage_tls`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.security.tls.defaults import PROTOCOLS, REFRESH_S_DEFAULT
from magnetar.settings.choices import TlsProtocol
from magnetar.settings.field import SettingsError, setting

if TYPE_CHECKING:
    from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig, TlsOptions

TLS: Final = "TLS"


@dataclass(frozen=True, kw_only=True)
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

    def __post_init__(self) -> None:
        check_pair(self, "tls_cert_file", "tls_key_file")
        try:
            if self.tls_ciphers:  # the protocols are checked by their type
                from magnetar.security.tls.contexts import check_options

                check_options(self.tls_options)
        except ValueError as error:
            raise SettingsError(f"tls_ciphers, tls_protocols: {error}") from error

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


def check_pair(settings: object, cert: str, key: str) -> None:
    """Raises SettingsError if only one of a certificate and its key is set, by their names."""
    if (getattr(settings, cert) is None) != (getattr(settings, key) is None):
        raise SettingsError(f"{cert} and {key} must both be set, or neither")
