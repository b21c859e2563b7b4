"""The metadata store by URL: supported forms, and the errors for others."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fake_etcd import FakeEtcd
from tests.unit.metadata.etcd_rig import answers

from magnetar.core.clock import SystemClock
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import AUTHENTICATE
from magnetar.metadata.etcd.settings import EtcdSettings, EtcdTls, MetadataSettingsError
from magnetar.metadata.etcd.store import EtcdStore
from magnetar.metadata.store_url import StoreOptions, etcd_settings, open_store


@pytest.mark.parametrize(
    ("url", "endpoints", "root"),
    [
        ("etcd:http://h:1", ["h:1"], "/magnetar"),
        ("etcd:http://h", ["h:2379"], "/magnetar"),
        ("etcd:http://h:1,g:2", ["h:1", "g:2"], "/magnetar"),
        ("etcd:http://h:1,http://g:2/", ["h:1", "g:2"], "/magnetar"),
        ("etcd:https://h:1, g:2/a/b", ["h:1", "g:2"], "/a/b"),
        ("etcd:http://[::1]:1,[::2]", ["[::1]:1", "[::2]:2379"], "/magnetar"),
    ],
)
def test_urls_of_etcd(url: str, endpoints: list[str], root: str) -> None:
    settings = etcd_settings(url, StoreOptions())
    assert list(settings.endpoints) == endpoints
    assert settings.root == root
    assert (settings.tls is not None) is url.startswith("etcd:https")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("zk:h:2181", "etcd:http://HOST:PORT"),
        ("etcd:h:2379", "write etcd:http://HOST:PORT"),
        ("etcd:ftp://h:2379", "write etcd:http://HOST:PORT"),
        ("etcd:http://", "is not host:port"),
        ("etcd:http://h:port", "is not host:port"),
        ("etcd:http://u:p@h:1", "fields of their own"),
        ("etcd:http://h:1,https://g:1", "all members speak http"),
        ("local:", "a directory is missing"),
    ],
)
async def test_what_cannot_be_used_is_named(url: str, said: str) -> None:
    with pytest.raises(MetadataSettingsError, match=said):
        await open_store(url, SystemClock())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (StoreOptions(tls_ca_file="ca.pem"), "says http, but TLS files are set"),
        (StoreOptions(username="u"), "password is not set"),
        (StoreOptions(password="p"), "username is not set"),  # noqa: S106
        (StoreOptions(root="a"), "root: 'a' is not a path"),
    ],
)
def test_options_that_do_not_fit_are_named(options: StoreOptions, said: str) -> None:
    with pytest.raises(MetadataSettingsError, match=said):
        etcd_settings("etcd:http://h:1", options)


def test_tls_files_are_read_and_named(tmp_path: Path) -> None:
    pem = tmp_path / "a.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    assert EtcdTls(pem).read()[0] == pem.read_bytes()
    assert EtcdTls().read() == (None, None, None)
    with pytest.raises(MetadataSettingsError, match="key_file is not set"):
        EtcdTls(pem, pem).read()
    with pytest.raises(MetadataSettingsError, match=r"ca_file .*none.pem cannot be read"):
        EtcdTls(tmp_path / "none.pem").read()
    pem.write_text("hello")
    with pytest.raises(MetadataSettingsError, match=r"ca_file .*a.pem holds no PEM block"):
        EtcdTls(pem).read()


@pytest.mark.parametrize(("port", "fits"), [(0, False), (1, True), (65_535, True), (65_536, False)])
def test_a_port_is_one_of_those_that_there_are(port: int, fits: bool) -> None:
    if fits:
        assert EtcdSettings(endpoints=[f"h:{port}"]).endpoints == [f"h:{port}"]
    else:
        with pytest.raises(MetadataSettingsError, match="is not host:port"):
            EtcdSettings(endpoints=[f"h:{port}"])


@pytest.mark.parametrize("root", ["", "/a", "/a/b"])
def test_a_root_is_a_path_or_none(root: str) -> None:
    assert EtcdSettings(endpoints=["h:1"], root=root).root == root
    for wrong in (f"{root}/", f"x{root}", f"{root}//x"):
        with pytest.raises(MetadataSettingsError, match="is not a path"):
            EtcdSettings(endpoints=["h:1"], root=wrong)


def test_every_option_reaches_the_settings() -> None:
    options = StoreOptions(
        root="/magnetar/c1/",
        tls_ca_file="ca.pem",
        tls_cert_file="cert.pem",
        tls_key_file="key.pem",
        username="u",
        password="p",  # noqa: S106
    )
    assert etcd_settings("etcd:https://h:1", options) == EtcdSettings(
        endpoints=["h:1"],
        root="/magnetar/c1",
        tls=EtcdTls(Path("ca.pem"), Path("cert.pem"), Path("key.pem")),
        username="u",
        password="p",  # noqa: S106
    )
    for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
        with pytest.raises(MetadataSettingsError, match="says http, but TLS files are set"):
            etcd_settings("etcd:http://h:1", StoreOptions(**{name: "a.pem"}))


def test_a_client_certificate_and_its_key_are_read_as_what_they_are(tmp_path: Path) -> None:
    names = ("ca", "cert", "key")
    for name in names:
        (tmp_path / name).write_text(f"-----BEGIN {name}-----\n")
    ca, cert, key = (tmp_path / name for name in names)
    assert EtcdTls(ca, cert, key).read() == (ca.read_bytes(), key.read_bytes(), cert.read_bytes())
    with pytest.raises(MetadataSettingsError, match="cert_file is not set"):
        EtcdTls(ca, None, key).read()
    for files, named in (((ca, key, tmp_path), "key_file"), ((ca, tmp_path, key), "cert_file")):
        with pytest.raises(MetadataSettingsError, match=f"{named} .* cannot be read"):
            EtcdTls(*files).read()


async def test_a_store_on_etcd_is_opened_with_its_options() -> None:
    fake = FakeEtcd()
    await fake.start()
    fake.on(AUTHENTICATE, answers(pb.AuthenticateResponse(token="t")))  # noqa: S106
    options = StoreOptions(root="/magnetar/c1", username="u", password="p")  # noqa: S106
    store = await open_store(f"etcd:http://127.0.0.1:{fake.port}", SystemClock(), options)
    assert isinstance(store, EtcdStore)
    assert (store.root, store.address) == ("/magnetar/c1", f"127.0.0.1:{fake.port}")
    assert fake.calls == ["Authenticate", "Range"]
    await store.close()
    await fake.stop()


def test_no_member_is_no_cluster() -> None:
    with pytest.raises(MetadataSettingsError, match="at least one"):
        EtcdSettings(endpoints=[])


async def test_the_embedded_store_by_url(tmp_path: Path) -> None:
    for url in (f"local:{tmp_path}/a", f"local://{tmp_path}/a"):
        store = await open_store(url, SystemClock())
        await store.put("/a", b"1")
        await store.close()
    assert (tmp_path / "a").is_dir()


def test_grpc_is_imported_only_for_etcd() -> None:
    modules = "magnetar.metadata.store_url, magnetar.standalone.server"
    code = f"import sys, {modules}; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
