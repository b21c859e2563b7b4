"""Every object of a cluster and of a SparkJob, as this release makes it, beside what is recorded.

A release of the operator that makes other pod templates restarts every pod of every cluster; one
that makes other selectors, claims or names cannot apply them at all. So a change of an object is
meant, or it is a mistake. `python -m tests.operator.test_objects_kept` records the digests of
objects whose change is meant.
"""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from tests.operator.cluster_world import cluster_of
from tests.operator.test_sparkjobs_plan import PLACE, job, placed

from magnetar_operator.cluster.manifests import storage
from magnetar_operator.cluster.manifests.names import digest, sealed
from magnetar_operator.cluster.observed import Observed, Pod
from magnetar_operator.cluster.plan import plan
from magnetar_operator.engine.plan import Apply
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.cluster_parts import Offload
from magnetar_operator.sparkjobs import manifests
from magnetar_operator.sparkjobs.desired import Place

RECORDED = Path(__file__).parent / "objects.json"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CLAIM = {"name": "cold"}
CLUSTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "closed": {
        "tls": {"enabled": True},
        "auth": {"authentication": {"enabled": True}, "authorization": {"enabled": True}},
        "autorecovery": {"mode": "Separate"},
    },
    "all_set": {
        "clusterName": "west",
        "imagePullSecrets": [{"name": "pull"}],
        "etcd": {
            "replicas": 1,
            "antiAffinity": "Disabled",
            "storage": {"size": "3Gi", "storageClassName": "fast"},
        },
        "bookie": {
            "replicas": 5,
            "antiAffinity": "Required",
            "storage": {"size": "30Gi", "storageClassName": "fast"},
            "config": {"write_cache_mb": 64},
            "resources": {"requests": {"cpu": "0.5", "memory": "512Mi"}},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "disk", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "ScheduleAnyway",
                }
            ],
            "priorityClassName": "high",
            "podAnnotations": {"a": "b"},
        },
        "broker": {
            "replicas": 3,
            "affinity": {"nodeAffinity": {}},
            "config": {"managedLedgerDefaultAckQuorum": 2},
            "extraEnv": [{"name": "X", "value": "1"}],
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
            "autoscaling": {"enabled": True, "backlog": {"enabled": True}},
        },
        "autorecovery": {"mode": "Separate", "config": {"recovery_ledgers_at_once": 4}},
        "networkPolicy": {"clients": [{"namespaceSelector": {}}]},
        "metrics": {"serviceMonitor": "Always"},
        "offload": {"driver": "filesystem", "volumeClaim": CLAIM},
    },
    "external_etcd": {
        "etcd": {"external": {"endpoints": ["e:2379", "https://f:2379"], "prefix": "/west"}},
        "networkPolicy": {"enabled": False},
        "offload": {
            "driver": "S3", "bucket": "cold", "endpoint": "http://s3:9000",
            "credentials": {"name": "key"},
        },
    },
}  # fmt: skip
JOBS: dict[str, tuple[Place, dict[str, Any]]] = {
    "job": (PLACE, {}),
    "job_all_set": (
        placed(Offload.parse({"driver": "filesystem", "volumeClaim": CLAIM})),
        {
            "type": "Compact",
            "image": "mine:1",
            "schedule": "0 3 * * *",
            "timeZone": "Europe/Berlin",
            "startingDeadline": "1h",
            "concurrencyPolicy": "Replace",
            "historyLimit": 5,
            "timeout": "2h",
            "retries": {"backoffLimit": 4},
            "selection": {"topics": ["persistent://a/b/c"], "namespaces": ["a/b"]},
            "options": {"max-ledgers": 3},
            "driver": {"memory": "2Gi", "cores": 2, "nodeSelector": {"a": "b"}},
            "executor": {
                "instances": 3, "cores": 2, "memory": "2Gi", "cpuRequest": "500m",
                "tolerations": [{"key": "x", "operator": "Exists"}],
            },
            "credentials": {"name": "mine"},
            "imagePullSecrets": [{"name": "pull"}],
            "eventLogClaim": {"name": "events"},
            "sparkConf": {"spark.sql.shuffle.partitions": 8},
        },
    ),
}  # fmt: skip


def of_cluster(spec: dict[str, Any]) -> list[Object]:
    cluster = cluster_of(**spec)
    pods = [
        Pod(f"c-{component}-{at}", "u", component, "", True, NOW, False)
        for component in ("etcd", "bookie")
        for at in range(5)
    ]
    planned = plan(cluster, Observed(pods=pods, has_service_monitors=True), 0, NOW)
    manifests_applied = [action.manifest for action in planned.actions if isinstance(action, Apply)]
    live = {"metadata": {"name": "data-c-bookie-0", "namespace": "ns"}, "spec": {}}
    claim = storage.claim(cluster, "bookie", live, "11Gi")
    return [*manifests_applied, sealed(claim)]


def of_job(place: Place, spec: dict[str, Any]) -> list[Object]:
    spark_job = job(place, **spec)
    cron = manifests.cron_job(spark_job, place) if "schedule" in spec else None
    if cron is not None:
        cron["metadata"]["uid"] = "u-cron"
    run = manifests.run(spark_job, place, "1", cron)
    return [*manifests.rights(spark_job), *([cron] if cron is not None else []), run]


def made(name: str) -> list[Object]:
    return of_cluster(CLUSTERS[name]) if name in CLUSTERS else of_job(*JOBS[name])


def digests(name: str) -> dict[str, str]:
    """Digests by kind and name; those of pod templates are separate."""
    found: dict[str, str] = {}
    for item in made(name):
        key = f"{item['kind']} {item['metadata']['name']}"
        template = item.get("spec", {}).get("template")
        assert key not in found, key
        found[key] = digest(item)
        if template is not None:
            found[f"pods of {key}"] = digest(template)
    return found


@pytest.mark.parametrize("name", [*CLUSTERS, *JOBS])
def test_objects_equal_those_of_the_previous_release(name: str) -> None:
    recorded = json.loads(RECORDED.read_text())[name]
    object_digests = digests(name)
    changed = [
        key
        for key in {**recorded, **object_digests}
        if recorded.get(key) != object_digests.get(key)
    ]
    assert changed == [], "if all of these are meant to change, record them"


if __name__ == "__main__":
    whole = {item: digests(item) for item in (*CLUSTERS, *JOBS)}
    RECORDED.write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
