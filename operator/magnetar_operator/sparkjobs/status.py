"""`SparkJob.status`: runs, when the next is due, and conditions that explain. Pure.

Ready: whether all is as the spec says; where not, why, and what to do. Succeeded: how the last run
that ended went. SpecChanged: a job that runs once, and has, was given another spec since.
BacklogGrowing: whether the last backlog report counts subscriptions that grow or are stalled.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.models.sparkjob import Run
from magnetar_operator.resources.resource_status import Condition, conditions, timestamp
from magnetar_operator.sparkjobs.cron import BadSchedule, Schedule
from magnetar_operator.sparkjobs.plan import Observed, Plan
from magnetar_operator.sparkjobs.runs import ENDED, runs
from magnetar_operator.sparkjobs.wanted import RUN, Job

RUNS_MAX: Final = 200
PLAN_STEPS_MAX: Final = 1_000
BACKLOG: Final = "Backlog"
TROUBLES: Final = {"unreadable": "Unreadable", "growing": "Growing", "stalled": "Stalled"}
"""Figures of a backlog report that count subscriptions in trouble, the worst first, by reason."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the status says, and the runs that it tells of."""

    status: dict[str, Any]
    runs: list[Run]


def status(
    job: Job,
    owner: Object,
    observed: Observed,
    plan: Plan,
    now: datetime.datetime,
    *,
    is_plan_only: bool = False,
) -> Seen:
    """All of it but lastReconciled."""
    before: Mapping[str, Any] = owner.get("status") or {}
    generation = owner["metadata"].get("generation", 0)
    at = timestamp(now)
    known = runs(before.get("runs") or (), observed.jobs, observed.pods, at)
    kept = _kept(job, observed, known)
    active = [one for one in known if one.state not in ENDED]
    due = next_due(job, observed)
    told: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": _phase(job, plan, known, active),
        "cluster": job.place.name if job.place else "",
        "active": len(active),
        "runs": [one.manifest() for one in kept],
        "lastRunAt": _latest(before.get("lastRunAt"), (one.started_at for one in known)),
        "lastSuccessAt": _latest(
            before.get("lastSuccessAt"),
            (one.ended_at for one in known if one.state == "Succeeded"),
        ),
        "nextRunAt": timestamp(due) if due else None,
        "lastRequest": plan.request,
        "plan": [one.step.manifest() for one in plan.actions[:PLAN_STEPS_MAX]]
        if is_plan_only
        else [],
    }
    found = _conditions(job, plan, known, active, due)
    told["conditions"] = conditions(before.get("conditions") or (), found, generation, now)
    # An apply takes away what it leaves out; it knows no null.
    return Seen(_without_nulls(told), kept)


def next_due(job: Job, observed: Observed) -> datetime.datetime | None:
    """When the CronJob controller starts the next run; past where it waits for something."""
    cron = observed.cron
    if job.spec.schedule is None or cron is None or job.spec.suspend or job.place is None:
        return None
    try:
        schedule = Schedule.parse(job.spec.schedule, job.spec.time_zone)
    except BadSchedule:
        return None  # the API server has refused it, and says why
    last = (cron.get("status") or {}).get("lastScheduleTime")
    return schedule.after(
        datetime.datetime.fromisoformat(last or cron["metadata"]["creationTimestamp"])
    )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _kept(job: Job, observed: Observed, known: Sequence[Run]) -> list[Run]:
    """Those whose Jobs are there, and of the others as many as the history may have."""
    there = {one["metadata"]["name"] for one in observed.jobs}
    ended = 0
    kept = []
    for one in known:
        if one.state in ENDED:
            ended += 1
        if one.name in there or one.state not in ENDED or ended <= max(1, job.spec.history_limit):
            kept.append(one)
    return kept[:RUNS_MAX]


def _latest(before: object, times: Any) -> str | None:
    return max(filter(None, (str(before or ""), *times)), default=None)


def _last_ended(known: Sequence[Run]) -> Run | None:
    return next((one for one in known if one.state in ENDED), None)


def _phase(job: Job, plan: Plan, known: Sequence[Run], active: Sequence[Run]) -> str:
    if active:
        return "Running"
    if job.spec.suspend:
        return "Suspended"
    if plan.problems:
        return "Waiting"
    if job.spec.schedule is not None:
        return "Scheduled"
    last = _last_ended(known)
    if last is None:
        return "Waiting"
    return "Succeeded" if last.state == "Succeeded" else "Failed"


def _conditions(
    job: Job,
    plan: Plan,
    known: Sequence[Run],
    active: Sequence[Run],
    due: datetime.datetime | None,
) -> list[Condition]:
    last = _last_ended(known)
    found = [_ready(job, plan, last, active, due)]
    if last is not None:
        found.append(Condition("Succeeded", last.state == "Succeeded", last.state, _told(last)))
    ran = last.spec if last is not None and not active and job.spec.schedule is None else ""
    if ran and ran != job.spec_digest:
        text = f"it has run with another spec; to run it again: {_again(job)}"
        found.append(Condition("SpecChanged", True, "RunsOnce", text))
    if job.spec.type == BACKLOG and last is not None and last.result:
        found.append(_backlog(last.result))
    return found


def _backlog(figures: Mapping[str, Any]) -> Condition:
    """Whether backlogs are on their way to trouble, as the last report has it."""
    counts = {name: int(figures.get(name) or 0) for name in TROUBLES}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    worst = next((reason for name, reason in TROUBLES.items() if counts[name]), "")
    behind = f"of {int(figures.get('subscriptions') or 0):,} subscriptions"
    if not worst:
        return Condition("BacklogGrowing", False, "Draining", f"none {behind} grows or is stalled")
    return Condition("BacklogGrowing", True, worst, f"{text} {behind}")


def _ready(
    job: Job,
    plan: Plan,
    last: Run | None,
    active: Sequence[Run],
    due: datetime.datetime | None,
) -> Condition:
    if plan.problems:
        text = "; ".join(one.message for one in plan.problems)
        return Condition("Ready", False, plan.problems[0].reason, text)
    if active:
        return _running(active[0])
    if job.spec.suspend:
        return Condition("Ready", True, "Suspended", "spec.suspend is true: no run is started")
    if last is not None and last.state != "Succeeded":
        text = _told(last)
        if job.spec.schedule is None:
            text = f"{text}; to run it again: {_again(job)}"
        return Condition("Ready", False, f"Run{last.state}", text)
    if job.spec.schedule is not None:
        text = f"the next run is due at {timestamp(due)}" if due else "no run will ever be due"
        return Condition("Ready", True, "Scheduled", text)
    if last is not None:
        return Condition("Ready", True, "Succeeded", _told(last))
    return Condition("Ready", False, "Waiting", "its run is not there yet")


def _running(run: Run) -> Condition:
    text = f"{run.name} ({run.state.lower()}, try {run.attempt})"
    told = f": {run.message}" if run.message else ""
    if run.state == "Starting":
        return Condition("Ready", not told, "RunStarting", f"{text}{told}")
    return Condition("Ready", True, "Running", f"{text}{told}; kubectl logs -f job/{run.name}")


def _told(run: Run) -> str:
    where = "" if run.state == "Stopped" else f" (kubectl logs job/{run.name})"
    return f"{run.name} {run.state.lower()}: {run.message}{where}"


def _again(job: Job) -> str:
    return f'kubectl annotate mspark {job.name} --overwrite {RUN}="$(date +%s)"'
