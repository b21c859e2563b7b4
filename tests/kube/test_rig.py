"""The rig itself: a namespace of one's own, tools with deadlines, containers that run."""

import subprocess

import pytest
from kubernetes import client
from tests.support.kube import TEST_LABEL, Images, Tool, ToolError

from magnetar import __version__


@pytest.mark.kube
def test_a_namespace_of_its_own(
    kube_api: client.ApiClient, kube_namespace: str, kubectl: Tool
) -> None:
    found = client.CoreV1Api(kube_api).read_namespace(kube_namespace)
    assert found.metadata
    assert found.metadata.labels == {
        TEST_LABEL: "true",
        "kubernetes.io/metadata.name": kube_namespace,
    }
    mine = kubectl.within(kube_namespace)
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hello"},
        "data": {"word": "hi"},
    }
    mine.apply(manifest)
    assert mine.json("get", "configmap", "hello")["data"] == {"word": "hi"}


@pytest.mark.kube
def test_a_failed_call_shows_what_was_said(kubectl: Tool) -> None:
    with pytest.raises(ToolError, match="nothing-of-this-name"):
        kubectl("get", "namespace", "nothing-of-this-name")
    with pytest.raises(subprocess.TimeoutExpired):
        kubectl("get", "namespaces", "--watch", timeout_s=1)


@pytest.mark.kube
def test_helm_talks_to_the_same_cluster(helm: Tool, kube_namespace: str) -> None:
    assert helm.within(kube_namespace).json("list") == []


@pytest.mark.kube_node
@pytest.mark.timeout(180)
def test_a_volume_is_its_pods(kubectl: Tool, kube_namespace: str, images: Images) -> None:
    """As in the chart: neither root nor a writable root file system, and a volume to write to."""
    mine = kubectl.within(kube_namespace)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    container = {
        "name": "main",
        "image": images.magnetar,
        "command": ["sh", "-c", "id -u > /data/user && cat /data/user && magnetar --version"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer"},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "fsGroup": 10000},
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }
    mine.apply(claim, pod)
    mine(
        "wait",
        "--for=jsonpath={.status.phase}=Succeeded",
        "--timeout=120s",
        "pod/writer",
        timeout_s=130,
    )
    user, version = mine("logs", "writer").splitlines()
    assert user == "10000"
    assert version == f"magnetar {__version__}"
