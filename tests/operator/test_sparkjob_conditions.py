"""A SparkJob's conditions, word for word: people and alerts depend on them."""

import json
from typing import Any

import pytest
from tests.operator.test_sparkjobs_plan import job
from tests.operator.test_sparkjobs_tables import (
    AT,
    SCHEDULED,
    cron_of,
    ended,
    owner,
    pod,
    ran,
    shown,
)

from magnetar_operator.sparkjobs import metrics as figures
from magnetar_operator.sparkjobs.cron import BadSchedule, Schedule
from magnetar_operator.sparkjobs.desired import EXECUTOR
from magnetar_operator.sparkjobs.plan import Problem
from magnetar_operator.sparkjobs.runs import runs
from magnetar_operator.sparkjobs.status import RUNS_MAX

LOGS = "(kubectl logs job/r)"
AGAIN = 'to run it again: kubectl annotate mspark cold --overwrite magnetar.io/run="$(date +%s)"'
LATER = "2026-03-01T13:00:00Z"
WAITING: dict[str, Any] = {
    "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]
}


@pytest.mark.parametrize(
    ("spec", "jobs", "how", "ready"),
    [
        ({}, [], {}, ("False", "Waiting", "its run has not started yet")),
        (
            {},
            [],
            {"problems": [Problem("Bad", "first"), Problem("Worse", "second")]},
            ("False", "Bad", "first; second"),
        ),
        (
            {},
            [ran("r")],
            {},
            ("False", "RunStarting", "r (starting, attempt 1): its pod does not exist yet"),
        ),
        (
            {},
            [ran("r")],
            {"pods": (pod("p", "r"),)},
            ("True", "RunStarting", "r (starting, attempt 1)"),
        ),
        (
            {},
            [ran("r", failed=1)],
            {"pods": (pod("p", "r", **WAITING),)},
            (
                "False",
                "RunStarting",
                "r (starting, attempt 2): ErrImagePull; 1 of its attempts failed",
            ),
        ),
        (
            {},
            [ran("r")],
            {"pods": (pod("p", "r", phase="Running"),)},
            ("True", "Running", "r (running, attempt 1); kubectl logs -f job/r"),
        ),
        ({}, [ran("r", "Complete")], {}, ("True", "Succeeded", f"r succeeded: done {LOGS}")),
        ({}, [ran("r", "Failed")], {}, ("False", "RunFailed", f"r failed:  {LOGS}; {AGAIN}")),
        (
            {"suspend": True},
            [ran("r", "Failed")],
            {},
            ("True", "Suspended", "spec.suspend is true: no run is started"),
        ),
        (SCHEDULED, [], {}, ("True", "Scheduled", "the next run is due at 2026-03-02T03:00:00Z")),
        (SCHEDULED, [ran("r", "Failed")], {}, ("False", "RunFailed", f"r failed:  {LOGS}")),
    ],
)
def test_ready_has_the_state_and_the_remedy(
    spec: dict[str, Any], jobs: list[Any], how: dict[str, Any], ready: tuple[str, str, str]
) -> None:
    spark_job = job(**spec)
    cron = {"cron": cron_of(spark_job)} if spec.get("schedule") else {}
    _, by_type = shown(spark_job, *jobs, **how, **cron)
    condition = by_type["Ready"]
    assert (condition["status"], condition["reason"], condition["message"]) == ready


def test_a_run_that_was_stopped_has_no_logs_to_read() -> None:
    before = [{"name": "r", "state": "Running", "startedAt": AT}]
    _, by_type = shown(job(), of=owner(lastRequest="", runs=before))
    text = "r stopped: its Job was deleted while it ran"
    assert by_type["Ready"]["message"] == f"{text}; {AGAIN}"
    assert by_type["Ready"]["reason"] == "RunStopped"
    condition = by_type["Succeeded"]
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "False",
        "Stopped",
        text,
    )


def test_the_last_ended_run_counts_while_another_runs() -> None:
    told, by_type = shown(job(), ran("r", "Failed"), ran("live", at=LATER))
    assert (told["phase"], told["active"]) == ("Running", 1)
    condition = by_type["Succeeded"]
    assert (condition["status"], condition["reason"]) == ("False", "Failed")
    assert condition["message"] == f"r failed:  {LOGS}"
    assert (told["lastRunAt"], told.get("lastSuccessAt")) == (LATER, None)


def test_a_changed_spec_is_reported_with_the_remedy() -> None:
    _, by_type = shown(job(), ran("r", "Complete", meta={"annotations": {"magnetar.io/spec": "x"}}))
    condition = by_type["SpecChanged"]
    assert (condition["status"], condition["reason"]) == ("True", "RunsOnce")
    assert condition["message"] == f"it has run with another spec; {AGAIN}"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (ended('{"error": "no such topic"}'), "no such topic"),
        (ended('{"error": ""}', "Error", 3), 'Error, exit code 3: {"error": ""}'),
        (ended('{"state": "failed"}', "Error", 3), 'Error, exit code 3: {"state": "failed"}'),
        (ended("", "OOMKilled", 137), "OOMKilled, exit code 137"),
        (ended("  ", "Error", 1), "Error, exit code 1"),
        ({"phase": "Failed", "reason": "Evicted", "message": "no disk"}, "Evicted: no disk"),
        (WAITING, "ErrImagePull"),
        ({}, ""),
    ],
)
def test_a_failure_has_the_message_of_the_job_or_else_of_kubernetes(
    status: dict[str, Any], why: str
) -> None:
    (told,) = runs([], [ran("r", "Failed")], [pod("p", "r", **status)], AT)
    assert told.message == why


@pytest.mark.parametrize(
    ("document", "result"),
    [
        ({"metrics": {"a": 1, "b": 0.5, "c": True, "d": "x"}}, {"a": 1, "b": 0.5}),
        ({"metrics": []}, None),
        ({}, None),
        ([1], None),
    ],
)
def test_figures_of_a_run_are_numbers(document: Any, result: dict[str, float] | None) -> None:
    pod_document = pod("p", "r", **ended(json.dumps(document)))
    (told,) = runs([], [ran("r", "Complete")], [pod_document], AT)
    assert told.result == result
    (live,) = runs([], [ran("r")], [pod_document], AT)
    assert live.result is None


def test_a_run_starts_with_its_job_or_else_at_its_creation() -> None:
    (told,) = runs([], [ran("r", startTime=None)], [], AT)
    assert told.started_at == AT
    (told,) = runs([], [ran("r", startTime=LATER)], [], AT)
    assert told.started_at == LATER


def test_a_false_condition_does_not_end_a_run() -> None:
    finished = ran("r", "Complete")
    finished["status"]["conditions"][0]["status"] = "False"
    (told,) = runs([], [finished], [], AT)
    assert told.state == "Starting"


@pytest.mark.parametrize(
    ("lowest", "highest", "above"),
    [
        ("0 0 * * *", "59 0 * * *", "60 0 * * *"),
        ("0 0 * * *", "0 23 * * *", "0 24 * * *"),
        ("0 0 1 * *", "0 0 31 * *", "0 0 32 * *"),
        ("0 0 1 1 *", "0 0 1 12 *", "0 0 1 13 *"),
        ("0 0 * * 0", "0 0 * * 6", "0 0 * * 8"),
    ],
)
def test_each_field_of_a_schedule_has_its_bounds(lowest: str, highest: str, above: str) -> None:
    assert Schedule.parse(lowest)
    assert Schedule.parse(highest)
    with pytest.raises(BadSchedule):
        Schedule.parse(above)


def test_an_orphaned_executor_delays_no_run() -> None:
    stuck = pod("e", role=EXECUTOR, **WAITING)
    driver = pod("p", "r", phase="Running")
    (told,) = runs([], [ran("r")], [driver, stuck], AT)
    assert told.message == ""


def test_jobs_that_have_not_run_have_figures() -> None:
    one = {"metadata": {"name": "cold", "namespace": "ns"}, "spec": {"type": "Offload"}}
    text = "".join(figures.lines([one]))
    who = 'sparkjob_namespace="ns",sparkjob="cold",type="Offload"'
    assert f'magnetar_sparkjob_runs{{{who},state="Succeeded"}} 0' in text
    assert "last_failed" not in text


def test_a_pod_of_the_driver_that_is_not_an_executor_delays_no_run() -> None:
    """An admission controller may put other pods under the driver."""
    stuck = pod("x", role="", meta={"ownerReferences": [{"uid": "u-p"}]}, **WAITING)
    (told,) = runs([], [ran("r")], [pod("p", "r", phase="Running"), stuck], AT)
    assert told.message == ""


def test_the_next_run_follows_the_time_zone_of_the_schedule() -> None:
    spark_job = job(**SCHEDULED, timeZone="America/New_York")
    assert shown(spark_job, cron=cron_of(spark_job))[0]["nextRunAt"] == "2026-03-02T08:00:00Z"


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_status_has_at_most_the_runs_that_its_schema_allows(more: int) -> None:
    """The API server would refuse the whole status, so it has only the newest runs."""
    jobs = [ran(f"r{at:03}", at=f"2026-03-01T{at // 60:02}:{at % 60:02}:00Z")
            for at in range(RUNS_MAX + more)]  # fmt: skip
    told, _ = shown(job(), *jobs)
    assert len(told["runs"]) == min(RUNS_MAX, RUNS_MAX + more)
    assert told["runs"][0]["name"] == f"r{RUNS_MAX + more - 1:03}"
    assert told["active"] == RUNS_MAX + more
