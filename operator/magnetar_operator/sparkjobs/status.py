"""Builds `SparkJob.status`: runs, the next due time, and conditions. Pure: no IO.

Ready: whether the state matches the spec; if not, why, and what to do. Succeeded: how the last run
ended. SpecChanged: a job that runs once has run, and its spec has changed since. BacklogGrowing:
whether the last backlog report counts subscriptions that grow or are stalled.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar_operator.engine.status import Condition, conditions, timestamp
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.sparkjob import Run
from magnetar_operator.sparkjobs.cron import BadSchedule, Schedule
from magnetar_operator.sparkjobs.desired import RUN, Job
from magnetar_operator.sparkjobs.plan import Observed, Plan
from magnetar_operator.sparkjobs.runs import ENDED, runs

RUNS_MAX: Final = 200
PLAN_STEPS_MAX: Final = 1_000
BACKLOG: Final = "Backlog"
TROUBLES: Final = {"unreadable": "Unreadable", "growing": "Growing", "stalled": "Stalled"}
"""Figures of a backlog report that count subscriptions in trouble, the worst first, by reason."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The status, and the runs that it lists."""

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
    """The whole status, except lastReconciled, with the runs that it lists."""
    before: Mapping[str, Any] = owner.get("status") or {}
    generation = owner["metadata"].get("generation", 0)
    at = timestamp(now)
    known = runs(before.get("runs") or (), observed.jobs, observed.pods, at)
    kept = _kept(job, observed, known)
    active = [run for run in known if run.state not in ENDED]
    due = next_due(job, observed)
    document: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": _phase(job, plan, known, active),
        "cluster": job.place.name if job.place else "",
        "active": len(active),
        "runs": [run.manifest() for run in kept],
        "lastRunAt": _latest(before.get("lastRunAt"), (run.started_at for run in known)),
        "lastSuccessAt": _latest(
            before.get("lastSuccessAt"),
            (run.ended_at for run in known if run.state == "Succeeded"),
        ),
        "nextRunAt": timestamp(due) if due else None,
        "lastRequest": plan.request,
        "lastThresholdRun": plan.threshold_run,
        "plan": [action.step.manifest() for action in plan.actions[:PLAN_STEPS_MAX]]
        if is_plan_only
        else [],
    }
    job_conditions = _conditions(job, plan, known, active, due)
    document["conditions"] = conditions(
        before.get("conditions") or (), job_conditions, generation, now
    )
    # A status is applied as a whole: absent fields are removed, and null is refused.
    return Seen(_without_nulls(document), kept)


def next_due(job: Job, observed: Observed) -> datetime.datetime | None:
    """When the CronJob controller starts the next run; in the past while that is delayed."""
    cron = observed.cron
    if job.spec.schedule is None or cron is None or job.spec.suspend or job.place is None:
        return None
    try:
        schedule = Schedule.parse(job.spec.schedule, job.spec.time_zone)
    except BadSchedule:
        return None  # the API server has refused it, with the reason
    last = (cron.get("status") or {}).get("lastScheduleTime")
    return schedule.after(
        datetime.datetime.fromisoformat(last or cron["metadata"]["creationTimestamp"])
    )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(obj) for key, obj in value.items() if obj is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _kept(job: Job, observed: Observed, known: Sequence[Run]) -> list[Run]:
    """Runs whose Jobs exist, and the newest others within the history limit."""
    existing = {job["metadata"]["name"] for job in observed.jobs}
    ended = 0
    kept = []
    for run in known:
        if run.state in ENDED:
            ended += 1
        if (
            run.name in existing
            or run.state not in ENDED
            or ended <= max(1, job.spec.history_limit)
        ):
            kept.append(run)
    return kept[:RUNS_MAX]


def _latest(before: object, times: Any) -> str | None:
    return max(filter(None, (str(before or ""), *times)), default=None)


def _last_ended(known: Sequence[Run]) -> Run | None:
    return next((run for run in known if run.state in ENDED), None)


def _phase(job: Job, plan: Plan, known: Sequence[Run], active: Sequence[Run]) -> str:
    if active:
        return "Running"
    if job.spec.suspend:
        return "Suspended"
    if plan.problems:
        return "Waiting"
    if job.spec.on_threshold is not None:
        return "Watching"
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
    all_conditions = [_ready(job, plan, last, active, due)]
    if last is not None:
        all_conditions.append(
            Condition("Succeeded", last.state == "Succeeded", last.state, _end_text(last))
        )
    ran = last.spec if last is not None and not active and _runs_once(job) else ""
    if ran and ran != job.spec_digest:
        text = f"it has run with another spec; to run it again: {_again(job)}"
        all_conditions.append(Condition("SpecChanged", True, "RunsOnce", text))
    if job.spec.type == BACKLOG and last is not None and last.result:
        all_conditions.append(_backlog(last.result))
    return all_conditions


def _backlog(figures: Mapping[str, Any]) -> Condition:
    """The condition BacklogGrowing, from the figures of the last report."""
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
        text = "; ".join(text.message for text in plan.problems)
        return Condition("Ready", False, plan.problems[0].reason, text)
    if active:
        return _running(active[0])
    if job.spec.suspend:
        return Condition("Ready", True, "Suspended", "spec.suspend is true: no run is started")
    if last is not None and last.state != "Succeeded":
        text = _end_text(last)
        if job.spec.on_threshold is not None:
            return Condition("Ready", False, f"Run{last.state}", f"{text}; {plan.watching}")
        if job.spec.schedule is None:
            text = f"{text}; to run it again: {_again(job)}"
        return Condition("Ready", False, f"Run{last.state}", text)
    if job.spec.on_threshold is not None:
        return Condition("Ready", True, "Watching", plan.watching)
    if job.spec.schedule is not None:
        text = f"the next run is due at {timestamp(due)}" if due else "no run will ever be due"
        return Condition("Ready", True, "Scheduled", text)
    if last is not None:
        return Condition("Ready", True, "Succeeded", _end_text(last))
    return Condition("Ready", False, "Waiting", "its run has not started yet")


def _runs_once(job: Job) -> bool:
    return job.spec.schedule is None and job.spec.on_threshold is None


def _running(run: Run) -> Condition:
    text = f"{run.name} ({run.state.lower()}, attempt {run.attempt})"
    detail = f": {run.message}" if run.message else ""
    if run.state == "Starting":
        return Condition("Ready", not detail, "RunStarting", f"{text}{detail}")
    return Condition("Ready", True, "Running", f"{text}{detail}; kubectl logs -f job/{run.name}")


def _end_text(run: Run) -> str:
    logs = "" if run.state == "Stopped" else f" (kubectl logs job/{run.name})"
    return f"{run.name} {run.state.lower()}: {run.message}{logs}"


def _again(job: Job) -> str:
    return f'kubectl annotate mspark {job.name} --overwrite {RUN}="$(date +%s)"'
