"""SparkJobs in the operator's /metrics: from what their statuses say, so a restart loses nothing.

Pure. Labels `sparkjob_namespace` and `sparkjob` (Pulsar's `namespace` is one of topics). Bounds:
FIGURES_MAX figures of each job's last run.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.sparkjobs.runs import ENDED

FIGURES_MAX: Final = 32
STATES: Final = ("Starting", "Running", "Succeeded", "Failed", "Stopped")
_HELP: Final = {
    "magnetar_sparkjob_runs": "Runs that the status tells of, by state.",
    "magnetar_sparkjob_last_failed": "Whether the last run that ended did not end well.",
    "magnetar_sparkjob_last_duration_seconds": "How long the last run that ended took.",
    "magnetar_sparkjob_last_success_timestamp_seconds": "When a run last ended well.",
    "magnetar_sparkjob_due_timestamp_seconds": "When the next run is due; past: it is late.",
    "magnetar_sparkjob_result": "What the last run that ended reported, by figure.",
}


def lines(objects: Iterable[Object]) -> Iterator[str]:
    """In Prometheus' text format."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for one in objects:
        for name, labels, value in _samples(one):
            samples[name].append(f"{name}{{{labels}}} {value:.15g}\n")
    for name, found in samples.items():
        if found:
            yield f"# HELP {name} {_HELP[name]}\n# TYPE {name} gauge\n"
            yield from found


def _samples(one: Object) -> Iterator[tuple[str, str, float]]:
    metadata, status = one["metadata"], one.get("status") or {}
    kind = str((one.get("spec") or {}).get("type", ""))
    names = {"sparkjob_namespace": metadata["namespace"], "sparkjob": metadata["name"]}
    who = _labels({**names, "type": kind})
    runs = [dict(each) for each in status.get("runs") or ()]
    for state in STATES:
        count = sum(each.get("state") == state for each in runs)
        yield "magnetar_sparkjob_runs", f"{who},{_labels({'state': state})}", count
    for name, field in (
        ("magnetar_sparkjob_last_success_timestamp_seconds", "lastSuccessAt"),
        ("magnetar_sparkjob_due_timestamp_seconds", "nextRunAt"),
    ):
        at = _seconds(status.get(field))
        if at is not None:
            yield name, who, at
    last = next((each for each in runs if each.get("state") in ENDED), None)
    if last is None:
        return
    yield "magnetar_sparkjob_last_failed", who, float(last["state"] != "Succeeded")
    began, ended = _seconds(last.get("startedAt")), _seconds(last.get("endedAt"))
    if began is not None and ended is not None:
        yield "magnetar_sparkjob_last_duration_seconds", who, ended - began
    figures = list((last.get("result") or {}).items())[:FIGURES_MAX]
    for name, value in figures:
        if isinstance(value, int | float):
            yield "magnetar_sparkjob_result", f"{who},{_labels({'figure': name})}", value


def _seconds(text: object) -> float | None:
    return datetime.datetime.fromisoformat(str(text)).timestamp() if text else None


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
