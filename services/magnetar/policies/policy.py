"""The declaration of a policy: levels, names in REST and manifests, and the enforcing module.

A topic's value precedes its namespace's, and that the broker's (Pulsar's hierarchy). A policy that
is not set has its default: the broker's setting if the policy names one, else `default`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from magnetar.policies.types import Type


class Level(Enum):
    """A level at which a policy can be set."""

    NAMESPACE = "namespace"
    TOPIC = "topic"


class Unset(Enum):
    """REST's answer to a GET of a policy that is not set; Pulsar differs between policies."""

    EMPTY_200 = "200, no body"
    NO_CONTENT = "204"
    VALUE = "200 and the default"


@dataclass(frozen=True, slots=True)
class Rest:
    """The REST paths `…/{path}` below a namespace or a topic: GET, `set_verb`, DELETE."""

    path: str
    set_verb: str = "POST"
    remove_path: str = ""
    """The path of DELETE, if it differs from `path` (`removeBacklogQuota`)."""
    remove_verb: str = "DELETE"
    set_path: str = ""
    """The path of the setter, if it differs (`backlogQuota` sets what `backlogQuotaMap` gets)."""
    unset: Unset = Unset.EMPTY_200
    keyed_by: str = ""
    """The query parameter that selects the map's entry to set or remove (`backlogQuotaType`)."""
    query: str = ""
    """The query parameter that contains the value if there is no body."""
    implied: object = None
    """The value that the setter stores: it takes none (`…/x` switches x on)."""
    done: int = 204
    """The status of a successful setter."""
    empty_removes: bool | None = None
    """Whether a missing or null value removes the policy; None: if the type is a record or a
    choice."""

    invalid: str = ""
    """Pulsar's whole text for a value out of range, if it differs from its usual form."""

    @property
    def setting_path(self) -> str:
        """The path of the setter."""
        return self.set_path or self.path

    @property
    def removing_path(self) -> str:
        """The path of DELETE."""
        return self.remove_path or self.path


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The values of a policy that Magnetar stores but does not honor."""

    asks: Callable[[Any, str], bool]
    """Whether a checked value needs an unsupported feature. The second argument is the name of the
    local cluster, empty if it is unknown."""
    text: str
    """The unsupported feature, and the accepted value."""
    cel: str
    """A CEL expression over `self`, the value in a manifest, that is true for accepted values. The
    API server does not know the local cluster, so it may accept more than `asks` does."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: its type and default, where it can be set, and which module enforces it."""

    name: str
    """Magnetar's name, in snake_case; the key under which a topic's policies are stored."""
    manifest: str
    """The field under `spec.policies` of a Namespace or Topic resource."""
    type: Type
    default: object
    """The value if neither topic, namespace nor broker set one; None: no value."""
    text: str
    """The effect of the policy, in a sentence or two for users."""
    enforced_by: str = ""
    """The module that enforces the policy; empty: it is stored and returned, but has no effect."""
    limitation: Unsupported | None = None
    """The values that need more than Magnetar supports; required for a policy without
    `enforced_by`. `unsupported` applies it."""
    broker_setting: str = ""
    """The field of BrokerSettings with its default."""
    document: str = ""
    """The field of the namespace's document, if a namespace can have the policy."""
    by_cluster: bool = False
    """Whether that field has a value per cluster."""
    undefined: object = None
    """A value that means the same as no value."""
    undefined_on_topic: bool = True
    """Whether `undefined` also means "not set" on a topic; otherwise it overrides the namespace."""
    namespace: Rest | None = None
    topic: Rest | None = None
    invalid: str = ""
    """The beginning of Pulsar's text for an invalid value; by default, its field's name."""
    invalid_status: int = 412
    """The status for a value out of range or against a rule; for a wrong type it is 400."""
    loses_data: bool = False
    """Whether a lower value may delete messages; `magnetar plan` predicts which."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels at which the policy can be set."""
        levels = []
        if self.namespace is not None:
            levels.append(Level.NAMESPACE)
        if self.topic is not None:
            levels.append(Level.TOPIC)
        return tuple(levels)

    def undefined_at(self, level: Level) -> object:
        """Returns the value that means the same as no value at that level; None: there is none."""
        return self.undefined if level is Level.NAMESPACE or self.undefined_on_topic else None

    @property
    def keyed(self) -> bool:
        """Whether the policy is a map whose entries are set and resolved one by one."""
        return any(rest is not None and rest.keyed_by for rest in (self.namespace, self.topic))

    @property
    def enforced(self) -> bool:
        """Whether any module enforces the policy."""
        return bool(self.enforced_by)

    def unsupported(self, value: Any, cluster: str = "") -> str | None:
        """Returns why Magnetar cannot honor the value, None if it can.

        `value` is the checked JSON form (`type.check`), or None for a policy that is not set.
        `cluster` is the local cluster's name: replication to it alone needs no support. If the name
        is unknown, a single cluster counts as the local one.
        """
        if value is None or self.limitation is None or not self.limitation.asks(value, cluster):
            return None
        return self.limitation.text


UNLIMITED: Final = -1
"""No limit, in retention and quotas. In rates and caps, 0 or less means no limit."""
