"""Requests of a broker to others: for whom they are sent, with which credentials, and over TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.support.certificates import Authority, Files
from tests.unit.admin.test_cluster_answers import request_of
from tests.unit.admin.test_cluster_sending import Scripted
from tests.unit.admin.test_peers import Owner
from tests.unit.ledger.cluster import virtual

from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.routing import Peer
from magnetar.admin.cluster.sender import REQUEST_TIMEOUT_S, PeerAnswer, PeerRequest, Sender
from magnetar.admin.rights.caller import CALLER, ORIGINAL_HEADER, ROLE_HEADER
from magnetar.broker.security.principal import Principal
from magnetar.core.errors import AuthorizationError, ServiceNotReady
from magnetar.security.credentials import Credentials
from magnetar.security.secret import Secret
from magnetar.security.tls.reload import open_client_tls
from magnetar.security.tls.settings import ClientTlsConfig

HOST = "127.0.0.1"
SENT = PeerRequest("GET", "/admin/v2/x", "a=1", subject="about x")
HERE = Peer("here:8080", "http://here:8080", local=True)


class Heard:
    """A broker's admin port that answers every request with 204 and keeps its headers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                self.paths.append(first.split(" ")[1])
                self.requests.append(
                    {key.lower(): value for key, _, value in (x.partition(": ") for x in lines)}
                )
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def admin_port(certificate: Files | None = None) -> AsyncIterator[Heard]:
    """A port of another broker, with TLS if it has a certificate."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
    heard = Heard()
    server = await asyncio.start_server(heard.serve, HOST, 0, ssl=context)
    heard.port = server.sockets[0].getsockname()[1]
    try:
        yield heard
    finally:
        server.close()


@pytest.fixture
def caller() -> Iterator[Principal]:
    principal = Principal("a client/1", "its proxy")
    token = CALLER.set(principal)
    yield principal
    CALLER.reset(token)


def other(heard: Heard, *, tls: bool = False) -> Peer:
    scheme = "https" if tls else "http"
    address = f"{scheme}://{HOST}:{heard.port}"
    return Peer("other:1", "" if tls else address, False, address if tls else "")


# -- credentials


async def test_other_brokers_get_this_brokers_token_and_the_principal_of_the_request() -> None:
    script = Scripted((204, None))
    sender = Sender(script.app(), Credentials.parse("token", "token:secret"))
    async with admin_port() as heard:
        token = CALLER.set(Principal("a client/1", "its proxy"))
        try:
            answer = await sender.send(other(heard), SENT)
            await sender.send(HERE, SENT)
        finally:
            CALLER.reset(token)
        assert answer == PeerAnswer(204, b"", "about x")
        (headers,) = heard.requests
        assert heard.paths == ["/admin/v2/x?a=1"]
        assert headers["authorization"] == "Bearer secret"
        assert headers[ROLE_HEADER] == "a%20client%2F1"
        assert headers[ORIGINAL_HEADER] == "its%20proxy"
        (own,) = script.headers
        assert not {"authorization", ROLE_HEADER, ORIGINAL_HEADER} & set(own)
        await sender.close()


async def test_no_request_is_sent_to_other_brokers_for_no_caller() -> None:
    """It would have the rights of a broker."""
    sender = Sender(Scripted().app(), Credentials.parse("token", "token:secret"))
    async with admin_port() as heard:
        assert CALLER.get() is None
        with pytest.raises(AuthorizationError, match="needs a role"):
            await sender.send(other(heard), SENT)
        assert heard.requests == []
    await sender.close()


async def test_without_authentication_a_request_names_nobody() -> None:
    sender = Sender(Scripted().app())
    async with admin_port() as heard:
        await sender.send(other(heard), SENT)
        assert not {"authorization", ROLE_HEADER} & set(heard.requests[0])
        await sender.close()


async def test_credentials_that_cannot_be_read_now_are_a_temporary_failure(
    caller: Principal, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    sender = Sender(Scripted().app(), Credentials.parse("token", f"file:{file}"))
    async with admin_port() as heard:
        token = CALLER.set(caller)
        try:
            with pytest.raises(ServiceNotReady, match="has no credentials now"):
                await sender.send(other(heard), SENT)
            assert heard.requests == []
            file.write_text("renewed")
            await sender.send(other(heard), SENT)
        finally:
            CALLER.reset(token)
        assert heard.requests[0]["authorization"] == "Bearer renewed"
        await sender.close()


class Hanging:
    """Credentials of a provider that never answers."""

    async def method_and_data(self) -> tuple[str, Secret]:
        raise AssertionError("a request over HTTP needs headers")

    async def headers(self) -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    async def close(self) -> None: ...


def test_credentials_that_never_come_are_a_temporary_failure(caller: Principal) -> None:
    async def scenario() -> None:
        CALLER.set(caller)
        sender = Sender(Scripted().app(), Credentials(Hanging()))
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ServiceNotReady, match="no answer within 30 s"):
            await sender.send(Peer("other:1", "http://other:1", local=False), SENT)
        assert loop.time() - began == pytest.approx(REQUEST_TIMEOUT_S)
        await sender.close()

    virtual(scenario())


async def test_a_broker_that_cannot_be_reached_is_a_temporary_failure() -> None:
    async with admin_port() as heard:
        pass
    sender = Sender(Scripted().app())
    with pytest.raises(ServiceNotReady, match="other:1 did not answer GET /admin/v2/x"):
        await sender.send(other(heard), SENT)
    await sender.close()


async def test_other_brokers_are_reached_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would get this broker's token."""
    async with admin_port() as proxy, admin_port() as heard:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{HOST}:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        sender = Sender(Scripted().app())
        assert (await sender.send(other(heard), SENT)).succeeded
        assert (len(heard.requests), proxy.requests) == (1, [])
        await sender.close()


# -- TLS


async def test_a_broker_is_reached_by_the_kind_of_port_that_the_settings_require(
    tmp_path: Path,
) -> None:
    ca = Authority(tmp_path)
    tls = open_client_tls(ClientTlsConfig(trust_file=ca.file))
    plain, encrypted = Sender(Scripted().app()), Sender(Scripted().app(), tls=tls)
    async with admin_port() as open_port, admin_port(ca.issue("broker")) as tls_port:
        both = Peer("b", other(open_port).http_url, False, other(tls_port, tls=True).http_url_tls)
        for sender, heard in ((plain, open_port), (encrypted, tls_port)):
            assert (await sender.send(both, SENT)).status == 204
            assert len(heard.requests) == 1
        with pytest.raises(ServiceNotReady, match="no admin port with TLS"):
            await encrypted.send(other(open_port), SENT)
        with pytest.raises(ServiceNotReady, match="set broker_client_tls"):
            await plain.send(other(tls_port, tls=True), SENT)
        assert (len(open_port.requests), len(tls_port.requests)) == (1, 1)
        await plain.close()
        await encrypted.close()


async def test_this_broker_needs_no_tls_to_reach_itself(tmp_path: Path) -> None:
    tls = open_client_tls(ClientTlsConfig(trust_file=Authority(tmp_path).file))
    for peer in (HERE, Peer("here:8443", "", local=True, http_url_tls="https://here:8443")):
        for given in (None, tls):
            script = Scripted((204, None))
            sender = Sender(script.app(), tls=given)
            assert (await sender.send(peer, SENT)).succeeded
            assert len(script.requests) == 1
            await sender.close()


async def test_changed_certificates_hold_for_the_next_request(tmp_path: Path) -> None:
    former, present = Authority(tmp_path, "former"), Authority(tmp_path, "present")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(former.file.read_bytes())
    tls = open_client_tls(ClientTlsConfig(trust_file=trusted))
    sender = Sender(Scripted().app(), tls=tls)
    async with admin_port(former.issue("a")) as one, admin_port(present.issue("b")) as two:
        first, second = other(one, tls=True), other(two, tls=True)
        for _ in range(2):
            await sender.send(first, SENT)
        assert one.connections == 1, "a connection is used again"
        with pytest.raises(ServiceNotReady, match="did not answer"):
            await sender.send(second, SENT)
        clients = [sender._remote]
        trusted.write_bytes(present.file.read_bytes())
        assert tls.reload()
        await sender.send(second, SENT)
        with pytest.raises(ServiceNotReady):
            await sender.send(first, SENT)
        clients.append(sender._remote)
        assert clients[0] is not None
        assert clients[0] is not clients[1]
        assert not clients[0].is_closed, "a request may still use it"
        trusted.write_bytes(former.file.read_bytes())
        assert tls.reload()
        await sender.send(first, SENT)
        clients.append(sender._remote)
        async with asyncio.timeout(20):
            while not clients[0].is_closed:  # noqa: ASYNC110 - a client has no event
                await asyncio.sleep(0)
        await sender.close()
        assert all(client is not None and client.is_closed for client in clients)


# -- redirects


@pytest.mark.parametrize(
    ("scheme", "plain", "encrypted", "wanted"),
    [
        ("http", "http://o:1", "https://o:2", "http://o:1"),
        ("https", "http://o:1", "https://o:2", "https://o:2"),
        ("https", "http://o:1", "", "http://o:1"),
        ("http", "", "https://o:2", "https://o:2"),
    ],
)
async def test_a_client_is_redirected_to_the_kind_of_port_that_it_came_by(
    scheme: str, plain: str, encrypted: str, wanted: str
) -> None:
    class Elsewhere(Owner):
        async def owner(self, name: object, *, claim: bool) -> Peer:
            return Peer("o", plain, False, encrypted)

    async def handler(_: Request) -> Response:
        raise AssertionError("the owner is another broker")

    peers = Peers(Elsewhere(), Scripted().app())
    request = request_of("/admin/v2/persistent/t1/n1/a%20b", "x=1", host="here")
    request.scope["scheme"] = scheme
    response = await peers.at_bundle_owner_if_any("t1/n1/0_1", request, handler, Response())
    assert response.status_code == 307
    path = "/admin/v2/persistent/t1/n1/a%20b?x=1&authoritative=true"
    assert response.headers["location"] == wanted + path
    again = request_of("/admin/v2/x", "authoritative=true", host="here")
    with pytest.raises(ServiceNotReady, match="sent here to be served"):
        await peers.at_bundle_owner_if_any("t1/n1/0_1", again, handler, Response())
    await peers.close()
