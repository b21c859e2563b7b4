"""What the models of all kinds share: the base, scalars of manifests, references, statuses.

A model is a frozen msgspec Struct with fields `Annotated[type, Meta(description=…)] = default`.
Python's default is what the operator assumes where a manifest says nothing; the API server writes
it into the stored object only where `Meta(extra={SERVER_DEFAULT: True})` asks for it: what is
stored is owned by nobody in server-side apply, and stays as it is when a later operator has
another default. Rules between fields are CEL, in the class's `rules`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct

GROUP: Final = "magnetar.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "magnetar"

SERVER_DEFAULT: Final = "serverDefault"
"""In `Meta(extra=…)`: the API server fills in the default."""
LIST_KEYS: Final = "listKeys"
"""In `Meta(extra=…)`: a list of objects is a map by these fields, so that appliers share it."""

TEXT_CHARACTERS_MAX: Final = 4_096
ITEMS_MAX: Final = 1_000
"""Of lists and maps that say nothing else; rules are costed by it."""


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule that the API server checks: `self` is the object the class stands for."""

    rule: str
    message: str
    field_path: str = ""
    """Which field the message is about (`.broker.replicas`), where it is one."""

    @property
    def is_transition(self) -> bool:
        return "oldSelf" in self.rule


def constant(field: str, message: str) -> Cel:
    """The field, or its absence, stays as it was made."""
    return Cel(
        f"has(self.{field}) == has(oldSelf.{field}) && "
        f"(!has(self.{field}) || self.{field} == oldSelf.{field})",
        message,
        f".{field}",
    )


class Model(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a manifest."""

    rules: ClassVar[tuple[Cel, ...]] = ()

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Self:
        """Of what the API server gave; `msgspec.ValidationError` names the field."""
        return msgspec.convert(content, cls)

    def manifest(self) -> dict[str, Any]:
        """Plain JSON; fields that have their default are absent, but for those of a status."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class Seen(Model, frozen=True, kw_only=True, omit_defaults=False):
    """A part of a status: `manifest` says every field, so that a merge patch of it clears what
    held before (a field of None is null, which the API server takes away)."""


Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""Of a Kubernetes object that others are named after."""
ObjectName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
EntityName = Annotated[str, Meta(pattern=r"^[-=:.\w]+$", max_length=512)]
"""Of a tenant, a namespace or a cluster, in Pulsar's characters."""
Url = Annotated[str, Meta(pattern=r"^https?://[^\s/]+(/[^\s]*)?$", max_length=2_048)]
ShortText = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
Duration = Annotated[
    Annotated[int, Meta(ge=0)]
    | Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,9})(ms|s|m|h|d|w)?$", max_length=16)],
    Meta(
        examples=["90s", "10m", "7d"],
        extra={"form": "Duration (90s, 10m or 7d) or a number of seconds."},
    ),
]
"""`values.seconds` reads it; a bare number counts seconds."""
Quantity = Annotated[
    Annotated[int, Meta(ge=0)]
    | Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$")],
    Meta(examples=["500m", "2Gi"], extra={"form": "Quantity (500m or 2Gi) or a number."}),
]
StorageSize = Annotated[
    str,
    Meta(pattern=r"^[1-9][0-9]{0,9}(Mi|Gi|Ti|Pi|M|G|T|P)$", max_length=16, examples=["100Gi"]),
]
Raw = dict[str, Any]
"""A piece of Kubernetes' own API, handed on as it is."""


class ClusterRef(Model, frozen=True, kw_only=True):
    """Names a MagnetarCluster."""

    name: Annotated[ObjectName, Meta(description="The name of the MagnetarCluster.")]
    namespace: Annotated[
        Name | None,
        Meta(description="The Kubernetes namespace it is in. Default: that of this resource."),
    ] = None


class LocalRef(Model, frozen=True, kw_only=True):
    """Names something in the same Kubernetes namespace."""

    name: Annotated[ObjectName, Meta(description="The name, in the same Kubernetes namespace.")]


class Condition(Seen, frozen=True, kw_only=True):
    """One aspect of the state, as in Kubernetes' own kinds."""

    type: Annotated[ShortText, Meta(description="Which aspect, such as Ready.")]
    status: Annotated[Literal["True", "False", "Unknown"], Meta(description="Whether it holds.")]
    reason: Annotated[ShortText, Meta(description="Why, in one word for programs.")] = ""
    message: Annotated[
        Annotated[str, Meta(max_length=32_768)],
        Meta(description="Why, in a sentence for people, and what to do."),
    ] = ""
    last_transition_time: Annotated[
        ShortText, Meta(description="When the status last changed, RFC 3339.")
    ] = ""
    observed_generation: Annotated[
        int, Meta(description="The metadata.generation that this is about.")
    ] = 0


class PlanStep(Seen, frozen=True, kw_only=True):
    """One action that would be taken."""

    action: Annotated[ShortText, Meta(description="What is done: create, update, delete, drain, …")]
    target: Annotated[ShortText, Meta(description="What it is done to.")]
    text: Annotated[ShortText, Meta(description="What changes, from what to what.")] = ""
    loses_data: Annotated[
        bool, Meta(description="Whether messages are deleted by it; such steps are shown first.")
    ] = False
    bytes: Annotated[int, Meta(description="How many bytes it deletes or moves, estimated.")] = 0
    topics: Annotated[int, Meta(description="How many topics it concerns.")] = 0


class Status(Seen, frozen=True, kw_only=True):
    """What every kind's status has."""

    observed_generation: Annotated[
        int, Meta(description="The metadata.generation that was last acted on.")
    ] = 0
    conditions: Annotated[
        list[Condition],
        Meta(
            description="The state, aspect by aspect; Ready sums it up.",
            extra={LIST_KEYS: ["type"]},
            max_length=64,
        ),
    ] = []
    last_reconciled: Annotated[
        str | None, Meta(description="When the resource was last compared with the cluster.")
    ] = None
    plan: Annotated[
        list[PlanStep],
        Meta(
            description='What would be done, while the annotation magnetar.io/plan is "true".',
            max_length=ITEMS_MAX,
        ),
    ] = []
