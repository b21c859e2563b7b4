"""Runs as the Jobs and pods of a SparkJob tell of them, and as the status remembers them. Pure.

A run that ended is told once and stays so: its pods, and then its Job, may go. A run that was under
way and whose Job is gone was stopped. What a job said at its end is the JSON document that the
driver left as its termination message; where it said nothing, Kubernetes' reason is told.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from magnetar_operator.api_kinds import Object
from magnetar_operator.models.sparkjob import Run
from magnetar_operator.sparkjobs.wanted import DRIVER, EXECUTOR, ROLE_LABEL, SPEC_DIGEST

JOB_NAME: Final = "batch.kubernetes.io/job-name"
MESSAGE_CHARACTERS_MAX: Final = 1_000
FIGURES_MAX: Final = 64
ENDED: Final = frozenset({"Succeeded", "Failed", "Stopped"})

State = Literal["Starting", "Running", "Succeeded", "Failed", "Stopped"]


def runs(
    before: Iterable[Mapping[str, Any]], jobs: Iterable[Object], pods: Sequence[Object], now: str
) -> list[Run]:
    """All that are known, the newest first."""
    known = {str(one.get("name")): Run.parse(dict(one)) for one in before}
    found: dict[str, Run] = {}
    for job in jobs:
        name = job["metadata"]["name"]
        was = known.pop(name, None)
        found[name] = was if was is not None and was.state in ENDED else _run(job, pods)
    for name, was in known.items():
        found[name] = was if was.state in ENDED else _stopped(was, now)
    return sorted(found.values(), key=lambda one: (one.started_at or "", one.name), reverse=True)


def is_over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def has_role(pod: Object, role: str) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(ROLE_LABEL) == role)


def orphans(pods: Sequence[Object]) -> list[Object]:
    """Executors whose driver has ended: one that waits for a node would never hear of it."""
    over = {one["metadata"]["uid"] for one in pods if has_role(one, DRIVER) and is_over(one)}
    return [
        one
        for one in pods
        if has_role(one, EXECUTOR)
        and "deletionTimestamp" not in one["metadata"]
        and any(each.get("uid") in over for each in one["metadata"].get("ownerReferences") or ())
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
        (one for one in pods if (one["metadata"].get("labels") or {}).get(JOB_NAME) == name),
        key=lambda one: str(one["metadata"].get("creationTimestamp", "")),
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
    """With its end, and the reason that Kubernetes gives for a failure."""
    for one in status.get("conditions") or ():
        if one.get("status") != "True":
            continue
        if one.get("type") == "Complete":
            return "Succeeded", status.get("completionTime") or one.get("lastTransitionTime"), ""
        if one.get("type") == "Failed":
            reason = str(one.get("reason", ""))
            said = f"{reason}: {one.get('message', '')}".strip(": ")
            return "Failed", one.get("lastTransitionTime"), said
    if pod is not None and pod.get("status", {}).get("phase") == "Running":
        return "Running", None, ""
    return "Starting", None, ""


def _document(pod: Object | None) -> dict[str, Any] | None:
    """What the job said at its end."""
    ended = _ended(pod)
    if ended is None:
        return None
    try:
        found = json.loads(ended.get("message") or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


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
        told = ", ".join(f"{name} {value:,}" for name, value in figures.items())
        return told or "done"
    why = _why(document, pod)
    if state == "Failed":
        return "; ".join(filter(None, (why, verdict)))
    return waits


def _waits(pod: Object | None, pods: Sequence[Object], failed: int) -> str:
    """What a run that is under way waits for, and what became of it before."""
    told = [trouble(pod) if pod is not None else "its pod is not there yet"]
    uid = pod["metadata"]["uid"] if pod is not None else ""
    executors = (
        trouble(one)
        for one in pods
        if has_role(one, EXECUTOR)
        and any(each.get("uid") == uid for each in one["metadata"].get("ownerReferences") or ())
    )
    stuck = next(filter(None, executors), "")
    if stuck:
        told.append(f"an executor cannot begin: {stuck}")
    if failed:
        told.append(f"{failed} of its tries failed")
    return "; ".join(filter(None, told))


def _why(document: Mapping[str, Any] | None, pod: Object | None) -> str:
    """Of a failure: the job's word, else how the container ended, else why it did not begin."""
    if document is not None and document.get("error"):
        return str(document["error"])
    ended = _ended(pod)
    if ended is None:
        return trouble(pod)
    # OOMKilled says more than the code it comes with.
    text = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}"
    last = str(ended.get("message") or "").strip()
    return f"{text}: {last[-MESSAGE_CHARACTERS_MAX // 2 :]}" if last else text


def _ended(pod: Object | None) -> Mapping[str, Any] | None:
    for one in (pod or {}).get("status", {}).get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated")
        if ended:
            return dict(ended)
    return None


def trouble(pod: Object | None) -> str:
    """Why a pod does not begin, where Kubernetes says."""
    status = (pod or {}).get("status") or {}
    for one in status.get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return f"{one.get('reason', '')}: {one.get('message', '')}".strip(": ")
    if status.get("phase") == "Failed":
        return f"{status.get('reason', '')}: {status.get('message', '')}".strip(": ")
    return ""
