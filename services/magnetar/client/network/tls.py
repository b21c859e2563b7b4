"""TLS of the client: certificates of authorities, host names, client certificates.

The context is built for each connection, so that renewed files are used without a restart.
"""

import ssl
from dataclasses import dataclass

from magnetar.client.errors import CertificateRejected, ConnectFailed, InvalidConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The settings of TLS connections."""

    trust_certificates_file: str = ""
    """PEM file of the authorities to trust; empty for those of the system."""
    verify_hostname: bool = True
    allow_insecure: bool = False
    """Accept any certificate. Only for tests: the connection can be intercepted."""
    certificate_file: str = ""
    key_file: str = ""
    """A client certificate and its key, for servers that ask for one."""
    ciphers: str = ""
    """OpenSSL's list of ciphers for TLS 1.2; empty for Python's default."""

    def __post_init__(self) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise InvalidConfiguration("certificate_file and key_file go together")

    def context(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        """Returns a context; `certificate` replaces the client certificate of the settings."""
        try:
            context = ssl.create_default_context(cafile=self.trust_certificates_file or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.ciphers:
                context.set_ciphers(self.ciphers)
            if certificate is None and self.certificate_file:
                certificate = self.certificate_file, self.key_file
            if certificate is not None:
                context.load_cert_chain(*certificate)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfiguration(f"The files of TLS cannot be used: {error}") from error
        if self.allow_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif not self.verify_hostname:
            context.check_hostname = False
        return context


def connect_failed(error: Exception, service: str, broker: str = "") -> ConnectFailed:
    """Returns the error for a connection to `service` that failed with `error`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateRejected(
            f"The certificate of {service} is not accepted: {error.verify_message}", broker=broker
        )
    return ConnectFailed(f"No connection to {service}: {error}", broker=broker)
