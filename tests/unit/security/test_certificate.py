"""The role of a client certificate."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.support.stepped_loop import FakeClock
from tests.support.tokens import private_key

from magnetar.security.api import AuthenticationFailed, Identity, Peer
from magnetar.security.certificate import TlsProvider
from magnetar.security.secret import Secret

NOTHING = Secret(b"")


def certificate(clock: FakeClock, *names: tuple[x509.ObjectIdentifier, str]) -> bytes:
    """A certificate of this subject, valid for an hour."""
    now = datetime.datetime.fromtimestamp(clock.now_ms() // 1000, datetime.UTC)
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in names])
    key = private_key("ES256")
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
    return built.sign(key, SHA256()).public_bytes(Encoding.DER)


CN, OU, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME


@pytest.mark.parametrize(
    ("names", "role"),
    [
        ([(CN, "client")], "client"),
        ([(ORG, "org"), (CN, "client"), (OU, "unit")], "client"),
        # RFC 2253 writes the last attribute first, so this is "CN=last,CN=first".
        ([(CN, "first"), (CN, "last")], "last"),
        ([(OU, "x,CN=admin"), (CN, "client")], "client"),
        ([(CN, "client"), (OU, "x,CN=admin")], "client"),
    ],
)
async def test_the_role_is_the_first_common_name(
    names: list[tuple[x509.ObjectIdentifier, str]], role: str
) -> None:
    clock = FakeClock()
    peer = Peer("127.0.0.1", certificate(clock, *names))
    expires_at_ms = clock.now_ms() // 1000 * 1000 + 3_600_000
    identity = await TlsProvider(clock).authenticate(NOTHING, peer)
    assert identity == Identity(role, "tls", expires_at_ms)


async def test_a_connection_without_a_certificate_has_no_role() -> None:
    provider = TlsProvider(FakeClock())
    with pytest.raises(AuthenticationFailed, match="no certificate"):
        await provider.authenticate(NOTHING, Peer("127.0.0.1"))
    assert provider.presented({}, Peer("127.0.0.1")) is None
    assert provider.presented({}, Peer("127.0.0.1", b"x")) == NOTHING


async def test_a_certificate_without_a_common_name_has_no_role() -> None:
    clock = FakeClock()
    peer = Peer("127.0.0.1", certificate(clock, (OU, "CN=admin")))
    with pytest.raises(AuthenticationFailed, match="no common name"):
        await TlsProvider(clock).authenticate(NOTHING, peer)


async def test_a_malformed_certificate_has_no_role() -> None:
    with pytest.raises(AuthenticationFailed, match="cannot be parsed"):
        await TlsProvider(FakeClock()).authenticate(NOTHING, Peer("127.0.0.1", b"\x30\x00"))


async def test_an_expired_certificate_of_an_open_connection_has_no_role() -> None:
    clock = FakeClock()
    peer = Peer("127.0.0.1", certificate(clock, (CN, "client")))
    clock.elapsed_s += 3_601
    with pytest.raises(AuthenticationFailed, match="expired"):
        await TlsProvider(clock).authenticate(NOTHING, peer)
