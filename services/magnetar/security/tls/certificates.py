"""Reads certificates: when those of a file expire, and the one of a verified peer."""

import asyncio
import ssl
from pathlib import Path


def expires_at_s(cert_file: Path) -> float:
    """Returns the Unix time at which the first certificate of the file expires.

    Of a chain, the earliest expiry counts. Raises TlsFileError.
    """
    # Imported here: an open process must not pay for it.
    from cryptography import x509

    from magnetar.security.tls.files import TlsFileError

    try:
        chain = x509.load_pem_x509_certificates(cert_file.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsFileError(f"{cert_file}: no certificate in PEM") from error
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)


def verified_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """Returns the peer's certificate (DER) if TLS verified one.

    A context that does not verify shows any certificate that the peer sent: that one is not
    returned.
    """
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if tls is None or tls.context.verify_mode is ssl.CERT_NONE:
        return None
    return tls.getpeercert(binary_form=True)
