"""The parts of `MagnetarCluster.spec` beside brokers and bookies: etcd, autorecovery, offload,
metrics, network, and how pods are replaced."""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from magnetar_operator.models import switches
from magnetar_operator.models.base import Cel, Duration, LocalRef, Model, Name, Raw, Url, constant
from magnetar_operator.models.pods import Config, Pods, Resources, Storage

MEMBERS_DEFAULT: Final[Literal[3]] = 3


class ExternalEtcd(Model, frozen=True, kw_only=True):
    """An etcd that the operator does not run."""

    endpoints: Annotated[
        list[Annotated[str, Meta(pattern=r"^(https?://)?[^\s/]+:[0-9]+$", max_length=512)]],
        Meta(
            description="Its addresses.",
            min_length=1,
            max_length=16,
            examples=[["http://etcd-0.etcd:2379"]],
        ),
    ]
    prefix: Annotated[
        Annotated[str, Meta(pattern=r"^(/[-._a-zA-Z0-9]+)+$", max_length=255)] | None,
        Meta(
            description="The path of all keys of the cluster; clusters that share an etcd need "
            "different paths. Brokers, bookies, autorecovery and SparkJobs use it. It "
            "cannot be changed. Default: /magnetar.",
            examples=["/magnetar/orders"],
        ),
    ] = None
    tls: Annotated[
        LocalRef | None,
        Meta(description="Reserved for a Secret with certificates: setting it is refused."),
    ] = None
    auth: Annotated[
        LocalRef | None,
        Meta(description="Reserved for a Secret with a user and password: setting it is refused."),
    ] = None

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.tls)",
            "tls is not supported: the operator mounts no Secret for etcd's certificates; leave "
            "it out",
            ".tls",
        ),
        Cel(
            "!has(self.auth)",
            "auth is not supported: the operator mounts no Secret for etcd's user; leave it out",
            ".auth",
        ),
        constant("prefix", "prefix cannot be changed: the cluster would lose its metadata"),
    )


class Etcd(Pods, frozen=True, kw_only=True):
    """The metadata store: a StatefulSet of the operator's, or an external etcd."""

    replicas: Annotated[
        Literal[1, 3],
        Meta(
            description="The number of members: 3 survive the loss of one, 1 is for tests. It "
            "cannot be changed."
        ),
    ] = MEMBERS_DEFAULT
    image: Annotated[
        Annotated[str, Meta(max_length=1_024)] | None,
        Meta(description="Its image. Default: the operator's own setting."),
    ] = None
    storage: Annotated[Storage, Meta(description="The volume of each member.")] = Storage()
    external: Annotated[
        ExternalEtcd | None,
        Meta(
            description="An etcd that the operator does not run; no other field may be set "
            "beside it."
        ),
    ] = None

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.external) || !(has(self.replicas) || has(self.image) || "
            "has(self.storage) || has(self.resources))",
            "external excludes replicas, image, storage and resources: either the operator runs "
            "etcd, or you do",
            ".external",
        ),
    )


class Autorecovery(Model, frozen=True, kw_only=True):
    """The place of autorecovery, which restores lost copies."""

    mode: Annotated[
        Literal["InBookies", "Separate"],
        Meta(
            description="InBookies: autorecovery runs in the bookies. Separate: it runs in "
            "separate pods."
        ),
    ] = "InBookies"
    replicas: Annotated[
        int, Meta(ge=1, le=100, description="The number of pods, with mode Separate.")
    ] = 1
    resources: Annotated[
        Resources, Meta(description="CPU and memory of each pod, with mode Separate.")
    ] = Resources()
    config: Config = {}

    rules: ClassVar[tuple[Cel, ...]] = (switches.RULE,)


class Offload(Model, frozen=True, kw_only=True):
    """The cold store: Spark jobs write it, brokers read it."""

    driver: Annotated[
        Literal["aws-s3", "S3", "google-cloud-storage", "azureblob", "filesystem"],
        Meta(
            description="The kind of store, by Pulsar's names. S3: any store that speaks S3, at "
            "endpoint. filesystem: a volume, volumeClaim."
        ),
    ]
    bucket: Annotated[
        Annotated[str, Meta(max_length=255)] | None, Meta(description="The bucket or container.")
    ] = None
    region: Annotated[
        Annotated[str, Meta(max_length=64)] | None, Meta(description="Its region.")
    ] = None
    endpoint: Annotated[
        Url | None, Meta(description="The address of the store. Default: that of its provider.")
    ] = None
    credentials: Annotated[
        LocalRef | None,
        Meta(
            description="A Secret whose keys become environment variables of brokers and Spark "
            "jobs: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and others that the "
            "store's SDK reads."
        ),
    ] = None
    volume_claim: Annotated[
        LocalRef | None,
        Meta(
            description="With filesystem: the PersistentVolumeClaim that brokers and Spark jobs "
            "mount. On more than one node it must be ReadWriteMany."
        ),
    ] = None

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "(self.driver == 'filesystem') == has(self.volumeClaim)",
            "volumeClaim must be there with driver filesystem, and with no other",
            ".volumeClaim",
        ),
        Cel(
            "(self.driver != 'filesystem') == has(self.bucket)",
            "bucket must be there, but for driver filesystem, which has volumeClaim instead",
            ".bucket",
        ),
    )


class Metrics(Model, frozen=True, kw_only=True):
    """How Prometheus' operator finds the metrics."""

    service_monitor: Annotated[
        Literal["Auto", "Always", "Never"],
        Meta(
            description="Whether ServiceMonitors are created. Auto: if their CRD is installed. "
            "Always: a missing CRD makes the cluster not Ready."
        ),
    ] = "Auto"
    labels: Annotated[
        dict[str, str],
        Meta(
            description="Labels of the ServiceMonitors, such as the release that your Prometheus "
            "selects.",
            max_length=64,
        ),
    ] = {}
    interval: Annotated[Duration, Meta(description="The interval between two scrapes.")] = "30s"


class NetworkPolicies(Model, frozen=True, kw_only=True):
    """Which pods may connect to which."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether NetworkPolicies let only brokers and bookies reach bookies and "
            "etcd."
        ),
    ] = True
    clients: Annotated[
        list[Raw],
        Meta(
            description="The peers that may reach brokers, as the `from` of a NetworkPolicy's "
            "ingress rule. Default: all.",
            max_length=64,
        ),
    ] = []
    job_namespaces: Annotated[
        list[Name],
        Meta(
            description="Further Kubernetes namespaces whose SparkJobs may reach etcd and bookies. "
            "Those of the cluster's own namespace always may.",
            max_length=64,
        ),
    ] = []


class Upgrade(Model, frozen=True, kw_only=True):
    """How pods are replaced when image or settings change."""

    strategy: Annotated[
        Literal["Rolling", "Manual"],
        Meta(
            description="Rolling: one pod after the other, bookies first, with all ledgers "
            "healthy in between. Manual: a pod of etcd or a bookie is replaced when "
            "you delete it; brokers, which keep no data, are replaced at once."
        ),
    ] = "Rolling"
    max_unavailable: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="The number of brokers that are replaced at the same time. Bookies and "
            "etcd members are replaced one by one.",
        ),
    ] = 1
    pause_between: Annotated[
        Duration, Meta(description="The pause after a replaced pod is ready, before the next one.")
    ] = "10s"
