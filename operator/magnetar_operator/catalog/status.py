"""Builds the status of a resource and the Events of its reconcile. Pure: no IO."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from magnetar_operator.admin.client import Refused
from magnetar_operator.admin.target import Target
from magnetar_operator.catalog.desired import Desired, policy_of
from magnetar_operator.catalog.memory import PAUSE_MAX_S
from magnetar_operator.catalog.plan import Action, Plan, Verb
from magnetar_operator.engine.conditions import POLICY_READY, READY, Condition, conditions

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
