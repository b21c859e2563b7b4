"""A broker in memory whose REST needs tokens, and the roles that use it.

Tenant `t1` has the admin `ta`, tenant `t2` the admin `tb`. In `t1/n1` are the topic `a` with the
subscription `s`, and the partitioned topic `p`. `prod` may produce in the namespace, `cons` may
consume, and `topicprod` may produce to the topic `a`. `fn` has the actions of functions,
and `nobody` has none.
"""

import base64
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import jwt
from tests.unit.admin.support import NO_BODY, Admin, start_service, stop_service

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.security.opener import open_security
from magnetar.broker.service import BrokerService
from magnetar.core.names import NamespaceName
from magnetar.security.secret import Secret
from magnetar.settings.field import compose
from magnetar.settings.standalone import StandaloneSettings

KEY: Final = b"0123456789abcdef0123456789abcdef"
SUPER, BROKER, PROXY, SUPER_PROXY = "admin", "broker", "proxy", "proxysuper"
NAMESPACE: Final = NamespaceName("t1", "n1")
TOPIC: Final = "persistent://t1/n1/a"
WRONG: Final = "a.b.c"


def token(role: str, *, key: bytes = KEY, **claims: Any) -> str:
    """Returns a signed token of the role."""
    return jwt.encode({"sub": role, **claims}, key, "HS256")


def expired(role: str) -> str:
    """Returns a token of the role that was valid until a minute ago."""
    return token(role, exp=int(time.time()) - 60)


def settings(**more: Any) -> StandaloneSettings:
    """Returns the settings of a closed broker."""
    defaults: dict[str, Any] = {
        "authentication_enabled": True,
        "authentication_providers": ("token",),
        "authorization_enabled": True,
        "superuser_roles": (SUPER, BROKER, SUPER_PROXY),
        "proxy_roles": (PROXY, SUPER_PROXY),
        "token_secret_key": Secret("data:;base64," + base64.b64encode(KEY).decode()),
    }
    return compose(StandaloneSettings, **(defaults | more))


@dataclass(slots=True)
class Closed:
    """A closed broker and a client of its REST."""

    admin: Admin

    @property
    def service(self) -> BrokerService:
        return self.admin.service

    async def send(
        self,
        method: str,
        path: str,
        credentials: str | None,
        body: object = NO_BODY,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Sends a request with this token; without an Authorization header for None."""
        own = {} if credentials is None else {"authorization": f"Bearer {credentials}"}
        return await self.admin.call(method, path, body, {**own, **(headers or {})})

    async def call(
        self, role: str, method: str, path: str, body: object = NO_BODY, **headers: str
    ) -> httpx.Response:
        """Sends a request of the role; `_` in the names of headers stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.send(method, path, token(role), body, named)

    async def done(self, role: str, method: str, path: str, body: object = NO_BODY) -> None:
        response = await self.call(role, method, path, body)
        assert response.status_code < 300, f"{method} {path}: {response.text}"

    async def metrics(self) -> str:
        """Returns the text of /metrics."""
        return (await self.admin.http.get("/metrics")).text

    async def granted(self) -> None:
        """Creates the tenants, topics and grants of the module's text."""
        resources = self.service.resources
        await resources.update_tenant("t1", {"adminRoles": ["ta"], "allowedClusters": []})
        await resources.create_tenant(
            "t2", {"adminRoles": ["tb"], "allowedClusters": ["standalone"]}
        )
        await resources.create_namespace(NamespaceName("t2", "n1"), default_policies("standalone"))
        grants = {
            "prod": ["produce"],
            "cons": ["consume"],
            "fn": ["functions", "sinks", "sources", "packages"],
        }
        for role, actions in grants.items():
            await self.done(SUPER, "POST", f"~/namespaces/t1/n1/permissions/{role}", actions)
        await self.done(SUPER, "PUT", "~/persistent/t1/n1/a")
        await self.done(SUPER, "POST", "~/persistent/t1/n1/a/permissions/topicprod", ["produce"])
        await self.done(SUPER, "PUT", "~/persistent/t1/n1/a/subscription/s")
        await self.done(SUPER, "PUT", "~/persistent/t1/n1/p/partitions", 2)


@asynccontextmanager
async def closed_rest(**more: Any) -> AsyncIterator[Closed]:
    """Yields a closed broker; `more` are further settings."""
    own = settings(**more)
    service = await start_service(
        own, secure=lambda store, clock: open_security(own.security, own.audit, store, clock)
    )
    page = MetricsPage(service)
    transport = httpx.ASGITransport(create_app(service, page))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        closed = Closed(Admin(service, page, http))
        await closed.granted()
        yield closed
    await stop_service(service)


def reason_of(response: httpx.Response) -> str:
    """Returns the reason of a refusal."""
    return str(response.json()["reason"])
