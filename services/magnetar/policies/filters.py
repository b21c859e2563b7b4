"""The policy of entry filters, and the registry of the filters that it may name. Pure.

A filter is one of those below: no code is loaded. Its parameters are in the policy, for every
subscription, and in the properties of a subscription, for that one. All filters, and all
parameters, must accept a message.

| filter | parameter | accepts a message if |
|---|---|---|
| `properties` | `filter.property.NAME` | its property NAME has this value |
| `expression` | `filter.expression` | the expression is true (`selector`) |

A filter without parameters accepts every message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.policies.policy import Policy, Rest
from magnetar.policies.selector import Message, SelectorInvalid, parse
from magnetar.policies.types import Field, MapOf, Record, Text

EXPRESSION: Final = "filter.expression"
PROPERTY: Final = "filter.property."

Predicate = Callable[[Message], bool]
Parameters = Mapping[str, str]

NAMES_EMPTY: Final = (
    "entryFilterNames can't be empty. To remove entry filters use the remove method."
)


class FilterInvalid(ValueError):
    """A filter is unknown, or its parameters cannot be used."""


def _properties(parameters: Parameters) -> Predicate | None:
    """Returns the filter `properties`."""
    wanted = {
        key.removeprefix(PROPERTY): value
        for key, value in parameters.items()
        if key.startswith(PROPERTY)
    }
    if not wanted:
        return None
    return lambda message: all(
        message.properties.get(name) == value for name, value in wanted.items()
    )


def _expression(parameters: Parameters) -> Predicate | None:
    """Returns the filter `expression`."""
    expression = parameters.get(EXPRESSION, "").strip()
    if not expression:
        return None
    try:
        return parse(expression)
    except SelectorInvalid as error:
        raise FilterInvalid(f"{EXPRESSION} cannot be parsed: {error}") from error


FILTERS: Final[Mapping[str, Callable[[Parameters], Predicate | None]]] = {
    "properties": _properties,
    "expression": _expression,
}
"""The filters by name; each returns None if its parameters accept every message."""


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """The filters of a topic, by the policy."""

    names: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> "FilterSpec | None":
        """Returns the filters that a policy's value names; None without."""
        names = names_of(value)
        if not names:
            return None
        parameters = (value or {}).get("parameters") or {}
        return cls(names, tuple(sorted(parameters.items())))

    def predicate(self, properties: Parameters) -> Predicate | None:
        """Returns whether a message is accepted; None if every one is. Raises FilterInvalid.

        `properties` are those of the subscription.
        """
        parts = [
            part
            for name in self.names
            for parameters in (dict(self.parameters), properties)
            if (part := _filter(name)(parameters)) is not None
        ]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else lambda message: all(part(message) for part in parts)


def names_of(value: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the names in a policy's value, which are separated by commas."""
    names = str((value or {}).get("entryFilterNames") or "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def check(value: Mapping[str, Any]) -> None:
    """Raises FilterInvalid, with Pulsar's text if it has one, for a value that cannot be used."""
    spec = FilterSpec.of(value)
    if spec is None:
        raise FilterInvalid(NAMES_EMPTY)
    for key, _ in spec.parameters:
        if key != EXPRESSION and not (key.startswith(PROPERTY) and key != PROPERTY):
            raise FilterInvalid(
                f"{key} is no parameter of an entry filter: use {EXPRESSION} or {PROPERTY}NAME"
            )
    spec.predicate({})


def _filter(name: str) -> Callable[[Parameters], Predicate | None]:
    if name not in FILTERS:
        raise FilterInvalid(f"Entry filter '{name}' not found")
    return FILTERS[name]


ENTRY_FILTERS: Final = Policy(
    name="entry_filters",
    manifest="entryFilters",
    type=Record(
        (
            Field("entryFilterNames", Text(), "Names of filters, separated by commas: "
                  f"{', '.join(FILTERS)}.", default="", manifest="names"),
            Field("parameters", MapOf(Text(), Text()), "Parameters for all subscriptions: "
                  f"{EXPRESSION}, {PROPERTY}NAME.", default=None),
        )
    ),
    default=None,
    text="Filters that messages must pass before they are delivered; rejected messages are "
    "acknowledged. Properties of a subscription are further parameters.",
    enforced_by="magnetar.broker.dispatch.filtering",
    broker_setting="entry_filters",
    document="entryFilters",
    invalid_status=400,
    namespace=Rest("entryFilters"),
    topic=Rest("entryFilters"),
)  # fmt: skip
