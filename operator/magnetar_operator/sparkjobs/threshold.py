"""Decides whether topics that wait for a job start a run of a SparkJob. Pure: no IO.

The brokers name the topics (`magnetar.documents.due_jobs`). One run at a time handles all topics of
the SparkJob's selection that wait when it starts. The next run starts at the earliest `pause` after
its end, FAILED_PAUSE_FACTOR times that after a failure, so that a topic whose job always fails does
not occupy the cluster.

The request of a run follows from that of the run before, which is in the status. So an operator
that is killed between the start of a run and the status names the same run when it continues.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.documents.due_jobs import DueJobs, DueTopic
from magnetar_operator.cluster.manifests.names import digest
from magnetar_operator.engine.status import timestamp
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.sparkjob import FAILED_PAUSE_FACTOR, Selection
from magnetar_operator.models.values import seconds
from magnetar_operator.sparkjobs.desired import Job
from magnetar_operator.sparkjobs.runs import ENDED, runs

POLL_S: Final = 30.0
"""Between two requests to the brokers."""
TOPICS_SHOWN_MAX: Final = 3
NOTHING_DUE: Final = DueJobs()
PARTITION: Final = "-partition-"


@dataclass(frozen=True, slots=True)
class Demand:
    """The answer of the brokers, at a time."""

    at: datetime.datetime
    due: DueJobs = NOTHING_DUE
    unknown: str = ""
    """Why the brokers' answer is not known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run starts, and why."""

    text: str
    request: str | None = None
    """The request of the run to start."""
    started: str | None = None
    """A request whose run was started, though the status does not say so."""


def decide(
    job: Job,
    before: Mapping[str, Any],
    jobs: Sequence[Object],
    pods: Sequence[Object],
    demand: Demand,
) -> Verdict:
    """Decides for a SparkJob with `onThreshold`. `before` is its status, `jobs` its Jobs."""
    trigger = job.spec.on_threshold
    waiting = selected(demand.due, job.spec.type, job.spec.selection)
    text = _described(waiting) if waiting else "no topic waits for a job"
    known = runs(before.get("runs") or (), jobs, pods, timestamp(demand.at))
    request = digest([job.uid, before.get("lastThresholdRun") or ""])[:16]
    if any(run.name == job.run_name(request) for run in known):
        return Verdict(text, started=request)
    if trigger is None or not waiting:
        return Verdict(text)
    if any(run.state not in ENDED for run in known):
        return Verdict(f"{text}; a run is in progress")
    last = known[0] if known else None
    if last is not None and last.ended_at:
        factor = 1 if last.state == "Succeeded" else FAILED_PAUSE_FACTOR
        pause_s = seconds(trigger.pause, "spec.onThreshold.pause") * factor
        # No sum of times: a pause may be longer than a date allows.
        passed = demand.at - datetime.datetime.fromisoformat(last.ended_at)
        if passed.total_seconds() < pause_s:
            return Verdict(f"{text}; the next run starts {pause_s:.0f} s after {last.ended_at}")
    return Verdict(text, request)


def selected(due: DueJobs, type_: str, selection: Selection) -> list[DueTopic]:
    """The topics that wait for a job of this type and are in the selection."""
    topics = due.compact if type_ == "Compact" else due.offload
    if not selection.topics and not selection.namespaces:
        return list(topics)
    return [topic for topic in topics if _selects(selection, topic.topic)]


def _selects(selection: Selection, topic: str) -> bool:
    base, suffix, number = topic.rpartition(PARTITION)
    whole = base if suffix and number.isdecimal() else topic
    namespace = topic.partition("://")[2].rpartition("/")[0]
    return namespace in selection.namespaces or not {topic, whole}.isdisjoint(selection.topics)


def _described(waiting: Sequence[DueTopic]) -> str:
    names = ", ".join(f"{topic.topic} ({topic.reason})" for topic in waiting[:TOPICS_SHOWN_MAX])
    more = len(waiting) - TOPICS_SHOWN_MAX
    return f"{len(waiting)} waiting: {names}" + (f" and {more} more" if more > 0 else "")
