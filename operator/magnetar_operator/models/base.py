"""The base of the models of all kinds: scalars of manifests, references, statuses.

A model is a frozen msgspec Struct with fields `Annotated[type, Meta(description=…)] = default`. The
operator uses Python's default if a manifest lacks the field. The API server stores a default only
with `Meta(extra={SERVER_DEFAULT: True})`: a stored default has no owner in server-side apply, and
stays when a later operator has another default. Rules between fields are CEL, in the class's
`rules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct

CATEGORY: Final = "magnetar"

SERVER_DEFAULT: Final = "serverDefault"
"""In `Meta(extra=…)`: the API server fills in the default."""
LIST_KEYS: Final = "listKeys"
"""In `Meta(extra=…)`: the fields by which a list is a map, so that several appliers share it."""

TEXT_CHARACTERS_MAX: Final = 4_096
ITEMS_MAX: Final = 1_000
"""The bound of lists and maps without another bound; it determines the cost of rules."""

_RESERVED: Final = frozenset(("const", "for", "function", "if", "import", "namespace", "package"))
"""Words of CEL that may be names of fields, among others."""


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule that the API server checks: `self` is the object of the class."""

    rule: str
    message: str
    field_path: str = ""
    """The field of the message (`.broker.replicas`); empty: none."""


def cel_name(field: str) -> str:
    """The name of a field in rules: Kubernetes escapes the reserved words of CEL."""
    return f"__{field}__" if field in _RESERVED else field


def constant(field: str, message: str) -> Cel:
    """A rule that forbids changes of the field, and of its absence."""
    name = cel_name(field)
    return Cel(
        f"has(self.{name}) == has(oldSelf.{name}) && "
        f"(!has(self.{name}) || self.{name} == oldSelf.{name})",
        message,
        f".{field}",
    )


class Model(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a manifest."""

    rules: ClassVar[tuple[Cel, ...]] = ()

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Self:
        """Parses stored content; `msgspec.ValidationError` names the field."""
        return msgspec.convert(content, cls)

    def manifest(self) -> dict[str, Any]:
        """The content as JSON; fields with their default are absent, except in a status."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class Seen(Model, frozen=True, kw_only=True, omit_defaults=False):
    """A part of a status.

    `manifest` contains every field, so that applying it clears earlier values.
    """


Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""The name of a Kubernetes object that is the prefix of other names."""
ObjectName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
EntityName = Annotated[str, Meta(pattern=r"^[-=:.\w]+$", max_length=512)]
"""The name of a tenant, a namespace or a cluster, in Pulsar's characters."""
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
"""A duration, which `values.seconds` parses; a bare number counts seconds."""
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
"""A part of Kubernetes' own API, passed on unchanged."""


class ClusterRef(Model, frozen=True, kw_only=True):
    """Names a MagnetarCluster."""

    name: Annotated[ObjectName, Meta(description="The name of the MagnetarCluster.")]
    namespace: Annotated[
        Name | None,
        Meta(description="Its Kubernetes namespace. Default: that of this resource."),
    ] = None


class LocalRef(Model, frozen=True, kw_only=True):
    """Names an object in the same Kubernetes namespace."""

    name: Annotated[ObjectName, Meta(description="The name, in the same Kubernetes namespace.")]


class Condition(Seen, frozen=True, kw_only=True):
    """One aspect of the state, as in Kubernetes' own kinds."""

    type: Annotated[ShortText, Meta(description="The aspect, such as Ready.")]
    status: Annotated[Literal["True", "False", "Unknown"], Meta(description="Whether it holds.")]
    reason: Annotated[ShortText, Meta(description="The reason, in one word for programs.")] = ""
    message: Annotated[
        Annotated[str, Meta(max_length=32_768)],
        Meta(description="The reason, in a sentence for people, and what to do."),
    ] = ""
    last_transition_time: Annotated[
        ShortText, Meta(description="When the status last changed, RFC 3339.")
    ] = ""
    observed_generation: Annotated[
        int, Meta(description="The metadata.generation that the condition was set for.")
    ] = 0


class PlanStep(Seen, frozen=True, kw_only=True):
    """One action of a plan."""

    action: Annotated[ShortText, Meta(description="The action: create, update, delete, drain, …")]
    target: Annotated[ShortText, Meta(description="The object of the action.")]
    text: Annotated[
        ShortText, Meta(description="The change, with the values before and after.")
    ] = ""
    loses_data: Annotated[
        bool, Meta(description="Whether it deletes messages; such steps come first.")
    ] = False
    bytes: Annotated[int, Meta(description="How many bytes it deletes or moves, estimated.")] = 0
    topics: Annotated[int, Meta(description="The number of topics it affects.")] = 0


class Status(Seen, frozen=True, kw_only=True):
    """The fields of every kind's status."""

    observed_generation: Annotated[
        int, Meta(description="The metadata.generation that was last reconciled.")
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
        str | None, Meta(description="When the status was last written after a reconcile.")
    ] = None
    plan: Annotated[
        list[PlanStep],
        Meta(
            description='The plan, while the annotation magnetar.io/plan is "true".',
            max_length=ITEMS_MAX,
        ),
    ] = []


def condition_of(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    """The condition of that type; empty if the status has none."""
    return next(
        (
            condition
            for condition in status.get("conditions") or ()
            if condition.get("type") == type_
        ),
        {},
    )
