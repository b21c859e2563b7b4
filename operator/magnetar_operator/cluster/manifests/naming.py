"""A cluster as the builders see it: its spec, names and labels of its parts, its addresses."""

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from magnetar_operator.api_kinds import CLUSTER, Kind, Object
from magnetar_operator.models.cluster import ClusterSpec

MANAGED_BY: Final = "magnetar-operator"
CLUSTER_LABEL: Final = "magnetar.io/cluster"
SPARK_OF: Final = "magnetar.io/spark-of"
"""On pods of Spark jobs: the name of the cluster whose bookies and etcd they may reach."""
CONFIG_CHECKSUM: Final = "checksum/config"
CLIENTS_ONLY: Final = "magnetar.io/clients-only"
"""On a Service that leads to pods which another Service names one by one."""
APPLIED: Final = "magnetar.io/applied"
"""The digest of what was applied last: with it, what others changed is told from what we did."""
REPLACE_VOLUME: Final = "magnetar.io/replace-volume"
"""On a MagnetarCluster: the pod of the bookie that is to get a new, empty volume."""

BROKER: Final = "broker"
BOOKIE: Final = "bookie"
ETCD: Final = "etcd"
RECOVERY: Final = "recovery"

PULSAR_PORT: Final = 6650
HTTP_PORT: Final = 8080
BOOKIE_PORT: Final = 3181
BOOKIE_HTTP_PORT: Final = 8000
RECOVERY_HTTP_PORT: Final = 8000
ETCD_CLIENT_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380


@dataclass(frozen=True, slots=True)
class Cluster:
    """See the module's text."""

    name: str
    namespace: str
    uid: str
    spec: ClusterSpec
    image: str
    """Of the spec, or the operator's own."""
    etcd_image: str
    operator_namespace: str = ""
    replace_volume: str = ""
    """What the annotation asks for: a bookie's pod."""
    resource_version: str = ""
    """As the MagnetarCluster was read; empty where it is planned from a file."""

    @property
    def cluster_name(self) -> str:
        """For clients and replication."""
        return self.spec.cluster_name or self.name

    @property
    def labels(self) -> dict[str, str]:
        """That every object of it has, and nothing else."""
        return {"app": "magnetar", "cluster": self.name}

    @property
    def etcd_members(self) -> int:
        """0 where somebody else runs it."""
        if self.spec.etcd.external is not None:
            return 0
        return self.spec.etcd.replicas

    @property
    def separate_recovery(self) -> bool:
        return self.spec.autorecovery.mode == "Separate"

    @property
    def admin_url(self) -> str:
        """Where the operator asks."""
        return self.spec.admin_url or f"http://{self.object_name(BROKER)}.{self.host(HTTP_PORT)}"

    @property
    def service_url(self) -> str:
        """For clients inside Kubernetes."""
        return f"pulsar://{self.object_name(BROKER)}.{self.host(PULSAR_PORT)}"

    @property
    def metadata_url(self) -> str:
        """Every member of etcd by its own name: any of them may be away."""
        external = self.spec.etcd.external
        if external is not None:
            urls = [one if "://" in one else f"http://{one}" for one in external.endpoints]
        else:
            name = self.object_name(ETCD)
            urls = [
                f"http://{name}-{index}.{name}.{self.host(ETCD_CLIENT_PORT)}"
                for index in range(self.etcd_members)
            ]
        return "etcd:" + ",".join(urls)

    def host(self, port: int) -> str:
        """The end of an address inside Kubernetes."""
        return f"{self.namespace}.svc:{port}"

    def object_name(self, component: str) -> str:
        """Of everything of a component."""
        return f"{self.name}-{component}"

    def selector(self, component: str) -> dict[str, str]:
        """Chooses the component's pods; can never change."""
        return {**self.labels, "component": component}

    def pod_labels(self, component: str) -> dict[str, str]:
        """Of the pods of a component."""
        return {
            **self.selector(component),
            CLUSTER_LABEL: self.name,
            "app.kubernetes.io/name": "magnetar",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": component,
        }

    def metadata(self, component: str, name: str = "") -> Object:
        """Of an object that goes when the MagnetarCluster goes."""
        return {
            "name": name or self.object_name(component),
            "namespace": self.namespace,
            "labels": {**self.pod_labels(component), "app.kubernetes.io/managed-by": MANAGED_BY},
            "ownerReferences": [self.owner_reference],
        }

    @property
    def owner_reference(self) -> Object:
        return {
            "apiVersion": CLUSTER.api_version,
            "kind": CLUSTER.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def object(self, kind: Kind, component: str, name: str = "", **content: object) -> Object:
        """The object's frame around its content."""
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": self.metadata(component, name),
            **content,
        }


def digest(content: object) -> str:
    """Of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def sealed(manifest: Object) -> Object:
    """The object with the digest of itself as an annotation."""
    metadata = manifest["metadata"]
    spec = manifest.get("spec", {})
    # Claim templates are as they were stored once, with what the server added then.
    content = {**manifest, "spec": {**spec, "volumeClaimTemplates": None}}
    annotations = {**metadata.get("annotations", {}), APPLIED: digest(content)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
