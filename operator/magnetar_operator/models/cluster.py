"""`MagnetarCluster.spec`: brokers, bookies, etcd, and how they are run.

What can lose data is refused by rules here where the API server can know it (volumes shrink, the
metadata store is swapped), and by the operator's own gates where only the cluster knows.
"""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from magnetar_operator.models import switches
from magnetar_operator.models.base import (
    SERVER_DEFAULT,
    Cel,
    Duration,
    EntityName,
    LocalRef,
    Model,
    Raw,
    Url,
    constant,
)
from magnetar_operator.models.cluster_parts import (
    MEMBERS_DEFAULT,
    Autorecovery,
    Etcd,
    Metrics,
    NetworkPolicies,
    Offload,
    Upgrade,
)
from magnetar_operator.models.pods import STORAGE_DEFAULT, Config, Pods, Storage

BROKERS_MIN_DEFAULT: Final = 2
BROKERS_MAX_DEFAULT: Final = 10
BOOKIES_DEFAULT: Final = 3
COPIES_DEFAULT: Final = 2


class BacklogTarget(Model, frozen=True, kw_only=True):
    """Scaling by what consumers have not read yet."""

    enabled: Annotated[
        bool, Meta(description="Whether brokers are added while backlogs drain too slowly.")
    ] = True
    time_to_drain: Annotated[
        Duration,
        Meta(description="The time in which a broker's backlog should be read at today's rates."),
    ] = "2m"


class Autoscaling(Model, frozen=True, kw_only=True):
    """A HorizontalPodAutoscaler for the brokers."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether the number of brokers follows the load. Leave broker.replicas "
            "out of your manifests then."
        ),
    ] = False
    min_replicas: Annotated[int, Meta(ge=1, le=1_000, description="The fewest brokers.")] = (
        BROKERS_MIN_DEFAULT
    )
    max_replicas: Annotated[int, Meta(ge=1, le=1_000, description="The most brokers.")] = (
        BROKERS_MAX_DEFAULT
    )
    target_cpu_percent: Annotated[
        int,
        Meta(ge=1, le=100, description="The CPU use, in percent of the request, to be kept near."),
    ] = 70
    backlog: Annotated[
        BacklogTarget, Meta(description="Scaling by the time to drain the backlog.")
    ] = BacklogTarget()
    behavior: Annotated[
        Raw | None,
        Meta(
            description="As a HorizontalPodAutoscaler's spec.behavior. Default: up at once, down "
            "by one broker after five quiet minutes."
        ),
    ] = None

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            f"self.?minReplicas.orValue({BROKERS_MIN_DEFAULT}) <= "
            f"self.?maxReplicas.orValue({BROKERS_MAX_DEFAULT})",
            "minReplicas must not be more than maxReplicas "
            f"(defaults: {BROKERS_MIN_DEFAULT} and {BROKERS_MAX_DEFAULT})",
            ".minReplicas",
        ),
    )


class BrokerService(Model, frozen=True, kw_only=True):
    """The Service that clients use."""

    type: Annotated[
        Literal["ClusterIP", "NodePort", "LoadBalancer"], Meta(description="Its type.")
    ] = "ClusterIP"
    annotations: Annotated[dict[str, str], Meta(description="Its annotations.", max_length=64)] = {}


class Broker(Pods, frozen=True, kw_only=True):
    """The brokers: a Deployment, they keep nothing."""

    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000,
            description="How many brokers. `kubectl scale mcluster NAME --replicas N` sets it, "
            "and so does the autoscaler.",
            extra={SERVER_DEFAULT: True},
        ),
    ] = 2
    config: Config = {}
    autoscaling: Annotated[Autoscaling, Meta(description="Brokers by load.")] = Autoscaling()
    service: Annotated[BrokerService, Meta(description="The Service that clients connect to.")] = (
        BrokerService()
    )

    rules: ClassVar[tuple[Cel, ...]] = (switches.RULE,)


class Quorums(Model, frozen=True, kw_only=True):
    """The copies of each entry, where no policy says otherwise."""

    ensemble: Annotated[
        int, Meta(ge=1, le=64, description="Bookies that a ledger is spread over.")
    ] = COPIES_DEFAULT
    write: Annotated[int, Meta(ge=1, le=64, description="Copies that are written of an entry.")] = (
        COPIES_DEFAULT
    )
    ack: Annotated[
        int, Meta(ge=1, le=64, description="Copies on disk that a receipt waits for.")
    ] = COPIES_DEFAULT

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            f"self.?write.orValue({COPIES_DEFAULT}) <= self.?ensemble.orValue({COPIES_DEFAULT})",
            f"write must not be more than ensemble (defaults: {COPIES_DEFAULT}): "
            "each copy has its own bookie",
            ".write",
        ),
        Cel(
            f"self.?ack.orValue({COPIES_DEFAULT}) <= self.?write.orValue({COPIES_DEFAULT})",
            f"ack must not be more than write (defaults: {COPIES_DEFAULT}): a receipt "
            "cannot wait for more copies than are written",
            ".ack",
        ),
    )


class DiskScaleUp(Model, frozen=True, kw_only=True):
    """Consent to bookies being added when disks fill up. None is ever removed by it."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether the operator adds a bookie; otherwise it only recommends it in "
            "status.recommendations."
        ),
    ] = False
    disk_percent: Annotated[
        int, Meta(ge=10, le=95, description="The mean use of the bookies' disks that calls for it.")
    ] = 75
    max_replicas: Annotated[int, Meta(ge=1, le=1_000, description="The most bookies it makes.")] = 6
    pause: Annotated[
        Duration, Meta(description="The time between one bookie more and the next.")
    ] = "30m"


class Bookie(Pods, frozen=True, kw_only=True):
    """The bookies: a StatefulSet, they keep the messages."""

    replicas: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="How many bookies. When it is lowered, the highest ordinal is drained, "
            "its ledgers' copies are proven elsewhere, and only then is it removed.",
            extra={SERVER_DEFAULT: True},
        ),
    ] = BOOKIES_DEFAULT
    quorums: Annotated[
        Quorums, Meta(description="The copies of each entry, unless a policy says otherwise.")
    ] = Quorums()
    storage: Annotated[
        Storage,
        Meta(description="The volume of each bookie.", extra={SERVER_DEFAULT: True}),
    ] = Storage()
    config: Config = {}
    scale_up: Annotated[DiskScaleUp, Meta(description="Bookies added when disks fill up.")] = (
        DiskScaleUp()
    )

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            f"self.?quorums.?ensemble.orValue({COPIES_DEFAULT}) <= "
            f"self.?replicas.orValue({BOOKIES_DEFAULT})",
            f"quorums.ensemble (default {COPIES_DEFAULT}) must not be more than replicas "
            f"(default {BOOKIES_DEFAULT}): a ledger "
            "needs so many bookies",
            ".replicas",
        ),
        switches.RULE,
    )


class ClusterSpec(Model, frozen=True, kw_only=True):
    """The wanted state of a cluster."""

    image: Annotated[
        Annotated[str, Meta(max_length=1_024)] | None,
        Meta(description="The image of all components. Default: the one that the operator runs."),
    ] = None
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"],
        Meta(description="When nodes pull the image."),
    ] = "IfNotPresent"
    image_pull_secrets: Annotated[
        list[LocalRef], Meta(description="Secrets to pull images with.", max_length=16)
    ] = []
    cluster_name: Annotated[
        EntityName | None,
        Meta(
            description="The cluster's name for Pulsar's clients and replication. It cannot be "
            "changed. Default: metadata.name."
        ),
    ] = None
    admin_url: Annotated[
        Url | None,
        Meta(
            description="Where the operator reaches the admin REST, if it runs outside of "
            "Kubernetes. Default: http://NAME-broker.NAMESPACE.svc:8080."
        ),
    ] = None
    paused: Annotated[
        bool,
        Meta(description="While true, the operator only looks and changes nothing of the cluster."),
    ] = False
    storage_retention: Annotated[
        Literal["Retain", "Delete"],
        Meta(
            description="What happens to the volumes when this resource is deleted. Retain: they "
            "stay, and a new cluster of the same name takes them up again. Delete: they go, with "
            "all messages."
        ),
    ] = "Retain"
    broker: Annotated[
        Broker,
        Meta(
            description="The brokers, which serve clients and keep nothing.",
            extra={SERVER_DEFAULT: True},
        ),
    ] = Broker()
    bookie: Annotated[
        Bookie,
        Meta(
            description="The bookies, which keep the messages.",
            extra={SERVER_DEFAULT: True},
        ),
    ] = Bookie()
    etcd: Annotated[Etcd, Meta(description="The metadata store.")] = Etcd()
    autorecovery: Annotated[
        Autorecovery, Meta(description="Who makes lost copies of entries anew.")
    ] = Autorecovery()
    offload: Annotated[
        Offload | None,
        Meta(description="Where cold data lives, for brokers and Spark jobs. Default: nowhere."),
    ] = None
    metrics: Annotated[Metrics, Meta(description="What Prometheus is told.")] = Metrics()
    network_policy: Annotated[NetworkPolicies, Meta(description="Who may connect to what.")] = (
        NetworkPolicies()
    )
    upgrade: Annotated[
        Upgrade, Meta(description="How pods are replaced when image or settings change.")
    ] = Upgrade()

    rules: ClassVar[tuple[Cel, ...]] = (
        constant("clusterName", "clusterName cannot be changed: ledgers and clients know it"),
        Cel(
            "(has(self.etcd) && has(self.etcd.external)) == "
            "(has(oldSelf.etcd) && has(oldSelf.etcd.external))",
            "etcd cannot change between external and the operator's own: the cluster would lose "
            "its metadata; make a new cluster",
            ".etcd",
        ),
        Cel(
            f"self.?etcd.?replicas.orValue({MEMBERS_DEFAULT}) == "
            f"oldSelf.?etcd.?replicas.orValue({MEMBERS_DEFAULT})",
            f"etcd.replicas cannot be changed (default {MEMBERS_DEFAULT}): make a new cluster",
            ".etcd",
        ),
        Cel(
            "has(self.etcd) && has(self.etcd.storage) || "
            "!(has(oldSelf.etcd) && has(oldSelf.etcd.storage))",
            "etcd.storage cannot be taken away once it was given: volumes cannot shrink",
            ".etcd",
        ),
        Cel(
            "has(oldSelf.etcd) && has(oldSelf.etcd.storage) || "
            "!(has(self.etcd) && has(self.etcd.storage)) || "
            f"quantity(self.etcd.storage.size).compareTo(quantity('{STORAGE_DEFAULT}')) >= 0",
            f"etcd.storage.size must not be less than {STORAGE_DEFAULT}, which it has: "
            "volumes cannot shrink",
            ".etcd",
        ),
    )
