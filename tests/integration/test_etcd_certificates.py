"""A real etcd with the arguments and certificates of clusters: who may connect, and rotation."""

import datetime
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.etcd import ETCD, EtcdMember, open_on, start_etcd

from magnetar.core.clock import SystemClock
from magnetar.metadata.etcd.settings import EtcdTls
from magnetar.metadata.store import MetadataUnavailable
from magnetar.metadata.store_url import StoreOptions, open_store
from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.etcd_arguments import arguments
from magnetar_operator.cluster.manifests.names import Cluster
from magnetar_operator.models.cluster import ClusterSpec
from magnetar_operator.security.x509 import KeyKind, Pair, create_authority, issue

LIFETIME = datetime.timedelta(days=1)
REFUSED_S = 0.6
SERVES_BOTH = (3, 5, 21)
"""The chart's version. etcd 3.4 mixes up the servers of a port that has both."""
OURS = ("cert-file", "key-file", "trusted-ca-file", "client-cert-auth")


def closed(**etcd: bool) -> Cluster:
    spec: dict[str, Any] = {"tls": {"enabled": True, "etcd": etcd}}
    return Cluster("c", "ns", "uid", ClusterSpec.parse(spec), "magnetar:1", "etcd:1")


class Issuer:
    """An authority, and the certificates that components mount."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = self.new_authority()

    @staticmethod
    def new_authority() -> Pair:
        return create_authority("c", KeyKind(), LIFETIME, datetime.datetime.now(datetime.UTC))

    def mount(self, component: str, *trusted: Pair, place: str = "") -> EtcdTls:
        """Files of a component as its Secret has them; replaces those that were there."""
        now = datetime.datetime.now(datetime.UTC)
        names = security.names_of(closed(), component)
        pair = issue(self.authority, names, KeyKind(), LIFETIME, now)
        place = place or component
        files = [self.directory / f"{place}.{end}" for end in ("ca", "crt", "key")]
        bundle = b"".join(each.certificate for each in trusted or (self.authority,))
        for file, content in zip(files, (bundle, pair.certificate, pair.key.reveal()), strict=True):
            file.write_bytes(content)
        return EtcdTls(*files)

    def etcd(self, cluster: Cluster, *trusted: Pair) -> dict[str, str]:
        """The flags of a member about certificates, with files of this directory."""
        files = self.mount("etcd", *trusted)
        flags = dict(text[2:].partition("=")[::2] for text in arguments(cluster))
        paths = {
            security.CERTIFICATE_FILE: str(files.cert_file),
            security.KEY_FILE: str(files.key_file),
            security.TRUST_FILE: str(files.ca_file),
        }
        chosen = {name: paths.get(flags[name], flags[name]) for name in OURS}
        return {name.replace("-", "_"): value for name, value in chosen.items()}


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def etcd(tmp_path: Path, issuer: Issuer) -> Iterator[EtcdMember]:
    member = start_etcd(tmp_path, scheme="https", **issuer.etcd(closed()))
    yield member
    member.stop()


@pytest.mark.parametrize("component", ["broker-client", "bookie-client", "jobs"])
async def test_components_connect_with_their_certificates(
    etcd: EtcdMember, issuer: Issuer, component: str
) -> None:
    store = await open_on(etcd, tls=issuer.mount(component))
    await store.put("/a", b"1")
    await store.close()


async def test_no_other_client_connects(etcd: EtcdMember, issuer: Issuer, tmp_path: Path) -> None:
    ours = issuer.mount("jobs")
    (tmp_path / "other").mkdir()
    stranger = Issuer(tmp_path / "other").mount("jobs")
    server = issuer.mount("bookie")
    for tls in (
        None,
        EtcdTls(ours.ca_file),
        EtcdTls(ours.ca_file, stranger.cert_file, stranger.key_file),
        EtcdTls(stranger.ca_file, ours.cert_file, ours.key_file),
        # A bookie's certificate as a server, which it shows to every client of its port.
        EtcdTls(ours.ca_file, server.cert_file, server.key_file),
    ):
        with pytest.raises(MetadataUnavailable):
            await open_on(etcd, tls=tls, operation_timeout_s=REFUSED_S)


def etcd_version() -> tuple[int, ...]:
    text = subprocess.run([ETCD, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in text.split()[2].split("."))


async def test_both_connect_during_an_upgrade(tmp_path: Path, issuer: Issuer) -> None:
    flags = dict(text[2:].partition("=")[::2] for text in arguments(closed(plain=True)))
    schemes = [url.partition(":")[0] for url in flags["listen-client-urls"].split(",")]
    assert schemes == ["http", "https"]
    if etcd_version() < SERVES_BOTH:
        return
    plain = start_etcd(tmp_path, **issuer.etcd(closed(plain=True)))
    port = plain.port
    plain.stop()
    both = f"http://127.0.0.1:{port},https://127.0.0.1:{port}"
    member = EtcdMember(
        tmp_path / "both",
        port,
        plain.peer_port,
        scheme="https",
        flags={**plain.flags, "listen-client-urls": both},
    )
    member.start()
    try:
        for tls in (None, issuer.mount("jobs")):
            store = await open_on(member, tls=tls)
            await store.put("/a", b"1")
            await store.close()
    finally:
        member.stop()


async def test_a_store_survives_the_rotation_of_the_authority(
    etcd: EtcdMember, issuer: Issuer
) -> None:
    """Files change under a running process; etcd restarts, as it must; no restart of ours."""
    files = issuer.mount("broker-client")
    options = StoreOptions(
        root="/magnetar/rotated",
        tls_ca_file=str(files.ca_file),
        tls_cert_file=str(files.cert_file),
        tls_key_file=str(files.key_file),
    )
    store = await open_store(etcd.url, SystemClock(), options)
    await store.put("/a", b"old")
    old, new = issuer.authority, issuer.new_authority()

    def restart(*trusted: Pair) -> None:
        issuer.mount("etcd", *trusted)
        etcd.stop()
        etcd.start()

    issuer.mount("broker-client", old, new)  # announced: the old one signs, both are trusted
    restart(old, new)
    await store.put("/a", b"announced")
    issuer.authority = new  # promoted
    issuer.mount("broker-client", old, new)
    restart(old, new)
    await store.put("/a", b"promoted")
    issuer.mount("broker-client")  # retired: etcd refuses what the old one signed
    restart(new)
    await store.put("/a", b"retired")
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"retired"
    await store.close()
