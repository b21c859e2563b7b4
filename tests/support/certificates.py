"""Certificate authorities for tests, with real keys: `Authority(path).issue("broker")`."""

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Files:
    """A certificate and its key, in PEM."""

    cert: Path
    key: Path

    @property
    def der(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.cert.read_text())

    def replace_by(self, other: "Files") -> None:
        """Writes the other pair here, one file after the other."""
        self.cert.write_bytes(other.cert.read_bytes())
        self.key.write_bytes(other.key.read_bytes())


class Authority:
    """A CA that issues certificates into a directory of its own: a root, or one below `parent`."""

    def __init__(
        self, directory: Path, name: str = "ca", parent: "Authority | None" = None
    ) -> None:
        self.directory = directory / name
        self.directory.mkdir(parents=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._count = 0
        signer = parent or self
        certificate = signer._sign(self._name, self._key.public_key(), (), 30, authority=True)
        self.file = self.directory / "ca.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, hosts: tuple[str, ...] = HOSTS, days: int = 30) -> Files:
        """Issues a certificate; with negative `days`, one that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(name), key.public_key(), hosts, days)
        self._count += 1
        stem = f"{name}-{self._count}"
        files = Files(self.directory / f"{stem}.pem", self.directory / f"{stem}.key")
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def client_context(self, own: Files | None = None) -> ssl.SSLContext:
        """The standard library's context of a client that trusts this CA."""
        context = ssl.create_default_context(cafile=str(self.file))
        if own is not None:
            context.load_cert_chain(own.cert, own.key)
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        hosts: tuple[str, ...],
        days: int,
        *,
        authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 90 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
        )
        if hosts:
            names = [_general_name(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
