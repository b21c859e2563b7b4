"""MagnetarCluster: observe, plan, act, tell. Thin: whatever is decided is decided in `plan`.

A look may be broken off anywhere: the next one begins with what is there. Nothing is done when a
MagnetarCluster is deleted: what it owns is collected by Kubernetes, volumes stay unless the spec
says otherwise, and there is no finalizer that could hang.
"""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import msgspec

from magnetar import __version__
from magnetar_operator.api_kinds import CLUSTER, DEPLOYMENT, POD, STATEFUL_SET, Object
from magnetar_operator.clock import SYSTEM, Clock, utc
from magnetar_operator.cluster.act import Actor
from magnetar_operator.cluster.actions import Apply
from magnetar_operator.cluster.manifests.naming import CLUSTER_LABEL, REPLACE_VOLUME, Cluster
from magnetar_operator.cluster.observe import Admins, Observer
from magnetar_operator.cluster.plan import plan
from magnetar_operator.cluster.status import status
from magnetar_operator.context import Context
from magnetar_operator.events import Events
from magnetar_operator.kube import KubeClient, KubeError, NotFound
from magnetar_operator.models.cluster import ClusterSpec
from magnetar_operator.resources.admin_client import AdminError
from magnetar_operator.resources.annotations import annotated
from magnetar_operator.resources.resource_status import is_worth_writing, timestamp
from magnetar_operator.settings import Settings

AGAIN_AFTER_ACTING_S = 1.0


class ClusterHandler:
    """See the module's text."""

    def __init__(
        self, settings: Settings, kube: KubeClient, events: Events, clock: Clock = SYSTEM
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._clock = clock
        self._admins = Admins(clock)
        self._observer = Observer(kube, self._admins, clock)
        self._actor = Actor(kube, events, self._admins)
        self._events = events

    async def close(self) -> None:
        await self._admins.close()

    async def reconcile(self, seen: Object) -> float | None:
        """One look; after how many seconds the next is wanted."""
        metadata = seen["metadata"]
        if "deletionTimestamp" in metadata:
            return None
        try:
            # What a watch saw may be older than what we wrote: its status is compared with ours.
            owner = await self._kube.get(CLUSTER, metadata["name"], metadata["namespace"])
        except NotFound:
            return None
        if owner["metadata"]["uid"] != metadata["uid"] or "deletionTimestamp" in owner["metadata"]:
            return None
        try:
            cluster = cluster_of(owner, self._settings)
        except msgspec.ValidationError as error:
            await self._events.tell(owner, "Invalid", f"spec: {error}", type="Warning")
            return None
        return await self._look(cluster, owner)

    async def _look(self, cluster: Cluster, owner: Object) -> float | None:
        now = utc(self._clock)
        observed = await self._observer.observe(cluster)
        before = owner.get("status") or {}
        remembered = int(before.get("bookies", {}).get("desired", 0))
        found = plan(cluster, observed, remembered, now, str(before.get("scaledUp", "")))
        found.was_ready = any(
            one.get("type") == "Ready" and one.get("status") == "True"
            for one in before.get("conditions") or ()
        ) or before.get("phase") in (
            "Running", "Degraded", "Upgrading", "ScalingDown", "ReplacingVolume",
        )  # fmt: skip
        is_paused = cluster.spec.paused or annotated(owner, "paused")
        is_plan_only = annotated(owner, "plan")
        acts = bool(found.actions) and not is_paused and not is_plan_only
        failed: list[KubeError | AdminError] = []
        if acts:
            failed = await self._actor.act(cluster, owner, found.actions)
        for error in failed:
            found.problems.append(str(error))
            await self._events.tell(owner, "NotDone", str(error), type="Warning")
        told = status(
            cluster,
            owner,
            observed,
            found,
            __version__,
            now,
            is_paused=is_paused,
            is_plan_only=is_plan_only,
        )
        await self._tell(owner, told)
        if failed:
            raise failed[0]
        made = any(isinstance(one, Apply) and one.verb == "create" for one in found.actions)
        return AGAIN_AFTER_ACTING_S if acts and made else found.again_s

    async def _tell(self, owner: Object, told: dict[str, object]) -> None:
        """Writes the status where it says anything new."""
        before = dict(owner.get("status") or {})
        if not is_worth_writing(before, told):
            return
        metadata = owner["metadata"]
        await self._kube.patch_status(
            CLUSTER,
            metadata["namespace"],
            metadata["name"],
            {**told, "lastReconciled": timestamp(utc(self._clock))},
            uid=metadata["uid"],
        )


def cluster_of(owner: Object, settings: Settings) -> Cluster:
    """As the builders see it; raises msgspec.ValidationError naming the field."""
    metadata = owner["metadata"]
    spec = ClusterSpec.parse(owner.get("spec") or {})
    return Cluster(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata.get("uid", ""),
        spec=spec,
        image=spec.image or settings.image,
        etcd_image=spec.etcd.image or settings.etcd_image,
        operator_namespace=settings.pod_namespace,
        replace_volume=(metadata.get("annotations") or {}).get(REPLACE_VOLUME, "").strip(),
        resource_version=metadata.get("resourceVersion", ""),
    )


def register(context: Context) -> AbstractAsyncContextManager[None]:
    """Watches clusters and what they own."""
    handler = ClusterHandler(context.settings, context.kube, context.events, context.clock)
    context.watch(CLUSTER, handler.reconcile)
    for kind in (STATEFUL_SET, DEPLOYMENT, POD):
        context.watch_owned(kind, CLUSTER_LABEL, CLUSTER)
    return _running(handler)


@contextlib.asynccontextmanager
async def _running(handler: ClusterHandler) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await handler.close()
