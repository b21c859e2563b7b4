"""A SparkJob in the form that the builders of manifests use: spec, names, labels, cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar_operator.cluster.manifests.names import (
    JOBS,
    MANAGED_BY,
    SPARK_OF,
    Cluster,
    digest,
)
from magnetar_operator.cluster.manifests.pods import metadata_settings
from magnetar_operator.cluster.manifests.security import JOBS_ROLE, tls_secret, token_secret
from magnetar_operator.kube.kinds import GROUP, SPARK_JOB, Kind, Object
from magnetar_operator.models.cluster_parts import Offload
from magnetar_operator.models.sparkjob import SparkJobSpec

JOB_LABEL: Final = f"{GROUP}/sparkjob"
"""The label of a SparkJob's objects and pods with its name."""
ROLE_LABEL: Final = f"{GROUP}/spark-role"
SPEC_DIGEST: Final = f"{GROUP}/spec"
"""The annotation of Jobs with the digest of the spec that they were created from."""
RUN: Final = f"{GROUP}/run"
"""The annotation that requests a run; on a Job, the request that it was created for."""

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
_OF_NO_RUN: Final = frozenset(
    {
        "suspend",
        "historyLimit",
        "schedule",
        "timeZone",
        "startingDeadline",
        "concurrencyPolicy",
        "onThreshold",
    }
)
"""Fields of the spec that do not affect a run."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster that a job works on."""

    name: str
    namespace: str
    metadata_url: str
    admin_url: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further variables that locate its metadata: root, user, TLS files."""
    is_ready: bool = True
    """Whether its metadata store answers."""
    offload: Offload | None = None
    image_pull_secrets: tuple[str, ...] = ()
    tls_secret: str = ""
    """The Secret with the certificate of jobs; empty: bookies have no TLS."""
    token_secret: str = ""
    """The Secret with the token of jobs; empty: brokers ask for none."""


def place_in(cluster: Cluster, *, is_ready: bool) -> Place:
    """The cluster of a job; the job reads the same metadata as the cluster's brokers."""
    spec = cluster.spec
    return Place(
        name=cluster.name,
        namespace=cluster.namespace,
        metadata_url=cluster.metadata_url,
        admin_url=cluster.admin_url,
        metadata=metadata_settings(cluster, spec.broker.config),
        is_ready=is_ready,
        offload=spec.offload,
        image_pull_secrets=tuple(secret.name for secret in spec.image_pull_secrets),
        tls_secret=tls_secret(cluster, JOBS) if cluster.has_tls else "",
        token_secret=token_secret(cluster, JOBS_ROLE) if cluster.authenticates else "",
    )


@dataclass(frozen=True, slots=True)
class Job:
    """A SparkJob: its spec, and the names and labels that follow from it."""

    name: str
    namespace: str
    uid: str
    spec: SparkJobSpec
    image: str
    """The image of the spec, or the operator's own."""
    place: Place | None = None
    """None: the cluster does not exist (yet)."""

    @property
    def account(self) -> str:
        """The ServiceAccount of drivers."""
        return self.spec.service_account_name or self.rights_name

    @property
    def rights_name(self) -> str:
        """The name of the ServiceAccount, Role and RoleBinding that the operator creates."""
        return f"{self.name}-spark"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all its objects."""
        return {
            JOB_LABEL: self.name,
            "app.kubernetes.io/name": "magnetar",
            "app.kubernetes.io/component": "sparkjob",
            "app.kubernetes.io/managed-by": MANAGED_BY,
        }

    def pod_labels(self, role: str) -> dict[str, str]:
        """The labels of drivers or executors."""
        return {**self.labels, SPARK_OF: self.place.name if self.place else "", ROLE_LABEL: role}

    @property
    def owner_reference(self) -> Object:
        """The owner reference of objects that are deleted with the SparkJob."""
        return {
            "apiVersion": SPARK_JOB.api_version,
            "kind": SPARK_JOB.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def object(self, kind: Kind, name: str, **content: object) -> Object:
        """An object that is deleted with the SparkJob."""
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
        """The digest of the fields that affect a run."""
        parts = {key: value for key, value in self.spec.manifest().items() if key not in _OF_NO_RUN}
        return digest(parts)[:16]

    def run_name(self, request: str) -> str:
        """The name of the Job for a request.

        It is the same for the same request, and differs from the names of a former SparkJob of this
        name, whose Jobs may still exist.
        """
        return f"{self.name}-{digest([self.uid, request])[:8]}"


def is_ours(obj: Mapping[str, Any], uid: str) -> bool:
    """Whether the SparkJob with this uid owns the object."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)
