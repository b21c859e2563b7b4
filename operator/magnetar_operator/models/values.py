"""Converts values of policies between manifests and the admin REST. Pure: no IO.

Durations are `7d`, `90s` or `500ms`, sizes `10Gi`, `512Mi` or `5G`; a bare number is in the
policy's own unit (docs/use/policies.md). -1, as number or text, means "no limit" if the policy
allows it. Nothing is rounded: a value that the policy's unit cannot hold exactly (90 seconds in
minutes) is refused with `PolicyInvalid`, which names the field and the nearest valid values.
`to_rest` reverses `from_rest`.
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
    """The suffixes for numbers of the unit, with their factors in milliseconds or bytes."""
    if unit in UNITS_MS:
        return DURATIONS_MS
    return SIZES_BYTES if unit in UNITS_BYTES else {}


def scale(unit: Unit) -> int:
    """The size of the unit, in milliseconds or bytes."""
    return UNITS_MS.get(unit) or UNITS_BYTES.get(unit) or 1


def parse_duration(value: object, unit: Unit = Unit.SECONDS, where: str = "") -> int:
    """Parses a duration into a number of `unit`."""
    return _parse(value, unit, where, "a duration such as 90s, 12h or 7d")


def parse_size(value: object, unit: Unit = Unit.BYTES, where: str = "") -> int:
    """Parses a size into a number of `unit`."""
    return _parse(value, unit, where, "a size such as 512Mi or 10Gi")


def seconds(value: int | str, where: str = "") -> float:
    """The seconds of a `base.Duration`, in which a bare number counts seconds."""
    if isinstance(value, int):
        return float(value)
    text = value if value[-1:].isalpha() else f"{value}s"
    return parse_duration(text, Unit.MILLISECONDS, where) / 1_000


def format_duration(count: int, unit: Unit = Unit.SECONDS) -> int | str:
    """A duration in the largest unit that holds it exactly; no limit (-1) and 0 stay numbers."""
    return _format(count, unit, ("d", "h", "m", "s", "ms"))


def format_size(count: int, unit: Unit = Unit.BYTES) -> int | str:
    """A size in the largest unit that holds it exactly, in powers of 1024."""
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
    """The JSON for the REST, checked and with the defaults of absent fields."""
    where = where or below(ROOT, policy.manifest)
    return policy.type.check(_to_rest(policy.type, value, where), where)


def from_rest(policy: Policy, value: object) -> Any:
    """The manifest's form of the REST's JSON; unknown fields are skipped."""
    return _from_rest(policy.type, value)


def all_to_rest(level: Level, policies: Mapping[str, object]) -> dict[str, Any]:
    """The JSON of `spec.policies` by `Policy.name`, in the registry's order."""
    known = at(level)
    for name in policies:
        policy = BY_MANIFEST.get(name)
        if policy is None or rest_of(policy, level) is None:
            raise PolicyInvalid(
                below(ROOT, name),
                f"is no policy of a {level.value}; there are "
                + ", ".join(other.manifest for other in known),
            )
    return {
        policy.name: to_rest(policy, policies[policy.manifest])
        for policy in known
        if policy.manifest in policies
    }


def _to_rest(kind: Type, value: object, where: str) -> Any:
    match kind:
        case Integer():
            return _integer(kind, value, where)
        case ListOf() if isinstance(value, list):
            return [_to_rest(kind.item, item, f"{where}[{at}]") for at, item in enumerate(value)]
        case MapOf() if isinstance(value, dict):
            return {
                name: _to_rest(kind.value, entry, below(where, name))
                for name, entry in value.items()
            }
        case Record() if isinstance(value, dict):
            return _record(kind, value, where)
    return kind.check(value, where)


def _record(kind: Record, value: dict[str, object], where: str) -> dict[str, Any]:
    names = {field.manifest_name: field for field in kind.fields}
    for name in value:
        if name not in names:
            raise PolicyInvalid(below(where, name), f"is not known; there are {', '.join(names)}")
    built: dict[str, Any] = {}
    for name, field in names.items():
        given = value.get(name)
        if given is not None:
            built[field.name] = _to_rest(field.type, given, below(where, name))
        elif field.required:
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
            return [_from_rest(kind.item, item) for item in value]
        case MapOf() if isinstance(value, dict):
            return {name: _from_rest(kind.value, entry) for name, entry in value.items()}
        case Record() if isinstance(value, dict):
            return {
                field.manifest_name: _from_rest(field.type, value[field.name])
                for field in kind.fields
                if value.get(field.name) is not None
            }
    return value
