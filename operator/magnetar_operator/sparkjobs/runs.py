"""Derives the runs of a SparkJob from its Jobs, its pods and its former status. Pure: no IO.

A run that has ended keeps its record: its pods, and then its Job, may be deleted. A run that was in
progress and whose Job is deleted counts as stopped. The result of a job is the JSON document that
the driver left as its termination message; without one, the reason that Kubernetes gives is shown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.sparkjob import Run
from magnetar_operator.sparkjobs.desired import DRIVER, EXECUTOR, ROLE_LABEL, SPEC_DIGEST

JOB_NAME: Final = "batch.kubernetes.io/job-name"
MESSAGE_CHARACTERS_MAX: Final = 1_000
FIGURES_MAX: Final = 64
ENDED: Final = frozenset({"Succeeded", "Failed", "Stopped"})

State = Literal["Starting", "Running", "Succeeded", "Failed", "Stopped"]


def runs(
    before: Iterable[Mapping[str, Any]], jobs: Iterable[Object], pods: Sequence[Object], now: str
) -> list[Run]:
    """All runs, the newest first."""
    recorded = {str(run.get("name")): Run.parse(dict(run)) for run in before}
    all_runs: dict[str, Run] = {}
    for job in jobs:
        name = job["metadata"]["name"]
        was = recorded.pop(name, None)
        all_runs[name] = was if was is not None and was.state in ENDED else _run(job, pods)
    for name, was in recorded.items():
        all_runs[name] = was if was.state in ENDED else _stopped(was, now)
    return sorted(all_runs.values(), key=lambda run: (run.started_at or "", run.name), reverse=True)


def is_over(pod: Object) -> bool:
    """Whether a pod has ended."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def has_role(pod: Object, role: str) -> bool:
    """Whether a pod is a driver or an executor."""
    return bool((pod["metadata"].get("labels") or {}).get(ROLE_LABEL) == role)


def orphans(pods: Sequence[Object]) -> list[Object]:
    """Executors whose driver has ended; an unscheduled one would otherwise wait forever."""
    over = {pod["metadata"]["uid"] for pod in pods if has_role(pod, DRIVER) and is_over(pod)}
    return [
        pod
        for pod in pods
        if has_role(pod, EXECUTOR)
        and "deletionTimestamp" not in pod["metadata"]
        and any(owner.get("uid") in over for owner in pod["metadata"].get("ownerReferences") or ())
    ]


def _stopped(was: Run, now: str) -> Run:
    return Run(
        name=was.name, state="Stopped", attempt=was.attempt, started_at=was.started_at,
        ended_at=now, message="its Job was deleted while it ran", spec=was.spec,
    )  # fmt: skip


def _run(job: Object, pods: Sequence[Object]) -> Run:
    metadata, status = job["metadata"], job.get("status") or {}
    name = metadata["name"]
    mine = sorted(
        (pod for pod in pods if (pod["metadata"].get("labels") or {}).get(JOB_NAME) == name),
        key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")),
    )
    pod = mine[-1] if mine else None
    state, ended_at, verdict = _state(status, pod)
    document = _document(pod)
    failed = int(status.get("failed") or 0)
    live = state not in ENDED or state == "Succeeded"
    waits = _waits(pod, pods, failed)
    return Run(
        name=name,
        state=state,
        attempt=max(1, failed + int(live)),
        started_at=status.get("startTime") or metadata.get("creationTimestamp"),
        ended_at=ended_at,
        message=_message(state, verdict, document, pod, waits)[:MESSAGE_CHARACTERS_MAX],
        spec=(metadata.get("annotations") or {}).get(SPEC_DIGEST, ""),
        result=_figures(document) if state in ENDED else None,
    )


def _state(status: Mapping[str, Any], pod: Object | None) -> tuple[State, str | None, str]:
    """The state, its end, and the reason that Kubernetes gives for a failure."""
    for condition in status.get("conditions") or ():
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Complete":
            return (
                "Succeeded",
                status.get("completionTime") or condition.get("lastTransitionTime"),
                "",
            )
        if condition.get("type") == "Failed":
            reason = str(condition.get("reason", ""))
            text = f"{reason}: {condition.get('message', '')}".strip(": ")
            return "Failed", condition.get("lastTransitionTime"), text
    if pod is not None and pod.get("status", {}).get("phase") == "Running":
        return "Running", None, ""
    return "Starting", None, ""


def _document(pod: Object | None) -> dict[str, Any] | None:
    """The document in the driver's termination message; None if it has none."""
    ended = _ended(pod)
    if ended is None:
        return None
    try:
        document = json.loads(ended.get("message") or "")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _figures(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if document is None or not isinstance(document.get("metrics"), dict):
        return None
    numbers = {
        str(name): value
        for name, value in document["metrics"].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return dict(list(numbers.items())[:FIGURES_MAX])


def _message(
    state: State,
    verdict: str,
    document: Mapping[str, Any] | None,
    pod: Object | None,
    waits: str,
) -> str:
    if state == "Succeeded":
        figures = _figures(document) or {}
        text = ", ".join(f"{name} {value:,}" for name, value in figures.items())
        return text or "done"
    why = _why(document, pod)
    if state == "Failed":
        return "; ".join(filter(None, (why, verdict)))
    return waits


def _waits(pod: Object | None, pods: Sequence[Object], failed: int) -> str:
    """Returns the obstacle of a run in progress, and the number of failed attempts."""
    texts = [trouble(pod) if pod is not None else "its pod does not exist yet"]
    uid = pod["metadata"]["uid"] if pod is not None else ""
    executors = (
        trouble(pod)
        for pod in pods
        if has_role(pod, EXECUTOR)
        and any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())
    )
    stuck = next(filter(None, executors), "")
    if stuck:
        texts.append(f"an executor cannot start: {stuck}")
    if failed:
        texts.append(f"{failed} of its attempts failed")
    return "; ".join(filter(None, texts))


def _why(document: Mapping[str, Any] | None, pod: Object | None) -> str:
    """Why a run failed: from its document, else from its container, else from its pod."""
    if document is not None and document.get("error"):
        return str(document["error"])
    ended = _ended(pod)
    if ended is None:
        return trouble(pod)
    # OOMKilled says more than the exit code that comes with it.
    text = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}"
    last = str(ended.get("message") or "").strip()
    return f"{text}: {last[-MESSAGE_CHARACTERS_MAX // 2 :]}" if last else text


def _ended(pod: Object | None) -> Mapping[str, Any] | None:
    for container in (pod or {}).get("status", {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return dict(ended)
    return None


def trouble(pod: Object | None) -> str:
    """Why a pod does not start, if Kubernetes reports it."""
    status = (pod or {}).get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
    if status.get("phase") == "Failed":
        return f"{status.get('reason', '')}: {status.get('message', '')}".strip(": ")
    return ""
