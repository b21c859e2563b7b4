"""Failover between clusters of which each has its own credentials, and shows them to no other."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random

import pytest
from tests.security.sessions import WordOfRoles, secured
from tests.support.broker import running_broker
from tests.unit.client.test_failover import PATIENCE_S, Control

from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.client import AutoFailover, Client, Cluster, ControlledFailover, Tls
from magnetar.client.auth import (
    Basic,
    ClientCertificate,
    NoAuthentication,
    OAuth2,
    Token,
    TokenSupplier,
)
from magnetar.client.auth.plugin import authentication_of
from magnetar.client.errors import ClientError, Disconnected, InvalidConfiguration
from magnetar.client.network.service_urls import ServiceUrls, parse_service_url
from magnetar.core.clock import Clock
from magnetar.metadata.store import MetadataStore
from magnetar.security.api import AuthenticationFailed, Identity, Peer
from magnetar.security.secret import Secret

JAVA = "org.apache.pulsar.client.impl.auth."


class Only(WordOfRoles):
    """Knows one role, and keeps what it was shown."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self.role = role
        self.shown: set[str] = set()

    async def authenticate(self, method: str, data: Secret, peer: Peer) -> Identity:
        self.shown.add(data.reveal_text())
        if data.reveal_text() != self.role:
            raise AuthenticationFailed("another role")
        return Identity(self.role, method, None)


def knowing(authenticator: Only) -> Callable[[MetadataStore, Clock], BrokerSecurity]:
    return secured(authorization=False, authenticator=authenticator)


class Closing(TokenSupplier):
    """Counts how often it is closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_a_client_moves_with_the_credentials_of_the_cluster() -> None:
    one, two = Only("one"), Only("two")
    async with AsyncExitStack() as clusters:
        _, second = await clusters.enter_async_context(running_broker(secure=knowing(two)))
        first_cluster = AsyncExitStack()
        _, first = await first_cluster.enter_async_context(running_broker(secure=knowing(one)))
        own, other = Closing(lambda: "one"), Closing(lambda: "two")
        failover = AutoFailover(
            [Cluster(f"pulsar://127.0.0.1:{second}", auth=other)], failover_delay_s=0, check_s=0.01
        )
        url = f"pulsar://127.0.0.1:{first}"
        async with Client(url, auth=own, failover=failover, backoff_max_s=0.1) as client:
            async with client.producer("orders", batching=None) as producer:
                await producer.send(b"1")
                await first_cluster.aclose()
                async with asyncio.timeout(PATIENCE_S):
                    await producer.send(b"2")
            async with (
                Client(f"pulsar://127.0.0.1:{second}", auth=Token("two")) as direct,
                direct.reader("orders") as reader,
            ):
                assert (await reader.read(PATIENCE_S)).value == b"2"
        assert (own.closed, other.closed) == (1, 1)
    assert (one.shown, two.shown) == ({"one"}, {"two"})


async def test_a_control_service_names_credentials() -> None:
    control, two = Control(), Only("two")
    server = await asyncio.start_server(control.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with running_broker() as (_, first), running_broker(secure=knowing(two)) as (_, second):
        failover = ControlledFailover(f"http://127.0.0.1:{port}/url", check_s=0.01)
        control.document = {
            "serviceUrl": f"pulsar://127.0.0.1:{second}",
            "authPluginClassName": f"{JAVA}AuthenticationToken",
            "authParamsString": "token:two",
        }
        url = f"pulsar://127.0.0.1:{first}"
        async with (
            Client(url, failover=failover, backoff_max_s=0.1) as client,
            client.producer("orders") as producer,
            Client(f"pulsar://127.0.0.1:{second}", auth=Token("two")) as direct,
            direct.reader("orders") as reader,
        ):

            async def keep_sending() -> None:
                while True:
                    await producer.send(b"x")

            sending = asyncio.create_task(keep_sending())
            assert (await reader.read(PATIENCE_S)).value == b"x"
            sending.cancel()
    server.close()
    await server.wait_closed()
    assert two.shown == {"two"}


def test_a_lookup_of_the_cluster_before_does_not_connect() -> None:
    urls = ServiceUrls(parse_service_url("pulsar://a"), Random(1))
    number = urls.cluster()
    urls.check_cluster(number)
    urls.replace(parse_service_url("pulsar://b"))
    with pytest.raises(Disconnected, match="another cluster"):
        urls.check_cluster(number)
    urls.check_cluster(urls.cluster())


@pytest.mark.parametrize(
    ("plugin", "parameters", "kind"),
    [
        ("token", "token:t", Token),
        (f"{JAVA}AuthenticationToken", "t", Token),
        ("basic", json.dumps({"username": "u", "password": "p"}), Basic),
        (f"{JAVA}AuthenticationBasic", json.dumps({"userId": "u", "password": "p"}), Basic),
        ("tls", "tlsCertFile:/c.pem,tlsKeyFile:/k.pem", ClientCertificate),
        (
            f"{JAVA}AuthenticationTls",
            json.dumps({"tlsCertFile": "/c", "tlsKeyFile": "/k"}),
            ClientCertificate,
        ),
        (
            f"{JAVA}oauth2.AuthenticationOAuth2",
            json.dumps({"issuerUrl": "https://i", "privateKey": "/k", "audience": "a"}),
            OAuth2,
        ),
        (f"{JAVA}AuthenticationDisabled", "", NoAuthentication),
    ],
)
def test_plugins_by_name(plugin: str, parameters: str, kind: type) -> None:
    assert isinstance(authentication_of(plugin, parameters), kind)


@pytest.mark.parametrize(
    ("plugin", "parameters"),
    [
        ("athenz", "{}"),
        ("token", " "),
        ("basic", "u:p"),
        ("basic", '{"userId": "u"}'),
        ("tls", "tlsCertFile:/c.pem"),
        ("oauth2", "{"),
    ],
)
def test_refused_plugins(plugin: str, parameters: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        authentication_of(plugin, parameters)
    assert "u:p" not in str(refused.value)


def test_refused_clusters() -> None:
    for cluster in (Cluster(""), Cluster("nonsense"), Cluster(1), 1):  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="URL"):
            Client("pulsar://a", failover=AutoFailover([cluster]))  # type: ignore[list-item]
    with pytest.raises(InvalidConfiguration, match="go together"):
        Cluster("pulsar://b", tls=Tls(certificate_file="c"))
