"""Carries a plan out, one action after the other, and tells of it in Events.

Every action may be broken off and done again: applies and deletes by uid say the same the second
time, drains are records in the metadata store. What was not done is planned again next time.
"""

from typing import assert_never

from magnetar_operator.api_kinds import CLUSTER, POD, PVC, Object
from magnetar_operator.cluster.actions import (
    Action,
    Apply,
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    Remove,
    ReplacePod,
    Scale,
)
from magnetar_operator.cluster.manifests.naming import Cluster
from magnetar_operator.cluster.observe import PREFIX, Admins
from magnetar_operator.cluster.observed import REASON_OF_OURS
from magnetar_operator.events import Events
from magnetar_operator.kube import Conflict, KubeClient, KubeError, Unreachable
from magnetar_operator.leading import NotLeading
from magnetar_operator.resources.admin_client import AdminError, NotFound


class Actor:
    """See the module's text."""

    def __init__(self, kube: KubeClient, events: Events, admins: Admins) -> None:
        self._kube = kube
        self._events = events
        self._admins = admins

    async def act(
        self, cluster: Cluster, owner: Object, actions: list[Action]
    ) -> list[KubeError | AdminError]:
        """All of them, in order; what could not be done. Raises KubeError where nothing can be.

        One that is refused (a volume that cannot grow) does not keep the others from being done:
        each was planned from what there is, none from what another would make.
        """
        failed: list[KubeError | AdminError] = []
        for action in actions:
            try:
                await self._one(cluster, owner, action)
            except (Unreachable, NotLeading):
                raise
            except (KubeError, AdminError) as error:
                failed.append(error)
        return failed

    async def _one(self, cluster: Cluster, owner: Object, action: Action) -> None:
        match action:
            case Apply():
                applied = await self._kube.apply(action.manifest, before=action.before)
                if applied.changed and action.reason:
                    kind, name = applied.object["kind"], applied.object["metadata"]["name"]
                    # What was made says its name already.
                    told = (
                        action.text if action.verb == "create" else f"{kind} {name}: {action.text}"
                    )
                    warns = action.verb == "repair"
                    await self._tell(owner, action.reason, told, warns=warns)
            case Remove():
                try:
                    await self._kube.delete(
                        action.kind, action.name, cluster.namespace, uid=action.uid
                    )
                except Conflict:
                    return  # another of that name by now: the next look decides
                await self._tell(owner, "Removed", action.text)
            case Scale():
                await self._kube.scale(action.kind, cluster.namespace, action.name, action.replicas)
            case ReplacePod():
                try:
                    await self._kube.delete(POD, action.name, cluster.namespace, uid=action.uid)
                except Conflict:
                    return  # it has been replaced already
                await self._tell(owner, "Restarted", action.text)
            case ClearRequest():
                await self._clear(cluster, action.annotation)
            case BeginDrain() | EndDrain() | DeleteVolume():
                await self._of_bookie(cluster, owner, action)
            case _:
                assert_never(action)

    async def _of_bookie(
        self, cluster: Cluster, owner: Object, action: BeginDrain | EndDrain | DeleteVolume
    ) -> None:
        match action:
            case BeginDrain():
                client = await self._admins.of(cluster)
                body = {"reason": f"{REASON_OF_OURS}{action.text}"}
                await client.call("POST", f"{PREFIX}/bookies/{action.bookie}/drain", body)
                await self._tell(owner, "DrainBegins", action.text)
            case EndDrain():
                client = await self._admins.of(cluster)
                try:
                    await client.call("DELETE", f"{PREFIX}/bookies/{action.bookie}/drain")
                except NotFound:
                    return
                await self._tell(owner, action.reason, action.text)
            case DeleteVolume():
                try:
                    await self._kube.delete(PVC, action.name, cluster.namespace, uid=action.uid)
                except Conflict:
                    return  # it is another by now
                await self._tell(owner, "VolumeDeleted", action.text)
            case _:
                assert_never(action)

    async def _clear(self, cluster: Cluster, annotation: str) -> None:
        """Only of the MagnetarCluster as it was read: it may say something else by now."""
        metadata: Object = {"annotations": {annotation: None}}
        metadata["resourceVersion"] = cluster.resource_version
        try:
            await self._kube.merge(CLUSTER, cluster.namespace, cluster.name, {"metadata": metadata})
        except Conflict:
            return  # the next look decides

    async def _tell(self, owner: Object, reason: str, text: str, *, warns: bool = False) -> None:
        await self._events.tell(owner, reason, text, type="Warning" if warns else "Normal")
