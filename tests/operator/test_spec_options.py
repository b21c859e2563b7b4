"""Every option of a MagnetarCluster and a SparkJob reaches the object that it is about."""

import dataclasses
import datetime
import json
from typing import Any

import pytest
from tests.operator.cluster_world import cluster_of
from tests.operator.test_sparkjobs_plan import PLACE, S3, conf_of, job, placed

from magnetar_operator.cluster.manifests.names import Cluster
from magnetar_operator.cluster.manifests.names import cluster_of as read_cluster
from magnetar_operator.cluster.observed import Observed, Pod
from magnetar_operator.cluster.plan import plan
from magnetar_operator.engine.plan import Apply
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.cluster_parts import Offload
from magnetar_operator.settings import Settings
from magnetar_operator.sparkjobs import manifests, submit

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
BROKER, BOOKIE, ETCD = "Deployment c-broker", "StatefulSet c-bookie", "StatefulSet c-etcd"
RECOVERY = "Deployment c-recovery"
PODS = {"broker": BROKER, "bookie": BOOKIE, "etcd": ETCD}
POD = "spec template spec"
CONTAINER = f"{POD} containers 0"
SEPARATE = {"mode": "Separate"}


def objects(cluster: Cluster) -> dict[str, Object]:
    """All objects of a new cluster, by kind and name."""
    pods = [
        Pod(f"c-{component}-{at}", "u", component, "", True, NOW, False)
        for component in ("etcd", "bookie")
        for at in range(3)
    ]
    planned = plan(cluster, Observed(pods=pods, has_service_monitors=True), 0, NOW)
    manifests_ = [action.manifest for action in planned.actions if isinstance(action, Apply)]
    return {
        f"{document['kind']} {document['metadata']['name']}": document for document in manifests_
    }


def at(document: Any, path: str) -> Any:
    """The value at the path; `env NAME` is a container's variable."""
    words = path.split(" ")
    while words:
        word = words.pop(0)
        if word == "env":
            name = words.pop(0)
            (document,) = [variable for variable in document["env"] if variable["name"] == name]
        else:
            document = document[int(word) if isinstance(document, list) else word]
    return document


def nested(path: str, value: Any) -> dict[str, Any]:
    for word in reversed(path.split(".")):
        value = {word: value}
    return dict(value)


TOLERATION = {"key": "disk", "operator": "Exists"}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}
OF_PODS: list[tuple[str, Any, str, Any]] = [
    ("resources", {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}},
     f"{CONTAINER} resources", {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}),
    ("nodeSelector", {"a": "b"}, f"{POD} nodeSelector", {"a": "b"}),
    ("tolerations", [TOLERATION], f"{POD} tolerations", [TOLERATION]),
    ("priorityClassName", "high", f"{POD} priorityClassName", "high"),
    ("podAnnotations", {"a": "b"}, "spec template metadata annotations a", "b"),
    ("affinity", {"nodeAffinity": {}}, f"{POD} affinity", {"nodeAffinity": {}}),
    ("gracePeriod", "90s", f"{POD} terminationGracePeriodSeconds", 90),
    ("extraEnv", [{"name": "X", "value": "1"}], f"{CONTAINER} env X value", "1"),
    ("extraEnv", [{"name": "POD_NAME", "value": "1"}], f"{CONTAINER} env POD_NAME",
     {"name": "POD_NAME", "value": "1"}),
    ("extraEnv", [{"name": "X", "valueFrom": SECRET}], f"{CONTAINER} env X valueFrom", SECRET),
    ("topologySpreadConstraints", [{"maxSkew": 1}], f"{POD} topologySpreadConstraints 0 maxSkew",
     1),
    ("topologySpreadConstraints", [{"labelSelector": {}}],
     f"{POD} topologySpreadConstraints 0 labelSelector", {}),
]  # fmt: skip


@pytest.mark.parametrize("component", PODS)
@pytest.mark.parametrize(("option", "given", "path", "value"), OF_PODS)
def test_pod_options_apply_to_the_components_own_pods(
    component: str, option: str, given: Any, path: str, value: Any
) -> None:
    created = objects(cluster_of(**{component: {option: given}}))
    assert at(created[PODS[component]], path) == value
    plain = objects(cluster_of())
    for other in PODS.keys() - {component}:
        assert created[PODS[other]]["spec"]["template"] == plain[PODS[other]]["spec"]["template"]


@pytest.mark.parametrize("component", PODS)
@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("Required", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("Preferred", "preferredDuringSchedulingIgnoredDuringExecution"),
        ("Disabled", None),
    ],
)
def test_anti_affinity_follows_the_spec(component: str, given: str, rule: str | None) -> None:
    created = objects(cluster_of(**{component: {"antiAffinity": given}}))
    affinity = at(created[PODS[component]], POD).get("affinity", {})
    assert [*affinity.get("podAntiAffinity", {})] == ([rule] if rule else [])
    if rule:
        labels = json.dumps({"app": "magnetar", "cluster": "c", "component": component})
        assert labels in json.dumps(affinity), "of that component alone"


HPA, MONITOR = "HorizontalPodAutoscaler c-broker", "ServiceMonitor c-bookie"
SCALED = {"enabled": True, "minReplicas": 3, "maxReplicas": 7, "targetCpuPercent": 55}
BEHAVIOR = {"scaleDown": {"selectPolicy": "Disabled"}}
STORE = {"driver": "S3", "bucket": "cold", "region": "r-1", "endpoint": "http://s3:9000"}
SETTINGS = "ConfigMap c-broker"
OFFLOAD = "data PULSAR_PREFIX_managedLedgerOffload"
OF_CLUSTER: list[tuple[str, Any, str, str, Any]] = [
    ("imagePullPolicy", "Never", BROKER, f"{CONTAINER} imagePullPolicy", "Never"),
    ("imagePullPolicy", "Never", BOOKIE, f"{CONTAINER} imagePullPolicy", "Never"),
    ("imagePullPolicy", "Never", ETCD, f"{CONTAINER} imagePullPolicy", "Never"),
    ("imagePullSecrets", [{"name": "s"}], BROKER, f"{POD} imagePullSecrets", [{"name": "s"}]),
    ("imagePullSecrets", [{"name": "s"}], ETCD, f"{POD} imagePullSecrets", [{"name": "s"}]),
    ("clusterName", "west", BROKER, f"{CONTAINER} env MAGNETAR_CLUSTER_NAME value", "west"),
    ("clusterName", "west", BOOKIE, f"{CONTAINER} env MAGNETAR_CLUSTER_NAME value", "west"),
    ("broker.replicas", 5, BROKER, "spec replicas", 5),
    ("broker.replicas", 0, BROKER, "spec replicas", 0),
    ("broker.config", {"x_y": 1}, SETTINGS, "data MAGNETAR_X_Y", "1"),
    ("broker.service", {"type": "NodePort"}, "Service c-broker", "spec type", "NodePort"),
    ("broker.service", {"annotations": {"a": "b"}}, "Service c-broker", "metadata annotations a",
     "b"),
    ("broker.autoscaling", SCALED, HPA, "spec minReplicas", 3),
    ("broker.autoscaling", SCALED, HPA, "spec maxReplicas", 7),
    ("broker.autoscaling", SCALED, HPA, "spec metrics 0 resource target averageUtilization", 55),
    ("broker.autoscaling", {"enabled": True, "behavior": BEHAVIOR}, HPA, "spec behavior", BEHAVIOR),
    ("broker.autoscaling", {"enabled": True, "backlog": {"timeToDrain": "3m"}}, HPA,
     "spec metrics 1 external metric selector matchLabels timeToDrain", "180"),
    ("bookie.replicas", 5, BOOKIE, "spec replicas", 5),
    ("bookie.config", {"x_y": 1}, "ConfigMap c-bookie", "data MAGNETAR_X_Y", "1"),
    ("bookie.storage", {"size": "7Gi"}, BOOKIE,
     "spec volumeClaimTemplates 0 spec resources requests storage", "7Gi"),
    ("bookie.storage", {"size": "7Gi", "storageClassName": "fast"}, BOOKIE,
     "spec volumeClaimTemplates 0 spec storageClassName", "fast"),
    ("etcd.storage", {"size": "7Gi"}, ETCD,
     "spec volumeClaimTemplates 0 spec resources requests storage", "7Gi"),
    ("etcd.replicas", 1, ETCD, "spec replicas", 1),
    ("autorecovery", {**SEPARATE, "replicas": 3}, RECOVERY, "spec replicas", 3),
    ("autorecovery", {**SEPARATE, "resources": {"limits": {"cpu": "1"}}}, RECOVERY,
     f"{CONTAINER} resources limits cpu", "1"),
    ("autorecovery", {**SEPARATE, "config": {"x_y": 1}}, "ConfigMap c-recovery",
     "data MAGNETAR_X_Y", "1"),
    ("autorecovery", SEPARATE, BOOKIE, f"{CONTAINER} env MAGNETAR_AUTORECOVERY value", "false"),
    ("autorecovery", {"mode": "InBookies"}, BOOKIE, f"{CONTAINER} env MAGNETAR_AUTORECOVERY value",
     "true"),
    ("offload", STORE, SETTINGS, f"{OFFLOAD}Driver", "S3"),
    ("offload", STORE, SETTINGS, f"{OFFLOAD}Bucket", "cold"),
    ("offload", STORE, SETTINGS, f"{OFFLOAD}Region", "r-1"),
    ("offload", STORE, SETTINGS, f"{OFFLOAD}ServiceEndpoint", "http://s3:9000"),
    ("offload", {**STORE, "credentials": {"name": "key"}}, BROKER,
     f"{CONTAINER} envFrom 1 secretRef name", "key"),
    ("metrics.interval", "45s", MONITOR, "spec endpoints 0 interval", "45s"),
    ("metrics.labels", {"release": "prom"}, MONITOR, "metadata labels release", "prom"),
    ("networkPolicy.jobNamespaces", ["jobs"], "NetworkPolicy c-bookie",
     "spec ingress 0 from 2 namespaceSelector matchLabels kubernetes.io/metadata.name", "jobs"),
    ("networkPolicy.jobNamespaces", ["jobs"], "NetworkPolicy c-etcd",
     "spec ingress 0 from 2 namespaceSelector matchLabels kubernetes.io/metadata.name", "jobs"),
    ("upgrade.maxUnavailable", 4, BROKER, "spec strategy rollingUpdate maxSurge", 4),
    ("upgrade.pauseBetween", "11s", BROKER, "spec minReadySeconds", 11),
]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "given", "target", "path", "value"),
    OF_CLUSTER,
    ids=[f"{option}-{path.replace(' ', '.')}" for option, _, _, path, _ in OF_CLUSTER],
)
def test_an_option_of_a_cluster_is_in_its_object(
    option: str, given: Any, target: str, path: str, value: Any
) -> None:
    assert at(objects(cluster_of(**nested(option, given)))[target], path) == value


@pytest.mark.parametrize("named", [True, False])
def test_images_come_from_the_spec_or_else_from_the_operator(named: bool) -> None:
    spec = {"image": "mine:2", "etcd": {"image": "my-etcd:2"}} if named else {}
    metadata = {"name": "c", "namespace": "ns", "uid": "u"}
    settings = Settings(image="magnetar:1", etcd_image="etcd:1")
    created = objects(read_cluster({"metadata": metadata, "spec": spec}, settings))
    for target in (BROKER, BOOKIE):
        assert at(created[target], f"{CONTAINER} image") == ("mine:2" if named else "magnetar:1")
    assert at(created[ETCD], f"{CONTAINER} image") == ("my-etcd:2" if named else "etcd:1")


# -- jobs

NIGHTLY: dict[str, Any] = {"schedule": "0 3 * * *"}
TEMPLATE = "spec template metadata annotations"
OF_JOBS: list[tuple[dict[str, Any], str, Any]] = [
    ({"timeout": "2h"}, "spec activeDeadlineSeconds", 7_200),
    ({"retries": {"backoffLimit": 4}}, "spec backoffLimit", 4),
    ({"retries": {"backoffLimit": 0}}, "spec backoffLimit", 0),
    ({"imagePullPolicy": "Always"}, f"{CONTAINER} imagePullPolicy", "Always"),
    ({"imagePullSecrets": [{"name": "s"}]}, f"{POD} imagePullSecrets", [{"name": "s"}]),
    ({"serviceAccountName": "mine"}, f"{POD} serviceAccountName", "mine"),
    ({"credentials": {"name": "key"}}, f"{CONTAINER} envFrom 0 secretRef name", "key"),
    ({"driver": {"cores": 3}}, f"{CONTAINER} resources requests cpu", "3"),
    ({"driver": {"cores": 3, "cpuRequest": "500m"}}, f"{CONTAINER} resources requests cpu", "500m"),
    ({"driver": {"memory": "3Gi"}}, f"{CONTAINER} resources limits memory", "3072Mi"),
    ({"driver": {"memory": "3Gi"}}, f"{CONTAINER} resources requests memory", "3072Mi"),
    ({"driver": {"nodeSelector": {"a": "b"}}}, f"{POD} nodeSelector", {"a": "b"}),
    ({"driver": {"tolerations": [TOLERATION]}}, f"{POD} tolerations", [TOLERATION]),
]
OF_EXECUTORS: list[tuple[dict[str, Any], str, Any]] = [
    ({"imagePullSecrets": [{"name": "s"}]}, "spec imagePullSecrets", [{"name": "s"}]),
    ({"credentials": {"name": "key"}}, "spec containers 0 envFrom 0 secretRef name", "key"),
    ({"executor": {"nodeSelector": {"a": "b"}}}, "spec nodeSelector", {"a": "b"}),
    ({"executor": {"tolerations": [TOLERATION]}}, "spec tolerations", [TOLERATION]),
]
OF_SCHEDULES: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "spec schedule", "0 3 * * *"),
    ({"timeZone": "Europe/Berlin"}, "spec timeZone", "Europe/Berlin"),
    ({"startingDeadline": "1h"}, "spec startingDeadlineSeconds", 3_600),
    ({"suspend": True}, "spec suspend", True),
    ({"concurrencyPolicy": "Allow"}, "spec concurrencyPolicy", "Allow"),
    ({"historyLimit": 7}, "spec successfulJobsHistoryLimit", 7),
    ({"historyLimit": 7}, "spec failedJobsHistoryLimit", 7),
    ({"historyLimit": 0}, "spec failedJobsHistoryLimit", 1),
    ({"timeout": "2h"}, "spec jobTemplate spec activeDeadlineSeconds", 7_200),
]
OF_SPARK: list[tuple[dict[str, Any], str, str]] = [
    ({"executor": {"instances": 7}}, "spark.executor.instances", "7"),
    ({"executor": {"cores": 3}}, "spark.executor.cores", "3"),
    ({"executor": {"cpuRequest": "500m"}}, "spark.kubernetes.executor.request.cores", "500m"),
    ({"executor": {"memory": "3Gi"}}, "spark.executor.memory", "1536m"),
    ({"driver": {"memory": "3Gi"}}, "spark.driver.memory", "1536m"),
    ({"imagePullPolicy": "Always"}, "spark.kubernetes.container.image.pullPolicy", "Always"),
    ({"sparkConf": {"spark.executor.memory": "2g"}}, "spark.executor.memory", "2g"),
]


@pytest.mark.parametrize(("spec", "path", "value"), OF_JOBS)
def test_an_option_of_a_job_is_in_its_driver(spec: dict[str, Any], path: str, value: Any) -> None:
    assert at(manifests.run(job(**spec), PLACE, "", None), path) == value


@pytest.mark.parametrize(("spec", "path", "value"), OF_EXECUTORS)
def test_an_option_of_a_job_is_in_its_executors(
    spec: dict[str, Any], path: str, value: Any
) -> None:
    manifest = manifests.run(job(**spec), PLACE, "", None)
    assert at(json.loads(at(manifest, TEMPLATE)[manifests.TEMPLATE]), path) == value


@pytest.mark.parametrize(("spec", "path", "value"), OF_SCHEDULES)
def test_an_option_of_a_schedule_is_in_its_cron_job(
    spec: dict[str, Any], path: str, value: Any
) -> None:
    assert at(manifests.cron_job(job(**NIGHTLY, **spec), PLACE), path) == value


@pytest.mark.parametrize(("spec", "key", "value"), OF_SPARK)
def test_an_option_of_a_job_is_in_sparks_settings(
    spec: dict[str, Any], key: str, value: str
) -> None:
    assert conf_of(submit.arguments(job(**spec), PLACE))[key] == value


@pytest.mark.parametrize(
    ("namespace", "spec", "pulls", "credentials"),
    [
        ("ns", {}, ["of-cluster"], ["key"]),
        ("ns", {"imagePullSecrets": [{"name": "mine"}]}, ["mine"], ["key"]),
        ("ns", {"credentials": {"name": "mine"}}, ["of-cluster"], ["mine"]),
        # Secrets of another Kubernetes namespace are out of a pod's reach.
        ("far", {}, [], []),
        ("far", {"credentials": {"name": "mine"}}, [], ["mine"]),
    ],
)
def test_a_job_gets_its_clusters_secrets_only_in_the_same_namespace(
    namespace: str, spec: dict[str, Any], pulls: list[str], credentials: list[str]
) -> None:
    place = dataclasses.replace(placed(S3, namespace), image_pull_secrets=("of-cluster",))
    driver = at(manifests.run(job(place, **spec), place, "", None), "spec template")
    executor = json.loads(driver["metadata"]["annotations"][manifests.TEMPLATE])
    for pod in (driver["spec"], executor["spec"]):
        assert [item["name"] for item in pod.get("imagePullSecrets", ())] == pulls
        given = pod["containers"][0].get("envFrom", ())
        assert [item["secretRef"]["name"] for item in given] == credentials


@pytest.mark.parametrize(
    ("offload", "variables"),
    [
        ({"driver": "S3", "bucket": "b"}, {}),
        ({"driver": "aws-s3", "bucket": "b", "region": "r"}, {"AWS_REGION": "r"}),
        ({"driver": "S3", "bucket": "b", "endpoint": "http://s"}, {"AWS_ENDPOINT_URL": "http://s"}),
        ({"driver": "google-cloud-storage", "bucket": "b", "region": "r"}, {}),
        ({"driver": "filesystem", "volumeClaim": {"name": "c"}}, {}),
    ],
)
def test_a_job_gets_exactly_the_clusters_store_settings(
    offload: dict[str, Any], variables: dict[str, str]
) -> None:
    place = placed(Offload.parse(offload))
    container = at(manifests.run(job(place), place, "", None), CONTAINER)
    given = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert {name: one for name, one in given.items() if name.startswith("AWS_")} == variables
