"""The TLS layer against the standard library's: bytes, certificates, refusals, flow control."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from tests.security.tls_rig import HOST, WITHIN_S, Streams, echo_server, exchange
from tests.support.certificates import Authority, Files

from magnetar.security.tls import pacer as pacing
from magnetar.security.tls.pacer import pacer
from magnetar.security.tls.reload import ClientTls, ServerTls, open_client_tls, open_server_tls
from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig, TlsOptions
from magnetar.security.tls.transport import connect


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_tls(files: Files, trust: Path | None = None, *, require: bool = False) -> ServerTls:
    return open_server_tls(
        ServerTlsConfig(
            cert_file=files.cert, key_file=files.key, trust_file=trust, require_client_cert=require
        )
    )


def client_tls(ca: Authority, own: Files | None = None, **options: Any) -> ClientTls:
    return open_client_tls(
        ClientTlsConfig(
            trust_file=ca.file,
            cert_file=own.cert if own else None,
            key_file=own.key if own else None,
            **options,
        )
    )


def on(loop: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_bytes_of_every_size_arrive(ca: Authority, loop: str, version: ssl.TLSVersion) -> None:
    async def main() -> None:
        async with echo_server(server_tls(ca.issue("server"))) as server:
            context = ca.client_context()
            context.maximum_version = version
            streams = await server.client(context)
            assert streams[1].get_extra_info("ssl_object").version() == version.name.replace(
                "_", "."
            )
            for size in (1, 4_999, 5_000, 5_001, 16_384, 16_385, 3_000_000):
                data = os.urandom(size)
                assert await exchange(streams, data) == data
            streams[1].close()
            connection = await server.connection()
            async with asyncio.timeout(WITHIN_S):
                await connection.lost.wait()
            assert connection.error is None

    on(loop, main)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_of_ours_to_a_server_of_ours(ca: Authority, loop: str) -> None:
    async def main() -> None:
        async with echo_server(server_tls(ca.issue("server"))) as server:
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            await connect(client_tls(ca), lambda: protocol, "localhost", server.port)
            writer = asyncio.StreamWriter(
                cast("Any", protocol)._transport, protocol, reader, asyncio.get_running_loop()
            )
            data = os.urandom(300_000)
            assert await exchange((reader, writer), data) == data

    on(loop, main)


async def test_a_client_refuses_a_server_of_another_authority(
    ca: Authority, tmp_path: Path
) -> None:
    async with echo_server(server_tls(Authority(tmp_path, "other").issue("server"))) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await server.connect(client_tls(ca))
        assert not server.connections


async def test_a_client_refuses_the_name_of_another_host(ca: Authority) -> None:
    async with echo_server(server_tls(ca.issue("server", ("broker.example",)))) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
            await server.connect(client_tls(ca))
        assert not server.connections
        await server.connect(client_tls(ca, verify_hostname=False))
        await server.connection()


async def test_a_client_refuses_an_expired_certificate(ca: Authority) -> None:
    async with echo_server(server_tls(ca.issue("server", days=-1))) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await server.connect(client_tls(ca))
        await server.connect(client_tls(ca, allow_insecure=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_protocols_are_refused(ca: Authority, version: ssl.TLSVersion) -> None:
    async with echo_server(server_tls(ca.issue("server"))) as server:
        context = ca.client_context()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await server.client(context)
        assert not server.connections


async def test_only_the_protocols_of_the_options_are_spoken(ca: Authority) -> None:
    files = ca.issue("server")
    options = TlsOptions(protocols=("TLSv1.3",))
    config = ServerTlsConfig(cert_file=files.cert, key_file=files.key, options=options)
    async with echo_server(open_server_tls(config)) as server:
        context = ca.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await server.client(context)
        await server.client(ca.client_context())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_session_sees_a_verified_certificate_only(
    ca: Authority, version: ssl.TLSVersion
) -> None:
    own = ca.issue("client")
    async with echo_server(server_tls(ca.issue("server"), ca.file)) as server:
        for number, files in enumerate((own, None)):
            context = ca.client_context(files)
            context.maximum_version = version
            await server.client(context)
            found = (await server.connection(number)).certificate
            assert found == (own.der if files else None)
    async with echo_server(server_tls(ca.issue("server"))) as server:
        await server.client(ca.client_context(own))
        assert (await server.connection()).certificate is None


def sent_chain(streams: Streams) -> list[bytes]:
    """The certificates (DER) that the server sent."""
    tls = streams[1].get_extra_info("ssl_object")
    der = cast("Any", ssl)._ssl.ENCODING_DER
    return [found.public_bytes(der) for found in tls._sslobj.get_unverified_chain()]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("require", [False, True])
async def test_a_root_that_clients_have_is_not_sent(
    ca: Authority, version: ssl.TLSVersion, require: bool
) -> None:
    files, context = ca.issue("server"), ca.client_context(ca.issue("client"))
    context.maximum_version = version
    async with echo_server(server_tls(files, ca.file, require=require)) as server:
        assert sent_chain(await server.client(context)) == [files.der]
        assert (await server.connection()).certificate is not None


async def test_an_intermediate_in_the_trust_file_is_sent(ca: Authority, tmp_path: Path) -> None:
    below = Authority(tmp_path, "below", ca)
    files, trust = below.issue("server"), tmp_path / "trust.pem"
    trust.write_bytes(ca.file.read_bytes() + below.file.read_bytes())
    async with echo_server(server_tls(files, trust)) as server:
        assert len(sent_chain(await server.client(ca.client_context()))) > 1
        await server.client(ca.client_context(ca.issue("client")))
        assert (await server.connection(1)).certificate is not None


async def test_the_chain_of_the_certificate_file_is_sent(ca: Authority, tmp_path: Path) -> None:
    below = Authority(tmp_path, "below", ca)
    files = below.issue("server")
    alone = files.cert.read_bytes()
    files.cert.write_bytes(alone + below.file.read_bytes())
    async with echo_server(server_tls(files, ca.file)) as server:
        assert len(sent_chain(await server.client(ca.client_context()))) == 2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("which", ["other", "expired"])
async def test_a_wrong_certificate_is_refused_where_none_is_required(
    ca: Authority, tmp_path: Path, which: str, version: ssl.TLSVersion
) -> None:
    own = {
        "other": Authority(tmp_path, "other").issue("client"),
        "expired": ca.issue("client", days=-1),
    }[which]
    context = ca.client_context(own)
    context.maximum_version = version
    async with echo_server(server_tls(ca.issue("server"), ca.file)) as server:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await exchange(await server.client(context), b"x")
        assert not server.connections


@pytest.mark.parametrize("which", ["none", "other", "expired"])
async def test_a_required_client_certificate(ca: Authority, tmp_path: Path, which: str) -> None:
    own = {
        "none": None,
        "other": Authority(tmp_path, "other").issue("client"),
        "expired": ca.issue("client", days=-1),
    }[which]
    async with echo_server(server_tls(ca.issue("server"), ca.file, require=True)) as server:
        streams = await server.client(ca.client_context(own))
        # In TLS 1.3 the client's handshake is complete before the server has its certificate.
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await exchange(streams, b"x")
        assert not server.connections


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x10\x00\x00", b"\x16\x03\x01"]
)
async def test_a_plain_client_is_closed_and_nothing_is_created(
    ca: Authority, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "HANDSHAKE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(pacing, "CHECK_S", 0.05)
    async with echo_server(server_tls(ca.issue("server"))) as server:
        reader, writer = await server.client(None)
        writer.write(first)
        async with asyncio.timeout(WITHIN_S):
            await reader.read()
        stats = pacer().stats
        assert stats.failed + stats.timed_out == 1
        assert not server.connections
        assert not pacer().unfinished


async def test_a_plain_client_is_served_where_that_is_permitted(ca: Authority) -> None:
    async with echo_server(server_tls(ca.issue("server")), plain=True) as server:
        streams = await server.client(None)
        data = os.urandom(100_000)
        assert await exchange(streams, data) == data
        assert await exchange(await server.client(ca.client_context()), data) == data


async def test_reading_pauses_with_bytes_that_are_decrypted_later(ca: Authority) -> None:
    async with echo_server(server_tls(ca.issue("server"))) as server:
        reader, writer = await server.client(ca.client_context())
        assert await exchange((reader, writer), b"first") == b"first"
        connection = await server.connection()
        assert connection.transport is not None
        connection.transport.pause_reading()
        data = os.urandom(100_000)
        writer.write(data)
        await asyncio.sleep(0.2)  # all data that can arrive has arrived
        assert connection.received_bytes <= 5 + 5_000
        connection.transport.resume_reading()
        async with asyncio.timeout(WITHIN_S):
            assert await reader.readexactly(len(data)) == data


async def test_bytes_changed_on_the_way_end_the_connection(ca: Authority) -> None:
    async with echo_server(server_tls(ca.issue("server"))) as server:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = ca.client_context().wrap_bio(incoming, outgoing, server_hostname=HOST)
        reader, writer = await server.client(None)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
                continue
            break
        tls.write(b"an order of 100")
        record = bytearray(outgoing.read())
        record[-20] ^= 1
        writer.write(record)
        connection = await server.connection()
        async with asyncio.timeout(WITHIN_S):
            await connection.lost.wait()
        assert isinstance(connection.error, ssl.SSLError)
        assert not connection.received_bytes


async def test_closing_sends_what_was_written(ca: Authority) -> None:
    async with echo_server(server_tls(ca.issue("server"))) as server:
        reader, _ = await server.client(ca.client_context())
        connection = await server.connection()
        assert connection.transport is not None
        data = os.urandom(2_000_000)
        connection.transport.writelines([data[:10], data[10:]])
        connection.transport.close()
        connection.transport.write(b"too late")
        async with asyncio.timeout(WITHIN_S):
            assert await reader.read(-1) == data


async def test_a_failed_connection_leaves_nothing_open(ca: Authority) -> None:
    """A server that accepts and never answers: the caller's deadline ends the attempt."""
    with socket.create_server((HOST, 0)) as silent:  # the kernel completes the connection
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await connect(client_tls(ca), asyncio.Protocol, HOST, port)
        await asyncio.sleep(0)
        assert not pacer().unfinished
