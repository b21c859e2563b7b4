"""The reconciler of resources over a Kubernetes API and a broker's admin REST, all in memory.

A test applies and deletes as people do, calls one look at a time, and reads status, Events and the
cluster. Watches show a change at once; `reconciler` can be made anew, as after a restart.
"""

import datetime
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.operator.memory_kube import MemoryKube
from tests.unit.admin.support import start_service, stop_service

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.service import BrokerService
from magnetar_operator.admin.access import AccessSource, no_access
from magnetar_operator.admin.client import AdminClients
from magnetar_operator.admin.view import Clusters
from magnetar_operator.catalog.reconciler import CatalogReconciler
from magnetar_operator.engine.queue import ObjectKey, key_of
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER, KINDS, Kind, Object

NS = "ns"
URL = "http://127.0.0.1:8080"
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)

Refused = tuple[int, str]
"""Status and reason."""


class Watches:
    """What watches have shown, and which resources are to be looked at."""

    def __init__(self) -> None:
        self.known: dict[ObjectKey, Object] = {}
        self.woken: list[str] = []

    def seen(self, obj: Object, gone: bool) -> None:
        if obj["apiVersion"] != API_VERSION:
            return
        if gone:
            self.known.pop(key_of(obj), None)
        else:
            self.known[key_of(obj)] = obj

    def latest(self, key: ObjectKey) -> Object | None:
        return self.known.get(key)

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]:
        return [
            one
            for key, one in self.known.items()
            if key.kind == kind and namespace in (None, key.namespace)
        ]

    def enqueue(self, key: ObjectKey, after_s: float = 0.0) -> None:
        self.woken.append(key.name)


class Rest(httpx.AsyncBaseTransport):
    """The way to the brokers: it can be cut, and single requests refused."""

    def __init__(self, service: BrokerService) -> None:
        self._app = httpx.ASGITransport(create_app(service, MetricsPage(service)))
        self.down = False
        self.asked: list[tuple[str, str]] = []
        self.queries: list[str] = []
        self.bodies: list[bytes] = []
        self.presented: set[str] = set()
        """The credentials of all requests."""
        self.answers: dict[str, object] = {}
        """By path: instead of the broker's own."""
        self.refuse: Callable[[str, str], Refused | None] = lambda _method, _path: None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        method, path = request.method, request.url.path.removeprefix("/admin/v2")
        self.asked.append((method, path))
        self.queries.append(request.url.query.decode())
        self.bodies.append(request.content)
        self.presented.add(request.headers.get("authorization", ""))
        if self.down:
            raise httpx.ConnectError("connection refused")
        if (refused := self.refuse(method, path)) is not None:
            return httpx.Response(refused[0], json={"reason": refused[1]}, request=request)
        if path in self.answers:
            return httpx.Response(200, json=self.answers[path], request=request)
        return await self._app.handle_async_request(request)

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.asked if request[0] != "GET"]


@dataclass
class Stage:
    """The catalog's reconciler, a Kubernetes API in memory, and a broker's admin REST."""

    service: BrokerService
    kube: MemoryKube
    client: KubeClient
    watches: Watches
    rest: Rest
    time_s: float = 1_000.0
    now: datetime.datetime = NOW
    opened: list[AdminClients] = field(default_factory=list)
    access: AccessSource = no_access

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Restarts the operator, which loses its memory."""
        clients = AdminClients(self, self.rest, self.access)
        self.opened.append(clients)
        self.clusters = clusters = Clusters(clients, self)
        events = Events(self.client, lambda: self.now)
        self.reconciler = CatalogReconciler(
            self.client, events, self.watches, clusters, lambda: self.now
        )

    def monotonic(self) -> float:
        return self.time_s

    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1_000)

    # -- people ----------------------------------------------------------------------------------

    def apply(self, kind: str, name: str, spec: dict[str, Any], **annotations: str) -> Object:
        """`ignore_drift="retention"` is the annotation magnetar.io/ignore-drift."""
        placed = {"clusterRef", "adminUrl", "namespaceRef", "topicRef"} & {*spec}
        given = spec if placed or kind == CLUSTER.kind else {"adminUrl": URL, **spec}
        before = self.kube.get(_kind(kind), name)
        metadata = {
            **before.get("metadata", {}), "name": name, "namespace": NS,
            "annotations": {
                f"magnetar.io/{key.replace('_', '-')}": value for key, value in annotations.items()
            },
        }  # fmt: skip
        manifest = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": given}
        return self.kube.put({**before, **manifest})

    def get(self, kind: str, name: str) -> Object:
        return self.kube.get(_kind(kind), name)

    def status(self, kind: str, name: str) -> dict[str, Any]:
        return dict(self.get(kind, name).get("status") or {})

    def condition(self, kind: str, name: str, type_: str = "Ready") -> dict[str, Any]:
        obj = self.status(kind, name).get("conditions") or ()
        return next((item for item in obj if item["type"] == type_), {})

    def reason(self, kind: str, name: str, type_: str = "Ready") -> str:
        return str(self.condition(kind, name, type_).get("reason", ""))

    def finalizers(self, kind: str, name: str) -> list[str]:
        return list(self.get(kind, name)["metadata"].get("finalizers") or ())

    def notes(self, reason: str) -> list[str]:
        return [event["note"] for event in self.kube.events(reason)]

    # -- the operator ----------------------------------------------------------------------------

    async def look(self, kind: str, name: str) -> float | None:
        return await self.reconciler.reconcile(self.get(kind, name))

    async def ready(self, kind: str, name: str, spec: dict[str, Any], **annotations: str) -> None:
        """Applies a resource that one reconcile makes ready."""
        self.apply(kind, name, spec, **annotations)
        assert await self.look(kind, name) is None, self.condition(kind, name)
        assert self.reason(kind, name) == "AsSpecified", self.condition(kind, name)

    async def delete(self, kind: str, name: str) -> float | None:
        """Deletes a resource and reconciles it once."""
        self.kube.remove(_kind(kind), name)
        return await self.look(kind, name) if self.get(kind, name) else None

    # -- the cluster -----------------------------------------------------------------------------

    async def say(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request that must succeed; returns the answer."""
        transport = httpx.ASGITransport(create_app(self.service, MetricsPage(self.service)))
        async with httpx.AsyncClient(transport=transport, base_url=f"{URL}/admin/v2") as http:
            content = b"" if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json"}
            answer = await http.request(method, path, content=content, headers=headers)
        if method == "GET" and answer.status_code == 404:
            return None
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}


def _kind(name: str) -> Kind:
    return KINDS[API_VERSION, name]


@asynccontextmanager
async def resource_stage() -> AsyncIterator[Stage]:
    """Tenant `t1` and namespace `t1/n1` are there; nothing else is."""
    service = await start_service()
    kube, watches = MemoryKube(), Watches()
    kube.seen = watches.seen
    client = kube.client()
    stage = Stage(service, kube, client, watches, Rest(service))
    try:
        yield stage
    finally:
        for clients in stage.opened:
            await clients.close()
        await client.close()
        await stop_service(service)
