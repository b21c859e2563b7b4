"""The chart's own objects and those that the operator makes of the same values are the same.

So either can take over from the other: names, pods, ports, volumes and Services agree. What may
differ is listed here, each with its reason.
"""

import json
from typing import Any

import msgspec
import pytest
from tests.chart.rendering import RELEASE, Manifest, of_kind, rendered

from magnetar_operator.cluster.manifests import brokers as serving
from magnetar_operator.cluster.manifests import storage
from magnetar_operator.cluster.manifests import surroundings as around
from magnetar_operator.cluster.manifests.names import Cluster
from magnetar_operator.models.cluster import ClusterSpec

pytestmark = pytest.mark.kube

VALUES: dict[str, Any] = {
    "components": {"autorecovery": True},
    "images": {"imagePullSecrets": ["pull"]},
    "broker": {
        "replicaCount": 3,
        "configData": {"managedLedgerCacheSizeMB": "128", "topic_metrics": "false"},
        "extraEnvs": [{"name": "TZ", "value": "UTC"}],
        "gracePeriod": 90,
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "annotations": {"example.org/a": "b"},
    },
    "bookkeeper": {
        "replicaCount": 4,
        "configData": {"gc_interval_ms": 60000},
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"type": "requiredDuringSchedulingIgnoredDuringExecution"},
        "volumes": {"common": {"size": "7Gi", "storageClassName": "fast"}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
    },
    "etcd": {"priorityClassName": "high", "resources": {"limits": {"memory": "1Gi"}}},
}
CLOSED: dict[str, Any] = {
    "tls": {"enabled": True},
    "auth": {"authentication": {"enabled": True}, "authorization": {"enabled": True}},
}
CLOSING: dict[str, Any] = {
    "components": {"autorecovery": True},
    "tls": {
        "enabled": True,
        "broker": {"keepPlain": True, "dnsNames": ["pulsar.example.org"]},
        "bookie": {"keepPlain": True},
        "etcd": {"plain": True, "peers": False},
    },
    "auth": {
        "authentication": {
            "enabled": True,
            "jwt": {"usingSecretKey": True, "generateSecrets": {"enabled": False}},
            "openid": {
                "enabled": True,
                "openIDAllowedTokenIssuers": "https://issuer.example.org",
                "openIDAllowedAudiences": "pulsar",
            },
        },
        "authorization": {"enabled": True},
        "superUsers": {"manager": "manager-admin"},
    },
}
"""On the way from an open cluster: plain ports stay, and some Secrets are brought along."""
QUORUMS = {
    "PULSAR_PREFIX_managedLedgerDefaultEnsembleSize": "MAGNETAR_ENSEMBLE_SIZE",
    "PULSAR_PREFIX_managedLedgerDefaultWriteQuorum": "MAGNETAR_WRITE_QUORUM",
    "PULSAR_PREFIX_managedLedgerDefaultAckQuorum": "MAGNETAR_ACK_QUORUM",
}
"""A MagnetarCluster has fields for them, which the operator gives under our names."""
OWN_LABELS = {"release", "magnetar.io/cluster"}
"""Whose the object is: Helm's release, or the operator's resource."""


def made_of(values: dict[str, Any]) -> ClusterSpec:
    """What the chart makes of the values for the operator."""
    manifests = rendered(values=json.dumps({**values, "operator": {"enabled": True}}))
    resource = of_kind(manifests, "MagnetarCluster")[RELEASE]
    return msgspec.convert(resource["spec"], ClusterSpec)


def made_by_operator(values: dict[str, Any]) -> Cluster:
    """The cluster as the operator reads it from what the chart made of the values."""
    spec = made_of(values)
    assert spec.image is not None
    assert spec.etcd.image is not None
    return Cluster(RELEASE, "default", "uid", spec, spec.image, spec.etcd.image)


def test_the_path_of_metadata_is_the_operators_too() -> None:
    external = {"endpoints": ["http://etcd:2379"]}
    values = {"etcd": {"external": external}, "metadataPrefix": "/magnetar/orders"}
    found = made_of(values).etcd.external
    assert found is not None
    assert found.prefix == "/magnetar/orders"


@pytest.fixture(scope="module", params=["defaults", "many values", "closed", "closing"])
def both(request: pytest.FixtureRequest) -> tuple[tuple[Manifest, ...], Cluster]:
    every = {"defaults": {}, "many values": VALUES, "closed": CLOSED, "closing": CLOSING}
    values = every[request.param]
    return rendered(values=json.dumps(values)), made_by_operator(values)


def normal_pod(template: Manifest) -> Manifest:
    """Without what may differ; lists that are sets as mappings."""
    metadata, spec = template["metadata"], dict(template["spec"])
    (container,) = spec["containers"]
    labels = {key: value for key, value in metadata["labels"].items() if key not in OWN_LABELS}
    # The digests are of the same settings, and each side's are its own.
    notes = {k: v for k, v in metadata.get("annotations", {}).items() if k != "checksum/config"}
    spec["containers"] = {
        **container,
        "env": {each["name"]: variable(each) for each in container["env"]},
        "ports": {each["name"]: each["containerPort"] for each in container["ports"]},
        "volumeMounts": {each["name"]: each for each in container["volumeMounts"]},
    }
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        # 0 is what Kubernetes takes where nothing is said.
        probe = {k: v for k, v in container[kind].items() if k != "initialDelaySeconds" or v}
        spec["containers"][kind] = probe
    spec["volumes"] = {each["name"]: each for each in spec.get("volumes", ())}
    return {"labels": labels, "annotations": notes, "spec": spec}


def variable(given: Manifest) -> Manifest:
    """Without the version of a field's path, which is v1 where nothing is said."""
    if "fieldRef" not in given.get("valueFrom", {}):
        return given
    return {"name": given["name"], "field": given["valueFrom"]["fieldRef"]["fieldPath"]}


Both = tuple[tuple[Manifest, ...], Cluster]


def test_the_pods_are_the_same(both: Both) -> None:
    chart, cluster = both
    deployments = [serving.broker_deployment(cluster)]
    if cluster.separate_recovery:
        deployments.append(serving.recovery_deployment(cluster))
    sets = [
        storage.bookie_stateful_set(cluster, cluster.spec.bookie.replicas),
        storage.etcd_stateful_set(cluster),
    ]
    for kind, made in (("Deployment", deployments), ("StatefulSet", sets)):
        plain = of_kind(chart, kind)
        assert set(plain) == {each["metadata"]["name"] for each in made}
        for each in made:
            other = plain[each["metadata"]["name"]]
            assert normal_pod(each["spec"]["template"]) == normal_pod(other["spec"]["template"])
            assert each["spec"]["selector"] == other["spec"]["selector"]
            assert each["spec"]["replicas"] == other["spec"]["replicas"]


def test_the_volumes_are_the_same(both: Both) -> None:
    """Or a cluster that changes hands would come up empty."""
    chart, cluster = both
    for made in (
        storage.bookie_stateful_set(cluster, cluster.spec.bookie.replicas),
        storage.etcd_stateful_set(cluster),
    ):
        plain = of_kind(chart, "StatefulSet")[made["metadata"]["name"]]["spec"]
        for part in (
            "serviceName",
            "podManagementPolicy",
            "persistentVolumeClaimRetentionPolicy",
        ):
            assert made["spec"][part] == plain[part]
        (claim,), (other) = made["spec"]["volumeClaimTemplates"], plain["volumeClaimTemplates"]
        assert (claim["metadata"], claim["spec"]) == (other[0]["metadata"], other[0]["spec"])
        # The operator replaces pods itself, with the ledgers' health in between.
        assert made["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert plain["updateStrategy"] == {"type": "RollingUpdate"}


def test_the_services_are_the_same(both: Both) -> None:
    chart, cluster = both
    made = [
        *serving.broker_services(cluster),
        storage.bookie_service(cluster),
        *storage.etcd_services(cluster),
    ]
    plain = of_kind(chart, "Service")
    assert set(plain) == {each["metadata"]["name"] for each in made}
    for each in made:
        assert each["spec"] == {
            # What Kubernetes takes where nothing is said.
            **({"type": "ClusterIP"} if "type" in each["spec"] else {}),
            **plain[each["metadata"]["name"]]["spec"],
        }


def test_the_settings_are_the_same(both: Both) -> None:
    chart, cluster = both
    plain = of_kind(chart, "ConfigMap")
    for component, made in (
        ("broker", serving.broker_settings(cluster)),
        ("bookie", storage.bookie_settings(cluster)),
        ("recovery", serving.recovery_settings(cluster)),
    ):
        if component == "recovery" and not cluster.separate_recovery:
            continue
        data = plain[f"{RELEASE}-{component}"]["data"]
        assert made == {QUORUMS.get(key, key): value for key, value in data.items()}


def test_the_rest_has_the_same_names(both: Both) -> None:
    chart, cluster = both
    budgets = of_kind(chart, "PodDisruptionBudget")
    for each in around.disruption_budgets(cluster, may_evict_bookies=True):
        assert budgets.pop(each["metadata"]["name"])["spec"] == each["spec"]
    assert not budgets
    policies = set(of_kind(chart, "NetworkPolicy"))
    assert policies == {each["metadata"]["name"] for each in around.network_policies(cluster)}
