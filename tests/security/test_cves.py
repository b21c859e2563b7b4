"""The vulnerabilities that Pulsar has had and that no other file of these tests names.

The rest is in test_token_cves (2021-22160, 2023-51437), test_rest_guard (2021-41571, 2023-30428),
test_recheck (2023-30429) and test_refresh (2023-31007).
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.certificates import Authority, Files
from tests.support.raw_client import RawClient
from tests.support.settings import changed

from magnetar.admin.cluster.routing import Peer
from magnetar.admin.cluster.sender import PeerRequest, Sender
from magnetar.admin.rights import table
from magnetar.admin.rights.caller import CALLER
from magnetar.admin.rights.right import Public
from magnetar.broker.security.principal import Principal
from magnetar.core.errors import ServiceNotReady
from magnetar.security.api import ProviderUnavailable
from magnetar.security.credentials import Credentials
from magnetar.security.fetch import ProviderClient, tls_context
from magnetar.security.secret import Secret
from magnetar.security.tls.reload import ClientTls, open_client_tls
from magnetar.security.tls.settings import ClientTlsConfig
from magnetar.security.tls.transport import connect
from magnetar.settings.field import settings_of
from magnetar.settings.standalone import StandaloneSettings

from .rest import SUPER, WRONG, Closed, closed_rest, token
from .sessions import ADMIN, connect_command, secured
from .test_rest_matrix import Case, cases, is_refused

WITHIN_S: Final = 20.0
SECRET: Final = "the-secret-of-this-test"  # noqa: S105


@pytest.fixture
async def closed() -> AsyncIterator[Closed]:
    async with closed_rest() as broker:
        yield broker


# -- CVE-2022-24280: a proxy connects to any host and port that a client names


@dataclass(slots=True)
class Listener:
    """A port of another host that a client may name."""

    port: int = 0
    connections: int = 0

    def opened(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.opened, HOST, 0)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()


async def test_cve_2022_24280_a_broker_connects_nowhere_for_a_client() -> None:
    async with listening() as other, running_broker(secure=secured()) as (_, port):
        command = connect_command(ADMIN, proxy_to_broker_url=f"{HOST}:{other.port}")
        client = await RawClient.connect(HOST, port, command)
        producer = await client.producer("persistent://public/default/t")
        client.send(producer, 0, b"x")
        await client.receipted(producer, 1)
        await client.close()
        assert not other.connections


async def test_cve_2022_24280_the_urls_of_a_cluster_are_only_stored(closed: Closed) -> None:
    async with listening() as other:
        at = f"{HOST}:{other.port}"
        urls = {"serviceUrl": f"http://{at}", "brokerServiceUrl": f"pulsar://{at}"}
        await closed.done(SUPER, "PUT", "~/clusters/elsewhere", urls)
        for path in ("~/clusters/elsewhere", "~/clusters/elsewhere/peers", "~/brokers/elsewhere"):
            await closed.call(SUPER, "GET", path)
        assert not other.connections


# -- CVE-2022-33681, 33682, 33683, 33684: a server whose certificate names another host, or is not
# trusted, gets the credentials of the client


class Heard:
    """A TLS server; it keeps what clients say after the handshake."""

    def __init__(self) -> None:
        self.port = 0
        self.data = b""
        self.some = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                self.data += data
                self.some.set()
        writer.close()


@asynccontextmanager
async def tls_server(files: Files) -> AsyncIterator[Heard]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    heard = Heard()
    server = await asyncio.start_server(heard.serve, HOST, 0, ssl=context)
    heard.port = server.sockets[0].getsockname()[1]
    try:
        yield heard
    finally:
        server.close()


def trusting(ca: Authority) -> ClientTls:
    return open_client_tls(ClientTlsConfig(trust_file=ca.file), "client")


async def as_broker(ca: Authority, port: int) -> None:
    """Sends a request with a token to another broker, as for `pulsar-admin`."""

    async def no_app(*_: object) -> None:
        raise AssertionError("the request is for another broker")

    sender = Sender(no_app, Credentials.parse("token", f"token:{SECRET}"), trusting(ca))
    former = CALLER.set(Principal("a client"))
    try:
        peer = Peer("other:1", "", False, f"https://{HOST}:{port}")
        await sender.send(peer, PeerRequest("GET", "/admin/v2/tenants"))
    finally:
        CALLER.reset(former)
        await sender.close()


async def as_oauth2_client(ca: Authority, port: int) -> None:
    """Posts the secret of a client to an identity provider."""
    client = ProviderClient(tls_context(str(ca.file)), connect_timeout_s=5, read_timeout_s=5)
    try:
        await client.post_form(f"https://{HOST}:{port}/token", {"client_secret": SECRET})
    finally:
        await client.close()


class Speaker(asyncio.Protocol):
    """A client of the binary protocols, which begins with its credentials."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(SECRET.encode())
        transport.close()


async def as_ledger_client(ca: Authority, port: int) -> None:
    """Connects as brokers do to bookies."""
    await connect(trusting(ca), Speaker, HOST, port)


CLIENTS: Final[dict[str, Callable[[Authority, int], Awaitable[None]]]] = {
    "broker": as_broker,
    "oauth2": as_oauth2_client,
    "ledgers": as_ledger_client,
}


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Authority, Authority]:
    return Authority(tmp_path), Authority(tmp_path, "other")


@pytest.mark.parametrize("client", CLIENTS)
async def test_the_right_server_gets_the_credentials(
    client: str, authorities: tuple[Authority, Authority]
) -> None:
    ca, _ = authorities
    async with tls_server(ca.issue("server")) as heard:
        asking = asyncio.ensure_future(CLIENTS[client](ca, heard.port))
        async with asyncio.timeout(WITHIN_S):
            await heard.some.wait()
        assert SECRET.encode() in heard.data
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("wrong", ["host", "authority", "expired"])
async def test_cve_2022_33681_to_33684_a_server_is_verified_before_it_hears_anything(
    client: str, wrong: str, authorities: tuple[Authority, Authority]
) -> None:
    ca, other = authorities
    files = {
        "host": lambda: ca.issue("server", ("elsewhere.example",)),
        "authority": lambda: other.issue("server"),
        "expired": lambda: ca.issue("server", days=-1),
    }[wrong]()
    async with tls_server(files) as heard:
        with pytest.raises((ssl.SSLCertVerificationError, ServiceNotReady, ProviderUnavailable)):
            async with asyncio.timeout(WITHIN_S):
                await CLIENTS[client](ca, heard.port)
        assert heard.data == b""


# -- CVE-2022-34321 and CVE-2023-37544: routes that need no credentials

OPEN: Final = {"/healthz", "/readyz", "/status.html", "/metrics"}


async def test_cve_2022_34321_and_2023_37544_only_probes_and_metrics_are_open(
    closed: Closed,
) -> None:
    public = {path for (_, path), right in table.RIGHTS.items() if isinstance(right, Public)}
    assert public == OPEN
    of_pulsar = ["/proxy-stats/connections", "/proxy-stats/topics", "/ws/v2/producer", "/pingpong"]
    answered = {
        path
        for path in (*of_pulsar, *(case.path for case in cases() if case.method == "GET"))
        if (await closed.send("GET", path, None)).status_code != 401
    }
    assert answered == OPEN
    assert (await closed.send("GET", "/pingpong", WRONG)).status_code == 401


# -- CVE-2023-37579, 2024-27135, 2024-27317, 2024-27894: functions and connectors run code, read
# URLs and unpack archives of clients


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v3/functions/t1/n1/f",
        "/admin/v3/sources/t1/n1/s",
        "/admin/v3/sinks/t1/n1/s",
        "/admin/v3/packages/function/t1/n1/p/v1",
        "/admin/v2/functions/t1/n1/f",
        "/admin/v2/worker/cluster",
        "/admin/v2/functions/connectors",
    ],
)
async def test_cve_2024_27135_27317_27894_and_2023_37579_brokers_run_no_functions(
    closed: Closed, path: str
) -> None:
    async with listening() as other:
        body = {"jar": f"http://{HOST}:{other.port}/x.jar", "url": "file:///etc/passwd"}
        for method in ("GET", "POST", "PUT"):
            sent = {} if method == "GET" else {"body": body}
            assert (await closed.send(method, path, None, **sent)).status_code == 401
            answer = await closed.send(method, path, token(SUPER), **sent)
            assert answer.status_code in (404, 409), answer.text
        assert not other.connections


# -- CVE-2024-28098 and CVE-2024-29834: producers and consumers administrate topics

ADMINISTRATION: Final = frozenset(
    {
        "POST /admin/v2/persistent/t1/n1/a/partitions",
        "PUT /admin/v2/persistent/t1/n1/a/partitions",
        "DELETE /admin/v2/persistent/t1/n1/a/partitions",
        "POST /admin/v2/persistent/t1/n1/a/retention",
        "POST /admin/v2/persistent/t1/n1/a/backlogQuota",
        "DELETE /admin/v2/persistent/t1/n1/a",
        "PUT /admin/v2/persistent/t1/n1/a/unload",
    }
)


async def test_cve_2024_28098_and_29834_producers_and_consumers_administrate_nothing(
    closed: Closed,
) -> None:
    await closed.done(SUPER, "POST", "~/namespaces/t1/n1/permissions/both", ["produce", "consume"])
    await closed.done(
        SUPER, "POST", "~/persistent/t1/n1/a/permissions/both", ["produce", "consume"]
    )
    tried: set[str] = set()
    for case in administration():
        assert await is_refused(closed, case, token("both")), case
        tried.add(str(case))
    assert tried >= ADMINISTRATION
    assert len(tried) > len(ADMINISTRATION)


def administration() -> list[Case]:
    """Returns the requests of tenant admins, and those of `ADMINISTRATION`."""
    return [
        case
        for case in cases()
        if str(case) in ADMINISTRATION or (case.roles == {"ta"} and "/a" in case.path)
    ]


# -- CVE-2025-30677: passwords of configurations in the log


def test_cve_2025_30677_secrets_of_settings_are_not_shown() -> None:
    settings = StandaloneSettings()
    secrets = [item.name for item in settings_of(StandaloneSettings).values() if item.secret]
    assert {"token_secret_key", "basic_users", "broker_client_auth_parameters"} <= set(secrets)
    own: dict[str, Any] = dict.fromkeys(secrets, Secret(SECRET))
    shown = changed(settings, **own)
    assert SECRET not in f"{shown} {shown!r} {Secret(SECRET)} {Secret(SECRET)!r}"
    assert "***" in repr(shown)


async def test_cve_2025_30677_secrets_of_settings_are_not_answered() -> None:
    parameters = Secret(f"token:{SECRET}")
    async with closed_rest(
        broker_client_auth_plugin="token", broker_client_auth_parameters=parameters
    ) as closed:
        answer = await closed.call(SUPER, "GET", "~/brokers/configuration/runtime")
        assert "brokerClientAuthenticationParameters" in answer.text
        assert SECRET not in answer.text
        key = closed.service.settings.security.token_secret_key
        assert key is not None
        assert key.reveal_text() not in answer.text
