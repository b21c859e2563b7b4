"""The model of `MagnetarCluster.status`: observations, actions and recommendations."""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, Literal

from msgspec import Meta

from magnetar_operator.models.base import LIST_KEYS, Condition, Seen, ShortText, Status

LEDGERS_NAMED_MAX = 100
"""The most ledgers that a status lists."""


class Replicas(Seen, frozen=True, kw_only=True):
    """The number of pods of a component."""

    ready: Annotated[int, Meta(description="Ready pods.")] = 0
    desired: Annotated[int, Meta(description="Desired pods.")] = 0
    updated: Annotated[int, Meta(description="Pods with the newest image and settings.")] = 0
    summary: Annotated[ShortText, Meta(description="`ready/desired`, for kubectl get.")] = ""


class Drain(Seen, frozen=True, kw_only=True):
    """The bookie that is being drained, and the progress."""

    bookie: Annotated[ShortText, Meta(description="The pod of the bookie.")] = ""
    step: Annotated[
        Literal["ReadOnly", "Copying", "Proving", "Removing", "Registering", "Refused", ""],
        Meta(
            description="ReadOnly: it takes no new entries. Copying: its ledgers are copied to "
            "other bookies. Proving: the copies are compared by checksum. Removing: "
            "the pod, or its volume, is deleted. Registering: the bookie starts with "
            "its new volume. Refused: it cannot be removed, and refused says why."
        ),
    ] = ""
    reason: Annotated[
        ShortText,
        Meta(description="Why it is drained: scale-down, or volume if it gets a new one."),
    ] = ""
    started_at: Annotated[str | None, Meta(description="When it began, RFC 3339.")] = None
    ledgers_left: Annotated[int, Meta(description="Ledgers that are not copied yet.")] = 0
    ledgers_proven: Annotated[
        int, Meta(description="Ledgers whose copies elsewhere are complete and equal.")
    ] = 0
    refused: Annotated[
        ShortText, Meta(description="Why the bookie cannot be removed, and what to do.")
    ] = ""
    ledgers: Annotated[
        list[int],
        Meta(
            description="The first hundred ledgers that prevent it.",
            max_length=LEDGERS_NAMED_MAX,
        ),
    ] = []


class Recommendation(Seen, frozen=True, kw_only=True):
    """Something that a person should consider."""

    kind: Annotated[ShortText, Meta(description="The kind: AddBookie, GrowVolume, …")]
    text: Annotated[ShortText, Meta(description="The advice, and the reason.")]
    at: Annotated[str | None, Meta(description="Since when, RFC 3339.")] = None


class ClusterStatus(Status, frozen=True, kw_only=True):
    """The observed state of a cluster."""

    conditions: Annotated[
        list[Condition],
        Meta(
            description="The state, aspect by aspect. Ready sums up BrokersReady, BookiesReady, "
            "EtcdReady, LedgersHealthy and VolumesReady; ScalingDown, "
            "ReplacingVolume, Upgrading, Degraded and Paused describe what is in "
            "progress.",
            extra={LIST_KEYS: ["type"]},
            max_length=64,
        ),
    ] = []
    phase: Annotated[
        Literal[
            "", "Pending", "Creating", "Running", "Upgrading", "ScalingDown",
            "ReplacingVolume", "Degraded", "Paused", "Deleting",
        ],
        Meta(description="A summary of the state; the conditions have the details."),
    ] = ""  # fmt: skip
    version: Annotated[ShortText, Meta(description="The version that all components run.")] = ""
    image: Annotated[ShortText, Meta(description="The image that all components run.")] = ""
    cluster_name: Annotated[ShortText, Meta(description="The cluster's name for clients.")] = ""
    admin_url: Annotated[ShortText, Meta(description="The address of the admin REST.")] = ""
    service_url: Annotated[
        ShortText, Meta(description="The address that clients connect to, pulsar://…")
    ] = ""
    brokers: Annotated[Replicas, Meta(description="The brokers' pods.")] = Replicas()
    bookies: Annotated[Replicas, Meta(description="The bookies' pods.")] = Replicas()
    scaled_up: Annotated[
        ShortText,
        Meta(
            description="The number of bookies after additions because disks filled up, and the "
            "time; "
            "empty: none."
        ),
    ] = ""
    etcd: Annotated[Replicas, Meta(description="The etcd members' pods.")] = Replicas()
    selector: Annotated[
        ShortText, Meta(description="Selects the brokers' pods; the scale subresource returns it.")
    ] = ""
    drain: Annotated[
        Drain | None, Meta(description="The bookie that is being drained, if there is one.")
    ] = None
    recommendations: Annotated[
        list[Recommendation],
        Meta(description="Recommendations for people.", max_length=64),
    ] = []
