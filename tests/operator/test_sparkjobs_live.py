"""SparkJobs on a real API server: runs, their ends, schedules, waits, deletion, rights."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.operator.sparkjob_rig import (
    CLUSTER_NAME,
    HOUR,
    NAME,
    NIGHTLY,
    NOWHERE,
    Rig,
    rig,
    until,
)
from tests.support.kube import Tool

from magnetar_operator.kube.kinds import (
    BATCH_JOB,
    CLUSTER,
    CRON_JOB,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    SPARK_JOB,
    Object,
)
from magnetar_operator.kube.rbac import DRIVER_RIGHTS, DRIVER_RULE, JOB_RULES, WATCH, missing
from magnetar_operator.sparkjobs.desired import EXECUTOR, JOB_LABEL, ROLE_LABEL

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]


@pytest.fixture
async def on(kube_namespace: str, crds: list[str]) -> AsyncIterator[Rig]:
    async with rig(kube_namespace) as test_rig:
        yield test_rig


async def started(on: Rig) -> str:
    """The cluster is there; the name of the job's only run."""
    await on.apply_cluster()
    await on.settle()
    return str((await on.job())["metadata"]["name"])


async def test_a_job_runs_once_and_reports_its_result(on: Rig) -> None:
    await on.apply()
    name = await started(on)
    assert (await on.status())["phase"] == "Running"
    await on.run(name)
    await on.settle()
    (run,) = (await on.status())["runs"]
    assert (run["name"], run["state"], run["attempt"]) == (name, "Running", 1)
    assert f"kubectl logs -f job/{name}" in (await on.condition("Ready"))["message"]
    await on.succeed(name, ledgers=3, bytes=12_345)
    await on.settle()
    status = await on.status()
    (run,) = status["runs"]
    assert (status["phase"], status["active"], run["state"]) == ("Succeeded", 0, "Succeeded")
    assert run["result"] == {"ledgers": 3, "bytes": 12_345}
    assert status["lastSuccessAt"] == run["endedAt"] >= run["startedAt"] == status["lastRunAt"]
    assert (await on.condition("Succeeded"))["status"] == "True"
    assert (await on.condition("Ready"))["reason"] == "Succeeded"
    assert await on.notes("RunSucceeded") == [f"{name}: ledgers 3, bytes 12,345"]


async def test_a_finished_job_runs_again_only_on_request(on: Rig) -> None:
    """Neither without its Job, nor with another spec, nor after the operator's restart."""
    await on.apply({"options": {"deletion-lag": 60}})
    name = await started(on)
    await on.succeed(name)
    await on.settle()
    await on.kube.delete(BATCH_JOB, name, on.namespace)
    await until("it is gone", lambda: no_jobs(on))
    await on.settle()
    assert (await on.status())["phase"] == "Succeeded"
    await on.apply({"options": {"deletion-lag": 90}})
    await on.settle()
    assert await on.jobs() == []
    changed = await on.condition("SpecChanged")
    assert changed["status"] == "True"
    assert f"kubectl annotate mspark {NAME}" in changed["message"]
    await on.apply({"options": {"deletion-lag": 90}}, run="again")
    await on.settle()
    again = await on.job()
    assert again["metadata"]["name"] != name
    assert "--deletion-lag=90" in args_of(again["spec"])
    await on.succeed(again["metadata"]["name"])
    await on.settle()
    status = await on.status()
    assert [run["state"] for run in status["runs"]] == ["Succeeded", "Succeeded"]
    assert await on.condition("SpecChanged") == {}
    # The annotation is removed: no run is requested.
    await on.apply({"options": {"deletion-lag": 90}})
    await on.settle()
    assert len(await on.jobs()) == 1


async def no_jobs(on: Rig) -> bool:
    return not await on.jobs()


def args_of(job_spec: Object) -> list[str]:
    arguments: list[str] = job_spec["template"]["spec"]["containers"][0]["args"]
    return arguments


async def test_a_failure_is_explained_after_its_attempts(on: Rig) -> None:
    await on.apply({"retries": {"backoffLimit": 1}})
    name = await started(on)
    await on.fail(name, "bucket demo-cold: access denied")
    await on.settle()
    (run,) = (await on.status())["runs"]
    assert (run["state"], run["attempt"]) == ("Starting", 2)
    assert "1 of its attempts failed" in run["message"]
    await on.fail(name, "bucket demo-cold: access denied")
    await on.until_over(name)
    await on.settle()
    (run,) = (await on.status())["runs"]
    assert (run["state"], run["attempt"]) == ("Failed", 2)
    assert run["message"].startswith("bucket demo-cold: access denied; BackoffLimitExceeded")
    ready = await on.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "RunFailed")
    assert "access denied" in ready["message"]
    assert (await on.condition("Succeeded"))["status"] == "False"
    assert len(await on.notes("RunFailed")) == 1


async def test_wrong_arguments_are_not_retried(on: Rig) -> None:
    await on.apply({"retries": {"backoffLimit": 5}})
    name = await started(on)
    await on.end(name, "submit.py offload: error: unrecognized arguments: --nonsense=1", code=2)
    await on.until_over(name)
    await on.settle()
    (run,) = (await on.status())["runs"]
    assert (run["state"], run["attempt"]) == ("Failed", 1)
    assert "exit code 2: submit.py offload: error: unrecognized" in run["message"]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            "ImagePullBackOff: no such image",
        ),
        ({}, "Unschedulable: "),
    ],
    ids=["image", "node"],
)
async def test_a_run_that_does_not_start_reports_why(
    on: Rig, status: dict[str, Any], told: str
) -> None:
    await on.apply()
    name = await started(on)
    pod = await on.pod_of(name)
    if status:
        container = {
            "name": "driver", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
        }  # fmt: skip
        await on.say(pod, containerStatuses=[{**container, **status}])

    async def said() -> bool:
        await on.settle()
        return told in (await on.condition("Ready")).get("message", "")

    await until(told, said)
    ready = await on.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "RunStarting")


async def test_out_of_memory_and_out_of_time(on: Rig) -> None:
    await on.apply({"timeout": "2s"})
    name = await started(on)
    await on.until_over(name)
    await on.settle()
    (run,) = (await on.status())["runs"]
    assert run["state"] == "Failed"
    assert "DeadlineExceeded" in run["message"]
    await on.apply({"timeout": "1h"}, run="2")
    await on.settle()
    second = next(job for job in await on.jobs() if job["metadata"]["name"] != name)
    await on.end(second["metadata"]["name"], "", code=137, reason="OOMKilled")
    await on.until_over(second["metadata"]["name"])
    await on.settle()
    assert (await on.status())["runs"][0]["message"].startswith("OOMKilled, exit code 137")


async def test_a_job_waits_for_its_cluster(on: Rig) -> None:
    await on.apply()
    assert await on.look() == 1.0  # the rights are there by now
    assert await on.look() == 10.0
    ready = await on.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "WaitingForCluster")
    assert "there is no MagnetarCluster in namespace" in ready["message"]
    await on.apply_cluster(ready=False)
    await on.look()
    ready = await on.condition("Ready")
    assert ready["message"] == f"the metadata store of {CLUSTER_NAME} is not ready"
    assert (await on.status())["phase"] == "Waiting"
    assert await on.jobs() == []
    await on.apply_cluster()
    await on.settle()
    assert len(await on.jobs()) == 1
    assert f"--metadata-url=etcd:http://{CLUSTER_NAME}-etcd-0" in " ".join(
        args_of((await on.job())["spec"])
    )


async def test_a_schedule_is_a_cron_job_with_a_bounded_history(on: Rig) -> None:
    spec = {**NIGHTLY, "timeZone": "Europe/Berlin", "historyLimit": 2, "startingDeadline": "5m"}
    await on.apply(spec)
    await on.apply_cluster()
    await on.settle()
    cron = await on.cron()
    assert {key: cron["spec"][key] for key in ("schedule", "timeZone", "concurrencyPolicy")} == {
        **NIGHTLY, "timeZone": "Europe/Berlin", "concurrencyPolicy": "Forbid"
    }  # fmt: skip
    assert cron["spec"]["startingDeadlineSeconds"] == 300
    status = await on.status()
    assert status["phase"] == "Scheduled"
    at = datetime.fromisoformat(status["nextRunAt"]).astimezone(ZoneInfo("Europe/Berlin"))
    assert (at.hour, at.minute, at.second) == (HOUR, 0, 0)
    names = []
    for count in range(4):
        names.append(await on.due())
        await on.settle()
        assert (await on.status())["phase"] == "Running"
        await on.succeed(names[-1], number=count)
        await on.settle()
    kept = [job["metadata"]["name"] for job in await on.jobs() if not going(job)]
    assert sorted(kept) == names[-2:]
    runs = (await on.status())["runs"]
    assert [(run["name"], run["result"]) for run in runs] == [
        (names[3], {"number": 3}), (names[2], {"number": 2})
    ]  # fmt: skip
    assert (await on.status())["phase"] == "Scheduled"


def going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


async def test_a_schedule_also_runs_on_request_and_drift_is_repaired(on: Rig) -> None:
    await on.apply(NIGHTLY, run="now")
    await on.apply_cluster()
    await on.settle()
    job = await on.job()
    owners = job["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["name"]) for owner in owners] == [("CronJob", NAME)]
    assert (await on.status())["lastRequest"] == "now"
    # Forbid: the next waits for the end of this one.
    await on.apply(NIGHTLY, run="and again")
    await on.settle()
    assert len(await on.jobs()) == 1
    await on.succeed(job["metadata"]["name"])
    await on.settle()
    assert len(await on.jobs()) == 2
    await on.kube.merge(CRON_JOB, on.namespace, NAME, {"spec": {"schedule": "* * * * *"}})
    await on.settle()
    assert (await on.cron())["spec"]["schedule"] == NIGHTLY["schedule"]
    (told,) = await on.notes("DriftRepaired")
    assert f"spec.schedule: * * * * * → {NIGHTLY['schedule']}" in told


async def test_replace_stops_the_running_job(on: Rig) -> None:
    spec = {**NIGHTLY, "concurrencyPolicy": "Replace"}
    await on.apply(spec, run="1")
    await on.apply_cluster()
    await on.settle()
    first = (await on.job())["metadata"]["name"]
    await on.apply(spec, run="2")
    await on.settle()
    runs = (await on.status())["runs"]
    assert {run["name"]: run["state"] for run in runs}[first] == "Stopped"
    assert sum(run["state"] in ("Starting", "Running") for run in runs) == 1


async def test_suspension_and_a_deleted_cluster(on: Rig) -> None:
    await on.apply({"suspend": True})
    await on.apply_cluster()
    await on.settle()
    assert await on.jobs() == []
    status = await on.status()
    assert (status["phase"], status.get("lastRequest")) == ("Suspended", None)
    await on.apply(NIGHTLY, name="nightly")
    await on.settle("nightly")
    assert (await on.cron("nightly"))["spec"]["suspend"] is False
    await on.kube.delete(CLUSTER, CLUSTER_NAME, on.namespace)
    await on.settle("nightly")
    assert (await on.cron("nightly"))["spec"]["suspend"] is True
    assert (await on.condition("Ready", "nightly"))["reason"] == "WaitingForCluster"
    assert "nextRunAt" not in await on.status("nightly")
    await on.apply_cluster()
    await on.settle("nightly")
    assert (await on.cron("nightly"))["spec"]["suspend"] is False


async def test_refusals_of_the_server_and_foreign_objects(on: Rig) -> None:
    await on.apply_cluster()
    await on.apply({**NIGHTLY, "timeZone": "Mars/Olympus"})
    with pytest.raises(Exception, match="unknown time zone"):
        await on.settle()
    ready = await on.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "Mars/Olympus" in ready["message"]
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    theirs = {
        "apiVersion": CRON_JOB.api_version,
        "kind": CRON_JOB.kind,
        "metadata": {"name": "taken", "namespace": on.namespace},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}},
    }
    await on.kube.create(theirs)
    await on.apply(NIGHTLY, name="taken")
    await on.settle("taken")
    ready = await on.condition("Ready", "taken")
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert (await on.cron("taken"))["spec"]["schedule"] == "0 0 1 1 *"
    await on.apply({"sparkConf": {"spark.kubernetes.namespace": "kube-system"}}, name="conf")
    await on.settle("conf")
    ready = await on.condition("Ready", "conf")
    assert ready["reason"] == "InvalidSpec"
    assert "spark.kubernetes.namespace is set by the operator" in ready["message"]


async def test_deleting_a_job_deletes_its_objects(on: Rig) -> None:
    await on.apply(NIGHTLY, run="1")
    await on.apply_cluster()
    await on.settle()
    name = (await on.job())["metadata"]["name"]
    pod = await on.pod_of(name)
    await on.gone()
    for kind in (SERVICE_ACCOUNT, ROLE, ROLE_BINDING):
        assert await until_none(on, kind)
    assert await on.kube.find(POD, pod["metadata"]["name"], on.namespace) is None


async def until_none(on: Rig, kind: Any) -> bool:
    async def gone() -> bool:
        return await on.kube.find(kind, f"{NAME}-spark", on.namespace) is None

    return bool(await until(f"no {kind.kind}", gone))


async def test_an_executor_that_outlives_its_driver_is_removed(on: Rig) -> None:
    await on.apply()
    name = await started(on)
    pod = await on.pod_of(name)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"],
             "uid": pod["metadata"]["uid"], "controller": True}  # fmt: skip
    labels = {JOB_LABEL: NAME, ROLE_LABEL: EXECUTOR}
    await on.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "cold-exec-1", "namespace": on.namespace, "labels": labels,
                         "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "executor", "image": "x"}], "nodeSelector": NOWHERE},
        }
    )  # fmt: skip
    await on.run(name)
    await on.settle()
    assert await on.kube.find(POD, "cold-exec-1", on.namespace) is not None
    await on.fail(name, "broken")
    await on.until_over(name)
    await on.settle()
    assert await on.kube.find(POD, "cold-exec-1", on.namespace) is None


async def test_a_plan_is_shown_and_a_pause_is_kept(on: Rig) -> None:
    await on.apply_cluster()
    await on.apply(plan="true")
    await on.settle()
    assert await on.jobs() == []
    steps = (await on.status())["plan"]
    kinds = [(action["action"], action["target"].partition(" ")[0]) for action in steps]
    assert kinds == [("create", "ServiceAccount"), ("create", "Role"), ("create", "RoleBinding"),
                     ("start", "Job")]  # fmt: skip
    await on.apply(paused="true")
    await on.settle()
    assert await on.jobs() == []
    await on.apply()
    await on.settle()
    assert len(await on.jobs()) == 1
    assert (await on.status())["plan"] == []


async def test_nothing_is_written_without_a_change(on: Rig) -> None:
    await on.apply(NIGHTLY)
    await on.apply_cluster()
    await on.settle()
    on.asked.requests.clear()
    await on.settle()
    assert {verb for verb, _, _ in on.asked.requests} <= {"get", "list"}


async def test_the_role_has_exactly_the_rights_that_a_lifecycle_uses(
    on: Rig, kubectl: Tool
) -> None:
    await on.apply({**NIGHTLY, "historyLimit": 0}, run="1")
    await on.apply_cluster()
    await on.settle()
    name = (await on.job())["metadata"]["name"]
    await on.succeed(name)
    await on.settle()
    assert all(going(job) for job in await on.jobs())
    assert (await on.status())["runs"][0]["state"] == "Succeeded"
    await on.kube.delete(CLUSTER, CLUSTER_NAME, on.namespace)
    await on.settle()
    assert missing(on.asked.requests) == []
    granted = {
        (verb, rule.kind.group, rule.resource)
        for rule in JOB_RULES
        if rule is not DRIVER_RULE
        for verb in rule.verbs
    }
    watched = {(verb, kind.group, kind.plural) for kind in (SPARK_JOB, BATCH_JOB) for verb in WATCH}
    assert granted - set(on.asked.requests) - watched == set(), "verbs that nothing needs"
    # What is given on: no more than the driver's role has, and the operator has it.
    role = await on.kube.get(ROLE, f"{NAME}-spark", on.namespace)
    assert role["rules"] == [dict(rule) for rule in DRIVER_RIGHTS]
    assert {"pods"} == {name for rule in DRIVER_RIGHTS for name in rule["resources"]}
    account = f"--as=system:serviceaccount:{on.namespace}:{NAME}-spark"
    mine = kubectl.within(on.namespace)
    for verb in DRIVER_RULE.verbs:
        assert mine.run("auth", "can-i", verb, "pods", account).stdout.strip() == "yes", verb
    for verb, what in (("get", "secrets"), ("create", "deployments"), ("patch", "pods")):
        assert mine.run("auth", "can-i", verb, what, account).stdout.strip() == "no", what
