"""One reconcile of a SparkJob: created objects, started runs, the status, obstacles."""

from collections.abc import AsyncIterator

import pytest
from tests.operator.memory_kube import Asked, MemoryKube, Refusal
from tests.operator.sparkjob_stage import NAME, NIGHTLY, NS, Stage

from magnetar_operator.kube.client import Forbidden, Invalid, Unreachable
from magnetar_operator.kube.kinds import (
    BATCH_JOB,
    CLUSTER,
    CRON_JOB,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    SPARK_JOB,
)
from magnetar_operator.kube.lease import NotLeading
from magnetar_operator.sparkjobs.desired import JOB_LABEL, ROLE_LABEL
from magnetar_operator.sparkjobs.observe import RIGHTS
from magnetar_operator.sparkjobs.plan import SOON_S, WAITING_S


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr("magnetar_operator.kube.client.BACKOFF_FIRST_S", 0.0)
    kube = MemoryKube()
    client = kube.client()
    yield Stage(kube, client)
    await client.close()


# -- running


async def test_a_job_runs_once_and_reports_its_result(on: Stage) -> None:
    on.cluster()
    on.apply()
    assert await on.look() == SOON_S
    for kind in (SERVICE_ACCOUNT, ROLE, ROLE_BINDING):
        (one,) = on.kube.all_of(kind)
        assert one["metadata"]["name"] == "cold-spark"
    job = on.job()
    uid = on.owner()["metadata"]["uid"]
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == [uid]
    (driver,) = job["spec"]["template"]["spec"]["containers"]
    assert driver["image"] == "spark:1"
    assert "offload" in driver["args"]
    (started,) = on.events("RunStarted")
    assert started["note"].startswith(f"Job {job['metadata']['name']}: ")
    assert (started["type"], started["regarding"]["uid"]) == ("Normal", uid)
    assert on.status()["lastRequest"] == ""
    await on.look()
    on.end(job, {"state": "succeeded", "metrics": {"ledgers": 3}})
    await on.look()
    (run,) = on.status()["runs"]
    assert (run["state"], run["message"]) == ("Succeeded", "ledgers 3")
    (told,) = on.events("RunSucceeded")
    assert (told["type"], told["note"]) == ("Normal", f"{job['metadata']['name']}: ledgers 3")
    written = len(on.kube.writes)
    assert await on.look() is None
    assert len(on.kube.writes) == written
    assert on.status()["lastReconciled"] == "2026-01-01T12:00:00Z"


async def test_a_failure_is_reported_once_with_its_reason(on: Stage) -> None:
    on.cluster()
    on.apply({"image": "mine:1"})
    await on.look()
    (driver,) = on.job()["spec"]["template"]["spec"]["containers"]
    assert driver["image"] == "mine:1"
    on.end(on.job(), {"state": "failed", "error": "no such topic"}, failed=True)
    for _ in range(3):
        await on.look()
    (told,) = on.events("RunFailed")
    assert told["type"] == "Warning"
    assert told["note"].endswith("no such topic")
    assert "series" not in told


async def test_each_request_is_one_further_run(on: Stage) -> None:
    on.cluster()
    on.apply(run="1")
    await on.look()
    first = on.job()["metadata"]["name"]
    on.end(on.job(), {"state": "succeeded"})
    await on.look()
    on.apply(run="2")
    await on.look()
    names = {job["metadata"]["name"] for job in on.kube.all_of(BATCH_JOB)}
    assert len(names) == 2
    assert first in names
    assert on.status()["lastRequest"] == "2"
    on.apply(run="2")
    await on.look()
    assert len(on.kube.all_of(BATCH_JOB)) == 2


async def test_a_started_run_is_reported_once(on: Stage) -> None:
    """The operator ended before it could tell: the Job's name is the request's."""
    on.cluster()
    on.apply()
    started = {"kind": "Job"}

    def quicker(asked: Asked) -> None:
        if asked.method == "POST" and asked.path.endswith("/jobs") and started:
            started.clear()
            on.kube.put({**asked.body})

    on.kube.refuse = quicker
    assert await on.look() == SOON_S
    assert on.events("RunStarted") == []
    assert len(on.kube.all_of(BATCH_JOB)) == 1
    assert on.status()["lastRequest"] == ""


async def test_jobs_of_another_owner_with_the_same_label_are_not_ours(on: Stage) -> None:
    on.cluster()
    on.apply()
    await on.look()
    other = on.job()
    other["metadata"] |= {"name": "theirs", "ownerReferences": [{"uid": "x", "controller": True}]}
    for name in ("uid", "resourceVersion"):
        del other["metadata"][name]
    on.kube.put(other)
    unled = {**other, "metadata": {**other["metadata"], "name": "unled"}}
    unled["metadata"]["ownerReferences"] = [{"uid": on.owner()["metadata"]["uid"]}]
    on.kube.put(unled)
    by_hand = {**other, "metadata": {**other["metadata"], "name": "by-hand"}}
    del by_hand["metadata"]["ownerReferences"]
    on.kube.put(by_hand)
    await on.look()
    assert len(on.status()["runs"]) == 1


# -- schedules


async def test_a_schedule_is_a_cron_job_and_its_drift_is_repaired(on: Stage) -> None:
    on.cluster()
    on.apply(NIGHTLY)
    await on.look()
    cron = on.kube.get(CRON_JOB, NAME)
    assert cron["spec"]["schedule"] == "0 3 * * *"
    assert on.kube.all_of(BATCH_JOB) == []
    on.kube.put({**cron, "spec": {**cron["spec"], "schedule": "1 1 * * *"}})
    await on.look()
    assert on.kube.get(CRON_JOB, NAME)["spec"]["schedule"] == "0 3 * * *"
    (told,) = on.events("DriftRepaired")
    assert told["type"] == "Warning"
    assert told["note"].startswith("CronJob cold: ")
    on.apply({"schedule": "0 4 * * *"})
    await on.look()
    assert on.kube.get(CRON_JOB, NAME)["spec"]["schedule"] == "0 4 * * *"
    assert len(on.events("DriftRepaired")) == 1, "what the manifest changes is no drift"


async def test_scheduled_runs_count_and_requested_runs_belong_to_the_schedule(
    on: Stage,
) -> None:
    on.cluster()
    on.apply(NIGHTLY, run="now")
    assert await on.look() == SOON_S
    await on.look()
    cron = on.kube.get(CRON_JOB, NAME)
    (reference,) = on.job()["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("CronJob", cron["metadata"]["uid"])
    await on.look()
    assert len(on.status()["runs"]) == 1


async def test_a_schedule_pauses_while_its_cluster_does_not_exist(on: Stage) -> None:
    on.cluster()
    on.apply(NIGHTLY)
    await on.look()
    on.kube.remove(CLUSTER, "m")
    await on.look()
    assert on.kube.get(CRON_JOB, NAME)["spec"]["suspend"] is True
    (told,) = on.events("Suspended")
    assert told["type"] == "Warning"
    assert await on.look() == WAITING_S
    assert len(on.events("Suspended")) == 1
    on.cluster()
    await on.look()
    assert not on.kube.get(CRON_JOB, NAME)["spec"].get("suspend")


# -- waiting


async def test_it_waits_for_the_only_cluster_of_its_namespace(on: Stage) -> None:
    on.apply()
    on.cluster(namespace="elsewhere")
    assert await on.look() == SOON_S, "rights of drivers is made meanwhile"
    assert await on.look() == WAITING_S
    ready = on.condition()
    assert ready["reason"] == "WaitingForCluster"
    assert "there is no MagnetarCluster in namespace ns" in ready["message"]
    on.cluster(ready=False)
    assert await on.look() == WAITING_S
    assert "metadata store of m is not ready" in on.condition()["message"]
    on.cluster("other")
    await on.look()
    ready = on.condition()
    assert ready["reason"] == "InvalidSpec"
    assert "(m, other)" in ready["message"]
    obj = on.kube.get(CLUSTER, "other")
    on.kube.put({**obj, "metadata": {**obj["metadata"], "finalizers": ["theirs"]}})
    on.kube.remove(CLUSTER, "other")
    on.cluster()
    await on.look()
    assert len(on.kube.all_of(BATCH_JOB)) == 1, "a cluster that is being deleted is none"


async def test_a_named_cluster_may_be_in_another_namespace(on: Stage) -> None:
    reference = {"clusterRef": {"name": "m", "namespace": "elsewhere"}}
    on.cluster()
    on.apply(reference)
    await on.look()
    assert "there is no MagnetarCluster elsewhere/m" in on.condition()["message"]
    on.kube.refuse = lambda asked: (
        Refusal(403, "Forbidden", "no right") if "/elsewhere/" in asked.path else None
    )
    await on.look()
    assert on.condition()["reason"] == "InvalidSpec"
    assert "may not read namespace elsewhere" in on.condition()["message"]
    on.kube.refuse = lambda _: None
    on.cluster(namespace="elsewhere")
    await on.look()
    (driver,) = on.job()["spec"]["template"]["spec"]["containers"]
    assert "--admin-url=http://m-broker.elsewhere.svc:8080" in driver["args"]


async def test_a_cluster_with_an_invalid_spec_is_waited_for(on: Stage) -> None:
    cluster = on.cluster()
    on.kube.put({**cluster, "spec": {"bookie": {"replicas": "many"}}})
    on.apply()
    await on.look()
    assert on.condition()["reason"] == "WaitingForCluster"
    assert on.condition()["message"].startswith("MagnetarCluster m: spec: ")
    assert on.kube.all_of(BATCH_JOB) == []


async def test_a_specified_account_gets_no_rights(on: Stage) -> None:
    on.cluster()
    on.apply({"serviceAccountName": "mine"})
    await on.look()
    assert [obj for kind in RIGHTS for obj in on.kube.all_of(kind)] == []
    assert on.job()["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


@pytest.mark.parametrize("how", ["paused", "plan"])
async def test_a_paused_or_planned_job_keeps_its_request(on: Stage, how: str) -> None:
    on.cluster()
    on.apply({}, **{how: "true"})
    await on.look()
    assert on.kube.all_of(BATCH_JOB) == []
    assert on.kube.all_of(ROLE) == []
    assert "lastRequest" not in on.status()
    if how == "plan":
        assert [step["action"] for step in on.status()["plan"]][-1] == "start"
    on.apply()
    await on.look()
    assert len(on.kube.all_of(BATCH_JOB)) == 1
    assert not on.status().get("plan")


# -- refusals


async def test_a_run_without_its_rights_is_not_started_and_stays_requested(
    on: Stage,
) -> None:
    on.cluster()
    on.apply()
    on.kube.refuse = lambda asked: (
        Refusal(403, "Forbidden", "no right") if asked.path.endswith("/roles/cold-spark")
        and asked.method == "PATCH" else None
    )  # fmt: skip
    with pytest.raises(Forbidden):
        await on.look()
    assert on.kube.all_of(BATCH_JOB) == []
    assert on.kube.all_of(ROLE_BINDING) != [], "others are made meanwhile"
    assert "lastRequest" not in on.status()
    assert on.condition()["reason"] == "NotDone"
    assert [event["type"] for event in on.events("NotDone")] == ["Warning"]
    on.kube.refuse = lambda _: None
    await on.look()
    assert len(on.kube.all_of(BATCH_JOB)) == 1


async def test_a_run_that_the_server_refuses_is_an_error_of_the_spec(on: Stage) -> None:
    on.cluster()
    on.apply(run="1")
    on.kube.refuse = lambda asked: (
        Refusal(422, "Invalid", "no such field") if asked.path.endswith("/jobs")
        and asked.method == "POST" else None
    )  # fmt: skip
    with pytest.raises(Invalid):
        await on.look()
    assert on.condition()["reason"] == "InvalidSpec"
    assert "no such field" in on.condition()["message"]
    assert "lastRequest" not in on.status()


async def test_a_silent_server_ends_the_reconcile(on: Stage) -> None:
    on.cluster()
    on.apply()
    on.kube.refuse = lambda asked: Refusal(503, "Unavailable") if asked.method == "PATCH" else None
    with pytest.raises(Unreachable):
        await on.look()
    assert len({write.path for write in on.kube.writes}) == 1


async def test_an_operator_without_the_lease_does_nothing(on: Stage) -> None:
    on.cluster()
    on.apply()

    def lost() -> None:
        raise NotLeading

    on.client.guard = lost
    with pytest.raises(NotLeading):
        await on.look()
    assert on.kube.writes == []


async def test_the_status_is_written_by_uid(on: Stage) -> None:
    on.cluster()
    on.apply()
    await on.look()
    uid = on.owner()["metadata"]["uid"]
    written = [write for write in on.kube.writes if write.path.endswith(f"sparkjobs/{NAME}/status")]
    assert [write.body["metadata"]["uid"] for write in written] == [uid]


async def test_deleted_and_replaced_jobs_are_not_changed(on: Stage) -> None:
    on.cluster()
    applied = on.apply()
    obj = on.kube.put({**applied, "metadata": {**applied["metadata"], "finalizers": ["theirs"]}})
    on.kube.remove(SPARK_JOB, NAME)
    assert await on.look() is None
    assert await on.handler.reconcile(obj) is None, "the watch has not shown that it goes"
    on.kube.drop(SPARK_JOB, NAME)
    assert await on.handler.reconcile(obj) is None
    on.kube.put({**applied, "metadata": {"name": NAME, "namespace": NS}})
    assert await on.handler.reconcile(obj) is None, "another has its name"
    assert on.kube.writes == []


async def test_an_invalid_spec_is_reported_and_nothing_is_done(on: Stage) -> None:
    on.cluster()
    on.apply({"historyLimit": "many"})
    assert await on.look() is None
    (told,) = on.events("Invalid")
    assert told["type"] == "Warning"
    on.kube.put({**on.owner(), "spec": None})
    assert await on.look() is None
    assert "`type`" in on.events("Invalid")[-1]["note"]
    assert on.kube.all_of(ROLE) == []


# -- deletions


async def test_runs_beyond_the_history_are_deleted_once_the_status_has_their_end(on: Stage) -> None:
    on.cluster()
    on.apply({"historyLimit": 1}, run="1")
    await on.look()
    old = on.job()
    on.end(old, {"state": "succeeded"})
    await on.look()
    on.apply({"historyLimit": 1}, run="2")
    await on.look()
    (new,) = [job for job in on.kube.all_of(BATCH_JOB) if job["metadata"] != old["metadata"]
              and job["metadata"]["name"] != old["metadata"]["name"]]  # fmt: skip
    on.end(new, {"state": "succeeded"})
    await on.look()
    await on.look()
    assert on.job()["metadata"]["name"] == new["metadata"]["name"]
    (told,) = on.events("Removed")
    assert told["note"].startswith(f"Job {old['metadata']['name']}: beyond historyLimit 1")
    (asked,) = [write for write in on.kube.writes_of(BATCH_JOB) if write.method == "DELETE"]
    assert asked.body["preconditions"] == {"uid": old["metadata"]["uid"]}


async def test_an_executor_that_outlives_its_driver_is_deleted_by_uid(
    on: Stage,
) -> None:
    on.cluster()
    on.apply()
    await on.look()
    on.end(on.job(), {"state": "succeeded"})
    driver = on.kube.get(POD, f"{on.job()['metadata']['name']}-1")
    executor = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "exec-1", "namespace": NS, "labels": {JOB_LABEL: NAME, ROLE_LABEL: "executor"},
            "ownerReferences": [{"uid": driver["metadata"]["uid"]}],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip
    on.kube.put(executor)
    on.kube.refuse = lambda asked: Refusal(409, "Conflict") if asked.method == "DELETE" else None
    assert await on.look() == SOON_S
    assert on.events("Removed") == []
    on.kube.refuse = lambda _: None
    await on.look()
    assert on.kube.get(POD, "exec-1") == {}
    assert len(on.events("Removed")) == 1
