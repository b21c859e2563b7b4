"""SparkJobs on a real API server whose pods nobody runs.

Kubernetes' own controllers make Jobs of CronJobs and pods of Jobs; `end` says of a pod what a
kubelet would, through its status, as the driver's container left it. The operator is its handler,
called as its process calls it; `settle` calls it until it has nothing more to do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.clock import SYSTEM, utc
from magnetar_operator.engine.status import timestamp
from magnetar_operator.kube.client import KubeClient, NotFound
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import (
    BATCH_JOB,
    CLUSTER,
    CRON_JOB,
    EVENT,
    POD,
    SPARK_JOB,
    Object,
)
from magnetar_operator.settings import Settings
from magnetar_operator.sparkjobs.desired import JOB_LABEL
from magnetar_operator.sparkjobs.reconciler import SparkJobReconciler
from magnetar_operator.sparkjobs.runs import JOB_NAME

NAME: Final = "cold"
CLUSTER_NAME: Final = "m"
SETTINGS: Final = Settings(spark_image="magnetar-spark:test")
POLL_S: Final = 0.05
WAIT_S: Final = 90.0
"""Kubernetes' garbage collector is slow, especially while kinds are added and removed."""
LOOKS_MAX: Final = 20
NOWHERE: Final = {"magnetar.io/nowhere": "true"}
MERGE: Final = "application/merge-patch+json"
HOUR: Final = max(4, (datetime.now(UTC) + timedelta(hours=12)).hour)
"""Not while tests last, for Kubernetes' own controller sees to schedules; not where summer begins
or ends."""
NIGHTLY: Final[dict[str, Any]] = {"schedule": f"0 {HOUR} * * *"}


@dataclass
class Rig:
    """One SparkJob and one MagnetarCluster in one namespace."""

    kube: KubeClient
    """The tests'."""
    asked: KubeClient
    """The operator's."""
    namespace: str
    handler: SparkJobReconciler
    dues: int = 0
    """Runs that were due by the schedule."""

    async def apply_cluster(self, *, ready: bool = True, **spec: Any) -> None:
        manifest = {
            "apiVersion": CLUSTER.api_version,
            "kind": CLUSTER.kind,
            "metadata": {"name": CLUSTER_NAME, "namespace": self.namespace},
            "spec": {"etcd": {"replicas": 1}, **spec},
        }
        await self.kube.apply(manifest)
        condition = {
            "type": "EtcdReady", "status": str(ready), "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        }  # fmt: skip
        status = {"conditions": [condition]}
        await self.kube.patch_status(CLUSTER, self.namespace, CLUSTER_NAME, status, manager="tests")

    async def apply(
        self, spec: dict[str, Any] | None = None, *, name: str = NAME, **annotations: str
    ) -> Object:
        """Applies the resource as kubectl does; its pods fit no node, if there are nodes."""
        given = {
            "type": "Offload", "driver": {"nodeSelector": NOWHERE},
            "retries": {"backoffLimit": 0}, **(spec or {}),
        }  # fmt: skip
        values = {f"magnetar.io/{key}": value for key, value in annotations.items()}
        manifest = {
            "apiVersion": SPARK_JOB.api_version,
            "kind": SPARK_JOB.kind,
            "metadata": {"name": name, "namespace": self.namespace, "annotations": values},
            "spec": given,
        }
        return (await self.kube.apply(manifest)).object

    async def owner(self, name: str = NAME) -> Object:
        return await self.kube.get(SPARK_JOB, name, self.namespace)

    async def status(self, name: str = NAME) -> dict[str, Any]:
        current: dict[str, Any] = (await self.owner(name)).get("status", {})
        return current

    async def condition(self, type_: str, name: str = NAME) -> dict[str, Any]:
        conditions = (await self.status(name)).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == type_), {})

    async def look(self, name: str = NAME) -> float | None:
        return await self.handler.reconcile(await self.owner(name))

    async def settle(self, name: str = NAME) -> None:
        """Reconciles until no further reconcile is due soon."""
        for _ in range(LOOKS_MAX):
            after_s = await self.look(name)
            if after_s is None or after_s > 1.0:
                return
        raise AssertionError(f"it does not settle: {await self.status(name)}")

    async def jobs(self, name: str = NAME) -> list[Object]:
        return await self.kube.list(BATCH_JOB, self.namespace, labels={JOB_LABEL: name})

    async def job(self) -> Object:
        """The only one."""
        (found,) = await self.jobs()
        return found

    async def pod_of(self, job: str) -> Object:
        """The Job's newest pod that has not ended, once its controller has created it."""

        async def found() -> Object | None:
            pods = await self.kube.list(POD, self.namespace, labels={JOB_NAME: job})
            unfinished = [
                pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")
            ]
            return unfinished[0] if unfinished else None

        pod: Object = await until(f"a pod of {job}", found)
        return pod

    async def say(self, pod: Object, **status: Any) -> None:
        """As its kubelet would."""
        path = POD.path(self.namespace, pod["metadata"]["name"], "status")
        await self.kube.request("PATCH", path, None, {"status": status}, MERGE)

    async def run(self, job: str) -> None:
        """Its driver runs."""
        await self.say(await self.pod_of(job), phase="Running")

    async def end(
        self, job: str, document: dict[str, Any] | str = "", *, code: int = 0, reason: str = ""
    ) -> None:
        """Its driver ends, and the Job's controller has seen it."""
        pod = await self.pod_of(job)
        message = document if isinstance(document, str) else json.dumps(document)
        ended = {
            "exitCode": code, "reason": reason or ("Error" if code else "Completed"),
            "message": message, "startedAt": now(), "finishedAt": now(),
        }  # fmt: skip
        container = {
            "name": "driver", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": ended},
        }  # fmt: skip
        phase = "Failed" if code else "Succeeded"
        await self.say(pod, phase=phase, containerStatuses=[container])
        uid = pod["metadata"]["uid"]

        async def counted() -> bool:
            obj = await self.kube.get(BATCH_JOB, job, self.namespace)
            waits = obj["status"].get("uncountedTerminatedPods") or {}
            told = {*waits.get("succeeded", ()), *waits.get("failed", ())}
            done = obj["status"].get("succeeded", 0) + obj["status"].get("failed", 0)
            return bool(done) and uid not in told

        await until(f"{job} has counted its pod", counted)

    async def until_over(self, job: str) -> None:
        """Its controller has decided."""

        async def over() -> bool:
            obj = await self.kube.get(BATCH_JOB, job, self.namespace)
            return any(
                condition["type"] in ("Complete", "Failed") and condition["status"] == "True"
                for condition in obj["status"].get("conditions") or ()
            )

        await until(f"{job} is over", over)

    async def succeed(self, job: str, **metrics: float) -> None:
        await self.end(job, {"job": "offload", "state": "succeeded", "metrics": metrics})
        await self.until_over(job)

    async def fail(self, job: str, error: str, code: int = 1) -> None:
        await self.end(job, {"job": "offload", "state": "failed", "error": error}, code=code)

    async def cron(self, name: str = NAME) -> Object:
        return await self.kube.get(CRON_JOB, name, self.namespace)

    async def due(self) -> str:
        """What the CronJob's controller does when a run is due; the Job's name."""
        cron = await self.cron()
        template = cron["spec"]["jobTemplate"]
        self.dues += 1
        name = f"{NAME}-{29_000_000 + self.dues}"
        owner = {
            "apiVersion": CRON_JOB.api_version, "kind": CRON_JOB.kind, "name": NAME,
            "uid": cron["metadata"]["uid"], "controller": True,
        }  # fmt: skip
        metadata = {
            **template["metadata"], "name": name, "namespace": self.namespace,
            "ownerReferences": [owner],
        }  # fmt: skip
        await self.kube.create(
            {
                "apiVersion": BATCH_JOB.api_version,
                "kind": BATCH_JOB.kind,
                "metadata": metadata,
                "spec": template["spec"],
            }
        )
        return name

    async def gone(self, name: str = NAME) -> None:
        """Deletes the SparkJob, and waits until the garbage collector has taken its all."""
        await self.kube.delete(SPARK_JOB, name, self.namespace)

        async def nothing() -> bool:
            labels = {JOB_LABEL: name}
            kinds = (BATCH_JOB, POD, CRON_JOB)
            objects = [await self.kube.list(kind, self.namespace, labels=labels) for kind in kinds]
            return not any(objects)

        await until("nothing is left", nothing)

    async def notes(self, reason: str) -> list[str]:
        """Of Events."""
        events = await self.kube.list(EVENT, self.namespace)
        return [item["note"] for item in events if item.get("reason") == reason]


def now() -> str:
    return timestamp(utc(SYSTEM))


async def until(what: str, holds: Callable[[], Awaitable[Any]], wait_s: float = WAIT_S) -> Any:
    """What it gives once that is true."""
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    outcome = await holds()
                except NotFound:
                    outcome = None
                if outcome:
                    return outcome
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"not within {wait_s} s: {what}") from None


@asynccontextmanager
async def rig(namespace: str) -> AsyncIterator[Rig]:
    kube, asked = KubeClient.connect(), KubeClient.connect()
    handler = SparkJobReconciler(SETTINGS, asked, Events(asked), AdminClients())
    try:
        yield Rig(kube, asked, namespace, handler)
    finally:
        await asked.close()
        await kube.close()
