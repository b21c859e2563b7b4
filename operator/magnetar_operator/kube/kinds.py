"""The table of all kinds that the operator reads or writes, with their REST paths.

`models.kinds` adds specs, statuses and columns to our own kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

GROUP: Final = "magnetar.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
"""The apiVersion of our own kinds."""

Object = dict[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of Kubernetes objects, as requests name it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core one."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The path of an object, or of all objects (in the namespace, if given)."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        elif self.namespaced and name:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        parts.append(self.plural)
        return "/".join([*parts, *filter(None, (name, subresource))])


CLUSTER: Final = Kind(API_VERSION, "MagnetarCluster", "magnetarclusters")
TENANT: Final = Kind(API_VERSION, "Tenant", "tenants")
NAMESPACE: Final = Kind(API_VERSION, "Namespace", "namespaces")
TOPIC: Final = Kind(API_VERSION, "Topic", "topics")
SUBSCRIPTION: Final = Kind(API_VERSION, "Subscription", "subscriptions")
PERMISSION: Final = Kind(API_VERSION, "Permission", "permissions")
SPARK_JOB: Final = Kind(API_VERSION, "SparkJob", "sparkjobs")

STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
SECRET: Final = Kind("v1", "Secret", "secrets")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
POD: Final = Kind("v1", "Pod", "pods")
PVC: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
PDB: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
HPA: Final = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
SERVICE_MONITOR: Final = Kind("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors")
BATCH_JOB: Final = Kind("batch/v1", "Job", "jobs")
CRON_JOB: Final = Kind("batch/v1", "CronJob", "cronjobs")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
API_SERVICE: Final = Kind(
    "apiregistration.k8s.io/v1", "APIService", "apiservices", namespaced=False
)
CRD: Final = Kind(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)

KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    (kind.api_version, kind.kind): kind
    for kind in list(globals().values())
    if isinstance(kind, Kind)
}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """The kind of an object; raises ValueError if it is not in the table."""
    key = (str(manifest.get("apiVersion", "")), str(manifest.get("kind", "")))
    kind = KINDS.get(key)
    if kind is None:
        raise ValueError(f"the operator does not handle kind {key[1]!r} of {key[0]!r}")
    return kind
