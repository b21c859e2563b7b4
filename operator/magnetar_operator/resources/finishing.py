"""The end of a resource: its target is deleted from the cluster, then the finalizer goes.

A cluster that cannot be reached delays the end, unless its MagnetarCluster is gone or going, too:
what was in it is then left to it, and a Kubernetes namespace with both can be deleted as a whole.
Whatever else is in the way is told in the condition DeletionBlocked, with what to do; who said
`magnetar.io/force-delete` is let go after one attempt. A resource without our finalizer
(KeepAfterDeletion, or never placed) ends without us.
"""

from collections.abc import Mapping
from typing import Any

from magnetar_operator.api_kinds import CLUSTER, Object
from magnetar_operator.events import Events
from magnetar_operator.resources.annotations import (
    DUPLICATE,
    KEEP,
    PREFIX,
    annotated,
    cluster_namespace,
    key_of,
    looks_after,
    same_cluster,
    target_in,
)
from magnetar_operator.resources.cluster_view import Clusters
from magnetar_operator.resources.deletion import (
    FORCE,
    UNREACHABLE,
    Blocked,
    delete,
    delete_regardless,
)
from magnetar_operator.resources.memory import OUTAGE_PAUSE_MAX_S, PAUSE_MAX_S, Memory, age
from magnetar_operator.resources.placing import Placing, Siblings, admin_url
from magnetar_operator.resources.resource_status import (
    DELETION_BLOCKED,
    READY,
    Condition,
    condition_of,
)
from magnetar_operator.resources.targets import (
    NAMESPACE,
    TENANT,
    TOPIC,
    BadSpec,
    NotYet,
    Target,
    resource_token,
    target_token,
)
from magnetar_operator.resources.writing import Verdict, Writer
from magnetar_operator.settings import FINALIZER
from magnetar_operator.work import Key


class Finishing:
    """See the module's text."""

    def __init__(
        self,
        events: Events,
        siblings: Siblings,
        clusters: Clusters,
        memory: Memory,
        placing: Placing,
        writer: Writer,
    ) -> None:
        self._events = events
        self._siblings = siblings
        self._clusters = clusters
        self._memory = memory
        self._placing = placing
        self._writer = writer

    async def finish(self, key: Key, one: Object) -> float | None:
        """When to look again; None: it is done. Raises NotFound where the resource is gone."""
        if FINALIZER not in (one["metadata"].get("finalizers") or ()):
            return None
        try:
            where = await self._delete(key, one)
        except Blocked as error:
            return await self._blocked(key, one, error)
        await self._writer.set_finalizer(one, wanted=False)
        self._memory.went_well(key)
        self._memory.wake(resource_token(key.kind, key.namespace, key.name))
        if where is not None:
            url, target = where
            self._memory.let_go(key, target_token(url, target))
            if target.above is not None:
                self._memory.wake(_emptier(url, target.above))
        return None

    async def _delete(self, key: Key, one: Object) -> tuple[str, Target] | None:
        """From the cluster, if it is to be; raises Blocked."""
        status = self._memory.status(key, one)
        forced = annotated(one, "force-delete")
        where = await self._where(one, status)
        if where is None or (one.get("spec") or {}).get("lifecyclePolicy") == KEEP:
            return where
        if not status.get("applied"):  # it created and adopted nothing, or is a duplicate
            return where
        if condition_of(status, READY).get("reason") == DUPLICATE:
            return where
        if annotated(one, "paused") and not forced:
            raise Blocked("Paused", f'nothing is deleted while {PREFIX}paused is "true"')
        url, target = where
        if self._has_elder(key, one, url, target):
            return where
        if await self._taken_over(one, status, url):
            note = f"{target} is left to its cluster, which is deleted; {url} is another one's."
            await self._events.tell(one, "LetGo", note, action="Delete")
            return where
        view = self._clusters.at(url)
        if forced:
            if why := await delete_regardless(view, target):
                note = f"Let go because of {FORCE}; {target} may be in the cluster still: {why}"
                await self._events.tell(one, "LetGo", note, action="Delete", type="Warning")
            return where
        try:
            await delete(view, target, self._managed(url, target))
        except Blocked as error:
            if error.reason != UNREACHABLE:
                self._memory.wait(_emptier(url, target), key)
                raise
            if await self._placing.cluster_leaves(one, status):
                note = f"{target} is left to its cluster, which is deleted, too."
                await self._events.tell(one, "LetGo", note, action="Delete")
                return where
            self._memory.wait_for_cluster(url, key)
            raise
        self._memory.answered(url, key)
        return where

    async def _where(self, one: Object, status: Mapping[str, Any]) -> tuple[str, Target] | None:
        """The address and the target that the status names; None if it names none.

        The manifest may mean another cluster by now. It only corrects the address of the same one.
        """
        recorded = target_in(status, key_of(one).kind)
        if recorded is None:
            return None
        try:
            place = await self._placing.place(one)
        except (NotYet, BadSpec):
            return recorded
        return (place.url, recorded[1]) if same_cluster(status, place) else recorded

    def _has_elder(self, key: Key, one: Object, url: str, target: Target) -> bool:
        """Whether an older resource looks after the target; after a restart only statuses tell."""
        if self._memory.elder(key, one, target_token(url, target)) is not None:
            return True
        return any(
            looks_after(other, url, target) and age(other) < age(one)
            for other in self._siblings.all_of(key.kind)
        )

    async def _taken_over(self, one: Object, status: Mapping[str, Any], url: str) -> bool:
        """Whether the MagnetarCluster of the status is deleted and another one has its address."""
        known = (status.get("cluster"), cluster_namespace(status))
        others = [
            each
            for each in self._siblings.all_of(CLUSTER.kind)
            if admin_url(each) == url
            and (each["metadata"]["name"], each["metadata"]["namespace"]) != known
        ]
        if not others:  # the watch may not have shown it yet
            try:
                place = await self._placing.place(one)
            except (NotYet, BadSpec):
                return False
            if place.url != url or same_cluster(status, place):
                return False
        return await self._placing.cluster_leaves(one, status)

    def _managed(self, url: str, target: Target) -> set[str]:
        """Names in the target that have resources: these are to be deleted first."""
        below = {TENANT: NAMESPACE, NAMESPACE: TOPIC}.get(target.kind)
        if below is None:
            return set()
        statuses = [one.get("status") or {} for one in self._siblings.all_of(below)]
        return {
            each["resolvedName"]
            for each in statuses
            if each.get("adminUrl") == url and each.get("resolvedName")
        }

    async def _blocked(self, key: Key, one: Object, error: Blocked) -> float:
        status = self._memory.status(key, one)
        if condition_of(status, DELETION_BLOCKED).get("message") != error.message:
            await self._events.tell(
                one, DELETION_BLOCKED, error.message, action="Delete", type="Warning"
            )
        said = [
            Condition(READY, False, "Deleting", error.message),
            Condition(DELETION_BLOCKED, True, error.reason, error.message),
        ]
        await self._writer.status(key, one, Verdict(said))
        most_s = OUTAGE_PAUSE_MAX_S if error.reason == UNREACHABLE else PAUSE_MAX_S
        return self._memory.pause_s(key, most_s)


def _emptier(url: str, target: Target) -> str:
    """What is woken when something in the target goes."""
    return f"less in {target_token(url, target)}"
