"""`MagnetarCluster.status`: what the operator saw, what it is about, what it recommends."""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, Literal

from msgspec import Meta

from magnetar_operator.models.base import LIST_KEYS, Condition, Seen, ShortText, Status

LEDGERS_NAMED_MAX = 100
"""In status; the number beside it counts all."""


class Replicas(Seen, frozen=True, kw_only=True):
    """How many pods of a component."""

    ready: Annotated[int, Meta(description="Pods that serve.")] = 0
    desired: Annotated[int, Meta(description="Pods that there should be.")] = 0
    updated: Annotated[int, Meta(description="Pods that have the newest image and settings.")] = 0
    summary: Annotated[ShortText, Meta(description="`ready/desired`, for kubectl get.")] = ""


class Drain(Seen, frozen=True, kw_only=True):
    """The bookie that is being emptied, and how far that is."""

    bookie: Annotated[ShortText, Meta(description="The pod of the bookie.")] = ""
    step: Annotated[
        Literal["ReadOnly", "Copying", "Proving", "Removing", "Registering", "Refused", ""],
        Meta(
            description="ReadOnly: it takes no new entries. Copying: its ledgers are copied to "
            "others. Proving: the copies are compared by checksum. Removing: the pod goes, or its "
            "volume. Registering: the bookie starts with its new volume. Refused: it cannot go, "
            "and refused says why."
        ),
    ] = ""
    reason: Annotated[
        ShortText,
        Meta(description="Why it is drained: scale-down, or volume where it gets a new one."),
    ] = ""
    started_at: Annotated[str | None, Meta(description="When it began, RFC 3339.")] = None
    ledgers_left: Annotated[int, Meta(description="Ledgers that only wait to be copied.")] = 0
    ledgers_proven: Annotated[
        int, Meta(description="Ledgers whose copies elsewhere are complete and equal.")
    ] = 0
    refused: Annotated[
        ShortText, Meta(description="Why the bookie cannot be removed, and what to do.")
    ] = ""
    ledgers: Annotated[
        list[int],
        Meta(
            description="The ledgers that stand in the way, the first hundred.",
            max_length=LEDGERS_NAMED_MAX,
        ),
    ] = []


class Recommendation(Seen, frozen=True, kw_only=True):
    """Something that a person should consider."""

    kind: Annotated[ShortText, Meta(description="What about: AddBookie, GrowVolume, …")]
    text: Annotated[ShortText, Meta(description="What to do, and why.")]
    at: Annotated[str | None, Meta(description="Since when, RFC 3339.")] = None


class ClusterStatus(Status, frozen=True, kw_only=True):
    """The seen state of a cluster."""

    conditions: Annotated[
        list[Condition],
        Meta(
            description="The state, aspect by aspect. Ready sums up BrokersReady, BookiesReady, "
            "EtcdReady and LedgersHealthy; ScalingDown, ReplacingVolume, Upgrading, Degraded and "
            "Paused say what goes on.",
            extra={LIST_KEYS: ["type"]},
            max_length=64,
        ),
    ] = []
    phase: Annotated[
        Literal[
            "", "Pending", "Creating", "Running", "Upgrading", "ScalingDown",
            "ReplacingVolume", "Degraded", "Paused", "Deleting",
        ],
        Meta(description="The state in one word; the conditions say more."),
    ] = ""  # fmt: skip
    version: Annotated[ShortText, Meta(description="The version that all components run.")] = ""
    image: Annotated[ShortText, Meta(description="The image that all components run.")] = ""
    cluster_name: Annotated[ShortText, Meta(description="The cluster's name for clients.")] = ""
    admin_url: Annotated[ShortText, Meta(description="Where the admin REST is.")] = ""
    service_url: Annotated[ShortText, Meta(description="What clients connect to, pulsar://…")] = ""
    brokers: Annotated[Replicas, Meta(description="The brokers' pods.")] = Replicas()
    bookies: Annotated[Replicas, Meta(description="The bookies' pods.")] = Replicas()
    scaled_up: Annotated[
        ShortText,
        Meta(description="How many bookies disks have called for, and when; empty: none."),
    ] = ""
    etcd: Annotated[Replicas, Meta(description="The etcd members' pods.")] = Replicas()
    selector: Annotated[
        ShortText, Meta(description="Selects the brokers' pods; the scale subresource gives it.")
    ] = ""
    drain: Annotated[
        Drain | None, Meta(description="The bookie that is being emptied, if one is.")
    ] = None
    recommendations: Annotated[
        list[Recommendation],
        Meta(description="What a person should consider.", max_length=64),
    ] = []
