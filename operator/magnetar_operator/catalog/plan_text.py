"""Describes plans in words, for `status.plan` and `magnetar plan`."""

from collections.abc import Collection, Mapping
from typing import Any

from magnetar_operator.admin.target import NAMESPACE, TOPIC, Target
from magnetar_operator.admin.view import ClusterView
from magnetar_operator.catalog.effects import Effect, effect_of, is_predictable
from magnetar_operator.catalog.observe import observe
from magnetar_operator.catalog.plan import Action, Plan, Risk, Verb, plan
from magnetar_operator.catalog.references import NotYet
from magnetar_operator.catalog.state import Desired, Observed


async def steps(
    view: ClusterView,
    target: Target,
    desired: Desired,
    applied: Mapping[str, Any] | None,
    ignored: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The steps for a target. Raises NotYet if the target's parent does not exist."""
    observed = await observe(view, target, desired, applied)
    return await described(
        view, target, observed, plan(target, desired, observed, applied, ignored)
    )


async def described(
    view: ClusterView, target: Target, observed: Observed | None, plan: Plan
) -> list[dict[str, Any]]:
    """The steps of a plan, with the effect that the cluster predicts."""
    effect = None
    if observed is not None:
        above: Mapping[str, Any] = {}
        if target.kind == TOPIC:
            above = await view.client.find(Target(NAMESPACE, target.namespace).path) or {}
        effect = await effect_of(view, target, plan.steps, above)
    return ordered([_step(action, effect) for action in _with_effect_first(plan.actions)])


async def steps_or_create(
    view: ClusterView,
    target: Target,
    desired: Desired,
    applied: Mapping[str, Any] | None,
    ignored: Collection[str] = (),
) -> list[dict[str, Any]]:
    """As `steps`, but creates the target if its parent does not exist yet."""
    try:
        return await steps(view, target, desired, applied, ignored)
    except NotYet:
        creation = plan(target, desired, None, None, ignored)
        return [_step(action, None) for action in creation.actions]


def ordered(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorts steps: first those that delete data, by size; then refused ones; then the rest."""

    def rank(step: Mapping[str, Any]) -> tuple[int, int]:
        if step["losesData"]:
            return 0, -step["bytes"]
        return (1 if step["action"] == Verb.REFUSE.value else 2), 0

    return sorted(given, key=rank)


def _with_effect_first(actions: Collection[Action]) -> list[tuple[Action, bool]]:
    """The actions, each with whether it shows the effect: the first predictable action does."""
    is_shown = False
    built = []
    for action in sorted(actions, key=lambda action: action.risk is not Risk.MAY_DELETE_DATA):
        shows = not is_shown and is_predictable(action)
        is_shown = is_shown or shows
        built.append((action, shows))
    return built


def _step(pair: Action | tuple[Action, bool], effect: Effect | None) -> dict[str, Any]:
    action, shows = pair if isinstance(pair, tuple) else (pair, False)
    text, loses, size, topics = action.text, False, 0, 0
    if action.risk is Risk.MAY_DELETE_DATA:
        if not is_predictable(action):
            loses = True
            text = f"{text}: may delete data when it is applied"
        elif effect is not None:
            loses = effect.loses
    if shows and effect is not None and action.risk is Risk.MAY_DELETE_DATA:
        text = f"{text} {effect.text}"
        size, topics = effect.bytes, effect.topics
    return {
        "action": action.verb.value,
        "target": str(action.target),
        "text": text,
        "losesData": loses,
        "bytes": size,
        "topics": topics,
    }
