"""Which runs a SparkJob starts, holds, and takes away; and what of a run stays told."""

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


def cron_of(one: Job, **spec: Any) -> Object:
    found = manifests.cron_job(one, PLACE)
    found["metadata"]["uid"] = "uid-cron"
    found["spec"] |= spec
    return found


def going(one: Object) -> Object:
    return {**one, "metadata": {**one["metadata"], "deletionTimestamp": NOW}}


def removed(found: Any) -> list[str]:
    return [one.name for one in found.actions if isinstance(one, Remove)]


# -- starting


def test_a_run_waits_for_a_cluster_whose_metadata_store_is_not_ready() -> None:
    one = job(place=dataclasses.replace(PLACE, is_ready=False))
    found = plan(one, owner(), Observed())
    assert (starts(found), found.request, found.requeue_s) == ([], None, WAITING_S)
    assert [each.reason for each in found.problems] == ["WaitingForCluster"]


def test_a_suspended_job_starts_no_requested_run() -> None:
    found = plan(job(suspend=True), owner("2", lastRequest=""), Observed())
    assert (starts(found), found.request) == ([], "")
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
    one = job(concurrencyPolicy=policy)
    over = [made("done", "Succeeded"), made("broken", "Failed")]
    there = owner("2", lastRequest="")
    found = plan(one, there, Observed(jobs=[*over, made("running"), made("beside")]))
    assert (starts(found), removed(found)) == (started, gone)
    found = plan(one, there, Observed(jobs=over))
    assert (starts(found), removed(found)) == (["2"], [])


def test_a_requested_run_belongs_to_the_schedules_cron_job() -> None:
    one = job(**NIGHTLY)
    early = plan(one, owner("2"), Observed())
    assert (starts(early), early.requeue_s) == ([], SOON_S), "the schedule is made first"
    found = plan(one, owner("2"), Observed(cron=cron_of(one)))
    (start,) = [each for each in found.actions if isinstance(each, Start)]
    (reference,) = start.manifest["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("CronJob", "uid-cron")
    assert starts(plan(one, owner(), Observed(cron=cron_of(one)))) == []


def test_a_schedule_pauses_once_while_its_cluster_does_not_exist() -> None:
    one = job(place=None, **NIGHTLY)
    absent = Problem("WaitingForCluster", "there is none")
    for cron, pauses in (
        (cron_of(one), True),
        (cron_of(one, suspend=True), False),
        (None, False),
        ({**cron_of(one), "metadata": {"name": "cold", "uid": "theirs"}}, False),
    ):
        found = plan(one, owner(), Observed(cron=cron), absent)
        assert any(isinstance(each, Suspend) for each in found.actions) is pauses
        assert found.requeue_s == WAITING_S


def test_a_foreign_object_is_not_changed_and_is_named() -> None:
    one = job()
    wanted = manifests.rights(one)
    theirs = {
        each["kind"]: {**each, "metadata": {**each["metadata"], "ownerReferences": []}}
        for each in wanted
    }
    found = plan(one, owner(), Observed(rights=theirs))
    assert [each.reason for each in found.problems] == ["NameTaken"] * len(wanted)
    assert not [each for each in found.actions if isinstance(each, Apply)]
    assert starts(found) == []


# -- taking away


def test_a_job_that_is_being_deleted_is_not_deleted_again() -> None:
    told = [{"name": name, "state": "Succeeded"} for name in ("old", "gone")]
    jobs = [going(made("gone", "Succeeded", at=1)), made("old", "Succeeded", at=0)]
    found = plan(job(historyLimit=0), owner(lastRequest="", runs=told), Observed(jobs=jobs))
    assert removed(found) == ["old"]


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
    assert [one["metadata"]["name"] for one in orphans(pods)] == ["a", "b"]
    found = plan(job(), owner(lastRequest=""), Observed(pods=pods))
    assert removed(found) == ["a", "b"]


# -- what is told


@pytest.mark.parametrize("state", ["Succeeded", "Failed", "Stopped"])
def test_the_record_of_an_ended_run_outlives_its_objects(state: str) -> None:
    before = {"name": "j1", "state": state, "message": "as it was", "startedAt": NOW}
    for jobs in ([], [made("j1")], [made("j1", "Failed")], [made("j1", "Succeeded")]):
        (found,) = runs([before], jobs, [], NOW)
        assert (found.state, found.message) == (state, "as it was")


def test_a_run_is_reported_from_its_newest_pod_with_its_attempts() -> None:
    one = made("j1")
    one["status"]["failed"] = 2
    pods = [pod("new", DRIVER, "Running", at=9), pod("old", DRIVER, "Failed", at=1)]
    (found,) = runs([], [one], pods, NOW)
    assert (found.state, found.attempt) == ("Running", 3)
    assert found.message == "2 of its attempts failed"
    (lost,) = runs([{"name": "j1", "state": "Running", "attempt": 3}], [], [], NOW)
    assert (lost.state, lost.attempt, lost.ended_at) == ("Stopped", 3, NOW)
