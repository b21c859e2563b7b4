"""The six kinds: names, models, columns of `kubectl get`, rules of the whole object.

Short names begin with `m`, so that neither Kubernetes' own (`ns`) nor those of StreamNative's
operator (`ptenant`, `pns`, `ptopic`, `psub…`) are taken.
"""

from dataclasses import dataclass, replace
from typing import Final

from magnetar_operator.models.base import Cel, Model
from magnetar_operator.models.cluster import ClusterSpec
from magnetar_operator.models.cluster_status import ClusterStatus
from magnetar_operator.models.resources import (
    NamespaceSpec,
    NamespaceStatus,
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
    """A column of `kubectl get`; those of priority 1 are for `-o wide`."""

    name: str
    path: str
    text: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale subresource: what `kubectl scale` and autoscalers read and write."""

    replicas: str
    status_replicas: str
    selector: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind."""

    kind: str
    plural: str
    short: str
    text: str
    spec: type[Model]
    status: type[Model]
    columns: tuple[Column, ...]
    scale: Scale | None = None
    rules: tuple[Cel, ...] = ()
    """Of the whole object, which see metadata.name."""

    @property
    def singular(self) -> str:
        return self.kind.lower()


def _condition(name: str, what: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{what}'


SPARK_JOB_NAME_MAX: Final = 44
"""Characters: those of a CronJob's name are 52 at most, of a Job's 63."""

READY: Final = Column("Ready", _condition("Ready", "status"), "Whether all is as spec says.")
REASON: Final = Column("Reason", _condition("Ready", "reason"), "Why.", priority=1)
MESSAGE: Final = Column(
    "Message", _condition("Ready", "message"), "Why, and what to do.", priority=1
)
AGE: Final = Column("Age", ".metadata.creationTimestamp", "Since when it exists.", "date")
CLUSTER_COLUMN: Final = Column("Cluster", ".status.cluster", "The cluster it is in.")
CLUSTER_WIDE: Final = replace(CLUSTER_COLUMN, priority=1)
NAME_COLUMN: Final = Column("Resource", ".status.resolvedName", "Its name in the cluster.")
TAIL: Final = (READY, REASON, MESSAGE, AGE)

CLUSTER: Final = Kind(
    kind="MagnetarCluster",
    plural="magnetarclusters",
    short="mcluster",
    text="A cluster: brokers, bookies and their metadata store.",
    spec=ClusterSpec,
    status=ClusterStatus,
    columns=(
        Column("Brokers", ".status.brokers.summary", "Brokers that serve, of those wanted."),
        Column("Bookies", ".status.bookies.summary", "Bookies that serve, of those wanted."),
        Column("Phase", ".status.phase", "The state in one word."),
        READY,
        Column("Ledgers", _condition("LedgersHealthy", "status"), "Whether no copy is missing."),
        Column("Version", ".status.version", "What all components run."),
        REASON,
        MESSAGE,
        AGE,
    ),
    scale=Scale(".spec.broker.replicas", ".status.brokers.desired", ".status.selector"),
)

TENANT: Final = Kind(
    kind="Tenant",
    plural="tenants",
    short="mtenant",
    text="A tenant: the owner of namespaces.",
    spec=TenantSpec,
    status=TenantStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column("Namespaces", ".status.namespaces", "How many it has.", "integer"),
        *TAIL,
    ),
)

NAMESPACE: Final = Kind(
    kind="Namespace",
    plural="namespaces",
    short="mns",
    text="A namespace of a tenant, with the policies of its topics (not one of Kubernetes).",
    spec=NamespaceSpec,
    status=NamespaceStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column("Topics", ".status.topics", "How many, each partition counted.", "integer"),
        *TAIL,
    ),
)

TOPIC: Final = Kind(
    kind="Topic",
    plural="topics",
    short="mtopic",
    text="A topic, with its partitions, policies and schema.",
    spec=TopicSpec,
    status=TopicStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column("Partitions", ".status.partitions", "How many; 0: not partitioned.", "integer"),
        Column("Backlog", ".status.backlog.messages", "Messages not read yet.", "integer"),
        Column("Storage", ".status.storageBytes", "Bytes of its messages.", "integer", 1),
        *TAIL,
    ),
)

SUBSCRIPTION: Final = Kind(
    kind="Subscription",
    plural="subscriptions",
    short="msub",
    text="A durable subscription of a topic.",
    spec=SubscriptionSpec,
    status=SubscriptionStatus,
    columns=(
        NAME_COLUMN,
        CLUSTER_COLUMN,
        Column("Type", ".status.type", "Its type while consumers are there."),
        Column("Consumers", ".status.consumers", "How many are connected.", "integer"),
        Column("Backlog", ".status.backlog.messages", "Messages not read yet.", "integer"),
        *TAIL,
    ),
)

SPARK_JOB: Final = Kind(
    kind="SparkJob",
    plural="sparkjobs",
    short="mspark",
    text="Offload, compaction or backlog analytics with Spark, once or by schedule.",
    spec=SparkJobSpec,
    status=SparkJobStatus,
    columns=(
        Column("Type", ".spec.type", "What it does."),
        Column("Schedule", ".spec.schedule", "When it runs; none: once."),
        Column("Suspend", ".spec.suspend", "Whether no run is started.", "boolean"),
        Column("Phase", ".status.phase", "The state in one word."),
        Column("Active", ".status.active", "Runs under way.", "integer"),
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

KINDS: Final = (CLUSTER, TENANT, NAMESPACE, TOPIC, SUBSCRIPTION, SPARK_JOB)
BY_KIND: Final = {one.kind: one for one in KINDS}
