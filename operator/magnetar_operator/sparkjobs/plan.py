"""Plans a SparkJob: the actions, in order, from its spec and the observed state. Pure: no IO.

Runs are requested. A job without schedule and `onThreshold` requests a run when it is created. Each
new value of the annotation `magnetar.io/run` requests another, with or without them. With
`onThreshold`, topics that wait for a job request one (`threshold`). A run's Job is named
after the SparkJob's uid and the request, so no request is carried out twice, even if the operator
is killed before it writes the status. status.lastRequest records the request, so that it counts as
done after the Job is deleted. A schedule is a CronJob of Kubernetes.

A plan deletes only these: Jobs beyond the history whose end is in the status, a run that another
one replaces (`concurrencyPolicy: Replace`), and executors that outlive their driver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar_operator.cluster.manifests.names import APPLIED
from magnetar_operator.engine import plan as engine
from magnetar_operator.engine.differences import differences
from magnetar_operator.engine.plan import Apply, Outcome, Remove
from magnetar_operator.kube.client import Invalid
from magnetar_operator.kube.kinds import BATCH_JOB, POD, Kind, Object
from magnetar_operator.models.base import PlanStep
from magnetar_operator.sparkjobs import manifests, threshold
from magnetar_operator.sparkjobs.desired import RUN, Job, is_ours
from magnetar_operator.sparkjobs.runs import ENDED, orphans
from magnetar_operator.sparkjobs.submit import BadSpec
from magnetar_operator.sparkjobs.threshold import Demand

WAITING_S: Final = 10.0
"""Until the next reconcile while the cluster does not exist."""
SOON_S: Final = 1.0
FIRST: Final = ""
"""The request of a job without schedule and annotation."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspends the schedule while its cluster does not exist."""

    name: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="suspend", target=f"CronJob {self.name}", text=self.text)


@dataclass(frozen=True, slots=True)
class Start:
    """Starts one run now."""

    manifest: Object
    request: str
    text: str

    @property
    def step(self) -> PlanStep:
        target = f"Job {self.manifest['metadata']['name']}"
        return PlanStep(action="start", target=target, text=self.text)


Action = Apply | Suspend | Start | Remove


@dataclass(slots=True)
class Observed:
    """The present objects of a SparkJob."""

    cron: Object | None = None
    jobs: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    rights: dict[str, Object] = field(default_factory=dict)
    """ServiceAccount, Role and RoleBinding, by kind."""
    demand: Demand | None = None
    """The topics that wait for the job; None without `onThreshold`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A deviation from the spec: the reason and the message of a condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan(engine.Plan[Action]):
    """The actions for a SparkJob, with the problems that its status shows."""

    problems: Sequence[Problem] = ()
    request: str | None = None
    """The request that the actions complete; None: no run was ever requested."""
    threshold_run: str | None = None
    """The request of the last run by threshold, including that of the actions."""
    watching: str = ""
    """With `onThreshold`: why no run starts now."""

    def after(
        self, outcome: Outcome[Action], request_before: str | None, run_before: str | None = None
    ) -> "Plan":
        """The plan as the status shows it after its actions were carried out."""
        problems = [
            Problem("InvalidSpec" if isinstance(error, Invalid) else "NotDone", str(error))
            for _, error in outcome.failed
        ]
        starts = [action for action in self.actions if isinstance(action, Start)]
        started = all(action in outcome.done for action in starts)
        request = self.request if started else request_before
        run = self.threshold_run if started else run_before
        problems = [*self.problems, *problems]
        return replace(self, problems=problems, request=request, threshold_run=run)


@dataclass(slots=True)
class _Draft:
    """A plan under construction."""

    request: str | None
    actions: list[Action] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    requeue_s: float | None = None
    threshold_run: str | None = None
    watching: str = ""


def plan(job: Job, owner: Object, observed: Observed, absent: Problem | None = None) -> Plan:
    """Plans the actions that lead from `observed` to the spec of the SparkJob.

    `absent`: why there is no `job.place`.
    """
    before = owner.get("status") or {}
    draft = _Draft(before.get("lastRequest"), threshold_run=before.get("lastThresholdRun"))
    try:
        if job.place is not None:
            build = manifests.job_spec if job.spec.schedule is None else manifests.cron_job
            build(job, job.place)
    except BadSpec as error:
        draft.problems.append(Problem("InvalidSpec", str(error)))
    _rights(job, observed, draft)
    if absent is not None:
        draft.problems.append(absent)
        draft.requeue_s = WAITING_S
    _schedule(job, observed, draft)
    _request(job, owner, observed, draft)
    _threshold(job, before, observed, draft)
    _clean(job, before, observed, draft)
    return Plan(
        *(tuple(draft.actions), draft.requeue_s, tuple(draft.problems), draft.request),
        *(draft.threshold_run, draft.watching),
    )


def wanted_request(job: Job, owner: Object, done: str | None) -> str | None:
    """The request to carry out now; None: none."""
    request = (owner["metadata"].get("annotations") or {}).get(RUN)
    if request is None:
        runs_once = job.spec.schedule is None and job.spec.on_threshold is None
        return FIRST if runs_once and done is None else None
    return request if request != done else None


def _rights(job: Job, observed: Observed, draft: _Draft) -> None:
    for wanted in manifests.rights(job):
        live = observed.rights.get(wanted["kind"])
        _apply(job, wanted, live, draft, "rights of drivers")


def _apply(job: Job, wanted: Object, live: Object | None, draft: _Draft, what: str) -> None:
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    if live is None:
        draft.actions.append(Apply(wanted, "create", what))
        return
    if not is_ours(live, job.uid):
        draft.problems.append(
            Problem(
                "NameTaken",
                f"there is a {kind} {name} that is not this SparkJob's: delete it, or give the "
                "SparkJob another name",
            )
        )
        return
    changes = differences(wanted, live)
    if changes:
        same = (live["metadata"].get("annotations") or {}).get(APPLIED) == (
            wanted["metadata"]["annotations"][APPLIED]
        )
        text = "; ".join(changes)
        if same:
            draft.actions.append(Apply(wanted, "repair", text, live, "DriftRepaired"))
        else:
            draft.actions.append(Apply(wanted, "update", text, live))


def _schedule(job: Job, observed: Observed, draft: _Draft) -> None:
    if job.spec.schedule is None:
        return
    live = observed.cron
    if job.place is not None:
        if not draft.problems:
            what = f"runs by the schedule {job.spec.schedule}"
            _apply(job, manifests.cron_job(job, job.place), live, draft, what)
    elif live is not None and is_ours(live, job.uid) and not live["spec"].get("suspend"):
        draft.actions.append(Suspend(job.name, "its cluster does not exist"))


def _request(job: Job, owner: Object, observed: Observed, draft: _Draft) -> None:
    request = wanted_request(job, owner, draft.request)
    if request is None:
        return
    name = job.run_name(request)
    if any(job["metadata"]["name"] == name for job in observed.jobs):
        draft.request = request  # an operator carried it out but ended before it wrote the status
        return
    if draft.problems or job.spec.suspend or job.place is None:
        return
    if not job.place.is_ready:
        text = f"the metadata store of {job.place.name} is not ready"
        draft.problems.append(Problem("WaitingForCluster", text))
        draft.requeue_s = WAITING_S
        return
    cron = observed.cron
    if job.spec.schedule is not None and cron is None:
        draft.requeue_s = SOON_S  # the CronJob is created first
        return
    active = [job for job in observed.jobs if not _is_over(job)]
    if active and job.spec.concurrency_policy == "Forbid":
        return  # the end of the active run causes the next reconcile
    if active and job.spec.concurrency_policy == "Replace":
        text = f"{name} replaces it"
        draft.actions += [_remove(BATCH_JOB, job, text) for job in active]
    manifest = manifests.run(
        job, job.place, request, cron if job.spec.schedule is not None else None
    )
    reason = f"requested by {RUN}: {request}" if request else "a job without a schedule runs once"
    draft.actions.append(Start(manifest, request, reason))
    draft.request = request


def _threshold(job: Job, before: Mapping[str, Any], observed: Observed, draft: _Draft) -> None:
    """Starts a run for topics that wait for a job."""
    demand = observed.demand
    if demand is None:
        return
    draft.requeue_s = min(draft.requeue_s or threshold.POLL_S, threshold.POLL_S)
    if demand.unknown:
        draft.problems.append(Problem("DemandUnknown", demand.unknown))
    starts = any(isinstance(action, Start) for action in draft.actions)
    if draft.problems or job.spec.suspend or job.place is None or starts:
        return
    verdict = threshold.decide(job, before, observed.jobs, observed.pods, demand)
    draft.watching = verdict.text
    if verdict.started is not None:
        draft.threshold_run = verdict.started
    if verdict.request is None:
        return
    if not job.place.is_ready:
        text = f"the metadata store of {job.place.name} is not ready"
        draft.problems.append(Problem("WaitingForCluster", text))
        return
    manifest = manifests.run(job, job.place, verdict.request, None)
    draft.actions.append(Start(manifest, verdict.request, verdict.text))
    draft.threshold_run = verdict.request


def _clean(job: Job, before: Mapping[str, Any], observed: Observed, draft: _Draft) -> None:
    recorded = {
        str(run.get("name")) for run in before.get("runs") or () if run.get("state") in ENDED
    }
    removed = {action.name for action in draft.actions if isinstance(action, Remove)}
    over = sorted(
        (job for job in observed.jobs if _is_over(job)),
        key=lambda job: str(job["metadata"].get("creationTimestamp", "")),
        reverse=True,
    )
    for obj in over[job.spec.history_limit :]:
        name = obj["metadata"]["name"]
        if name in removed or "deletionTimestamp" in obj["metadata"]:
            continue
        if name in recorded:
            text = f"beyond historyLimit {job.spec.history_limit}"
            draft.actions.append(_remove(BATCH_JOB, obj, text))
        else:
            draft.requeue_s = SOON_S  # the status does not have its result yet
    text = "its driver has ended"
    draft.actions += [_remove(POD, pod, text) for pod in orphans(observed.pods)]


def _remove(kind: Kind, obj: Object, text: str) -> Remove:
    return Remove(kind, obj["metadata"]["name"], obj["metadata"]["uid"], text)


def _is_over(job: Object) -> bool:
    return any(
        condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True"
        for condition in (job.get("status") or {}).get("conditions") or ()
    )
