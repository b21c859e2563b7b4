"""Creates the certificates of a cluster's own authority, and judges stored ones.

Every certificate has the extensions that strict verifiers demand (Python 3.13, Go, Java): key ids,
key usage, and names in subjectAltName. Private keys are PKCS#8 in PEM. Creating an RSA key takes
seconds of CPU: callers do not do that on an event loop.
"""

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from magnetar.security.secret import Secret

BACKDATED: Final = timedelta(minutes=10)
"""Allows for clocks that differ."""
COMMON_NAME_CHARACTERS_MAX: Final = 64
RSA_EXPONENT: Final = 65_537

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
Algorithm = Literal["ECDSA", "RSA"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: Secret


@dataclass(frozen=True, slots=True)
class KeyKind:
    """The algorithm and size of private keys."""

    algorithm: Algorithm = "ECDSA"
    bits: int = 256


@dataclass(frozen=True, slots=True)
class Names:
    """The subject of a certificate, and the names by which peers verify it."""

    common_name: str
    dns: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    is_server: bool = False
    """It may serve. Only then do its names count."""
    is_client: bool = False
    """It may identify a client. A client's certificate that cannot serve impersonates no server."""


def create_authority(name: str, kind: KeyKind, lifetime: timedelta, now: datetime) -> Pair:
    """Creates a self-signed authority. Its serial is in its name: no two have the same subject."""
    key = _new_key(kind)
    serial = x509.random_serial_number()
    suffix = f" {serial:x}"[:9]
    subject = _name(name[: COMMON_NAME_CHARACTERS_MAX - len(suffix)] + suffix)
    public = key.public_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True, enciphers=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def issue(authority: Pair, names: Names, kind: KeyKind, lifetime: timedelta, now: datetime) -> Pair:
    """Issues a certificate. It never outlives the authority."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = _load_key(authority.key)
    key = _new_key(kind)
    public = key.public_key()
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names.dns]
    alternatives += [x509.IPAddress(ipaddress.ip_address(text)) for text in names.addresses]
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(names.common_name))
        .issuer_name(signer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(min(now + lifetime, signer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False, enciphers=kind.algorithm == "RSA"), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_purposes(names)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(signing_key, hashes.SHA256())
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def expiry(certificate: bytes) -> datetime | None:
    """When the certificate (PEM) expires, in UTC; None if it is no certificate."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError:
        return None


def is_pair(pair: Pair) -> bool:
    """Whether the certificate is for this very key."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        return bool(certificate.public_key() == _load_key(pair.key).public_key())
    except (ValueError, TypeError):
        return False


def is_for(certificate: bytes, names: Names) -> bool:
    """Whether the certificate has this subject, these purposes and at least these names."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
        common = loaded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        purposes = loaded.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    if [attribute.value for attribute in common] != [names.common_name]:
        return False
    if set(purposes) != set(_purposes(names)):
        return False
    dns, addresses = _alternatives(loaded)
    wanted = {str(ipaddress.ip_address(text)) for text in names.addresses}
    return set(names.dns) <= dns and wanted <= addresses


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the authority's key signed the certificate."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
        loaded.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _alternatives(certificate: x509.Certificate) -> tuple[set[str], set[str]]:
    """The DNS names and addresses of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set(), set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return set(names.get_values_for_type(x509.DNSName)), addresses


def _purposes(names: Names) -> list[x509.ObjectIdentifier]:
    server = [ExtendedKeyUsageOID.SERVER_AUTH] if names.is_server else []
    client = [ExtendedKeyUsageOID.CLIENT_AUTH] if names.is_client else []
    return [*server, *client]


def _new_key(kind: KeyKind) -> PrivateKey:
    if kind.algorithm == "RSA":
        return rsa.generate_private_key(RSA_EXPONENT, kind.bits)
    curves: dict[int, ec.EllipticCurve] = {256: ec.SECP256R1(), 384: ec.SECP384R1()}
    return ec.generate_private_key(curves[kind.bits])


def _load_key(key: Secret) -> PrivateKey:
    loaded = serialization.load_pem_private_key(key.reveal(), None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("the private key is neither RSA nor ECDSA")
    return loaded


def _pem(key: PrivateKey) -> Secret:
    return Secret(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool, enciphers: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=enciphers,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
