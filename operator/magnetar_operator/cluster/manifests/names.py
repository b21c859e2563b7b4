"""A cluster in the form that the builders of manifests use: spec, names, labels, addresses."""

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from magnetar_operator.admin.access import ClusterKey
from magnetar_operator.kube.kinds import CLUSTER, Kind, Object
from magnetar_operator.models.cluster import ClusterSpec
from magnetar_operator.settings import Settings

MANAGED_BY: Final = "magnetar-operator"
CLUSTER_LABEL: Final = "magnetar.io/cluster"
SPARK_OF: Final = "magnetar.io/spark-of"
"""The label of Spark pods: the cluster whose bookies and etcd they may reach."""
CONFIG_CHECKSUM: Final = "checksum/config"
CLIENTS_ONLY: Final = "magnetar.io/clients-only"
"""The label of a Service whose pods another Service addresses one by one."""
APPLIED: Final = "magnetar.io/applied"
"""The annotation with the digest of the last apply, which identifies changes by others."""
REPLACE_VOLUME: Final = "magnetar.io/replace-volume"
"""The annotation that requests a new, empty volume for a bookie's pod."""

BROKER: Final = "broker"
BOOKIE: Final = "bookie"
ETCD: Final = "etcd"
RECOVERY: Final = "recovery"
JOBS: Final = "jobs"
"""Spark jobs: they have a certificate, and no pods of the cluster's."""

PULSAR_PORT: Final = 6650
PULSAR_TLS_PORT: Final = 6651
HTTP_PORT: Final = 8080
HTTPS_PORT: Final = 8443
BOOKIE_PORT: Final = 3181
BOOKIE_HTTP_PORT: Final = 8000
RECOVERY_HTTP_PORT: Final = 8000
ETCD_CLIENT_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380
ETCD_HEALTH_PORT: Final = 2381
"""Health and metrics of an etcd whose clients need certificates, which the kubelet has not."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A MagnetarCluster: its spec, and the names and addresses that follow from it."""

    name: str
    namespace: str
    uid: str
    spec: ClusterSpec
    image: str
    """The image of the spec, or the operator's own."""
    etcd_image: str
    operator_namespace: str = ""
    domain: str = ""
    """The end of names in the Kubernetes cluster; empty: pods complete `.svc` themselves."""
    replace_volume: str = ""
    """The value of the annotation: the pod of a bookie."""
    resource_version: str = ""
    """The version of the MagnetarCluster that was read; empty if it comes from a file."""

    @property
    def key(self) -> ClusterKey:
        """Identifies the cluster whose credentials are used."""
        return ClusterKey(self.namespace, self.name)

    @property
    def cluster_name(self) -> str:
        """The cluster's name for clients and replication."""
        return self.spec.cluster_name or self.name

    @property
    def labels(self) -> dict[str, str]:
        """The labels that exactly the cluster's objects have."""
        return {"app": "magnetar", "cluster": self.name}

    @property
    def etcd_members(self) -> int:
        """The number of etcd members; 0 for an external etcd."""
        if self.spec.etcd.external is not None:
            return 0
        return self.spec.etcd.replicas

    @property
    def separate_recovery(self) -> bool:
        return self.spec.autorecovery.mode == "Separate"

    @property
    def has_tls(self) -> bool:
        return self.spec.tls.enabled

    @property
    def has_plain_ports(self) -> bool:
        """Whether brokers serve clients without TLS."""
        return not self.has_tls or self.spec.tls.keep_plain

    @property
    def health_scheme(self) -> str:
        """The scheme of probes and metrics of our own processes."""
        return "HTTPS" if self.has_tls else "HTTP"

    @property
    def etcd_has_tls(self) -> bool:
        """Whether the operator's own etcd has TLS."""
        return self.has_tls and self.spec.tls.etcd.enabled and self.etcd_members > 0

    @property
    def authenticates(self) -> bool:
        return self.spec.auth.authentication.enabled

    @property
    def pod_domain(self) -> str:
        """The domain in which the name of each pod is its address, with dashes."""
        return f"{self.namespace}.pod" + (f".{self.domain}" if self.domain else "")

    @property
    def admin_url(self) -> str:
        """The address at which the operator reaches the admin REST."""
        return self.spec.admin_url or self.admin_url_of(has_tls=self.has_tls)

    def admin_url_of(self, *, has_tls: bool) -> str:
        """The address of the admin REST inside Kubernetes."""
        scheme, port = ("https", HTTPS_PORT) if has_tls else ("http", HTTP_PORT)
        return f"{scheme}://{self.object_name(BROKER)}.{self.host(port)}"

    @property
    def service_url(self) -> str:
        """The address for clients inside Kubernetes."""
        scheme, port = ("pulsar", PULSAR_PORT)
        if self.has_tls:
            scheme, port = ("pulsar+ssl", PULSAR_TLS_PORT)
        return f"{scheme}://{self.object_name(BROKER)}.{self.host(port)}"

    @property
    def metadata_url(self) -> str:
        """The URL of the metadata store, with all etcd members, because any may be down."""
        external = self.spec.etcd.external
        if external is not None:
            urls = [
                address if "://" in address else f"http://{address}"
                for address in external.endpoints
            ]
        else:
            name = self.object_name(ETCD)
            scheme = "https" if self.etcd_has_tls else "http"
            urls = [
                f"{scheme}://{name}-{index}.{name}.{self.host(ETCD_CLIENT_PORT)}"
                for index in range(self.etcd_members)
            ]
        return "etcd:" + ",".join(urls)

    def host(self, port: int) -> str:
        """The end of an address inside Kubernetes: namespace and port."""
        return f"{self.namespace}.svc:{port}"

    def object_name(self, component: str) -> str:
        """The name of a component's objects."""
        return f"{self.name}-{component}"

    def selector(self, component: str) -> dict[str, str]:
        """The selector of the component's pods, which can never change."""
        return {**self.labels, "component": component}

    def pod_labels(self, component: str) -> dict[str, str]:
        """The labels of the component's objects and pods."""
        return {
            **self.selector(component),
            CLUSTER_LABEL: self.name,
            "app.kubernetes.io/name": "magnetar",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": component,
        }

    def metadata(self, component: str, name: str = "") -> Object:
        """The metadata of an object that is deleted with the MagnetarCluster."""
        owned = {"ownerReferences": [self.owner_reference]} if self.uid else {}
        return {
            "name": name or self.object_name(component),
            "namespace": self.namespace,
            "labels": {**self.pod_labels(component), "app.kubernetes.io/managed-by": MANAGED_BY},
            **owned,
        }

    @property
    def owner_reference(self) -> Object:
        """The owner reference of objects that are deleted with the MagnetarCluster."""
        return {
            "apiVersion": CLUSTER.api_version,
            "kind": CLUSTER.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def object(self, kind: Kind, component: str, name: str = "", **content: object) -> Object:
        """An object of the cluster with this content."""
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": self.metadata(component, name),
            **content,
        }


def cluster_of(owner: Object, settings: Settings) -> Cluster:
    """A MagnetarCluster in the form that the builders of manifests use.

    Raises msgspec.ValidationError, which names the field.
    """
    metadata = owner["metadata"]
    spec = ClusterSpec.parse(owner.get("spec") or {})
    return Cluster(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata.get("uid", ""),
        spec=spec,
        image=spec.image or settings.image,
        etcd_image=spec.etcd.image or settings.etcd_image,
        operator_namespace=settings.pod_namespace,
        replace_volume=(metadata.get("annotations") or {}).get(REPLACE_VOLUME, "").strip(),
        resource_version=metadata.get("resourceVersion", ""),
    )


def digest(content: object) -> str:
    """A digest of any JSON value."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def sealed(manifest: Object) -> Object:
    """The manifest with its own digest as an annotation."""
    metadata = manifest["metadata"]
    spec = manifest.get("spec", {})
    # Claim templates are copied from the stored object, with fields that the server added.
    content = {**manifest, "spec": {**spec, "volumeClaimTemplates": None}}
    annotations = {**metadata.get("annotations", {}), APPLIED: digest(content)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
