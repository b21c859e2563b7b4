"""Authenticates by the client certificate that TLS has verified: the method `tls`.

The role is the first common name (CN) of the subject in the order of RFC 2253, which writes the
last attribute of the certificate first. Source: AuthenticationProviderTls of Pulsar 4.2. Unlike
Pulsar, the name is taken from the parsed certificate, so a comma or an escape in a value cannot
imitate another attribute.
"""

from collections.abc import Mapping
from typing import Final

from magnetar.core.clock import Clock
from magnetar.security.api import AuthenticationFailed, Identity, Peer
from magnetar.security.secret import Secret

METHOD: Final = "tls"


class TlsProvider:
    """Returns the common name of the peer's certificate."""

    method: Final = METHOD

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def presented(self, headers: Mapping[str, str], peer: Peer) -> Secret | None:  # noqa: ARG002
        """Returns an empty credential if the connection has a certificate."""
        return None if peer.certificate is None else Secret(b"")

    async def authenticate(self, data: Secret, peer: Peer) -> Identity:  # noqa: ARG002
        """Returns the certificate's role; raises AuthenticationFailed."""
        if peer.certificate is None:
            raise AuthenticationFailed("the client presented no certificate")
        role, expires_at_ms = subject_role(peer.certificate)
        # TLS verified the certificate at the handshake; a connection may outlive it.
        if self._clock.now_ms() >= expires_at_ms:
            raise AuthenticationFailed("the client certificate has expired")
        return Identity(role, METHOD, expires_at_ms)

    async def reload(self) -> int:
        """Returns 0: TLS follows its trust file, and a connection's certificate stays verified."""
        return 0

    async def close(self) -> None:
        """Does nothing: the provider has no background work."""


def subject_role(certificate: bytes) -> tuple[str, int]:
    """Returns the role of a certificate (DER) and its expiry (Unix ms)."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        parsed = x509.load_der_x509_certificate(certificate)
        names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        expires_at_ms = int(parsed.not_valid_after_utc.timestamp() * 1000)
    except ValueError:
        raise AuthenticationFailed("the client certificate cannot be parsed") from None
    role = names[-1].value if names else ""
    if not isinstance(role, str) or not role:
        raise AuthenticationFailed("the subject of the client certificate has no common name (CN)")
    return role, expires_at_ms
