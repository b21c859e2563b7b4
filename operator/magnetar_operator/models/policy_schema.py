"""Generates the schema of `spec.policies` of a Namespace or a Topic from the registry. Pure: no IO.

Durations and sizes are integers or texts (`x-kubernetes-int-or-string`), with a pattern for the
units of `values`. OpenAPI cannot express the range of a number with a unit; `values` checks it.
Rules of records become `x-kubernetes-validations`.
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
"""Units that the policy's unit can hold exactly."""


def of_policies(level: Level) -> Schema:
    """One property for each policy of the level."""
    properties = {policy.manifest: of_policy(policy, level) for policy in at(level)}
    return {"type": "object", "properties": dict(sorted(properties.items()))}


def of_policy(policy: Policy, level: Level) -> Schema:
    """The schema of a policy; the description has its units, meanings and default."""
    if rest_of(policy, level) is None:
        raise ValueError(f"{policy.manifest} is no policy of a {level.value}")
    sentences = [*_units(policy.type), policy.text, *_meanings(policy.type)]
    if level is Level.TOPIC and policy.namespace is not None:
        sentences.append("Default: the namespace's policy.")
    elif policy.broker_setting:
        sentences.append(f"Default: the broker's {policy.broker_setting}.")
    elif policy.default is not None:
        sentences.append(f"Default: {shown(policy.type, policy.default)}.")
    schema = of_type(policy.type)
    if (limitation := policy.limitation) is not None:
        sentences.append(f"{limitation.text[0].upper()}{limitation.text[1:]}.")
        refusal = {"rule": limitation.cel, "message": limitation.text}
        schema["x-kubernetes-validations"] = [*schema.get("x-kubernetes-validations", ()), refusal]
    return {"description": " ".join(sentences), **schema}


def shown(kind: Type, value: object) -> str:
    """A value in the form of a manifest."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(kind, Integer) and isinstance(value, int) and suffixes(kind.unit):
        return str((format_duration if kind.unit.is_duration else format_size)(value, kind.unit))
    return str(value)


def of_type(kind: Type) -> Schema:
    """The schema without a description."""
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
            field.manifest_name: _described(field)
            for field in sorted(kind.fields, key=lambda field: field.manifest_name)
        },
    }
    required = sorted(field.manifest_name for field in kind.fields if field.required)
    if required:
        schema["required"] = required
    if kind.rules:
        schema["x-kubernetes-validations"] = [
            {"rule": rule.cel, "message": rule.text} for rule in kind.rules
        ]
    return schema


def _described(field: Field) -> Schema:
    sentences = [*_units(field.type), field.text, *_meanings(field.type)]
    if not field.required and field.default is not None:
        sentences.append(f"Default: {shown(field.type, field.default)}.")
    return {"description": " ".join(sentences), **of_type(field.type)}


def _units(kind: Type) -> list[str]:
    """The notation of a number of the type, if it may have a unit.

    It begins the description, because `kubectl explain` cannot show a type of number or text.
    """
    if not isinstance(kind, Integer) or not suffixes(kind.unit):
        return []
    word = UNIT_WORDS[kind.unit]
    if kind.unit in EXAMPLES:
        return [f"Duration ({EXAMPLES[kind.unit]}) or a number of {word}."]
    return [f"Size (512Mi or 10Gi) or a number of {word}."]


def _meanings(kind: Type) -> list[str]:
    """The meaning of each text of a choice."""
    if isinstance(kind, ListOf):
        return _meanings(kind.item)
    if not isinstance(kind, Choice):
        return []
    return ["; ".join(f"{name}: {meaning}" for name, meaning in kind.meanings.items()) + "."]
