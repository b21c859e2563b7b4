"""Reconciles Tenants, Namespaces, Topics and Subscriptions; each step is in its own module.

A reconcile may be cancelled at any await, because of the order of its writes: first the finalizer,
then the names of the fields that are about to be set (in the status), then the cluster, and last
Events and the final status. A reconcile with nothing to do writes neither to Kubernetes nor to the
cluster.

An obstacle becomes a condition that says what to do, and the reconcile is retried with a growing
pause. A resource that waits for another one is enqueued when that one is ready.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from magnetar_operator.admin.client import NotFound, Refused, Unreachable
from magnetar_operator.admin.target import SUBSCRIPTION, TOPIC, target_token
from magnetar_operator.admin.view import Clusters, ClusterView
from magnetar_operator.catalog import plan_text
from magnetar_operator.catalog.act import CatalogExecutor, CatalogOutcome
from magnetar_operator.catalog.deletion import UNREACHABLE
from magnetar_operator.catalog.finalizer import Finalizer
from magnetar_operator.catalog.memory import OUTAGE_PAUSE_MAX_S, Memory
from magnetar_operator.catalog.observe import observe, topic_stats
from magnetar_operator.catalog.plan import (
    Plan,
    Verb,
    applied_after,
    applied_before,
    not_created,
    plan,
)
from magnetar_operator.catalog.references import (
    DUPLICATE,
    KEEP,
    MOVED,
    BadSpec,
    NotYet,
    Place,
    References,
    Siblings,
    applied_there,
    moved,
    parse_spec,
    resource_token,
    target_in,
)
from magnetar_operator.catalog.state import (
    PARTITIONS,
    Desired,
    Observed,
    desired_of,
    topic_facts,
    unsupported,
)
from magnetar_operator.catalog.status import (
    Failures,
    Verdict,
    backlog_growing,
    events,
    outcome_conditions,
    status,
    verdict,
)
from magnetar_operator.clock import utc
from magnetar_operator.engine.annotations import PREFIX, annotated, ignored
from magnetar_operator.engine.context import Context
from magnetar_operator.engine.plan import Outcome
from magnetar_operator.engine.queue import ObjectKey, key_of
from magnetar_operator.engine.reconciler import (
    Attempt,
    Mode,
    Reconciler,
    Report,
    Stopped,
    set_finalizer,
)
from magnetar_operator.engine.status import PAUSED, READY, Condition, StatusWriter
from magnetar_operator.kube import kinds
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.base import condition_of
from magnetar_operator.models.resources import Placed

INVALID: Final = "InvalidSpec"
UNSUPPORTED: Final = "Unsupported"


@dataclass(slots=True)
class Resource:
    """A resource with its desired state, its target and its cluster."""

    key: ObjectKey
    obj: Object
    spec: Placed
    desired: Desired
    place: Place
    view: ClusterView
    applied: Mapping[str, Any] | None
    """`status.applied` for this target; updated before actions are carried out."""
    adopts: bool
    """The operator has not acted for this resource yet: a target that exists is adopted."""


class CatalogReconciler(Reconciler[Resource, Observed | None, Plan]):
    """Reconciles Tenants, Namespaces, Topics and Subscriptions through the admin REST."""

    def __init__(
        self,
        kube: KubeClient,
        events: Events,
        siblings: Siblings,
        clusters: Clusters,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        super().__init__(kube, StatusWriter(kube, now))
        self._events = events
        self._clusters = clusters
        self._now = now
        self._memory = Memory(siblings)
        self._references = References(kube, siblings)
        self._finalizer = Finalizer(
            kube, events, siblings, clusters, self._memory, self._references
        )

    async def read(self, seen: Object) -> Object | None:
        """Returns the object as the watch reported it: reading thousands each minute is too much.

        `status_of` returns the status that was written last, and the finalizer is written only to
        exactly this version.
        """
        self._memory.forget_deleted()
        return seen

    def status_of(self, obj: Object) -> Mapping[str, Any]:
        return self._memory.status(key_of(obj), obj)

    def wrote(self, obj: Object) -> None:
        self._memory.wrote(key_of(obj), obj)

    async def finalize(self, obj: Object) -> float | None:
        key = key_of(obj)
        blocked = await self._finalizer.finalize(key, obj)
        if blocked is None:
            return None
        report = self._report(key, obj, blocked)
        await self.write(obj, report)
        return report.requeue_s

    async def resolve(self, obj: Object) -> Resource:
        key = key_of(obj)
        self._keep_claim(key, obj)
        if annotated(obj, "paused"):
            text = f'Nothing is observed or changed while {PREFIX}paused is "true".'
            ready = Condition(READY, None, PAUSED, text)
            raise self._stopped(key, obj, Verdict([ready, Condition(PAUSED, True, PAUSED, text)]))
        try:
            spec = parse_spec(obj)
            desired = desired_of(spec)
            place = await self._references.place(obj)
        except BadSpec as error:
            raise self._stopped(key, obj, verdict(INVALID, str(error), soon=False)) from error
        except NotYet as error:
            self._memory.wait(error.token, key)
            raise self._stopped(key, obj, verdict(error.reason, error.message)) from error
        before = self.status_of(obj)
        if reason := moved(before, place):
            raise self._stopped(key, obj, verdict(MOVED, reason))
        if refused := unsupported(desired, place.local_cluster):
            raise self._stopped(key, obj, verdict(UNSUPPORTED, "; ".join(refused), soon=False))
        elder = self._memory.elder(key, obj, target_token(place.url, place.target))
        if elder is not None:
            text = f"{elder} is older and manages {place.target}: delete this resource"
            duplicate = verdict(DUPLICATE, f"{text} (that deletes nothing in the cluster)")
            # The finalizer decides by `applied` alone; later conditions do not matter.
            duplicate.fields = {**place.status, "applied": None}
            raise self._stopped(key, obj, duplicate)
        applied = applied_there(before, place)
        view = self._clusters.at(place.url, place.key)
        return Resource(key, obj, spec, desired, place, view, applied, adopts=not applied)

    async def prepare(self, subject: Resource) -> None:
        wanted = subject.spec.lifecycle_policy != KEEP
        subject.obj = await set_finalizer(self.kube, subject.obj, wanted=wanted)

    async def observe(self, subject: Resource) -> Observed | None:
        return await observe(subject.view, subject.place.target, subject.desired, subject.applied)

    def plan(self, subject: Resource, observed: Observed | None) -> Plan:
        target, desired = subject.place.target, subject.desired
        return plan(target, desired, observed, subject.applied, ignored(subject.obj))

    async def act(self, subject: Resource, observed: Observed | None, plan: Plan) -> Outcome[Any]:
        if not plan.steps:
            return CatalogOutcome()
        before = applied_before(subject.applied, plan.steps)
        if before != (subject.applied or {}):
            obj = subject.obj
            fields = {**self.status_of(obj), **subject.place.status, "applied": before}
            self.wrote(await self.statuses.put(obj, fields))
            subject.applied = before
        executor = CatalogExecutor(subject.view, subject.place.target, subject.desired, observed)
        return await executor.carry_out(plan.steps)

    async def report(self, attempt: Attempt[Resource, Observed | None, Plan]) -> Report:
        subject = attempt.subject
        key, place = subject.key, subject.place
        if attempt.mode is Mode.PLAN_ONLY:
            text = f'Only planned, see status.plan, while {PREFIX}plan is "true".'
            result = verdict("PlanOnly", text, holds=None, soon=False)
            result.fields["plan"] = await plan_text.described(
                subject.view, place.target, attempt.observed, attempt.plan
            )
        else:
            result = await self._verdict(attempt)
            self._memory.answered(place.url, key)
            if not result.again_soon:
                own = resource_token(key.kind, key.namespace, key.name)
                self._memory.wake(own, target_token(place.url, place.target))
        result.fields = {**place.status, **result.fields}
        return self._report(key, subject.obj, result)

    def failed(self, subject: Resource, error: Exception) -> Report | None:
        key, place = subject.key, subject.place
        match error:
            case NotYet():
                self._memory.wait(error.token, key)
                result = verdict(error.reason, error.message)
            case Unreachable():
                self._memory.wait_for_cluster(place.url, key)
                result = verdict(UNREACHABLE, str(error))
                result.pause_max_s = OUTAGE_PAUSE_MAX_S
            case Refused():
                result = verdict("Refused", f"the cluster refuses it: {error}")
            case _:
                return None
        result.fields = {**place.status, **result.fields}
        return self._report(key, subject.obj, result)

    def _keep_claim(self, key: ObjectKey, obj: Object) -> None:
        """Claims the recorded target before younger resources do, even if this reconcile fails."""
        before = self.status_of(obj)
        recorded = target_in(before, key.kind)
        is_duplicate = condition_of(before, READY).get("reason") == DUPLICATE
        if before.get("applied") and recorded is not None and not is_duplicate:
            self._memory.elder(key, obj, target_token(*recorded))

    def _stopped(self, key: ObjectKey, obj: Object, result: Verdict) -> Stopped:
        return Stopped(self._report(key, obj, result))

    def _report(self, key: ObjectKey, obj: Object, result: Verdict) -> Report:
        generation = int(obj["metadata"].get("generation", 0))
        document = status(self.status_of(obj), result, generation, self._now())
        if result.again_soon:
            return Report(document, self._memory.pause_s(key, result.pause_max_s))
        self._memory.succeeded(key)
        return Report(document)

    async def _verdict(self, attempt: Attempt[Resource, Observed | None, Plan]) -> Verdict:
        """Records the Events, and sums up the outcome in conditions and fields."""
        subject, plan, observed = attempt.subject, attempt.plan, attempt.observed
        outcome = attempt.outcome
        target = subject.place.target
        failures = cast("list[tuple[Any, Refused]]", list(outcome.failed))
        if isinstance(outcome.stale, Refused):  # a conflict of another kind, such as a cap
            failures.append((plan.steps[0], outcome.stale))
        if subject.adopts and observed is not None:
            note = f"{target} already existed; this resource manages it from now on."
            await self._events.record(subject.obj, "Adopted", note)
        for event in events(target, plan, outcome.done, failures):
            await self._events.record(subject.obj, event.reason, event.note, type=event.type)
        if any(action.verb is Verb.CREATE for action, _ in failures):
            refused = verdict("Refused", f"the target cannot be created: {failures[0][1].reason}")
            refused.fields["applied"] = not_created(subject.applied)
            return refused
        if observed is None and not outcome.done:  # deleted by hand, and not created again
            return verdict("Deleted", plan.refused[0].text, soon=False)
        conditions = outcome_conditions(plan, failures, subject.desired)
        if (backlog := await self._backlog(subject)) is not None:
            conditions.append(backlog)
        facts = await self._facts(attempt, failures)
        return Verdict(conditions, facts, again_soon=bool(failures))

    async def _facts(
        self, attempt: Attempt[Resource, Observed | None, Plan], failures: Failures
    ) -> dict[str, Any]:
        """The fields of the status that describe the target."""
        subject, observed, outcome = attempt.subject, attempt.observed, attempt.outcome
        facts = dict(observed.facts) if observed is not None else await self._new_facts(subject)
        if any(action.field == PARTITIONS for action in outcome.done):
            facts["partitions"] = subject.desired.fields[PARTITIONS]
        version = outcome.schema_version if isinstance(outcome, CatalogOutcome) else None
        if version is None and observed is not None:
            version = observed.schema_version
        if version is not None:
            facts["schemaVersion"] = version
        failed = [action.field for action, _ in failures]
        facts["applied"] = applied_after(subject.desired, subject.applied, failed)
        return facts

    async def _backlog(self, subject: Resource) -> Condition | None:
        """The condition BacklogGrowing; None if the last analysis is inconclusive."""
        target = subject.place.target
        if target.kind not in (TOPIC, SUBSCRIPTION):
            return None
        document = await subject.view.analyses.of(target.namespace)
        return backlog_growing(target, document, self._now())

    async def _new_facts(self, subject: Resource) -> dict[str, Any]:
        """The facts of a target that this reconcile has created."""
        target = subject.place.target
        if target.kind != TOPIC:
            observed = await observe(subject.view, target, subject.desired, None)
            return {} if observed is None else dict(observed.facts)
        try:
            stats, partitions, _ = await topic_stats(subject.view, target)
        except NotFound:  # a non-persistent topic without clients
            return {"partitions": subject.desired.fields[PARTITIONS]}
        return topic_facts(partitions, stats)


def register(context: Context) -> None:
    """Watches Tenants, Namespaces, Topics, Subscriptions and Permissions."""
    clusters = Clusters(context.clients, context.clock)
    reconciler = CatalogReconciler(
        context.kube, context.events, context.queue, clusters, lambda: utc(context.clock)
    )
    for kind in (
        kinds.TENANT,
        kinds.NAMESPACE,
        kinds.TOPIC,
        kinds.SUBSCRIPTION,
        kinds.PERMISSION,
    ):
        context.watch(kind, reconciler.reconcile)
