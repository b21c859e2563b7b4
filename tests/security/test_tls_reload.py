"""Certificates change under running connections; broken files change nothing."""

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.security.tls_rig import WITHIN_S, EchoServer, echo_server, exchange
from tests.support.certificates import Authority, Files

from magnetar.security.tls.files import TlsFileError
from magnetar.security.tls.process import ProcessTls
from magnetar.security.tls.reload import ServerTls, open_client_tls, open_server_tls
from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig, TlsOptions


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config(files: Files, trust: Path | None = None, refresh_s: float = 10.0) -> ServerTlsConfig:
    return ServerTlsConfig(
        cert_file=files.cert,
        key_file=files.key,
        trust_file=trust,
        options=TlsOptions(refresh_s=refresh_s),
    )


async def served_certificate(ca: Authority, server: EchoServer) -> bytes:
    """The certificate that a new connection gets."""
    _, writer = await server.client(ca.client_context())
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(der, bytes)
    return der


async def test_new_connections_get_the_new_certificate_and_old_ones_stay(ca: Authority) -> None:
    files, newer = ca.issue("server"), ca.issue("server")
    before = files.der
    tls = open_server_tls(config(files))
    async with echo_server(tls) as server:
        old = await server.client(ca.client_context())
        assert await exchange(old, b"1") == b"1"
        assert not tls.reload()
        files.replace_by(newer)
        assert await served_certificate(ca, server) == before
        assert tls.reload()
        assert await served_certificate(ca, server) == newer.der != before
        assert await exchange(old, b"2") == b"2"
        assert tls.stats.reloads == 1


async def test_a_certificate_without_its_key_waits_for_the_key(
    ca: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files, newer = ca.issue("server"), ca.issue("server")
    before = files.der
    tls = open_server_tls(config(files))
    async with echo_server(tls) as server:
        files.cert.write_bytes(newer.cert.read_bytes())
        for _ in range(3):
            assert not tls.reload()
        assert "is not the key of" in tls.failing
        assert tls.stats.reload_failures == 3
        assert len([r for r in caplog.records if "not used" in r.message]) == 1
        assert await served_certificate(ca, server) == before
        files.key.write_bytes(newer.key.read_bytes())
        assert tls.reload()
        assert not tls.failing
        assert await served_certificate(ca, server) == newer.der


@pytest.mark.parametrize("content", [b"", b"no PEM", None])
@pytest.mark.parametrize("which", ["cert", "key", "trust"])
async def test_broken_files_keep_the_old_ones_in_use(
    ca: Authority, content: bytes | None, which: str
) -> None:
    files = ca.issue("server")
    before = files.der
    tls = open_server_tls(config(files, ca.file))
    broken = {"cert": files.cert, "key": files.key, "trust": ca.file}[which]
    good = broken.read_bytes()
    client = ca.client_context()
    async with echo_server(tls) as server:
        if content is None:
            broken.unlink()
        else:
            broken.write_bytes(content)
        assert not tls.reload()
        assert str(broken) in tls.failing
        _, writer = await server.client(client)
        assert writer.get_extra_info("ssl_object").getpeercert(binary_form=True) == before
        broken.write_bytes(good)
        tls.reload()
        assert not tls.failing


async def test_a_removed_authority_is_trusted_no_more(ca: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    trust = tmp_path / "trust.pem"
    trust.write_bytes(ca.file.read_bytes() + other.file.read_bytes())
    own = other.issue("client")
    context = ca.client_context(own)
    tls = open_server_tls(config(ca.issue("server"), trust))
    async with echo_server(tls) as server:
        _, first = await server.client(context)
        assert (await server.connection(0)).certificate == own.der
        trust.write_bytes(ca.file.read_bytes())
        assert tls.reload()
        # Also with the session of the first connection, which must not be resumed.
        session = first.get_extra_info("ssl_object").session
        assert session is None or not session.has_ticket
        streams = await server.client(context)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await exchange(streams, b"x")
        assert len(server.connections) == 1


async def test_the_files_are_followed(ca: Authority) -> None:
    files, newer = ca.issue("server"), ca.issue("server")
    process = ProcessTls()
    tls = process.server(config(files, refresh_s=0.01))
    files.replace_by(newer)
    async with asyncio.timeout(WITHIN_S):
        while not tls.stats.reloads:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.01)
    page = "".join(process.families())
    assert 'magnetar_certificate_reloads_total{tls="server"} 1' in page
    await process.stop()


async def test_zero_looks_before_each_connection(ca: Authority) -> None:
    files, newer = ca.issue("server"), ca.issue("server")
    tls: ServerTls = open_server_tls(config(files, refresh_s=0))
    async with echo_server(tls) as server:
        files.replace_by(newer)
        assert await served_certificate(ca, server) == newer.der


async def test_expiry_and_failures_are_metrics(ca: Authority) -> None:
    process = ProcessTls()
    assert not list(process.families())
    files = ca.issue("server", days=-2)
    tls = process.server(config(files))
    process.client(ClientTlsConfig(trust_file=ca.file), "bookies")
    files.key.write_bytes(b"")
    tls.reload()
    lines = "".join(process.families()).splitlines()
    (expiry,) = [line for line in lines if line.startswith("magnetar_certificate_expiry")]
    assert -2 * 86_400 - 100 < int(expiry.partition(" ")[2]) < -2 * 86_400 + 100
    assert 'magnetar_certificate_reload_failing{tls="server"} 1' in lines
    assert 'magnetar_certificate_reload_failing{tls="bookies"} 0' in lines
    await process.stop()


def test_files_that_cannot_be_used_are_named_at_the_start(ca: Authority, tmp_path: Path) -> None:
    files, other = ca.issue("server"), ca.issue("server")
    missing = tmp_path / "missing.pem"
    for pair, named in (
        (Files(missing, files.key), "missing.pem"),
        (Files(files.cert, other.key), "is not the key of"),
        (Files(files.key, files.key), files.key.name),
    ):
        with pytest.raises(TlsFileError, match=named):
            open_server_tls(config(pair))
    with pytest.raises(TlsFileError, match="no CA certificates"):
        open_client_tls(ClientTlsConfig(trust_file=files.key))


def test_an_encrypted_key_is_refused_and_asks_nobody(ca: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = ca.issue("server")
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsFileError, match="encrypted"):
        open_server_tls(config(files))
