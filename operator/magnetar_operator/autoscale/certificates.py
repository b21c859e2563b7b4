"""The serving certificate of the metrics API: created here, kept in a Secret, renewed in time.

The API server trusts the certificate because the APIService of our Service carries it as its CA
bundle. That needs no other authority, and nothing in the chart. If there is no certificate, or it
expires soon, the operator creates one. If two operators do so at once, the Secret's resourceVersion
decides, and both use the certificate that was stored.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from magnetar_operator.kube.kinds import Object

LIFETIME_DAYS: Final = 365
RENEWED_BEFORE_DAYS: Final = 60
BACKDATED_MINUTES: Final = 10
"""Allows for clocks that differ."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A self-signed certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


def create(names: list[str], now: datetime) -> Serving:
    """Creates a self-signed certificate for the DNS names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "magnetar-metrics")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=BACKDATED_MINUTES))
        .not_valid_after(now + timedelta(days=LIFETIME_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, hashes.SHA256())
    )
    return Serving(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def is_usable(serving: Serving, names: list[str], now: datetime) -> bool:
    """Whether the certificate is for these names and does not expire soon."""
    try:
        certificate = x509.load_pem_x509_certificate(serving.certificate)
        serialization.load_pem_private_key(serving.key, None)
        subject = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    renew_at = certificate.not_valid_after_utc - timedelta(days=RENEWED_BEFORE_DAYS)
    return renew_at > now and set(names) <= set(subject.get_values_for_type(x509.DNSName))


def secret(name: str, namespace: str, serving: Serving) -> Object:
    """The Secret that stores the certificate."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "data": {
            "tls.crt": base64.b64encode(serving.certificate).decode(),
            "tls.key": base64.b64encode(serving.key).decode(),
        },
    }


def of_secret(stored: Mapping[str, object]) -> Serving:
    """The certificate in a Secret; both texts are empty if the Secret has none."""
    data = stored.get("data")
    fields = data if isinstance(data, dict) else {}
    return Serving(
        base64.b64decode(fields.get("tls.crt", "")), base64.b64decode(fields.get("tls.key", ""))
    )


def utc_now() -> datetime:
    return datetime.now(UTC)


def bundle(serving: Serving) -> str:
    """The certificate as the CA bundle of an APIService."""
    return base64.b64encode(serving.certificate).decode()
