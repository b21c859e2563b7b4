"""The serving certificate of the metrics API: made here, kept in a Secret, renewed in time.

The API server trusts it because the APIService that names our Service carries it as its CA bundle:
no outside authority, and nothing in the chart. Whoever finds none (or one that ends soon) makes
one; of two who do so at once one wins by the Secret's resourceVersion, and the other takes that.
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

from magnetar_operator.api_kinds import Object

LIFETIME_DAYS: Final = 365
RENEWED_BEFORE_DAYS: Final = 60
BACKDATED_MINUTES: Final = 10
"""For clocks that differ."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A certificate that is its own authority, with its key; both PEM."""

    certificate: bytes
    key: bytes


def make(names: list[str], now: datetime) -> Serving:
    """For the DNS names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "magnetar-metrics")])
    made = (
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
        made.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def good(serving: Serving, names: list[str], now: datetime) -> bool:
    """Whether it can serve these names for a while yet."""
    try:
        found = x509.load_pem_x509_certificate(serving.certificate)
        serialization.load_pem_private_key(serving.key, None)
        there = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    ends_late = found.not_valid_after_utc > now + timedelta(days=RENEWED_BEFORE_DAYS)
    return ends_late and set(names) <= set(there.get_values_for_type(x509.DNSName))


def secret(name: str, namespace: str, serving: Serving) -> Object:
    """As it is kept."""
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


def of_secret(found: Mapping[str, object]) -> Serving:
    """As it was kept; empty texts where there is none."""
    data = found.get("data")
    fields = data if isinstance(data, dict) else {}
    return Serving(
        base64.b64decode(fields.get("tls.crt", "")), base64.b64decode(fields.get("tls.key", ""))
    )


def utc_now() -> datetime:
    return datetime.now(UTC)


def bundle(serving: Serving) -> str:
    """The certificate as an APIService has it."""
    return base64.b64encode(serving.certificate).decode()
