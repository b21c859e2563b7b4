"""What a resource's metadata and status say to the reconcilers. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.resources.placing import ADMIN_PORT, Place
from magnetar_operator.resources.targets import Target
from magnetar_operator.work import Key

PREFIX: Final = "magnetar.io/"
KEEP: Final = "KeepAfterDeletion"
MOVED: Final = "Moved"
DUPLICATE: Final = "Duplicate"


def key_of(one: Object) -> Key:
    metadata = one["metadata"]
    return Key(one["kind"], metadata.get("namespace", ""), metadata["name"])


def annotated(one: Object, name: str) -> bool:
    """Whether `magnetar.io/NAME` is "true"."""
    return (one["metadata"].get("annotations") or {}).get(f"{PREFIX}{name}") == "true"


def ignored(one: Object) -> tuple[str, ...]:
    """The fields whose drift is left alone."""
    text = (one["metadata"].get("annotations") or {}).get(f"{PREFIX}ignore-drift", "")
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def applied_there(status: Mapping[str, Any], place: Place) -> Mapping[str, Any] | None:
    """`status.applied`, where it is about this target."""
    return None if moved(status, place) else status.get("applied") or None


def same_cluster(status: Mapping[str, Any], place: Place) -> bool:
    """Whether the status names the cluster of the place.

    A MagnetarCluster keeps its identity at a new address, and another one may get its old address.
    """
    cluster = str(status.get("cluster") or "")
    if not place.cluster_namespace or not cluster or "://" in cluster:
        return bool(status.get("adminUrl") == place.url)
    namespace = cluster_namespace(status) or place.cluster_namespace
    return (cluster, namespace) == (place.cluster, place.cluster_namespace)


def cluster_namespace(status: Mapping[str, Any]) -> str:
    """The Kubernetes namespace of the MagnetarCluster that the status names; empty if unknown.

    An older release recorded it only within the address of a cluster that has no other one.
    """
    if recorded := status.get("clusterNamespace"):
        return str(recorded)
    start, end = f"http://{status.get('cluster')}-broker.", f".svc:{ADMIN_PORT}"
    url = str(status.get("adminUrl") or "")
    return url[len(start) : -len(end)] if url.startswith(start) and url.endswith(end) else ""


def moved(status: Mapping[str, Any], place: Place) -> str:
    """Why the place is not the one that the status records actions in; empty if it is.

    A manifest can come to mean another cluster or name: `adminUrl` is changed, `clusterRef` is
    added, the only MagnetarCluster of the namespace is replaced by another one, or a referenced
    Namespace resource is created anew.
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
        f"lifecyclePolicy: {KEEP}, if its data shall stay) and create it anew"
    )


def looks_after(one: Object, url: str, target: Target) -> bool:
    """Whether its status records that it created or adopted the target."""
    status = one.get("status") or {}
    return bool(status.get("applied")) and target_in(status, one["kind"]) == (url, target)


def target_in(status: Mapping[str, Any], kind: str) -> tuple[str, Target] | None:
    """The address and the target that the status tells of."""
    url, name = status.get("adminUrl"), status.get("resolvedName")
    return (url, Target.parse(kind, name)) if url and name else None
