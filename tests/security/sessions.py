"""Brokers in memory with authentication, and clients whose credentials are their role in clear.

`ROLE` or `ROLE@MS` are credentials of the role, valid until that Unix time in ms. `-` is a wrong
password, `?` a provider that does not answer, `!` a bug of it, `...` one that never answers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.broker.lifecycle.world import NAMESPACE, World, world
from tests.unit.broker.session.stage import Client

from magnetar.broker.security.authorizer import Authorizer
from magnetar.broker.security.broker_security import BrokerSecurity
from magnetar.broker.security.denials import Denials
from magnetar.broker.security.rules import Rules
from magnetar.core.clock import Clock
from magnetar.core.names import NamespaceName
from magnetar.metadata.store import MetadataStore
from magnetar.security.api import AuthenticationFailed, Identity, Peer, ProviderUnavailable
from magnetar.security.secret import Secret
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

ADMIN = "admin"
PROXY = "proxy"
METHOD = "test"


class WordOfRoles:
    """An authenticator whose credentials are `ROLE` or `ROLE@MS`, or provoke a failure."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    async def authenticate(self, method: str, data: Secret, peer: Peer) -> Identity:
        self.peers.append(peer)
        await asyncio.sleep(0)
        if method != METHOD:
            raise AuthenticationFailed(f"no provider for {method}")
        text = data.reveal_text()
        if text == "-":
            raise AuthenticationFailed("the password of admin is secret")
        if text == "?":
            raise ProviderUnavailable("connection refused by 10.0.0.1")
        if text == "!":
            raise ValueError(f"cannot handle {text}")
        if text == "...":
            await asyncio.Event().wait()
        role, _, expires = text.partition("@")
        return Identity(role, method, int(expires) if expires else None)

    def remembered(self, method: str, data: Secret) -> Identity | None:
        return None

    async def authenticate_http(self, headers: Mapping[str, str], peer: Peer) -> Identity:
        raise AuthenticationFailed("no HTTP here")

    async def reload(self) -> int:
        return 0

    async def close(self) -> None:
        """Nothing is open."""


def secured(
    *, authorization: bool = True, denials: Denials | None = None, **more: Any
) -> Callable[[MetadataStore, Clock], BrokerSecurity]:
    """Makes the security of a broker; PROXY is a proxy's role, ADMIN a super user."""

    def make(store: MetadataStore, clock: Clock) -> BrokerSecurity:
        authorizer = None
        if authorization:
            rules = Rules(frozenset({ADMIN, PROXY}))
            authorizer = Authorizer(store, rules, denials or Denials())
        fields: dict[str, Any] = {
            "authenticator": WordOfRoles(),
            "proxy_roles": frozenset({PROXY, "proxy2"}),
        }
        return BrokerSecurity(authorizer=authorizer, clock=clock, **(fields | more))

    return make


@asynccontextmanager
async def closed_broker(*, authorization: bool = True, **more: Any) -> AsyncIterator[World]:
    """A broker with a stopped clock that authenticates its clients."""
    settings = more.pop("settings", {})
    secure = secured(authorization=authorization, **more)
    async with world(secure=secure, **settings) as w:
        yield w


def security_of(w: World) -> BrokerSecurity:
    """The security of a closed broker."""
    assert w.service.security is not None
    return w.service.security


def connect_command(
    data: str | None, method: str | None = METHOD, *, refreshes: bool = True, **more: Any
) -> pb.CommandConnect:
    """CONNECT with the credentials; None leaves the field out."""
    command = pb.CommandConnect(client_version="test", protocol_version=21, **more)
    if method is not None:
        command.auth_method_name = method
    if data is not None:
        command.auth_data = data.encode()
    command.feature_flags.supports_auth_refresh = refreshes
    return command


async def connecting(
    w: World, data: str | None, method: str | None = METHOD, **more: Any
) -> Client:
    """A client that has sent CONNECT and received any response to it."""
    client = Client(w)
    client.say(CommandType.CONNECT, connect_command(data, method, **more))
    await client.quiet()
    return client


async def client_as(w: World, role: str, **more: Any) -> Client:
    """A connected client with this role."""
    client = await connecting(w, role, **more)
    assert client.kinds() == ["CONNECTED"]
    return client


async def grant(w: World, role: str, *actions: str, topic: str | None = None) -> None:
    """Gives a role exactly these actions on the namespace, or on a topic of it."""

    def change(document: dict[str, Any]) -> dict[str, Any]:
        auth = dict(document.get("auth_policies") or {})
        if topic is None:
            auth["namespace_auth"] = {**(auth.get("namespace_auth") or {}), role: list(actions)}
        else:
            topics = dict(auth.get("destination_auth") or {})
            topics[topic] = {**(topics.get(topic) or {}), role: list(actions)}
            auth["destination_auth"] = topics
        return {**document, "auth_policies": auth}

    await w.service.resources.update_policies(NAMESPACE, change)


async def other_tenant(w: World) -> None:
    """Makes the tenant `other` with its admin `other-admin` and the namespace `other/ns`."""
    info = {"adminRoles": ["other-admin"], "allowedClusters": [w.service.cluster]}
    await w.service.resources.create_tenant("other", info)
    document = dict(await w.service.resources.policies(NAMESPACE))
    await w.service.resources.create_namespace(NamespaceName("other", "ns"), document)
