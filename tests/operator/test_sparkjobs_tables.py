"""Tables of decisions about SparkJobs: started runs, deletions, and the status."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.test_sparkjobs_plan import NOW, job

from magnetar_operator.engine.plan import Apply, Remove
from magnetar_operator.kube.kinds import Object
from magnetar_operator.sparkjobs import manifests
from magnetar_operator.sparkjobs.desired import (
    DRIVER,
    EXECUTOR,
    ROLE_LABEL,
    RUN,
    SPEC_DIGEST,
    Job,
    Place,
)
from magnetar_operator.sparkjobs.plan import (
    SOON_S,
    WAITING_S,
    Observed,
    Plan,
    Problem,
    Start,
    Suspend,
    plan,
)
from magnetar_operator.sparkjobs.runs import (
    FIGURES_MAX,
    MESSAGE_CHARACTERS_MAX,
    orphans,
    runs,
    trouble,
)
from magnetar_operator.sparkjobs.status import status

AT = "2026-03-01T12:00:00Z"
SCHEDULED: dict[str, Any] = {"schedule": "0 3 * * *"}
UNREADY = Place("demo", "ns", "etcd:http://e:2379", "http://b:8080", is_ready=False)


def owner(request: str | None = None, generation: int = 1, **given: Any) -> Object:
    annotations = {} if request is None else {RUN: request}
    metadata = {"name": "cold", "uid": "uid-1", "generation": generation}
    return {"metadata": {**metadata, "annotations": annotations}, "status": given}


def ran(name: str, end: str = "", *, at: str = AT, **how: Any) -> Object:
    """A Job: under way, or with its end."""
    conditions = [{"type": end, "status": "True", "lastTransitionTime": at, **how.pop("why", {})}]
    metadata = {"name": name, "uid": f"u-{name}", "creationTimestamp": at, **how.pop("meta", {})}
    return {
        "metadata": metadata,
        "status": {"conditions": conditions if end else [], "startTime": at, **how},
    }


def pod(name: str, run: str = "", role: str = DRIVER, **how: Any) -> Object:
    labels = {"batch.kubernetes.io/job-name": run, ROLE_LABEL: role}
    metadata = {"name": name, "uid": f"u-{name}", "labels": labels, **how.pop("meta", {})}
    return {"metadata": metadata, "status": how}


def observed_of(
    spark_job: Job, *jobs: Object, pods: tuple[Object, ...] = (), cron: Any = None
) -> Observed:
    rights = {manifest["kind"]: manifest for manifest in manifests.rights(spark_job)}
    return Observed(cron, list(jobs), list(pods), rights)


def planned(spark_job: Job, *jobs: Object, of: Object | None = None, **how: Any) -> Plan:
    absent = how.pop("absent", None)
    return plan(spark_job, of or owner(), observed_of(spark_job, *jobs, **how), absent)


def started(planned: Plan) -> list[str]:
    return [action.request for action in planned.actions if isinstance(action, Start)]


def removed(planned: Plan) -> list[str]:
    return [action.name for action in planned.actions if isinstance(action, Remove)]


def cron_of(spark_job: Job, **spec: Any) -> Object:
    assert spark_job.place is not None
    cron_job = manifests.cron_job(spark_job, spark_job.place)
    cron_job["metadata"] |= {"uid": "u-cron", "creationTimestamp": AT}
    cron_job["spec"] |= spec
    return cron_job


# -- started runs


@pytest.mark.parametrize(
    ("spec", "request_", "done", "begins"),
    [
        ({}, None, None, [""]),
        ({}, None, "", []),
        ({}, None, "1", []),
        ({}, "1", None, ["1"]),
        ({}, "1", "1", []),
        ({}, "2", "1", ["2"]),
        ({"suspend": True}, "2", "1", []),
        (SCHEDULED, None, None, []),
        (SCHEDULED, "1", None, ["1"]),
        (SCHEDULED, "1", "1", []),
    ],
)
def test_a_request_is_carried_out_once(
    spec: dict[str, Any], request_: str | None, done: str | None, begins: list[str]
) -> None:
    spark_job = job(**spec)
    given: dict[str, Any] = {} if done is None else {"lastRequest": done}
    cron = cron_of(spark_job) if "schedule" in spec else None
    new_plan = planned(spark_job, of=owner(request_, **given), cron=cron)
    assert started(new_plan) == begins
    assert new_plan.request == (begins[0] if begins else done)
    for start in new_plan.actions:
        if isinstance(start, Start):
            assert start.manifest["metadata"]["name"] == spark_job.run_name(start.request)


def test_an_existing_run_is_not_started_again_if_its_record_was_lost() -> None:
    spark_job = job()
    new_plan = planned(spark_job, ran(spark_job.run_name("")))
    assert (started(new_plan), new_plan.request) == ([], "")
    assert spark_job.run_name("") != spark_job.run_name("1")


def test_no_run_starts_without_a_ready_cluster_or_with_a_problem() -> None:
    new_plan = planned(job(UNREADY))
    assert started(new_plan) == []
    assert [(problem.reason, problem.message) for problem in new_plan.problems] == [
        ("WaitingForCluster", "the metadata store of demo is not ready")
    ]
    assert (new_plan.requeue_s, new_plan.request) == (WAITING_S, None)
    absent = Problem("NoCluster", "x")
    new_plan = planned(job(None), absent=absent)
    assert (started(new_plan), new_plan.problems, new_plan.requeue_s) == ([], (absent,), WAITING_S)
    bad = planned(job(sparkConf={"master": "x"}))
    assert (started(bad), bad.problems[0].reason) == ([], "InvalidSpec")
    spark_job = job(**SCHEDULED)
    new_plan = planned(spark_job, of=owner("1"))
    assert started(new_plan) == []
    assert new_plan.requeue_s == SOON_S, "the CronJob is made first"
    assert [type(action) for action in new_plan.actions] == [Apply]


@pytest.mark.parametrize(
    ("policy", "begins", "goes"),
    [("Forbid", [], []), ("Replace", ["2"], ["old"]), ("Allow", ["2"], [])],
)
def test_concurrent_runs_follow_the_policy(policy: str, begins: list[str], goes: list[str]) -> None:
    spark_job = job(concurrencyPolicy=policy)
    new_plan = planned(
        spark_job, ran("old"), ran("over", "Complete"), of=owner("2", lastRequest="1")
    )
    assert (started(new_plan), removed(new_plan)) == (begins, goes)
    unsure = ran("old", "Complete")
    unsure["status"]["conditions"][0]["status"] = "False"
    new_plan = planned(spark_job, unsure, of=owner("2", lastRequest="1"))
    assert (started(new_plan), removed(new_plan)) == (begins, goes)


# -- the schedule


def test_a_schedule_is_applied_repaired_and_paused_without_its_cluster() -> None:
    spark_job = job(**SCHEDULED)
    cron = cron_of(spark_job)
    assert not planned(spark_job, cron=cron).actions
    (apply,) = planned(spark_job, cron=cron_of(spark_job, schedule="1 1 * * *")).actions
    assert isinstance(apply, Apply)
    assert (apply.verb, apply.step.target) == ("repair", "CronJob cold")
    (apply,) = planned(job(schedule="5 5 * * *"), cron=cron).actions
    assert isinstance(apply, Apply)
    assert apply.verb == "update"
    others = cron_of(spark_job)
    others["metadata"]["ownerReferences"] = [{"uid": "another"}]
    new_plan = planned(spark_job, cron=others)
    assert (new_plan.actions, new_plan.problems[0].reason) == ((), "NameTaken")
    away = job(None, **SCHEDULED)
    absent = Problem("NoCluster", "x")
    new_plan = planned(away, cron=cron, absent=absent)
    assert [type(action) for action in new_plan.actions] == [Suspend]
    assert not planned(away, cron=cron_of(spark_job, suspend=True), absent=absent).actions
    assert not planned(away, cron=others, absent=absent).actions
    assert not planned(away, absent=absent).actions


def test_rights_are_created_and_repaired() -> None:
    spark_job = job()
    planned = plan(spark_job, owner(), Observed())
    kinds = [action.manifest["kind"] for action in planned.actions if isinstance(action, Apply)]
    assert kinds == [manifest["kind"] for manifest in manifests.rights(spark_job)]
    assert all(action.verb == "create" for action in planned.actions if isinstance(action, Apply))


# -- deletions


def test_runs_beyond_the_history_are_deleted_once_the_status_has_their_end() -> None:
    spark_job = job(historyLimit=1)
    jobs = [
        ran("new", "Complete", at="2026-03-01T12:00:00Z"),
        ran("old", "Failed", at="2026-03-01T11:00:00Z"),
        ran("older", "Complete", at="2026-03-01T10:00:00Z"),
        ran("live", at="2026-03-01T09:00:00Z"),
    ]
    recorded_runs = [{"name": "old", "state": "Failed"}, {"name": "older", "state": "Running"}]
    new_plan = planned(spark_job, *jobs, of=owner(lastRequest="", runs=recorded_runs))
    assert removed(new_plan) == ["old"]
    assert new_plan.requeue_s == SOON_S, "what the other said is not in the status yet"
    recorded_runs[1]["state"] = "Succeeded"
    new_plan = planned(spark_job, *jobs, of=owner(lastRequest="", runs=recorded_runs))
    assert removed(new_plan) == ["old", "older"]
    assert new_plan.requeue_s is None
    jobs[1]["metadata"]["deletionTimestamp"] = AT
    assert removed(planned(spark_job, *jobs, of=owner(lastRequest="", runs=recorded_runs))) == [
        "older"
    ]
    (remove,) = planned(spark_job, *jobs, of=owner(lastRequest="", runs=recorded_runs)).actions
    assert isinstance(remove, Remove)
    assert (remove.uid, remove.text) == ("u-older", "beyond historyLimit 1")


def test_executors_that_outlive_their_driver_are_deleted() -> None:
    driver = pod("d", "r", phase="Succeeded")
    mine = {"ownerReferences": [{"uid": "u-d"}]}
    pods = [
        driver,
        pod("live", "r", phase="Running"),
        pod("left", role=EXECUTOR, meta=mine),
        pod("going", role=EXECUTOR, meta={**mine, "deletionTimestamp": AT}),
        pod("other", role=EXECUTOR, meta={"ownerReferences": [{"uid": "u-live"}]}),
        pod("free", role=EXECUTOR),
        pod("no executor", meta=mine),
    ]
    assert [pod["metadata"]["name"] for pod in orphans(pods)] == ["left"]
    driver["status"]["phase"] = "Failed"
    new_plan = planned(job(), pods=tuple(pods), of=owner(lastRequest=""))
    assert removed(new_plan) == ["left"]
    driver["status"]["phase"] = "Running"
    assert orphans(pods) == []


# -- runs


def ended(message: str = "", reason: str = "Error", code: int = 1) -> dict[str, Any]:
    terminated = {"reason": reason, "exitCode": code, "message": message}
    return {"containerStatuses": [{"state": {}}, {"state": {"terminated": terminated}}]}


def test_a_run_is_reported_from_its_job_and_its_last_pod() -> None:
    figures = json.dumps({"metrics": {"entries": 1234, "ratio": 0.5, "ok": True, "x": "y"}})
    finished = ran("r", "Complete", completionTime="2026-03-01T12:30:00Z", failed=1)
    finished["metadata"]["annotations"] = {SPEC_DIGEST: "digest"}
    early = pod("p1", "r", meta={"creationTimestamp": "1"}, **ended("no"))
    last = pod("p2", "r", meta={"creationTimestamp": "2"}, **ended(figures))
    (told,) = runs([], [finished], [last, early, pod("p3", "another")], AT)
    assert (told.name, told.state, told.attempt) == ("r", "Succeeded", 2)
    assert (told.started_at, told.ended_at) == (AT, "2026-03-01T12:30:00Z")
    assert (told.message, told.spec) == ("entries 1,234, ratio 0.5", "digest")
    assert told.result == {"entries": 1234, "ratio": 0.5}
    (bare,) = runs([], [ran("r", "Complete")], [], AT)
    assert (bare.message, bare.attempt, bare.ended_at, bare.result) == ("done", 1, AT, None)
    many = json.dumps({"metrics": {f"m{at}": at for at in range(FIGURES_MAX + 3)}})
    (told,) = runs([], [ran("r", "Complete")], [pod("p", "r", **ended(many))], AT)
    assert told.result is not None
    assert len(told.result) == FIGURES_MAX
    assert len(told.message) <= MESSAGE_CHARACTERS_MAX


def test_a_failure_is_explained_by_the_jobs_message_or_by_kubernetes() -> None:
    why = {"reason": "BackoffLimitExceeded", "message": "too many"}
    failed = ran("r", "Failed", failed=3, why=why)
    (told,) = runs([], [failed], [pod("p", "r", **ended('{"error": "no such topic"}'))], AT)
    assert (told.state, told.attempt, told.ended_at) == ("Failed", 3, AT)
    assert told.message == "no such topic; BackoffLimitExceeded: too many"
    (told,) = runs([], [failed], [pod("p", "r", **ended("boom", "OOMKilled", 137))], AT)
    assert told.message == "OOMKilled, exit code 137: boom; BackoffLimitExceeded: too many"
    (told,) = runs([], [failed], [pod("p", "r", **ended("[1]", "Error", 2))], AT)
    assert told.message.startswith("Error, exit code 2: [1];")
    (told,) = runs([], [failed], [pod("p", "r", phase="Failed", reason="Evicted")], AT)
    assert told.message == "Evicted; BackoffLimitExceeded: too many"
    (told,) = runs([], [ran("r", "Failed")], [pod("p", "r", **ended("x" * 2_000))], AT)
    assert told.message.endswith(": " + "x" * (MESSAGE_CHARACTERS_MAX // 2))


def test_a_run_in_progress_reports_what_it_waits_for() -> None:
    live = ran("r")
    (told,) = runs([], [live], [], AT)
    assert (told.state, told.message, told.attempt) == ("Starting", "its pod does not exist yet", 1)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}
    stuck = pod("p", "r", containerStatuses=[{"state": waiting}])
    (told,) = runs([], [live], [stuck], AT)
    assert (told.state, told.message) == ("Starting", "ImagePullBackOff: no image")
    driver = pod("p", "r", phase="Running")
    executor = pod(
        "e",
        role=EXECUTOR,
        meta={"ownerReferences": [{"uid": "x"}, {"uid": "u-p"}]},
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
    )
    (told,) = runs([], [ran("r", failed=2)], [driver, executor], AT)
    assert told.state == "Running"
    assert told.message == "an executor cannot start: Unschedulable; 2 of its attempts failed"
    assert told.attempt == 3
    (told,) = runs([], [live], [driver], AT)
    assert told.message == ""
    for reason in ("ContainerCreating", "PodInitializing", None):
        waiting["waiting"]["reason"] = reason  # type: ignore[assignment]
        assert trouble(stuck) == ""
    assert trouble(None) == ""


def test_an_ended_run_stays_ended_and_a_run_without_its_job_was_stopped() -> None:
    before: list[dict[str, Any]] = [
        {"name": "a", "state": "Succeeded", "startedAt": "3", "message": "kept"},
        {"name": "b", "state": "Running", "startedAt": "2", "attempt": 2, "spec": "d"},
        {"name": "c", "state": "Failed", "startedAt": "1"},
        {"name": "d", "state": "Running", "startedAt": "4"},
    ]
    told = runs(before, [ran("a"), ran("d", startTime="4")], [], AT)
    assert [(item.name, item.state) for item in told] == [
        ("d", "Starting"),
        ("a", "Succeeded"),
        ("b", "Stopped"),
        ("c", "Failed"),
    ]
    assert told[1].message == "kept"
    stopped = told[2]
    assert (stopped.ended_at, stopped.attempt, stopped.spec) == (AT, 2, "d")
    assert stopped.message == "its Job was deleted while it ran"
    assert told[3].ended_at is None


# -- the status


def shown(spark_job: Job, *jobs: Object, of: Object | None = None, **how: Any) -> tuple[Any, Any]:
    of = of or owner(lastRequest="")
    is_plan_only = how.pop("is_plan_only", False)
    problems = how.pop("problems", [])
    observed = observed_of(spark_job, *jobs, **how)
    new_plan = plan(spark_job, of, observed)
    new_plan = replace(new_plan, problems=[*new_plan.problems, *problems])
    shown_status = status(spark_job, of, observed, new_plan, NOW, is_plan_only=is_plan_only).status
    return shown_status, {condition["type"]: condition for condition in shown_status["conditions"]}


def test_the_phase_and_ready_follow_the_last_run() -> None:
    told, by_type = shown(job())
    assert (told["phase"], by_type["Ready"]["reason"]) == ("Waiting", "Waiting")
    assert "Succeeded" not in by_type
    told, by_type = shown(job(), ran("r"))
    assert (told["phase"], told["active"]) == ("Running", 1)
    assert (by_type["Ready"]["status"], by_type["Ready"]["reason"]) == ("False", "RunStarting")
    told, by_type = shown(job(), ran("r"), pods=(pod("p", "r", phase="Running"),))
    assert (by_type["Ready"]["status"], by_type["Ready"]["reason"]) == ("True", "Running")
    told, by_type = shown(job(), ran("r", "Complete"))
    assert (told["phase"], by_type["Ready"]["reason"]) == ("Succeeded", "Succeeded")
    assert by_type["Succeeded"]["status"] == by_type["Ready"]["status"] == "True"
    assert (told["lastRunAt"], told["lastSuccessAt"]) == (AT, AT)
    told, by_type = shown(job(), ran("r", "Failed"))
    assert (told["phase"], by_type["Ready"]["reason"]) == ("Failed", "RunFailed")
    assert "to run it again" in by_type["Ready"]["message"]
    assert by_type["Succeeded"]["status"] == "False"
    assert "lastSuccessAt" not in told
    told, by_type = shown(job(suspend=True), ran("r", "Failed"))
    assert (told["phase"], by_type["Ready"]["reason"]) == ("Suspended", "Suspended")
    told, by_type = shown(job(), ran("r", "Complete"), problems=[Problem("Bad", "x")])
    assert (told["phase"], by_type["Ready"]["message"]) == ("Waiting", "x")
    later = owner(lastRequest="", lastRunAt="2027", lastSuccessAt="2027")
    told, _ = shown(job(), ran("r", "Complete"), of=later)
    assert (told["lastRunAt"], told["lastSuccessAt"]) == ("2027", "2027")
    assert (told["lastRequest"], told["cluster"], told["plan"]) == ("", "demo", [])


def test_the_status_of_a_schedule_has_the_time_of_the_next_run() -> None:
    spark_job = job(**SCHEDULED)
    told, by_type = shown(spark_job, cron=cron_of(spark_job))
    assert (told["phase"], told["nextRunAt"]) == ("Scheduled", "2026-03-02T03:00:00Z")
    assert by_type["Ready"]["message"] == "the next run is due at 2026-03-02T03:00:00Z"
    assert by_type["Ready"]["status"] == "True"
    cron = cron_of(spark_job)
    cron["status"] = {"lastScheduleTime": "2026-03-05T03:00:00Z"}
    assert shown(spark_job, cron=cron)[0]["nextRunAt"] == "2026-03-06T03:00:00Z"
    never = job(schedule="0 0 30 2 *")
    told, by_type = shown(never, cron=cron_of(never))
    assert "nextRunAt" not in told
    assert by_type["Ready"]["message"] == "no run will ever be due"
    wrong = job(schedule="61 3 * * *")
    assert "nextRunAt" not in shown(wrong, cron=cron_of(wrong))[0], "the API server says why"
    paused = job(**SCHEDULED, suspend=True)
    assert "nextRunAt" not in shown(paused, cron=cron_of(paused))[0]
    told, by_type = shown(spark_job, ran("r", "Failed"), cron=cron_of(spark_job))
    assert by_type["Ready"]["status"] == "False"
    assert "to run it again" not in by_type["Ready"]["message"]


def test_a_run_of_an_older_spec_is_marked() -> None:
    spark_job = job()
    finished = ran("r", "Complete")
    for digest, changed in ((spark_job.spec_digest, False), ("other", True), ("", False)):
        finished["metadata"]["annotations"] = {SPEC_DIGEST: digest}
        assert ("SpecChanged" in shown(spark_job, finished)[1]) is changed
    finished["metadata"]["annotations"] = {SPEC_DIGEST: "other"}
    assert (
        "SpecChanged" not in shown(spark_job, finished, ran("live", at="2026-03-01T13:00:00Z"))[1]
    )
    scheduled = job(**SCHEDULED)
    assert "SpecChanged" not in shown(scheduled, finished, cron=cron_of(scheduled))[1]
    assert job(historyLimit=3).spec_digest == spark_job.spec_digest
    assert job(executor={"instances": 9}).spec_digest != spark_job.spec_digest


@pytest.mark.parametrize(
    ("figures", "holds", "reason", "text"),
    [
        ({"subscriptions": 9}, "False", "Draining", "none of 9 subscriptions"),
        ({"subscriptions": 9, "stalled": 1}, "True", "Stalled", "1 stalled of 9"),
        ({"subscriptions": 9, "stalled": 1, "growing": 2}, "True", "Growing", "2 growing, 1 st"),
        ({"unreadable": 1, "growing": 2}, "True", "Unreadable", "1 unreadable, 2 growing of 0"),
    ],
)
def test_a_backlog_report_names_the_worst(
    figures: dict[str, int], holds: str, reason: str, text: str
) -> None:
    pod_document = pod("p", "r", **ended(json.dumps({"metrics": figures})))
    _, by_type = shown(job(type="Backlog"), ran("r", "Complete"), pods=(pod_document,))
    condition = by_type["BacklogGrowing"]
    assert (condition["status"], condition["reason"]) == (holds, reason)
    assert text in condition["message"]
    assert "BacklogGrowing" not in shown(job(), ran("r", "Complete"), pods=(pod_document,))[1]


def test_the_status_keeps_the_runs_of_the_history_and_those_whose_jobs_exist() -> None:
    gone = [{"name": f"g{at}", "state": "Succeeded", "startedAt": f"{at}"} for at in range(5)]
    of = owner(lastRequest="", runs=gone)
    told, _ = shown(job(historyLimit=2), of=of)
    assert [run["name"] for run in told["runs"]] == ["g4", "g3"]
    told, _ = shown(job(historyLimit=0), of=of)
    assert [run["name"] for run in told["runs"]] == ["g4"]
    told, _ = shown(job(historyLimit=1), ran("g0", "Complete"), of=of)
    assert [run["name"] for run in told["runs"]] == ["g4", "g0"]
    told, _ = shown(job(), of=owner("5", lastRequest=""), is_plan_only=True)
    assert [step["action"] for step in told["plan"]] == ["start"]
