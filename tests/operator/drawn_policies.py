"""Hypothesis strategies for values of policies as manifests have them, from the policies' types.

Each part is valid by itself (in range, of a whole number of units). The rules between the fields of
a record may hold or not in `manifests`; they hold in `valid`, without filtering what was drawn.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from hypothesis import strategies as st

from magnetar.policies.policy import Policy
from magnetar.policies.types import (
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
from magnetar_operator.models.values import format_duration, format_size, scale, suffixes

SAFE_INTEGER_MAX: Final = 2**53
"""What JSON holds exactly in every program that reads it on the way."""
ITEMS_DRAWN_MAX: Final = 3


def manifests(kind: Type) -> st.SearchStrategy[Any]:
    """Values of a type, as people write them."""
    match kind:
        case Integer():
            return _integers(kind)
        case Number():
            return st.floats(kind.low, 1e6, allow_nan=False) | st.just(kind.low)
        case Boolean():
            return st.booleans()
        case Text():
            return st.from_regex(r"[a-z][-a-z0-9]{0,8}", fullmatch=True)
        case Choice():
            return st.sampled_from(sorted(kind.meanings))
        case ListOf():
            return st.lists(manifests(kind.item), unique=True, max_size=ITEMS_DRAWN_MAX)
        case MapOf():
            return st.dictionaries(
                manifests(kind.key), manifests(kind.value), max_size=ITEMS_DRAWN_MAX
            )
        case Record():
            return _records(kind)


def valid(policy: Policy) -> st.SearchStrategy[Any]:
    """Values of a policy that REST takes: the rules between fields hold as well."""
    return manifests(policy.type).map(_MENDED.get(policy.name, lambda value: value))


def _copies_in_order(value: dict[str, Any]) -> dict[str, Any]:
    names = ("ensembleSize", "writeQuorum", "ackQuorum")
    counts = sorted((value[name] for name in names), reverse=True)
    return value | dict(zip(names, counts, strict=True))


def _both_limits_or_none(value: dict[str, Any]) -> dict[str, Any]:
    limits = [value["time"], value["size"]]
    if any(str(limit).startswith("0") for limit in limits):
        return {"time": 0, "size": 0}
    return value


def _partitions_where_partitioned(value: dict[str, Any]) -> dict[str, Any]:
    count = value.get("defaultNumPartitions", 1)
    rest = {name: one for name, one in value.items() if name != "defaultNumPartitions"}
    match value.get("topicType"):
        case "partitioned":
            return rest | {"defaultNumPartitions": max(1, count)}
        case "non-partitioned":
            return rest
    return value


_MENDED: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "persistence": _copies_in_order,
    "retention": _both_limits_or_none,
    "auto_topic_creation": _partitions_where_partitioned,
}
"""By policy: a drawn value as one for which the rules hold."""


def _records(kind: Record) -> st.SearchStrategy[dict[str, Any]]:
    def named(fields: list[Field]) -> dict[str, st.SearchStrategy[Any]]:
        return {field.manifest_name: manifests(field.type) for field in fields}

    return st.fixed_dictionaries(
        named([field for field in kind.fields if field.required]),
        optional=named([field for field in kind.fields if not field.required]),
    )


def _integers(kind: Integer) -> st.SearchStrategy[int | str]:
    high = min(kind.high, SAFE_INTEGER_MAX)
    counts = st.sampled_from([kind.low, 0, 1, 2, 3, high]) | st.integers(kind.low, high)
    counts = counts.filter(lambda count: kind.low <= count)
    units = suffixes(kind.unit)
    if not units:
        return counts
    shown = format_duration if kind.unit.is_duration else format_size
    whole = [name for name, amount in units.items() if amount % scale(kind.unit) == 0]
    with_suffix = st.builds(
        lambda number, name: (number * units[name] // scale(kind.unit), f"{number}{name}"),
        st.integers(max(kind.low, 0), 20),
        st.sampled_from(whole),
    ).filter(lambda one: one[0] <= high)
    return (
        counts
        | counts.map(str)
        | counts.map(lambda count: shown(count, kind.unit))
        | with_suffix.map(lambda one: one[1])
    )
