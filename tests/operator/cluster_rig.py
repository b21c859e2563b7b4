"""A MagnetarCluster on a real API server whose pods nobody runs, beside real bookies and a broker.

The API server's own controllers make pods, revisions and endpoints; `Kubelet` says of every pod
that it is ready. What pods would run runs in the test's process: bookies under the pods' names, a
broker whose admin REST the operator asks (`spec.adminUrl`), and an etcd. The operator is its
handler, called as its process calls it; `settle` calls it until it has nothing more to do.
"""

import asyncio
import contextlib
import datetime
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.etcd import free_ports, start_etcd

from magnetar.cluster import bookie_process, broker_process
from magnetar.settings.bookie import BookieProcessSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import compose
from magnetar_operator.admin.client import AdminClients
from magnetar_operator.cluster.reconciler import ClusterReconciler
from magnetar_operator.kube.client import KubeClient, NotFound
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import CLUSTER, DEPLOYMENT, EVENT, POD, PVC, STATEFUL_SET, Object
from magnetar_operator.settings import Settings

NAME: Final = "m"
SETTINGS: Final = Settings(image="magnetar:test", etcd_image="etcd:test")
NOWHERE: Final = {"magnetar.io/nowhere": "true"}
POLL_S: Final = 0.1
WAIT_S: Final = 60.0
SESSION_MS: Final = 60_000


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def at_rest(sets: list[Object], pods: list[Object]) -> bool:
    """Whether all pods exist and are ready, and the controllers' statuses are current."""
    for stateful_set in sets:
        status, wanted = stateful_set.get("status", {}), stateful_set["spec"]["replicas"]
        component = stateful_set["metadata"]["labels"]["component"]
        own = [
            pod["metadata"] for pod in pods if pod["metadata"]["labels"]["component"] == component
        ]
        newest = status.get("updateRevision")  # only StatefulSets report it, and keep older pods
        new = [
            pod for pod in own if newest in (None, pod["labels"].get("controller-revision-hash"))
        ]
        told = [status.get(count, 0) for count in ("replicas", "readyReplicas", "updatedReplicas")]
        if status.get("observedGeneration") != stateful_set["metadata"]["generation"]:
            return False
        if len(own) != wanted or told != [wanted, wanted, len(new)]:
            return False
    return all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)


@dataclass
class Rig:
    """One cluster in one namespace."""

    kube: KubeClient
    """The tests'."""
    asked: KubeClient
    """The operator's."""
    namespace: str
    handler: ClusterReconciler
    unready: set[str] = field(default_factory=set)
    """Pods that do not get ready."""

    async def apply(self, **spec: Any) -> Object:
        """Applies the resource as kubectl does; its pods fit no node, if there are nodes."""
        spec = {"etcd": {"replicas": 1}, "upgrade": {"pauseBetween": "0s"}, **spec}
        for component in ("broker", "bookie", "etcd"):
            if "external" not in spec.get(component, {}):
                spec[component] = {"nodeSelector": NOWHERE, **spec.get(component, {})}
        manifest = {
            "apiVersion": CLUSTER.api_version,
            "kind": CLUSTER.kind,
            "metadata": {"name": NAME, "namespace": self.namespace},
            "spec": spec,
        }
        return (await self.kube.apply(manifest)).object

    async def annotate(self, **annotations: str | None) -> None:
        values = {f"magnetar.io/{key}": value for key, value in annotations.items()}
        body = {"metadata": {"annotations": values}}
        await self.kube.merge(CLUSTER, self.namespace, NAME, body)

    async def owner(self) -> Object:
        return await self.kube.get(CLUSTER, NAME, self.namespace)

    async def status(self) -> dict[str, Any]:
        current: dict[str, Any] = (await self.owner()).get("status", {})
        return current

    async def condition(self, name: str) -> dict[str, Any]:
        conditions = (await self.status()).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == name), {})

    async def look(self) -> float | None:
        """Reconciles once, then runs the kubelet."""
        after_s = await self.handler.reconcile(await self.owner())
        await self.kubelet()
        return after_s

    async def kubelet(self) -> None:
        """Every pod that may be is ready."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for pod in await self.kube.list(POD, self.namespace, labels={"cluster": NAME}):
            name = pod["metadata"]["name"]
            ready = name not in self.unready
            if is_ready(pod) == ready or "deletionTimestamp" in pod["metadata"]:
                continue
            condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
            body = {"status": {"phase": "Running", "conditions": [condition]}}
            path = POD.path(self.namespace, name, "status")
            kind = "application/strategic-merge-patch+json"
            with contextlib.suppress(NotFound):  # its controller has deleted it meanwhile
                await self.kube.request("PATCH", path, None, body, kind)

    async def until(self, what: str, holds: Callable[[], Any], wait_s: float = WAIT_S) -> None:
        """Looks of the operator until it holds (`holds` gives an awaitable)."""
        try:
            async with asyncio.timeout(wait_s):
                while not await holds():
                    await self.look()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"not within {wait_s} s: {what}; {await self.status()}") from None

    async def until_condition(self, name: str, status: str, wait_s: float = WAIT_S) -> Any:
        async def holds() -> bool:
            return (await self.condition(name)).get("status") == status

        await self.until(f"{name} is {status}", holds, wait_s)
        return await self.condition(name)

    async def rest(self) -> None:
        """Reconciles until Kubernetes' controllers have reported all pods, and then once more."""
        await self.until("the controllers to rest", self._controllers_rest)
        await self.look()

    async def _controllers_rest(self) -> bool:
        sets, deployments, pods = [
            await self.kube.list(kind, self.namespace, labels={"cluster": NAME})
            for kind in (STATEFUL_SET, DEPLOYMENT, POD)
        ]
        return at_rest([*sets, *deployments], pods)

    async def bookies(self) -> int:
        """That the StatefulSet wants."""
        obj = await self.kube.get(STATEFUL_SET, f"{NAME}-bookie", self.namespace)
        return int(obj["spec"]["replicas"])

    async def notes(self, reason: str) -> list[str]:
        """Of Events."""
        events = await self.kube.list(EVENT, self.namespace)
        return [item["note"] for item in events if item.get("reason") == reason]


@asynccontextmanager
async def rig(namespace: str) -> AsyncIterator[Rig]:
    kube, asked = KubeClient.connect(), KubeClient.connect()
    clients = AdminClients()
    handler = ClusterReconciler(SETTINGS, asked, Events(asked), clients)
    try:
        yield Rig(kube, asked, namespace, handler)
    finally:
        await clients.close()
        await asked.close()
        await kube.close()


class Processes:
    """Real bookies named as the pods are, and a broker, in this process."""

    def __init__(
        self, path: Path, metadata_url: str, *, copies: int, lost_bookie_delay_s: int
    ) -> None:
        self._path = path
        self._copies = copies
        self._lost_bookie_delay_s = lost_bookie_delay_s
        # Nobody is taken for dead whose process, which is the test's, could not run for a while.
        self._common: dict[str, Any] = {
            "metadata_url": metadata_url,
            "cluster_name": "m",
            "session_timeout_ms": SESSION_MS,
        }
        self._bookies: dict[int, bookie_process.BookieProcess] = {}
        self._volumes: dict[int, str] = {}
        self._broker: broker_process.BrokerProcess | None = None

    @property
    def admin_url(self) -> str:
        assert self._broker is not None
        return self._broker.http_url

    @property
    def service_url(self) -> str:
        assert self._broker is not None
        return self._broker.service_url

    def directory(self, index: int) -> Path:
        return self._path / f"bookie-{index}"

    async def start_bookie(self, index: int) -> None:
        port, http_port = free_ports(2)
        settings = compose(
            BookieProcessSettings,
            data_dir=self.directory(index),
            bookie_id=f"{NAME}-bookie-{index}",
            port=port,
            http_port=http_port,
            lost_bookie_delay_s=self._lost_bookie_delay_s,
            open_ledger_grace_ms=500,
            write_cache_mb=4,
            **self._common,
        )
        self._bookies[index] = await bookie_process.start(settings)

    async def stop_bookie(self, index: int) -> None:
        await self._bookies.pop(index).stop()

    async def have_bookie(self, index: int, wanted: bool) -> None:
        """Starts it, empty, or stops it; does nothing if that is its state."""
        if wanted and index not in self._bookies:
            await asyncio.to_thread(shutil.rmtree, self.directory(index), ignore_errors=True)
            await self.start_bookie(index)
        elif not wanted and index in self._bookies:
            await self.stop_bookie(index)

    async def follow(self, rig: Rig) -> None:
        """A bookie with another claim than before has other, empty disks."""
        for claim in await rig.kube.list(PVC, rig.namespace, labels={"component": "bookie"}):
            index = int(claim["metadata"]["name"].rpartition("-")[2])
            uid = claim["metadata"]["uid"]
            if self._volumes.setdefault(index, uid) != uid and index in self._bookies:
                self._volumes[index] = uid
                await self.stop_bookie(index)
                await asyncio.to_thread(shutil.rmtree, self.directory(index))
                await self.start_bookie(index)

    async def start_broker(self) -> None:
        port, http_port = free_ports(2)
        settings = compose(
            BrokerProcessSettings,
            port=port,
            http_port=http_port,
            ensemble_size=self._copies,
            write_quorum=self._copies,
            **self._common,
        )
        self._broker = await broker_process.start(settings)

    async def stop(self) -> None:
        if self._broker is not None:
            await self._broker.stop()
        for index in list(self._bookies):
            await self.stop_bookie(index)


@asynccontextmanager
async def processes(
    path: Path, bookies: int, *, copies: int = 2, lost_bookie_delay_s: int = 1
) -> AsyncIterator[Processes]:
    """With as many `copies` as bookies, ledgers lack one for as long as a bookie is away; with less
    they are made anew once it has been away for `lost_bookie_delay_s`."""
    async with AsyncExitStack() as opened:
        etcd = await asyncio.to_thread(start_etcd, path / "etcd")
        opened.callback(etcd.stop)
        members = Processes(path, etcd.url, copies=copies, lost_bookie_delay_s=lost_bookie_delay_s)
        opened.push_async_callback(members.stop)
        for index in range(bookies):
            await members.start_bookie(index)
        await members.start_broker()
        yield members
