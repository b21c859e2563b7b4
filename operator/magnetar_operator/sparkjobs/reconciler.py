"""Reconciles SparkJobs; each step is in the module of its name.

The operator does nothing when a SparkJob is deleted: Kubernetes deletes the objects that it owns,
and there is no finalizer.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.clock import SYSTEM, Clock, utc
from magnetar_operator.engine.annotations import annotated
from magnetar_operator.engine.context import Context
from magnetar_operator.engine.plan import Outcome
from magnetar_operator.engine.reconciler import Attempt, Reconciler, Report, Stopped
from magnetar_operator.engine.status import StatusWriter
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import BATCH_JOB, POD, SPARK_JOB, Object
from magnetar_operator.models.sparkjob import SparkJobSpec
from magnetar_operator.settings import Settings
from magnetar_operator.sparkjobs import metrics
from magnetar_operator.sparkjobs.act import SparkJobExecutor
from magnetar_operator.sparkjobs.demand import demand_for
from magnetar_operator.sparkjobs.desired import JOB_LABEL, Job
from magnetar_operator.sparkjobs.observe import find_place, observe
from magnetar_operator.sparkjobs.plan import SOON_S, Observed, Plan, Problem, plan
from magnetar_operator.sparkjobs.runs import ENDED
from magnetar_operator.sparkjobs.status import status


@dataclass(frozen=True, slots=True)
class Subject:
    """A SparkJob with its parsed spec and its cluster."""

    owner: Object
    job: Job
    absent: Problem | None
    """The reason why it has no cluster."""


class SparkJobReconciler(Reconciler[Subject, Observed, Plan]):
    """Reconciles SparkJobs through Kubernetes' Jobs and CronJobs."""

    def __init__(
        self,
        settings: Settings,
        kube: KubeClient,
        events: Events,
        clients: AdminClients,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(kube, StatusWriter(kube, lambda: utc(clock)))
        self._settings = settings
        self._events = events
        self._clients = clients
        self._clock = clock

    async def resolve(self, obj: Object) -> Subject:
        try:
            spec = SparkJobSpec.parse(obj.get("spec") or {})
        except msgspec.ValidationError as error:
            await self._events.record(obj, "Invalid", f"spec: {error}", type="Warning")
            raise Stopped from error
        metadata = obj["metadata"]
        place, absent = await find_place(self.kube, self._settings, metadata["namespace"], spec)
        job = Job(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            spec=spec,
            image=spec.image or self._settings.spark_image,
            place=place,
        )
        return Subject(obj, job, absent)

    async def observe(self, subject: Subject) -> Observed:
        observed = await observe(self.kube, subject.job)
        observed.demand = await demand_for(self._clients, subject.job, utc(self._clock))
        return observed

    def plan(self, subject: Subject, observed: Observed) -> Plan:
        return plan(subject.job, subject.owner, observed, subject.absent)

    async def act(self, subject: Subject, observed: Observed, plan: Plan) -> Outcome[Any]:  # noqa: ARG002
        executor = SparkJobExecutor(self.kube, self._events, subject.owner)
        return await executor.run(plan.actions)

    async def report(self, attempt: Attempt[Subject, Observed, Plan]) -> Report:
        owner, job = attempt.subject.owner, attempt.subject.job
        errors = [error for _, error in attempt.outcome.failed]
        for error in errors:
            await self._events.record(owner, "NotDone", str(error), type="Warning")
        before = self.status_of(owner)
        plan = attempt.plan.after(
            attempt.outcome, before.get("lastRequest"), before.get("lastThresholdRun")
        )
        is_plan_only = annotated(owner, "plan")
        now = utc(self._clock)
        seen = status(job, owner, attempt.observed, plan, now, is_plan_only=is_plan_only)
        states = {run.get("name"): run.get("state") for run in before.get("runs") or ()}
        for run in seen.runs:
            if run.state in ENDED and states.get(run.name) not in ENDED:
                text = f"{run.name}: {run.message}"
                await self._events.record(
                    owner,
                    f"Run{run.state}",
                    text,
                    type="Normal" if run.state == "Succeeded" else "Warning",
                )
        requeue_s = SOON_S if attempt.acted else plan.requeue_s
        return Report(seen.status, requeue_s, errors[0] if errors else None)


def register(context: Context) -> None:
    """Watches SparkJobs, and the Jobs and pods that they own."""
    reconciler = SparkJobReconciler(
        context.settings, context.kube, context.events, context.clients, context.clock
    )
    context.watch(SPARK_JOB, reconciler.reconcile)
    for kind in (BATCH_JOB, POD):
        context.watch_owned(kind, JOB_LABEL, SPARK_JOB)
    context.figures.append(lambda: metrics.lines(context.queue.all_of(SPARK_JOB.kind)))
