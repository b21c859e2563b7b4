"""Reads which target a resource's status records, and what was applied to it. Pure: no IO.

A resource acts only on the target that its status records, or on a new one if it records none.
"""

from collections.abc import Mapping
from typing import Any, Final

from magnetar_operator.admin.target import Target
from magnetar_operator.catalog.references import ADMIN_PORT, Place
from magnetar_operator.kube.kinds import Object

KEEP: Final = "KeepAfterDeletion"
MOVED: Final = "Moved"
DUPLICATE: Final = "Duplicate"


def applied_there(status: Mapping[str, Any], place: Place) -> Mapping[str, Any] | None:
    """`status.applied`, if the status records this target."""
    return None if moved(status, place) else status.get("applied") or None


def same_cluster(status: Mapping[str, Any], place: Place) -> bool:
    """Whether the status records the cluster of the place.

    A MagnetarCluster that moves to a new address stays the same cluster, and another one may get
    its old address.
    """
    cluster = str(status.get("cluster") or "")
    if not place.cluster_namespace or not cluster or "://" in cluster:
        return bool(status.get("adminUrl") == place.url)
    namespace = cluster_namespace(status) or place.cluster_namespace
    return (cluster, namespace) == (place.cluster, place.cluster_namespace)


def cluster_namespace(status: Mapping[str, Any]) -> str:
    """The Kubernetes namespace of the MagnetarCluster in the status; empty if unknown.

    An older release did not record it; it is then taken from the cluster's default address.
    """
    if recorded := status.get("clusterNamespace"):
        return str(recorded)
    start, end = f"http://{status.get('cluster')}-broker.", f".svc:{ADMIN_PORT}"
    url = str(status.get("adminUrl") or "")
    return url[len(start) : -len(end)] if url.startswith(start) and url.endswith(end) else ""


def moved(status: Mapping[str, Any], place: Place) -> str:
    """Why the place differs from the one that the status records; empty if it does not.

    A manifest may resolve to another cluster or name than before: `adminUrl` is changed,
    `clusterRef` is added, the only MagnetarCluster of the namespace is replaced by another one, or
    a referenced Namespace resource is deleted and created again.
    """
    name = status.get("resolvedName")
    if not status.get("applied") or not name:
        return ""
    if same_cluster(status, place) and name == place.target.full_name:
        return ""
    return (
        f"it was created or adopted as {name} in cluster {status.get('cluster')}, and its manifest "
        f"now means {place.target.full_name} in cluster {place.cluster}: nothing is changed in "
        "either. Restore what its manifest refers to, or delete this resource (with "
        f"lifecyclePolicy: {KEEP} to keep its data) and create it again"
    )


def owns(obj: Object, url: str, target: Target) -> bool:
    """Whether the resource's status records that it created or adopted the target."""
    status = obj.get("status") or {}
    return bool(status.get("applied")) and target_in(status, obj["kind"]) == (url, target)


def target_in(status: Mapping[str, Any], kind: str) -> tuple[str, Target] | None:
    """The address and the target that the status records."""
    url, name = status.get("adminUrl"), status.get("resolvedName")
    return (url, Target.parse(kind, name)) if url and name else None
