"""Finds what a resource refers to: its cluster, and the resources that its name comes from.

What the watches have shown is taken as it is; what they have not shown (yet, or because it is in a
Kubernetes namespace that is not watched) is asked for, where there is a Kubernetes to ask.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar_operator.api_kinds import CLUSTER, KINDS, Kind, Object
from magnetar_operator.kube import Forbidden, KubeClient
from magnetar_operator.models.base import API_VERSION
from magnetar_operator.resources.targets import (
    NAMESPACE,
    TOPIC,
    BadSpec,
    Lookup,
    NotYet,
    Target,
    placed_by,
    resource_token,
    target_of,
)
from magnetar_operator.work import Key

ADMIN_PORT: Final = 8080
_REFERENCES: Final = (("namespaceRef", NAMESPACE), ("topicRef", TOPIC))


class Siblings(Protocol):
    """The other resources, as last seen, and the way to have one looked at (`work.Work`)."""

    def latest(self, key: Key) -> Object | None: ...

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]: ...

    def look(self, key: Key, after_s: float = 0.0) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a resource's target is."""

    url: str
    cluster: str
    """For people: the MagnetarCluster's name, or the address."""
    target: Target
    cluster_namespace: str = ""
    """The MagnetarCluster's Kubernetes namespace; empty for an address."""
    local_cluster: str = ""
    """The cluster's name among Pulsar's clusters; empty for an address."""

    @property
    def status(self) -> dict[str, str]:
        """The fields of a status that name the place."""
        return {
            "resolvedName": self.target.full_name,
            "cluster": self.cluster,
            "clusterNamespace": self.cluster_namespace,
            "adminUrl": self.url,
        }


def kind_named(name: str) -> Kind:
    return KINDS[API_VERSION, name]


class Placing:
    """See the module's text."""

    def __init__(self, kube: KubeClient | None, siblings: Siblings) -> None:
        self._kube = kube
        self._siblings = siblings

    async def place(self, one: Object) -> Place:
        """Raises NotYet and BadSpec."""
        find = await self._references(one)
        target = target_of(one, find)
        owner = placed_by(one, find)
        if url := (owner.get("spec") or {}).get("adminUrl"):
            address = str(url).rstrip("/")
            return Place(address, address, target)
        cluster = await self._cluster(owner)
        metadata = cluster["metadata"]
        return Place(
            admin_url(cluster),
            str(metadata["name"]),
            target,
            str(metadata["namespace"]),
            str((cluster.get("spec") or {}).get("clusterName") or metadata["name"]),
        )

    async def _references(self, one: Object) -> Lookup:
        """What the resource refers to, and what that refers to."""
        found: dict[tuple[str, str], Object | None] = {}
        namespace = one["metadata"].get("namespace", "")
        looked_at: Object | None = one
        while looked_at is not None:
            spec, looked_at = looked_at.get("spec") or {}, None
            for reference, kind in _REFERENCES:
                name = (spec.get(reference) or {}).get("name")
                if name:
                    looked_at = await self._find(Key(kind, namespace, name))
                    found[kind, name] = looked_at
        return lambda kind, name: found.get((kind, name))

    async def _find(self, key: Key) -> Object | None:
        known = self._siblings.latest(key)
        if known is not None or self._kube is None:
            return known
        return await self._kube.find(kind_named(key.kind), key.name, key.namespace)

    async def _cluster(self, one: Object) -> Object:
        """The MagnetarCluster of a resource without adminUrl."""
        own_namespace = one["metadata"].get("namespace", "")
        reference = (one.get("spec") or {}).get("clusterRef")
        if not reference:
            return await self._only_one(own_namespace)
        namespace = reference.get("namespace") or own_namespace
        return await self._named(namespace, reference["name"])

    async def _named(self, namespace: str, name: str) -> Object:
        try:
            found = await self._find(Key(CLUSTER.kind, namespace, name))
        except Forbidden as error:
            raise BadSpec(
                f"spec.clusterRef: the operator may not look into namespace {namespace}: "
                f"{error.message}"
            ) from error
        if found is None:
            raise NotYet(
                "WaitingForCluster",
                f"there is no MagnetarCluster {namespace}/{name}: create it, or correct "
                "spec.clusterRef",
                resource_token(CLUSTER.kind, namespace, name),
            )
        return found

    async def _only_one(self, namespace: str) -> Object:
        found = self._siblings.all_of(CLUSTER.kind, namespace)
        if not found and self._kube is not None:
            found = await self._kube.list(CLUSTER, namespace)
        if len(found) == 1:
            return found[0]
        if not found:
            raise NotYet(
                "WaitingForCluster",
                f"there is no MagnetarCluster in namespace {namespace}: create one, or name one "
                "in spec.clusterRef, or its address in spec.adminUrl",
            )
        names = ", ".join(sorted(one["metadata"]["name"] for one in found))
        raise BadSpec(
            f"there are several MagnetarClusters in namespace {namespace} ({names}): name one in "
            "spec.clusterRef"
        )

    async def cluster_leaves(self, one: Object, status: Mapping[str, Any]) -> bool:
        """Whether the MagnetarCluster that the status names is deleted or being deleted."""
        cluster = str(status.get("cluster") or "")
        if not cluster or "://" in cluster or self._kube is None:
            return False
        namespace = status.get("clusterNamespace") or await self._namespace_by_reference(one)
        # Asked for, not remembered: what follows from it cannot be taken back.
        found = await self._kube.find(CLUSTER, cluster, namespace)
        return found is None or bool(found["metadata"].get("deletionTimestamp"))

    async def _namespace_by_reference(self, one: Object) -> str:
        """For a status of a release that did not record the cluster's namespace."""
        try:
            owner = placed_by(one, await self._references(one))
        except BadSpec:
            owner = one
        reference = (owner.get("spec") or {}).get("clusterRef") or {}
        return str(reference.get("namespace") or one["metadata"].get("namespace", ""))


def admin_url(cluster: Object) -> str:
    """Of a MagnetarCluster."""
    metadata = cluster["metadata"]
    given = (cluster.get("spec") or {}).get("adminUrl")
    told = (cluster.get("status") or {}).get("adminUrl")
    default = f"http://{metadata['name']}-broker.{metadata['namespace']}.svc:{ADMIN_PORT}"
    return str(given or told or default).rstrip("/")
