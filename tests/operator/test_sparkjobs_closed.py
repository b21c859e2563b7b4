"""Spark jobs of a closed cluster: their certificate and token, which their processes find."""

import argparse
from typing import Any

import pytest
from tests.operator.cluster_world import cluster_of

from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.sparkjob import SparkJobSpec
from magnetar_operator.sparkjobs import manifests, submit
from magnetar_operator.sparkjobs.desired import Job, place_in
from magnetar_spark.jobs.main import log_settings

CLOSED: dict[str, Any] = {
    "tls": {"enabled": True},
    "auth": {"authentication": {"enabled": True}, "authorization": {"enabled": True}},
}


def driver_of(namespace: str = "ns", **cluster: Any) -> Object:
    """The pod of a driver."""
    place = place_in(cluster_of(**cluster), is_ready=True)
    job = Job("cold", namespace, "uid", SparkJobSpec.parse({"type": "Offload"}), "spark:1", place)
    spec: Object = manifests.job_spec(job, place)["template"]["spec"]
    return spec


def test_a_job_finds_the_files_that_its_pod_mounts() -> None:
    spec = driver_of(**CLOSED)
    (container,) = spec["containers"]
    environment = {one["name"]: one.get("value", "") for one in container["env"]}
    found = log_settings(argparse.Namespace(), environment)
    assert found.bookkeeper_tls
    files = [found.trust_file, found.cert_file, found.key_file, found.token_file]
    files += [found.tls_ca_file, found.tls_cert_file, found.tls_key_file]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {file.rpartition("/")[0] for file in files} <= mounted
    secrets = {one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
    assert secrets == {"c-tls-jobs", "c-token-jobs"}


def test_a_job_of_an_open_cluster_has_neither() -> None:
    spec = driver_of()
    assert not [one for one in spec["volumes"] if "secret" in one]
    (container,) = spec["containers"]
    names = {one["name"] for one in container["env"]}
    assert not {"MAGNETAR_TOKEN_FILE", "MAGNETAR_BOOKKEEPER_TLS"} & names


@pytest.mark.parametrize("part", ["tls", "auth"])
def test_a_job_of_another_namespace_cannot_have_the_secrets(part: str) -> None:
    with pytest.raises(submit.BadSpec, match=r"spec\.clusterRef: MagnetarCluster ns/c is closed"):
        driver_of("elsewhere", **{part: CLOSED[part]})
