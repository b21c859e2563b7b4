"""`MagnetarCluster.spec`: brokers, bookies, etcd, and how they run.

Changes that can lose data are refused: by rules here if the API server can detect them (a smaller
volume, another metadata store), and otherwise by the operator's gates.
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
from magnetar_operator.models.cluster_security import Auth, Tls
from magnetar_operator.models.pods import STORAGE_DEFAULT, Config, Pods, Storage

BROKERS_MIN_DEFAULT: Final = 2
BROKERS_MAX_DEFAULT: Final = 10
BOOKIES_DEFAULT: Final = 3
COPIES_DEFAULT: Final = 2


class BacklogTarget(Model, frozen=True, kw_only=True):
    """Scaling by the backlog that consumers wait for."""

    enabled: Annotated[
        bool, Meta(description="Whether brokers are added if backlogs drain too slowly.")
    ] = True
    time_to_drain: Annotated[
        Duration,
        Meta(description="The time in which the backlog should be consumed at the current rates."),
    ] = "2m"


class Autoscaling(Model, frozen=True, kw_only=True):
    """A HorizontalPodAutoscaler for the brokers."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether the number of brokers follows the load. If so, leave "
            "broker.replicas out of your manifests."
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
        Meta(ge=1, le=100, description="The target of the CPU use, in percent of the request."),
    ] = 70
    backlog: Annotated[
        BacklogTarget, Meta(description="Scaling by the time to drain the backlog.")
    ] = BacklogTarget()
    behavior: Annotated[
        Raw | None,
        Meta(
            description="The spec.behavior of a HorizontalPodAutoscaler. Default: up at once, "
            "down by one broker after five quiet minutes."
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
    """The brokers: a Deployment, for they keep no data."""

    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000,
            description="The number of brokers. `kubectl scale mcluster NAME --replicas N` sets "
            "it, and so does the autoscaler.",
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
    """The copies of each entry, unless a policy sets them."""

    ensemble: Annotated[
        int, Meta(ge=1, le=64, description="The bookies of a ledger (ensemble).")
    ] = COPIES_DEFAULT
    write: Annotated[
        int, Meta(ge=1, le=64, description="The copies that are written of each entry.")
    ] = COPIES_DEFAULT
    ack: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="The copies that must be on disk before the producer gets its receipt.",
        ),
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
    """Allows the operator to add bookies when disks fill up. This never removes one."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether the operator adds a bookie; otherwise it only recommends it in "
            "status.recommendations."
        ),
    ] = False
    disk_percent: Annotated[
        int,
        Meta(
            ge=10,
            le=95,
            description="The mean use of the bookies' disks from which a bookie is added.",
        ),
    ] = 75
    max_replicas: Annotated[
        int, Meta(ge=1, le=1_000, description="The operator adds bookies up to this number.")
    ] = 6
    pause: Annotated[Duration, Meta(description="The least time between two additions.")] = "30m"


class Bookie(Pods, frozen=True, kw_only=True):
    """The bookies: a StatefulSet, for they keep the messages."""

    replicas: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="The number of bookies. When it is lowered, the bookie with the highest "
            "ordinal is drained, its ledgers' copies are proven elsewhere, and only "
            "then is it removed.",
            extra={SERVER_DEFAULT: True},
        ),
    ] = BOOKIES_DEFAULT
    quorums: Annotated[
        Quorums, Meta(description="The copies of each entry, unless a policy sets them.")
    ] = Quorums()
    storage: Annotated[
        Storage,
        Meta(description="The volume of each bookie.", extra={SERVER_DEFAULT: True}),
    ] = Storage()
    config: Config = {}
    scale_up: Annotated[
        DiskScaleUp, Meta(description="Whether bookies are added when disks fill up.")
    ] = DiskScaleUp()

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
    """The desired state of a cluster."""

    image: Annotated[
        Annotated[str, Meta(max_length=1_024)] | None,
        Meta(description="The image of all components. Default: the operator's own setting."),
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
            description="The address of the admin REST, if the operator runs outside of "
            "Kubernetes. Default: http://NAME-broker.NAMESPACE.svc:8080, with TLS "
            "https://NAME-broker.NAMESPACE.svc:8443."
        ),
    ] = None
    paused: Annotated[
        bool,
        Meta(description="While true, the operator only observes and changes nothing."),
    ] = False
    storage_retention: Annotated[
        Literal["Retain", "Delete"],
        Meta(
            description="The effect of its deletion on the volumes. Retain: they "
            "stay, and a new cluster of the same name uses them again. Delete: they "
            "are deleted, with all messages."
        ),
    ] = "Retain"
    broker: Annotated[
        Broker,
        Meta(
            description="The brokers, which serve clients and keep no data.",
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
        Autorecovery, Meta(description="Autorecovery, which restores lost copies of entries.")
    ] = Autorecovery()
    offload: Annotated[
        Offload | None,
        Meta(description="The cold store of brokers and Spark jobs. Default: none."),
    ] = None
    tls: Annotated[Tls, Meta(description="TLS of all connections.")] = Tls()
    auth: Annotated[Auth, Meta(description="Authentication and authorization.")] = Auth()
    metrics: Annotated[Metrics, Meta(description="Metrics for Prometheus.")] = Metrics()
    network_policy: Annotated[
        NetworkPolicies, Meta(description="Which pods may connect to which.")
    ] = NetworkPolicies()
    upgrade: Annotated[
        Upgrade, Meta(description="How pods are replaced when image or settings change.")
    ] = Upgrade()

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.?tls.?etcd.?peers.orValue(true) == oldSelf.?tls.?etcd.?peers.orValue(true)"
            " || !oldSelf.?tls.?enabled.orValue(false)",
            "tls.etcd.peers cannot be changed while the cluster has TLS: the members' addresses "
            "are recorded in etcd",
            ".tls",
        ),
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
