"""What one policy is: where it can be set, how REST and manifests call it, who enforces it.

Precedence is topic over namespace over broker (Pulsar's hierarchy). A policy that is set nowhere
has its default: the broker's setting where it names one, else `default`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from magnetar.policies.types import Type


class Level(Enum):
    """Where a policy can be set."""

    NAMESPACE = "namespace"
    TOPIC = "topic"


class Unset(Enum):
    """What REST answers where a policy is not set here (Pulsar differs from one to the next)."""

    EMPTY_200 = "200, no body"
    NO_CONTENT = "204"
    VALUE = "200 and the default"


@dataclass(frozen=True, slots=True)
class Rest:
    """`…/{path}` below a namespace or a topic: GET, `set_verb`, DELETE."""

    path: str
    set_verb: str = "POST"
    remove_path: str = ""
    """Where it differs from `path` (`removeBacklogQuota`)."""
    remove_verb: str = "DELETE"
    set_path: str = ""
    """Where it differs from `path` (`backlogQuota` sets what `backlogQuotaMap` gives)."""
    unset: Unset = Unset.EMPTY_200
    keyed_by: str = ""
    """A query parameter that says which entry of a map is set or removed (`backlogQuotaType`)."""
    query: str = ""
    """A query parameter that holds the value where there is no body."""
    done: int = 204
    """The status of a value that was set."""
    empty_removes: bool | None = None
    """Whether a value that is missing or null removes the policy; None: where it is a record or one
    of some words."""

    invalid: str = ""
    """Pulsar's whole refusal of a value out of range, where it differs from its usual form."""

    @property
    def setting_path(self) -> str:
        return self.set_path or self.path

    @property
    def removing_path(self) -> str:
        return self.remove_path or self.path


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The values of a policy that Magnetar stores but does not honor."""

    asks: Callable[[Any, str], bool]
    """Whether a checked value asks for it. The second argument is the local cluster's name, empty
    if it is unknown."""
    text: str
    """What is not supported, and which value is accepted."""
    cel: str
    """A CEL expression over `self`, the value in a manifest, that holds for an accepted value. The
    API server knows no local cluster, so it may accept more than `asks` does."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy."""

    name: str
    """Ours, in snake_case; the key under which a topic's policies are stored."""
    manifest: str
    """Its field under `spec.policies` of a Namespace or Topic resource."""
    type: Type
    default: object
    """Where neither topic, namespace nor broker say otherwise; None: none."""
    text: str
    """What it does, a sentence or two for people."""
    enforced_by: str = ""
    """The module that acts on it; empty: it is kept and shown, and nothing acts on it yet."""
    limitation: Unsupported | None = None
    """The values that ask for more than Magnetar does; every policy without `enforced_by` has
    one. `unsupported` applies it."""
    broker_setting: str = ""
    """The field of BrokerSettings that is its default."""
    document: str = ""
    """The namespace document's field, where a namespace can have it."""
    by_cluster: bool = False
    """Whether that field has a value for each cluster."""
    undefined: object = None
    """A value that says as much as none."""
    namespace: Rest | None = None
    topic: Rest | None = None
    invalid: str = ""
    """How Pulsar's refusal of a value begins; its field's name by default."""
    invalid_status: int = 412
    """Of a value that is out of its range or breaks a rule; one of a wrong type is 400."""
    loses_data: bool = False
    """A lower value may delete messages: `magnetar plan` says which before it is applied."""

    @property
    def levels(self) -> tuple[Level, ...]:
        found = []
        if self.namespace is not None:
            found.append(Level.NAMESPACE)
        if self.topic is not None:
            found.append(Level.TOPIC)
        return tuple(found)

    @property
    def keyed(self) -> bool:
        """Whether it is a map whose entries are set, and hold, one by one."""
        return any(rest is not None and rest.keyed_by for rest in (self.namespace, self.topic))

    @property
    def enforced(self) -> bool:
        return bool(self.enforced_by)

    def unsupported(self, value: Any, cluster: str = "") -> str | None:
        """Why Magnetar cannot honor the value; None if it can.

        `value` is the checked JSON form (`type.check`), or None for a policy that is not set.
        `cluster` names the local cluster: replication to it alone asks for nothing. If it is
        unknown, a single cluster counts as the local one.
        """
        if value is None or self.limitation is None or not self.limitation.asks(value, cluster):
            return None
        return self.limitation.text


UNLIMITED: Final = -1
"""In retention and quotas; in rates and caps 0 or less means: none."""
