"""What a resource's metadata and status say to the reconcilers. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.resources.placing import Place
from magnetar_operator.resources.targets import Target
from magnetar_operator.work import Key

PREFIX: Final = "magnetar.io/"
KEEP: Final = "KeepAfterDeletion"
DUPLICATE: Final = "Duplicate"


def key_of(one: Object) -> Key:
    metadata = one["metadata"]
    return Key(one["kind"], metadata.get("namespace", ""), metadata["name"])


def annotated(one: Object, name: str) -> bool:
    """Whether `magnetar.io/NAME` is "true"."""
    return (one["metadata"].get("annotations") or {}).get(f"{PREFIX}{name}") == "true"


def ignored(one: Object) -> tuple[str, ...]:
    """The fields whose drift is left alone."""
    text = (one["metadata"].get("annotations") or {}).get(f"{PREFIX}ignore-drift", "")
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def applied_there(status: Mapping[str, Any], place: Place) -> Mapping[str, Any] | None:
    """`status.applied`, where it is about this target."""
    same = (status.get("resolvedName"), status.get("cluster")) == (
        place.target.full_name,
        place.cluster,
    )
    return status.get("applied") or None if same else None


def target_in(status: Mapping[str, Any], kind: str) -> tuple[str, Target] | None:
    """The address and the target that the status tells of."""
    url, name = status.get("adminUrl"), status.get("resolvedName")
    return (url, Target.parse(kind, name)) if url and name else None
