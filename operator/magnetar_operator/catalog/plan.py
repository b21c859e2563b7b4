"""Plans a target: the actions that lead from the observed state to the desired one. Pure: no IO.

A field of the manifest is set if its value differs. If the same value was applied before, another
client has changed it: that is drift, which is repaired unless the field is ignored. A field that
was applied before and is no longer in the manifest is removed. A field that the manifest never
named is not managed. A plan never deletes the target.

After the actions are carried out, the next plan is empty, except for refused changes.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from magnetar.policies.policy import UNLIMITED
from magnetar_operator.admin.target import Target
from magnetar_operator.catalog.state import (
    ACTIONS,
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    PARTITIONS,
    POLICIES,
    PROPERTIES,
    SCHEMA,
    Desired,
    Observed,
    policy_of,
)
from magnetar_operator.engine import plan as engine
from magnetar_operator.models.base import PlanStep
from magnetar_operator.models.values import from_rest

APPLIED_FIELDS: Final = "fields"
"""In `status.applied`: the values that were set, by field."""
APPLIED_UNSET: Final = "unset"
"""In `status.applied`: the fields that the manifest unsets."""
APPLIED_PENDING: Final = "pending"
"""In `status.applied`: the fields that are about to be set, recorded before they are."""
APPLIED_EXISTS: Final = "exists"
APPLIED_CREATING: Final = "creating"
"""In `status.applied`: the target is about to be created, so that a deletion after a crash deletes
it."""
BUNDLES: Final = "bundles"
PENDING: Final = object()
"""The recorded value of a field that was about to be set; it equals no other value."""


class Verb(Enum):
    """The kind of change that an action makes."""

    CREATE = "create"
    GROW = "grow"
    SET = "set"
    REMOVE = "remove"
    REFUSE = "refuse"


class Risk(Enum):
    """Whether an action may delete messages."""

    HARMLESS = "harmless"
    MAY_DELETE_DATA = "may delete data"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Action:
    """One change of a target."""

    verb: Verb
    target: Target
    text: str
    field: str = ""
    before: Any = None
    after: Any = None
    risk: Risk = Risk.HARMLESS
    drift: bool = False
    """The action repairs a change that another client made."""
    implied: bool = False
    """The manifest does not name the field: it is set because it is unset, and never removed."""

    @property
    def step(self) -> PlanStep:
        return PlanStep(action=self.verb.value, target=str(self.target), text=self.text)


@dataclass(frozen=True, slots=True)
class Plan(engine.Plan[Action]):
    """The actions for a target, with the changes that are refused."""

    @property
    def refused(self) -> tuple[Action, ...]:
        """Changes of the manifest that are never made."""
        return tuple(action for action in self.actions if action.verb is Verb.REFUSE)

    @property
    def steps(self) -> tuple[Action, ...]:
        """The actions that can be carried out."""
        return tuple(action for action in self.actions if action.verb is not Verb.REFUSE)


def plan(
    target: Target,
    desired: Desired,
    observed: Observed | None,
    applied: Mapping[str, Any] | None = None,
    ignored: Collection[str] = (),
) -> Plan:
    """Plans a target. `applied` is `status.applied`; `ignored` names fields or groups of fields."""
    was = remembered(applied)
    existed = bool((applied or {}).get(APPLIED_EXISTS))
    if observed is None:
        return _from_nothing(target, desired, existed, ignored)
    actions: list[Action] = []
    for field in _in_order(desired.fields):
        action = _towards(target, field, desired.fields[field], observed.fields.get(field), was)
        if action is not None and not (action.drift and is_ignored(field, ignored)):
            actions.append(action)
    actions += _implied(target, desired, observed, was)
    removed = [name for name in was if name not in desired.fields and name not in desired.implied]
    actions += _removed(target, removed, observed, ignored)
    actions += _refused_at_birth(target, desired, applied)
    return Plan(tuple(actions))


def remembered(applied: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values that were applied from the manifest before, by field; None: it was unset."""
    applied = applied or {}
    return {
        **dict.fromkeys(applied.get(APPLIED_PENDING) or (), PENDING),
        **dict.fromkeys(applied.get(APPLIED_UNSET) or (), None),
        **(applied.get(APPLIED_FIELDS) or {}),
    }


def applied_before(applied: Mapping[str, Any] | None, steps: Collection[Action]) -> dict[str, Any]:
    """The value of `status.applied` before the steps are carried out.

    It records new fields: if the operator set a field and ended before it recorded that, no plan
    would ever remove the field. It equals `applied` if no new field is set.
    """
    built = dict(applied or {})
    recorded = remembered(applied)
    sets = [action for action in steps if action.verb is Verb.SET and not action.implied]
    new = {action.field for action in sets if action.field not in recorded}
    if new:
        built[APPLIED_PENDING] = sorted({*(built.get(APPLIED_PENDING) or ()), *new})
    if not built and any(action.verb is Verb.CREATE for action in steps):
        built[APPLIED_CREATING] = True
    return built


def not_created(applied: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The value of `status.applied` after the cluster has refused to create the target."""
    if not (applied or {}).get(APPLIED_EXISTS):
        return None
    return dict(applied or {})


def applied_after(
    desired: Desired, applied: Mapping[str, Any] | None = None, failed: Collection[str] = ()
) -> dict[str, Any]:
    """The value of `status.applied` after all fields except `failed` were set."""
    was = remembered(applied)
    failed = [name for name in failed if name not in desired.implied or name in was]
    now = {**desired.fields, **{name: was.get(name, PENDING) for name in failed}}
    built: dict[str, Any] = {
        name: value for name, value in desired.at_birth.items() if value is not None
    }
    built[APPLIED_EXISTS] = True
    if fields := {name: v for name, v in now.items() if v is not None and v is not PENDING}:
        built[APPLIED_FIELDS] = fields
    if unset := sorted(name for name, value in now.items() if value is None):
        built[APPLIED_UNSET] = unset
    if pending := sorted(name for name, value in now.items() if value is PENDING):
        built[APPLIED_PENDING] = pending
    if applied and (bundles := applied.get(BUNDLES)) is not None:
        built[BUNDLES] = bundles
    return built


def is_ignored(field: str, ignored: Collection[str]) -> bool:
    """Whether the annotation names the field (`retention`, `properties`, `properties.team`)."""
    bare = field.removeprefix(POLICIES)
    return any(bare == name or bare.startswith(f"{name}.") for name in ignored)


def _from_nothing(
    target: Target, desired: Desired, existed: bool, ignored: Collection[str]
) -> Plan:
    """The plan for a target that does not exist."""
    partitions = desired.fields.get(PARTITIONS, 0)
    shape = f" with {partitions} partitions" if partitions else ""
    if existed and is_ignored("deleted", ignored):
        text = f"{target} was deleted in the cluster, and stays deleted (ignore-drift: deleted)"
        return Plan((Action(Verb.REFUSE, target, text, risk=Risk.REFUSED),))
    text = f"create {target}{shape}"
    if target.role:
        shape = f": {_flat(desired.fields.get(ACTIONS, ['use']))}"
        text = f"grant {target}{shape}"
    if existed:
        text = f"{target} was deleted in the cluster: create it again{shape}, empty"
    # A non-persistent topic exists only while clients use it: its absence is not drift.
    drift = existed and not target.name.startswith("non-persistent:")
    actions = [Action(Verb.CREATE, target, text, drift=drift, after=dict(desired.at_birth))]
    for field in _in_order(desired.fields):
        value = desired.fields[field]
        # The creation itself sets these.
        if field not in (PARTITIONS, ACTIONS) and value is not None:
            text = f"set {label(field)} to {shown(field, value)}"
            actions.append(Action(Verb.SET, target, text, field, None, value))
    actions += _implied(target, desired, Observed({}), {})
    return Plan(tuple(actions))


def _towards(
    target: Target, field: str, wanted: Any, observed: Any, was: Mapping[str, Any]
) -> Action | None:
    """The action that changes a field; None if it has the wanted value."""
    if wanted == observed:
        return None
    if field == PARTITIONS:
        return _partitions(target, wanted, observed or 0, was)
    drift = field in was and was[field] == wanted
    change = f"{label(field)}: {shown(field, observed)} → {shown(field, wanted)}"
    if field == SCHEMA:
        change = "register the schema as a version of the topic's"
    risk = Risk.MAY_DELETE_DATA if may_delete(field, observed, wanted) else Risk.HARMLESS
    verb = Verb.REMOVE if wanted is None else Verb.SET
    return Action(verb, target, change, field, observed, wanted, risk, drift)


def _implied(
    target: Target, desired: Desired, observed: Observed, was: Mapping[str, Any]
) -> Iterator[Action]:
    """Sets implied fields that are unset, or that still have an earlier value of the manifest."""
    for field, value in desired.implied.items():
        present = observed.fields.get(field)
        if present is None or (field in was and present != value):
            text = f"{label(field)}: {shown(field, present)} → {shown(field, value)}, the default "
            text += "for topics of resources"
            yield Action(Verb.SET, target, text, field, present, value, implied=True)


def _partitions(target: Target, wanted: int, present: int, was: Mapping[str, Any]) -> Action:
    if present and wanted > present:
        drift = was.get(PARTITIONS) == wanted
        text = f"partitions: {present} → {wanted}"
        return Action(Verb.GROW, target, text, PARTITIONS, present, wanted, drift=drift)
    if present > wanted > 0:
        reason = "partitions can only grow: keys and order would be lost, and messages with them"
    elif present:
        reason = "the topic is partitioned in the cluster: set spec.partitions"
    else:
        reason = (
            "the topic exists without partitions and cannot get any: its messages would be in "
            "none; create a new topic"
        )
    text = f"partitions: {present} → {wanted} is refused: {reason}"
    return Action(Verb.REFUSE, target, text, PARTITIONS, present, wanted, Risk.REFUSED)


def _removed(
    target: Target, fields: Collection[str], observed: Observed, ignored: Collection[str]
) -> Iterator[Action]:
    for field in _in_order(dict.fromkeys(fields)):
        present = observed.fields.get(field)
        # Schema versions, partitions and the clusters of a tenant are never removed.
        if present in (None, []) or field in (SCHEMA, PARTITIONS, ALLOWED_CLUSTERS):
            continue
        if is_ignored(field, ignored):
            continue
        after: Any = [] if field == ADMIN_ROLES else None
        text = f"remove {label(field)} (was {shown(field, present)}): no longer in the manifest"
        risk = Risk.MAY_DELETE_DATA if may_delete(field, present, None) else Risk.HARMLESS
        yield Action(Verb.REMOVE, target, text, field, present, after, risk)


def _refused_at_birth(
    target: Target, desired: Desired, applied: Mapping[str, Any] | None
) -> Iterator[Action]:
    """Refuses changes of values that only the creation sets."""
    was, wanted = (applied or {}).get(BUNDLES), desired.at_birth.get(BUNDLES)
    if was is not None and wanted is not None and was != wanted:
        text = f"bundles: {was} → {wanted} is refused: brokers split bundles by load"
        yield Action(Verb.REFUSE, target, text, BUNDLES, was, wanted, Risk.REFUSED)


def _in_order(fields: Mapping[str, Any]) -> list[str]:
    """The order of fields: partitions, then properties, then the schema, then policies by name.

    Brokers check retention and backlog quotas against each other. This order does not solve that;
    the executor retries refused actions after others succeeded.
    """

    def rank(field: str) -> tuple[int, str]:
        if field == PARTITIONS:
            return 0, field
        if field.startswith(PROPERTIES):
            return 1, field
        return (2 if field == SCHEMA else 3), field

    return sorted(fields, key=rank)


def label(field: str) -> str:
    """The name of the field for people."""
    return field.removeprefix(POLICIES)


def shown(field: str, value: Any) -> str:
    """The value in the form of a manifest."""
    if value is None or value == []:
        return "not set"
    entry = policy_of(field)
    if entry is None:
        return "the given schema" if field == SCHEMA else _flat(value)
    policy, key = entry
    if key:
        return _flat(from_rest(policy, {key: value})[key])
    return _flat(from_rest(policy, value))


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def may_delete(field: str, before: Any, after: Any) -> bool:
    """Whether the change may delete messages that would stay otherwise; true if in doubt."""
    entry = policy_of(field)
    if entry is None or not entry[0].loses_data or before == after:
        return False
    policy, _ = entry
    if policy.name == "retention":
        return _keeps_less(before, after, ("retentionTimeInMinutes", "retentionSizeInMB"))
    if policy.name in ("message_ttl", "subscription_expiration"):
        # Without a value, the level above applies, and its value is unknown here.
        return after is None or (after != 0 and not (before and before <= after))
    if policy.name == "backlog_quota":
        evicts = "consumer_backlog_eviction"
        return bool(after) and after.get("policy") == evicts and not _quota_grows(before, after)
    if policy.name == "inactive_topics":
        return after is None or bool(after.get("deleteWhileInactive"))
    return True


def _keeps_less(before: Any, after: Any, limits: tuple[str, ...]) -> bool:
    """An unset limit is unknown: it counts as unlimited before, and as zero after."""
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
