"""The handler of MagnetarClusters over a Kubernetes API in memory, and brokers of few words.

`controllers` plays Kubernetes' controllers and kubelets; `Brokers` answers what the operator asks
of the admin REST, and keeps the drains that it asks for. A test calls one look at a time.
"""

import datetime
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tests.operator.memory_kube import MemoryKube

from magnetar_operator.admin import client as admin_client
from magnetar_operator.admin.client import AdminClients
from magnetar_operator.cluster.manifests.names import digest
from magnetar_operator.cluster.observe import PREFIX
from magnetar_operator.cluster.observed import REVISION_LABEL
from magnetar_operator.cluster.reconciler import ClusterReconciler
from magnetar_operator.kube import client as kube_client
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import (
    CLUSTER,
    DEPLOYMENT,
    POD,
    PVC,
    STATEFUL_SET,
    Object,
)
from magnetar_operator.settings import Settings

NS = "ns"
NAME = "c"
URL = "http://brokers"
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
SETTINGS = Settings(image="magnetar:1", etcd_image="etcd:1")
LOOKS_MAX = 40


@dataclass
class Brokers:
    """The admin REST, as far as the operator asks it."""

    kube: MemoryKube
    drains: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: dict[str, Any] = field(default_factory=dict)
    """The health of the ledgers, if it is not good."""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    answer: Callable[[httpx.Request], httpx.Response | None] = lambda _: None
    on_drain: Callable[[dict[str, Any]], None] = lambda _: None

    def respond(self, request: httpx.Request) -> httpx.Response:
        body: Any = json.loads(request.content) if request.content else None
        path = request.url.path.removeprefix(PREFIX)
        self.asked.append((request.method, path, body))
        if (given := self.answer(request)) is not None:
            return given
        if path == "/ledgers/health":
            return httpx.Response(200, json=self._health())
        if path == "/bookies/drains":
            return httpx.Response(200, json=[*self.drains.values()])
        bookie = path.split("/")[2]
        if request.method == "POST":
            self.drains[bookie] = {"bookieId": bookie, "state": "copying", **body}
            self.drains[bookie]["requestedMs"] = int(NOW.timestamp() * 1_000)
            self.on_drain(self.drains[bookie])
            return httpx.Response(200, json=self.drains[bookie])
        return httpx.Response(204 if self.drains.pop(bookie, None) else 404)

    def prove(self, bookie: str) -> None:
        """It is empty, and every copy is proven to be elsewhere."""
        self.drains[bookie] |= {
            "state": "removable", "provenMs": int(NOW.timestamp() * 1_000),
            "incarnations": [self._disks(bookie)],
        }  # fmt: skip

    def _disks(self, bookie: str) -> str:
        return str(self.kube.get(PVC, f"data-{bookie}")["metadata"]["uid"])

    def _health(self) -> dict[str, Any]:
        names = [
            pod["metadata"]["name"]
            for pod in self.kube.all_of(POD)
            if pod["metadata"]["labels"]["component"] == "bookie"
        ]
        living = [
            {"bookieId": name, "incarnation": self._disks(name), "draining": name in self.drains}
            for name in names
        ]
        return {"healthy": True, "bookies": living, **self.trouble}

    def changes(self) -> list[tuple[str, str, Any]]:
        return [request for request in self.asked if request[0] != "GET"]


@dataclass
class Stage:
    """A MagnetarCluster's reconciler, a Kubernetes API in memory, controllers and brokers."""

    kube: MemoryKube
    client: KubeClient
    brokers: Brokers
    clients: AdminClients = field(init=False)
    handler: ClusterReconciler = field(init=False)
    time_s: float = 1_000.0
    now: datetime.datetime = NOW
    unready: set[str] = field(default_factory=set)
    """Components and pods that do not get ready."""

    def __post_init__(self) -> None:
        events = Events(self.client, lambda: self.now)
        self.clients = self.new_clients()
        self.handler = ClusterReconciler(SETTINGS, self.client, events, self.clients, self)

    def new_clients(self) -> AdminClients:
        """Clients that are answered by `brokers`."""
        return AdminClients(self, httpx.MockTransport(self.brokers.respond))

    def monotonic(self) -> float:
        return self.time_s

    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1_000)

    def pass_s(self, seconds: float) -> None:
        self.time_s += seconds
        self.now += datetime.timedelta(seconds=seconds)

    # -- people ----------------------------------------------------------------------------------

    def apply(self, spec: dict[str, Any] | None = None, **annotations: str) -> Object:
        before = self.owner()
        metadata = {
            **before.get("metadata", {}), "name": NAME, "namespace": NS,
            "annotations": {
                f"magnetar.io/{key.replace('_', '-')}": value for key, value in annotations.items()
            },
        }  # fmt: skip
        given = {"adminUrl": URL, "upgrade": {"pauseBetween": "0s"}, **(spec or {})}
        manifest = {
            "apiVersion": CLUSTER.api_version, "kind": CLUSTER.kind, "metadata": metadata,
            "spec": given,
        }  # fmt: skip
        return self.kube.put({**before, **manifest})

    async def complete(self, **spec: Any) -> None:
        """Applies `spec`, and settles on a cluster that is ready."""
        self.apply(spec)
        await self.settle()
        assert self.condition("Ready")["status"] == "True", self.status()

    def owner(self) -> Object:
        return self.kube.get(CLUSTER, NAME)

    def status(self) -> dict[str, Any]:
        return dict(self.owner().get("status") or {})

    def condition(self, type_: str) -> dict[str, Any]:
        obj = self.status().get("conditions") or ()
        return next((item for item in obj if item["type"] == type_), {})

    def notes(self, reason: str) -> list[str]:
        return [event["note"] for event in self.kube.events(reason)]

    def pods(self, component: str) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.kube.all_of(POD)
            if pod["metadata"]["labels"]["component"] == component
        ]

    # -- the operator, and Kubernetes ------------------------------------------------------------

    async def look(self) -> float | None:
        return await self.handler.reconcile(self.owner())

    async def settle(self) -> None:
        """Reconciles and runs the controllers until a reconcile changes nothing."""
        for _ in range(LOOKS_MAX):
            before = self.kube.objects.copy(), len(self.brokers.changes())
            await self.look()
            self.controllers()
            self.pass_s(1)
            if before == (self.kube.objects, len(self.brokers.changes())):
                return
        raise AssertionError(f"it does not settle: {self.status()}")

    def controllers(self) -> None:
        for item in self.kube.all_of(STATEFUL_SET):
            self._stateful_set(item)
        for item in self.kube.all_of(DEPLOYMENT):
            revision = digest(item["spec"]["template"])
            name = f"{item['metadata']['name']}-{revision[:5]}"
            self._pods(item, [f"{name}-{at}" for at in range(item["spec"]["replicas"])], revision)

    def _stateful_set(self, obj: Object) -> None:
        name, revision = obj["metadata"]["name"], digest(obj["spec"]["template"])
        wanted = [f"{name}-{at}" for at in range(obj["spec"]["replicas"])]
        (template,) = obj["spec"]["volumeClaimTemplates"]
        for pod in wanted:
            if self.kube.get(POD, pod):
                continue
            self._claim_goes(pod)
            if not self.kube.get(PVC, f"data-{pod}"):
                labels = obj["spec"]["template"]["metadata"]["labels"]
                metadata = {
                    "name": f"data-{pod}", "namespace": NS, "labels": labels,
                    "finalizers": ["kubernetes.io/pvc-protection"],
                }  # fmt: skip
                self._put(PVC, metadata, spec=template["spec"])
        self._pods(obj, wanted, revision)
        told = {"updateRevision": revision, "observedGeneration": obj["metadata"]["generation"]}
        self.kube.put({**self.kube.get(STATEFUL_SET, name), "status": told})

    def _claim_goes(self, pod: str) -> None:
        """A deleted claim is removed once no pod uses it."""
        claim = self.kube.get(PVC, f"data-{pod}")
        if claim and "deletionTimestamp" in claim["metadata"]:
            self.kube.drop(PVC, f"data-{pod}")

    def _pods(self, obj: Object, wanted: list[str], revision: str) -> None:
        labels = obj["spec"]["template"]["metadata"]["labels"]
        component = labels["component"]
        for pod in self.pods(component):
            if pod not in wanted:
                self.kube.drop(POD, pod)
        for pod in wanted:
            if not self.kube.get(POD, pod):
                metadata = {
                    "name": pod, "namespace": NS, "labels": {**labels, REVISION_LABEL: revision},
                }  # fmt: skip
                self._put(POD, metadata, spec=obj["spec"]["template"]["spec"])
            ready = {
                "type": "Ready", "status": str(not {pod, component} & self.unready),
                "lastTransitionTime": "2026-01-01T11:00:00Z",
            }  # fmt: skip
            self.kube.put({**self.kube.get(POD, pod), "status": {"conditions": [ready]}})

    def _put(self, kind: Any, metadata: Object, **content: Any) -> None:
        frame = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        self.kube.put({**frame, **content})


@asynccontextmanager
async def cluster_stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    kube = MemoryKube()
    brokers = Brokers(kube)
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    monkeypatch.setattr(kube_client, "BACKOFF_FIRST_S", 0.0)
    client = kube.client()
    stage = Stage(kube, client, brokers)
    try:
        yield stage
    finally:
        await stage.clients.close()
        await client.close()
