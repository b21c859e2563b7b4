"""From what is wanted, what is there and what was set before: the actions, in order. Pure.

A field that the manifest names is set where it differs. Where it is just as it was asked for the
last time, somebody else changed the cluster: that is drift, put back, unless the field is ignored.
A field that was set from the manifest before and is no longer in it is removed. What the manifest
never named is somebody else's, and is left alone; nothing is ever deleted here.

Carrying out the actions and planning again gives none (but the refused ones, which stay).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from magnetar.policies.policy import UNLIMITED, Policy
from magnetar_operator.models.values import from_rest
from magnetar_operator.resources.desired import (
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    PARTITIONS,
    POLICIES,
    PROPERTIES,
    SCHEMA,
    Desired,
    policy_of,
)
from magnetar_operator.resources.observed import Observed
from magnetar_operator.resources.targets import Target

APPLIED_FIELDS: Final = "fields"
"""In `status.applied`: what was set, by field. Its presence says that the target was there."""
APPLIED_UNSET: Final = "unset"
"""... the fields that the manifest wants to be not set."""
APPLIED_PENDING: Final = "pending"
"""... the fields that were about to be set, written down before they were."""
APPLIED_EXISTS: Final = "exists"
APPLIED_CREATING: Final = "creating"
"""... that the target was about to be created: a deletion after a crash must delete it."""
BUNDLES: Final = "bundles"
PENDING: Final = object()
"""The value of a field that was about to be set: equal to none."""


class Verb(Enum):
    """What is done."""

    CREATE = "create"
    GROW = "grow"
    SET = "set"
    REMOVE = "remove"
    REFUSE = "refuse"


class Risk(Enum):
    """What may come of it."""

    HARMLESS = "harmless"
    MAY_DELETE_DATA = "may delete data"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Action:
    """One step."""

    verb: Verb
    target: Target
    text: str
    field: str = ""
    before: Any = None
    after: Any = None
    risk: Risk = Risk.HARMLESS
    drift: bool = False
    """It puts back what somebody changed by hand."""
    implied: bool = False
    """No manifest names it; it is set because nothing is, and never removed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to do."""

    actions: tuple[Action, ...] = ()

    @property
    def refused(self) -> tuple[Action, ...]:
        return tuple(one for one in self.actions if one.verb is Verb.REFUSE)

    @property
    def steps(self) -> tuple[Action, ...]:
        """Those that can be carried out."""
        return tuple(one for one in self.actions if one.verb is not Verb.REFUSE)


def plan(
    target: Target,
    desired: Desired,
    observed: Observed | None,
    applied: Mapping[str, Any] | None = None,
    ignored: Collection[str] = (),
) -> Plan:
    """`applied` is `status.applied`; `ignored` names fields or groups of fields."""
    was = remembered(applied)
    known = bool((applied or {}).get(APPLIED_EXISTS))
    if observed is None:
        return _from_nothing(target, desired, known, ignored)
    actions: list[Action] = []
    for field in _in_order(desired.fields):
        action = _towards(target, field, desired.fields[field], observed.fields.get(field), was)
        if action is not None and not (action.drift and is_ignored(field, ignored)):
            actions.append(action)
    actions += _implied(target, desired, observed, was)
    gone = [one for one in was if one not in desired.fields and one not in desired.implied]
    actions += _removed(target, gone, observed, ignored)
    actions += _refused_at_birth(target, desired, applied)
    return Plan(tuple(actions))


def remembered(applied: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was set from the manifest before, by field."""
    applied = applied or {}
    return {
        **dict.fromkeys(applied.get(APPLIED_PENDING) or (), PENDING),
        **dict.fromkeys(applied.get(APPLIED_UNSET) or (), None),
        **(applied.get(APPLIED_FIELDS) or {}),
    }


def applied_before(applied: Mapping[str, Any] | None, steps: Collection[Action]) -> dict[str, Any]:
    """What `status.applied` must say before the steps are begun: a field that was set by an
    operator which then ended would else never be taken away again. Equal to what it says where
    nothing new is set."""
    built = dict(applied or {})
    known = remembered(applied)
    sets = [one for one in steps if one.verb is Verb.SET and not one.implied]
    fresh = {one.field for one in sets if one.field not in known}
    if fresh:
        built[APPLIED_PENDING] = sorted({*(built.get(APPLIED_PENDING) or ()), *fresh})
    if not built and any(one.verb is Verb.CREATE for one in steps):
        built[APPLIED_CREATING] = True
    return built


def not_created(applied: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What `status.applied` remembers once the cluster has refused to create the target."""
    if not (applied or {}).get(APPLIED_EXISTS):
        return None
    return dict(applied or {})


def applied_after(
    desired: Desired, applied: Mapping[str, Any] | None = None, failed: Collection[str] = ()
) -> dict[str, Any]:
    """What `status.applied` remembers once all but `failed` is carried out."""
    was = remembered(applied)
    failed = [one for one in failed if one not in desired.implied or one in was]
    now = {**desired.fields, **{one: was.get(one, PENDING) for one in failed}}
    built: dict[str, Any] = {
        name: value for name, value in desired.at_birth.items() if value is not None
    }
    built[APPLIED_EXISTS] = True
    if fields := {one: v for one, v in now.items() if v is not None and v is not PENDING}:
        built[APPLIED_FIELDS] = fields
    if unset := sorted(one for one, value in now.items() if value is None):
        built[APPLIED_UNSET] = unset
    if pending := sorted(one for one, value in now.items() if value is PENDING):
        built[APPLIED_PENDING] = pending
    if applied and (bundles := applied.get(BUNDLES)) is not None:
        built[BUNDLES] = bundles
    return built


def is_ignored(field: str, ignored: Collection[str]) -> bool:
    """Whether the annotation names the field (`retention`, `properties`, `properties.team`)."""
    bare = field.removeprefix(POLICIES)
    return any(bare == name or bare.startswith(f"{name}.") for name in ignored)


def _from_nothing(
    target: Target, desired: Desired, was_there: bool, ignored: Collection[str]
) -> Plan:
    partitions = desired.fields.get(PARTITIONS, 0)
    what = f"{target.kind.lower()} {target.full_name}"
    shape = f" with {partitions} partitions" if partitions else ""
    if was_there and is_ignored("deleted", ignored):
        text = f"{what} was deleted in the cluster, and is left so (ignore-drift: deleted)"
        return Plan((Action(Verb.REFUSE, target, text, risk=Risk.REFUSED),))
    text = f"create {what}{shape}"
    if was_there:
        text = f"{what} was deleted in the cluster: create it again{shape}, empty"
    # One without storage is there while somebody uses it: that it is gone is nobody's doing.
    drift = was_there and not target.name.startswith("non-persistent:")
    actions = [Action(Verb.CREATE, target, text, drift=drift, after=dict(desired.at_birth))]
    for field in _in_order(desired.fields):
        value = desired.fields[field]
        if field != PARTITIONS and value is not None:
            text = f"set {label(field)} to {shown(field, value)}"
            actions.append(Action(Verb.SET, target, text, field, None, value))
    actions += _implied(target, desired, Observed({}), {})
    return Plan(tuple(actions))


def _towards(
    target: Target, field: str, wanted: Any, there: Any, was: Mapping[str, Any]
) -> Action | None:
    if wanted == there:
        return None
    if field == PARTITIONS:
        return _partitions(target, wanted, there or 0, was)
    drift = field in was and was[field] == wanted
    change = f"{label(field)}: {shown(field, there)} → {shown(field, wanted)}"
    if field == SCHEMA:
        change = "register the schema as a version of the topic's"
    risk = Risk.MAY_DELETE_DATA if may_delete(field, there, wanted) else Risk.HARMLESS
    verb = Verb.REMOVE if wanted is None else Verb.SET
    return Action(verb, target, change, field, there, wanted, risk, drift)


def _implied(
    target: Target, desired: Desired, observed: Observed, was: Mapping[str, Any]
) -> Iterator[Action]:
    """Where nothing is set, or what the manifest said before and says no longer."""
    for field, value in desired.implied.items():
        there = observed.fields.get(field)
        if there is None or (field in was and there != value):
            text = f"{label(field)}: {shown(field, there)} → {shown(field, value)}, as for all "
            text += "resources that say nothing else"
            yield Action(Verb.SET, target, text, field, there, value, implied=True)


def _partitions(target: Target, wanted: int, there: int, was: Mapping[str, Any]) -> Action:
    if there and wanted > there:
        drift = was.get(PARTITIONS) == wanted
        text = f"partitions: {there} → {wanted}"
        return Action(Verb.GROW, target, text, PARTITIONS, there, wanted, drift=drift)
    if there > wanted > 0:
        why = "partitions can only grow: keys and order would be lost, and messages with them"
    elif there:
        why = "it is partitioned in the cluster: say so in spec.partitions"
    else:
        why = (
            "it exists without partitions, and cannot be given any: its messages would be in none; "
            "make a new topic"
        )
    text = f"partitions: {there} → {wanted} is refused: {why}"
    return Action(Verb.REFUSE, target, text, PARTITIONS, there, wanted, Risk.REFUSED)


def _removed(
    target: Target, fields: Collection[str], observed: Observed, ignored: Collection[str]
) -> Iterator[Action]:
    for field in _in_order(dict.fromkeys(fields)):
        there = observed.fields.get(field)
        # A schema that has versions, partitions and clusters a tenant may use are never taken away.
        if there in (None, []) or field in (SCHEMA, PARTITIONS, ALLOWED_CLUSTERS):
            continue
        if is_ignored(field, ignored):
            continue
        after: Any = [] if field == ADMIN_ROLES else None
        text = f"remove {label(field)} (was {shown(field, there)}): the manifest has it no longer"
        risk = Risk.MAY_DELETE_DATA if may_delete(field, there, None) else Risk.HARMLESS
        yield Action(Verb.REMOVE, target, text, field, there, after, risk)


def _refused_at_birth(
    target: Target, desired: Desired, applied: Mapping[str, Any] | None
) -> Iterator[Action]:
    """What was decided when it was made, and is said otherwise now."""
    was, wanted = (applied or {}).get(BUNDLES), desired.at_birth.get(BUNDLES)
    if was is not None and wanted is not None and was != wanted:
        text = f"bundles: {was} → {wanted} is refused: brokers split bundles by load"
        yield Action(Verb.REFUSE, target, text, BUNDLES, was, wanted, Risk.REFUSED)


def _in_order(fields: Mapping[str, Any]) -> list[str]:
    """Shape first, then what messages are checked against, then policies as the registry has them.

    What keeps more goes before what keeps less nowhere here: REST checks retention against quotas,
    and who carries the actions out tries again what was refused while others went through.
    """

    def rank(field: str) -> tuple[int, str]:
        if field == PARTITIONS:
            return 0, field
        if field.startswith(PROPERTIES):
            return 1, field
        return (2 if field == SCHEMA else 3), field

    return sorted(fields, key=rank)


def label(field: str) -> str:
    """As people call it."""
    return field.removeprefix(POLICIES)


def shown(field: str, value: Any) -> str:
    """As a manifest would say it."""
    if value is None or value == []:
        return "not set"
    known = policy_of(field)
    if known is None:
        return "the given one" if field == SCHEMA else _flat(value)
    policy, key = known
    if key:
        return _flat(from_rest(policy, {key: value})[key])
    return _flat(from_rest(policy, value))


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def may_delete(field: str, before: Any, after: Any) -> bool:
    """Whether messages may go that would have stayed. Where that is not sure, yes."""
    known = policy_of(field)
    if known is None or not known[0].loses_data or before == after:
        return False
    policy, _ = known
    if policy.name == "retention":
        return _keeps_less(before, after, ("retentionTimeInMinutes", "retentionSizeInMB"))
    if policy.name in ("message_ttl", "subscription_expiration"):
        # Absent, the level above decides, which is not known here.
        return after is None or (after != 0 and not (before and before <= after))
    if policy.name == "backlog_quota":
        evicts = "consumer_backlog_eviction"
        return bool(after) and after.get("policy") == evicts and not _quota_grows(before, after)
    if policy.name == "inactive_topics":
        return after is None or bool(after.get("deleteWhileInactive"))
    return True


def _keeps_less(before: Any, after: Any, limits: tuple[str, ...]) -> bool:
    """What is not set may be anything: it is taken to keep all before, and nothing after."""
    if before is None or after is None:
        return True
    return any(_limit(after[name]) < _limit(before[name]) for name in limits)


def _quota_grows(before: Any, after: Any) -> bool:
    if not before or before.get("policy") != after.get("policy"):
        return False
    return all(
        _limit(after.get(name, UNLIMITED)) >= _limit(before.get(name, UNLIMITED))
        for name in ("limitSize", "limitTime")
    )


def _limit(value: float) -> float:
    return float("inf") if value == UNLIMITED else value


def changes_retention_of(policy: Policy) -> bool:
    """Whether the cluster can say how much a change of it would delete."""
    return policy.name in ("retention", "message_ttl", "backlog_quota")
