"""Reads certificates: when those of a file expire, and the one of a verified peer."""

import asyncio
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509


def expires_at_s(cert_file: Path) -> float:
    """Returns the Unix time at which the first certificate of the file expires.

    Of a chain, the earliest expiry counts. Raises TlsFileError.
    """
    return min(cert.not_valid_after_utc.timestamp() for cert in _certificates(cert_file))


def issued_by_root(cert_file: Path, trust_file: Path) -> bool:
    """Whether the file has one certificate, whose issuer is a root of the trust file.

    False if the trust file has an intermediate CA of that name, which a server must send. Also
    False if a file cannot be parsed here: OpenSSL, which reads it too, is more lenient.
    """
    from magnetar.security.tls.files import TlsFileError

    try:
        chain = _certificates(cert_file)
        issuers = [ca for ca in _certificates(trust_file) if ca.subject == chain[0].issuer]
        return len(chain) == 1 and bool(issuers) and all(ca.subject == ca.issuer for ca in issuers)
    except (TlsFileError, ValueError):
        return False


def verified_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """Returns the peer's certificate (DER) if TLS verified one.

    A context that does not verify shows any certificate that the peer sent: that one is not
    returned.
    """
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if tls is None or tls.context.verify_mode is ssl.CERT_NONE:
        return None
    return tls.getpeercert(binary_form=True)


def _certificates(file: Path) -> "list[x509.Certificate]":
    # Imported here: an open process must not pay for it.
    from cryptography import x509

    from magnetar.security.tls.files import TlsFileError

    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsFileError(f"{file}: no certificate in PEM") from error
