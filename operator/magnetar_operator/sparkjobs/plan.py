"""What is to be done for a SparkJob: desired and observed give actions, in order. Pure.

Runs are requested: a job without a schedule requests one when it is made, the annotation
`magnetar.io/run` another for each value that was not used before, with a schedule or without.
A run's Job is named after the SparkJob's uid and the request, so a request is never carried out
twice, whatever an operator that was killed could not tell; what was carried out is remembered in
status.lastRequest, so that it stays so when the Job is gone. A schedule is Kubernetes' CronJob.

Nothing is deleted but Jobs beyond the history whose end the status has, a run that another takes
the place of (`concurrencyPolicy: Replace`), and executors that outlived their driver.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from magnetar_operator.api_kinds import BATCH_JOB, POD, Kind, Object
from magnetar_operator.cluster.compare import differences
from magnetar_operator.cluster.manifests.naming import APPLIED
from magnetar_operator.models.base import PlanStep
from magnetar_operator.sparkjobs import manifests
from magnetar_operator.sparkjobs.runs import ENDED, orphans
from magnetar_operator.sparkjobs.submit import BadSpec
from magnetar_operator.sparkjobs.wanted import RUN, Job, is_ours

WAITING_S: Final = 10.0
"""Until the next look for a cluster that is not there."""
SOON_S: Final = 1.0
FIRST: Final = ""
"""The request of a job without schedule and annotation."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply."""

    manifest: Object
    before: Object | None
    verb: Literal["create", "update", "repair"]
    text: str

    @property
    def step(self) -> PlanStep:
        target = f"{self.manifest['kind']} {self.manifest['metadata']['name']}"
        return PlanStep(action=self.verb, target=target, text=self.text)


@dataclass(frozen=True, slots=True)
class Suspend:
    """The schedule pauses while its cluster is not there."""

    name: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="suspend", target=f"CronJob {self.name}", text=self.text)


@dataclass(frozen=True, slots=True)
class Start:
    """One run, now."""

    manifest: Object
    request: str
    text: str

    @property
    def step(self) -> PlanStep:
        target = f"Job {self.manifest['metadata']['name']}"
        return PlanStep(action="start", target=target, text=self.text)


@dataclass(frozen=True, slots=True)
class Remove:
    """That very object."""

    kind: Kind
    name: str
    uid: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="delete", target=f"{self.kind.kind} {self.name}", text=self.text)


Action = Apply | Suspend | Start | Remove


@dataclass(slots=True)
class Observed:
    """What there is of a SparkJob."""

    cron: Object | None = None
    jobs: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    rights: dict[str, Object] = field(default_factory=dict)
    """ServiceAccount, Role and RoleBinding, by kind."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something is not as the spec says; a condition's reason and message."""

    reason: str
    message: str


@dataclass(slots=True)
class Plan:
    """See the module's text."""

    actions: list[Action] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    request: str | None = None
    """Carried out by now, or by these actions; None: none ever was."""
    again_s: float | None = None


def plan(job: Job, owner: Object, observed: Observed, absent: Problem | None = None) -> Plan:
    """`absent`: why there is no `job.place`."""
    before = owner.get("status") or {}
    found = Plan(request=before.get("lastRequest"))
    try:
        if job.place is not None:
            build = manifests.job_spec if job.spec.schedule is None else manifests.cron_job
            build(job, job.place)
    except BadSpec as error:
        found.problems.append(Problem("InvalidSpec", str(error)))
    _rights(job, observed, found)
    if absent is not None:
        found.problems.append(absent)
        found.again_s = WAITING_S
    _schedule(job, observed, found)
    _request(job, owner, observed, found)
    _clean(job, before, observed, found)
    return found


def wanted_request(job: Job, owner: Object, done: str | None) -> str | None:
    """The one to be carried out, if it was not yet."""
    asked = (owner["metadata"].get("annotations") or {}).get(RUN)
    if asked is None:
        return FIRST if job.spec.schedule is None and done is None else None
    return asked if asked != done else None


def _rights(job: Job, observed: Observed, found: Plan) -> None:
    for wanted in manifests.rights(job):
        live = observed.rights.get(wanted["kind"])
        _apply(job, wanted, live, found, "what drivers may do")


def _apply(job: Job, wanted: Object, live: Object | None, found: Plan, what: str) -> None:
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    if live is None:
        found.actions.append(Apply(wanted, None, "create", what))
        return
    if not is_ours(live, job.uid):
        found.problems.append(
            Problem(
                "NameTaken",
                f"there is a {kind} {name} that is not this SparkJob's: delete it, or give the "
                "SparkJob another name",
            )
        )
        return
    told = differences(wanted, live)
    if told:
        same = (live["metadata"].get("annotations") or {}).get(APPLIED) == (
            wanted["metadata"]["annotations"][APPLIED]
        )
        found.actions.append(Apply(wanted, live, "repair" if same else "update", "; ".join(told)))


def _schedule(job: Job, observed: Observed, found: Plan) -> None:
    if job.spec.schedule is None:
        return
    live = observed.cron
    if job.place is not None:
        if not found.problems:
            what = f"runs by the schedule {job.spec.schedule}"
            _apply(job, manifests.cron_job(job, job.place), live, found, what)
    elif live is not None and is_ours(live, job.uid) and not live["spec"].get("suspend"):
        found.actions.append(Suspend(job.name, "its cluster is not there"))


def _request(job: Job, owner: Object, observed: Observed, found: Plan) -> None:
    request = wanted_request(job, owner, found.request)
    if request is None:
        return
    name = job.run_name(request)
    if any(one["metadata"]["name"] == name for one in observed.jobs):
        found.request = request  # an operator that could not tell of it has done it
        return
    if found.problems or job.spec.suspend or job.place is None:
        return
    if not job.place.is_ready:
        text = f"the metadata store of {job.place.name} is not ready"
        found.problems.append(Problem("WaitingForCluster", text))
        found.again_s = WAITING_S
        return
    cron = observed.cron
    if job.spec.schedule is not None and cron is None:
        found.again_s = SOON_S  # it is made first
        return
    active = [one for one in observed.jobs if not _is_over(one)]
    if active and job.spec.concurrency_policy == "Forbid":
        return  # its end brings the next look
    if active and job.spec.concurrency_policy == "Replace":
        text = f"{name} takes its place"
        found.actions += [_remove(BATCH_JOB, one, text) for one in active]
    made = manifests.run(job, job.place, request, cron if job.spec.schedule is not None else None)
    why = f"asked for by {RUN}: {request}" if request else "a job without a schedule runs once"
    found.actions.append(Start(made, request, why))
    found.request = request


def _clean(job: Job, before: Mapping[str, Any], observed: Observed, found: Plan) -> None:
    told = {str(one.get("name")) for one in before.get("runs") or () if one.get("state") in ENDED}
    going = {one.name for one in found.actions if isinstance(one, Remove)}
    over = sorted(
        (one for one in observed.jobs if _is_over(one)),
        key=lambda one: str(one["metadata"].get("creationTimestamp", "")),
        reverse=True,
    )
    for one in over[job.spec.history_limit :]:
        name = one["metadata"]["name"]
        if name in going or "deletionTimestamp" in one["metadata"]:
            continue
        if name in told:
            text = f"beyond historyLimit {job.spec.history_limit}"
            found.actions.append(_remove(BATCH_JOB, one, text))
        else:
            found.again_s = SOON_S  # what it said is kept in it until the status has it
    text = "its driver has ended"
    found.actions += [_remove(POD, one, text) for one in orphans(observed.pods)]


def _remove(kind: Kind, one: Object, text: str) -> Remove:
    return Remove(kind, one["metadata"]["name"], one["metadata"]["uid"], text)


def _is_over(job: Object) -> bool:
    return any(
        one.get("type") in ("Complete", "Failed") and one.get("status") == "True"
        for one in (job.get("status") or {}).get("conditions") or ()
    )
