"""Resolves the references of a resource: its target, its cluster, and the resources in between.

The target's name comes from `spec`, or is composed from references (`namespaceRef`, `topicRef`). If
a referenced object does not exist yet, `NotYet` says what the resource waits for.

Referenced objects come from the watches. Other objects (not reported yet, or in a Kubernetes
namespace that is not watched) are read from the API server, unless the caller has none.

A resource acts only on the target that its status records, or on a new one if it records none:
`moved` compares the resolved place with the recorded one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName, parse_topic
from magnetar_operator.admin.access import AccessKey, ClusterKey, SecretKey
from magnetar_operator.admin.target import (
    NAMESPACE,
    PERMISSION,
    SUBSCRIPTION,
    TENANT,
    TOPIC,
    Target,
)
from magnetar_operator.engine.queue import ObjectKey
from magnetar_operator.kube.client import Forbidden, KubeClient
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER, KINDS, Kind, Object
from magnetar_operator.models.kinds import BY_KIND
from magnetar_operator.models.resources import (
    NamespaceSpec,
    PermissionSpec,
    Placed,
    SubscriptionSpec,
    TenantSpec,
    TopicSpec,
)

ADMIN_PORT: Final = 8080
ADMIN_TLS_PORT: Final = 8443
_REFERENCES: Final = (("namespaceRef", NAMESPACE), ("topicRef", TOPIC))
ORDER: Final = (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION, PERMISSION)
"""The order of dependence: a kind needs kinds before it."""
Lookup = Callable[[str, str], Object | None]
"""Finds a resource of the same Kubernetes namespace, by kind and name."""


class NotYet(Exception):
    """The resource waits for another object to exist.

    The creation of that object wakes the resources that wait for its `token`.
    """

    def __init__(self, reason: str, message: str, token: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.token = token


class BadSpec(ValueError):
    """The manifest is wrong or cannot be fulfilled, so only its author can help."""


def resource_token(kind: str, kube_namespace: str, name: str) -> str:
    """The token under which other resources wait for a resource."""
    return f"{kind} {kube_namespace}/{name}"


def parse_spec(obj: Object) -> Placed:
    """Parses the spec of a resource. Raises BadSpec."""
    try:
        return cast("Placed", BY_KIND[obj["kind"]].spec.parse(obj.get("spec") or {}))
    except ValueError as error:  # from msgspec, which names the field
        raise BadSpec(f"spec: {error}") from error


class Siblings(Protocol):
    """The watched objects, and a way to enqueue them (`ReconcileQueue`)."""

    def latest(self, key: ObjectKey) -> Object | None:
        """The object as last observed; None if it is unknown."""

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]:
        """All objects of a kind (in a namespace, if given)."""

    def enqueue(self, key: ObjectKey, after_s: float = 0.0) -> None:
        """Enqueues an object for a reconcile within `after_s` seconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster and the target that a resource resolves to."""

    url: str
    cluster: str
    """The MagnetarCluster's name, or the address, for people."""
    target: Target
    cluster_namespace: str = ""
    """The MagnetarCluster's Kubernetes namespace; empty for an address."""
    local_cluster: str = ""
    """The cluster's name among Pulsar's clusters; empty for an address."""
    secret: SecretKey | None = None
    """The Secret with the credentials for an address; None: requests have none."""

    @property
    def key(self) -> AccessKey | None:
        """The cluster or the Secret whose credentials are used; None: an address without any."""
        return self.secret or cluster_key(self.cluster, self.cluster_namespace)

    @property
    def status(self) -> dict[str, str]:
        """The fields of a status that record the place."""
        return {
            "resolvedName": self.target.full_name,
            "cluster": self.cluster,
            "clusterNamespace": self.cluster_namespace,
            "adminUrl": self.url,
            "adminSecret": "" if self.secret is None else self.secret.name,
        }


def recorded_key(obj: Object, status: Mapping[str, Any]) -> AccessKey | None:
    """The cluster or the Secret in the status of a resource, whose credentials are used."""
    if secret := str(status.get("adminSecret") or ""):
        return SecretKey(obj["metadata"]["namespace"], secret, str(status.get("adminUrl") or ""))
    return cluster_key(str(status.get("cluster") or ""), cluster_namespace(status))


def cluster_key(name: str, namespace: str) -> ClusterKey | None:
    """The MagnetarCluster of a place or a status; None if it is an address."""
    return ClusterKey(namespace, name) if namespace else None


def kind_named(name: str) -> Kind:
    """The table's entry for one of our own kinds."""
    return KINDS[API_VERSION, name]


class References:
    """Resolves the cluster and the target that a resource refers to."""

    def __init__(self, kube: KubeClient | None, siblings: Siblings) -> None:
        self._kube = kube
        self._siblings = siblings

    async def place(self, obj: Object) -> Place:
        """The cluster and the target of the resource. Raises NotYet and BadSpec."""
        find = await self._references(obj)
        target = target_of(obj, find)
        owner = placed_by(obj, find)
        if url := (owner.get("spec") or {}).get("adminUrl"):
            address = str(url).rstrip("/")
            name = ((owner["spec"].get("adminSecret")) or {}).get("name")
            namespace = obj["metadata"].get("namespace", "")
            secret = SecretKey(namespace, name, address) if name else None
            return Place(address, address, target, secret=secret)
        cluster = await self._cluster(owner)
        metadata = cluster["metadata"]
        require_admitted(cluster, obj["metadata"].get("namespace", ""))
        return Place(
            admin_url(cluster),
            str(metadata["name"]),
            target,
            str(metadata["namespace"]),
            str((cluster.get("spec") or {}).get("clusterName") or metadata["name"]),
        )

    async def _references(self, obj: Object) -> Lookup:
        """Reads the resources that the resource refers to, directly and indirectly."""
        referred: dict[tuple[str, str], Object | None] = {}
        namespace = obj["metadata"].get("namespace", "")
        current: Object | None = obj
        while current is not None:
            spec, current = current.get("spec") or {}, None
            for reference, kind in _REFERENCES:
                name = (spec.get(reference) or {}).get("name")
                if name:
                    current = await self._find(ObjectKey(kind, namespace, name))
                    referred[kind, name] = current
        return lambda kind, name: referred.get((kind, name))

    async def _find(self, key: ObjectKey) -> Object | None:
        obj = self._siblings.latest(key)
        if obj is not None or self._kube is None:
            return obj
        return await self._kube.find(kind_named(key.kind), key.name, key.namespace)

    async def _cluster(self, obj: Object) -> Object:
        """The MagnetarCluster of a resource that has no adminUrl."""
        own_namespace = obj["metadata"].get("namespace", "")
        reference = (obj.get("spec") or {}).get("clusterRef")
        if not reference:
            return await self._only_one(own_namespace)
        namespace = reference.get("namespace") or own_namespace
        return await self._named(namespace, reference["name"])

    async def _named(self, namespace: str, name: str) -> Object:
        try:
            cluster = await self._find(ObjectKey(CLUSTER.kind, namespace, name))
        except Forbidden as error:
            raise BadSpec(
                f"spec.clusterRef: the operator may not read namespace {namespace}: {error.message}"
            ) from error
        if cluster is None:
            raise NotYet(
                "WaitingForCluster",
                f"there is no MagnetarCluster {namespace}/{name}: create it, or correct "
                "spec.clusterRef",
                resource_token(CLUSTER.kind, namespace, name),
            )
        return cluster

    async def _only_one(self, namespace: str) -> Object:
        clusters = self._siblings.all_of(CLUSTER.kind, namespace)
        if not clusters and self._kube is not None:
            clusters = await self._kube.list(CLUSTER, namespace)
        if len(clusters) == 1:
            return clusters[0]
        if not clusters:
            raise NotYet(
                "WaitingForCluster",
                f"there is no MagnetarCluster in namespace {namespace}: create one, or name one "
                "in spec.clusterRef, or its address in spec.adminUrl",
            )
        names = ", ".join(sorted(cluster["metadata"]["name"] for cluster in clusters))
        raise BadSpec(
            f"there are several MagnetarClusters in namespace {namespace} ({names}): name one in "
            "spec.clusterRef"
        )

    async def is_cluster_deleted(self, obj: Object, status: Mapping[str, Any]) -> bool:
        """Whether the MagnetarCluster in the status is deleted or being deleted."""
        cluster = str(status.get("cluster") or "")
        if not cluster or "://" in cluster or self._kube is None:
            return False
        namespace = status.get("clusterNamespace") or await self._namespace_by_reference(obj)
        # Read from the API server, not from the watches: the consequence cannot be undone.
        stored = await self._kube.find(CLUSTER, cluster, namespace)
        return stored is None or bool(stored["metadata"].get("deletionTimestamp"))

    async def _namespace_by_reference(self, obj: Object) -> str:
        """The cluster's namespace, for a status of a release that did not record it."""
        owner = placed_by(obj, await self._references(obj))
        reference = (owner.get("spec") or {}).get("clusterRef") or {}
        return str(reference.get("namespace") or obj["metadata"].get("namespace", ""))


def target_of(obj: Object, find: Lookup) -> Target:
    """The target of the resource. Raises NotYet and BadSpec."""
    try:
        return _target_of(obj, find)
    except MagnetarError as error:
        raise BadSpec(str(error)) from error


def _target_of(obj: Object, find: Lookup) -> Target:
    spec = parse_spec(obj)
    own_name = obj["metadata"]["name"]
    match spec:
        case TenantSpec():
            return Target(TENANT, spec.name or own_name)
        case NamespaceSpec():
            name = spec.name or own_name
            if "/" not in name:
                if not spec.tenant:
                    raise BadSpec("set spec.tenant, or write spec.name as TENANT/NAME")
                name = f"{spec.tenant}/{name}"
            return Target(NAMESPACE, name)
        case TopicSpec():
            return Target(TOPIC, str(_topic_name(obj, spec, find)))
        case SubscriptionSpec():
            topic = spec.topic
            if spec.topic_ref is not None:
                topic = target_of(_referred(obj, TOPIC, spec.topic_ref.name, find), find).name
            if not topic:
                raise BadSpec("set spec.topic or spec.topicRef")
            return Target(SUBSCRIPTION, str(parse_topic(topic).base), spec.name or own_name)
        case PermissionSpec():
            return Target(
                PERMISSION, _permitted(obj, spec, find), spec.subscription or "", spec.role
            )
    raise BadSpec(f"{obj['kind']} is not a kind of the catalog")


def _permitted(obj: Object, spec: PermissionSpec, find: Lookup) -> str:
    """The full name of the namespace or topic of a permission."""
    if spec.topic is not None:
        return str(parse_topic(spec.topic).base)
    if spec.topic_ref is not None:
        return target_of(_referred(obj, TOPIC, spec.topic_ref.name, find), find).name
    if spec.namespace_ref is not None:
        return target_of(_referred(obj, NAMESPACE, spec.namespace_ref.name, find), find).name
    if not spec.namespace:
        raise BadSpec("set spec.namespace, spec.namespaceRef, spec.topic or spec.topicRef")
    return spec.namespace


def _topic_name(obj: Object, spec: TopicSpec, find: Lookup) -> TopicName:
    name = spec.name or obj["metadata"]["name"]
    domain = "non-persistent" if spec.persistent is False else "persistent"
    if spec.namespace_ref is not None:
        referred = _referred(obj, NAMESPACE, spec.namespace_ref.name, find)
        return parse_topic(f"{domain}://{target_of(referred, find).name}/{name}")
    if "/" not in name:
        raise BadSpec("write spec.name as TENANT/NAMESPACE/TOPIC, or set spec.namespaceRef")
    return parse_topic(name if "://" in name else f"{domain}://{name}")


def _referred(obj: Object, kind: str, name: str, find: Lookup) -> Object:
    referred = find(kind, name)
    if referred is None:
        raise NotYet(
            f"WaitingFor{kind}",
            f"there is no {kind} resource {name!r} in this Kubernetes namespace: create it",
            resource_token(kind, obj["metadata"].get("namespace", ""), name),
        )
    return referred


def placed_by(obj: Object, find: Lookup) -> Object:
    """The resource whose clusterRef or adminUrl applies.

    That is the first resource with either, following the references; by default the resource
    itself.
    """
    current: Object | None = obj
    while current is not None:
        spec: Mapping[str, Any] = current.get("spec") or {}
        if spec.get("clusterRef") or spec.get("adminUrl"):
            return current
        if reference := spec.get("namespaceRef"):
            current = find(NAMESPACE, reference.get("name", ""))
        elif reference := spec.get("topicRef"):
            current = find(TOPIC, reference.get("name", ""))
        else:
            current = None
    return obj


def require_admitted(cluster: Object, namespace: str) -> None:
    """Raises BadSpec if a closed cluster does not admit resources of the Kubernetes namespace.

    The operator acts with its own rights: without this check, any author of a resource, in any
    namespace, would be a super user of every cluster.
    """
    metadata, auth = cluster["metadata"], (cluster.get("spec") or {}).get("auth") or {}
    is_closed = bool((auth.get("authentication") or {}).get("enabled"))
    admitted = (metadata["namespace"], *(auth.get("resourceNamespaces") or ()))
    if is_closed and namespace not in admitted:
        raise BadSpec(
            f"spec.clusterRef: MagnetarCluster {metadata['namespace']}/{metadata['name']} does not "
            f"admit resources of namespace {namespace}: its spec.auth.resourceNamespaces must name "
            "it"
        )


def admin_url(cluster: Object) -> str:
    """The address of the admin REST of a MagnetarCluster."""
    metadata = cluster["metadata"]
    spec = cluster.get("spec") or {}
    specified = spec.get("adminUrl")
    reported = (cluster.get("status") or {}).get("adminUrl")
    has_tls = bool((spec.get("tls") or {}).get("enabled"))
    scheme, port = ("https", ADMIN_TLS_PORT) if has_tls else ("http", ADMIN_PORT)
    default = f"{scheme}://{metadata['name']}-broker.{metadata['namespace']}.svc:{port}"
    return str(specified or reported or default).rstrip("/")


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
