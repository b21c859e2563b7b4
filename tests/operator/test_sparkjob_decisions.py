"""Which runs a SparkJob starts, delays and deletes, and which records of runs it keeps."""

import dataclasses
from typing import Any

import pytest
from tests.operator.test_sparkjobs_plan import PLACE, job, made, owner, starts

from magnetar_operator.engine.plan import Apply, Remove
from magnetar_operator.kube.kinds import Object
from magnetar_operator.sparkjobs import manifests
from magnetar_operator.sparkjobs.desired import DRIVER, EXECUTOR, ROLE_LABEL, Job
from magnetar_operator.sparkjobs.plan import (
    SOON_S,
    WAITING_S,
    Observed,
    Problem,
    Start,
    Suspend,
    plan,
)
from magnetar_operator.sparkjobs.runs import JOB_NAME, orphans, runs

NOW = "2026-03-01T12:00:00Z"
NIGHTLY: dict[str, Any] = {"schedule": "0 3 * * *"}


def cron_of(spark_job: Job, **spec: Any) -> Object:
    cron_job = manifests.cron_job(spark_job, PLACE)
    cron_job["metadata"]["uid"] = "uid-cron"
    cron_job["spec"] |= spec
    return cron_job


def going(obj: Object) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": NOW}}


def removed(found: Any) -> list[str]:
    return [action.name for action in found.actions if isinstance(action, Remove)]


# -- starting


def test_a_run_waits_for_a_cluster_whose_metadata_store_is_not_ready() -> None:
    spark_job = job(place=dataclasses.replace(PLACE, is_ready=False))
    planned = plan(spark_job, owner(), Observed())
    assert (starts(planned), planned.request, planned.requeue_s) == ([], None, WAITING_S)
    assert [problem.reason for problem in planned.problems] == ["WaitingForCluster"]


def test_a_suspended_job_starts_no_requested_run() -> None:
    planned = plan(job(suspend=True), owner("2", lastRequest=""), Observed())
    assert (starts(planned), planned.request) == ([], "")
    assert starts(plan(job(), owner("2", lastRequest=""), Observed())) == ["2"]


@pytest.mark.parametrize(
    ("policy", "started", "gone"),
    [("Forbid", [], []), ("Allow", ["2"], []), ("Replace", ["2"], ["running", "beside"])],
)
def test_a_second_run_waits_is_dropped_or_replaces_the_first(
    policy: str, started: list[str], gone: list[str]
) -> None:
    """A run that is over is in nobody's way, and stays in the history.

    There are two under way where the policy was Allow before.
    """
    spark_job = job(concurrencyPolicy=policy)
    over = [made("done", "Succeeded"), made("broken", "Failed")]
    owner_document = owner("2", lastRequest="")
    planned = plan(
        spark_job, owner_document, Observed(jobs=[*over, made("running"), made("beside")])
    )
    assert (starts(planned), removed(planned)) == (started, gone)
    planned = plan(spark_job, owner_document, Observed(jobs=over))
    assert (starts(planned), removed(planned)) == (["2"], [])


def test_a_requested_run_belongs_to_the_schedules_cron_job() -> None:
    spark_job = job(**NIGHTLY)
    early = plan(spark_job, owner("2"), Observed())
    assert (starts(early), early.requeue_s) == ([], SOON_S), "the schedule is made first"
    planned = plan(spark_job, owner("2"), Observed(cron=cron_of(spark_job)))
    (start,) = [action for action in planned.actions if isinstance(action, Start)]
    (reference,) = start.manifest["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("CronJob", "uid-cron")
    assert starts(plan(spark_job, owner(), Observed(cron=cron_of(spark_job)))) == []


def test_a_schedule_pauses_once_while_its_cluster_does_not_exist() -> None:
    spark_job = job(place=None, **NIGHTLY)
    absent = Problem("WaitingForCluster", "there is none")
    for cron, pauses in (
        (cron_of(spark_job), True),
        (cron_of(spark_job, suspend=True), False),
        (None, False),
        ({**cron_of(spark_job), "metadata": {"name": "cold", "uid": "theirs"}}, False),
    ):
        planned = plan(spark_job, owner(), Observed(cron=cron), absent)
        assert any(isinstance(action, Suspend) for action in planned.actions) is pauses
        assert planned.requeue_s == WAITING_S


def test_a_foreign_object_is_not_changed_and_is_named() -> None:
    spark_job = job()
    wanted = manifests.rights(spark_job)
    theirs = {
        item["kind"]: {**item, "metadata": {**item["metadata"], "ownerReferences": []}}
        for item in wanted
    }
    planned = plan(spark_job, owner(), Observed(rights=theirs))
    assert [problem.reason for problem in planned.problems] == ["NameTaken"] * len(wanted)
    assert not [action for action in planned.actions if isinstance(action, Apply)]
    assert starts(planned) == []


# -- deletions


def test_a_job_that_is_being_deleted_is_not_deleted_again() -> None:
    recorded_runs = [{"name": name, "state": "Succeeded"} for name in ("old", "gone")]
    jobs = [going(made("gone", "Succeeded", at=1)), made("old", "Succeeded", at=0)]
    planned = plan(
        job(historyLimit=0), owner(lastRequest="", runs=recorded_runs), Observed(jobs=jobs)
    )
    assert removed(planned) == ["old"]


def pod(name: str, role: str, phase: str = "Running", driver: str = "", at: int = 0) -> Object:
    owners = [{"uid": f"uid-{driver}"}] if driver else []
    labels = {ROLE_LABEL: role, JOB_NAME: "j1"}
    began = f"2026-03-01T11:{at:02}:00Z"
    metadata = {
        "name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": owners,
        "creationTimestamp": began,
    }  # fmt: skip
    return {"metadata": metadata, "status": {"phase": phase}}


def test_executors_are_deleted_with_their_own_driver_only() -> None:
    pods = [
        pod("over", DRIVER, "Succeeded"),
        pod("failed", DRIVER, "Failed"),
        pod("works", DRIVER),
        pod("a", EXECUTOR, "Pending", "over"),
        pod("b", EXECUTOR, "Running", "failed"),
        pod("c", EXECUTOR, "Pending", "works"),
        going(pod("d", EXECUTOR, "Pending", "over")),
        pod("e", EXECUTOR, "Pending"),
    ]
    assert [pod["metadata"]["name"] for pod in orphans(pods)] == ["a", "b"]
    planned = plan(job(), owner(lastRequest=""), Observed(pods=pods))
    assert removed(planned) == ["a", "b"]


# -- reports


@pytest.mark.parametrize("state", ["Succeeded", "Failed", "Stopped"])
def test_the_record_of_an_ended_run_outlives_its_objects(state: str) -> None:
    before = {"name": "j1", "state": state, "message": "as it was", "startedAt": NOW}
    for jobs in ([], [made("j1")], [made("j1", "Failed")], [made("j1", "Succeeded")]):
        (found,) = runs([before], jobs, [], NOW)
        assert (found.state, found.message) == (state, "as it was")


def test_a_run_is_reported_from_its_newest_pod_with_its_attempts() -> None:
    obj = made("j1")
    obj["status"]["failed"] = 2
    pods = [pod("new", DRIVER, "Running", at=9), pod("old", DRIVER, "Failed", at=1)]
    (found,) = runs([], [obj], pods, NOW)
    assert (found.state, found.attempt) == ("Running", 3)
    assert found.message == "2 of its attempts failed"
    (lost,) = runs([{"name": "j1", "state": "Running", "attempt": 3}], [], [], NOW)
    assert (lost.state, lost.attempt, lost.ended_at) == ("Stopped", 3, NOW)
