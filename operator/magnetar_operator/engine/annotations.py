"""Annotations by which people steer the reconcile of an object. Pure: no IO."""

from typing import Final

from magnetar_operator.kube.kinds import Object

PREFIX: Final = "magnetar.io/"


def annotated(obj: Object, name: str) -> bool:
    """Whether the annotation `magnetar.io/NAME` is "true"."""
    return (obj["metadata"].get("annotations") or {}).get(f"{PREFIX}{name}") == "true"


def ignored(obj: Object) -> tuple[str, ...]:
    """The fields whose drift is not repaired (`magnetar.io/ignore-drift`)."""
    text = (obj["metadata"].get("annotations") or {}).get(f"{PREFIX}ignore-drift", "")
    return tuple(filter(None, (name.strip() for name in text.split(","))))
