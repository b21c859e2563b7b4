"""`magnetar config policies`: the source of `docs/policies.md`, made from their registry."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from magnetar.broker.setting import settings_of
from magnetar.cli.roles import ROLES
from magnetar.policies.policy import Level, Policy, Rest, Unset
from magnetar.policies.registry import GROUPS
from magnetar.policies.types import (
    INT32_MAX,
    INT64_MAX,
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
)

_INTRO: Final = """\
# Policies

Made by `make docs` from the registry (`services/magnetar/policies`); do not edit.

What a namespace or a topic is told to do. A topic's own policy goes over its namespace's, that over
the broker's setting, that over the default here. A change holds within moments on every broker that
serves such a topic, without a restart; what a topic stores itself goes with it when it is deleted.
Those of a partitioned topic are set on the topic and hold for each partition.

Over REST, paths are below `/admin/v2/namespaces/{tenant}/{namespace}/` and
`/admin/v2/persistent/{tenant}/{namespace}/{topic}/`, as in Pulsar, so that `pulsar-admin` and all
other clients set them:

- GET answers what is set there; with `?applied=true` what holds, also where it is not set.
- POST or PUT sets it: the body is the value as JSON.
- DELETE removes it: what is above it holds again.
- With `?isGlobal=true` a topic's value is that for all clusters; it is kept apart, and this
  cluster's own goes before it.
- A value that is not valid is refused (400 or 412) with the field and what would be right. A
  retention that is set must exceed the backlog quota, whichever of the two is changed (412).

In manifests (`spec.policies` of a Namespace or Topic, [crds.md](crds.md)) durations and sizes are
written with their unit: `7d`, `10Gi`.

"Kept and shown" says that nothing acts on a policy yet: it is stored, checked and answered, so that
tools work, and has no effect. A manifest that asks for what such a policy does is refused.
"""

_RATES: Final = {INT32_MAX: "2³¹-1", INT64_MAX: "2⁶³-1"}
_LEVELS: Final = {Level.NAMESPACE: "namespace", Level.TOPIC: "topic"}
_UNSET: Final = {
    Unset.EMPTY_200: "200 without a body",
    Unset.NO_CONTENT: "204",
    Unset.VALUE: "200 and the default",
}


def policies_page() -> str:
    """The whole page."""
    parts = [_INTRO.rstrip(), "", *_overview()]
    for group, policies in GROUPS.items():
        parts += ["", f"## {group}"]
        for policy in policies:
            parts += ["", *_section(policy)]
    return "\n".join(parts) + "\n"


def _overview() -> Iterable[str]:
    yield "| Policy | In manifests | Namespace | Topic | Enforced |"
    yield "|---|---|---|---|---|"
    for policies in GROUPS.values():
        for policy in policies:
            enforced = "yes" if policy.enforced else "refused"
            paths = [f"`{rest.path}`" if rest else "" for rest in (policy.namespace, policy.topic)]
            yield (
                f"| [{policy.name}](#{policy.name}) | `{policy.manifest}` | {paths[0]} "
                f"| {paths[1]} | {enforced} |"
            )


def _section(policy: Policy) -> Iterable[str]:
    yield f"### {policy.name}"
    yield ""
    yield policy.text + (" A lower value may delete messages." if policy.loses_data else "")
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| Value | {type_text(policy.type)} |"
    yield f"| Default | {_default_text(policy)} |"
    if keys := list(_broker_keys(policy)):
        yield f"| Broker's setting | {', '.join(keys)} |"
    for level, rest in ((Level.NAMESPACE, policy.namespace), (Level.TOPIC, policy.topic)):
        if rest is not None:
            yield f"| REST, {_LEVELS[level]} | {_rest_text(rest)} |"
    if policy.namespace is not None and policy.document:
        kept = " (by cluster)" if policy.by_cluster else ""
        yield f"| In the namespace's document | `{policy.document}`{kept} |"
    yield f"| In manifests | `spec.policies.{policy.manifest}` |"
    yield f"| Enforced by | {_enforced_text(policy)} |"
    if fields := list(_fields(policy.type)):
        yield ""
        yield "| Field | In manifests | Value | Default | Meaning |"
        yield "|---|---|---|---|---|"
        for one in fields:
            yield (
                f"| `{one.name}` | `{one.manifest_name}` | {type_text(one.type)} "
                f"| {_field_default(one)} | {one.text} |"
            )
    for words, meanings in _choices(policy):
        yield ""
        yield f"{words}: " + "; ".join(f"`{word}`, {text}" for word, text in meanings) + "."


def type_text(kind: Type) -> str:
    """A type in words: what is allowed, with its unit."""
    match kind:
        case Integer() | Number():
            number = "a whole number" if isinstance(kind, Integer) else "a number"
            unit = f" of {kind.unit.value}" if kind.unit.value else ""
            return f"{number}{unit}, {_bounds(kind.low, kind.high)}"
        case Boolean():
            return "`true` or `false`"
        case Text():
            return f"a text that matches `{kind.pattern}`" if kind.pattern else "a text"
        case Choice():
            return "one of " + ", ".join(f"`{word}`" for word in kind.meanings)
        case ListOf():
            return f"a list, each {type_text(kind.item)}"
        case MapOf():
            return f"by {type_text(kind.key)}: {type_text(kind.value)}"
        case Record():
            return "an object: " + ", ".join(f"`{one.name}`" for one in kind.fields)


def _bounds(low: float, high: float) -> str:
    if high == float("inf"):
        return f"{low:g} or more"
    return f"{low} to {_RATES.get(int(high), high)}"


def _fields(kind: Type) -> tuple[Field, ...]:
    if isinstance(kind, MapOf):
        kind = kind.value
    return kind.fields if isinstance(kind, Record) else ()


def _choices(policy: Policy) -> Iterable[tuple[str, Iterable[tuple[str, str]]]]:
    """What the words of a policy mean, with where they stand."""
    found: list[tuple[str, Type]] = [("The value", policy.type)]
    if isinstance(policy.type, MapOf):
        found.append(("Entries", policy.type.key))
    if isinstance(policy.type, ListOf):
        found.append(("Items", policy.type.item))
    found += [(f"`{one.name}`", one.type) for one in _fields(policy.type)]
    for words, kind in found:
        if isinstance(kind, Choice):
            yield words, kind.meanings.items()


def _json(value: Any) -> str:
    return f"`{msgspec.json.encode(value).decode()}`"


def _field_default(one: Field) -> str:
    if one.required:
        return "none: it must be given"
    return "left out" if one.default is None else _json(one.default)


def _default_text(policy: Policy) -> str:
    if policy.broker_setting:
        return "the broker's setting"
    return "none" if policy.default is None else _json(policy.default)


def _broker_keys(policy: Policy) -> Iterable[str]:
    settings = {name: one for cls in ROLES.values() for name, one in settings_of(cls).items()}
    for name in filter(None, (part.strip() for part in policy.broker_setting.split(","))):
        key = settings[name].pulsar_key
        yield f"`{name}`" + (f" (`{key}`)" if key else "")


def _rest_text(rest: Rest) -> str:
    parts = [f"GET `{rest.path}`", f"{rest.set_verb} `{rest.setting_path}`"]
    parts.append(f"{rest.remove_verb} `{rest.removing_path}`")
    text = ", ".join(parts)
    if rest.keyed_by:
        text += f"; the entry that is meant by `?{rest.keyed_by}=`"
    if rest.query:
        text += f"; the value also as `?{rest.query}=`"
    return f"{text}; not set: {_UNSET[rest.unset]}"


def _enforced_text(policy: Policy) -> str:
    refused = f"405: {policy.limitation.text}" if policy.limitation is not None else ""
    if not policy.enforced:
        return f"nothing yet; a value that asks for it is refused with {refused}"
    return f"`{policy.enforced_by}`" + (f"; refused with {refused}" if refused else "")
