"""A SparkJob as the builders see it: its spec, names, labels, and the cluster it works on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar_operator.api_kinds import SPARK_JOB, Kind, Object
from magnetar_operator.cluster.manifests.naming import MANAGED_BY, SPARK_OF, Cluster, digest
from magnetar_operator.cluster.manifests.pods import metadata_settings
from magnetar_operator.models.base import GROUP
from magnetar_operator.models.cluster_parts import Offload
from magnetar_operator.models.sparkjob import SparkJobSpec

JOB_LABEL: Final = f"{GROUP}/sparkjob"
"""On all objects and pods of a SparkJob: its name."""
ROLE_LABEL: Final = f"{GROUP}/spark-role"
SPEC_DIGEST: Final = f"{GROUP}/spec"
"""On Jobs: the digest of what they were made from."""
RUN: Final = f"{GROUP}/run"
"""The annotation that asks for a run; on Jobs: the value that they were made for."""

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
_OF_NO_RUN: Final = frozenset(
    {"suspend", "historyLimit", "schedule", "timeZone", "startingDeadline", "concurrencyPolicy"}
)
"""Fields of the spec that say nothing of what a run does."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster that a job works on."""

    name: str
    namespace: str
    metadata_url: str
    admin_url: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its metadata: the root, the user, TLS files."""
    is_ready: bool = True
    """Whether its metadata store answers."""
    offload: Offload | None = None
    image_pull_secrets: tuple[str, ...] = ()


def place_in(cluster: Cluster, *, is_ready: bool) -> Place:
    """A job reads the metadata that the cluster's brokers read."""
    spec = cluster.spec
    return Place(
        name=cluster.name,
        namespace=cluster.namespace,
        metadata_url=cluster.metadata_url,
        admin_url=cluster.admin_url,
        metadata=metadata_settings(cluster, spec.broker.config),
        is_ready=is_ready,
        offload=spec.offload,
        image_pull_secrets=tuple(each.name for each in spec.image_pull_secrets),
    )


@dataclass(frozen=True, slots=True)
class Job:
    """See the module's text."""

    name: str
    namespace: str
    uid: str
    spec: SparkJobSpec
    image: str
    """Of the spec, or the operator's own."""
    place: Place | None = None
    """None: it is not there (yet)."""

    @property
    def account(self) -> str:
        """The ServiceAccount of drivers."""
        return self.spec.service_account_name or self.rights_name

    @property
    def rights_name(self) -> str:
        """Of the ServiceAccount, Role and RoleBinding that the operator makes."""
        return f"{self.name}-spark"

    @property
    def labels(self) -> dict[str, str]:
        """Of all its objects."""
        return {
            JOB_LABEL: self.name,
            "app.kubernetes.io/name": "magnetar",
            "app.kubernetes.io/component": "sparkjob",
            "app.kubernetes.io/managed-by": MANAGED_BY,
        }

    def pod_labels(self, role: str) -> dict[str, str]:
        return {**self.labels, SPARK_OF: self.place.name if self.place else "", ROLE_LABEL: role}

    @property
    def owner_reference(self) -> Object:
        return {
            "apiVersion": SPARK_JOB.api_version,
            "kind": SPARK_JOB.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def object(self, kind: Kind, name: str, **content: object) -> Object:
        """The frame of an object that goes when the SparkJob goes."""
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels,
            "ownerReferences": [self.owner_reference],
        }
        return {
            "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content
        }  # fmt: skip

    @property
    def spec_digest(self) -> str:
        """Of what a run does."""
        parts = {key: one for key, one in self.spec.manifest().items() if key not in _OF_NO_RUN}
        return digest(parts)[:16]

    def run_name(self, request: str) -> str:
        """Of the Job for a request: the same for the same, and another for another SparkJob of
        this name, whose Jobs may not be gone yet."""
        return f"{self.name}-{digest([self.uid, request])[:8]}"


def is_ours(one: Mapping[str, Any], uid: str) -> bool:
    """Whether the object is this SparkJob's own."""
    owners = one["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == uid for each in owners)
