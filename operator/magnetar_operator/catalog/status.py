"""Builds the status of a resource, its conditions, and the Events of its reconcile. Pure: no IO.

BacklogGrowing comes from the namespace's last backlog analysis. It is True if more messages arrive
than are consumed (Growing), if none are consumed (Stalled), or if a cursor cannot be read
(Unreadable). It is False if the analysis shows the opposite, and absent if the analysis is
inconclusive or older than ANALYSIS_AGE_S_MAX. An analysis lists the subscriptions that are furthest
behind and those with the worst problems. Any other subscription counts as healthy only if the
analysis shows that no unlisted one has a problem. The message contains the time of the analysis,
not its age: it changes only with a new analysis, so a reconcile between two analyses writes
nothing.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from magnetar.core.names import PARTITION_SUFFIX
from magnetar.documents.backlog import BacklogRecord, Behind
from magnetar_operator.admin.client import Refused
from magnetar_operator.admin.target import SUBSCRIPTION, TOPIC, Target
from magnetar_operator.catalog.memory import PAUSE_MAX_S
from magnetar_operator.catalog.plan import Action, Plan, Verb
from magnetar_operator.catalog.state import Desired, policy_of
from magnetar_operator.engine.status import POLICY_READY, READY, Condition, conditions, timestamp

Failures = Sequence[tuple[Action, Refused]]


@dataclass(slots=True)
class Verdict:
    """The result of a reconcile: conditions, further status fields, and when to retry."""

    conditions: list[Condition]
    fields: dict[str, Any] = field(default_factory=dict)
    again_soon: bool = False
    """Retry after a growing pause; otherwise reconcile after the resync interval."""
    pause_max_s: float = PAUSE_MAX_S


def verdict(reason: str, message: str, *, holds: bool | None = False, soon: bool = True) -> Verdict:
    """A verdict with the condition Ready alone."""
    return Verdict([Condition(READY, holds, reason, message)], again_soon=soon)


def status(
    before: Mapping[str, Any], result: Verdict, generation: int, now: datetime.datetime
) -> dict[str, Any]:
    """The whole new status, except lastReconciled; fields that `result` lacks stay."""
    after = {**before, **result.fields, "observedGeneration": generation}
    if "plan" not in result.fields:
        after.pop("plan", None)
    # A status is applied as a whole: absent fields are removed, and null is refused.
    after = {name: value for name, value in after.items() if value is not None}
    after["conditions"] = conditions(
        before.get("conditions") or (), result.conditions, generation, now
    )
    return after


@dataclass(frozen=True, slots=True)
class ReconcileEvent:
    """An Event to record."""

    reason: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"


def events(
    target: Target, plan: Plan, done: Sequence[Action], failures: Failures
) -> Iterator[ReconcileEvent]:
    """The Events about repaired drift and refused actions."""
    created = [action for action in done if action.verb is Verb.CREATE and action.drift]
    if created:
        yield ReconcileEvent("Recreated", f"{created[0].text}.", "Warning")
    repaired = [action.text for action in done if action.drift and action.verb is not Verb.CREATE]
    if repaired and not created:
        note = f"Repaired drift of {target}: {'; '.join(repaired)}."
        yield ReconcileEvent("DriftRepaired", note, "Warning")
    for action, error in failures:
        note = f"{action.text}: refused by the cluster: {error.reason}"
        yield ReconcileEvent("Refused", note, "Warning")
    for action in plan.refused:
        yield ReconcileEvent("Refused", action.text, "Warning")


def outcome_conditions(plan: Plan, failures: Failures, desired: Desired) -> list[Condition]:
    """The condition Ready and, if the manifest has policies, PolicyReady."""
    texts = [f"{action.text}: {error.reason}" for action, error in failures]
    refused = [action.text for action in plan.refused] + texts
    ready = Condition(READY, True, "AsSpecified")
    if refused:
        ready = Condition(READY, False, "Refused", "; ".join(refused))
    built = [ready]
    if any(policy_of(name) is not None for name in desired.fields):
        refused_policies = [
            text
            for (action, _), text in zip(failures, texts, strict=True)
            if policy_of(action.field) is not None
        ]
        built.append(
            Condition(POLICY_READY, False, "Refused", "; ".join(refused_policies))
            if refused_policies
            else Condition(POLICY_READY, True, "AsSpecified")
        )
    return built


BACKLOG_GROWING: Final = "BacklogGrowing"
ANALYSIS_AGE_S_MAX: Final = 7_200.0
"""An older analysis is not used. Run the job at least every hour."""
NAMED_MAX: Final = 3
"""The most subscriptions that a message names."""

_REASONS: Final = {"unreadable": "Unreadable", "growing": "Growing", "stalled": "Stalled"}
"""Reasons by trend or kind of finding, the worst first."""
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class _Listed:
    """A subscription of a topic or partition that the analysis lists."""

    topic: str
    subscription: str
    trouble: str
    """A key of _REASONS; empty: no problem."""
    figures: Behind | None


def backlog_growing(
    target: Target, analysis: BacklogRecord | None, now: datetime.datetime
) -> Condition | None:
    """The condition that an analysis shows; None also without an analysis."""
    if target.kind not in (TOPIC, SUBSCRIPTION) or analysis is None:
        return None
    try:
        at = datetime.datetime.fromtimestamp(analysis.at_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    if (now - at).total_seconds() > ANALYSIS_AGE_S_MAX:
        return None
    listed = _listed(analysis)
    own = [entry for entry in listed if _is_of(target, entry.topic, entry.subscription)]
    troubled = [entry for entry in own if entry.trouble]
    if troubled:
        return _growing(troubled, at)
    if any(entry.figures is not None and entry.figures.trend == _UNKNOWN for entry in own):
        return None
    if not (_is_all_of(target, own) or _is_complete(analysis, listed)):
        return None
    return Condition(BACKLOG_GROWING, False, "NotGrowing", "by the last backlog analysis")


def _listed(analysis: BacklogRecord) -> list[_Listed]:
    """All listed subscriptions, once each, with their figures if the analysis has them."""
    findings = {
        (finding.topic, finding.subscription): finding.kind
        for finding in analysis.findings
        if finding.kind in _REASONS
    }
    listed = []
    for row in analysis.worst:
        kind = findings.pop((row.topic, row.subscription), "")
        trouble = kind or (row.trend if row.trend in _REASONS else "")
        listed.append(_Listed(row.topic, row.subscription, trouble, row))
    listed += [_Listed(topic, name, kind, None) for (topic, name), kind in findings.items()]
    return listed


def _is_of(target: Target, topic: str, subscription: str) -> bool:
    if target.subscription and subscription != target.subscription:
        return False
    if topic == target.name:
        return True
    base, suffix, index = topic.rpartition(PARTITION_SUFFIX)
    return bool(suffix) and base == target.name and index.isdecimal()


def _is_all_of(target: Target, own: Iterable[_Listed]) -> bool:
    """Whether `own` has all cursors of the target: it is a subscription of a single topic."""
    return target.kind == SUBSCRIPTION and any(entry.topic == target.name for entry in own)


def _is_complete(analysis: BacklogRecord, listed: list[_Listed]) -> bool:
    """Whether the analysis lists all subscriptions with a backlog, or all with a problem."""
    if analysis.behind is not None and len(analysis.worst) >= analysis.behind:
        return True
    counts = (analysis.growing, analysis.stalled, analysis.unreadable)
    if analysis.unknown != 0 or None in counts:
        return False
    return sum(bool(entry.trouble) for entry in listed) >= sum(count or 0 for count in counts)


def _growing(troubled: list[_Listed], at: datetime.datetime) -> Condition:
    order = list(_REASONS)
    # Sorted by reason alone: the largest figures are first already.
    troubled = sorted(troubled, key=lambda entry: order.index(entry.trouble))
    texts = [_text(entry) for entry in troubled[:NAMED_MAX]]
    if len(troubled) > NAMED_MAX:
        texts.append(f"and {len(troubled) - NAMED_MAX:,} more")
    message = f"{'; '.join(texts)} (backlog analysis of {timestamp(at)})"
    return Condition(BACKLOG_GROWING, True, _REASONS[troubled[0].trouble], message)


def _text(entry: _Listed) -> str:
    text = f"subscription {entry.subscription} of {entry.topic} "
    text += {"unreadable": "cannot be read", "growing": "grows", "stalled": "is stalled"}[
        entry.trouble
    ]
    figures = entry.figures
    if figures is None or figures.entries is None:
        return text
    text += f": {figures.entries:,} entries"
    if figures.bytes is not None:
        text += f", {figures.bytes:,} bytes"
    if figures.growth_per_second is not None:
        text += f", {figures.growth_per_second:+,.1f} entries/s"
    return text
