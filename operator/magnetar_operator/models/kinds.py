"""The table of our seven kinds: short names, models, columns of `kubectl get`, and rules.

Short names begin with `m` to avoid those of Kubernetes (`ns`) and of StreamNative's operator
(`ptenant`, `pns`, `ptopic`, `psub…`).
"""

from dataclasses import dataclass, replace
from typing import Final

from magnetar_operator.kube import kinds
from magnetar_operator.kube.kinds import Kind
from magnetar_operator.models.base import Cel, Model
from magnetar_operator.models.cluster import ClusterSpec
from magnetar_operator.models.cluster_status import ClusterStatus
from magnetar_operator.models.resources import (
    NamespaceSpec,
    NamespaceStatus,
    PermissionSpec,
    PermissionStatus,
    SubscriptionSpec,
    SubscriptionStatus,
    TenantSpec,
    TenantStatus,
    TopicSpec,
    TopicStatus,
)
from magnetar_operator.models.sparkjob import SparkJobSpec, SparkJobStatus


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; a column of priority 1 appears with `-o wide` only."""

    name: str
    path: str
    text: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale subresource, for `kubectl scale` and autoscalers."""

    replicas: str
    status_replicas: str
    selector: str


@dataclass(frozen=True, slots=True)
class CustomKind:
    """One of our own kinds: its REST paths, its models, and its columns in kubectl."""

    api: Kind
    short: str
    text: str
    spec: type[Model]
    status: type[Model]
    columns: tuple[Column, ...]
    scale: Scale | None = None
    rules: tuple[Cel, ...] = ()
    """Rules of the whole object, which can refer to metadata.name."""

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return self.api.kind

    @property
    def plural(self) -> str:
        """The name in paths."""
        return self.api.plural

    @property
    def singular(self) -> str:
        """The name that kubectl accepts for one object."""
        return self.kind.lower()


def _condition(name: str, what: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{what}'


SPARK_JOB_NAME_MAX: Final = 44
"""Characters: a CronJob's name has at most 52, a Job's 63."""

READY: Final = Column("Ready", _condition("Ready", "status"), "Whether everything is as spec says.")
REASON: Final = Column("Reason", _condition("Ready", "reason"), "Why.", priority=1)
MESSAGE: Final = Column(
    "Message", _condition("Ready", "message"), "The reason, and what to do.", priority=1
)
AGE: Final = Column("Age", ".metadata.creationTimestamp", "The time since its creation.", "date")
CLUSTER_COLUMN: Final = Column("Cluster", ".status.cluster", "Its cluster.")
CLUSTER_WIDE: Final = replace(CLUSTER_COLUMN, priority=1)
NAME_COLUMN: Final = Column("Resource", ".status.resolvedName", "Its name in the cluster.")
TAIL: Final = (READY, REASON, MESSAGE, AGE)

CLUSTER: Final = CustomKind(
    api=kinds.CLUSTER,
    short="mcluster",
    text="A cluster: brokers, bookies and their metadata store.",
    spec=ClusterSpec,
    status=ClusterStatus,
    columns=(
        Column("Brokers", ".status.brokers.summary", "Ready brokers, of those desired."),
        Column("Bookies", ".status.bookies.summary", "Ready bookies, of those desired."),
        Column("Phase", ".status.phase", "The state in one word."),
        READY,
        Column(
            "Ledgers",
            _condition("LedgersHealthy", "status"),
            "Whether every ledger has all its copies.",
        ),
        Column("Version", ".status.version", "The version of all components."),
        REASON,
        MESSAGE,
        AGE,
    ),
    scale=Scale(".spec.broker.replicas", ".status.brokers.desired", ".status.selector"),
)

TENANT: Final = CustomKind(
    api=kinds.TENANT,
    short="mtenant",
    text="A tenant: the owner of namespaces.",
    spec=TenantSpec,
    status=TenantStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column("Namespaces", ".status.namespaces", "The number of its namespaces.", "integer"),
        *TAIL,
    ),
)

NAMESPACE: Final = CustomKind(
    api=kinds.NAMESPACE,
    short="mns",
    text="A namespace of a tenant, with the policies of its topics (not one of Kubernetes).",
    spec=NamespaceSpec,
    status=NamespaceStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column(
            "Topics",
            ".status.topics",
            "The number of its topics, each partition counted.",
            "integer",
        ),
        *TAIL,
    ),
)

TOPIC: Final = CustomKind(
    api=kinds.TOPIC,
    short="mtopic",
    text="A topic, with its partitions, policies and schema.",
    spec=TopicSpec,
    status=TopicStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column(
            "Partitions",
            ".status.partitions",
            "The number of partitions; 0: not partitioned.",
            "integer",
        ),
        Column(
            "Backlog", ".status.backlog.messages", "Messages that are not acknowledged.", "integer"
        ),
        Column(
            "Storage", ".status.storageBytes", "The size of its messages, in bytes.", "integer", 1
        ),
        *TAIL,
    ),
)

SUBSCRIPTION: Final = CustomKind(
    api=kinds.SUBSCRIPTION,
    short="msub",
    text="A durable subscription of a topic.",
    spec=SubscriptionSpec,
    status=SubscriptionStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column("Type", ".status.type", "Its type while consumers are connected."),
        Column("Consumers", ".status.consumers", "The number of connected consumers.", "integer"),
        Column(
            "Backlog", ".status.backlog.messages", "Messages that are not acknowledged.", "integer"
        ),
        *TAIL,
    ),
)

PERMISSION: Final = CustomKind(
    api=kinds.PERMISSION,
    short="mperm",
    text="A permission of a role on a namespace, a topic or a subscription.",
    spec=PermissionSpec,
    status=PermissionStatus,
    columns=(
        Column("Role", ".spec.role", "The role."),
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column("Actions", ".spec.actions", "The permitted actions."),
        *TAIL,
    ),
)

SPARK_JOB: Final = CustomKind(
    api=kinds.SPARK_JOB,
    short="mspark",
    text="Offload, compaction or backlog analytics with Spark, once or by schedule.",
    spec=SparkJobSpec,
    status=SparkJobStatus,
    columns=(
        Column("Type", ".spec.type", "The type of the job."),
        Column("Schedule", ".spec.schedule", "The schedule; none: it runs once."),
        Column("Suspend", ".spec.suspend", "Whether no run is started.", "boolean"),
        Column("Phase", ".status.phase", "The state in one word."),
        Column("Active", ".status.active", "Runs in progress.", "integer"),
        Column("Last", ".status.lastRunAt", "When the last run began.", "date"),
        Column("Next", ".status.nextRunAt", "When the next run is due.", priority=1),
        CLUSTER_WIDE,
        *TAIL,
    ),
    rules=(
        Cel(
            f"self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{{0,{SPARK_JOB_NAME_MAX - 2}}}"
            "[a-z0-9])?$')",
            f"the name of a SparkJob must have {SPARK_JOB_NAME_MAX} characters at most, of a-z, "
            "0-9 and -: its runs are named after it",
        ),
    ),
)

KINDS: Final = (CLUSTER, TENANT, NAMESPACE, TOPIC, SUBSCRIPTION, PERMISSION, SPARK_JOB)
BY_KIND: Final = {custom.kind: custom for custom in KINDS}
