"""SparkJobs without a Kubernetes: commands, schedules, plans and statuses."""

import datetime
import json
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.operator.cluster_world import cluster_of

from magnetar_operator.cluster.manifests.names import SPARK_OF
from magnetar_operator.engine.plan import Apply, Remove
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.cluster_parts import Offload
from magnetar_operator.models.sparkjob import SparkJobSpec
from magnetar_operator.sparkjobs import manifests, submit
from magnetar_operator.sparkjobs import metrics as figures
from magnetar_operator.sparkjobs.cron import BadSchedule, Schedule
from magnetar_operator.sparkjobs.desired import Job, Place, place_in
from magnetar_operator.sparkjobs.plan import Observed, Problem, Start, plan
from magnetar_operator.sparkjobs.status import status

UTC = datetime.UTC
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=UTC)
PLACE = Place("demo", "ns", "etcd:http://demo-etcd-0:2379", "http://demo-broker.ns.svc:8080")
S3 = Offload.parse(
    {"driver": "S3", "bucket": "cold", "endpoint": "http://s3:9000", "credentials": {"name": "key"}}
)
FOLDER = Offload.parse({"driver": "filesystem", "volumeClaim": {"name": "cold"}})


def job(place: Place | None = PLACE, **spec: Any) -> Job:
    parsed = SparkJobSpec.parse({"type": "Offload", **spec})
    return Job("cold", "ns", "uid-1", parsed, "spark:1", place)


def placed(offload: Offload, namespace: str = "ns") -> Place:
    return Place("demo", namespace, "etcd:http://e:2379", "http://b:8080", offload=offload)


def conf_of(words: list[str]) -> dict[str, str]:
    pairs = [words[at + 1] for at, word in enumerate(words) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


# -- the command --------------------------------------------------------------------------------


def test_the_drivers_command() -> None:
    spark_job = job(
        selection={"topics": ["persistent://shop/orders/created"], "namespaces": ["shop/carts"]},
        options={"deletion-lag": -1, "upTo": "3:4", "dry-run": "true", "verbose": "false"},
        executor={"instances": 3, "cores": 2, "memory": "2Gi", "cpuRequest": "500m"},
        sparkConf={"spark.sql.shuffle.partitions": 8},
        eventLogClaim={"name": "events"},
    )
    words = submit.arguments(spark_job, PLACE)
    assert words[:4] == ["driver", "--master", "k8s://https://kubernetes.default.svc", "--name"]
    at = words.index(submit.PROGRAM)
    assert words[at + 1 :] == [
        "offload", "--topic=persistent://shop/orders/created", "--namespace=shop/carts",
        "--metadata-url=etcd:http://demo-etcd-0:2379",
        "--admin-url=http://demo-broker.ns.svc:8080", "--json", "--no-progress",
        "--termination-message=/dev/termination-log", "--event-log=/var/spark-events",
        "--deletion-lag=-1", "--up-to=3:4", "--dry-run",
    ]  # fmt: skip
    conf = conf_of(words)
    assert conf["spark.executor.instances"] == "3"
    assert (conf["spark.executor.memory"], conf["spark.executor.memoryOverhead"]) == (
        "1024m", "1024m"
    )  # fmt: skip
    assert conf["spark.kubernetes.executor.request.cores"] == "500m"
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    assert conf["spark.sql.shuffle.partitions"] == "8"
    assert conf["spark.authenticate"] == "true"
    assert conf[f"spark.kubernetes.executor.label.{SPARK_OF}"] == "demo"
    assert "--all" in submit.arguments(job(), PLACE)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"type": "Compact"}, ["--parallelism=6"]),
        ({"type": "Compact", "options": {"max-topics": 1}}, ["--parallelism=6"]),
        ({"type": "Compact", "options": {"parallelism": 5}}, ["--parallelism=5"]),
        ({"type": "Offload"}, []),
        ({"type": "Offload", "options": {"parallelism": 5}}, ["--parallelism=5"]),
    ],
    ids=str,
)
def test_a_compaction_uses_all_cores_of_its_executors_unless_configured_otherwise(
    spec: dict[str, Any], words: list[str]
) -> None:
    arguments = submit.job_arguments(job(**spec, executor={"instances": 3, "cores": 2}), PLACE)
    assert [word for word in arguments if word.startswith("--parallelism")] == words


def test_the_event_log_is_written_to_the_claim_that_the_spec_names() -> None:
    spark_job = job(eventLogClaim={"name": "history"})
    pod = manifests.run(spark_job, PLACE, "1", None)["spec"]["template"]["spec"]
    (volume,) = [item for item in pod["volumes"] if "persistentVolumeClaim" in item]
    assert volume["persistentVolumeClaim"] == {"claimName": "history"}
    mounts = {item["name"]: item["mountPath"] for item in pod["containers"][0]["volumeMounts"]}
    assert mounts[volume["name"]] == submit.EVENT_LOG_DIR
    assert f"--event-log={submit.EVENT_LOG_DIR}" in submit.job_arguments(spark_job, PLACE)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"sparkConf": {"spark.kubernetes.namespace": "x"}}, "is set by the operator"),
        ({"sparkConf": {"spark.kubernetes.authenticate.oauthToken": "x"}}, "is set by the op"),
        ({"sparkConf": {"master": "x"}}, "not a setting of Spark"),
        ({"options": {"--bad": "x"}}, "must be the name of an option"),
        ({"options": {"metadataUrl": "x"}}, "another field of the spec sets"),
        ({"executor": {"memory": "512Mi"}}, "spec.executor.memory: 512Mi is too little"),
    ],
)
def test_a_refusal_names_the_field(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(submit.BadSpec, match=told):
        submit.arguments(job(**spec), PLACE)
    planned = plan(job(**spec), owner(), Observed())
    assert [problem.reason for problem in planned.problems] == ["InvalidSpec"]
    assert not [action for action in planned.actions if isinstance(action, Start)]


@example("$$")
@example("$$(POD_NAME)")
@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=40))
def test_users_texts_reach_the_job_unchanged(text: str) -> None:
    """Kubernetes replaces $(NAME), and turns any $$ into a single $."""
    words = submit.options({"key": text})
    if text in ("true", "false"):
        return
    assert expanded(words[0], {"POD_NAME": "pod"}) == f"--key={text}"


def expanded(text: str, values: dict[str, str]) -> str:
    """As the kubelet does it."""
    built, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            built, at = built + text[at], at + 1
        elif text[at + 1] == "$":
            built, at = built + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            built, at = built + values.get(name, f"$({name})"), end + 1
        else:
            built, at = built + text[at], at + 1
    return built


def test_pods_are_restricted_and_only_the_driver_has_a_token() -> None:
    spark_job = job(placed(S3), imagePullSecrets=[{"name": "pull"}], driver={"cores": 2})
    manifest = manifests.job_spec(spark_job, placed(S3))
    driver = manifest["template"]
    template = json.loads(driver["metadata"]["annotations"][manifests.TEMPLATE])
    for pod in (driver["spec"], template["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["envFrom"] == [{"secretRef": {"name": "key"}}]
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        given = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert given["AWS_ENDPOINT_URL"] == "http://s3:9000"
        # Spark would mount executors' volumes there, over the one that is mounted.
        assert "SPARK_LOCAL_DIRS" not in given
    assert driver["spec"]["automountServiceAccountToken"] is True
    assert template["spec"]["automountServiceAccountToken"] is False
    assert driver["spec"]["serviceAccountName"] == "cold-spark"
    assert driver["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
    assert driver["metadata"]["labels"][SPARK_OF] == "demo"
    assert manifests.rights(job(serviceAccountName="mine")) == []


ETCD = {"endpoints": ["http://etcd:2379"]}
USER = {"metadata_username": "magnetar", "metadata_password_file": "/secrets/etcd/password"}
PREFIX = "/magnetar/b"


@pytest.mark.parametrize(
    ("spec", "variables"),
    [
        ({}, {}),
        ({"etcd": {"external": {**ETCD, "prefix": PREFIX}}}, {"METADATA_ROOT": PREFIX}),
        ({"broker": {"config": {"metadata_root": PREFIX}}}, {"METADATA_ROOT": PREFIX}),
        (
            {
                "etcd": {"external": {**ETCD, "prefix": PREFIX}},
                "broker": {"config": {**USER, "metadata_tls_ca_file": "/ca.crt"}},
            },
            {
                "METADATA_ROOT": PREFIX,
                "METADATA_USERNAME": "magnetar",
                "METADATA_PASSWORD_FILE": "/secrets/etcd/password",
                "METADATA_TLS_CA_FILE": "/ca.crt",
            },
        ),
    ],
)
def test_a_job_reads_the_metadata_that_brokers_read(
    spec: dict[str, Any], variables: dict[str, str]
) -> None:
    cluster = cluster_of(**spec)
    place = place_in(cluster, is_ready=True)
    manifest = manifests.run(job(place, type="Offload"), place, "", None)
    pod = manifest["spec"]["template"]
    executor = json.loads(pod["metadata"]["annotations"][manifests.TEMPLATE])
    for item in (pod, executor):
        (container,) = item["spec"]["containers"]
        by_variable = {variable["name"]: variable.get("value") for variable in container["env"]}
        given = {name: value for name, value in by_variable.items() if "METADATA" in name}
        url = {"MAGNETAR_METADATA_URL": cluster.metadata_url}
        assert given == url | {f"MAGNETAR_{name}": value for name, value in variables.items()}


def test_a_volume_of_cold_data_is_mounted_only_in_its_namespace() -> None:
    here, elsewhere = placed(FOLDER), placed(FOLDER, "other")
    for place, there in ((here, True), (elsewhere, False)):
        manifest = manifests.job_spec(job(place), place)["template"]
        template = json.loads(manifest["metadata"]["annotations"][manifests.TEMPLATE])
        for pod in (manifest["spec"], template["spec"]):
            assert any(item["name"] == "offload" for item in pod["volumes"]) == there


# -- schedules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "zone", "due"),
    [
        ("0 3 * * *", None, "2026-03-02T03:00"),
        ("@hourly", None, "2026-03-01T13:00"),
        ("*/20 9-17 * * mon-fri", None, "2026-03-02T09:00"),
        ("5/15 * * * *", None, "2026-03-01T12:05"),
        # As robfig/cron: a step above 1 makes the star a choice of days, beside the weekday's.
        ("0 0 */2 * mon", None, "2026-03-02T00:00"),
        ("0 0 */1 * tue", None, "2026-03-03T00:00"),
        ("0 0 3 * */2", None, "2026-03-03T00:00"),
        ("0 0 4,* * tue", None, "2026-03-03T00:00"),
        ("0 0 29 feb *", None, "2028-02-29T00:00"),
        ("0 0 13 * fri", None, "2026-03-06T00:00"),
        ("0 0 */2 * fri", None, "2026-03-03T00:00"),
        ("0 3 * * *", "Europe/Berlin", "2026-03-02T02:00"),
        # 02:30 is not there on 29 March.
        ("30 2 29 3 *", "Europe/Berlin", "2027-03-29T00:30"),
        ("0 0 30 2 *", None, None),
    ],
)
def test_when_a_schedule_is_due(text: str, zone: str | None, due: str | None) -> None:
    due_at = Schedule.parse(text, zone).after(NOW)
    assert (due_at.strftime("%Y-%m-%dT%H:%M") if due_at else None) == due


@pytest.mark.parametrize(
    "text", ["61 * * * *", "* * * *", "*/0 * * * *", "0 0 5-1 * *", "x * * * *"]
)
def test_invalid_schedules(text: str) -> None:
    with pytest.raises(BadSchedule):
        Schedule.parse(text)


def test_an_unknown_time_zone() -> None:
    with pytest.raises(BadSchedule, match="Mars/Olympus"):
        Schedule.parse("@daily", "Mars/Olympus")


FIELD = st.sampled_from(["*", "0", "5", "*/7", "1-4", "2,5"])


@given(
    st.tuples(FIELD, FIELD, FIELD.filter(lambda text: text != "0"),
              FIELD.filter(lambda text: text != "0"), FIELD),
    st.integers(0, 366 * 24 * 3_600),
    st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "America/St_Johns"]),
)  # fmt: skip
def test_the_next_time_is_the_first_that_matches(
    fields: tuple[str, ...], ahead_s: int, zone: str
) -> None:
    schedule = Schedule.parse(" ".join(fields), zone)
    at = NOW + datetime.timedelta(seconds=ahead_s)
    due = schedule.after(at)
    assume(due is not None)  # a first Sunday that is also an eighth day is rare
    assert due is not None
    assert due > at
    assert fits(schedule, due, zone)
    assert due.second == due.microsecond == 0
    # An hour before it is looked through, minute by minute.
    first = max(at.replace(second=0, microsecond=0), due - datetime.timedelta(hours=1))
    first += datetime.timedelta(minutes=1)
    while first < due:
        assert not (first > at and fits(schedule, first, zone))
        first += datetime.timedelta(minutes=1)


def fits(schedule: Schedule, moment: datetime.datetime, zone: str) -> bool:
    local = moment.astimezone(ZoneInfo(zone))
    by_day, by_weekday = local.day in schedule.days, local.isoweekday() % 7 in schedule.weekdays
    days = by_day or by_weekday if schedule.either_day else by_day and by_weekday
    # A time that a clock has twice in autumn counts once, the first time.
    return (
        local.minute in schedule.minutes
        and local.hour in schedule.hours
        and local.month in schedule.months
        and days
        and local.fold == 0
    )


# -- plans ----------------------------------------------------------------------------------


def owner(request: str | None = None, **status_fields: Any) -> Object:
    annotations = {} if request is None else {"magnetar.io/run": request}
    metadata = {"name": "cold", "namespace": "ns", "uid": "uid-1", "generation": 1}
    return {"metadata": {**metadata, "annotations": annotations}, "status": status_fields}


def made(name: str, state: str = "", *, at: int = 0) -> Object:
    conditions = [] if not state else [
        {"type": "Complete" if state == "Succeeded" else "Failed", "status": "True",
         "lastTransitionTime": f"2026-03-01T11:{at:02}:30Z"}
    ]  # fmt: skip
    began = f"2026-03-01T11:{at:02}:00Z"
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": began},
        "status": {"conditions": conditions, "startTime": began},
    }


def starts(found: Any) -> list[str]:
    return [action.request for action in found.actions if isinstance(action, Start)]


def test_a_deadline_that_kubernetes_never_meets() -> None:
    """The API server refuses it since this release; it may be stored."""
    nightly: dict[str, Any] = {"schedule": "0 3 * * *"}
    short = plan(job(startingDeadline="9s", **nightly), owner(), Observed(), None)
    assert [problem.reason for problem in short.problems] == ["InvalidSpec"]
    assert "10 s or more" in short.problems[0].message
    kinds = [action.manifest["kind"] for action in short.actions if isinstance(action, Apply)]
    assert "CronJob" not in kinds
    assert not plan(job(startingDeadline="10s", **nightly), owner(), Observed(), None).problems


def test_a_request_is_carried_out_once() -> None:
    spark_job = job()
    assert starts(plan(spark_job, owner(), Observed())) == [""]
    assert starts(plan(spark_job, owner(lastRequest=""), Observed())) == []
    observed = Observed(jobs=[made(spark_job.run_name(""))])
    planned = plan(spark_job, owner(), observed)
    assert (starts(planned), planned.request) == ([], "")
    done = Observed(jobs=[made(spark_job.run_name(""), "Succeeded")])
    assert starts(plan(spark_job, owner("2", lastRequest=""), done)) == ["2"]
    assert starts(plan(spark_job, owner("2", lastRequest="2"), done)) == []
    # One that runs is waited for, or takes its leave.
    assert starts(plan(spark_job, owner("2", lastRequest=""), observed)) == []
    replacing = plan(job(concurrencyPolicy="Replace"), owner("2", lastRequest=""), observed)
    assert [type(action) for action in replacing.actions][-2:] == [Remove, Start]
    beside = plan(job(concurrencyPolicy="Allow"), owner("2", lastRequest=""), observed)
    assert starts(beside) == ["2"]


def test_another_job_of_the_same_name_has_other_runs() -> None:
    other = Job("cold", "ns", "uid-2", job().spec, "spark:1", PLACE)
    assert other.run_name("") != job().run_name("")
    assert len(Job("n" * 44, "ns", "u", job().spec, "i", PLACE).run_name("x")) <= 63


def test_no_run_starts_while_the_job_waits_or_is_suspended() -> None:
    absent = Problem("WaitingForCluster", "there is none")
    assert starts(plan(job(place=None), owner(), Observed(), absent)) == []
    assert starts(plan(job(suspend=True), owner(), Observed())) == []
    assert starts(plan(job(schedule="@daily"), owner(), Observed())) == []


@given(
    states=st.lists(st.sampled_from(["", "Succeeded", "Failed"]), max_size=12),
    told=st.integers(0, 12),
    limit=st.integers(0, 6),
)
def test_only_ended_and_reported_runs_are_deleted(states: list[str], told: int, limit: int) -> None:
    jobs = [made(f"j{at}", state, at=at) for at, state in enumerate(states)]
    runs = [{"name": f"j{at}", "state": state} for at, state in enumerate(states[:told]) if state]
    planned = plan(
        job(schedule="@daily", historyLimit=limit), owner(runs=runs), Observed(jobs=jobs)
    )
    removed = {action.name for action in planned.actions if isinstance(action, Remove)}
    over = [f"j{at}" for at, state in enumerate(states) if state][::-1]
    assert removed == set(over[limit:]) & {str(run["name"]) for run in runs}


def test_reported_runs_stay_in_the_status() -> None:
    spark_job = job(historyLimit=2)
    before: dict[str, Any] = {}
    for at in range(5):
        jobs = [made(f"j{at}", "Succeeded", at=at)]
        observed = Observed(jobs=jobs)
        stored = owner(lastRequest="", **before)
        shown_status = status(spark_job, stored, observed, plan(spark_job, stored, observed), NOW)
        before = {key: value for key, value in shown_status.status.items() if key != "lastRequest"}
    assert [run["name"] for run in before["runs"]] == ["j4", "j3"]
    assert before["lastSuccessAt"] == "2026-03-01T11:04:30Z"
    # A run in progress without its Job was stopped.
    running = status(spark_job, owner(**before), Observed(jobs=[made("j5", at=5)]), plan(
        spark_job, owner(lastRequest="", **before), Observed()), NOW)  # fmt: skip
    gone = status(spark_job, owner(**running.status), Observed(), plan(
        spark_job, owner(lastRequest="", **before), Observed()), NOW)  # fmt: skip
    assert gone.status["runs"][0]["state"] == "Stopped"
    assert gone.status["phase"] == "Failed"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"subscriptions": 9, "growing": 1, "stalled": 2}, ("True", "Growing")),
        ({"subscriptions": 9, "growing": 1, "unreadable": 1}, ("True", "Unreadable")),
        ({"subscriptions": 9, "growing": 0}, ("False", "Draining")),
        (None, None),
    ],
)
def test_a_backlog_report_is_a_condition(
    result: dict[str, int] | None, told: tuple[str, str] | None
) -> None:
    run: dict[str, Any] = {"name": "j1", "state": "Succeeded", "startedAt": "2026-03-01T11:00:00Z",
                           "endedAt": "2026-03-01T11:01:00Z"}  # fmt: skip
    if result is not None:
        run["result"] = result
    for kind in ("Backlog", "Offload"):
        one, there = job(type=kind), owner(lastRequest="", runs=[run])
        shown_status = status(one, there, Observed(), plan(one, there, Observed()), NOW).status
        seen = [
            (condition["status"], condition["reason"])
            for condition in shown_status["conditions"]
            if condition["type"] == "BacklogGrowing"
        ]
        assert seen == ([told] if told and kind == "Backlog" else [])


# -- figures ------------------------------------------------------------------------------------


def test_figures_of_runs() -> None:
    runs = [
        {"name": "a", "state": "Running", "startedAt": "2026-03-01T11:05:00Z"},
        {"name": "b", "state": "Failed", "startedAt": "2026-03-01T11:00:00Z",
         "endedAt": "2026-03-01T11:01:30Z", "result": {"topics": 3}},
        {"name": "c", "state": "Succeeded", "startedAt": "2026-03-01T10:00:00Z",
         "endedAt": "2026-03-01T10:01:00Z"},
    ]  # fmt: skip
    owner_document = owner(
        runs=runs, lastSuccessAt="2026-03-01T10:01:00Z", nextRunAt="2026-03-02T03:00:00Z"
    )
    text = "".join(figures.lines([{**owner_document, "spec": {"type": "Offload"}}]))
    who = 'sparkjob_namespace="ns",sparkjob="cold",type="Offload"'
    for line in (
        f'magnetar_sparkjob_runs{{{who},state="Running"}} 1',
        f"magnetar_sparkjob_last_failed{{{who}}} 1",
        f"magnetar_sparkjob_last_duration_seconds{{{who}}} 90",
        f"magnetar_sparkjob_last_success_timestamp_seconds{{{who}}} 1772359260",
        f"magnetar_sparkjob_due_timestamp_seconds{{{who}}} 1772420400",
        f'magnetar_sparkjob_result{{{who},figure="topics"}} 3',
    ):
        assert line + "\n" in text
    assert list(figures.lines([])) == []
