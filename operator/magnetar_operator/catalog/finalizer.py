"""Finalizes a resource: deletes its target from the cluster, then removes the finalizer.

If the cluster does not answer, the deletion waits, unless the MagnetarCluster is deleted, too. The
target is then left to its cluster, so that a Kubernetes namespace with both can be deleted as a
whole. The condition DeletionBlocked shows any other obstacle and what to do. With the annotation
`magnetar.io/force-delete`, the finalizer is removed after one attempt. A resource without our
finalizer (KeepAfterDeletion, or a resource that never had a cluster) is deleted without the
operator.

Why kopf's finalizer does not do this: see `engine.watches`.
"""

from collections.abc import Mapping
from typing import Any

from magnetar_operator.admin.access import AccessKey, ClusterKey
from magnetar_operator.admin.target import NAMESPACE, TENANT, TOPIC, Target, target_token
from magnetar_operator.admin.view import Clusters
from magnetar_operator.catalog.deletion import (
    FORCE,
    UNREACHABLE,
    Blocked,
    delete,
    try_delete,
)
from magnetar_operator.catalog.memory import OUTAGE_PAUSE_MAX_S, PAUSE_MAX_S, Memory, age
from magnetar_operator.catalog.references import (
    DUPLICATE,
    KEEP,
    BadSpec,
    NotYet,
    References,
    Siblings,
    admin_url,
    cluster_namespace,
    owns,
    recorded_key,
    resource_token,
    same_cluster,
    target_in,
)
from magnetar_operator.catalog.status import Verdict
from magnetar_operator.engine.annotations import PREFIX, annotated
from magnetar_operator.engine.queue import ObjectKey, key_of
from magnetar_operator.engine.reconciler import set_finalizer
from magnetar_operator.engine.status import DELETION_BLOCKED, READY, Condition
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import CLUSTER, Object
from magnetar_operator.models.base import condition_of
from magnetar_operator.settings import FINALIZER


class Finalizer:
    """Finalizes resources that are being deleted."""

    def __init__(
        self,
        kube: KubeClient,
        events: Events,
        siblings: Siblings,
        clusters: Clusters,
        memory: Memory,
        references: References,
    ) -> None:
        self._kube = kube
        self._events = events
        self._siblings = siblings
        self._clusters = clusters
        self._memory = memory
        self._references = references

    async def finalize(self, key: ObjectKey, obj: Object) -> Verdict | None:
        """Finalizes the resource; returns what blocks that, or None. Raises ObjectGone."""
        if FINALIZER not in (obj["metadata"].get("finalizers") or ()):
            return None
        try:
            place = await self._delete(key, obj)
        except Blocked as error:
            return await self._blocked(key, obj, error)
        await set_finalizer(self._kube, obj, wanted=False)
        self._memory.succeeded(key)
        self._memory.wake(resource_token(key.kind, key.namespace, key.name))
        if place is not None:
            url, target = place
            self._memory.release(key, target_token(url, target))
            if target.above is not None:
                self._memory.wake(_contents_token(url, target.above))
        return None

    async def _delete(self, key: ObjectKey, obj: Object) -> tuple[str, Target] | None:
        """Deletes the target unless it must stay; returns its address and name. Raises Blocked."""
        status = self._memory.status(key, obj)
        forced = annotated(obj, "force-delete")
        place = await self._place(obj, status)
        if place is None or (obj.get("spec") or {}).get("lifecyclePolicy") == KEEP:
            return place
        if not status.get("applied"):  # it created and adopted nothing, or it is a duplicate
            return place
        if condition_of(status, READY).get("reason") == DUPLICATE:
            return place
        if annotated(obj, "paused") and not forced:
            raise Blocked("Paused", f'nothing is deleted while {PREFIX}paused is "true"')
        url, target = place
        if self._has_elder(key, obj, url, target):
            return place
        if await self._is_taken_over(obj, status, url):
            note = f"{target} is left to its cluster, which is deleted; {url} is another cluster's."
            await self._events.record(obj, "LetGo", note, action="Delete")
            return place
        view = self._clusters.at(url, await self._access_key(obj, status, url))
        if forced:
            if error := await try_delete(view, target):
                note = f"Released because of {FORCE}; {target} may still be in the cluster: {error}"
                await self._events.record(obj, "LetGo", note, action="Delete", type="Warning")
            return place
        try:
            await delete(view, target, self._managed(url, target))
        except Blocked as blocked:
            if blocked.reason != UNREACHABLE:
                self._memory.wait(_contents_token(url, target), key)
                raise
            if await self._references.is_cluster_deleted(obj, status):
                note = f"{target} is left to its cluster, which is deleted, too."
                await self._events.record(obj, "LetGo", note, action="Delete")
                return place
            self._memory.wait_for_cluster(url, key)
            raise
        self._memory.answered(url, key)
        return place

    async def _place(self, obj: Object, status: Mapping[str, Any]) -> tuple[str, Target] | None:
        """The address and the target that the status records; None if it records none.

        The manifest may refer to another cluster now. It only corrects the address of the same
        cluster.
        """
        recorded = target_in(status, key_of(obj).kind)
        if recorded is None:
            return None
        try:
            place = await self._references.place(obj)
        except (NotYet, BadSpec):
            return recorded
        return (place.url, recorded[1]) if same_cluster(status, place) else recorded

    async def _access_key(
        self, obj: Object, status: Mapping[str, Any], url: str
    ) -> AccessKey | None:
        """The recorded cluster or Secret; of an address, the Secret that the manifest names now."""
        recorded = recorded_key(obj, status)
        if isinstance(recorded, ClusterKey):
            return recorded
        try:
            place = await self._references.place(obj)
        except (NotYet, BadSpec):
            return recorded
        return place.secret if place.url == url and not place.cluster_namespace else recorded

    def _has_elder(self, key: ObjectKey, obj: Object, url: str, target: Target) -> bool:
        """Whether an older resource owns the target; after a restart, only statuses record that."""
        if self._memory.elder(key, obj, target_token(url, target)) is not None:
            return True
        return any(
            owns(other, url, target) and age(other) < age(obj)
            for other in self._siblings.all_of(key.kind)
        )

    async def _is_taken_over(self, obj: Object, status: Mapping[str, Any], url: str) -> bool:
        """Whether the recorded MagnetarCluster is deleted and another one has its address."""
        recorded = (status.get("cluster"), cluster_namespace(status))
        others = [
            cluster
            for cluster in self._siblings.all_of(CLUSTER.kind)
            if admin_url(cluster) == url
            and (cluster["metadata"]["name"], cluster["metadata"]["namespace"]) != recorded
        ]
        if not others:  # the watch may not have reported it yet
            try:
                place = await self._references.place(obj)
            except (NotYet, BadSpec):
                return False
            if place.url != url or same_cluster(status, place):
                return False
        return await self._references.is_cluster_deleted(obj, status)

    def _managed(self, url: str, target: Target) -> set[str]:
        """Names in the target that have their own resources, which must be deleted first."""
        below = {TENANT: NAMESPACE, NAMESPACE: TOPIC}.get(target.kind)
        if below is None:
            return set()
        statuses = [obj.get("status") or {} for obj in self._siblings.all_of(below)]
        return {
            status["resolvedName"]
            for status in statuses
            if status.get("adminUrl") == url and status.get("resolvedName")
        }

    async def _blocked(self, key: ObjectKey, obj: Object, error: Blocked) -> Verdict:
        status = self._memory.status(key, obj)
        if condition_of(status, DELETION_BLOCKED).get("message") != error.message:
            await self._events.record(
                obj, DELETION_BLOCKED, error.message, action="Delete", type="Warning"
            )
        blocked = [
            Condition(READY, False, "Deleting", error.message),
            Condition(DELETION_BLOCKED, True, error.reason, error.message),
        ]
        most_s = OUTAGE_PAUSE_MAX_S if error.reason == UNREACHABLE else PAUSE_MAX_S
        return Verdict(blocked, again_soon=True, pause_max_s=most_s)


def _contents_token(url: str, target: Target) -> str:
    """The token under which a resource waits for deletions of the target's contents."""
    return f"contents of {target_token(url, target)}"
