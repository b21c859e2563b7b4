"""Carries out the actions of a cluster's plan, and records Events."""

from collections.abc import Mapping
from typing import ClassVar, assert_never

from magnetar_operator.admin.client import AdminClient, AdminError, NotFound
from magnetar_operator.cluster.actions import (
    Action,
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    IssueSecret,
    ReplacePod,
    Scale,
)
from magnetar_operator.cluster.manifests.names import Cluster
from magnetar_operator.cluster.manifests.security import wanted_of
from magnetar_operator.cluster.observe import PREFIX
from magnetar_operator.cluster.observed import REASON_OF_OURS
from magnetar_operator.engine.executor import Executor
from magnetar_operator.engine.objects import ObjectWriter
from magnetar_operator.engine.plan import Apply, Outcome, Remove
from magnetar_operator.kube.client import Conflict, KubeClient, KubeError
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import CLUSTER, POD, PVC, Kind, Object
from magnetar_operator.security.issuer import SecretIssuer


class ClusterExecutor(Executor[Action]):
    """Carries out the plan of one cluster.

    A refused action (a volume that cannot grow) does not stop the others: each action is planned
    from what exists, and none depends on what another one creates.
    """

    refusals: ClassVar = (KubeError, AdminError)

    def __init__(
        self,
        kube: KubeClient,
        events: Events,
        admin: AdminClient,
        cluster: Cluster,
        owner: Object,
        issuer: SecretIssuer,
        secrets: Mapping[str, Object | None],
    ) -> None:
        self._kube = kube
        self._admin = admin
        self._cluster = cluster
        self._issuer = issuer
        self._secrets = secrets
        self._writer = ObjectWriter(kube, events, owner)

    async def execute(self, action: Action, outcome: Outcome[Action]) -> None:  # noqa: ARG002
        """Carries out one action. An action whose effect already exists succeeds."""
        match action:
            case Apply():
                await self._writer.apply(action)
            case Remove():
                await self._writer.remove(action)
            case Scale():
                namespace = self._cluster.namespace
                await self._kube.scale(action.kind, namespace, action.name, action.replicas)
            case ReplacePod():
                await self._delete(POD, action.name, action.uid, "Restarted", action.text)
            case DeleteVolume():
                await self._delete(PVC, action.name, action.uid, "VolumeDeleted", action.text)
            case BeginDrain():
                body = {"reason": f"{REASON_OF_OURS}{action.text}"}
                await self._admin.call("POST", f"{PREFIX}/bookies/{action.bookie}/drain", body)
                await self._writer.record("DrainBegins", action.text)
            case EndDrain():
                await self._end_drain(action)
            case IssueSecret():
                await self._issue(action)
            case ClearRequest():
                await self._clear(action.annotation)
            case _:
                assert_never(action)

    async def _delete(self, kind: Kind, name: str, uid: str, reason: str, text: str) -> None:
        try:
            await self._kube.delete(kind, name, self._cluster.namespace, uid=uid)
        except Conflict:
            return  # a newer object has its name: it was deleted before
        await self._writer.record(reason, text)

    async def _end_drain(self, action: EndDrain) -> None:
        try:
            await self._admin.call("DELETE", f"{PREFIX}/bookies/{action.bookie}/drain")
        except NotFound:
            return
        await self._writer.record(action.reason, action.text)

    async def _issue(self, action: IssueSecret) -> None:
        wanted = wanted_of(self._cluster)
        assert wanted is not None  # noqa: S101  the plan issues Secrets
        try:
            await self._issuer.carry_out(action.issue, wanted, self._secrets)
        except Conflict:
            return  # another writer was first: the next reconcile plans from its Secret
        await self._writer.record("Issued", f"Secret {action.issue.secret}: {action.text}")

    async def _clear(self, annotation: str) -> None:
        """Removes the annotation from the very version of the MagnetarCluster that was read."""
        cluster = self._cluster
        metadata: Object = {"annotations": {annotation: None}}
        metadata["resourceVersion"] = cluster.resource_version
        try:
            await self._kube.merge(CLUSTER, cluster.namespace, cluster.name, {"metadata": metadata})
        except Conflict:
            return  # the next reconcile decides
