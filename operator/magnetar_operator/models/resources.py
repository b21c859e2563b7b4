"""The models of Tenant, Namespace, Topic, Subscription and Permission.

Names are full names, or composed of references, which the operator's `catalog` resolves.
`spec.policies` is a plain dict: the registry defines its schema and its conversion (`values`).
"""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from magnetar_operator.models.base import (
    SERVER_DEFAULT,
    Cel,
    ClusterRef,
    EntityName,
    LocalRef,
    Model,
    Seen,
    ShortText,
    Status,
    Url,
    cel_name,
    constant,
)

PARTITIONS_MAX: Final = 100_000
BUNDLES_MAX: Final = 65_536
ONE_CLUSTER: Final = (
    "allowedClusters is not supported beyond the local cluster: there is no geo-replication yet; "
    "leave it out or name the local cluster only"
)
POLICIES_LEVEL: Final = "policiesLevel"
"""In `Meta(extra=…)`: the schema comes from the registry, for that level."""

LifecyclePolicy = Annotated[
    Literal["CleanUpAfterDeletion", "KeepAfterDeletion"],
    Meta(
        description="The effect of its deletion in the cluster. "
        "CleanUpAfterDeletion: it is deleted there too. KeepAfterDeletion: it stays there.",
        extra={SERVER_DEFAULT: True},
    ),
]
Properties = Annotated[
    dict[str, Annotated[str, Meta(max_length=4_096)]],
    Meta(description="Your own key-value pairs, stored with it.", max_length=256),
]


class Placed(Model, frozen=True, kw_only=True):
    """The cluster of the target, and what happens to it when the resource is deleted."""

    cluster_ref: Annotated[
        ClusterRef | None,
        Meta(
            description="Its MagnetarCluster. Default: the only one of this Kubernetes namespace."
        ),
    ] = None
    admin_url: Annotated[
        Url | None,
        Meta(
            description="The admin REST of a cluster that has no MagnetarCluster here, such as "
            "http://pulsar-broker.pulsar.svc:8080. Instead of clusterRef."
        ),
    ] = None
    admin_secret: Annotated[
        LocalRef | None,
        Meta(
            description="A Secret with the credentials for adminUrl: the token in TOKEN, the "
            "authorities in ca.crt (by default the machine's). Its field ADMIN_URL names the "
            "address."
        ),
    ] = None
    lifecycle_policy: LifecyclePolicy = "CleanUpAfterDeletion"

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!(has(self.clusterRef) && has(self.adminUrl))",
            "clusterRef and adminUrl exclude each other: name the cluster or its address",
            ".adminUrl",
        ),
        Cel(
            "!has(self.adminSecret) || has(self.adminUrl)",
            "adminSecret has the credentials for adminUrl: set both",
            ".adminSecret",
        ),
        Cel(
            "!has(self.clusterRef) || !has(oldSelf.clusterRef) || "
            "self.clusterRef == oldSelf.clusterRef",
            "clusterRef cannot be changed: delete this resource (with lifecyclePolicy: "
            "KeepAfterDeletion, if the data shall stay) and make a new one",
            ".clusterRef",
        ),
    )


class TenantSpec(Placed, frozen=True, kw_only=True):
    """The desired state of a tenant."""

    name: Annotated[
        EntityName | None,
        Meta(description="The tenant's name. It cannot be changed. Default: metadata.name."),
    ] = None
    admin_roles: Annotated[
        list[ShortText],
        Meta(
            description="Roles that may administer the tenant, if brokers authorize requests.",
            max_length=256,
        ),
    ] = []
    allowed_clusters: Annotated[
        list[EntityName],
        Meta(
            description="Clusters that the tenant may use. Only its own cluster is supported: "
            "brokers do not replicate to other clusters. Default: its own cluster.",
            max_length=256,
        ),
    ] = []

    rules: ClassVar[tuple[Cel, ...]] = (
        *Placed.rules,
        constant("name", "name cannot be changed"),
        Cel("self.?allowedClusters.orValue([]).size() <= 1", ONE_CLUSTER, ".allowedClusters"),
    )


class NamespaceSpec(Placed, frozen=True, kw_only=True):
    """The desired state of a namespace (of Pulsar; not of Kubernetes)."""

    tenant: Annotated[
        EntityName | None,
        Meta(description="Its tenant, unless name has it. It cannot be changed."),
    ] = None
    name: Annotated[
        Annotated[str, Meta(pattern=r"^[-=:.\w]+(/[-=:.\w]+)?$", max_length=1_024)] | None,
        Meta(
            description="The name, alone or as TENANT/NAME. It cannot be changed. Default: "
            "metadata.name.",
            examples=["orders", "shop/orders"],
        ),
    ] = None
    bundles: Annotated[
        Annotated[int, Meta(ge=1, le=BUNDLES_MAX)] | None,
        Meta(
            description="The number of bundles when the namespace is created. It cannot be "
            "changed; brokers split bundles by load. Default: the broker's "
            "default_namespace_bundles."
        ),
    ] = None
    properties: Properties = {}
    policies: Annotated[
        dict[str, Any],
        Meta(
            description="Policies of all topics of the namespace, see docs/use/policies.md. For an "
            "absent policy the broker's settings apply.",
            extra={POLICIES_LEVEL: "namespace"},
        ),
    ] = {}

    rules: ClassVar[tuple[Cel, ...]] = (
        *Placed.rules,
        Cel(
            "has(self.tenant) != (has(self.name) && self.name.contains('/'))",
            "set the tenant in exactly one field: tenant: shop, or name: shop/orders",
            ".tenant",
        ),
        constant("tenant", "tenant cannot be changed"),
        constant("name", "name cannot be changed"),
        constant("bundles", "bundles cannot be changed: brokers split bundles by load"),
    )


class TopicSchema(Model, frozen=True, kw_only=True):
    """The schema of a topic's messages."""

    type: Annotated[
        Literal[
            "AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "STRING", "BYTES", "BOOLEAN", "INT8",
            "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "INSTANT",
            "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME", "KEY_VALUE",
        ],
        Meta(description="Its type, by the name that Pulsar's clients use."),
    ]  # fmt: skip
    schema: Annotated[
        Annotated[str, Meta(max_length=1_048_576)],
        Meta(description="Its definition, such as an Avro schema in JSON; empty for simple types."),
    ] = ""
    properties: Properties = {}


class TopicSpec(Placed, frozen=True, kw_only=True):
    """The desired state of a topic."""

    name: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^(((non-)?persistent://)?[-=:.\w]+/[-=:.\w]+/[^/\s]+|[^/\s]+)$",
                max_length=2_048,
            ),
        ]
        | None,
        Meta(
            description="The full name of the topic, or its last part if namespaceRef names the "
            "namespace. It cannot be changed. Default: metadata.name.",
            examples=["persistent://shop/orders/created", "shop/orders/created", "created"],
        ),
    ] = None
    namespace_ref: Annotated[
        LocalRef | None,
        Meta(description="The Namespace resource of the topic's namespace. It cannot be changed."),
    ] = None
    persistent: Annotated[
        bool | None,
        Meta(
            description="Whether messages are stored. It cannot be changed. Default: as the name "
            "says, else true."
        ),
    ] = None
    partitions: Annotated[
        int,
        Meta(
            ge=0,
            le=PARTITIONS_MAX,
            description="The number of partitions; 0: the topic is not partitioned. It can only "
            "grow, and not from 0. Default: 0.",
        ),
    ] = 0
    properties: Properties = {}
    schema: Annotated[
        TopicSchema | None,
        Meta(
            description="The schema of the topic, registered as a new version if it differs. "
            "Absent: producers register theirs."
        ),
    ] = None
    policies: Annotated[
        dict[str, Any],
        Meta(
            description="Policies of the topic, see docs/use/policies.md. For an absent policy the "
            "namespace's applies.",
            extra={POLICIES_LEVEL: "topic"},
        ),
    ] = {}

    rules: ClassVar[tuple[Cel, ...]] = (
        *Placed.rules,
        Cel(
            "has(self.namespaceRef) != (has(self.name) && self.name.contains('/'))",
            "set the namespace in exactly one field: name: persistent://shop/orders/created, or "
            "namespaceRef with name: created",
            ".name",
        ),
        Cel(
            "!has(self.name) || !self.name.matches('-partition-[0-9]+$')",
            "name is that of one partition: name the topic, and set partitions",
            ".name",
        ),
        Cel(
            "!has(self.persistent) || !has(self.name) || !self.name.contains('://') || "
            "self.persistent == self.name.startsWith('persistent://')",
            "persistent contradicts name: leave it out",
            ".persistent",
        ),
        Cel(
            "self.?partitions.orValue(0) >= oldSelf.?partitions.orValue(0)",
            "partitions can only grow: keys and order would be lost, and messages with them",
            ".partitions",
        ),
        Cel(
            "oldSelf.?partitions.orValue(0) != 0 || self.?partitions.orValue(0) == 0",
            "a topic without partitions cannot be given any: its messages would be in none; make "
            "a new topic",
            ".partitions",
        ),
        constant("name", "name cannot be changed"),
        constant("namespaceRef", "namespaceRef cannot be changed"),
        constant("persistent", "persistent cannot be changed"),
    )


class SubscriptionSpec(Placed, frozen=True, kw_only=True):
    """The desired state of a durable subscription."""

    topic: Annotated[
        Annotated[
            str,
            Meta(pattern=r"^((non-)?persistent://)?[-=:.\w]+/[-=:.\w]+/[^/\s]+$", max_length=2_048),
        ]
        | None,
        Meta(
            description="The full name of the topic, unless topicRef names it. It cannot be "
            "changed.",
            examples=["persistent://shop/orders/created"],
        ),
    ] = None
    topic_ref: Annotated[
        LocalRef | None, Meta(description="The Topic resource of the topic. It cannot be changed.")
    ] = None
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_024)] | None,
        Meta(description="The subscription's name. It cannot be changed. Default: metadata.name."),
    ] = None
    initial_position: Annotated[
        Literal["Earliest", "Latest"],
        Meta(
            description="The start of a new subscription. Earliest: at the oldest message that is "
            "kept. Latest: after the newest. It cannot be changed. Default: Latest."
        ),
    ] = "Latest"
    properties: Properties = {}

    rules: ClassVar[tuple[Cel, ...]] = (
        *Placed.rules,
        Cel(
            "has(self.topic) != has(self.topicRef)",
            "set the topic in exactly one field: topic: persistent://shop/orders/created, or "
            "topicRef",
            ".topic",
        ),
        constant("topic", "topic cannot be changed"),
        constant("topicRef", "topicRef cannot be changed"),
        constant("name", "name cannot be changed"),
        Cel(
            "(has(self.initialPosition) && self.initialPosition == 'Earliest') == "
            "(has(oldSelf.initialPosition) && oldSelf.initialPosition == 'Earliest')",
            "initialPosition cannot be changed: it applies to the creation of the subscription; "
            "reset the cursor instead",
            ".initialPosition",
        ),
    )


class PermissionSpec(Placed, frozen=True, kw_only=True):
    """The desired permission of a role on a namespace, a topic or a subscription."""

    role: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_024)],
        Meta(description="The role. It cannot be changed.", examples=["shop"]),
    ]
    namespace: Annotated[
        Annotated[str, Meta(pattern=r"^[-=:.\w]+/[-=:.\w]+$", max_length=1_024)] | None,
        Meta(
            description="The namespace, as TENANT/NAME. It cannot be changed.",
            examples=["shop/orders"],
        ),
    ] = None
    namespace_ref: Annotated[
        LocalRef | None,
        Meta(description="The Namespace resource of the namespace. It cannot be changed."),
    ] = None
    topic: Annotated[
        Annotated[
            str,
            Meta(pattern=r"^((non-)?persistent://)?[-=:.\w]+/[-=:.\w]+/[^/\s]+$", max_length=2_048),
        ]
        | None,
        Meta(
            description="The topic, with its partitions. It cannot be changed.",
            examples=["persistent://shop/orders/created"],
        ),
    ] = None
    topic_ref: Annotated[
        LocalRef | None, Meta(description="The Topic resource of the topic. It cannot be changed.")
    ] = None
    subscription: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_024)] | None,
        Meta(
            description="A subscription name in all topics of the namespace: once any role is "
            "named for it, only such roles may use it. They need the action consume, too. It "
            "cannot be changed."
        ),
    ] = None
    actions: Annotated[
        list[Literal["produce", "consume", "functions", "sources", "sinks", "packages"]],
        Meta(
            description="The permitted actions. Brokers decide by produce and consume, and store "
            "the others.",
            max_length=6,
            examples=[["produce", "consume"]],
        ),
    ] = []

    rules: ClassVar[tuple[Cel, ...]] = (
        *Placed.rules,
        Cel(
            # Not by a list and `filter`, whose cost the API server cannot bound.
            " + ".join(
                f"(has(self.{cel_name(name)}) ? 1 : 0)"
                for name in ("namespace", "namespaceRef", "topic", "topicRef")
            )
            + " == 1",
            "say the object once: namespace, namespaceRef, topic or topicRef",
            ".namespace",
        ),
        Cel(
            "!has(self.subscription) || has(self.__namespace__) || has(self.namespaceRef)",
            "subscription is for a namespace: roles of a subscription count in all of its topics",
            ".subscription",
        ),
        Cel(
            "has(self.subscription) != (self.?actions.orValue([]).size() > 0)",
            "say actions, or for a subscription none: to use it is all that it permits",
            ".actions",
        ),
        *(
            constant(name, f"{name} cannot be changed: delete this resource and make a new one")
            for name in ("namespace", "namespaceRef", "topic", "topicRef", "subscription")
        ),
        Cel("self.role == oldSelf.role", "role cannot be changed", ".role"),
    )


class Backlog(Seen, frozen=True, kw_only=True):
    """Messages that are not acknowledged."""

    messages: Annotated[int, Meta(description="Messages that are not acknowledged.")] = 0
    bytes: Annotated[int, Meta(description="Their size.")] = 0
    oldest_age_seconds: Annotated[
        int, Meta(description="The age of the oldest of them; 0 if there is none.")
    ] = 0


class PlacedStatus(Status, frozen=True, kw_only=True):
    """The fields of all four statuses."""

    resolved_name: Annotated[
        ShortText, Meta(description="The full name of the target in the cluster.")
    ] = ""
    cluster: Annotated[
        ShortText, Meta(description="The MagnetarCluster of the target, or its address.")
    ] = ""
    cluster_namespace: Annotated[
        ShortText,
        Meta(description="The Kubernetes namespace of that MagnetarCluster; empty: an address."),
    ] = ""
    admin_url: Annotated[
        ShortText, Meta(description="The address of the admin REST that was used.")
    ] = ""
    admin_secret: Annotated[
        ShortText, Meta(description="The Secret with the credentials for the address, if any.")
    ] = ""
    applied: Annotated[
        dict[str, Any] | None,
        Meta(
            description="The values that the operator set last, by field. A field that is absent "
            "in spec and present here is removed from the cluster."
        ),
    ] = None


class TenantStatus(PlacedStatus, frozen=True, kw_only=True):
    """The observed state of a tenant."""

    namespaces: Annotated[int, Meta(description="The number of its namespaces.")] = 0


class NamespaceStatus(PlacedStatus, frozen=True, kw_only=True):
    """The observed state of a namespace."""

    topics: Annotated[
        int, Meta(description="The number of its topics, each partition counted.")
    ] = 0
    bundles: Annotated[int, Meta(description="The number of its bundles now.")] = 0


class PermissionStatus(PlacedStatus, frozen=True, kw_only=True):
    """The observed state of a permission."""


class TopicStatus(PlacedStatus, frozen=True, kw_only=True):
    """The observed state of a topic."""

    partitions: Annotated[int, Meta(description="The number of its partitions.")] = 0
    brokers: Annotated[
        list[ShortText],
        Meta(description="The brokers that own the topic or its partitions.", max_length=1_000),
    ] = []
    subscriptions: Annotated[int, Meta(description="The number of its subscriptions.")] = 0
    producers: Annotated[int, Meta(description="The number of connected producers.")] = 0
    storage_bytes: Annotated[int, Meta(description="The size of its messages, one copy each.")] = 0
    backlog: Annotated[
        Backlog | None, Meta(description="The largest backlog of a subscription.")
    ] = None
    schema_version: Annotated[int | None, Meta(description="The version of its schema.")] = None


class SubscriptionStatus(PlacedStatus, frozen=True, kw_only=True):
    """The observed state of a subscription."""

    type: Annotated[
        ShortText, Meta(description="Its type while consumers are connected: Shared, …")
    ] = ""
    consumers: Annotated[int, Meta(description="The number of connected consumers.")] = 0
    backlog: Annotated[Backlog | None, Meta(description="Its backlog.")] = None
