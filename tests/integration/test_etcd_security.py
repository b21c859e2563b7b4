"""The metadata store on a real etcd with TLS and client certificates, and with users."""

import asyncio
import base64
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.support.etcd import EtcdMember, open_on, start_etcd

from magnetar.core.clock import SystemClock
from magnetar.metadata.etcd.errors import MetadataRefused
from magnetar.metadata.etcd.settings import EtcdTls
from magnetar.metadata.store import MetadataUnavailable, Watch
from magnetar.metadata.store_url import StoreOptions, open_store

WITHIN_S = 30.0
TOKEN_TTL_S = 3
"""So long that no call is held up until its new token has expired, too."""
EXPIRED_S = TOKEN_TTL_S + 1.5
"""etcd looks for tokens that expired once a second."""
MAGNETAR = {"username": "magnetar", "password": "secret"}
OTHER = {"username": "other", "password": "secret"}


@dataclass
class Authority:
    """A certificate authority and what it signs, as PEM files in one directory."""

    directory: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        builder = self._builder(self._subject, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file = self.directory / f"{self.name}.pem"
        certificate = builder.sign(self._key, hashes.SHA256())
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of one that is server and client at 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            self._builder(subject, key)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        files = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server, client = authority.issue("server"), authority.issue("client")
    etcd = start_etcd(
        tmp_path,
        scheme="https",
        cert_file=str(server[0]),
        key_file=str(server[1]),
        trusted_ca_file=str(authority.file),
        client_cert_auth="true",
    )
    try:
        options = StoreOptions(
            root="/magnetar/tls",
            tls_ca_file=str(authority.file),
            tls_cert_file=str(client[0]),
            tls_key_file=str(client[1]),
        )
        store = await open_store(etcd.url, SystemClock(), options)
        watch = store.watch("/")
        revision = await store.put("/a", b"1")
        assert (await asyncio.wait_for(anext(watch), WITHIN_S)).record.revision == revision
        await store.close()
        foreign = stranger.issue("foreign")
        for tls in (
            None,
            EtcdTls(authority.file),
            EtcdTls(stranger.file, *client),
            EtcdTls(authority.file, *foreign),
        ):
            with pytest.raises(MetadataUnavailable):
                await open_on(etcd, tls=tls, operation_timeout_s=0.6)
    finally:
        etcd.stop()


class Administrator:
    """Manages etcd's users by its REST gateway."""

    def __init__(self, etcd: EtcdMember) -> None:
        self._client = httpx.Client(
            base_url=f"http://{etcd.address}/v3", trust_env=False, timeout=WITHIN_S
        )
        self._token = ""

    def call(self, path: str, **fields: object) -> dict[str, object]:
        headers = {"Authorization": self._token} if self._token else {}
        answer = self._client.post(path, json=fields, headers=headers)
        answer.raise_for_status()
        found: dict[str, object] = answer.json()
        return found

    def log_in(self, name: str, password: str) -> None:
        self._token = str(self.call("/auth/authenticate", name=name, password=password)["token"])

    def user(self, name: str, password: str, role: str) -> None:
        self.call("/auth/user/add", name=name, password=password)
        self.call("/auth/user/grant", user=name, role=role)

    def role(self, name: str, prefix: str) -> None:
        """May read and write what starts with `prefix`."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self.call("/auth/role/add", name=name)
        key, range_end = (base64.b64encode(part.encode()).decode() for part in (prefix, end))
        perm = {"permType": "READWRITE", "key": key, "range_end": range_end}
        self.call("/auth/role/grant", name=name, perm=perm)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """An etcd with users: `magnetar`, who may what is below /magnetar/, and `other`."""
    etcd = start_etcd(tmp_path_factory.mktemp("auth"), auth_token_ttl=str(TOKEN_TTL_S))
    administrator = Administrator(etcd)
    administrator.role("magnetars", "/magnetar/")
    administrator.role("others", "/other/")
    administrator.user("root", "r", "root")
    administrator.user("magnetar", "secret", "magnetars")
    administrator.user("other", "secret", "others")
    administrator.call("/auth/enable")
    administrator.close()
    yield etcd
    etcd.stop()


@pytest.fixture
def etcd(guarded: EtcdMember) -> EtcdMember:
    if guarded.process is None:
        guarded.start()
    return guarded


async def first_of(watch: Watch) -> int:
    return (await asyncio.wait_for(anext(watch), WITHIN_S)).record.revision


async def test_a_token_that_expired_is_requested_again(etcd: EtcdMember) -> None:
    store = await open_on(etcd, **MAGNETAR)
    old_watch = store.watch("/a")
    lease = await store.grant_lease(30)
    first = await store.put("/a", b"1", lease_id=lease.id)
    assert await first_of(old_watch) == first
    for _ in range(2):
        await asyncio.sleep(EXPIRED_S)
        # The new watch goes on the old stream, whose token nobody knows any more.
        new_watch = store.watch("/a")
        revision, *_ = await asyncio.gather(
            store.put("/a", b"2"), *(store.get("/a") for _ in range(20))
        )
        assert await first_of(new_watch) == revision
        assert await first_of(old_watch) == revision
        await lease.keep_alive()
    await store.close()


async def test_tokens_are_lost_where_etcd_restarts(etcd: EtcdMember) -> None:
    store = await open_on(etcd, **MAGNETAR)
    watch = store.watch("/a")
    etcd.stop()
    etcd.start()
    revision = await store.put("/a", b"1")
    assert await first_of(watch) == revision
    await store.close()


async def test_a_refused_request_fails_at_once_with_the_reason(etcd: EtcdMember) -> None:
    async with asyncio.timeout(WITHIN_S):  # what is tried again would go on for longer
        with pytest.raises(MetadataRefused, match=r"user magnetar: .*authentication failed"):
            await open_on(etcd, **(MAGNETAR | {"password": "wrong"}))
        with pytest.raises(MetadataRefused, match="set etcd's username and password"):
            await open_on(etcd)
        with pytest.raises(MetadataRefused, match=r"permission denied: .*magnetar etcd roles"):
            await open_on(etcd, **OTHER)


async def test_a_watch_of_what_one_may_not_see_ends_and_others_continue(etcd: EtcdMember) -> None:
    store = await open_on(etcd, **MAGNETAR, root="/magnetar/x")
    seen = store.watch("/a")
    # As if the role had been narrowed: a range beyond the root.
    unseen = store.watch("/b")
    unseen.first, unseen.end_key = b"/other/", b"/other0"  # type: ignore[attr-defined]
    with pytest.raises(MetadataRefused, match="permission denied"):
        await asyncio.wait_for(anext(unseen), WITHIN_S)
    revision = await store.put("/a", b"")
    assert await first_of(seen) == revision
    await store.close()


async def test_a_user_where_etcd_asks_for_none(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path)
    try:
        store = await open_on(etcd, **MAGNETAR)
        await store.put("/a", b"")
        await store.close()
    finally:
        etcd.stop()
