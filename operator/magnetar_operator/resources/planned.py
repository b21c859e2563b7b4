"""A plan in words: the steps as `status.plan` and `magnetar plan` show them, data first."""

from collections.abc import Collection, Mapping
from typing import Any

from magnetar_operator.resources.cluster_view import ClusterView
from magnetar_operator.resources.desired import Desired
from magnetar_operator.resources.effects import Effect, effect_of, is_foreseen
from magnetar_operator.resources.looking import look
from magnetar_operator.resources.plan import Action, Risk, Verb, plan
from magnetar_operator.resources.targets import NAMESPACE, TOPIC, NotYet, Target


async def steps(
    view: ClusterView,
    target: Target,
    desired: Desired,
    applied: Mapping[str, Any] | None,
    ignored: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Of one target. Raises NotYet where what it belongs in is not there."""
    observed = await look(view, target, desired, applied)
    made = plan(target, desired, observed, applied, ignored)
    effect = None
    if observed is not None:
        above: Mapping[str, Any] = {}
        if target.kind == TOPIC:
            above = await view.client.find(Target(NAMESPACE, target.namespace).path) or {}
        effect = await effect_of(view, target, made.steps, above)
    return ordered([_step(one, effect) for one in _with_effect_first(made.actions)])


async def steps_or_create(
    view: ClusterView,
    target: Target,
    desired: Desired,
    applied: Mapping[str, Any] | None,
    ignored: Collection[str] = (),
) -> list[dict[str, Any]]:
    """As `steps`, where what the target belongs in may be made by the same manifests."""
    try:
        return await steps(view, target, desired, applied, ignored)
    except NotYet:
        made = plan(target, desired, None, None, ignored)
        return [_step(one, None) for one in made.actions]


def ordered(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What deletes data first, most bytes first; then what is refused; then the rest."""

    def rank(one: Mapping[str, Any]) -> tuple[int, int]:
        if one["losesData"]:
            return 0, -one["bytes"]
        return (1 if one["action"] == Verb.REFUSE.value else 2), 0

    return sorted(given, key=rank)


def _with_effect_first(actions: Collection[Action]) -> list[tuple[Action, bool]]:
    """With which of them the effect is told: of all limits that change, the first."""
    told = False
    built = []
    for one in sorted(actions, key=lambda one: one.risk is not Risk.MAY_DELETE_DATA):
        tells = not told and is_foreseen(one)
        told = told or tells
        built.append((one, tells))
    return built


def _step(pair: Action | tuple[Action, bool], effect: Effect | None) -> dict[str, Any]:
    one, tells = pair if isinstance(pair, tuple) else (pair, False)
    text, loses, size, topics = one.text, False, 0, 0
    if one.risk is Risk.MAY_DELETE_DATA:
        if not is_foreseen(one):
            loses = True
            text = f"{text}: may delete data when it comes to be applied"
        elif effect is not None:
            loses = effect.loses
    if tells and effect is not None and one.risk is Risk.MAY_DELETE_DATA:
        text = f"{text} {effect.text}"
        size, topics = effect.bytes, effect.topics
    return {
        "action": one.verb.value,
        "target": str(one.target),
        "text": text,
        "losesData": loses,
        "bytes": size,
        "topics": topics,
    }
