"""The reconciler of SparkJobs over a Kubernetes API in memory, with Jobs that tests run by hand."""

import datetime
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.operator.memory_kube import MemoryKube

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.engine.status import timestamp
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import (
    BATCH_JOB,
    CLUSTER,
    SPARK_JOB,
    Object,
)
from magnetar_operator.settings import Settings
from magnetar_operator.sparkjobs.desired import JOB_LABEL, ROLE_LABEL
from magnetar_operator.sparkjobs.reconciler import SparkJobReconciler
from magnetar_operator.sparkjobs.runs import JOB_NAME

NS = "ns"
NAME = "cold"
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
NIGHTLY: dict[str, Any] = {"schedule": "0 3 * * *"}


@dataclass
class Stage:
    """A Kubernetes API in memory, with Jobs that a test runs by hand."""

    kube: MemoryKube
    client: KubeClient
    handler: SparkJobReconciler = field(init=False)
    now: datetime.datetime = NOW
    waiting: dict[str, Any] = field(default_factory=dict)
    """The answer of the brokers about topics that wait for jobs."""
    asked: list[str] = field(default_factory=list)
    """The addresses that the brokers were asked at."""
    broken: bool = False
    """Whether the brokers do not answer."""

    def __post_init__(self) -> None:
        self.clients = AdminClients(self, httpx.MockTransport(self._answer))
        events = Events(self.client, lambda: NOW)
        settings = Settings(spark_image="spark:1", image="magnetar:1", etcd_image="etcd:1")
        self.handler = SparkJobReconciler(settings, self.client, events, self.clients, self)

    def monotonic(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1_000)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        if self.broken:
            return httpx.Response(409, json={"reason": "a broker does not answer"})
        return httpx.Response(200, json=self.waiting)

    def cluster(self, name: str = "m", *, ready: bool = True, namespace: str = NS) -> Object:
        return self.kube.put(
            {
                "apiVersion": CLUSTER.api_version,
                "kind": CLUSTER.kind,
                "metadata": {"name": name, "namespace": namespace},
                "spec": {},
                "status": {"conditions": [{"type": "EtcdReady", "status": str(ready)}]},
            }
        )

    def apply(self, spec: dict[str, Any] | None = None, **annotations: str) -> Object:
        before = self.owner()
        metadata = {
            **before.get("metadata", {}), "name": NAME, "namespace": NS,
            "annotations": {f"magnetar.io/{key}": value for key, value in annotations.items()},
        }  # fmt: skip
        frame = {"apiVersion": SPARK_JOB.api_version, "kind": SPARK_JOB.kind}
        given = {"type": "Offload", **(spec or {})}
        return self.kube.put({**before, **frame, "metadata": metadata, "spec": given})

    def owner(self) -> Object:
        return self.kube.get(SPARK_JOB, NAME)

    def status(self) -> dict[str, Any]:
        return dict(self.owner().get("status") or {})

    def condition(self, type_: str = "Ready") -> dict[str, Any]:
        obj = self.status().get("conditions") or ()
        return next((item for item in obj if item["type"] == type_), {})

    def events(self, reason: str) -> list[Object]:
        return self.kube.events(reason)

    async def look(self) -> float | None:
        return await self.handler.reconcile(self.owner())

    def job(self) -> Object:
        (found,) = self.kube.all_of(BATCH_JOB)
        return found

    def end(self, job: Object, document: dict[str, Any], *, failed: bool = False) -> None:
        """Its driver has ended, and the Job's controller has seen it."""
        name = job["metadata"]["name"]
        ended = {"exitCode": int(failed), "reason": "x", "message": json.dumps(document)}
        self.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-1", "namespace": NS,
                    "labels": {JOB_LABEL: NAME, JOB_NAME: name, ROLE_LABEL: "driver"},
                },
                "status": {
                    "phase": "Failed" if failed else "Succeeded",
                    "containerStatuses": [{"state": {"terminated": ended}}],
                },
            }
        )  # fmt: skip
        condition = {"type": "Failed" if failed else "Complete", "status": "True"}
        condition["lastTransitionTime"] = timestamp(self.now - datetime.timedelta(minutes=1))
        self.kube.put({**self.kube.get(BATCH_JOB, name), "status": {"conditions": [condition]}})
