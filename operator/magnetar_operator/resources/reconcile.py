"""One look at one resource: find its target, compare, carry out, and say how it is.

The order is such that a look may be broken off at any await and begun anew: the finalizer is there
before anything is made in the cluster; which fields are about to be set is in the status before
they are; events and the final status come last. A status is written where it changed, and nothing
else is: a look with nothing to do writes neither to Kubernetes nor to the cluster.

What keeps a look from succeeding is a condition with what to do about it, and a pause that grows;
who waits for another resource is woken by its success.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.events import Events
from magnetar_operator.kube import Conflict, KubeClient, NotFound
from magnetar_operator.models.resources import Placed
from magnetar_operator.resources import planned
from magnetar_operator.resources.admin_client import NotFound as AdminNotFound
from magnetar_operator.resources.admin_client import Refused, Unreachable
from magnetar_operator.resources.annotations import (
    DUPLICATE,
    KEEP,
    MOVED,
    PREFIX,
    annotated,
    applied_there,
    ignored,
    key_of,
    moved,
    target_in,
)
from magnetar_operator.resources.backlog_condition import backlog_growing
from magnetar_operator.resources.carrying_out import CarryingOut, Outcome
from magnetar_operator.resources.cluster_view import Clusters, ClusterView
from magnetar_operator.resources.deletion import UNREACHABLE
from magnetar_operator.resources.desired import (
    PARTITIONS,
    Desired,
    desired_of,
    policy_of,
    unsupported,
)
from magnetar_operator.resources.finishing import Finishing
from magnetar_operator.resources.looking import look, topic_stats
from magnetar_operator.resources.memory import OUTAGE_PAUSE_MAX_S, Memory
from magnetar_operator.resources.observed import Observed, topic_facts
from magnetar_operator.resources.placing import Place, Placing, Siblings
from magnetar_operator.resources.plan import (
    Action,
    Plan,
    Verb,
    applied_after,
    applied_before,
    not_created,
    plan,
)
from magnetar_operator.resources.resource_status import (
    PAUSED,
    POLICY_READY,
    READY,
    Condition,
    condition_of,
)
from magnetar_operator.resources.targets import (
    SUBSCRIPTION,
    TOPIC,
    BadSpec,
    NotYet,
    parse_spec,
    resource_token,
    target_token,
)
from magnetar_operator.resources.writing import Verdict, Writer, verdict
from magnetar_operator.work import Key

INVALID: Final = "InvalidSpec"
UNSUPPORTED: Final = "Unsupported"
CHANGED_S: Final = 0.5
"""When to look again at what changed while it was looked at."""


class Reconciler:
    """See the module's text. For all four kinds."""

    def __init__(
        self,
        kube: KubeClient,
        events: Events,
        siblings: Siblings,
        clusters: Clusters,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self.events = events
        self.clusters = clusters
        self.now = now
        self.memory = Memory(siblings)
        self.placing = Placing(kube, siblings)
        self.writer = Writer(kube, self.memory, now)
        self._finishing = Finishing(
            events, siblings, clusters, self.memory, self.placing, self.writer
        )

    async def reconcile(self, one: Object) -> float | None:
        """A `work.Reconcile`."""
        self.memory.forget_gone()
        key = key_of(one)
        try:
            if one["metadata"].get("deletionTimestamp"):
                return await self._finishing.finish(key, one)
            one, found = await self._look(key, one)
            await self.writer.status(key, one, found)
        except NotFound:
            return None  # the resource is gone; the watch will say so
        except Conflict:
            return CHANGED_S
        if found.again_soon:
            return self.memory.pause_s(key, found.pause_max_s)
        self.memory.went_well(key)
        return None

    async def _look(self, key: Key, one: Object) -> tuple[Object, Verdict]:
        self._claim(key, one)
        if annotated(one, "paused"):
            told = f'Nothing is compared or changed while {PREFIX}paused is "true".'
            ready = Condition(READY, None, PAUSED, told)
            return one, Verdict([ready, Condition(PAUSED, True, PAUSED, told)])
        try:
            spec, desired = parse_spec(one), desired_of(parse_spec(one))
            place = await self.placing.place(one)
        except BadSpec as error:
            return one, verdict(INVALID, str(error), soon=False)
        except NotYet as error:
            self.memory.wait(error.token, key)
            return one, verdict(error.reason, error.message)
        if why := moved(self.memory.status(key, one), place):
            return one, verdict(MOVED, why)
        if refused := unsupported(desired, place.local_cluster):
            return one, verdict(UNSUPPORTED, "; ".join(refused), soon=False)
        try:
            one, found = await self._placed(key, one, spec, desired, place)
        except NotYet as error:
            self.memory.wait(error.token, key)
            found = verdict(error.reason, error.message)
        except Unreachable as error:
            self.memory.wait_for_cluster(place.url, key)
            found = verdict(UNREACHABLE, str(error))
            found.pause_max_s = OUTAGE_PAUSE_MAX_S
        except Refused as error:
            found = verdict("Refused", f"the cluster says: {error}")
        found.fields = {**place.status, **found.fields}
        return one, found

    def _claim(self, key: Key, one: Object) -> None:
        """Keeps younger resources away from its target although this look may not get so far."""
        status = self.memory.status(key, one)
        recorded = target_in(status, key.kind)
        is_duplicate = condition_of(status, READY).get("reason") == DUPLICATE
        if status.get("applied") and recorded is not None and not is_duplicate:
            self.memory.elder(key, one, target_token(*recorded))

    async def _placed(
        self, key: Key, one: Object, spec: Placed, desired: Desired, place: Place
    ) -> tuple[Object, Verdict]:
        elder = self.memory.elder(key, one, target_token(place.url, place.target))
        if elder is not None:
            text = f"{elder} is older and looks after {place.target}: delete this resource"
            duplicate = verdict(DUPLICATE, f"{text} (nothing is deleted in the cluster by that)")
            # Deletion acts on `applied` alone, whatever a later look says in the conditions.
            duplicate.fields["applied"] = None
            return one, duplicate
        status = self.memory.status(key, one)
        applied = applied_there(status, place)
        view = self.clusters.at(place.url)
        if annotated(one, "plan"):
            steps = await planned.steps(view, place.target, desired, applied, ignored(one))
            told = f'Only planned, see status.plan, while {PREFIX}plan is "true".'
            only = verdict("PlanOnly", told, holds=None, soon=False)
            only.fields["plan"] = steps
            return one, only
        one = await self.writer.finalizer(one, wanted=spec.lifecycle_policy != KEEP)
        run = _Run(self, key, one, place, desired, view, applied)
        found = await run.run()
        self.memory.answered(place.url, key)
        if not found.again_soon:
            self.memory.wake(
                resource_token(key.kind, key.namespace, key.name),
                target_token(place.url, place.target),
            )
        return run.one, found


@dataclass(slots=True)
class _Run:
    """Comparing and carrying out, for one resource whose place is known."""

    by: Reconciler
    key: Key
    one: Object
    place: Place
    desired: Desired
    view: ClusterView
    applied: Mapping[str, Any] | None
    adopts: bool = False

    def __post_init__(self) -> None:
        # What is there, though nothing was ever done for this resource, was there before it.
        self.adopts = not self.applied

    async def run(self) -> Verdict:
        target = self.place.target
        observed = await look(self.view, target, self.desired, self.applied)
        made = plan(target, self.desired, observed, self.applied, ignored(self.one))
        outcome = await self._carry_out(made, observed)
        if outcome.existed is not None:
            # The lists were behind: look at what is really there, and go on from that.
            observed = await look(self.view, target, self.desired, self.applied)
            made = plan(target, self.desired, observed, self.applied, ignored(self.one))
            outcome = await self._carry_out(made, observed)
            if outcome.existed is not None:  # a conflict of another kind, such as a cap
                outcome.refused.append((made.steps[0], outcome.existed))
        await self._tell(made, outcome, existed=observed is not None)
        return await self._verdict(made, outcome, observed)

    async def _carry_out(self, made: Plan, observed: Observed | None) -> Outcome:
        if not made.steps:
            return Outcome()
        before = applied_before(self.applied, made.steps)
        if before != (self.applied or {}):
            status = {
                **self.by.memory.status(self.key, self.one),
                **self.place.status,
                "applied": before,
            }
            await self.by.writer.put_status(self.key, self.one, status)
            self.applied = before
        carrying = CarryingOut(self.view, self.place.target, self.desired, observed)
        return await carrying.run(made.steps)

    async def _tell(self, made: Plan, outcome: Outcome, *, existed: bool) -> None:
        tell = self.by.events.tell
        target = self.place.target
        if self.adopts and existed:
            note = f"{target} was there already; it is looked after by this resource from now on."
            await tell(self.one, "Adopted", note)
        created = [one for one in outcome.done if one.verb is Verb.CREATE and one.drift]
        if created:
            await tell(self.one, "Recreated", f"{created[0].text}.", type="Warning")
        drifted = [one.text for one in outcome.done if one.drift and one.verb is not Verb.CREATE]
        if drifted and not created:
            note = f"Changed by hand in {target}, and put back: {'; '.join(drifted)}."
            await tell(self.one, "DriftRepaired", note, type="Warning")
        for one, error in outcome.refused:
            note = f"{one.text}: refused by the cluster: {error.reason}"
            await tell(self.one, "Refused", note, type="Warning")
        for one in made.refused:
            await tell(self.one, "Refused", one.text, type="Warning")

    async def _verdict(self, made: Plan, outcome: Outcome, observed: Observed | None) -> Verdict:
        failed = [one for one, _ in outcome.refused]
        if any(one.verb is Verb.CREATE for one in failed):
            error = outcome.refused[0][1]
            refused = verdict("Refused", f"it cannot be created: {error.reason}")
            refused.fields["applied"] = not_created(self.applied)
            return refused
        absent = observed is None and not outcome.done
        if absent:  # deleted by hand, and to be left so
            return verdict("Deleted", made.refused[0].text, soon=False)
        facts = dict(observed.facts) if observed is not None else await self._new_facts()
        if any(one.field == PARTITIONS for one in outcome.done):
            facts["partitions"] = self.desired.fields[PARTITIONS]
        version = outcome.schema_version
        if version is None and observed is not None:
            version = observed.schema_version
        if version is not None:
            facts["schemaVersion"] = version
        facts["applied"] = applied_after(self.desired, self.applied, [one.field for one in failed])
        said = [f"{one.text}: {error.reason}" for one, error in outcome.refused]
        found = _conditions(made.refused, failed, said, self.desired)
        if (backlog := await self._backlog()) is not None:
            found.append(backlog)
        return Verdict(found, facts, again_soon=bool(failed))

    async def _backlog(self) -> Condition | None:
        """How it goes by the last analysis; None where that does not tell."""
        target = self.place.target
        if target.kind not in (TOPIC, SUBSCRIPTION):
            return None
        document = await self.view.analyses.of(target.namespace)
        return backlog_growing(target, document, self.by.now())

    async def _new_facts(self) -> dict[str, Any]:
        """Of what was made just now."""
        target = self.place.target
        if target.kind != TOPIC:
            found = await look(self.view, target, self.desired, None)
            return {} if found is None else dict(found.facts)
        try:
            stats, partitions, _ = await topic_stats(self.view, target)
        except AdminNotFound:  # without storage, and nobody uses it yet
            return {"partitions": self.desired.fields[PARTITIONS]}
        return topic_facts(partitions, stats)


def _conditions(
    refused: tuple[Action, ...], failed: list[Action], said: list[str], desired: Desired
) -> list[Condition]:
    texts = [one.text for one in refused] + said
    ready = Condition(READY, True, "AsSpecified")
    if texts:
        ready = Condition(READY, False, "Refused", "; ".join(texts))
    built = [ready]
    if any(policy_of(name) is not None for name in desired.fields):
        wrong = [
            text for one, text in zip(failed, said, strict=True) if policy_of(one.field) is not None
        ]
        built.append(
            Condition(POLICY_READY, False, "Refused", "; ".join(wrong))
            if wrong
            else Condition(POLICY_READY, True, "AsSpecified")
        )
    return built
