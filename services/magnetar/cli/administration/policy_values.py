"""Values of policies as people type them: JSON, texts with units, and `FIELD=VALUE` of records."""

import json
from collections.abc import Sequence
from typing import Any

from magnetar.cli.administration.calls import WrongArgument
from magnetar.cli.perf.flags import size
from magnetar.core.relative_time import duration_s
from magnetar.policies.policy import Level, Policy, Rest
from magnetar.policies.registry import BY_MANIFEST, BY_NAME, at, rest_of
from magnetar.policies.types import Boolean, Integer, MapOf, PolicyInvalid, Record, Unit


def policy_of(name: str, level: Level) -> tuple[Policy, Rest]:
    """Returns the policy of a name, and its paths at the level; raises WrongArgument."""
    policy = BY_MANIFEST.get(name) or BY_NAME.get(name)
    rest = None if policy is None else rest_of(policy, level)
    if policy is None or rest is None:
        known = ", ".join(sorted(item.manifest for item in at(level)))
        raise WrongArgument(f"{name!r} is not a policy of a {level.value}; these are: {known}")
    return policy, rest


def parsed(policy: Policy, rest: Rest, words: Sequence[str]) -> Any:
    """Returns the value of a policy as its REST path takes it; raises WrongArgument."""
    kind = policy.type
    if rest.keyed_by and isinstance(kind, MapOf):
        kind = kind.value
    try:
        return kind.check(_value(kind, words), policy.manifest)
    except PolicyInvalid as error:
        raise WrongArgument(str(error)) from None


def _value(kind: Any, words: Sequence[str]) -> Any:
    text = " ".join(words)
    if isinstance(kind, Record) and text[:1] != "{":
        names = {field.manifest_name: field for field in kind.fields}
        names |= {field.name: field for field in kind.fields}
        value = {}
        for word in words:
            name, equals, part = word.partition("=")
            if not equals or name not in names:
                known = ", ".join(field.manifest_name for field in kind.fields)
                raise WrongArgument(f"{word!r} is not FIELD=VALUE; the fields are {known}")
            value[names[name].name] = _scalar(names[name].type, part)
        return value
    return _scalar(kind, text)


def _scalar(kind: Any, text: str) -> Any:
    if isinstance(kind, Boolean) and text in ("on", "off"):
        return text == "on"
    if isinstance(kind, Integer) and not text.lstrip("-").isdigit():
        return _with_unit(kind, text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_unit(kind: Integer, text: str) -> int:
    try:
        if kind.unit is Unit.MINUTES:
            return -(-duration_s(text) // 60)
        if kind.unit is Unit.SECONDS:
            return duration_s(text)
        if kind.unit is Unit.MILLISECONDS:
            return duration_s(text) * 1000
        if kind.unit is Unit.MEBIBYTES:
            return -(-size(text.removesuffix("i")) // (1 << 20))
        if kind.unit in (Unit.BYTES, Unit.BYTES_PER_SECOND):
            return size(text.removesuffix("i"))
    except Exception as error:  # noqa: BLE001  # of two parsers, whose texts say what is wrong
        raise WrongArgument(str(error)) from None
    raise WrongArgument(f"{text!r} is not a whole number")
