"""OpenID Connect and OAuth 2.0 with Dex, a provider that others run, and the official clients.

Dex signs with keys that it makes when it starts, and its tokens have no `nbf`.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import jwt
import pulsar
import pytest
from tests.support.server_process import ServerProcess

from magnetar.core.clock import SystemClock
from magnetar.security.credentials.oauth2 import OAuth2Config, OAuth2Credentials
from magnetar.security.secret import Secret
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import encode_command
from magnetar.wire.events import Command

from .go_programs import GO_TEST_TIMEOUT_S, prepare_dex
from .java_programs import JAVA_TEST_TIMEOUT_S, LineProcess
from .security import clients, programs
from .security.clients import Trial
from .security.credentials import Credentials
from .security.dex import (
    CLIENT,
    EMAIL,
    GROUP,
    HTTP_TIMEOUT_S,
    PASSWORD,
    SECRET,
    TOKEN_LIFE_S,
    Dex,
)
from .security.table import Scenario
from .support import PATIENCE_S, wait_until

TOPIC = "persistent://public/default/dex"
ANY_ROLE = "/admin/v2/brokers/ready"

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S + GO_TEST_TIMEOUT_S)


@pytest.fixture(scope="module")
def dex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dex]:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    server = Dex(prepare_dex(), tmp_path_factory.mktemp("dex"), hashed)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def closed(dex: Dex, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that accepts Dex's tokens; the group of its client is a super user."""
    keys = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.oidc"
        ".AuthenticationProviderOpenID",
        "openIDAllowedTokenIssuers": dex.url,
        "openIDAllowedAudiences": CLIENT,
        "openIDRequireIssuersUseHttps": "false",
        "openIDRoleClaim": "groups",
        "openIDKeyIdCacheMissRefreshSeconds": "1",
        "superUserRoles": GROUP,
    }
    environment = {f"PULSAR_PREFIX_{name}": value for name, value in keys.items()}
    root = tmp_path_factory.mktemp("closed")
    with ServerProcess(root, environment=environment) as process:
        yield process


def status(closed: ServerProcess, token: str) -> int:
    """The answer to a request with the token that needs no right."""
    headers = {"Authorization": f"Bearer {token}"}
    url = closed.http_url + ANY_ROLE
    return httpx.get(url, headers=headers, trust_env=False, timeout=HTTP_TIMEOUT_S).status_code


async def answer_to_connect(closed: ServerProcess, token: str) -> Command:
    """The first command that the server sends to a client with this token."""
    connect = pb.CommandConnect(client_version="dex", protocol_version=21)
    connect.auth_method_name, connect.auth_data = "token", token.encode()
    decoder = FrameDecoder()
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(closed.host, closed.port)
        writer.write(encode_command(CommandType.CONNECT, connect))
        while True:
            data = await reader.read(1 << 16)
            assert data, "closed without an answer"
            for event in decoder.feed(data):
                assert isinstance(event, Command)
                writer.close()
                return event


def oauth2(dex: Dex, directory: Path) -> dict[str, str]:
    """The parameters of clients, with the names of all of them."""
    key_file = directory / "client.json"
    document = {
        "type": "client_credentials",
        "client_id": CLIENT,
        "client_secret": SECRET,
        "issuer_url": dex.url,
    }
    key_file.write_text(json.dumps(document))
    return {
        "type": "client_credentials",
        "issuerUrl": dex.url,
        "issuer_url": dex.url,
        "privateKey": f"file://{key_file}",
        "private_key": f"file://{key_file}",
        "audience": CLIENT,
        "scope": "openid groups",
    }


# First, because the server must not have Dex's keys yet.
async def test_clients_of_a_provider_that_is_down_may_try_again(
    dex: Dex, closed: ServerProcess
) -> None:
    token = dex.token()
    dex.stop()
    assert status(closed, token) == httpx.codes.SERVICE_UNAVAILABLE
    refused = await answer_to_connect(closed, token)
    assert isinstance(refused.message, pb.CommandError)
    assert refused.message.error == pb.ServiceNotReady
    dex.start()
    wait_until(lambda: status(closed, dex.token()) == httpx.codes.OK, what="a token of Dex")
    assert (await answer_to_connect(closed, dex.token())).type == CommandType.CONNECTED


def test_a_token_of_dex_has_no_not_before(dex: Dex) -> None:
    claims = jwt.decode(dex.token(), options={"verify_signature": False})
    assert {"iss", "sub", "aud", "iat", "exp"} <= set(claims)
    assert "nbf" not in claims


def test_a_user_of_dex_authenticates(dex: Dex, closed: ServerProcess) -> None:
    """The user is in no group, so its token has no role here."""
    token = dex.token(
        grant_type="password", username=EMAIL, password=PASSWORD, scope="openid email"
    )
    assert status(closed, token) == httpx.codes.UNAUTHORIZED
    assert "groups" in closed.log.read_text()


def test_tokens_end(dex: Dex, closed: ServerProcess) -> None:
    token = dex.token()
    assert status(closed, token) == httpx.codes.OK
    expires_s = jwt.decode(token, options={"verify_signature": False})["exp"]
    wait_until(lambda: time.time() > expires_s, what="the end of the token's life")
    assert status(closed, token) == httpx.codes.UNAUTHORIZED


def test_a_new_key_is_fetched_and_the_old_one_ends(dex: Dex, closed: ServerProcess) -> None:
    old = dex.token()
    assert status(closed, old) == httpx.codes.OK
    dex.stop()
    dex.start()
    wait_until(lambda: status(closed, dex.token()) == httpx.codes.OK, what="the new key")
    assert status(closed, old) == httpx.codes.UNAUTHORIZED


async def test_our_own_clients_renew_their_tokens(dex: Dex, closed: ServerProcess) -> None:
    """Brokers present these to each other."""
    config = OAuth2Config(
        issuer_url=dex.url, client_id=CLIENT, client_secret=Secret(SECRET), scope="openid groups"
    )
    credentials = OAuth2Credentials(config, SystemClock())
    used: set[str] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(used) < 3:
        assert time.monotonic() < deadline
        _, token = await credentials.method_and_data()
        assert status(closed, token.reveal_text()) == httpx.codes.OK
        used.add(token.reveal_text())
    await credentials.close()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LineProcess]]:
    started = dict(programs.prepare().started(tmp_path_factory.mktemp("programs")))
    yield started
    codes = {name: process.close() for name, process in started.items()}
    assert not any(codes.values()), codes


@pytest.mark.parametrize("client", ["java-4.0", "java-4.2", "go", "pulsar-admin", "python"])
def test_the_official_clients_obtain_tokens_of_dex(
    dex: Dex,
    closed: ServerProcess,
    processes: dict[str, LineProcess],
    tmp_path: Path,
    client: str,
) -> None:
    plugin = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
    trial = Trial(
        Scenario("oauth2", "right", "plain"),
        Credentials(plugin, oauth2(dex, tmp_path)),
        closed.service_url,
        closed.http_url,
        "",
        f"{TOPIC}-{client}",
    )
    if client == "python":
        found = clients.by_python([trial], tmp_path / "client.log")
    elif client == "pulsar-admin":
        found = clients.by_admin(processes[client], [trial])
    else:
        found = clients.by_program(processes[client], [trial])
    assert found == {"oauth2-right-plain": "ok"}


def test_open_connections_outlive_their_tokens(
    dex: Dex, closed: ServerProcess, tmp_path: Path
) -> None:
    """The producer sends for three lives of a token, over the same connection."""
    parameters = json.dumps(oauth2(dex, tmp_path))
    client = pulsar.Client(
        closed.service_url,
        authentication=pulsar.AuthenticationOauth2(parameters),
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log")),
    )
    producer = client.create_producer(f"{TOPIC}-open")

    def connection() -> Any:
        headers = {"Authorization": f"Bearer {dex.token()}"}
        url = f"{closed.http_url}/admin/v2/persistent/public/default/dex-open/stats"
        stats = httpx.get(url, headers=headers, trust_env=False, timeout=HTTP_TIMEOUT_S)
        (publisher,) = stats.raise_for_status().json()["publishers"]
        return publisher["address"], publisher["connectedSince"]

    producer.send(b"first")
    first = connection()
    ends = time.monotonic() + 3 * TOKEN_LIFE_S
    while time.monotonic() < ends:
        producer.send(b"x")
        time.sleep(0.01)
    assert connection() == first
    client.close()
