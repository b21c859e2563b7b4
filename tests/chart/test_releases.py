"""A release's life on a real API server: install, upgrade, rollback, uninstall, install again.

Nothing runs here: it is about what is made, kept and refused. tests/kube has it with messages.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from tests.chart.rendering import CHART, EXAMPLES
from tests.support.kube import CRDS, Tool, wait_allowed

pytestmark = [pytest.mark.kube, pytest.mark.timeout(400)]

SMALL = {"etcd": {"replicaCount": 1}, "dashboards": {"enabled": False}}
WAIT_S = "90s"
CALL_S = 100.0

Helm = Callable[..., str]


@pytest.fixture
def release(helm: Tool, kubectl: Tool, kube_namespace: str) -> Helm:
    """`release("upgrade", {values})`; a release of this test's own namespace."""
    mine = helm.within(kube_namespace)

    def call(action: str, values: dict[str, Any] | None = None, *more: str) -> str:
        given = [] if values is None else [CHART, "-f", "-"]
        text = None if values is None else json.dumps({**SMALL, **values})
        return mine(action, "r", *given, *more, stdin=text, timeout_s=CALL_S)

    return call


def claims(kubectl: Tool) -> dict[str, str]:
    """Name and id of each claim."""
    found = kubectl.json("get", "pvc")["items"]
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}


def until(kubectl: Tool, what: str, path: str, value: str) -> None:
    kubectl("wait", what, f"--for=jsonpath={path}={value}", f"--timeout={WAIT_S}", timeout_s=CALL_S)


NAMES = {"data-r-bookie-0", "data-r-bookie-1", "data-r-bookie-2", "data-r-etcd-0"}


def test_volumes_outlive_the_release_and_are_found_again(
    release: Helm, kubectl: Tool, kube_namespace: str
) -> None:
    mine = kubectl.within(kube_namespace)
    release("install", {})
    for name in NAMES:
        mine("wait", f"pvc/{name}", "--for=create", f"--timeout={WAIT_S}", timeout_s=CALL_S)
    before = claims(mine)
    assert set(before) == NAMES
    release("uninstall", None, "--wait", "--timeout", WAIT_S)
    assert mine.json("get", "statefulset,deployment,service,pdb,networkpolicy")["items"] == []
    assert claims(mine) == before
    # The pods go after what made them; one of the same name is not to be taken for its successor.
    mine("wait", "pod", "--all", "--for=delete", f"--timeout={WAIT_S}", timeout_s=CALL_S)
    release("install", {})
    mine("wait", "pod/r-bookie-2", "--for=create", f"--timeout={WAIT_S}", timeout_s=CALL_S)
    volumes = mine.json("get", "pod", "r-bookie-2")["spec"]["volumes"]
    assert {"claimName": "data-r-bookie-2"} in [v.get("persistentVolumeClaim") for v in volumes]
    assert claims(mine) == before


def test_an_upgrade_and_a_rollback_change_what_they_say(
    release: Helm, kubectl: Tool, kube_namespace: str
) -> None:
    mine = kubectl.within(kube_namespace)

    def checksum() -> str:
        template = mine.json("get", "deployment", "r-broker")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    release("install", {})
    first = checksum()
    bookies = mine.json("get", "statefulset", "r-bookie")["spec"]["template"]
    release("upgrade", {"broker": {"configData": {"managedLedgerCacheSizeMB": "99"}}})
    assert checksum() != first
    config = mine.json("get", "configmap", "r-broker")["data"]
    assert config["PULSAR_PREFIX_managedLedgerCacheSizeMB"] == "99"
    release("rollback")
    assert checksum() == first
    # What was not changed is not restarted.
    assert mine.json("get", "statefulset", "r-bookie")["spec"]["template"] == bookies


def test_bookies_only_go_once_they_are_empty(
    release: Helm, helm: Tool, kubectl: Tool, kube_namespace: str
) -> None:
    release("install", {})
    fewer = {"replicaCount": 2}
    with pytest.raises(
        AssertionError, match=r"bookkeeper.replicaCount: r-bookie-2 has data that would be lost"
    ):
        release("upgrade", {"bookkeeper": fewer})
    with pytest.raises(AssertionError, match=r"etcd.replicaCount: .* leave it at 1"):
        release("upgrade", {"etcd": {"replicaCount": 3}})
    release("upgrade", {"bookkeeper": {**fewer, "decommissioned": ["r-bookie-2"]}})
    mine = kubectl.within(kube_namespace)
    assert mine.json("get", "statefulset", "r-bookie")["spec"]["replicas"] == 2


def test_one_install_brings_the_operator_its_crds_and_a_cluster(
    release: Helm, kubectl: Tool, kube_namespace: str
) -> None:
    """And an uninstall takes the cluster's resource, not the CRDs: they have everybody's topics."""
    mine = kubectl.within(kube_namespace)
    values = yaml.safe_load(EXAMPLES["with-operator"].read_text())
    release("install", values)
    spec = mine.json("get", "mcluster", "r")["spec"]
    assert spec["broker"]["autoscaling"]["backlog"]["enabled"] is True
    assert mine.json("get", "deployment", "r-operator")["spec"]["replicas"] == 1
    assert mine.json("get", "statefulset")["items"] == []
    release("uninstall", None, "--wait", "--timeout", WAIT_S)
    assert mine.json("get", "mcluster")["items"] == []
    names = {yaml.safe_load(file.read_text())["metadata"]["name"] for file in CRDS.glob("*.yaml")}
    kept = kubectl.json("get", "crd", *names)["items"]
    assert {each["metadata"]["name"] for each in kept} == names


def test_the_job_before_an_upgrade_applies_the_crds(
    kubectl: Tool, kube_api: client.ApiClient, kube_namespace: str, crds: list[str], tmp_path: Path
) -> None:
    """Its script, as its account: by the rights of the chart's role and no others."""
    from tests.chart.rendering import RELEASE, of_kind, rendered

    manifests = rendered("with-operator")
    name = f"{RELEASE}-crds"
    role = of_kind(manifests, "ClusterRole")[f"default-{name}"]
    role["metadata"] = {"name": f"{kube_namespace}-crds"}
    mine = kubectl.within(kube_namespace)
    mine("create", "serviceaccount", name)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{kube_namespace}-crds"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": f"{kube_namespace}-crds"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": kube_namespace}],
    }  # fmt: skip
    kubectl.apply(role, binding)
    try:
        data = of_kind(manifests, "ConfigMap")[name]["data"]
        for file, text in data.items():
            (tmp_path / file).write_text(text)
        assert {file for file in data if file.endswith(".yaml")} == {
            file.name for file in CRDS.glob("*.yaml")
        }
        (tmp_path / "token").write_text(mine("create", "token", name))
        account = f"system:serviceaccount:{kube_namespace}:{name}"
        first = sorted(file for file in data if file.endswith(".yaml"))[0]
        named = f"customresourcedefinitions/{first.removesuffix('.yaml')}.magnetar.io"
        wait_allowed(kubectl, account, "patch", named)
        settings = kube_api.configuration
        assert settings.ssl_ca_cert
        done = subprocess.run(
            [sys.executable, tmp_path / "apply_crds.py"],
            env={
                **os.environ,
                "CRDS": str(tmp_path),
                "API_URL": settings.host,
                "TOKEN_FILE": str(tmp_path / "token"),
                "CA_FILE": settings.ssl_ca_cert,
            },
            capture_output=True,
            text=True,
            timeout=CALL_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(".magnetar.io: 200") == len(list(CRDS.glob("*.yaml")))
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", f"{kube_namespace}-crds")
