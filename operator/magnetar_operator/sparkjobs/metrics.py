"""Builds the metrics of SparkJobs in the operator's /metrics. Pure: no IO.

They come from the statuses, so a restart loses nothing. Labels: `sparkjob_namespace` and `sparkjob`
(`namespace` is Pulsar's). Bounds: FIGURES_MAX figures of each job's last run.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from magnetar_operator.kube.kinds import Object
from magnetar_operator.sparkjobs.runs import ENDED

FIGURES_MAX: Final = 32
STATES: Final = ("Starting", "Running", "Succeeded", "Failed", "Stopped")
_HELP: Final = {
    "magnetar_sparkjob_runs": "Runs in the status, by state.",
    "magnetar_sparkjob_last_failed": "Whether the last run that ended did not succeed.",
    "magnetar_sparkjob_last_duration_seconds": "The duration of the last run that ended.",
    "magnetar_sparkjob_last_success_timestamp_seconds": "When a run last succeeded.",
    "magnetar_sparkjob_due_timestamp_seconds": "When the next run is due; in the past: it is late.",
    "magnetar_sparkjob_result": "The figures that the last run that ended reported.",
}


def lines(objects: Iterable[Object]) -> Iterator[str]:
    """The families in Prometheus' text format."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for obj in objects:
        for name, labels, value in _samples(obj):
            samples[name].append(f"{name}{{{labels}}} {value:.15g}\n")
    for name, rows in samples.items():
        if rows:
            yield f"# HELP {name} {_HELP[name]}\n# TYPE {name} gauge\n"
            yield from rows


def _samples(obj: Object) -> Iterator[tuple[str, str, float]]:
    metadata, status = obj["metadata"], obj.get("status") or {}
    kind = str((obj.get("spec") or {}).get("type", ""))
    names = {"sparkjob_namespace": metadata["namespace"], "sparkjob": metadata["name"]}
    job_labels = _labels({**names, "type": kind})
    runs = [dict(run) for run in status.get("runs") or ()]
    for state in STATES:
        count = sum(run.get("state") == state for run in runs)
        yield "magnetar_sparkjob_runs", f"{job_labels},{_labels({'state': state})}", count
    for name, field in (
        ("magnetar_sparkjob_last_success_timestamp_seconds", "lastSuccessAt"),
        ("magnetar_sparkjob_due_timestamp_seconds", "nextRunAt"),
    ):
        at = _seconds(status.get(field))
        if at is not None:
            yield name, job_labels, at
    last = next((run for run in runs if run.get("state") in ENDED), None)
    if last is None:
        return
    yield "magnetar_sparkjob_last_failed", job_labels, float(last["state"] != "Succeeded")
    began, ended = _seconds(last.get("startedAt")), _seconds(last.get("endedAt"))
    if began is not None and ended is not None:
        yield "magnetar_sparkjob_last_duration_seconds", job_labels, ended - began
    figures = list((last.get("result") or {}).items())[:FIGURES_MAX]
    for name, value in figures:
        if isinstance(value, int | float):
            yield "magnetar_sparkjob_result", f"{job_labels},{_labels({'figure': name})}", value


def _seconds(text: object) -> float | None:
    return datetime.datetime.fromisoformat(str(text)).timestamp() if text else None


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
