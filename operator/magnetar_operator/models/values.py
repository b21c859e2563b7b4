"""Values of policies as people write them in manifests, and as the admin REST takes them. Pure.

`7d`, `90s`, `500ms` for durations, `10Gi`, `512Mi`, `5G` for sizes, or a bare number in the
policy's own unit (docs/policies.md); -1, as number or text, is "no limit" where the policy has it.
Nothing is rounded: what the policy's unit cannot hold exactly (90 seconds in minutes) is refused
with `PolicyInvalid`, which names the field and the nearest values that can be held. What
`from_rest` writes, `to_rest` reads back to the same JSON.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import BY_MANIFEST, at, rest_of
from magnetar.policies.types import (
    Integer,
    ListOf,
    MapOf,
    PolicyInvalid,
    Record,
    Type,
    Unit,
    below,
)

ROOT: Final = "spec.policies"

DURATIONS_MS: Final = MappingProxyType(
    {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
)
SIZES_BYTES: Final = MappingProxyType(
    {
        **{unit: 1_000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
        **{unit: 1_024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
    }
)
UNITS_MS: Final = MappingProxyType(
    {Unit.MILLISECONDS: 1, Unit.SECONDS: 1_000, Unit.MINUTES: 60_000}
)
UNITS_BYTES: Final = MappingProxyType(
    {Unit.BYTES: 1, Unit.BYTES_PER_SECOND: 1, Unit.MEBIBYTES: 1_048_576}
)
UNIT_WORDS: Final = MappingProxyType(
    {
        Unit.SECONDS: "seconds",
        Unit.MINUTES: "minutes",
        Unit.MILLISECONDS: "milliseconds",
        Unit.BYTES: "bytes",
        Unit.MEBIBYTES: "MiB",
        Unit.MESSAGES: "messages",
        Unit.MESSAGES_PER_SECOND: "messages per second",
        Unit.BYTES_PER_SECOND: "bytes per second",
    }
)
_WRITTEN: Final = re.compile(r"(-1|0|[1-9][0-9]{0,18})|(0|[1-9][0-9]{0,18})([a-zA-Z]{1,2})")


def suffixes(unit: Unit) -> Mapping[str, int]:
    """What may stand behind a number of that unit, and how much of `scale(unit)` it is."""
    if unit in UNITS_MS:
        return DURATIONS_MS
    return SIZES_BYTES if unit in UNITS_BYTES else {}


def scale(unit: Unit) -> int:
    """One of the unit, in milliseconds or bytes."""
    return UNITS_MS.get(unit) or UNITS_BYTES.get(unit) or 1


def parse_duration(value: object, unit: Unit = Unit.SECONDS, where: str = "") -> int:
    """How many of `unit`."""
    return _parse(value, unit, where, "a duration such as 90s, 12h or 7d")


def parse_size(value: object, unit: Unit = Unit.BYTES, where: str = "") -> int:
    """How many of `unit`."""
    return _parse(value, unit, where, "a size such as 512Mi or 10Gi")


def seconds(value: int | str, where: str = "") -> float:
    """Of a field of type `base.Duration`: a bare number counts seconds."""
    if isinstance(value, int):
        return float(value)
    text = value if value[-1:].isalpha() else f"{value}s"
    return parse_duration(text, Unit.MILLISECONDS, where) / 1_000


def format_duration(count: int, unit: Unit = Unit.SECONDS) -> int | str:
    """In the largest unit that holds it exactly; no limit (-1) and 0 stay numbers."""
    return _format(count, unit, ("d", "h", "m", "s", "ms"))


def format_size(count: int, unit: Unit = Unit.BYTES) -> int | str:
    """The same for sizes, in powers of 1024."""
    return _format(count, unit, ("Pi", "Ti", "Gi", "Mi", "Ki"))


def _parse(value: object, unit: Unit, where: str, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    written = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        raise PolicyInvalid(where, f"must be {what}, or a number of {UNIT_WORDS[unit]}: {value!r}")
    bare, digits, suffix = written.groups()
    if bare is not None:
        return int(bare)
    known = suffixes(unit)
    if suffix not in known:
        raise PolicyInvalid(
            where, f"must end in one of {', '.join(known)}, or in no letter: {value!r}"
        )
    count, rest = divmod(int(digits) * known[suffix], scale(unit))
    if rest:
        shown = format_duration if unit.is_duration else format_size
        raise PolicyInvalid(
            where,
            f"{value} is no whole number of {UNIT_WORDS[unit]}; the nearest are "
            f"{shown(count, unit)} and {shown(count + 1, unit)}",
        )
    return count


def _format(count: int, unit: Unit, largest_first: tuple[str, ...]) -> int | str:
    if count <= 0:
        return count
    amount, known = count * scale(unit), suffixes(unit)
    for suffix in largest_first:
        number, rest = divmod(amount, known[suffix])
        if not rest:
            return f"{number}{suffix}"
    return count


def to_rest(policy: Policy, value: object, where: str = "") -> Any:
    """The JSON that REST takes, checked and with the defaults of absent fields."""
    where = where or below(ROOT, policy.manifest)
    return policy.type.check(_to_rest(policy.type, value, where), where)


def from_rest(policy: Policy, value: object) -> Any:
    """What a manifest would say for JSON that REST gave; fields that are unknown are left out."""
    return _from_rest(policy.type, value)


def all_to_rest(level: Level, policies: Mapping[str, object]) -> dict[str, Any]:
    """Of `spec.policies`: the JSON by `Policy.name`, in the registry's order."""
    known = at(level)
    for name in policies:
        policy = BY_MANIFEST.get(name)
        if policy is None or rest_of(policy, level) is None:
            raise PolicyInvalid(
                below(ROOT, name),
                f"is no policy of a {level.value}; there are "
                + ", ".join(one.manifest for one in known),
            )
    return {
        one.name: to_rest(one, policies[one.manifest]) for one in known if one.manifest in policies
    }


def _to_rest(kind: Type, value: object, where: str) -> Any:
    match kind:
        case Integer():
            return _integer(kind, value, where)
        case ListOf() if isinstance(value, list):
            return [_to_rest(kind.item, one, f"{where}[{at}]") for at, one in enumerate(value)]
        case MapOf() if isinstance(value, dict):
            return {
                name: _to_rest(kind.value, one, below(where, name)) for name, one in value.items()
            }
        case Record() if isinstance(value, dict):
            return _record(kind, value, where)
    return kind.check(value, where)


def _record(kind: Record, value: dict[str, object], where: str) -> dict[str, Any]:
    names = {one.manifest_name: one for one in kind.fields}
    for name in value:
        if name not in names:
            raise PolicyInvalid(below(where, name), f"is not known; there are {', '.join(names)}")
    built: dict[str, Any] = {}
    for name, one in names.items():
        given = value.get(name)
        if given is not None:
            built[one.name] = _to_rest(one.type, given, below(where, name))
        elif one.required:
            raise PolicyInvalid(below(where, name), "must be there")
    return built


def _integer(kind: Integer, value: object, where: str) -> int:
    if kind.unit in UNITS_MS:
        value = parse_duration(value, kind.unit, where)
    elif kind.unit in UNITS_BYTES:
        value = parse_size(value, kind.unit, where)
    try:
        return kind.check(value, where)
    except PolicyInvalid as error:
        if not kind.unit.value:
            raise
        raise PolicyInvalid(where, f"{error.text} (in {UNIT_WORDS[kind.unit]})") from None


def _from_rest(kind: Type, value: object) -> Any:
    match kind:
        case Integer() if isinstance(value, int) and kind.unit in UNITS_MS:
            return format_duration(value, kind.unit)
        case Integer() if isinstance(value, int) and kind.unit in UNITS_BYTES:
            return format_size(value, kind.unit)
        case ListOf() if isinstance(value, list):
            return [_from_rest(kind.item, one) for one in value]
        case MapOf() if isinstance(value, dict):
            return {name: _from_rest(kind.value, one) for name, one in value.items()}
        case Record() if isinstance(value, dict):
            return {
                one.manifest_name: _from_rest(one.type, value[one.name])
                for one in kind.fields
                if value.get(one.name) is not None
            }
    return value
