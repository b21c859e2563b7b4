"""The models of a component's pods: resources, placement, environment.

Parts of Kubernetes' own API (affinity, tolerations, …) have Kubernetes' form.
"""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from magnetar_operator.models.base import (
    LIST_KEYS,
    SERVER_DEFAULT,
    Cel,
    Duration,
    Model,
    ObjectName,
    Quantity,
    Raw,
    ShortText,
    StorageSize,
    constant,
)

STORAGE_DEFAULT: Final = "10Gi"

Config = Annotated[
    dict[str, int | Annotated[str, Meta(max_length=4_096)]],
    Meta(
        description="Settings by name: Pulsar's key of broker.conf (managedLedgerDefaultAckQuorum) "
        "or ours (ack_quorum), see docs/run/configuration.md. Quote true and false, as in a "
        "ConfigMap.",
        max_length=256,
    ),
]


class Resources(Model, frozen=True, kw_only=True):
    """Requests and limits, as in a container."""

    requests: Annotated[
        dict[str, Quantity],
        Meta(description="The reserved amounts, by resource: cpu, memory.", max_length=16),
    ] = {}
    limits: Annotated[
        dict[str, Quantity],
        Meta(description="The limits, by resource: cpu, memory.", max_length=16),
    ] = {}


class EnvVar(Model, frozen=True, kw_only=True):
    """An environment variable, as in a container."""

    name: Annotated[ShortText, Meta(description="Its name.")]
    value: Annotated[str | None, Meta(description="Its value.")] = None
    value_from: Annotated[
        Raw | None, Meta(description="The source of its value, as in a container's env.")
    ] = None


class Storage(Model, frozen=True, kw_only=True):
    """A volume for each pod. Its size is stored, so that no later default shrinks it."""

    size: Annotated[
        StorageSize,
        Meta(description="Its size. It may grow, but never shrink.", extra={SERVER_DEFAULT: True}),
    ] = STORAGE_DEFAULT
    storage_class_name: Annotated[
        ObjectName | None,
        Meta(
            description="Its StorageClass. It cannot be changed. Default: the cluster's default "
            "class."
        ),
    ] = None

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            "size must not become smaller: volumes cannot shrink",
            ".size",
        ),
        constant(
            "storageClassName", "storageClassName cannot be changed: volumes stay where they are"
        ),
    )


class Pdb(Model, frozen=True, kw_only=True):
    """A PodDisruptionBudget."""

    enabled: Annotated[
        bool, Meta(description="Whether there is a PodDisruptionBudget for the component.")
    ] = True
    max_unavailable: Annotated[
        int,
        Meta(ge=0, le=100, description="The number of pods that may be evicted at the same time."),
    ] = 1


class Pods(Model, frozen=True, kw_only=True):
    """The fields that all components share."""

    resources: Annotated[Resources, Meta(description="CPU and memory of each pod's container.")] = (
        Resources()
    )
    anti_affinity: Annotated[
        Literal["Required", "Preferred", "Disabled"],
        Meta(
            description="Whether pods of the component avoid nodes that run another of them. "
            "Required: a pod waits for a node without such a pod. Preferred: it shares a node if "
            "there is no other. Disabled: for clusters of one node."
        ),
    ] = "Preferred"
    affinity: Annotated[
        Raw | None,
        Meta(
            description="The spec.affinity of a Pod; it replaces the one that antiAffinity "
            "generates."
        ),
    ] = None
    node_selector: Annotated[
        dict[str, str], Meta(description="Labels that nodes must have.", max_length=64)
    ] = {}
    tolerations: Annotated[
        list[Raw], Meta(description="The spec.tolerations of a Pod.", max_length=64)
    ] = []
    topology_spread_constraints: Annotated[
        list[Raw],
        Meta(
            description="The spec.topologySpreadConstraints of a Pod; a constraint without a "
            "labelSelector gets the component's.",
            max_length=16,
        ),
    ] = []
    priority_class_name: Annotated[
        ObjectName | None, Meta(description="The PriorityClass of the pods.")
    ] = None
    pod_annotations: Annotated[
        dict[str, str], Meta(description="Annotations of the pods.", max_length=64)
    ] = {}
    extra_env: Annotated[
        list[EnvVar],
        Meta(
            description="Further environment variables of the container, beside those of config.",
            extra={LIST_KEYS: ["name"]},
            max_length=256,
        ),
    ] = []
    grace_period: Annotated[
        Duration,
        Meta(description="The time that a pod may take to stop before it is killed."),
    ] = "60s"
    pdb: Annotated[Pdb, Meta(description="Its PodDisruptionBudget.")] = Pdb()
