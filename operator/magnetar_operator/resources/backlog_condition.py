"""The condition BacklogGrowing of a Topic or a Subscription, by the last backlog analysis. Pure.

True where more comes than is consumed (Growing), nothing is consumed (Stalled), or a cursor cannot
be read (Unreadable); False where the analysis tells that this is not so; none where it does not
tell, or is older than ANALYSIS_AGE_S_MAX. An analysis names the subscriptions that are furthest
behind and what needs attention most; who is not among them is known to be well only where nobody
else can be unwell.

Messages tell when the analysis was made, not how old it is: they change only with a new one, so a
look that finds nothing new writes nothing.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar.core.names import PARTITION_SUFFIX
from magnetar_operator.resources.resource_status import Condition, timestamp
from magnetar_operator.resources.targets import SUBSCRIPTION, TOPIC, Target

BACKLOG_GROWING: Final = "BacklogGrowing"
ANALYSIS_AGE_S_MAX: Final = 7_200.0
"""An older analysis tells nothing about now. Run the job at least every hour."""
NAMED_MAX: Final = 3
"""Subscriptions that a message names."""

_REASONS: Final = {"unreadable": "Unreadable", "growing": "Growing", "stalled": "Stalled"}
"""By trend or kind of finding, the worst first."""
_UNKNOWN: Final = "unknown"


class _Behind(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    subscription: str
    entries: int | None = None
    bytes: int | None = None
    trend: str = _UNKNOWN
    growth_per_second: float | None = None


class _Noticed(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    topic: str
    subscription: str = ""


class _Analysis(msgspec.Struct, frozen=True, rename="camel"):
    """What of a broker's answer is read here."""

    at_ms: int
    behind: int | None = None
    growing: int | None = None
    stalled: int | None = None
    unreadable: int | None = None
    unknown: int | None = None
    worst: list[_Behind] = []
    findings: list[_Noticed] = []


@dataclass(frozen=True, slots=True)
class _Known:
    """A subscription of a topic or partition that the analysis names."""

    topic: str
    subscription: str
    trouble: str
    """Of _REASONS; empty: none."""
    figures: _Behind | None


def backlog_growing(
    target: Target, document: Mapping[str, Any], now: datetime.datetime
) -> Condition | None:
    """`document` is what the brokers answered; empty where they did not."""
    if target.kind not in (TOPIC, SUBSCRIPTION) or not document:
        return None
    try:
        analysis = msgspec.convert(document, _Analysis)
        at = datetime.datetime.fromtimestamp(analysis.at_ms / 1000, datetime.UTC)
    except (msgspec.ValidationError, ValueError, OverflowError, OSError):
        return None
    if (now - at).total_seconds() > ANALYSIS_AGE_S_MAX:
        return None
    named = _named(analysis)
    own = [one for one in named if _is_of(target, one.topic, one.subscription)]
    troubled = [one for one in own if one.trouble]
    if troubled:
        return _growing(troubled, at)
    if any(one.figures is not None and one.figures.trend == _UNKNOWN for one in own):
        return None
    if not (_is_all_of(target, own) or _is_complete(analysis, named)):
        return None
    return Condition(BACKLOG_GROWING, False, "NotGrowing", "by the last backlog analysis")


def _named(analysis: _Analysis) -> list[_Known]:
    """Each once, with its figures where there are any."""
    noticed = {
        (one.topic, one.subscription): one.kind for one in analysis.findings if one.kind in _REASONS
    }
    named = []
    for row in analysis.worst:
        kind = noticed.pop((row.topic, row.subscription), "")
        trouble = kind or (row.trend if row.trend in _REASONS else "")
        named.append(_Known(row.topic, row.subscription, trouble, row))
    named += [_Known(topic, name, kind, None) for (topic, name), kind in noticed.items()]
    return named


def _is_of(target: Target, topic: str, subscription: str) -> bool:
    if target.subscription and subscription != target.subscription:
        return False
    if topic == target.name:
        return True
    base, found, index = topic.rpartition(PARTITION_SUFFIX)
    return bool(found) and base == target.name and index.isdecimal()


def _is_all_of(target: Target, own: Iterable[_Known]) -> bool:
    """Whether nothing else can be said of it: a subscription of a topic without partitions."""
    return target.kind == SUBSCRIPTION and any(one.topic == target.name for one in own)


def _is_complete(analysis: _Analysis, named: list[_Known]) -> bool:
    """Whether all who are behind are named, or all who are in trouble and the rest are not."""
    if analysis.behind is not None and len(analysis.worst) >= analysis.behind:
        return True
    counts = (analysis.growing, analysis.stalled, analysis.unreadable)
    if analysis.unknown != 0 or None in counts:
        return False
    return sum(bool(one.trouble) for one in named) >= sum(count or 0 for count in counts)


def _growing(troubled: list[_Known], at: datetime.datetime) -> Condition:
    order = list(_REASONS)
    # Sorted by what is wrong alone: figures are the largest first already.
    troubled = sorted(troubled, key=lambda one: order.index(one.trouble))
    texts = [_told(one) for one in troubled[:NAMED_MAX]]
    if len(troubled) > NAMED_MAX:
        texts.append(f"and {len(troubled) - NAMED_MAX:,} more")
    message = f"{'; '.join(texts)} (backlog analysis of {timestamp(at)})"
    return Condition(BACKLOG_GROWING, True, _REASONS[troubled[0].trouble], message)


def _told(one: _Known) -> str:
    text = f"subscription {one.subscription} of {one.topic} "
    text += {"unreadable": "cannot be read", "growing": "grows", "stalled": "is stalled"}[
        one.trouble
    ]
    figures = one.figures
    if figures is None or figures.entries is None:
        return text
    text += f": {figures.entries:,} entries"
    if figures.bytes is not None:
        text += f", {figures.bytes:,} bytes"
    if figures.growth_per_second is not None:
        text += f", {figures.growth_per_second:+,.1f} entries/s"
    return text
