"""The schema of `spec.policies` of a Namespace or a Topic, from the registry of policies. Pure.

Durations and sizes are integer or text (`x-kubernetes-int-or-string`), with a pattern that takes
the units `values` understands. The range of a number that carries a unit is checked by `values`:
OpenAPI cannot say it. Rules of records become `x-kubernetes-validations`.
"""

from types import MappingProxyType
from typing import Any, Final

from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import at, rest_of
from magnetar.policies.types import (
    INT32_MAX,
    ITEMS_MAX,
    TEXT_CHARACTERS_MAX,
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    Record,
    Text,
    Type,
    Unit,
)
from magnetar_operator.models.values import UNIT_WORDS, format_duration, format_size, suffixes

Schema = dict[str, Any]

WRITTEN_CHARACTERS_MAX: Final = 24
KEY_CHARACTERS_MAX: Final = 256
EXAMPLES: Final = MappingProxyType(
    {
        Unit.MILLISECONDS: "500ms, 90s or 10m",
        Unit.SECONDS: "90s, 12h or 7d",
        Unit.MINUTES: "10m, 12h or 7d",
    }
)
"""Only what the unit can hold."""


def of_policies(level: Level) -> Schema:
    """One property for each policy of the level."""
    properties = {one.manifest: of_policy(one, level) for one in at(level)}
    return {"type": "object", "properties": dict(sorted(properties.items()))}


def of_policy(policy: Policy, level: Level) -> Schema:
    """The schema of one, with all that is known of it in the description."""
    if rest_of(policy, level) is None:
        raise ValueError(f"{policy.manifest} is no policy of a {level.value}")
    said = [*_units(policy.type), policy.text, *_meanings(policy.type)]
    if level is Level.TOPIC and policy.namespace is not None:
        said.append("Default: what the namespace says.")
    elif policy.broker_setting:
        said.append(f"Default: the broker's {policy.broker_setting}.")
    elif policy.default is not None:
        said.append(f"Default: {shown(policy.type, policy.default)}.")
    schema = of_type(policy.type)
    if (limitation := policy.limitation) is not None:
        said.append(f"{limitation.text[0].upper()}{limitation.text[1:]}.")
        refusal = {"rule": limitation.cel, "message": limitation.text}
        schema["x-kubernetes-validations"] = [*schema.get("x-kubernetes-validations", ()), refusal]
    return {"description": " ".join(said), **schema}


def shown(kind: Type, value: object) -> str:
    """A value as a manifest would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(kind, Integer) and isinstance(value, int) and suffixes(kind.unit):
        return str((format_duration if kind.unit.is_duration else format_size)(value, kind.unit))
    return str(value)


def of_type(kind: Type) -> Schema:
    """Without a description."""
    match kind:
        case Integer():
            return _integer(kind)
        case Number():
            return {"type": "number", "minimum": kind.low}
        case Boolean():
            return {"type": "boolean"}
        case Text():
            schema: Schema = {"type": "string", "maxLength": TEXT_CHARACTERS_MAX}
            return schema | ({"pattern": f"^(?:{kind.pattern})$"} if kind.pattern else {})
        case Choice():
            return {"type": "string", "enum": sorted(kind.meanings)}
        case ListOf():
            item = of_type(kind.item)
            if item["type"] == "string":
                item["maxLength"] = min(
                    item.get("maxLength", KEY_CHARACTERS_MAX), KEY_CHARACTERS_MAX
                )
            return {
                "type": "array",
                "items": item,
                "maxItems": ITEMS_MAX,
                "x-kubernetes-list-type": "set",
            }
        case MapOf():
            return _map(kind)
        case Record():
            return _record(kind)


def _integer(kind: Integer) -> Schema:
    known = suffixes(kind.unit)
    ends: Schema = {"minimum": kind.low}
    if kind.high <= INT32_MAX:
        ends["maximum"] = kind.high
    if not known:
        return {"type": "integer", "format": "int64", **ends}
    number = "[1-9][0-9]{0,18}" if kind.low > 0 else "(0|[1-9][0-9]{0,18})"
    unlimited = "-1|" if kind.low < 0 else ""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "pattern": f"^({unlimited}{number}({'|'.join(known)})?)$",
        "maxLength": WRITTEN_CHARACTERS_MAX,
        **ends,
    }


def _map(kind: MapOf) -> Schema:
    if isinstance(kind.key, Choice):
        return {
            "type": "object",
            "properties": {
                name: {"description": f"Limits {meaning}.", **of_type(kind.value)}
                for name, meaning in sorted(kind.key.meanings.items())
            },
        }
    return {
        "type": "object",
        "additionalProperties": of_type(kind.value),
        "maxProperties": ITEMS_MAX,
    }


def _record(kind: Record) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {
            one.manifest_name: _described(one)
            for one in sorted(kind.fields, key=lambda one: one.manifest_name)
        },
    }
    required = sorted(one.manifest_name for one in kind.fields if one.required)
    if required:
        schema["required"] = required
    if kind.rules:
        schema["x-kubernetes-validations"] = [
            {"rule": one.cel, "message": one.text} for one in kind.rules
        ]
    return schema


def _described(field: Field) -> Schema:
    said = [*_units(field.type), field.text, *_meanings(field.type)]
    if not field.required and field.default is not None:
        said.append(f"Default: {shown(field.type, field.default)}.")
    return {"description": " ".join(said), **of_type(field.type)}


def _units(kind: Type) -> list[str]:
    """How a number of the type is written, where it may have a unit.

    Said first: `kubectl explain` has no name for what is a number or a text.
    """
    if not isinstance(kind, Integer) or not suffixes(kind.unit):
        return []
    word = UNIT_WORDS[kind.unit]
    if kind.unit in EXAMPLES:
        return [f"Duration ({EXAMPLES[kind.unit]}) or a number of {word}."]
    return [f"Size (512Mi or 10Gi) or a number of {word}."]


def _meanings(kind: Type) -> list[str]:
    """What each text of a choice means."""
    if isinstance(kind, ListOf):
        return _meanings(kind.item)
    if not isinstance(kind, Choice):
        return []
    return ["; ".join(f"{name}: {meaning}" for name, meaning in kind.meanings.items()) + "."]
